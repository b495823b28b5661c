"""Break the code on purpose, one place at a time, and see that the tests fail.

    python benchmarks/mutations.py              # an hour or so: each mutation runs its tests
    python benchmarks/mutations.py noise batch  # those whose name holds one of the words

Works on a copy of the repository in a temporary folder; writes benchmarks/results/mutations.txt, of
which a run with words replaces their lines.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import NamedTuple

REPOSITORY = Path(__file__).parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results" / "mutations.txt"


class Mutation(NamedTuple):
    """One place to break."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str
    """Arguments of pytest: the fewest tests that should notice."""


SAMPLERS = "tests/samplers/test_samplers.py -k 'JAX or order or limit'"
LETTERS = "tests/samplers/test_splitting.py"
NORMALS = (
    "tests/backends/test_normals.py -k 'CVM or JAX or random123'"  # numba's are cached on disk
)
SIMPLEXES = "tests/samplers/test_samplers.py tests/samplers/test_sgrld.py -k simplex"
GIBBS = "tests/latents/test_gibbs.py tests/latents/test_latents.py"
IMPORTANCE = "tests/latents/test_importance.py"
COMPLETION = "tests/evaluation/test_evaluation.py -k completion"
FRESH = "tests/samplers/test_samplers.py -k fresh"
EXACT = "tests/gradients/test_local.py -k exact"
POTENTIALS = "tests/gradients/test_potentials.py"
TWO_INDICES = "tests/integration/test_one_index.py"
KINDS = "tests/integration/test_integration.py -k 'hurdle or kinds or one_by_one'"
TOUCHED = "tests/gradients/test_local.py -k the_papers"
BEGIN = "        self.begin(point)\n        theta, others = kernel.split(point)\n        before"
NOISE = "sd = pt.sqrt(2 * dynamics.diffusion * dynamics.temperature * dt)"

