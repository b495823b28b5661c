"""Variables with an element for each row, integrated out: densities against closed forms."""

import json
import logging

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from interrupts import whole_and_resumed
from kills import same
from scipy import stats
from scipy.special import expit, gammaln, logsumexp

import pymc_sgmcmc as sgm
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.integration.effects import EffectDraws
from pymc_sgmcmc.integration.integrated_model import integrated_model
from pymc_sgmcmc.integration.quadrature_error import quadrature_error
from pymc_sgmcmc.integration.quadrature_points import points_of
from pymc_sgmcmc.integration.row_effects import with_row_numbers
from pymc_sgmcmc.integration.whether_to_integrate import terms_to_integrate
from pymc_sgmcmc.run.parametrisation import Form
from pymc_sgmcmc.run.sample_arguments import Arguments

N = 40
rng = np.random.default_rng(8)
Z = rng.normal(size=N)


def measured():
    """A covariate measured with error, with the rows as a dim."""
    with pm.Model(coords={"row": range(N)}) as model:
        spread = pm.HalfNormal("spread", 2)
        x = pm.Normal("x", pm.Normal("mu"), spread, dims="row")
        pm.Normal("x_obs", x, 0.8, observed=MEASURED[:, 0], dims="row")
        mean = pm.Deterministic("mean", 0.3 * Z + pm.Normal("slope") * x, dims="row")
        pm.Normal("y", mean, 0.5, observed=MEASURED[:, 1], dims="row")

    def log_likelihood(mu, spread_log__, slope):
        design = np.array([1.0, slope])
        covariance = np.exp(2 * spread_log__) * np.outer(design, design) + np.diag([0.64, 0.25])
        mean = mu * design + np.outer(Z, [0.0, 0.3])
        return stats.multivariate_normal([0, 0], covariance).logpdf(MEASURED - mean).sum()

    return model, ["x"], log_likelihood


MEASURED = rng.normal(size=(N, 2))


def chain_of_latents():
    """One effect of a row in the prior of the other."""
    with pm.Model() as model:
        first = pm.Normal("first", 0.5 * Z, 1, shape=N)
        second = pm.Normal("second", pm.Normal("slope") * first, 0.7, shape=N)
        pm.Normal("u", first, 1, observed=MEASURED[:, 0])
        pm.Normal("v", second, 1, observed=MEASURED[:, 1])

    def log_likelihood(slope):
        design = np.array([1.0, slope])
        covariance = np.outer(design, design) + np.diag([1.0, 1.49])
        mean = np.outer(0.5 * Z, design)
        return stats.multivariate_normal([0, 0], covariance).logpdf(MEASURED - mean).sum()

    return model, ["first", "second"], log_likelihood


def factors():
    """Two factors of a table of four columns."""
    table = rng.normal(size=(N, 4))
    with pm.Model() as model:
        loadings = pm.Normal("loadings", shape=(4, 2))
        scores = pm.Normal("scores", shape=(N, 2))
        pm.Normal("y", scores @ loadings.T, 0.6, observed=table)

    def log_likelihood(loadings):
        covariance = loadings @ loadings.T + 0.36 * np.eye(4)
        return stats.multivariate_normal(np.zeros(4), covariance).logpdf(table).sum()

    return model, ["scores"], log_likelihood


def answers():
    """Persons as rows of a table, and items as columns."""
    table = rng.binomial(1, 0.4, (N, 5))
    with pm.Model() as model:
        ability = pm.Normal("ability", 0, pm.HalfNormal("tau"), shape=N)
        hard = pm.Normal("hard", shape=5)
        pm.Bernoulli("y", logit_p=ability[:, None] - hard[None, :], observed=table)

    def log_likelihood(tau_log__, hard):
        grid = np.linspace(-12, 12, 2001)  # the trapezoidal rule: its error falls exponentially
        p = expit(np.exp(tau_log__) * grid[:, None] - hard)
        log_p = table @ np.log(p).T + (1 - table) @ np.log1p(-p).T + stats.norm.logpdf(grid)
        return (logsumexp(log_p, axis=1) + np.log(grid[1] - grid[0])).sum()

    return model, ["ability"], log_likelihood


