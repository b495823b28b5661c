"""Missing outcomes of rows: left out of the sampled model, and drawn from their distribution."""

import logging

import numpy as np
import pymc as pm
import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
import pytest
import scipy.sparse as sp

import pymc_sgmcmc as sgm
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.integration.missing_outcomes import missing_outcomes

pytestmark = pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning")

RNG = np.random.default_rng(1)
N = 60
X = RNG.normal(size=(N, 3))
GROUP = RNG.integers(0, 5, N)
GONE, GONE_TOO = RNG.random((2, N)) < 0.2
COUNTS = RNG.poisson(2, N)
WIDE = RNG.normal(size=(N, 20))


def masked(values, gone=GONE):
    return np.ma.masked_array(values, np.broadcast_to(gone.T, values.T.shape).T)


def normal():
    pm.Normal("y", pm.Normal("a") + X @ pm.Normal("w", shape=3), 1, observed=masked(X[:, 0]))


def the_same_for_all_rows():
    pm.Normal("y", pm.Normal("a"), pm.HalfNormal("s"), observed=masked(X[:, 0]))


def containers():
    group, x = pm.Data("group", GROUP), pm.Data("x", X[:, 0])
    alpha = pm.Normal("alpha", x.mean(), pm.HalfNormal("tau"), shape=5)
    pm.Normal("y", alpha[group], np.exp(X[:, 1]), observed=masked(X[:, 0]))


def counts():
    pm.Poisson("y", pm.math.exp(pm.Normal("a") + X[:, 0]), observed=masked(COUNTS))


def transformed():
    pm.Gamma("y", 2, pm.math.exp(pm.Normal("a") + X[:, 0]), observed=masked(np.exp(X[:, 0])))


def censored():
    y = pm.Normal.dist(pm.Normal("a") + X[:, 0], 1)
    end = np.linspace(0.5, 1.5, N)
    pm.Censored("y", y, None, end, observed=masked(np.minimum(X[:, 0], end)))


def zero_inflated():
    pm.ZeroInflatedPoisson("y", 0.5, pm.math.exp(pm.Normal("a") + X[:, 0]), observed=masked(COUNTS))


def mixture():
    mu = pt.stack([pm.Normal("a") + X[:, 0], pm.Normal("b") - X[:, 0]], axis=1)
    pm.NormalMixture("y", w=[0.3, 0.7], mu=mu, sigma=1.0, observed=masked(X[:, 0]))


def custom():
    def dist(mu, size):
        return pm.Normal.dist(mu, 1, size=size) ** 3

    pm.CustomDist("y", pm.Normal("a") + X[:, 0], dist=dist, observed=masked(X[:, 1]))


def multivariate_rows():
    mu = X[:, :1] * pm.Normal("b", shape=2)
    pm.MvNormal("y", mu, np.eye(2), observed=masked(X[:, :2]))


def table():
    w, s = pm.Normal("w", shape=(3, 4)), pm.HalfNormal("s", shape=4)
    pm.Normal("y", X @ w, s, observed=masked(np.tile(X[:, :1], 4)))


def elements_of_a_table():
    """The third column has all of its elements, the fourth none."""
    w, s = pm.Normal("w", shape=(3, 4)), pm.HalfNormal("s", shape=4)
    gone = np.column_stack([GONE, GONE_TOO, np.zeros(N, bool), np.ones(N, bool)])
    pm.Normal("y", X @ w, s, observed=np.ma.masked_array(np.tile(X[:, :1], 4), gone))


def sparse():
    rows = ps.as_sparse_variable(sp.csr_matrix(X * (X > 0)))
    mu = ps.dot(rows, pm.Normal("w", shape=(3, 1)))[:, 0]
    pm.Normal("y", mu, 1, observed=masked(X[:, 0]))


def two():
    a = pm.Normal("a")
    pm.Normal("y", a + X[:, 0], 1, observed=masked(X[:, 0]))
    pm.Poisson("k", pm.math.exp(a), observed=masked(COUNTS, GONE_TOO))


def built(form):
    with pm.Model() as model:
        form()
    return model


