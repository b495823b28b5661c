"""A call without any setting draws from the posterior; what it takes, says and refuses."""

import io
import json
import re
from contextlib import nullcontext

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import rich
from arviz_stats.base import array_stats
from known_posteriors import Groups, Linear, RareLogistic, Separated, Truth, assert_right
from pymc.exceptions import SamplingError
from pytensor.compile.mode import Mode
from pytensor.graph.replace import clone_replace
from samplers import KickFirst
from scipy.optimize import minimize
from scipy.special import expit, polygamma
from scipy.stats import truncnorm

import pymc_sgmcmc as sgm
from pymc_sgmcmc.adaptation.adapted_settings import Adapted
from pymc_sgmcmc.adaptation.curvature_warm_up import CurvatureWarmUp
from pymc_sgmcmc.adaptation.jumps import elements_compared, refuse_hidden_jumps
from pymc_sgmcmc.adaptation.objective import RowsObjective
from pymc_sgmcmc.adaptation.scale_parameters import is_scale
from pymc_sgmcmc.adaptation.short_runs import Diverged, ShortRun
from pymc_sgmcmc.adaptation.start import find_start, start_of_scales
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.gradients.control_variate import ControlVariate
from pymc_sgmcmc.gradients.metric import Dense, split_flat
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients

JAX = {"mode": "JAX"}
QUICK = {"progressbar": False, "compile_kwargs": JAX, "compute_convergence_checks": False}


TARGETS = {"linear": Linear, "rare rows": RareLogistic, "groups": Groups}


@pytest.mark.slow(30)
@pytest.mark.parametrize(
    "name", ["linear", *(pytest.param(n, marks=pytest.mark.long) for n in ("rare rows", "groups"))]
)
def test_default_call(name):
    target = TARGETS[name]()
    with target.model():
        idata = sgm.sample(random_seed=1, store_adaptation=True, **QUICK)
    assert_right(idata, target.truth())
    posterior, adaptation = idata.posterior, idata["adaptation"]
    chosen = json.loads(posterior.attrs["adaptation"])
    assert chosen["metric"] == "dense"
    assert chosen["batch_size"] == 32
    assert posterior.attrs["data_passes"] > posterior.attrs["data_passes_warmup"] > 1
    d = adaptation.sizes["element"]
    assert adaptation["metric"].shape == (d, d)
    assert {"anchor", "anchor_gradient", "noise", "thermostat_predicted"} <= set(adaptation)
    assert ("row_probability" in adaptation) == (chosen["rows"] == "weighted")
    if name == "rare rows":
        probability = adaptation["row_probability"].to_numpy()
        rare = target.X[:, 2:].any(axis=1)
        assert probability[rare].mean() > 3 * probability[~rare].mean()
    step_sizes = idata.sample_stats["step_size"].to_numpy()
    np.testing.assert_array_equal(step_sizes, chosen["step_size"])


@pytest.mark.slow(40)
def test_default_call_where_the_posterior_is_far_steeper_than_on_average():
    """The step size is halved until updates no longer heat the chains."""
    target = Separated()
    with target.model():
        idata = sgm.sample(random_seed=1, progressbar=False)
    assert_right(idata, target.truth())
    assert idata["diagnosis"].attrs["verdict"] == "ok"


@pytest.mark.slow(15)
def test_positive_coefficients_near_zero():
    """Their gradients by log b vary as b, in a batch as at the anchor; without that factor a draw
    takes 600 updates. With orthogonal columns they are independent truncated normals.
    """
    rng = np.random.default_rng(5)
    X = np.linalg.qr(rng.normal(size=(5000, 4)))[0] * np.sqrt(5000)
    at_least = np.array([0.3, 0.02, 0.0, -0.01])  # means without the bound; their sds are 1 / 71
    y = rng.normal(size=5000)
    y += X @ (at_least - X.T @ y / 5000)
    with pm.Model():
        b = pm.HalfNormal("b", 1, shape=4)
        pm.Normal("y", X @ b, 1, observed=y)
        idata = sgm.sample(random_seed=1, ess=1000, progressbar=False, compile_kwargs=JAX)
    assert idata["diagnosis"].attrs["verdict"] == "ok"
    assert json.loads(idata.posterior.attrs["adaptation"])["thin"] < 100
    found = idata.posterior["b"]
    mean, sd = 5000 * at_least / 5001, 5001**-0.5
    law = truncnorm(-mean / sd, np.inf, mean, sd)
    exact = law.rvs((1_000_000, 4), random_state=1)
    # 1000 effective draws: four standard errors of a mean and of an sd, in sds.
    for draws, right in ((found, exact), (np.log(found), np.log(exact))):
        off = (draws.mean(("chain", "draw")) - right.mean(axis=0)) / right.std(axis=0)
        assert abs(off).max() < 4 * 0.032
        np.testing.assert_allclose(draws.std(("chain", "draw")), right.std(axis=0), rtol=4 * 0.035)