@pytest.mark.parametrize("form", [measured, chain_of_latents, factors, answers])
def test_integrated_density_is_the_closed_form(form, python_by_default, caplog):
    """Up to a constant, over points of what rows share."""
    written, names, log_likelihood = form()
    caplog.set_level(logging.INFO, logger="pymc.sgmcmc")
    terms = terms_to_integrate(written, "auto", None, predicts=False)
    assert terms is not None
    listed = ", ".join(f"'{name}'" for name in names)
    assert f"Integrated out of the likelihood: {listed}, of {N} rows" in caplog.text
    integrated = integrated_model(terms, points_of(terms.k, 3))
    values = integrated.value_vars
    ours = pytensor.function(values, integrated.logp(jacobian=False), mode=PYTHON)
    rvs = [integrated.values_to_rvs[v] for v in values]
    shared = {v.name: v for v in integrated.free_RVs}
    assert set(shared) == {v.name for v in written.free_RVs} - set(names)
    prior = pytensor.function(
        values, integrated.logp(vars=rvs, jacobian=False), mode=PYTHON, on_unused_input="ignore"
    )
    for seed in range(3):
        draw = np.random.default_rng(seed)
        point = {v.name: draw.normal(0, 0.4, v.type.shape) for v in values}
        integrated.centres.move(point)
        found = float(ours(*point.values())) - float(prior(*point.values()))
        assert found == pytest.approx(log_likelihood(**point), rel=1e-6)


def test_other_models_stay_as_they_are():
    """Lookups by index, draws that span the rows, and classes are no effects of rows."""
    group = np.arange(N)[::-1].copy()
    with pm.Model() as model:
        by_index = pm.Normal("by_index", shape=N)
        field = pm.MvNormal("field", np.zeros(N), np.eye(N))
        which = pm.Bernoulli("which", 0.5, shape=N)
        pm.Normal("y", by_index[group] + field + which, 1, observed=Z)
    assert with_row_numbers(model) == (model, [])


ACROSS = {
    "running sum": pt.cumsum,
    "lag": lambda z: z + pt.concatenate([[0.0], z[:-1]]),
    "deviations": lambda z: z - z.mean(),
    "order": pt.sort,
    "reversed": lambda z: z[::-1],
}
"""What makes an element depend on others."""


@pytest.mark.parametrize("across", ACROSS)
def test_rows_that_depend_on_effects_of_others_are_refused(across, caplog):
    """A random walk over the rows, say: integrals row by row would be of another model."""
    caplog.set_level(logging.INFO, logger="pymc.sgmcmc")
    with pm.Model() as model:
        effects = ACROSS[across](pm.Normal("z", shape=N))
        pm.Normal("y", effects, pm.HalfNormal("s"), observed=Z)
    assert terms_to_integrate(model, "auto", None, predicts=False) is None
    assert "The term 'y' is not conditionally independent" in caplog.text


def test_group_effects_beside_those_of_rows_are_centred(python_by_default):
    """Rows of a table are found again after the model has been rewritten."""
    school = np.arange(N) % 2
    with pm.Model() as model:
        ability = (
            pm.Normal("ability", shape=N) + pm.HalfNormal("tau") * pm.Normal("z", shape=2)[school]
        )
        hard = pm.Normal("hard", shape=5)
        answers = np.random.default_rng(1).binomial(1, 0.4, (N, 5))
        pm.Bernoulli("y", logit_p=ability[:, None] - hard[None, :], observed=answers)
    terms = terms_to_integrate(model, "auto", None, predicts=False)
    form = Form.of(Arguments(model=model, idata_kwargs={}), terms)
    assert form.terms is not terms
    assert {v.name for v in form.sampled.model.free_RVs} == {"tau", "z (as sampled)", "hard"}


