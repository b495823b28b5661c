"""Adapted steps with local variables: their metric, scales, noise, posterior and diagnosis."""

import logging
from dataclasses import asdict
from functools import cache, cached_property
from types import SimpleNamespace

import hierarchies
import numpy as np
import pymc as pm
import pytest
from arviz_stats.base import array_stats
from hierarchies import GROUP, Y
from pytensor.compile.mode import Mode
from xarray import Dataset, DataTree

import pymc_sgmcmc as sgm
from pymc_sgmcmc.adaptation.adapted_settings import UnfitAdaptation
from pymc_sgmcmc.adaptation.local_gradients import LocalGradients
from pymc_sgmcmc.adaptation.local_warm_up import BlockScales, LocalWarmUp
from pymc_sgmcmc.adaptation.step_size import slowed
from pymc_sgmcmc.adaptation.touch_rates import mean_of_inverse, of_groups_within
from pymc_sgmcmc.batches.touched import GroupsOfRows
from pymc_sgmcmc.batches.whole_groups import GroupBatches, WholeGroups, groups_around
from pymc_sgmcmc.chain import Chain
from pymc_sgmcmc.diagnosis.diagnosis_table import Diagnosis
from pymc_sgmcmc.diagnosis.measure import measure_local
from pymc_sgmcmc.gradients.local_scales import LocalScales
from pymc_sgmcmc.gradients.local_source import LocalSource
from pymc_sgmcmc.gradients.metric import Dense, Diagonal
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.kernel import Kernel
from pymc_sgmcmc.noise import NoiseStream
from pymc_sgmcmc.schedules import Constant
from tests.samplers import UNCONSTRAINED

PYTHON = Mode("py", "fast_compile")
JAX = {"mode": "JAX"}
IN_PYTHON = {"mode": PYTHON}
"""Quickest for a step that is made and draws nothing."""


class Hierarchy:
    """Normal groups of 1 to 15 rows, and two without any; moments by quadrature.

    Some may be ``large``.
    """

    n_groups = 60

    def __init__(self, large=()):
        rng = np.random.default_rng(5)
        self.size = rng.integers(1, 16, self.n_groups)
        self.size[[3, 40]] = 0
        self.size[10 : 10 + len(large)] = large
        self.group = rng.permutation(np.repeat(np.arange(self.n_groups), self.size))
        effect = rng.normal(0.5, 0.7, self.n_groups)
        self.y = rng.normal(effect[self.group], 1)
        self.mean_y = np.bincount(self.group, self.y, self.n_groups) / np.maximum(self.size, 1)

    def model(self, data=None):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0, 5)
            t = pm.Normal("t", 0, 1)
            alpha = pm.Normal("alpha", mu, pm.math.exp(t), shape=self.n_groups)
            group, y = self.group, self.y
            if data is not None:
                head = data.head()
                group = pm.Data("group", head["group"], dims="obs")
                y = pm.Data("observed", head["observed"], dims="obs")
            pm.Normal("y", alpha[group], 1, observed=y)
        return model

    def stream(self, window):
        rows = {"group": self.group, "observed": self.y}
        return sgm.StreamedData(rows, window=window, chunk=25)

    @cached_property
    def grid(self):
        """Values of mu and t, and their probabilities, shape (201, 201)."""
        n, mean_y = self.size, self.mean_y
        M, T = np.meshgrid(np.linspace(-0.3, 1.3, 201), np.linspace(-1.2, 0.5, 201))
        log_p = -(M**2) / 50 - T**2 / 2
        for k in np.flatnonzero(n):
            variance = np.exp(2 * T) + 1 / n[k]
            log_p -= 0.5 * (np.log(variance) + (mean_y[k] - M) ** 2 / variance)
        p = np.exp(log_p - log_p.max())
        return M, T, p / p.sum()

    def effects(self, M, T):
        """Mean and precision of the groups' effects, given mu and t."""
        precision = np.exp(-2 * T)[..., None] + self.size
        prior = (np.exp(-2 * T) * M)[..., None]
        return (prior + self.size * self.mean_y) / precision, precision

    @cached_property
    def moments(self):
        """Means and sds by name."""
        M, T, p = self.grid
        centre, precision = self.effects(M, T)
        mean = {"mu": np.sum(p * M), "t": np.sum(p * T)}
        mean["alpha"] = np.tensordot(p, centre, 2)
        square = {"mu": np.sum(p * M**2), "t": np.sum(p * T**2)}
        square["alpha"] = np.tensordot(p, 1 / precision + centre**2, 2)
        return mean, {name: np.sqrt(square[name] - mean[name] ** 2) for name in mean}

    def draws(self, factor):
        """4000 independent draws; the spread of the groups' effects is wrong by a factor."""
        rng = np.random.default_rng(0)
        M, T, p = self.grid
        picked = rng.choice(p.size, 4000, p=p.ravel())
        M, T = M.ravel()[picked], T.ravel()[picked]
        centre, precision = self.effects(M, T)
        mean, _ = self.moments
        alpha = centre + rng.normal(size=centre.shape) / np.sqrt(precision)
        alpha = mean["alpha"] + factor * (alpha - mean["alpha"])
        dims = ("chain", "draw")
        draws = {
            "mu": (dims, M.reshape(4, 1000)),
            "t": (dims, T.reshape(4, 1000)),
            "alpha": ((*dims, "group"), alpha.reshape(4, 1000, -1)),
        }
        return DataTree.from_dict({"/posterior": Dataset(draws)})