@pytest.mark.slow(20)
def test_a_draw_that_needs_millions_of_updates_is_refused():
    """Noise that no thermostat absorbs makes the step size far too small here."""
    with (
        Separated().model(),
        pytest.raises(SamplingError, match=r"updates of SGHMC_S.* Pass step=sgm\.MSGNHT_S\(\)"),
    ):
        sgm.sample(step=sgm.SGHMC_S(), random_seed=1, progressbar=False)


@pytest.mark.slow(90)
def test_default_call_on_numba():
    target = Linear()
    with target.model():
        idata = sgm.sample(random_seed=1, progressbar=False, compute_convergence_checks=False)
    assert_right(idata, target.truth())


# ---- arguments -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def linear():
    target = Linear()
    return target.model(), target.truth()


@pytest.fixture(scope="module")
def step(linear):
    model, _ = linear
    with model:
        return sgm.MSGNHT_S(compile_kwargs=JAX, rng=1)


def draws_of(model, step, seed=1, **options):
    options = {"draws": 60, "tune": 5, "chains": 2} | QUICK | options
    with model:
        return sgm.sample(step=step, random_seed=seed, **options)


@pytest.mark.slow(15)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"adaptation": "dense", "step_size": 0.2}, marks=pytest.mark.long),
        {"batch_size": 64, "thin": 20, "target_bias": 0.02},
        pytest.param({"gradient": "plain", "adaptation": "diag"}, marks=pytest.mark.long),
    ],
    ids=lambda options: ", ".join(f"{k}={v}" for k, v in options.items()),
)
def test_arguments_of_a_step(linear, options):
    """What is given by hand is kept, and the draws are right."""
    model, truth = linear
    with model:
        step = sgm.MSGNHT_S(compile_kwargs=JAX, rng=1, **options)
        idata = sgm.sample(step=step, random_seed=1, **QUICK)
    adapted = step.adapted
    assert adapted.metric == options.get("adaptation", "dense")
    assert adapted.batch_size == step.batch_size == options.get("batch_size", 32)
    if "step_size" in options:
        assert adapted.step_size == options["step_size"]
    if "thin" in options:
        assert step.thin == adapted.thin == options["thin"]
    assert_right(idata, truth)


@pytest.mark.long
def test_a_splitting_with_two_gradients(linear):
    """It is adapted, counted and judged like the others."""
    model, truth = linear
    with model:
        step = KickFirst(compile_kwargs=JAX, rng=1)
        idata = sgm.sample(step=step, random_seed=1, progressbar=False)
    assert_right(idata, truth)
    assert idata["diagnosis"].attrs["verdict"] == "ok"
    adapted = step.adapted
    assert json.loads(idata.posterior.attrs["adaptation"])["drift_to_gradient"] == 0
    # each gradient at the anchor too, for the control variate
    evaluations = 2 * 2 * adapted.thin * adapted.batch_size
    assert adapted.passes_per_draw == pytest.approx(evaluations / adapted.n_rows)


@pytest.mark.long
def test_a_diagonal_metric_keeps_the_shapes_of_variables(linear):
    """It leaves correlations to the sampler, but scales every element."""
    model, truth = linear
    with model:
        step = sgm.MSGNHT_S(adaptation="diag", compile_kwargs=JAX, rng=1)
    sizes = [np.shape(p) for p in step.adapted.scaling]
    assert sizes == [(), (4,), ()]
    assert_right(draws_of(model, step, draws=None, chains=4), truth)


@pytest.mark.slow(12)
def test_a_chain_draws_the_same_whatever_the_number_of_chains(linear):
    """In the default call, whose warm-up has a seed too."""
    model, _ = linear
    options = {"random_seed": 1, "chain_method": "sequential", "compile_kwargs": JAX} | QUICK
    with model:
        one, two = (sgm.sample(20, tune=2, chains=n, **options).posterior["w"] for n in (1, 2))
    np.testing.assert_array_equal(one[0], two[0])


@pytest.mark.slow(10)
def test_steps_in_turn_have_no_verdict(caplog):
    with pm.Model(), caplog.at_level("INFO", logger="pymc.sgmcmc"):
        a, k = pm.Normal("a"), pm.Poisson("k", 3)
        pm.Normal("y", a + k, observed=np.linspace(2, 4, 300))
        steps = [sgm.MSGNHT_S([a], compile_kwargs=JAX, rng=1), pm.Metropolis([k])]
        idata = sgm.sample(20, chains=1, step=steps, random_seed=1, **QUICK)
    assert "there is no verdict" in caplog.text
    assert "diagnosis" not in idata