@pytest.mark.parametrize(("of_effects", "of_rows"), [("row", None), ("person", "row")])
def test_effects_may_have_a_dim_that_the_rows_lack(of_effects, of_rows):
    with pm.Model(coords={"row": range(N), "person": range(N)}) as model:
        x = pm.Normal("x", 0, pm.HalfNormal("s"), dims=of_effects)
        pm.Normal("y", x, 1, observed=Z, dims=of_rows)
    terms = terms_to_integrate(model, "auto", None, predicts=False)
    assert terms is not None
    assert terms.n_groups == N


def test_effects_that_a_shared_variable_depends_on_are_refused(caplog):
    caplog.set_level(logging.INFO, logger="pymc.sgmcmc")
    with pm.Model() as model:
        z = pm.Normal("z", shape=N)
        pm.Normal("y", z + pm.Normal("level", z.mean()), observed=Z)
    assert terms_to_integrate(model, "auto", None, predicts=False) is None
    assert "'z': the term of 'level' depends on it" in caplog.text


def test_rows_of_another_kind_are_not_taken_for_a_prior(caplog):
    """They would be evaluated whole at every update."""
    caplog.set_level(logging.INFO, logger="pymc.sgmcmc")
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("z", shape=N), pm.HalfNormal("s"), observed=Z)
        pm.Normal("w", pm.Normal("mu"), observed=np.zeros(3000))
    assert terms_to_integrate(model, "auto", None, predicts=False) is None
    assert "there are rows of 'w', which do not look up the effects" in caplog.text


def two_classes(n, level, s, noise):
    """Values of rows that are of one of two classes, each with an effect of its own."""
    rng = np.random.default_rng(3)
    which = rng.choice([-level, level], size=(n, 1))
    y = which + rng.normal(0, s, (n, 1)) + rng.normal(0, noise, (n, 6))
    with pm.Model(coords={"row": range(n)}) as model:
        u = pm.Normal("u", 0, pm.HalfNormal("s", 1), dims="row")
        levels = pm.Normal("levels", 0, 3, shape=2, initval=[-level, level])
        log_p = pm.logp(pm.Normal.dist(u[:, None, None] + levels, noise), y[:, :, None])
        each = pt.logsumexp(log_p.sum(axis=1) - np.log(2), axis=1)
        pm.Potential("y", each, dims="row")
    return model, y


def model_and_change(terms, points, equally_spaced):
    """Return the integrated model, and by how much its likelihood differs between two points."""
    rule = points_of(terms.k, equally_spaced=equally_spaced)
    integrated = integrated_model(terms, rule)
    integrated.centres.move(points[0])
    function = integrated.compile_fn(
        integrated.potentials[0].sum(), inputs=integrated.value_vars, mode=PYTHON, point_fn=False
    )
    before, after = (float(function(*point.values())) for point in points)
    return integrated, after - before


def test_equally_spaced_points_find_all_modes(python_by_default):
    """The densities have modes 10 of their sds apart, of which Newton's method finds one."""
    model, y = two_classes(N, level=2.0, s=1.3, noise=1.0)
    terms = terms_to_integrate(model, "auto", None, predicts=False)
    points = [{"s_log__": np.array(a), "levels": np.array(b)}
              for a, b in ((0.3, [-2.0, 2.0]), (0.9, [-2.2, 1.9]))]  # fmt: skip

    def exact(point):
        """Given a class the six values of a row are normal, and have u in common."""
        covariance = np.exp(2 * point["s_log__"]) + np.eye(6)
        by_class = [stats.multivariate_normal(np.full(6, level), covariance).logpdf(y)
                    for level in point["levels"]]  # fmt: skip
        return (logsumexp(by_class, axis=0) - np.log(2)).sum()

    expected = exact(points[1]) - exact(points[0])
    integrated, found = model_and_change(terms, points, equally_spaced=True)
    assert found == pytest.approx(expected, abs=1e-3)
    assert quadrature_error(integrated.centres, integrated.points, points) < 1e-3
    integrated, found = model_and_change(terms, points, equally_spaced=False)
    assert abs(found - expected) > 1
    assert quadrature_error(integrated.centres, integrated.points, points) > 1