TARGET = Hierarchy()
WITH_LARGE = Hierarchy(large=(50, 70, 90))
"""For batches of 40 rows with whole groups, in which these come in parts. With fewer groups in a
batch the noise of its gradient depends so much on the scale that this one's mean is off."""


# ---- updates in the metric -----------------------------------------------------------------

SCALES = np.array([0.5, 1.0, 3.0, 2.0])


def scaled_model():
    """`hierarchies.fixed_scales` with mu = 2 m and alpha = SCALES a."""
    with pm.Model() as model:
        m = pm.Normal("m", 0, 0.5)
        a = pm.Normal("a", 2 * m / SCALES, 0.7 / SCALES, shape=4)
        pm.Normal("y", (SCALES * a)[GROUP], 1, observed=Y)
    return model


@pytest.mark.slow(3)
@pytest.mark.parametrize(
    "sampler", [s for s in UNCONSTRAINED if s.kind != "preconditioned"], ids=lambda s: s.name
)
def test_a_metric_is_a_change_of_variables(sampler, monkeypatch):
    """The same path as without one in the model written with scaled variables.

    Exact; with noise of 1 everywhere, which comes in other pieces. The groups that a batch leaves
    out keep their momentum and thermostats.
    """
    monkeypatch.setattr(NoiseStream, "normals_like", lambda _, like: [t * 0 + 1 for t in like])
    models = hierarchies.fixed_scales(), scaled_model()
    metric = LocalScales([(), (4,)], [False, True])
    metric.set(np.array([[2.0]]), [SCALES])
    paths = []
    for model, name, used in zip(models, ("alpha", "a"), (metric, None), strict=True):
        source = gradient_source(model, model.value_vars, batch_size=3, local=[name])
        options = {"mode": PYTHON}
        algorithm = sampler.algorithm()
        kernel = Kernel("step", model, source, algorithm, Constant(0.1), 1, False, options, used)
        kernel.load_data()
        chain = Chain(kernel, np.random.default_rng(1), tune=0)
        point = {"mu": np.array(0.4), "alpha": np.array([0.3, -1.0, 0.9, -0.2])}
        scales = {"mu": 1.0, "alpha": 1.0}
        if used is None:
            point = {"m": point["mu"] / 2, "a": point["alpha"] / SCALES}
            scales = {"m": 2.0, "a": SCALES}
        path = []
        for _ in range(6):
            point = chain.draw(point).moved
            path.append(np.concatenate([np.ravel(point[v] * scales[v]) for v in point]))
        paths.append(np.array(path))
    np.testing.assert_allclose(paths[0], paths[1], rtol=1e-9, atol=1e-12)
    assert np.abs(np.diff(paths[0], axis=0)).max(axis=0).min() > 1e-3  # all of them have moved


# ---- scales and noise ----------------------------------------------------------------------


@cache
def warm_up(batch_size=20, batches="rows", window=None):
    """A warm-up that has not begun, of the target with its shared variables at their means."""
    data = None if window is None else TARGET.stream(window)
    model = TARGET.model(data)
    step = sgm.MSGNHT_S(
        model=model,
        step_size=0.1,
        batch_size=batch_size,
        replacement=True,
        local=["alpha"],
        batches=batches,
        data=data,
    )
    kernel = step.kernel
    kernel.metric = LocalScales(step.source.shapes, [False, False, True])
    kernel.load_data()
    gradients = LocalGradients(kernel, model.initial_point())
    run = LocalWarmUp(kernel, gradients, np.random.default_rng(0), 0.05)
    run.progress.__enter__()  # as `run.run` does
    return run


def point_of_means():
    mean, _ = TARGET.moments
    return {name: np.asarray(value) for name, value in mean.items()}


@pytest.mark.long
@pytest.mark.parametrize("window", [None, 150])
def test_scales_of_elements_are_those_given_all_else(window):
    """A normal model has the same curvature everywhere: exact, but for differences' errors."""
    run = warm_up(window=window)
    [block] = run._local_blocks([[np.asarray(v) for v in point_of_means().values()]])
    n = TARGET.size
    precision = n + np.exp(-2 * TARGET.moments[0]["t"])
    raw = n**2 * mean_of_inverse(n * 20 / n.sum()) * (1 - 1 / np.maximum(n, 1)) / precision
    factors = slowed(run.kernel.algorithm, raw, 0.05)
    assert factors.min() < 0.6
    assert factors.max() == 1
    np.testing.assert_allclose(block.scales, factors / np.sqrt(precision), rtol=1e-4)
    np.testing.assert_allclose(block.noise, factors**2 * raw, rtol=1e-3)
    of_prior = np.exp(-2 * TARGET.moments[0]["t"]) / precision
    assert block.prior_share == pytest.approx(of_prior[n > 0].mean(), rel=1e-4)