@pytest.mark.slow(7)
def test_seeds(linear, step):
    model, _ = linear
    one, same, other = (draws_of(model, step, seed).posterior["w"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.isin(other, one).any()
    assert len(np.unique(one)) == one.size, "chains share draws"


@pytest.mark.slow(3)
def test_initial_values_that_are_not_used_are_told(linear, step, caplog):
    """A far chain starts inside the posterior; one that is near starts where it was told to."""
    model, truth = linear
    near = {"w": np.ravel(draws_of(model, step).posterior["w"][0, -1])}
    far = {"w": near["w"] + 100}
    caplog.clear()
    tree = draws_of(model, step, tune=0, draws=1, initvals=[near, far], chain_method="vectorized")
    # A start around a point of the posterior, and a draw: some sds apart. 100 are at least 100 sds.
    shift = (tree.posterior["w"][1, 0].values - near["w"]) / truth.sd["w"]
    assert np.abs(shift).max() < 8
    assert "initvals of chains 1 are far outside" in caplog.text
    caplog.clear()
    draws_of(model, step, draws=1, initvals=near)
    assert "far outside" not in caplog.text


def test_chain_methods_give_the_same_draws(linear, step):
    model, _ = linear
    one, many = (
        draws_of(model, step, chain_method=method).posterior["w"].to_numpy()
        for method in ("sequential", "vectorized")
    )
    # float64, after some hundred updates: XLA adds up many chains in another order
    np.testing.assert_allclose(one, many, rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("method", ["sequential", "vectorized"])
def test_a_variable_without_elements(method):
    """As a spline without knots or a factor without levels has."""
    target = Linear()
    with target.model():
        pm.Normal("none", 0, 1, shape=0)
        idata = sgm.sample(random_seed=1, chain_method=method, **QUICK)
    assert idata.posterior["none"].shape[2] == 0
    assert_right(idata, target.truth())


@pytest.mark.slow(6)
def test_lengths(linear, step, caplog, monkeypatch):
    model, _ = linear
    assert draws_of(model, step, draws=70).posterior.sizes["draw"] == 70
    by_ess = draws_of(model, step, draws=None, chains=4, ess=900)
    sizes = by_ess.posterior.sizes
    assert sizes["draw"] >= 500
    ess = min(
        array_stats.ess(by_ess.posterior[v].to_numpy().reshape(4, -1), chain_axis=0, draw_axis=1)
        for v in ("b", "s")
    )
    assert ess > 800
    # so few that not even the first look at the draws is reached
    allowed = step.adapted.data_passes + 4 * 100.5 * step.adapted.passes_per_draw
    short = draws_of(model, step, draws=None, chains=4, tune=0, max_passes=allowed)
    assert short.posterior.sizes["draw"] == 100
    assert short.posterior.attrs["data_passes"] <= allowed
    assert "max_passes" in caplog.text
    # burn-in that was not asked for takes a quarter of it at most
    monkeypatch.setattr(step, "default_tune_steps", 50)
    shorter = draws_of(model, step, draws=None, chains=4, tune=None, max_passes=allowed)
    assert 75 <= shorter.posterior.sizes["draw"] < 80
    assert shorter.posterior.attrs["data_passes"] <= allowed


@pytest.mark.slow(60)
def test_pm_sample_adapts_once(monkeypatch, tmp_path):
    """In one process, in two and in a copy, the draws are the same; nothing warms up again."""
    count, original = tmp_path / "count", CurvatureWarmUp.run

    def counted(self, point):
        with open(count, "a") as file:
            file.write("+")
        return original(self, point)

    monkeypatch.setattr(CurvatureWarmUp, "run", counted)
    paths = []
    with Linear(n_rows=60).model():
        step = sgm.MSGNHT_S(compile_kwargs={"mode": Mode("py", "fast_compile")}, rng=1)
        copy = cloudpickle.loads(cloudpickle.dumps(step))  # as a spawned process gets it
    for adapted, cores in (
        (step, {"cores": 1}),
        (step, {"cores": 2, "mp_ctx": "fork"}),
        (copy, {"cores": 1}),
    ):
        idata = pm.sample(
            20, tune=5, chains=2, step=adapted, random_seed=1, progressbar=False,
            compute_convergence_checks=False, model=adapted.model, **cores,
        )  # fmt: skip
        paths.append(idata.posterior["w"].to_numpy())
    assert count.read_text() == "+"
    np.testing.assert_array_equal(paths[0], paths[1])
    np.testing.assert_array_equal(paths[0], paths[2])


# ---- refusals ------------------------------------------------------------------------------


X = np.random.default_rng(5).normal(size=(100, 2))
Y = X @ [1.0, -1.0] + np.random.default_rng(6).normal(size=100)


def small(prior=None, X=X, y=Y):
    with pm.Model() as model:
        w = pm.Normal("w", 0, 3, shape=X.shape[1]) if prior is None else prior(X.shape[1])
        pm.Normal("y", X @ w, 1.0, observed=y)
    return model


def latent():
    with pm.Model() as model:
        w = pm.Normal("w")
        z = pm.Bernoulli("z", 0.5, shape=100)
        pm.Normal("y", w + z, 1.0, observed=Y)
    return model


REFUSED = {
    "adaptation": (small, {"adaptation": "x"}, "adaptation='x' must be 'auto', 'dense'"),
    "gradient": (small, {"gradient": "x"}, "gradient='x' must be 'auto', 'plain'"),
    "step_size": (small, {"step_size": "autos"}, "step_size.*autos"),
    "target_bias": (small, {"target_bias": -1.0}, "target_bias must be .*-1.0"),
    "no adaptation": (small, {"adaptation": None}, "step_size='auto' needs adaptation"),
    "no anchor": (
        small,
        {"step_size": 0.1, "gradient": "control_variate"},
        "gradient='control_variate' needs an anchor",
    ),
    "too many parameters for a matrix": (
        lambda: small(X=np.ones((100, 2500))),
        {"adaptation": "dense"},
        "'dense' works with at most 2000 parameters.*has 2500. Pass adaptation='diag'",
    ),
    "too many parameters for an anchor": (
        lambda: small(X=np.ones((100, 2500))),
        {"gradient": "control_variate"},
        "at most 2000 parameters, but the model has 2500",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_compiled(name, monkeypatch):
    monkeypatch.setattr("pymc_sgmcmc.kernel.Loop", lambda *args: pytest.fail("compiled"))
    make, options, message = REFUSED[name]
    with make(), pytest.raises((ValueError, TypeError), match=message):
        sgm.MSGNHT_S(**options)


def test_samplers_without_an_automatic_step_size():
    with small(), pytest.raises(ValueError, match=r"PSGLD has no automatic step size.*step_size="):
        sgm.PSGLD()


def test_discrete_variable():
    with latent(), pytest.raises(ValueError, match="'z'"):
        sgm.sample(quiet=True)


@pytest.mark.parametrize("name", ["ess", "max_passes", "max_seconds"])
def test_numbers_of_a_free_length(name):
    with small(), pytest.raises(ValueError, match=f"{name} must be .*-1"):
        sgm.sample(**{name: -1})


# ---- little data ---------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("n_rows", [1, 10])
def test_fewer_rows_than_parameters(n_rows):
    """One row, or ten of twenty parameters: the prior determines the rest."""
    rng = np.random.default_rng(7)
    X, y = rng.normal(size=(n_rows, 20)), rng.normal(size=n_rows)
    with small(X=X, y=y):
        idata = sgm.sample(random_seed=1, **QUICK)
    covariance = np.linalg.inv(X.T @ X + np.eye(20) / 9)
    truth = Truth({"w": covariance @ X.T @ y}, {"w": np.sqrt(np.diag(covariance))})
    assert_right(idata, truth)


def separable():
    with pm.Model() as model:
        w = pm.Flat("w", shape=2)
        pm.Bernoulli("y", logit_p=X @ w, observed=X[:, 0] > 0)
    return model


def improper():
    with pm.Model() as model:
        w, s = pm.Flat("w"), pm.HalfFlat("s")
        pm.Normal("y", w, s, observed=np.array([1.0]))
    return model


@pytest.mark.long
@pytest.mark.parametrize("make", [separable, improper])
def test_what_the_data_leave_open_under_a_flat_prior(make):
    with make(), pytest.raises(SamplingError, match=r"leave .*undetermined"):
        sgm.sample(random_seed=1, **QUICK)


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    ("column", "names"), [(np.zeros(100), r"'w\[2\]'"), (X[:, 0], r"'w\[0\]', 'w\[2\]'")]
)
def test_columns_that_determine_nothing_are_named(column, names):
    model = small(lambda k: pm.Flat("w", shape=k), X=np.column_stack([X, column]))
    with model, pytest.raises(SamplingError, match=f"leave {names} undetermined.*proper priors"):
        sgm.MSGNHT_S(compile_kwargs=JAX)


@pytest.mark.slow(4)
@pytest.mark.parametrize("column", ["zeros", "twice"])
def test_of_few_rows_per_parameter_too(column):
    """There the curvature is taken from differences, which have errors."""
    rng = np.random.default_rng(1)
    group, x = rng.integers(60, size=1100), rng.normal(size=1100)
    second = np.zeros(1100) if column == "zeros" else 2 * x
    with pm.Model():
        w, a = pm.Flat("w", shape=2), pm.Normal("a", shape=60)
        pm.Normal("y", w[0] * x + w[1] * second + a[group], observed=rng.normal(size=1100))
        with pytest.raises(SamplingError, match=r"leave ('w\[0\]', )?'w\[1\]' undetermined"):
            sgm.MSGNHT_S(batch_size=50, compile_kwargs=JAX)


@pytest.mark.slow(4)
def test_columns_far_from_zero_are_determined():
    """Their intercept is not: with means of 1e4 and proper priors it has an sd of about 160."""
    rng = np.random.default_rng(1)
    Z = rng.normal(1e4, 1, size=(3000, 2))
    with pm.Model():
        w, b = pm.Normal("w", 0, 10, shape=2), pm.Normal("b", 0, 1e5)
        pm.Normal("y", Z @ w + b, 1.0, observed=Z @ [1.0, -2.0] + rng.normal(size=3000))
        metric = sgm.MSGNHT_S(compile_kwargs=JAX).kernel.metric
    columns = np.column_stack([Z, np.ones(3000)])
    exact = np.linalg.inv(columns.T @ columns + np.diag([1e-2, 1e-2, 1e-10]))
    # The information of 3000 rows, from their gradients, is known to about sqrt(2 / 3000) = 3%.
    np.testing.assert_allclose(metric.spread(), np.sqrt(np.diag(exact)), rtol=0.15)


@pytest.mark.slow(6)
@pytest.mark.parametrize("n_rows", [500, 3000])
def test_what_moves_the_likelihood_by_jumps_is_named(n_rows):
    """No gradient tells of it: its draws would be the prior's."""
    t = np.linspace(0, 1, n_rows)
    with pm.Model():
        change = pm.Uniform("change", 0, 1)
        level = pm.Normal("level", 0, 1, shape=2)
        mu = pt.switch(t > change, level[1], level[0])
        pm.Normal("y", mu, 0.5, observed=np.where(t > 0.62, 1.5, 0.3))
        with pytest.raises(
            SamplingError, match=r"depends on 'change_interval__' by jumps only.*smooth"
        ):
            sgm.MSGNHT_S(compile_kwargs=JAX)


BEYOND = {
    "a jump": lambda x, b, c: pt.switch(x > c, 0.3 + b * (x - c), 0),
    "rounded": lambda x, b, c: b * (x - c) + 0.05 * pt.floor(40 * (x - c)),
    "a kink": lambda x, b, c: pt.switch(x > c, b * (x - c), 0),
    "the same on both sides": lambda x, b, c: pt.switch(x > c, b * (x - c), b * x - b * c),
    "no comparison": lambda x, b, c: b * pm.math.sigmoid((x - c) / 0.1),
}
"""How rows change with a threshold c."""


@pytest.mark.slow(3)
@pytest.mark.parametrize("form", BEYOND)
def test_jumps_beside_what_changes_smoothly_are_named(form):
    """Kinks and comparisons that change nothing are no jumps."""
    rng = np.random.default_rng(3)
    x = rng.uniform(0, 1, 3000)
    with pm.Model() as model:
        b, c = pm.Normal("b", 0, 3), pm.Normal("c", 0.5, 1)
        mean = BEYOND[form](x, b, c)
        known = clone_replace(
            mean, {b: pt.constant(1.0, dtype=b.dtype), c: pt.constant(0.5, dtype=c.dtype)}
        ).eval(mode=PYTHON)
        pm.Normal("y", mean, 0.3, observed=rng.normal(known, 0.3))
    gradients = RowGradients(model, model.value_vars, compile_kwargs=JAX)
    objective, theta = RowsObjective(gradients), np.array([1.0, 0.5])
    possible = elements_compared(gradients)
    assert possible.tolist() == [False, form != "no comparison"]
    metric = Dense(gradients.source.shapes)
    metric.set(np.linalg.cholesky(np.linalg.inv(objective.at(theta).curvature())))
    told = nullcontext()
    if form in ("a jump", "rounded"):
        told = pytest.raises(SamplingError, match=r"smoothly and by jumps with 'c' \(a comparison")
    with told:
        refuse_hidden_jumps(objective, theta, metric, possible)


@pytest.mark.slow(6)
def test_a_threshold_is_refused_before_it_is_sampled():
    rng = np.random.default_rng(3)
    x = rng.uniform(0, 1, 3000)
    with pm.Model():
        b, c = pm.Normal("b", 0, 3), pm.Normal("c", 0.5, 1)
        beyond = np.where(x > 0.5, 0.3 + (x - 0.5), 0)
        pm.Normal("y", BEYOND["a jump"](x, b, c), 0.3, observed=rng.normal(beyond, 0.3))
        with pytest.raises(SamplingError, match=r"smoothly and by jumps with 'c'.*sigmoid"):
            sgm.MSGNHT_S(compile_kwargs=JAX, rng=1)


def uniform_rows(y):
    upper = pm.Pareto("upper", alpha=1, m=0.5, initval=4.0)
    pm.Uniform("y", 0, upper, observed=y)


def shifted_rows(y):
    start, rate = pm.Normal("start", -3, 3), pm.HalfNormal("rate", 2)
    pm.CustomDist(
        "y", start, rate, logp=lambda y, start, rate: pm.logp(pm.Exponential.dist(rate), y - start),
        observed=y,
    )  # fmt: skip


def shifted_potential(y):
    start, rate = pm.Normal("start", -3, 3), pm.HalfNormal("rate", 2)
    pm.Potential("y", pm.logp(pm.Exponential.dist(rate), y - start))


@pytest.mark.slow(9)
@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (uniform_rows, "'upper_interval__'"),
        (shifted_rows, "'start'"),
        pytest.param(shifted_potential, "'start'", marks=pytest.mark.long),
    ],
)
def test_edges_of_the_likelihood_are_named(rows, named):
    """The posterior is largest next to one, and no gradient tells of it."""
    with pm.Model():
        rows(np.random.default_rng(1).uniform(0, 3, size=4000))
        with pytest.raises(SamplingError, match=f"0 beyond an edge that {named} sets.*Use NUTS"):
            sgm.MSGNHT_S(compile_kwargs=JAX, rng=1)


@pytest.mark.long
def test_a_mixture_whose_components_start_alike():
    rng = np.random.default_rng(30)
    k = rng.choice(3, 10_000, p=[0.5, 0.3, 0.2])
    y = np.array([-3, 0, 2.5])[k] + np.array([0.5, 1, 0.7])[k] * rng.normal(size=10_000)
    with pm.Model():
        w = pm.Dirichlet("w", np.ones(3))
        mu, s = pm.Normal("mu", 0, 5, shape=3), pm.HalfNormal("s", 2, shape=3)
        pm.NormalMixture("y", w=w, mu=mu, sigma=s, observed=y)
        with pytest.raises(SamplingError, match=r"found no start.*mixture need an order"):
            sgm.MSGNHT_S(rng=1, compile_kwargs=JAX)


# ---- the anchor ----------------------------------------------------------------------------


def many_rows():
    rng = np.random.default_rng(7)
    Z = rng.normal(size=(3000, 2))
    with pm.Model() as model:
        w = pm.Normal("w", 0, 3, shape=2)
        b = pm.Normal("b", 0, 3)
        target = pm.Data("target", Z @ [1.0, -0.5] + 2 + rng.normal(size=3000))
        pm.Normal("y", Z @ w + b, 1.0, observed=target)
    return model


@pytest.mark.slow(4)
def test_the_gradient_at_the_anchor_is_that_of_the_anchor(monkeypatch):
    """Also where the windows end because there have been so many."""
    monkeypatch.setattr("pymc_sgmcmc.adaptation.curvature_warm_up.SETTLED", 0.0)
    monkeypatch.setattr(CurvatureWarmUp, "max_windows", 2)
    with many_rows():
        step = sgm.MSGNHT_S(compile_kwargs=JAX)
    anchor = step.adapted.anchor
    exact = step.gradients.likelihood(anchor, scatter=False).gradient
    np.testing.assert_allclose(step.adapted.anchor_gradient, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.slow(7)
def test_no_anchor_where_other_variables_move():
    """The gradient at the anchor would be that of the others' first values."""
    model = many_rows()
    with model:
        step = sgm.MSGNHT_S([model["w"]], compile_kwargs=JAX)
        assert isinstance(step.batch_size, int)
        assert not isinstance(step.source, ControlVariate)
        with pytest.raises(ValueError, match=r"control_variate' needs one step.*'b' would move"):
            sgm.MSGNHT_S([model["w"]], gradient="control_variate")


@pytest.mark.slow(5)
def test_the_stage_and_the_passes_are_shown(linear, monkeypatch):
    """On a terminal, while the warm-up runs; not with progressbar=False."""
    model, _ = linear

    def seen(**options) -> str:
        screen = io.StringIO()
        rich.reconfigure(file=screen, force_terminal=True, width=120)
        try:
            with model:
                sgm.sample(1, tune=0, chains=1, random_seed=1, compile_kwargs=JAX, **options)
        finally:
            rich.reconfigure()
        return screen.getvalue()

    monkeypatch.setattr("pymc_sgmcmc.adaptation.warm_up_progress.REFRESH_SECONDS", 0.0)
    text = seen(compute_convergence_checks=False)
    for stage in ("window 1", "window 2", "updates per draw"):
        assert re.search(rf"Warm-up: .*{stage} .*\d passes over the data", text), stage
    assert "Warm-up" not in seen(progressbar=False, compute_convergence_checks=False)


@pytest.mark.slow(10)
def test_the_start_of_scales_does_not_depend_on_the_sample_of_rows():
    """With two rows per group all groups look different; all rows tell how different they are."""
    rng = np.random.default_rng(8)
    group = np.repeat(np.arange(200), 20)
    y = rng.binomial(1, expit(rng.normal(0, 0.5, size=200)[group]))
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        alpha = pm.Normal("alpha", 0, tau, shape=200)
        pm.Bernoulli("y", logit_p=alpha[pm.Data("group", group)], observed=y)
    gradients = RowGradients(model, model.value_vars, compile_kwargs=JAX)
    theta = gradients.flat(model.initial_point())
    scales = np.arange(201) == 0
    used = []

    def objective_of(n):
        used.append(n)
        some = None if n == 4000 else np.sort(rng.choice(4000, n, replace=False))
        return RowsObjective(gradients, some)

    start = find_start(objective_of, 4000, 400, theta, scales, rng)
    assert used == [400, 3200, 4000]
    # The posterior sd of log tau is about 0.1 here.
    assert abs(start[0] - np.log(0.5)) < 0.4
    too_wide = start_of_scales(objective_of(400), theta, scales, rng)
    assert too_wide[0] > np.log(0.5) + 0.8, "the sample alone would do: this shows nothing"
    nowhere = np.where(scales, 1e4, theta)  # without density: nothing shows the way
    np.testing.assert_array_equal(start_of_scales(objective_of(400), nowhere, scales, rng), nowhere)


@pytest.mark.slow(4)
def test_the_start_of_a_likelihood_with_kinks():
    """Its second derivatives are zero: curvature is seen only some way off."""
    rng = np.random.default_rng(42)
    x = rng.normal(size=5000)
    y = 1 + 2 * x + rng.normal(size=5000) * np.exp(0.3 * x)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 5), pm.Normal("b", 0, 5)
        s = pm.HalfNormal("s", 1)
        pm.AsymmetricLaplace("y", q=0.9, mu=a + b * x, b=1 / s, observed=y)
    gradients = RowGradients(model, model.value_vars, compile_kwargs=JAX)
    whole = RowsObjective(gradients)

    def objective_of(n):
        return whole if n == 5000 else RowsObjective(gradients, np.sort(rng.choice(5000, n, False)))

    theta, scales = gradients.flat(model.initial_point()), np.array([False, False, True])
    best = minimize(lambda at: whole.at(at).value, [2.37, 2.35, -0.48], method="Nelder-Mead")
    for seed in range(3):
        rng = np.random.default_rng(seed)
        start = find_start(objective_of, 5000, 1000, theta, scales, rng)
        # Draws from a normal posterior of three parameters lie 1.5 below its mode on average.
        assert whole.at(start).value < best.fun + 1.5


@pytest.mark.slow(2)
def test_the_curvature_of_all_data_with_kinks():
    rng = np.random.default_rng(3)
    x = rng.normal(size=1500)
    y = 1 + 2 * x + rng.laplace(size=1500)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 5), pm.Normal("b", 0, 5)
        pm.Laplace("y", a + b * x, 1, observed=y)
    whole = WholeGradients(model, model.value_vars, compile_kwargs=JAX)
    found = -np.diag(whole.hessian(np.array([1.0, 2.0])))
    # The information is 1 a row. A step of 0.3 of these sds crosses the kinks of about 12 rows
    # either way: an error of 20 percent, here three times that.
    np.testing.assert_allclose(found, [1500, x @ x], rtol=0.6)


@pytest.mark.slow(3)
def test_nuts_is_recommended_where_all_rows_are_used(caplog):
    with small(), caplog.at_level("INFO", "pymc.sgmcmc"):
        sgm.MSGNHT_S(compile_kwargs=JAX, rng=1)
    assert "NUTS is about as fast here, and exact" in caplog.text


@pytest.mark.parametrize(
    ("ess_per_draw", "predictions_only", "burn_in"),
    [(0.9, False, 15), (0.2, False, 25), (0.001, False, 50), (0.0, False, 50), (0.2, True, 20)],
)
def test_burn_in_is_five_autocorrelation_times(ess_per_draw, predictions_only, burn_in):
    chosen = Adapted(
        metric="dense", scaling=[], anchor=np.zeros(1), anchor_gradient=np.zeros(1),
        anchor_powers=np.zeros(1), row_copies=None, noise=np.zeros(1),
        friction=np.zeros(1), starts=np.zeros((1, 1)),
        largest_eigval=1.0, smallest_eigval=1.0, step_size=0.2, thin=5, batch_size=10, windows=2,
        ess_per_draw=ess_per_draw, passes_per_draw=1.0, data_passes=1.0, n_rows=100,
        predictions_only=predictions_only,
    )  # fmt: skip
    assert chosen.burn_in == burn_in


def test_log_diagonals_of_cholesky_factors_are_scales():
    with pm.Model() as model:
        pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=pm.Exponential.dist(1))
        pm.HalfNormal("s")
        pm.Normal("a", shape=2)
    shapes = [model.initial_point()[v.name].shape for v in model.value_vars]
    found = is_scale(model, model.value_vars, shapes)
    assert found.tolist() == [True, False, True, False, False, True, True, False, False]


