"""Estimates of log p(x | theta) against exact enumeration and a known marginal."""

import itertools

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import pymc_sgmcmc as sgm

JAX = {"mode": "JAX"}
METHODS = {
    "importance": {"method": "importance"},
    "ais": {"method": "ais", "n_temperatures": 4},
    "ais, parameters": {"method": "ais", "n_temperatures": 4, "path": "parameters"},
}
"""Few temperatures, so that weights vary: wrong ones are then seen."""


def layers(x):
    """A sigmoid belief network with two hidden layers, 3 and 2 units: 32 states of z."""
    coords = {"obs": range(len(x)), "one": range(3), "two": range(2), "pixel": range(5)}
    with pm.Model(coords=coords) as model:
        data = pm.Data("data", x, dims=("obs", "pixel"))
        w = pm.Normal("w", 0, 1, dims=("one", "pixel"))
        c = pm.Normal("c", 0, 1, dims="pixel")
        v = pm.Normal("v", 0, 1, dims=("two", "one"))
        b = pm.Normal("b", 0, 1, dims="two")
        top = pm.Bernoulli("top", logit_p=b, dims=("obs", "two"))
        z = pm.Bernoulli("z", logit_p=top @ v, dims=("obs", "one"))
        pm.Bernoulli("x", logit_p=z @ w + c, observed=data, dims=("obs", "pixel"))
    return model


rng = np.random.default_rng(11)
THETA = {
    "w": 1.5 * rng.normal(size=(3, 5)),
    "c": rng.normal(size=5),
    "v": 1.5 * rng.normal(size=(2, 3)),
    "b": rng.normal(size=2),
}
X = np.array([[1, 0, 1, 1, 0], [0, 0, 1, 0, 1], [1, 1, 1, 1, 1]])
SMALL = layers(X)


def exact(theta, x):
    """log p(x | theta) of each row."""

    def log_bernoulli(value, logit):
        return (value * logit - np.logaddexp(0, logit)).sum(-1)

    terms = []
    for top in itertools.product([0, 1], repeat=2):
        for z in itertools.product([0, 1], repeat=3):
            prior = log_bernoulli(np.array(top), theta["b"])
            prior += log_bernoulli(np.array(z), top @ theta["v"])
            terms.append(prior + log_bernoulli(x, z @ theta["w"] + theta["c"]))
    return logsumexp(terms, axis=0)


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_unbiased_and_their_error_is_known(method):
    """One row many times: the mean of p-hat / p is 1, and log p-hat spreads as its mcse says."""
    copies, n_samples = 300, 40
    data = {"data": np.repeat(X[:1], copies, axis=0)}
    result = sgm.log_marginal_likelihood(
        THETA,
        ["top", "z"],
        data=data,
        n_samples=n_samples,
        model=SMALL,
        random_seed=1,
        compile_kwargs=JAX,
        **METHODS[method],
    )
    truth = exact(THETA, X[0])
    ratio = np.exp(result.log_p.values.ravel() - truth)
    error = ratio.std() / np.sqrt(copies)
    assert error < 0.03  # 12 000 weights: a wrong factor would be seen
    assert abs(ratio.mean() - 1) < 4 * error
    spread = result.log_p.values.std()
    reported = np.sqrt((result.log_p_mcse.values**2).mean())
    # the sd of 300 numbers is known to 1 / sqrt(600) = 4%; the delta method adds some
    assert abs(spread / reported - 1) < 0.2
    assert abs((result.mean_log_p - truth).item()) < 4 * result.mean_log_p_mcse.item() + spread**2
    assert result.mean_log_p_mcse.item() == pytest.approx(reported / np.sqrt(copies))