@pytest.mark.long
def test_error_of_a_shared_scale_limits_the_step_size():
    """SHARED_ERROR h^2 sqrt(2 G) r / (1 - r) is the target bias; r = 1/2 in whole groups."""
    groups = np.count_nonzero(TARGET.size)
    for batches, shares in (("rows", (0.1, 0.1)), ("rows", (0.9, 0.5)), ("groups", (0.1, 0.5))):
        run = warm_up(batches=batches)
        block = BlockScales(np.ones(1), np.ones(1), np.ones(1), prior_share=shares[0])
        h, r = run._largest_of_many([block]), shares[1]
        assert h**2 * np.sqrt(2 * groups) * r / (1 - r) * 0.03 == pytest.approx(0.05)


@pytest.mark.long
def test_noise_of_local_gradients():
    """The predicted variance is that of the gradients of batches that touch a group.

    The rows' variance is 1 in the model. In the data the mean over groups of the variances, each
    of n - 1 degrees of freedom, has a standard error of about sqrt(2 / sum(n - 1)).
    """
    run = warm_up()
    g, rng = run.gradients, np.random.default_rng(1)
    theta = [np.asarray(v) for v in point_of_means().values()]
    [block] = run._local_blocks([theta])
    total = np.zeros((3, TARGET.n_groups))
    for _ in range(20_000):
        batch = g.batch(rng.integers(g.n_rows, size=g.batch_size))
        groups, _ = g.slots(2, batch)
        weight = g.rows_per_seen(2, batch)
        seen = np.bincount(TARGET.group[batch.rows], TARGET.y[batch.rows], TARGET.n_groups)
        own = weight * seen[groups[0]] - TARGET.size[groups[0]] * theta[2][groups[0]]
        total[:, groups[0]] += [np.ones_like(own), own, own**2]
    count, first, second = total
    n = TARGET.size
    several = n > 1
    variance = second[several] / count[several] - (first[several] / count[several]) ** 2
    ratio = block.scales[several] ** 2 * variance / block.noise[several]
    error = np.sqrt(2 / np.sum(n[several] - 1))
    mean = np.average(ratio, weights=n[several] - 1)
    # a Poisson number of rows stands for a binomial one of 20: 2% at most
    assert abs(mean - 1) < 3.5 * error + 0.02
    np.testing.assert_array_equal(block.noise[n <= 1], 0)