MUTATIONS = [
    Mutation("nothing", "samplers/splitting.py", NOISE, NOISE,
             "tests/samplers/test_samplers.py tests/samplers/test_splitting.py tests/test_step.py"),
    Mutation("noise: variance x 1.2", "samplers/splitting.py", NOISE,
             "sd = pt.sqrt(2.4 * dynamics.diffusion * dynamics.temperature * dt)", SAMPLERS),
    Mutation("noise: h for its square root", "samplers/splitting.py", NOISE,
             "sd = pt.sqrt(2 * dynamics.diffusion * dynamics.temperature) * dt", SAMPLERS),
    Mutation("noise: wrong power of D", "samplers/splitting.py", NOISE,
             "sd = dynamics.diffusion * pt.sqrt(2 * dynamics.temperature * dt)", SAMPLERS),
    Mutation("potentials: minus before a sum forgotten", "gradients/potentials.py",
             "return node.op(*inputs)", "return found[0]", POTENTIALS),
    Mutation("potentials: factors that depend on data", "gradients/potentials.py",
             "len(found) == 1 and not leaf_arrays(others, [])", "len(found) == 1", POTENTIALS),
    Mutation("potentials: priors of neighbours sliced", "gradients/potentials.py",
             "if not indices:", "if False:", POTENTIALS),
    Mutation("potentials: effects that they look up are not counted",
             "gradients/local_variables.py", "ancestors([*model.observed_RVs, *model.potentials])",
             "ancestors(model.observed_RVs)", POTENTIALS),
    Mutation("groups of two kinds of rows: in the wrong order", "integration/joined_groups.py",
             "np.concatenate(own)", "np.concatenate(own[::-1])", KINDS),
    Mutation("groups of two kinds of rows: types of indices kept", "integration/joined_groups.py",
             "{i: group}, rebuild_strict=False", "{i: group.astype(i.dtype)}", KINDS),
    Mutation("two indices: the other axis is that of groups", "integration/one_index.py",
             "if n_columns > n_rows:", "if n_columns < n_rows:", TWO_INDICES),
    Mutation("two indices: counted from the end", "integration/one_index.py",
             "which[:, None] % n_columns", "which[:, None]", TWO_INDICES),
    Mutation("integrals: the first change, accurate or not", "integration/group_gradients.py",
             "(*accurate, *halved, *others[-1:])", "others",
             "tests/integration/test_integration.py -k skew"),
    Mutation("integrals: points that overflow are kept", "integration/group_centres.py",
             "found &= np.isfinite(part)", "found |= np.isfinite(part)",
             "tests/integration -k overflow"),
    Mutation("effects: modes do not follow the prior", "integration/prior_following.py",
             "modes + (scores + gradient) / curvature", "modes",
             "tests/integration/test_integration.py -k follow"),
    Mutation("effects: constant points", "integration/group_centres.py",
             "self.follow = self.may_follow and", "self.follow = False and",
             "tests/integration/test_integration.py -k follow"),
    Mutation("effects: many do not follow the density", "integration/group_centres.py",
             "self.follow_density = self.follow and self.rotated", "self.follow_density = False",
             "tests/integration/test_density_following.py"),
    Mutation("effects: many follow too slowly", "integration/group_centres.py",
             "np.eye(modes.shape[1]) + hessian", "np.eye(modes.shape[1])",
             "tests/integration/test_density_following.py"),
    Mutation("effects: points alike in all groups", "integration/group_centres.py",
             "if self.rotated:", "if False:",
             "tests/integration/test_density_following.py -k skew"),
    Mutation("effects: points of many are not differentiated", "integration/integrated_model.py",
             "if not centres.follow_density:", "if True:",
             "tests/integration/test_density_following.py -k with_their_points"),
    Mutation("effects: points of few are differentiated", "gradients/differentiate.py",
             'exclude=("local_view_op",)', "exclude=()",
             "tests/gradients/test_gradients.py -k held_is_not"),
    Mutation("effects: points without a density have a gradient", "integration/integrated_model.py",
             "a = pt.switch(has_density[:, :, None], a, now.modes)", "pass",
             "tests/integration/test_integration.py -k rounded_to_0"),
    Mutation("start: shares of a prior are no scales", "adaptation/scale_parameters.py",
             'name == "simplex" and rv in depended_on', "False",
             "tests/adaptation/test_start.py -k shares"),
    Mutation("exact: the step size stays too large", "exact/transitions.py",
             "if acceptance >= LEAST", "if True",
             "tests/exact/test_exact.py -k narrow"),
    Mutation("exact: acceptance without the kinetic energy", "exact/hamiltonian.py",
             "np.square(momentum).sum(axis=1) / 2 - points.log_density", "-points.log_density",
             "tests/exact/test_exact.py -k 'repair or run'"),
    Mutation("exact: every end is accepted", "exact/hamiltonian.py",
             "self.rng.random(len(rise)) < acceptance", "acceptance >= 0",
             "tests/exact/test_exact.py -k repair"),
    Mutation("exact: the density of some rows for all", "exact/log_density.py",
             "for first in range(0, n, length):", "for first in range(0, n, n):",
             "tests/exact/test_exact.py -k densities"),
    Mutation("exact: rows are counted from 0 in each block", "exact/log_density.py",
             "first + numbers, rows.scale", "numbers, rows.scale",
             "tests/exact/test_exact.py -k densities"),
    Mutation("exact: starts are not forgotten", "exact/transitions.py",
             "first = max(0, needed - forgotten)", "first = 0",
             "tests/exact/test_exact.py -k slow_directions"),
    Mutation("certificate: weights without the Student's density", "exact/certificate_weights.py",
             "log_ratio = density(points) - log_q", "log_ratio = density(points)",
             "tests/exact/test_exact.py -k certificate"),
    Mutation("robust: the covariance of gradients is that of the model", "diagnosis/robust.py",
             "_sandwich(np.cov(flat.T).reshape(scatter.shape), scatter).T", "np.eye(len(scatter))",
             "tests/diagnosis/test_robust.py"),
    Mutation("integrals: the noise of two groups at each point", "adaptation/rows_warm_up.py",
             "ROWS_PER_POSITION // gradients.rows_worth, min(gradients.size, ROWS_PER_POSITION)",
             "2, 2", "tests/integration/test_integration.py -k noise_of_groups"),
    Mutation("integrals: a start without a gradient", "step.py",
             "self._gradients.refuse_start(start)", "pass",
             "tests/integration/test_integration.py -k start_without"),
    Mutation("integrals: updates compiled in a form that is left", "step.py",
             "form_is_settled() or not self.source.is_costly", "True",
             "tests/integration/test_integration.py -m long -k form_that_suits"),
    Mutation("integrals: effects in the model's precision", "integration/group_density.py",
             'pt.dtensor3("effects"), lambda a, p: [terms.log_joint',
             'pt.tensor3("effects"), lambda a, p: [terms.log_joint',
             "tests/integration/test_integration.py -k single_precision"),
    Mutation("jumps: points of integrals move between comparisons", "adaptation/jumps.py",
             "with gradients.points_held():", "if True:", "tests/adaptation/test_jumps.py"),
    Mutation("integrals: compared at draws only", "integration/group_gradients.py",
             "max(near, in_tails / COARSE_IN_TAILS)", "near",
             "tests/integration/test_integration.py -k say_little"),
    Mutation("integrals: compared where no draw can be", "integration/group_gradients.py",
             "OUT_OF_REACH = 12.0", "OUT_OF_REACH = 1e9",
             "tests/integration/test_integration.py -k say_little"),
    Mutation("integrals: one density decides what matters", "integration/group_gradients.py",
             "(by_rule < -OUT_OF_REACH) & (by_finer < -OUT_OF_REACH)",
             "by_rule < -OUT_OF_REACH",
             "tests/integration/test_integration.py -k say_little"),
    Mutation("integrals: points without density stay", "adaptation/change_of_form.py",
             'if "equally_spaced" in gradients.other_integrals', "if False",
             "tests/integration/test_second_derivatives.py -k survival"),
    Mutation("effects: products without second derivatives", "gradients/differentiate.py",
             "if op.no_zeros_in_input:", "if True:",
             "tests/integration/test_second_derivatives.py -k products"),
    Mutation("effects: integrated without second derivatives", "integration/group_terms.py",
             "        _check_second_derivatives(terms)", "        pass",
             "tests/integration/test_second_derivatives.py -k sampled"),
    Mutation("integrals: the anchor's gradient at other points", "integration/group_gradients.py",
             "self._move(theta, afresh=True)", "self._move(theta)",
             "tests/integration/test_integration.py -k gradient_at_the_anchor"),
    Mutation("gradients: survival by one minus a probability", "gradients/differentiate.py",
             "return None if found is None else [found]", "return None",
             "tests/gradients/test_gradients.py -k long_censored"),
    Mutation("integrals: as many points for kinks", "integration/quadrature_points.py",
             "points_of(k, 2 if refined and k == 1 else 1, equally_spaced)",
             "points_of(k, 1, equally_spaced)",
             "tests/integration/test_integration.py -k kinks_get"),
    Mutation("jumps: kinks between points of integration", "adaptation/jumps.py",
             "    take_equally_spaced_points(objective.gradients)", "    pass",
             "tests/integration/test_integration.py -k kinks_between"),
    Mutation("integrals: compared near the middle", "adaptation/rows_warm_up.py",
             "FAR * self.metric", "self.metric",
             "tests/integration/test_integration.py -k both_tails"),
    Mutation("trigamma: its series too near to zero", "backends/vectorized_math.py",
             "real(np.pi), 10", "real(np.pi), 5",
             "tests/backends/test_vectorized_math.py -k tri_gamma"),
    Mutation("effects: several do not follow the prior", "integration/prior_following.py",
             "(scores + gradient)[:, None, :]", "scores[:, None, :]",
             "tests/integration/test_integration.py -k several_effects_follow"),
    Mutation("effects: distances of points as they fall", "integration/quadrature_points.py",
             "for _ in range(ROUNDS)", "for _ in range(0)",
             "tests/integration/test_integration.py -k moments_of_a"),
    Mutation("effects: points follow any prior", "integration/group_terms.py",
             "return is_normal or (", "return True or (",
             "tests/integration/test_integration.py -k follow"),
    Mutation("effects: points around modes", "integration/group_centres.py",
             "modes, factors = means_and_factors(", "_ = means_and_factors(",
             "tests/integration/test_integration.py -k lie"),
    Mutation("effects: points that do not reach into tails", "integration/density_ranges.py",
             "h.max(axis=0) - largest**2 / 2", "h.max(axis=0) - 2.0",
             "tests/integration/test_row_effects.py -k long_tails"),
    Mutation("warm-up: chains heated by too large updates", "adaptation/warm_up.py",
             "if not self.is_hot(run):", "if True:",
             "tests/adaptation/test_adaptation.py -k steeper"),
    Mutation("warm-up: what rows say lost in rounding", "adaptation/non_centring_rule.py",
             "np.where(ROUNDING * curvature > typical, typical, h)", "h",
             "tests/integration/test_partial_non_centring.py -k rounding"),
    Mutation("warm-up: effects with scales of their own left centred",
             "adaptation/non_centring_rule.py",
             "scale.size > 1 and (found is None or", "(found is not None and",
             "tests/integration/test_partial_non_centring.py -k never_left_centred"),
    Mutation("warm-up: a scale of one effect sampled as one of many",
             "adaptation/non_centring_rule.py",
             "if found is None or has_own_scales:", "if found is None:",
             "tests/integration/test_partial_non_centring.py -k one_effect_each"),
    Mutation("warm-up: effects with one scale each left centred",
             "adaptation/non_centring_rule.py",
             "found is None or effects_per_scale.max() == 1", "found is None",
             "tests/integration/test_partial_non_centring.py -k one_effect_each"),
    Mutation("control variate: no factor in the updates", "gradients/control_variate.py",
             "log_ratio(slope, x, anchor[v])", "log_ratio(slope, x, x)",
             "tests/adaptation/test_adaptation.py -k positive_coefficients"),
    Mutation("control variate: the factor of the batch alone", "gradients/control_variate.py",
             "g + f * (values[whole] - g_anchor)", "g + values[whole] - f * g_anchor",
             "tests/gradients/test_control_variate.py -k exact_gradient"),
    Mutation("control variate: powers of the factors not chosen", "gradients/anchor_factors.py",
             "changes.argmin(axis=0)", "changes.argmax(axis=0)",
             "tests/gradients/test_anchor_factors.py"),
    Mutation("warm-up: the noise in tails ignored", "adaptation/curvature_warm_up.py",
             "            self.noise_in_tails,\n", "",
             "tests/adaptation/test_tails.py"),
    Mutation("warm-up: the curvature in tails ignored", "adaptation/curvature_warm_up.py",
             "if steepest := self.steepest():", "if False:",
             "tests/adaptation/test_tails.py"),
    Mutation("warm-up: noise of changes without the factor", "adaptation/rows_warm_up.py",
             "each - factors.at(theta, anchor) * at_anchor(rows)", "each - at_anchor(rows)",
             "tests/adaptation/test_tails.py"),
    Mutation("warm-up: the slope that is smallest", "adaptation/rows_warm_up.py",
             "points[ratios[:, j].argmax()]", "points[ratios[:, j].argmin()]",
             "tests/adaptation/test_tails.py"),
    Mutation("effects: only the first factor of a product is the scale",
             "integration/centre_scaled_effects.py",
             "yield from uses(out, by_row, transposed, (*scale, *times))",
             "yield from uses(out, by_row, transposed, scale) if not times else ()",
             "tests/integration/test_centre_scaled_effects.py -k density"),
    Mutation("gradients: 0 / 0 where a spectral density is rounded to 0",
             "gradients/differentiate.py", "if not exponents:", "if True:",
             "tests/integration/test_centre_scaled_effects.py -k spectral_density"),
    Mutation("effects: a scale that is 0 for half of its values",
             "integration/centre_scaled_effects.py",
             "positive = min(np.min(function(*starts.values())), smallest(NEAR)) > 0",
             "positive = True",
             "tests/integration/test_centre_scaled_effects.py -k stay_as_they_are"),
    Mutation("effects: points where the warm-up left them", "adaptation/rows_warm_up.py",
             "        self.gradients.settle_around(self.anchor)\n        # The points",
             "        # The points",
             "tests/integration/test_integration.py -k anchor"),
    Mutation("effects: their scale without the slope of its transform",
             "integration/partial_non_centring.py", "np.log(self.width) - pt.softplus(-value)",
             "np.log(self.width)",
             "tests/integration/test_partial_non_centring.py -k another_scale"),
    Mutation("effects: drawn at the point before", "integration/effects.py",
             "drawn[n, block.groups] =", "drawn[n - 1, block.groups] =",
             "tests/integration/test_integration.py -k follow"),
    Mutation("effects: not compared with the model", "integration/group_terms.py",
             "        if check:", "        if False:",
             "tests/integration/test_integration.py -k depend"),
    Mutation("effects of rows: looked up in priors too", "integration/row_effects.py",
             "{rv: rv for rv in model.free_RVs} | {rv: rv", "{rv: rv",
             "tests/integration/test_row_effects.py -k shared_variable"),
    Mutation("effects of rows: not compared with the model", "integration/group_terms.py",
             "        if check:", "        if False:",
             "tests/integration/test_row_effects.py -k depend"),
    Mutation("several modes: points around one of them", "integration/group_centres.py",
             "        if self.have_ranges:", "        if False:",
             "tests/integration/test_row_effects.py -k all_modes"),
    Mutation("several modes: proposals taken for uniform", "integration/metropolis_proposals.py",
             "return self.log_p[groups", "return 0 * self.log_p[groups",
             "tests/integration/test_row_effects.py -k two_modes"),
    Mutation("warm-up: columns with elements in the same row share a colour",
             "adaptation/coloured_differences.py", "rest @ rest > 0", "rest > 0",
             "tests/adaptation/test_coloured_differences.py"),
    Mutation("warm-up: second derivatives twice too large", "adaptation/curvature.py",
             "/ (2 * steps[j])", "/ steps[j]", "tests/adaptation/test_curvature.py"),
    Mutation("start: others follow scales to wherever", "adaptation/start.py",
             "FOLLOWING = 2.0", "FOLLOWING = 2e9", "tests/adaptation/test_start.py -k others"),
    Mutation("letters: a letter that occurs twice goes the whole way", "samplers/splitting.py",
             "h / sum(map(", "h + 0 * sum(map(", SAMPLERS),
    Mutation("letters: A and B swapped in S", "samplers/splitting.py", 'SYMMETRIC = "ABOBA"',
             'SYMMETRIC = "ABOAB"', SAMPLERS),
    Mutation("letters: E rubs after the force", "samplers/splitting.py",
             '"XbOT"', '"XObT"', LETTERS),
    Mutation("letters: E moves theta with the old p", "samplers/splitting.py",
             '"XbOT"', '"bOTX"', LETTERS),
    Mutation("letters: SGNHT's force at the new theta", "samplers/splitting.py", '"bOXT"', '"bXOT"',
             LETTERS),
    Mutation("thermostat: |p| for p * p", "samplers/splitting.py", "x + dt * (q * q - temperature)",
             "x + dt * (abs(q) - 1)", SAMPLERS),
    Mutation("thermostat: SGNHT counts the first variable alone", "samplers/splitting.py",
             "n_elements = [q.size for q in p]", "n_elements = [q.size for q in p[:1]]", LETTERS),
    Mutation("SGLD: noise x 1.2", "samplers/sgld.py",
             "pt.sqrt(self.temperature * h)", "pt.sqrt(1.2 * self.temperature * h)", SAMPLERS),
    Mutation("SGLD: e for e / 2", "samplers/sgld.py", "0.5 * h * gi", "h * gi", SAMPLERS),
    Mutation("PSGLD: the noise lacks G", "samplers/psgld.py",
             "pt.sqrt(self.temperature * h * Gi) * z", "pt.sqrt(self.temperature * h) * z",
             SAMPLERS),
    Mutation("PSGLD: Gamma of the wrong sign", "samplers/psgld.py", "return (1 - self.alpha) *",
             "return (self.alpha - 1) *", SAMPLERS),
    Mutation("PSGLD: sum for mean in gbar", "gradients/source.py", "[lik / self.n_data for lik",
             "[lik / 1 for lik", SAMPLERS),
    Mutation("normals: variance x 1.2", "backends/normals_numba.py", "real(-2), real(2.0**-32)",
             "real(-2.4), real(2.0**-32)", NORMALS),
    Mutation("normals: a pair's second is never negative", "backends/normals_numba.py",
             "sign = one if other_bits & uint32(1) else real(-1)", "sign = one", NORMALS),
    Mutation("normals: both of a pair of the same sign", "backends/normals_numba.py",
             "sign = one if other_bits & uint32(1) else real(-1)",
             "sign = one if s > real(0) else real(-1)", NORMALS),
    Mutation("normals: JAX's key never changes", "backends/random_jax.py",
             "z = normals(key, n, dtype)",
             "z = normals(0 * key, n, dtype)", NORMALS),
    Mutation("normals: a rotation of Threefry's is wrong", "backends/box_muller.py",
             "(13, 15, 26, 6,", "(13, 15, 27, 6,", NORMALS),
    Mutation("gradient: N / n forgotten", "gradients/model_gradient.py",
             "likelihood = scale * sum_of(", "likelihood = 1.0 * sum_of(",
             "tests/gradients/test_gradients.py"),
    Mutation("streams: noise does not advance", "noise.py", "self.rng, draws =", "_, draws =",
             FRESH),
    Mutation("streams: one batch for a whole call", "loop.py", "take()[k]", "take()[0 * k]",
             SAMPLERS + " tests/test_step.py"),
    Mutation("streams: chains share batches", "chain.py",
             "Batches(rows.n_rows, rows.batch_size, rng",
             "Batches(rows.n_rows, rows.batch_size, np.random.default_rng(0)", FRESH),
    Mutation("streams: chains share noise", "chain.py", "backend.generator(noise_rng)",
             "backend.generator(np.random.default_rng(0))", FRESH),
    Mutation("streams: chains of sgm.sample share a generator", "sampling.py",
             "generator.spawn(given.chains)", "[generator] * given.chains",
             "tests/run/test_sampling.py"),
    Mutation("streams: batches start over at each call", "batches/shuffled.py",
             "        if self.replacement:\n            return self.rng.integers",
             "        self.__post_init__()\n        if self.replacement:\n"
             "            return self.rng.integers", "tests/batches/test_batches.py"),
    Mutation("state: momentum drawn anew at each draw", "chain.py", BEGIN,
             "        self.state = None\n" + BEGIN, "tests/test_step.py"),
    Mutation("SGRLD: noise x 1.2", "samplers/sgrld.py", "pt.sqrt(T * h * expanded)",
             "pt.sqrt(1.2 * T * h * expanded)", SIMPLEXES),
    Mutation("SGRLD: total of the prior for that of the draw", "samplers/sgrld.py",
             "expanded = total[..., None] * p", "expanded = mean", "tests/samplers/test_sgrld.py"),
    Mutation("latents: N / n forgotten", "latents/gradient.py",
             "likelihood = scale * pt.sum(weights", "likelihood = 1.0 * pt.sum(weights", GIBBS),
    Mutation("Gibbs: burn-in draws taken too", "latents/gibbs/gibbs.py",
             "kept = [d[self.burn_in :] for d in draws]",
             "kept = [d[: self.n_samples] for d in draws]", GIBBS),
    Mutation("Gibbs: a flip's loss of probability forgotten", "latents/gibbs/conditionals.py",
             "gain = sign * log_odds - loss", "gain = sign * log_odds", GIBBS),
    Mutation("Gibbs: the other units see the old value", "latents/gibbs/conditionals.py",
             "moved(maps, columns, pt.concatenate([new - z] * n_values))",
             "moved(maps, columns, pt.concatenate([0 * z] * n_values))", GIBBS),
    Mutation("importance: weights without q", "latents/importance/neural_importance.py",
             "softmax(log_p - log_q, axis=0)", "softmax(log_p, axis=0)", IMPORTANCE),
    Mutation("importance: Adam goes downhill", "latents/importance/neural_importance.py",
             "w + rate * m",
             "w - rate * m", IMPORTANCE),
    Mutation("importance: no Jacobian", "latents/importance/recognition.py",
             "log_q = log_q - log_jacobian",
             "log_q = log_q - 0 * log_jacobian", IMPORTANCE),
    Mutation("products: a transposed matrix taken as it is", "backends/matrix_products.py",
             "made_by.inputs[0], not from_left", "made_by.inputs[0], from_left",
             "tests/backends/test_matrix_products.py"),
    Mutation("rows: prefetched, then others are read", "backends/software_prefetch.py",
             "        return rows\n\n    return prefetched",
             "        return rows[::-1]\n\n    return prefetched",
             "tests/backends/test_software_prefetch.py -k test_rows"),
    Mutation("rows: prefetched beside the thread too", "kernel.py",
             "if not (by_number and any(", "if not (any(",
             "tests/backends/test_software_prefetch.py -k caches"),
    Mutation("rows: a table in column order stays so", "backends/backend.py",
             'np.asarray(value, order="C")', "value", "tests/backends/test_software_prefetch.py"),
    Mutation("rows: what was fetched ahead counts as used", "batches/prefetched.py",
             "        if self._block is None:\n            return ahead.state",
             "        if True:\n            return ahead.state",
             "tests/batches/test_prefetched.py -k state"),
    Mutation("rows: those of one call handed out again", "batches/prefetched.py",
             "            self._used += count", "            self._used += count // 2",
             "tests/batches/test_prefetched.py -k batches"),
    Mutation("rows: four rounds of the network", "batches/permutation.py", "N_ROUNDS = 8",
             "N_ROUNDS = 4", "tests/batches/test_permutation.py"),
    Mutation("start: the likelihood is not looked at", "gradients/source.py",
             "return parts if self.streamed is None", "return parts if False",
             "tests/contracts/test_errors.py"),
    Mutation("start: chains of pm.sample are not looked at", "chain.py",
             "if self.n_updates == 0:", "if False:", "tests/test_step.py -k 'start or density'"),
    Mutation("non-finite: the log posterior is left out", "loop.py",
             "pt.abs(potential) < np.inf", "pt.abs(potential) >= 0",
             "tests/run/test_vectorized.py -k density"),
    Mutation("streams of files: rows not shuffled", "batches/windows.py",
             "places = rng.permutation(size)", "places = np.arange(size)",
             "tests/batches/test_streaming.py"),
    Mutation("latents: Gamma proposals of another shape", "latents/gibbs/proposals.py",
             "return slope - curvature, -curvature", "return slope, -curvature",
             "tests/latents/test_gibbs.py"),
    Mutation("latents: Dirichlet proposals uncorrected", "latents/gibbs/simplexes.py",
             "f1 - f0 + _log_dirichlet(a1, z) - _log_dirichlet(a0, new)", "f1 - f0",
             "tests/latents/test_gibbs.py"),
    Mutation("latents: random walk accepted too often", "latents/gibbs/continuous.py",
             "f2 - pt.switch(accepted, f1, f0))", "0.7 * (f2 - pt.switch(accepted, f1, f0)))",
             "tests/latents/test_gibbs.py"),
    Mutation("streams of files: chains together share rows", "run/chain_batches.py",
             "self.chains[c].batches[k].take(n * n", "self.chains[0].batches[k].take(n * n",
             "tests/test_streamed_step.py"),
    Mutation("streams: a call's batches overwritten while it runs", "run/chain_batches.py",
             "IN_USE = 3", "IN_USE = 1", "tests/run/test_vectorized.py"),
    Mutation("completion: elements that depend on each other drawn at once",
             "evaluation/row_completion.py", "{i: ever[among[ever, i]] for i in ever}",
             "{i: () for i in ever}", COMPLETION),
    Mutation("completion: what is missing is looked at", "evaluation/row_completion.py",
             "known = pt.switch(missing, np.zeros((), floatX), np.ones((), floatX))",
             "known = pt.ones_like(missing, dtype=floatX)", COMPLETION),
    Mutation("state: n_updates not saved", "chain.py",
             "    n_updates: int\n    sampler_state", "    sampler_state", "tests/test_step.py"),
    Mutation("changed data: numbers of rows not compared", "gradients/source.py",
             "if len(set(lengths.values())) > 1:", "if False:",
             "tests/adaptation/test_changed_data.py"),
    Mutation("changed data: indices not looked at", "kernel.py",
             "        self.index_check(values,", "        (lambda *_: None)(values,",
             "tests/adaptation/test_changed_data.py"),
    Mutation("pm.Minibatch: separate draws meet", "gradients/pm_minibatch.py",
             "if len(rngs) > 1:", "if False:", "tests/adaptation/test_changed_data.py -k separate"),
    Mutation("self-check: no point is near enough", "gradients/batch_check.py",
             "if np.isfinite([of_all, *of_batches]).all():", "if True:",
             "tests/gradients/test_minibatch.py"),
    Mutation("lengths: that of all rows kept in a batch", "gradients/resize.py",
             "            return size.astype(length.dtype)", "            return length",
             "tests/gradients/test_resize.py"),
    Mutation("statistics: those of a draw's last call", "chain.py",
             "_exact_sum(calls) / thin", "_exact_sum(calls[-1:]) / thin",
             "tests/statistics/test_statistics.py"),
    Mutation("local: the groups' own prior scaled like the rows", "gradients/local_source.py",
             "own.append(prior)", "own.append(rows.scale * prior)", EXACT),
    Mutation("local: n_j / m_j forgotten", "batches/touched.py",
             "weights[k, place] = place_and_size[group, 1] / weights[k, place]",
             "weights[k, place] = 1", EXACT),
    Mutation("local: untouched groups moved", "batches/touched.py",
             "groups[k, place] = groups[k, 0]", "groups[k, place] = place", TOUCHED),
    Mutation("local: momentum of another group", "group_records.py",
             "Touched(which.groups * len(members) + c,",
             "Touched((which.groups + (c > 0)) % 4 * len(members) + c,", TOUCHED),
    Mutation("local: a single slot's move cut short", "loop.py",
             'mode = mode.excluding("local_set_to_inc_subtensor")', "pass", TOUCHED),
    Mutation("whole groups: scaled by a batch's own rows", "batches/whole_groups.py",
             "np.where(rows == rows[:, :1], 0, self.row_weight)",
             "np.where(rows == rows[:, :1], 0, self.batch_size / "
             "(1 + (rows != rows[:, :1]).sum(axis=1, keepdims=True)))", EXACT),
    Mutation("whole groups: places left over count as rows", "batches/touched.py",
             "if not (whole and b > 0", "if not (False and b > 0", EXACT),
    Mutation("whole groups: a large one always in the same parts", "batches/whole_groups.py",
             "rng.permutation(order[rows])", "order[rows]", "tests/batches/test_whole_groups.py"),
]  # fmt: skip