@pytest.mark.parametrize(
    "form",
    [
        *(normal, the_same_for_all_rows, containers, counts, transformed, censored),
        *(zero_inflated, mixture, custom, multivariate_rows, table, elements_of_a_table),
        *(sparse, two),
    ],
    ids=lambda form: form.__name__,
)
def test_density_is_that_of_the_rows_with_an_outcome(form, python_by_default):
    """The model's own without the density of the missing outcomes, whose draws have its moments."""
    model = built(form)
    found = missing_outcomes(model)
    names = [outcome.unobserved.name for outcome in found.outcomes]
    assert names == [rv.name for rv in model.free_RVs if rv.name.endswith("_unobserved")]
    assert {rv.name for rv in found.sampled.free_RVs} == {
        rv.name for rv in model.free_RVs if rv.name not in names
    }
    rng = np.random.default_rng(2)
    point = {
        name: value + rng.normal(0, 0.2, np.shape(value)) if value.dtype.kind == "f" else value
        for name, value in model.initial_point().items()
    }
    all_terms = model.logp()
    gone = [term.sum() for term in model.logp(vars=[model[name] for name in names], sum=False)]
    values = [point[v.name] for v in model.value_vars]
    expected = function(model.value_vars, all_terms - sum(gone))(*values)
    own = [point[v.name] for v in found.sampled.value_vars]
    ours = function(found.sampled.value_vars, found.sampled.logp())(*own)
    assert ours == pytest.approx(expected, rel=1e-9)
    assert found.sampled.named_vars.keys().isdisjoint([*names, *(o.name for o in found.outcomes)])
    # 4000 draws of each missing element, in both forms: moments of tanh(y), which every
    # distribution has, differ by at most sqrt(2 / 4000) = .022 times its sd, which is below 1
    # (skewed counts included); five times that for some tens of elements.
    free = {rv: pt.constant(np.asarray(value)) for rv, value in own_scale(model, point).items()}

    def drawn(variables):
        draw = pm.compile([], substitute(variables, free), random_seed=3, mode=PYTHON)
        return [np.tanh(draws) for draws in zip(*(draw() for _ in range(4000)), strict=True)]

    ours = drawn([outcome.missing for outcome in found.outcomes])
    theirs = drawn([outcome.unobserved for outcome in found.outcomes])
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one.mean(axis=0), other.mean(axis=0), atol=0.11)
        np.testing.assert_allclose(one.std(axis=0), other.std(axis=0), atol=0.11)


def function(inputs, outputs):
    return pytensor.function(inputs, outputs, mode=PYTHON, on_unused_input="ignore")


def own_scale(model, point):
    """Values of the parameters of a model, without missing outcomes."""
    rvs = [rv for rv in model.free_RVs if not rv.name.endswith("_unobserved")]
    values = function(model.value_vars, model.replace_rvs_by_values(rvs))(
        *(point[v.name] for v in model.value_vars)
    )
    return dict(zip(rvs, values, strict=True))


def covariate():
    x = pm.Normal("x", pm.Normal("m"), 1, observed=masked(X[:, 0]))
    pm.Normal("y", pm.Normal("b") * x, 1, observed=X[:, 1])


def total():
    y = pm.Normal("y", pm.Normal("a"), 1, observed=masked(X[:, 0]))
    pm.Potential("total", -(y.sum() ** 2))


def standardised():
    x = pm.Data("x", X[:, 0])
    pm.Normal("y", pm.Normal("b") * (x - x.mean()), 1, observed=masked(X[:, 1]))


def element_of_each_row():
    pm.Normal("y", pm.Normal("z", shape=N), 1, observed=masked(X[:, 0]))


def time_series():
    pm.AR("y", rho=[pm.Normal("rho")], observed=masked(X[:, 0]))


def part_of_a_row():
    pm.MvNormal("y", X * pm.Normal("a"), np.eye(3), observed=np.ma.masked_array(X, X > 1))


def wide_table():
    pm.Normal("y", pm.Normal("w", shape=20), 1, observed=np.ma.masked_array(WIDE, WIDE > 1))


def no_draws():
    def logp(value, mu):
        return -0.5 * (value - mu) ** 2

    pm.CustomDist("y", pm.Normal("a") + X[:, 0], logp=logp, observed=masked(X[:, 1]))


@pytest.mark.parametrize(
    ("form", "name", "reason"),
    [
        (covariate, "x", "'y' depends on them"),
        (total, "y", "'total' depends on them"),
        (standardised, "y", "its rows cannot be taken apart"),
        (element_of_each_row, "y", "shapes"),
        (time_series, "y", "one draw of its distribution spans the rows"),
        (part_of_a_row, "y", "are partly missing, and one draw spans a row"),
        (wide_table, "y", "are partly missing. Write it in long form"),
        (no_draws, "y", "no values can be drawn from its distribution"),
    ],
    ids=lambda value: value.__name__ if callable(value) else value,
)
def test_what_says_something_stays(form, name, reason, caplog, python_by_default):
    model = built(form)
    with caplog.at_level(logging.INFO):
        assert missing_outcomes(model) is None
    assert f"The missing values of '{name}' stay parameters: " in caplog.text
    assert reason in caplog.text


def test_nothing_missing(python_by_default):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a"), 1, observed=X[:, 0])
    assert missing_outcomes(model) is None


MANY = 3000