def test_positive_effects_of_a_hierarchy_are_no_scales():
    with pm.Model() as model:
        s = pm.HalfNormal("s")
        slope = pm.LogNormal("slope", 0, s, shape=2)
        width = pm.HalfNormal("width", pm.HalfNormal("typical_width"))
        a = pm.Normal("a", 0, width)
        pm.Gamma("rate", 2, 1)
        pm.Normal("y", a * slope, 1, observed=np.zeros((1, 2)))
    shapes = [model.initial_point()[v.name].shape for v in model.value_vars]
    found = is_scale(model, model.value_vars, shapes)
    assert [v.name for v in model.free_RVs] == ["s", "slope", "typical_width", "width", "a", "rate"]
    assert found.tolist() == [True, False, False, True, True, False, True]


def test_shares_of_a_prior_are_scales_and_weights_of_a_mixture_are_not():
    with pm.Model() as model:
        shares, w = pm.Dirichlet("shares", np.ones(3)), pm.Dirichlet("w", np.ones(2))
        beta = pm.Normal("beta", 0, pm.math.sqrt(shares), shape=3)
        pm.NormalMixture("y", w=w, mu=beta[:2], sigma=1, observed=np.zeros(4))
    shapes = [model.initial_point()[v.name].shape for v in model.value_vars]
    found = is_scale(model, model.value_vars, shapes)
    assert [v.name for v in model.free_RVs] == ["shares", "w", "beta"]
    assert found.tolist() == [True, True, *[False] * 4]