def run(mutation: Mutation, copy: Path) -> str:
    """Name of the first test that failed, or what happened instead."""
    file = copy / "pymc_sgmcmc" / mutation.file
    text = file.read_text()
    if text.count(mutation.right) != 1:
        return f"NOT APPLIED: {mutation.right!r} occurs {text.count(mutation.right)} times"
    file.write_text(text.replace(mutation.right, mutation.wrong))
    try:
        command = (
            f"{sys.executable} -m pytest -x -q --no-header -n auto -p no:cacheprovider "
            f"{mutation.tests}"
        )
        env = os.environ | {"PYTHONPATH": str(copy)}
        if mutation.file.startswith("backends/"):
            # What numba compiled before is of no use: a version names it, not its source.
            flags = f"{os.environ.get('PYTENSOR_FLAGS', '')},base_compiledir={mkdtemp(dir=copy)}"
            env["PYTENSOR_FLAGS"] = flags.strip(",")
        result = subprocess.run(
            command, shell=True, cwd=copy, env=env, capture_output=True, text=True, check=False
        )
    finally:
        file.write_text(text)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", result.stdout, re.MULTILINE)
    if failed and mutation.right != mutation.wrong:
        return "red: " + failed[0].split("::")[-1]
    if mutation.right == mutation.wrong:
        return "green" if result.returncode == 0 else "RED WITHOUT A MUTATION"
    return "NOT SEEN" if result.returncode == 0 else f"pytest exit {result.returncode}"


def write(found: dict[str, str]) -> None:
    """Put results into the file, in the order above, beside those of other mutations."""
    known = {}
    if RESULTS.exists():
        for line in RESULTS.read_text().splitlines()[1:]:
            name, _, result = line.partition("  ")
            known[name] = result.strip()
    known |= found
    lines = [f"{m.name:<60}  {known[m.name]}" for m in MUTATIONS if m.name in known]
    head = f"python benchmarks/mutations.py   ({time.strftime('%Y-%m-%d')})"
    RESULTS.write_text("\n".join([head, *lines]) + "\n")


def main():
    words = sys.argv[1:]
    chosen = [m for m in MUTATIONS if not words or any(word in m.name for word in words)]
    found = {}
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignore = shutil.ignore_patterns(".venv", ".git", "_build", ".*_cache")
        shutil.copytree(REPOSITORY, copy, ignore=ignore)
        for mutation in chosen:
            found[mutation.name] = result = run(mutation, copy)
            print(f"{mutation.name:<60}  {result}", flush=True)
            write(found)


if __name__ == "__main__":
    main()