@pytest.fixture(scope="module")
def regression():
    """Two outcomes of the same rows, normal with known noise: posterior and model."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(MANY, 3))
    gone = rng.random((2, MANY)) < [[0.2], [0.4]]
    mean, sds = rows @ [0.5, -1.0, 2.0], np.array([1.0, 2.0])
    outcomes = rng.normal(mean, sds[:, None])
    precision, weighted = np.eye(3) / 9, np.zeros(3)
    for outcome, sd, missing in zip(outcomes, sds, gone, strict=True):
        precision += rows[~missing].T @ rows[~missing] / sd**2
        weighted += rows[~missing].T @ outcome[~missing] / sd**2
    covariance = np.linalg.inv(precision)
    with pm.Model(coords={"row": np.arange(MANY)}) as model:
        w = pm.Normal("w", 0, 3, shape=3)
        mu = pm.Deterministic("mu", pm.Data("rows", rows, dims=("row", "column")) @ w, dims="row")
        y = pm.Normal("y", mu, 1, observed=np.where(gone[0], np.nan, outcomes[0]), dims="row")
        pm.Normal("z", mu, 2, observed=np.where(gone[1], np.nan, outcomes[1]), dims="row")
        pm.Deterministic("of_y", y.sum() - rows.sum(axis=0) @ w)
    return model, rows, gone, covariance @ weighted, covariance


@pytest.fixture(scope="module")
def result(regression):
    with regression[0]:
        return sgm.sample(
            random_seed=1,
            progressbar=False,
            idata_kwargs={"log_prior": True},
            compile_kwargs={"mode": "JAX"},
        )


@pytest.mark.slow(20)
def test_default_call_is_exact(regression, result):
    model, rows, gone, mean, covariance = regression
    draws = result.posterior
    assert result["diagnosis"].attrs["verdict"] == "ok"
    assert list(draws) == ["w", "y_unobserved", "z_unobserved", "of_y"]
    assert draws["y_unobserved"].dims == ("chain", "draw", "y_unobserved_dim_0")
    sds = np.sqrt(np.diag(covariance))
    # At least 400 effective draws: a mean's error has sd .05, and that of a ratio of sds .035.
    w = draws["w"].values.reshape(-1, 3)
    assert np.all(abs(w.mean(axis=0) - mean) < 0.2 * sds)
    np.testing.assert_allclose(w.std(axis=0), sds, rtol=0.14)
    n = len(w)
    for name, noise, missing in zip(("y", "z"), (1.0, 2.0), gone, strict=True):
        x, own = rows[missing], draws[f"{name}_unobserved"].values.reshape(n, -1)
        variance = noise**2 + np.einsum("ni,ij,nj->n", x, covariance, x)
        errors = (own - x @ mean) / np.sqrt(variance)
        # Given w the draws are independent: means of n have errors of n^-1/2, which the error of
        # the mean of w, .05 of its small sd, hardly changes; of some 600 elements their root mean
        # square has an error of 3%, and the pooled variance one of sqrt(2 / (600 n)) = .0013.
        assert np.sqrt(np.mean(errors.mean(axis=0) ** 2)) < 1.15 / np.sqrt(n)
        assert np.mean(errors**2) == pytest.approx(1, abs=0.01)
        assert result.observed_data[f"{name}_observed"].size == np.sum(~missing)
    # The sum over rows, known ones included, less its part of w: the noise of the missing is left.
    known = np.nansum(model.rvs_to_values[model["y_observed"]].data)
    expected = known - rows[~gone[0]].sum(axis=0) @ mean
    assert float(draws["of_y"].mean()) == pytest.approx(expected, abs=4 * gone[0].sum() ** 0.5 / 20)
    assert result.constant_data["rows"].shape == rows.shape
    prior = result["log_prior"]
    assert set(prior.data_vars) == {"w", "y_unobserved", "z_unobserved"}
    residual = draws["y_unobserved"] - (draws["w"].values @ rows[gone[0]].T)
    expected = -0.5 * residual**2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(prior["y_unobserved"], expected, rtol=1e-6)


@pytest.mark.long
def test_elements_of_a_table(regression):
    """The same two outcomes, side by side: the posterior is the same."""
    model, rows, gone, mean, covariance = regression
    table = np.full((MANY, 2), np.nan)
    for k, name in enumerate(("y", "z")):
        table[~gone[k], k] = model.rvs_to_values[model[f"{name}_observed"]].data
    with pm.Model():
        w = pm.Normal("w", 0, 3, shape=3)
        pm.Normal("both", (rows @ w)[:, None], [1.0, 2.0], observed=table)
        tree = sgm.sample(random_seed=4, quiet=True)
    assert tree["diagnosis"].attrs["verdict"] == "ok"
    assert set(tree.posterior) == {"w", "both_unobserved"}
    assert set(tree.observed_data) == {"both_observed"}
    draws = tree.posterior["w"].values.reshape(-1, 3)
    sds = np.sqrt(np.diag(covariance))
    # As above.
    assert np.all(abs(draws.mean(axis=0) - mean) < 0.2 * sds)
    np.testing.assert_allclose(draws.std(axis=0), sds, rtol=0.14)
    row, column = np.nonzero(gone.T)
    errors = tree.posterior["both_unobserved"].values - (rows @ mean)[row]
    errors = (errors / np.array([1.0, 2.0])[column]).reshape(-1, len(row))
    assert np.sqrt(np.mean(errors.mean(axis=0) ** 2)) < 1.15 / np.sqrt(len(errors))
    assert np.mean(errors**2) == pytest.approx(1, abs=0.01)


@pytest.mark.long
def test_store_resumes_to_the_same_result(regression, tmp_path):
    with regression[0]:
        whole = sgm.sample(100, random_seed=2, quiet=True, trace=tmp_path / "whole")
        sgm.sample(40, random_seed=2, quiet=True, trace=tmp_path / "parts")
        parts = sgm.sample(100, quiet=True, trace=tmp_path / "parts", resume=True)
    assert whole.posterior.sizes["draw"] == 100
    for name in ("w", "y_unobserved", "z_unobserved", "of_y"):
        np.testing.assert_array_equal(whole.posterior[name], parts.posterior[name])


@pytest.mark.long
def test_only_what_is_named(regression):
    model, _, gone, *_ = regression
    with model:
        tree = sgm.sample(50, random_seed=3, quiet=True, var_names=["y", "mu"])
        only_w = sgm.sample(50, random_seed=3, quiet=True, var_names=["w"])
    assert list(tree.posterior) == ["mu", "y"]
    assert tree.posterior["y"].dims == ("chain", "draw", "row")
    known = np.asarray(model.rvs_to_values[model["y_observed"]].data)
    observed = tree.posterior["y"].values[..., ~gone[0]]
    np.testing.assert_array_equal(observed, np.broadcast_to(known, observed.shape))
    assert np.all(tree.posterior["y"].values[..., gone[0]].std(axis=1) > 0.5)
    assert list(only_w.posterior) == ["w"]


@pytest.mark.long
def test_diagnosed_and_judged_by_the_rows_with_an_outcome(regression, result):
    """Without row i the posterior is normal too, so that log p(y_i | the others) is exact."""
    model, rows, gone, mean, covariance = regression
    assert sgm.diagnose(result.copy(), model).verdict == "ok"
    assert set(sgm.robust(result, model).posterior) == {"w"}
    assert list(sgm.certificate(result.copy(), model).index) == ["w[0]", "w[1]", "w[2]"]
    elpd = 0.0
    for name, noise, missing in zip(("y", "z"), (1.0, 2.0), gone, strict=True):
        x, y = rows[~missing], model.rvs_to_values[model[f"{name}_observed"]].data
        leverage = np.einsum("ni,ij,nj->n", x, covariance, x) / noise**2
        error, sd = (y - x @ mean) / (1 - leverage), noise / np.sqrt(1 - leverage)
        elpd += np.sum(-0.5 * (error / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi))
    estimate = sgm.loo(result, model, rows=400)
    assert estimate.n_data_points == np.sum(~gone)
    # The difference estimator's own error, and that of the weights of 2000 draws: of each of 4200
    # rows some 1e-3, which is the same for all where the draws are off.
    assert abs(estimate.elpd - elpd) < 4 * estimate.subsampling_se + 2


@pytest.mark.long
def test_effects_of_groups_are_integrated_out_as_without_the_missing_rows():
    """The run is the same to the last bit as one of the rows that have an outcome."""
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(60), 8)
    y = rng.normal(rng.normal(1, 0.5, 60)[group], 1)
    gone = rng.random(len(y)) < 0.3

    def run(group, y):
        with pm.Model():
            alpha = pm.Normal("alpha", pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1), shape=60)
            pm.Normal("y", alpha[group], 1, observed=y)
            return sgm.sample(60, tune=5, integrate=["alpha"], random_seed=1, quiet=True)

    ours, theirs = run(group, np.ma.masked_array(y, gone)), run(group[~gone], y[~gone])
    assert set(ours.posterior) == {"mu", "tau", "alpha", "y_unobserved"}
    for name in ("mu", "tau", "alpha"):
        np.testing.assert_array_equal(ours.posterior[name], theirs.posterior[name])
    noise = ours.posterior["y_unobserved"] - ours.posterior["alpha"].values[..., group[gone]]
    # 240 draws of some 140 elements, independent N(0, 1): errors of .0055 and .0039.
    assert float(noise.mean()) == pytest.approx(0, abs=0.025)
    assert float(noise.std()) == pytest.approx(1, abs=0.02)