@pytest.mark.long
def test_a_category_without_events():
    """Rows without events say nothing of the curvature: from g g' its metric is 30 times too wide.

    The posterior of its rate is Gamma(1/2, 1 + n), whose logarithm has an exponential left tail.
    """
    rng = np.random.default_rng(30)
    category = rng.integers(3, size=3000)
    counts = rng.poisson(np.array([1.0, 2.0, 0.0])[category])
    n = np.count_nonzero(category == 2)
    with pm.Model() as model:
        rate = pm.Gamma("rate", 0.5, 1, shape=3)
        pm.Poisson("count", rate[category], observed=counts)
        step = sgm.MSGNHT_S(rng=2)
    chosen = step.adapted
    assert chosen.thin < 50
    root = chosen.scaling[0]
    sd = np.sqrt(polygamma(1, 0.5))  # of the logarithm
    assert 0.3 * sd < np.linalg.norm(root[-1]) < 3 * sd
    log_p = model.compile_logp()
    least = min(log_p({"rate_log__": start}) for start in chosen.starts)
    rngs = map(np.random.default_rng, range(20))
    starts = [log_p(chosen.jittered_start(step.kernel, rng)) for rng in rngs]
    assert min(starts) > least - 100
    with model:
        tree = sgm.sample(500, chains=4, step=step, random_seed=1, progressbar=False, quiet=True)
    draws = tree.posterior["rate"].values[..., 2]
    ess = array_stats.ess(draws, chain_axis=0, draw_axis=1)
    assert abs(draws.mean() * (1 + n) - 0.5) < np.sqrt(0.5) * (0.1 + 4 / np.sqrt(ess))