@pytest.mark.long
def test_noise_of_whole_groups_and_of_parts():
    """None of whole groups; of those in parts what parts of random rows have.

    A group's mean of squares is known to a relative error of about sqrt(2 / 600), and the rows'
    variance itself is that in the data.
    """
    run = warm_up(10, "groups")
    g, rng = run.gradients, np.random.default_rng(1)
    theta = [np.asarray(v) for v in point_of_means().values()]
    [block] = run._local_blocks([theta])
    n = TARGET.size
    precision = n + np.exp(-2 * TARGET.moments[0]["t"])
    np.testing.assert_allclose(
        g.touch_rates(2).touched * g.kernel.whole_groups.n_batches, -(-n // 10)
    )
    np.testing.assert_array_equal(block.noise[n <= 10], 0)
    np.testing.assert_allclose(block.scales[n <= 10], precision[n <= 10] ** -0.5, rtol=1e-4)
    large = np.flatnonzero(n > 10)
    assert len(large) > 5
    gradients = {j: [] for j in large}
    for batch in g.batches(600 * g.kernel.whole_groups.n_batches // 2, rng):
        (groups,), weight = g.slots(2, batch)[0], g.rows_per_seen(2, batch)
        rows = batch.rows[batch.row_weights > 0]
        seen = np.bincount(TARGET.group[rows], TARGET.y[rows], TARGET.n_groups)
        for j, w in zip(groups, weight, strict=True):
            if n[j] > 10:
                gradients[j].append(w * seen[j])
    for j in large:
        sums = np.array(gradients[j])
        assert len(sums) == 600
        own = TARGET.y[TARGET.group == j]
        assert abs(sums.mean() - own.sum()) < 4 * sums.std() / np.sqrt(600)
        expected = block.noise[j] * own.var(ddof=1)
        assert block.scales[j] ** 2 * sums.var() == pytest.approx(expected, rel=0.25)


@pytest.mark.long
@pytest.mark.parametrize("batch_size", [10, 20])
def test_an_epoch_of_whole_groups_gives_the_gradient_itself(batch_size):
    """Of the shared variables: the mean over all batches, whatever their numbers of groups."""
    run = warm_up(batch_size, "groups")
    point = point_of_means()
    theta = [np.asarray(v) for v in point.values()]
    K = run.gradients.kernel.whole_groups.n_batches
    batches = run.gradients.batches(K, np.random.default_rng(0))
    found = np.mean([run._shared_gradient(theta, batch) for batch in batches], axis=0)
    away = (point["alpha"] - point["mu"])[TARGET.size > 0]
    precision = np.exp(-2 * point["t"])
    of_mu = precision * away.sum() - point["mu"] / 25
    of_t = precision * (away**2).sum() - len(away) - point["t"]
    np.testing.assert_allclose(found, [of_mu, of_t], rtol=1e-9, atol=1e-9)


def test_rates_of_groups_within_larger_ones():
    """Schools in districts that come in parts, as batches have them; whole ones exactly.

    A Poisson number of rows stands for a hypergeometric one: the mean of 1 / m is up to 20% larger.
    """
    rng = np.random.default_rng(2)
    district = np.repeat(np.arange(12), [8, 30, 31, 60, 4, 50, 90, 7, 33, 6, 64, 9])
    school = 4 * district + rng.integers(4, size=len(district))
    sizes = np.bincount(school, minlength=50)
    districts = GroupsOfRows.of(district, 12, 20, "float64")
    whole = WholeGroups(districts, 20, {1: groups_around(school, district, 50)})
    rates = of_groups_within(sizes.astype(float), whole.parts(1), whole.n_batches)
    batches, epochs = GroupBatches(whole, rng), 2000
    touched, inverse = np.zeros(50), np.zeros(50)
    for rows in batches.take(epochs * whole.n_batches):
        m = np.bincount(school[np.unique(rows)], minlength=50)
        touched += m > 0
        inverse += np.divide(1.0, m, where=m > 0, out=np.zeros(50))
    there = sizes > 0
    cut = there & (whole.parts(1) > 1)
    np.testing.assert_allclose(rates.touched, touched / epochs / whole.n_batches, rtol=0.15)
    found = inverse[there] / touched[there]
    np.testing.assert_allclose(found[~cut[there]], 1 / sizes[there & ~cut])
    ratio = (rates.variance[there] + 1 / sizes[there]) / found
    assert ratio.min() > 0.95
    assert ratio.max() < 1.22
    assert rates.variance[cut & (sizes > 1)].min() > 0
    assert not rates.variance[there & ~cut].any()
    assert cut.sum() > 20


def test_mean_of_an_inverse_number_of_rows():
    rng = np.random.default_rng(0)
    for expected in (0.05, 0.8, 7.0, 29.0, 31.0, 400.0):
        m = rng.poisson(expected, size=400_000)
        m = m[m > 0]
        error = (1 / m).std() / np.sqrt(len(m))
        found = mean_of_inverse(np.array([expected]))[0]
        assert abs(found - (1 / m).mean()) < 4 * error + 1e-4 * found


@pytest.mark.slow(3)
def test_scales_of_shared_variables():
    """The curvature given the groups, and the noise of batches along its axes."""
    run = warm_up()
    point = point_of_means()
    theta = [np.asarray(v) for v in point.values()]
    past = np.zeros((1, 2))
    # The mean of ten times two passes' random rows: a relative error of 1% or so.
    curvature = np.mean([run._shared_curvature([point], past) for _ in range(10)], axis=0)
    n, t = TARGET.size, point["t"]
    with_rows = n > 0
    away = point["alpha"][with_rows] - point["mu"]
    exact = np.array(
        [
            [with_rows.sum() * np.exp(-2 * t) + 1 / 25, 2 * np.exp(-2 * t) * away.sum()],
            [2 * np.exp(-2 * t) * away.sum(), 2 * np.exp(-2 * t) * (away**2).sum() + 1],
        ]
    )
    sample = np.sqrt(np.diag(exact))
    np.testing.assert_allclose(
        curvature / np.outer(sample, sample), exact / np.outer(sample, sample), atol=0.05
    )
    block = run._shared_block([theta], exact)
    slower = block.updates**-0.5
    np.testing.assert_allclose(
        np.linalg.inv(block.scales / slower @ (block.scales / slower).T), exact, rtol=1e-6
    )
    rng = np.random.default_rng(3)
    each = [
        run._shared_gradient(theta, run.gradients.batch(rng.integers(n.sum(), size=20)))
        for _ in range(4000)
    ]
    noise = np.cov(np.transpose(each @ block.scales))
    # the warm-up has measured it from 100 batches: a relative error of sqrt(2 / 100)
    np.testing.assert_allclose(np.diag(noise), block.noise, rtol=4 * np.sqrt(2 / 100))


# ---- the posterior -------------------------------------------------------------------------


def target_of(batches):
    return TARGET if batches == "rows" else WITH_LARGE


@cache
def adapted_step(way="rows"):
    """The default step with a small hierarchy's groups local."""
    batches, _, how = way.partition(" ")
    target = target_of(batches)
    data = target.stream(320) if how == "streamed" else None
    return sgm.MSGNHT_S(
        model=target.model(data),
        local=["alpha"],
        batch_size=40,
        batches=batches,
        rng=1,
        data=data,
        compile_kwargs={"mode": "NUMBA" if how == "NUMBA" else "JAX"},
    )


@cache
def adapted_run(way="rows"):
    """This step, and a run of it."""
    step = adapted_step(way)
    with step.model:
        # windows as small as those of a stream cost more than their updates
        draws = 200 if way == "rows streamed" else 400
        tree = sgm.sample(draws, chains=4, step=step, random_seed=1, progressbar=False)
    return step, tree


WAYS = pytest.mark.parametrize(
    "way",
    [
        "rows",
        *(
            pytest.param(way, marks=pytest.mark.long)
            for way in ("groups", "groups NUMBA", "rows streamed")
        ),
    ],
)


@pytest.mark.slow(25)
@WAYS
def test_posterior_of_a_hierarchy(way):
    """Means within .1 sd and sds within 10%, to within 4 Monte Carlo errors; the groups on average.

    A group without rows has its prior's moments.
    """
    step, tree = adapted_run(way)
    assert step.adapted.batches == way.partition(" ")[0]
    assert step.adapted.metric == "local"
    mean, sd = target_of(step.batches).moments
    for name in ("mu", "t"):
        draws = tree.posterior[name].values
        ess = float(array_stats.ess(draws, chain_axis=0, draw_axis=1))
        assert ess > 150
        assert abs(draws.mean() - mean[name]) / sd[name] < 0.1 + 4 / np.sqrt(ess)
        assert abs(draws.std() / sd[name] - 1) < 0.1 + 4 / np.sqrt(2 * ess)
    draws = tree.posterior["alpha"].values
    error = (draws.mean(axis=(0, 1)) - mean["alpha"]) / sd["alpha"]
    ratio = draws.std(axis=(0, 1)) / sd["alpha"]
    ess = np.array([array_stats.ess(draws[:, :, k], chain_axis=0, draw_axis=1) for k in range(60)])
    assert np.sqrt(np.mean(error**2)) < 0.05 + 1.5 / np.sqrt(np.median(ess))
    # Half of the tolerated bias; the mean's Monte Carlo error is about .005.
    assert abs(ratio.mean() - 1) < 0.025 + 0.02
    assert np.abs(ratio - 1).max() < 0.1 + 4 / np.sqrt(2 * ess.min())


@pytest.mark.slow(25)
@WAYS
def test_verdict_of_a_right_run(way):
    _, tree = adapted_run(way)
    diagnosis = tree["diagnosis"].to_dataset()
    assert diagnosis.attrs["verdict"] == "ok"
    assert diagnosis["element"].values[-1] == "alpha, mean of all"
    assert abs(float(diagnosis["virial"][-1]) - 1) < 0.03


@pytest.mark.long
@pytest.mark.parametrize(
    "method",
    ["sequential", "vectorized", "parallel"],
)
def test_verdict_without_recorded_effects(method):
    """The same as with them: all of so few draws are kept for it."""
    step, tree = adapted_run()
    some = sgm.sample(
        400,
        chains=4,
        cores=2,
        model=step.model,
        step=step,
        var_names=["t", "mu"],
        chain_method=method,
        mp_ctx="spawn" if method == "parallel" else None,
        random_seed=1,
        progressbar=False,
    )
    assert set(some.posterior) == {"mu", "t"}
    np.testing.assert_array_equal(some.posterior["mu"], tree.posterior["mu"])
    found, expected = some["diagnosis"].to_dataset(), tree["diagnosis"].to_dataset()
    assert found.attrs["verdict"] == "ok"
    assert int(found["gradients"]) == 1600
    for name in ("gradient", "virial", "cross"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10)


@pytest.mark.slow(25)
@WAYS
def test_thermostats_are_as_predicted(way):
    """The noise is known: where it is not, the thermostats differ from the warm-up's prediction."""
    step, tree = adapted_run(way)
    mean = float(tree.sample_stats["thermostat"].mean())
    assert abs(mean / step.adapted.friction.mean() - 1) < 0.1


# ---- the diagnosis -------------------------------------------------------------------------


@pytest.mark.slow(5)
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "ok"), (1.1, "failed"), (0.9, "failed")])
@pytest.mark.parametrize(
    ("large", "rows", "window"),
    [
        pytest.param(0, "400 random rows", None, marks=pytest.mark.long),
        pytest.param(1e9, "all rows", None, marks=pytest.mark.long),
        (1e9, "all rows", 150),
    ],
)
def test_diagnosis_of_exact_draws(factor, verdict, large, rows, window, monkeypatch):
    """Effects with sds that are wrong by a tenth are seen; random rows do as well as all."""
    monkeypatch.setattr("pymc_sgmcmc.diagnosis.measure.LARGE", large)
    monkeypatch.setattr("pymc_sgmcmc.gradients.whole_gradients.BLOCK_ROWS", 100)
    run = warm_up(window=window)
    tree = TARGET.draws(factor)
    measured = measure_local(tree, TARGET.model(), run.gradients, full_data=False)
    assert measured.attrs["rows"] == rows
    diagnosis = Diagnosis.of(measured)
    assert diagnosis.verdict == verdict
    virial, error = (float(diagnosis[name][-1]) for name in ("virial", "virial_error"))
    # Of effects with rows the mean of factor^2, to within 4 standard errors and the shared
    # variables' part of the spread.
    assert abs(virial - factor**2) < 4 * error + 0.02