def test_groups_keep_their_points_where_densities_overflow(python_by_default):
    """A step too far in the search for a start must not spoil what follows."""
    model, _ = two_classes(N, level=2.0, s=1.3, noise=1.0)
    terms = terms_to_integrate(model, "auto", None, predicts=False)
    integrated = integrated_model(terms, points_of(1, equally_spaced=True))
    centres, near = integrated.centres, {"s_log__": np.array(0.3), "levels": np.array([-2.0, 2.0])}
    centres.move(near)
    before = centres.modes.copy(), centres.factors.copy()
    with np.errstate(all="ignore"):
        centres.move({**near, "levels": np.array([-np.inf, np.inf])})
    np.testing.assert_array_equal(centres.modes, before[0])
    np.testing.assert_array_equal(centres.factors, before[1])


@pytest.mark.parametrize("elsewhere", [{"mu": np.inf}, {"s_log__": -2000.0}])
def test_groups_keep_points_that_follow_where_densities_overflow(elsewhere, python_by_default):
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu"), pm.HalfNormal("s"), shape=(N, 4))
        pm.Normal("y", a.sum(axis=1), 1, observed=Z)
    terms = terms_to_integrate(model, "auto", None, predicts=False)
    centres, start = integrated_model(terms, points_of(4)).centres, {"mu": 0.0, "s_log__": 0.0}
    assert centres.follow
    arrays = centres.modes, centres.factors, centres.scores, centres.of_rows
    before = [array.copy() for array in arrays]
    with np.errstate(all="ignore"):
        centres.move({k: np.array(v) for k, v in {**start, **elsewhere}.items()})
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)


def shares_of_groups():
    """Shares of three categories in 25 groups of few rows; their logits have long tails."""
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(25), rng.integers(2, 7, 25))
    shares = rng.dirichlet([2.0, 1.0, 0.6], 25)
    y = np.array([rng.choice(3, p=shares[j]) for j in group])
    with pm.Model() as model:
        alpha = pm.Exponential("alpha", 0.5, shape=3)
        shares = pm.Dirichlet("shares", alpha, shape=(25, 3))
        pm.Categorical("y", p=shares[group], observed=y)
    counts = np.zeros((25, 3))
    np.add.at(counts, (group, y), 1)
    return terms_to_integrate(model, ["shares"], None, predicts=False), counts


def test_equally_spaced_points_reach_into_long_tails(python_by_default):
    """The integrals are Dirichlet-multinomial probabilities."""
    terms, counts = shares_of_groups()
    points = [{"alpha_log__": np.log(alpha)} for alpha in ([2.0, 1.0, 0.6], [1.5, 0.8, 0.8])]

    def exact(point):
        alpha = np.exp(point["alpha_log__"])
        of_totals = gammaln(alpha.sum()) - gammaln(alpha.sum() + counts.sum(axis=1))
        return (of_totals + (gammaln(alpha + counts) - gammaln(alpha)).sum(axis=1)).sum()

    expected = exact(points[1]) - exact(points[0])
    _, found = model_and_change(terms, points, equally_spaced=True)
    assert found == pytest.approx(expected, abs=5e-3)
    _, found = model_and_change(terms, points, equally_spaced=False)
    assert abs(found - expected) > 0.02


@pytest.mark.long
def test_effects_with_long_tails_have_their_conditional_density(python_by_default):
    """Means and sds of Dirichlet distributions, within 5 Monte Carlo errors of 1000 draws.

    The 2000 draws are nearly independent; sds of shares, which are skewed, have 1.3 times the error
    that they would have of normal values.
    """
    terms, counts = shares_of_groups()
    integrated = integrated_model(terms, points_of(2, equally_spaced=True))
    at = {"alpha_log__": np.log([2.0, 1.0, 0.6])}
    integrated.centres.move(at)
    moved = {"alpha_log__": np.log([1.8, 1.1, 0.7])}  # proposals are of the centre
    effects = EffectDraws(integrated.centres, at, np.random.default_rng(1))
    assert effects.share_of_bad == 0
    transform = terms.model.rvs_to_transforms[terms.model["shares"]]
    draws = np.array(list(effects.of([moved] * 2000)))
    shares = transform.backward(pt.as_tensor(draws)).eval()
    a = np.exp(moved["alpha_log__"]) + counts
    mean = a / a.sum(axis=1, keepdims=True)
    sd = np.sqrt(mean * (1 - mean) / (a.sum(axis=1, keepdims=True) + 1))
    assert np.abs((shares.mean(axis=0) - mean) / sd).max() < 5 / np.sqrt(1000)
    np.testing.assert_allclose(shares.std(axis=0) / sd, 1, atol=5 / np.sqrt(2 * 1000) * 1.3)