@pytest.mark.long
def test_starts_of_a_hierarchy_whose_scale_may_be_zero():
    """Effects as wide as the metric, under a scale of a tenth of that, have no density to speak of.

    Each start draws from the metric, and all tried in the warm-up have risen by 4 d / 2 + 10 at
    most: others may rise somewhat more.
    """
    rng = np.random.default_rng(13)
    group = rng.integers(40, size=4000)
    y = 1 + rng.normal(size=4000)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        effect = pm.Normal("effect", pm.Normal("mu", 0, 3), tau, shape=40)
        pm.Normal("y", effect[group], 1, observed=y)
        step = sgm.MSGNHT_S(rng=1)
    log_p, chosen = model.compile_logp(), step.adapted
    names = [v.name for v in step.vars]
    of = [split_flat(start, step.source.shapes) for start in chosen.starts]
    least = min(log_p(dict(zip(names, arrays, strict=True))) for arrays in of)
    rngs = map(np.random.default_rng, range(40))
    starts = [log_p(chosen.jittered_start(step.kernel, rng)) for rng in rngs]
    assert min(starts) > least - 1.5 * (4 * 42 / 2 + 10)


@pytest.mark.slow(8)
@pytest.mark.parametrize(
    ("n", "early", "xi", "diverges"),
    [
        (40, True, 1e3, False),
        pytest.param(5000, True, 20, False, marks=pytest.mark.long),
        (5000, True, 60, True),
        (5000, False, 6, True),
    ],
)
def test_thermostats_take_up_what_chains_lose_in_height(n, early, xi, diverges, monkeypatch):
    """At first that is no noise, and without batches never: the step need not be smaller."""
    run = CurvatureWarmUp.run

    def checked(self, point):
        chosen = run(self, point)
        settings = self._settings(2)
        fallen = ShortRun([], np.tile(self.anchor, (4, 10, 1)), np.full(2, xi), np.ones(2))
        self.runs.run = lambda *_: fallen
        with pytest.raises(Diverged, match="noise") if diverges else nullcontext():
            self._draws(np.tile(self.anchor, (4, 1)), settings, 1, 10, early)
        return chosen

    monkeypatch.setattr(CurvatureWarmUp, "run", checked)
    with pm.Model():
        mu, sigma = pm.Normal("mu", 0, 10), pm.HalfNormal("sigma", 1)
        pm.Normal("y", mu, sigma, observed=np.random.default_rng(1).normal(size=n))
        sgm.MSGNHT_S(rng=1, compile_kwargs=JAX)