@pytest.mark.slow(5)
def test_effects_that_were_not_recorded():
    """Chains and thermostats are judged without them."""
    tree = TARGET.draws(1.0)
    tree["posterior"] = DataTree(tree["posterior"].to_dataset()[["mu", "t"]])
    measured = measure_local(tree, TARGET.model(), warm_up().gradients, full_data=False)
    diagnosis = Diagnosis.of(measured)
    assert diagnosis.verdict == "unclear"
    assert "because they need draws of 'alpha': leave out" in diagnosis.remedy
    assert float(diagnosis["ess"]) > 3000


@pytest.mark.long
def test_diagnosis_of_a_model_too_large_for_a_matrix(caplog):
    """`diagnose` finds local variables itself, and says where there are none."""
    rng = np.random.default_rng(0)
    group = rng.integers(2100, size=4200)
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 1, shape=2100)
        pm.Normal("y", alpha[group], 1, observed=np.zeros(4200))
    sd = 1 / np.sqrt(1 + np.bincount(group, minlength=2100))
    draws = sd * rng.normal(size=(2, 300, 2100))
    tree = DataTree.from_dict(
        {"/posterior": Dataset({"alpha": (("chain", "draw", "group"), draws)})}
    )
    diagnosis = sgm.diagnose(tree, model)
    assert diagnosis.verdict == "ok"
    np.testing.assert_allclose(diagnosis["virial"], [1.0], atol=0.03)
    data = sgm.StreamedData({"group": group, "observed": np.zeros(4200)})
    with pm.Model() as of_stream:
        at, y = (pm.Data(name, a, dims="obs") for name, a in data.head().items())
        alpha = pm.Normal("alpha", 0, 1, shape=2100)
        pm.Normal("y", alpha[at], 1, observed=y, dims="obs")
    streamed = sgm.diagnose(tree, of_stream, data=data)
    assert streamed.attrs["rows"] == "all rows"
    np.testing.assert_allclose(streamed["virial"], diagnosis["virial"], rtol=1e-6)
    with pm.Model() as network:
        w = pm.Normal("w", 0, 1, shape=2100)
        pm.Normal("y", pm.math.dot(np.ones((10, 2100)), w), 1, observed=np.zeros(10))
    of_network = DataTree.from_dict({"/posterior": Dataset({"w": tree.posterior["alpha"]})})
    with pytest.raises(ValueError, match="2100 parameters, but means and standard deviations can"):
        sgm.diagnose(of_network, network)


