"""Draws with a sandwich's covariance, against the variance over data sets."""

import numpy as np
import pymc as pm
import pytensor
import pytest
from xarray import Dataset, DataTree

import pymc_sgmcmc as sgm
from pymc_sgmcmc.diagnosis.robust import robust

N = 4000


def exact_draws(X, y, prior=10.0):
    """Model with an sd of 1 for the rows, and draws from its posterior."""
    with pm.Model(coords={"x": ["a", "b"]}) as model:
        beta = pm.Normal("beta", 0, prior, dims="x")
        pm.Normal("y", X @ beta, 1, observed=y)
    covariance = np.linalg.inv(X.T @ X + np.eye(2) / prior**2)
    draws = np.random.default_rng(1).multivariate_normal(
        covariance @ X.T @ y, covariance, size=(4, 1000)
    )
    posterior = Dataset({"beta": (("chain", "draw", "x"), draws)}, {"x": ["a", "b"]})
    return model, DataTree.from_dict({"/posterior": posterior}), draws, covariance


@pytest.fixture(autouse=True)
def _on_jax():
    with pytensor.config.change_flags(mode="JAX"):
        yield


def covariance_of(tree):
    return np.cov(tree.posterior["beta"].values.reshape(-1, 2).T)


def test_the_covariance_is_that_of_the_estimate_over_data_sets():
    rng = np.random.default_rng(2)
    X = np.stack([np.ones(N), rng.normal(size=N)], axis=1) @ [[1, 0.5], [0, 1]]
    sd = 0.5 + np.abs(X[:, 1])  # the model says 1 for all rows
    y = X @ [1.0, -1.0] + sd * rng.normal(size=N)
    model, idata, draws, covariance = exact_draws(X, y)
    found = robust(idata, model)
    right = covariance @ (X.T * sd**2) @ X @ covariance
    assert right[1, 1] > 2 * covariance[1, 1]
    # 4000 draws and 4000 rows with kurtosis: relative errors of variances below 5%
    np.testing.assert_allclose(covariance_of(found), right, rtol=0.15)
    np.testing.assert_allclose(found.posterior["beta"].mean(("chain", "draw")), draws.mean((0, 1)))
    assert found.posterior["beta"].dims == ("chain", "draw", "x")
    assert list(found.posterior.coords["x"].values) == ["a", "b"]
    np.testing.assert_array_equal(idata.posterior["beta"].values, draws)


def test_a_right_model_keeps_its_draws():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N, 2))
    model, idata, draws, covariance = exact_draws(X, X @ [1.0, -1.0] + rng.normal(size=N))
    found = robust(idata, model)
    moved = found.posterior["beta"].values - draws
    # J V = I but for sampling, whose relative error is sqrt(2 / N) or 0.02
    assert np.abs(moved / np.sqrt(np.diag(covariance))).max() < 0.5
    np.testing.assert_allclose(
        covariance_of(found), np.cov(draws.reshape(-1, 2).T), rtol=0.15, atol=2e-6
    )


def test_weights_of_a_survey():
    """As in docs/everyday.md: weights that are no counts of identical rows."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, 2))
    y = X @ [1.0, -1.0] + rng.normal(size=N)
    w = rng.exponential(size=N)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 10, shape=2)
        log_density = pm.logp(pm.Normal.dist(X @ beta, 1), y)
        pm.Potential("weighted", w * log_density)
    covariance = np.linalg.inv(X.T @ (X * w[:, None]) + np.eye(2) / 100)
    draws = rng.multivariate_normal(covariance @ X.T @ (w * y), covariance, size=(4, 1000))
    posterior = Dataset({"beta": (("chain", "draw", "beta_dim_0"), draws)})
    found = robust(DataTree.from_dict({"/posterior": posterior}), model)
    scores = (w * (y - X @ draws.mean(axis=(0, 1))))[:, None] * X
    right = covariance @ scores.T @ scores @ covariance
    assert np.all(np.diag(right) > 1.5 * np.diag(covariance))  # E w^2 = 2 for weights of mean 1
    # variances of 4000 draws have relative errors of sqrt(2 / 4000) or 2%
    np.testing.assert_allclose(np.diag(covariance_of(found)), np.diag(right), rtol=0.1)


def test_too_few_draws_and_no_draws_are_refused():
    X = np.random.default_rng(4).normal(size=(N, 2))
    model, idata, *_ = exact_draws(X, X[:, 0])
    few = DataTree.from_dict(
        {"/posterior": idata.posterior.to_dataset().isel(chain=[0], draw=[0, 1])}
    )
    with pytest.raises(ValueError, match=r"2 draws are too few.*20 or more"):
        sgm.robust(few, model)
    with pytest.raises(ValueError, match="DataTree"):
        sgm.robust({}, model)