def test_effects_with_two_modes_have_their_conditional_density(python_by_default):
    """Means and sds of draws, and the share in the upper mode, against sums over a grid.

    Draws are nearly independent: within 5 Monte Carlo errors of 1500 of the 2000, for 40 rows.
    """
    model, y = two_classes(N, level=1.5, s=1.0, noise=1.0)
    terms = terms_to_integrate(model, "auto", None, predicts=False)
    integrated = integrated_model(terms, points_of(1, equally_spaced=True))
    at = {"s_log__": np.array(0.0), "levels": np.array([-1.5, 1.5])}
    integrated.centres.move(at)
    moved = at | {"levels": np.array([-1.6, 1.5])}  # proposals are of the centre
    effects = EffectDraws(integrated.centres, at, np.random.default_rng(1))
    assert effects.share_of_bad == 0
    draws = np.array([drawn[:, 0] for drawn in effects.of([moved] * 2000)])

    grid = np.linspace(-8, 8, 1601)
    total, n = y.sum(axis=1)[:, None], y.shape[1]
    by_class = [total * (grid + level) - n * (grid + level) ** 2 / 2 for level in moved["levels"]]
    log_p = logsumexp(by_class, axis=0) + stats.norm.logpdf(grid)
    p = np.exp(log_p - log_p.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    upper = p[:, grid > 0].sum(axis=1)
    assert np.mean(np.minimum(upper, 1 - upper) > 0.02) > 0.25  # many have both modes
    for of in (lambda x: x, lambda x: x**2, lambda x: 1.0 * (x > 0)):
        mean = p @ of(grid)
        sd = np.sqrt(p @ of(grid) ** 2 - mean**2)
        off = np.abs(of(draws).mean(axis=0) - mean) / (sd / np.sqrt(1500) + 1e-3)
        assert off.max() < 5


@pytest.mark.long
def test_interrupted_and_resumed(tmp_path, caplog):
    """The store knows which points the integrals have: the warm-up is not made again."""
    model, _ = two_classes(300, level=1.0, s=0.6, noise=0.7)
    whole, resumed = whole_and_resumed(model, tmp_path, caplog)
    assert json.loads(whole.posterior.attrs["adaptation"])["equally_spaced"]
    assert same(resumed, whole)
    assert "Warm-up" not in caplog.text


@pytest.mark.long
def test_default_call_takes_the_points_that_suit(one_graph_at_a_time, tmp_path, caplog):
    """It starts with few, finds their integrals off, and says in the result what it took.

    The store says so too: called again, the run has the same points without a warm-up.
    """
    model, _ = two_classes(300, level=1.0, s=0.6, noise=0.7)
    options = {"tune": 5, "chains": 2, "random_seed": 1, "progressbar": False}
    options |= {"model": model, "trace": tmp_path / "run.zarr"}
    idata = sgm.sample(20, **options)
    assert idata.posterior["u"].dims == ("chain", "draw", "row")
    chosen = json.loads(idata.posterior.attrs["adaptation"])
    assert chosen["equally_spaced"]
    assert float(idata.diagnosis["quadrature_error"]) < 0.1
    caplog.clear()
    with caplog.at_level("INFO"):
        again = sgm.sample(20, resume=True, **options)
    assert "Warm-up" not in caplog.text
    assert same(again, idata)