# ---- arguments, seeds, several processes ---------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"adaptation": "dense"}, "adaptation='dense' and local variables do not go together"),
        ({"gradient": "control_variate"}, "an anchor says nothing about groups that vary"),
        ({"local": ["mu"]}, "'mu' cannot be local"),
        ({"batch_size": None}, "pass batch_size= too"),
    ],
)
def test_arguments_that_do_not_go_together(options, said):
    with pytest.raises(ValueError, match=said):
        sgm.MSGNHT_S(model=TARGET.model(), **{"local": ["alpha"], "batch_size": 20, **options})


def embedding():
    """A network whose first layer is looked up by rows."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        first = pm.Normal("first", shape=(2000, 2))
        second = pm.Normal("second", shape=(2, 600))
        hidden = pm.math.tanh(pm.math.dot(first[rng.integers(2000, size=1000)], second))
        pm.Normal("y", pm.math.dot(hidden, np.ones(600)), 1, observed=np.zeros(1000))
    return model


@pytest.mark.slow(10)
def test_too_many_shared_parameters_for_a_matrix(monkeypatch):
    """A network with an embedding is taken for a network; asked for, its groups are refused."""
    with pytest.raises(ValueError, match=r"the other variables have 1200 elements.*at most 1000"):
        sgm.MSGNHT_S(model=embedding(), local=["first"])
    monkeypatch.setattr(
        "pymc_sgmcmc.step.adapted",
        lambda *args, **kwargs: SimpleNamespace(predictions_only=1, burn_in=1),
    )
    step = sgm.MSGNHT_S(model=embedding(), compile_kwargs=IN_PYTHON)
    assert not isinstance(step.source, LocalSource)
    assert isinstance(step.kernel.metric, Diagonal)


@pytest.mark.slow(5)
def test_what_the_data_leave_open_is_named():
    with pm.Model() as model:
        open_ = pm.Flat("open", shape=2)
        alpha = pm.Normal("alpha", open_[0] + open_[1], 1, shape=TARGET.n_groups)
        pm.Normal("y", alpha[TARGET.group], 1, observed=TARGET.y)
    with pytest.raises(
        pm.exceptions.SamplingError, match=r"leave 'open\[0\]', 'open\[1\]' undetermined"
    ):
        sgm.MSGNHT_S(model=model, local=["alpha"], batch_size=20, rng=1, compile_kwargs=JAX)


@pytest.mark.long
@pytest.mark.parametrize("way", ["rows", "groups", "rows streamed"])
def test_an_earlier_warm_up_serves_another_step(way, tmp_path):
    """Pickled arrays of it too: the same draws, on resuming as well, without another warm-up."""
    step = adapted_step(way)
    store = sgm.ZarrStore(tmp_path / "run.zarr")
    options = {"chains": 2, "tune": 5, "random_seed": 3, "progressbar": False}
    options["compute_convergence_checks"] = False
    results = []
    for draws in ((6,), (3, 6)):
        with step.model:
            again = sgm.MSGNHT_S(
                local=["alpha"],
                adaptation=step.adapted,
                batches=step.batches,
                data=step.source.streamed,
                compile_kwargs=JAX,
            )
            for n in draws:
                where = {"trace": store, "resume": True} if len(draws) == 2 else {}
                result = sgm.sample(n, step=again, **options, **where)
        results.append(result.posterior)
    for name in ("mu", "t", "alpha"):
        np.testing.assert_array_equal(results[0][name], results[1][name])


@pytest.mark.slow(25)
def test_a_warm_up_serves_only_batches_of_its_kind():
    step = adapted_step("groups")
    options = {"model": step.model, "local": ["alpha"], "compile_kwargs": JAX}
    with pytest.raises(UnfitAdaptation, match=r"for batches='groups', but .* batches='rows' here"):
        sgm.MSGNHT_S(adaptation=step.adapted, batches="rows", **options)
    assert sgm.MSGNHT_S(adaptation=step.adapted, **options).batches == "groups"


@pytest.mark.slow(15)
def test_an_interrupted_warm_up_is_made_again(monkeypatch):
    """And is then what it would have been."""
    expected = adapted_step("groups")
    draw, left = Chain.draw, iter(range(60))

    def interrupted(*args):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return draw(*args)

    options = {"local": ["alpha"], "batch_size": 40, "batches": "groups", "compile_kwargs": JAX}
    model = WITH_LARGE.model()
    with monkeypatch.context() as patch:
        patch.setattr(Chain, "draw", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sgm.MSGNHT_S(model=model, rng=1, **options)
    again = sgm.MSGNHT_S(model=WITH_LARGE.model(), rng=1, **options).adapted
    for name, values in asdict(expected.adapted).items():
        if isinstance(values, list):
            for one, other in zip(values, getattr(again, name), strict=True):
                np.testing.assert_array_equal(one, other, err_msg=name)
        else:
            np.testing.assert_array_equal(values, getattr(again, name), err_msg=name)


@pytest.mark.slow(15)
def test_only_the_settings_are_changed_by_a_run():
    """Scales and step size are frozen before the first draw that counts."""
    step = adapted_step("groups")
    before = [np.array(a) for a in step.adapted.scaling]
    tree = sgm.sample(20, chains=1, model=step.model, step=step, random_seed=1, progressbar=False)
    for one, other in zip(before, step.kernel.metric.arrays, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(before, step.kernel.scaling, strict=True):
        np.testing.assert_array_equal(one, np.asarray(other))
    assert set(np.unique(tree.sample_stats["step_size"])) == {step.adapted.step_size}


@pytest.mark.long
@pytest.mark.slow(25)
def test_processes_of_pm_sample():
    step = adapted_step()
    with step.model:
        again = sgm.MSGNHT_S(local=["alpha"], adaptation=step.adapted, compile_kwargs=JAX)
        draws = [
            pm.sample(
                4,
                tune=2,
                chains=2,
                cores=cores,
                step=again,
                random_seed=1,
                progressbar=False,
                compute_convergence_checks=False,
                mp_ctx="forkserver",
            ).posterior["alpha"]
            for cores in (1, 2)
        ]
    np.testing.assert_array_equal(*draws)


# ---- rows or whole groups ------------------------------------------------------------------

MANY = np.repeat(np.arange(30), 2)
"""30 groups of 2 rows."""


def with_effects(form):
    """A model of 60 rows with some local effects."""
    rng = np.random.default_rng(2)
    x, y, other = rng.normal(size=60), rng.normal(size=60), rng.permutation(MANY)
    with pm.Model() as model:
        if form in ("intercepts", "nested intercepts"):
            rows = pm.Normal("a", shape=30)[MANY]
            if form == "nested intercepts":
                rows = rows + pm.Normal("b", shape=15)[MANY // 2]
        elif form == "two variables":
            rows = pm.Normal("a", shape=30)[MANY] + pm.Normal("b", shape=30)[MANY] * x
        else:
            a = pm.Normal("a", pm.Normal("mu"), shape=(30, 2))
            rows = a[MANY, 0] + a[MANY, 1] * x
            if form == "crossed":
                rows = (a[MANY] * pm.Normal("b", shape=(30, 2))[other]).sum(axis=1)
        pm.Normal("y", rows, observed=y)
    return model


@pytest.mark.parametrize(
    ("form", "batch_size", "batches"),
    [
        ("intercepts", 40, "rows"),
        ("nested intercepts", 40, "rows"),
        ("intercepts and slopes", 40, "groups"),
        ("intercepts and slopes", 7, "rows"),  # not four groups
        ("two variables", 8, "groups"),
        ("crossed", 40, "rows"),
    ],
)
def test_which_batches_an_adapted_step_has(form, batch_size, batches):
    """Whole groups where rows would know several elements of a group with errors in common."""
    model = with_effects(form)
    names = [rv.name for rv in model.free_RVs if rv.name != "mu"]
    options = {"batch_size": batch_size, "local": names, "batches": "auto"}
    source = gradient_source(model, model.value_vars, **options)
    assert source.has_whole_groups == (batches == "groups")


def test_streamed_batches_have_rows_unless_asked():
    """A stream may have the rows of a group anywhere."""
    rng = np.random.default_rng(2)
    columns = {"group": rng.permutation(MANY), "x": rng.normal(size=60), "y": rng.normal(size=60)}
    with pm.Model(coords={"obs": range(3)}) as model:
        group, x, y = (pm.Data(name, c[:3], dims="obs") for name, c in columns.items())
        a = pm.Normal("a", pm.Normal("mu"), shape=(30, 2))
        pm.Normal("rows", a[group, 0] + a[group, 1] * x, observed=y, dims="obs")
    data = sgm.StreamedData(columns, window=50)
    options = {"batch_size": 40, "local": ["a"], "batches": "auto", "data": data}
    source = gradient_source(model, model.value_vars, **options)
    assert isinstance(source, LocalSource)
    assert not source.has_whole_groups


@pytest.mark.slow(5)
@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({}, "groups"),
        ({"batches": "rows"}, "rows"),
        ({"step_size": 0.01, "thin": 5}, "rows"),
        ({"step_size": 0.01, "thin": 5, "batches": "groups"}, "groups"),
    ],
    ids=["adapted", "adapted, rows", "by hand", "by hand, groups"],
)
def test_which_batches_a_step_has(options, batches, monkeypatch):
    monkeypatch.setattr(
        "pymc_sgmcmc.step.adapted", lambda *args, **kwargs: SimpleNamespace(burn_in=1)
    )
    model = with_effects("intercepts and slopes")
    step = sgm.MSGNHT_S(
        model=model, local=["a"], batch_size=40, compile_kwargs=IN_PYTHON, **options
    )
    assert step.batches == batches
    assert (step.kernel.whole_groups is None) == (batches == "rows")
    assert ("batches='groups'" in repr(step)) == (batches == "groups")


@pytest.mark.slow(5)
@pytest.mark.parametrize(
    ("effects", "rows", "others", "metric", "why"),
    [
        (1, 40, 1, LocalScales, ""),
        (2, 40, 1, Dense, "scales of groups with several elements would be too small"),
        (1, 40, 700, Dense, "701 of 1301 belong to no group"),
        pytest.param(2, 10, 1, LocalScales, "Batches have whole groups", marks=pytest.mark.long),
        pytest.param(0, 40, 1200, Dense, "", marks=pytest.mark.long),
    ],
    ids=["one effect", "two effects of many rows", "few effects", "two effects", "none"],
)
def test_metric_of_a_thousand_parameters(effects, rows, others, metric, why, monkeypatch, caplog):
    """A scale for each effect of 600 groups where batches tell its scale right; else one matrix."""
    monkeypatch.setattr(
        "pymc_sgmcmc.step.adapted", lambda *args, **kwargs: SimpleNamespace(burn_in=1)
    )
    monkeypatch.setattr("pymc_sgmcmc.adaptation.metric_and_batch_size.LARGEST_SHARED", 500)
    group = np.repeat(np.arange(600), rows)
    x = np.random.default_rng(1).normal(size=group.size)
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=others).sum()
        for k in range(effects):
            mu += pm.Normal(f"effect{k}", 0, pm.HalfNormal(f"tau{k}"), shape=600)[group] * x**k
        pm.Normal("y", mu, 1, observed=x)
    with caplog.at_level(logging.INFO):
        step = sgm.MSGNHT_S(model=model, compile_kwargs=IN_PYTHON)
    assert type(step.kernel.metric) is metric
    assert isinstance(step.source, LocalSource) == (metric is LocalScales)
    assert why in caplog.text
    assert (step.batch_size == 128) == (metric is LocalScales)


@pytest.mark.slow(5)
@pytest.mark.parametrize(
    ("items", "message"), [(6, "All rows are used"), (0, "long form")], ids=["all rows", "advice"]
)
def test_what_is_said_of_a_table_is_said_once(items, message, monkeypatch, caplog):
    """Local variables are tried first, and not found."""
    monkeypatch.setattr(
        "pymc_sgmcmc.step.adapted", lambda *args, **kwargs: SimpleNamespace(burn_in=1)
    )
    monkeypatch.setattr("pymc_sgmcmc.adaptation.metric_and_batch_size.LARGEST_SHARED", 500)
    with pm.Model() as model:
        ease = pm.Normal("ease", shape=items) if items else np.linspace(-1, 1, 6)
        logit = pm.Normal("theta", shape=600)[:, None] - ease
        pm.Bernoulli("right", logit_p=logit, observed=np.ones((600, 6), int))
    with caplog.at_level(logging.INFO):
        sgm.MSGNHT_S(model=model, compile_kwargs=IN_PYTHON)
    assert sum(message in told for told in caplog.messages) == 1


@pytest.mark.long
@pytest.mark.slow(40)
def test_default_call_finds_local_variables(caplog):
    """More than 2000 parameters with many groups are not taken for a network."""
    rng = np.random.default_rng(0)
    group = rng.integers(2200, size=6000)
    y = rng.normal(rng.normal(1, 0.5, 2200)[group], 1)
    with caplog.at_level(logging.INFO), pm.Model():
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1)
        alpha = pm.Normal("alpha", mu, tau, shape=2200)
        pm.Normal("y", alpha[group], 1, observed=y)
        options = {"chains": 2, "random_seed": 1, "progressbar": False, "integrate": None}
        tree = sgm.sample(40, **options, store_adaptation=True)
    assert "Only the groups of a batch's rows move (local='auto'): 'alpha'." in caplog.text
    assert "Initializing MSGNHT_S with local metric, batches of 128" in caplog.text
    # 40 draws of 2 chains: far from the start, near the truth, and with a spread
    assert abs(float(tree.posterior["mu"].mean()) - 1) < 0.15
    assert abs(float(tree.posterior["tau"].mean()) - 0.5) < 0.15
    assert tree["adaptation"]["metric"].shape == (2202,)
    assert float(tree["diagnosis"]["virial"][-1]) == pytest.approx(1, abs=0.1)
