"""How often rows are drawn, against the weights of least variance."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit

from pymc_sgmcmc.adaptation.row_weights import RowWeights
from pymc_sgmcmc.gradients.anchor_factors import AnchorFactors
from pymc_sgmcmc.gradients.metric import Dense
from pymc_sgmcmc.gradients.row_gradients import RowGradients

N, PRIOR_SD = 4000, 3.0


def logistic(X, y):
    """The rows' gradients, a mode and a dense metric of a logistic regression."""
    d = X.shape[1]
    with pm.Model() as model:
        w = pm.Normal("w", 0, PRIOR_SD, shape=d)
        pm.Bernoulli("y", logit_p=pm.math.dot(X, w), observed=y)
    gradients = RowGradients(model, model.value_vars, compile_kwargs={"mode": "JAX"})
    mode = np.zeros(d)
    for _ in range(20):
        p = expit(X @ mode)
        information = (X.T * (p * (1 - p))) @ X + np.eye(d) / PRIOR_SD**2
        mode += np.linalg.solve(information, X.T @ (y - p) - mode / PRIOR_SD**2)
    metric = Dense([(d,)])
    metric.set(np.linalg.cholesky(np.linalg.inv(information)))
    return gradients, mode, metric


def variance(q, changes):
    """Of the estimated sum of one row's change / q, in z, on average over the posterior."""
    of_a_point = np.sum(np.sum(changes**2, axis=2) / q, axis=1) - np.sum(
        changes.sum(axis=1) ** 2, axis=1
    )
    return of_a_point.mean()


def test_nearly_the_least_variance_where_columns_are_rare():
    """Seven columns of 3 to 50 nonzeros: their rows matter most, and random points miss some."""
    rng = np.random.default_rng(8)
    n_nonzero = [3, 4, 6, 10, 15, 30, 50]
    X = np.column_stack([np.ones(N), rng.normal(size=(N, 2)), np.zeros((N, len(n_nonzero)))])
    for j, n in enumerate(n_nonzero):
        X[rng.choice(N, n, replace=False), 3 + j] = 1
    y = rng.binomial(1, expit(X @ np.r_[-1, 0.5, -0.5, rng.normal(size=len(n_nonzero))]))
    gradients, mode, metric = logistic(X, y)
    weights = RowWeights(gradients, AnchorFactors(gradients))
    weights.see(mode, metric, rng)
    q = weights.copies / weights.copies.sum()
    points = mode + metric.times(rng.normal(size=(300, len(mode))))
    residual = expit(X @ mode) - expit(points @ X.T)  # of each point and row
    changes = np.stack([metric.transposed_times(r[:, None] * X) for r in residual])
    optimal = np.sqrt(np.mean(np.sum(changes**2, axis=2), axis=0))
    least = variance(optimal / optimal.sum(), changes)
    # A fifth of the draws are spread evenly, which costs 1 / .8 at most.
    assert variance(q, changes) < 1.3 * least
    assert variance(np.full(N, 1 / N), changes) > 5 * least


def test_even_rows_are_drawn_alike():
    rng = np.random.default_rng(9)
    X = np.column_stack([np.ones(N), rng.choice([-1.0, 1.0], N)])
    gradients, mode, metric = logistic(X, rng.binomial(1, 0.5, size=N))
    weights = RowWeights(gradients, AnchorFactors(gradients))
    weights.see(mode, metric, rng)
    assert weights.copies is None
    assert weights.passes == 5


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_gradients_that_are_infinite_far_away():
    """A Poisson rate overflows two standard deviations away in one direction."""
    x, y = np.r_[np.ones(N - 1), 2000.0], np.r_[np.arange(N - 1) % 3, 3]
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Poisson("y", pm.math.exp(b * x), observed=y)
    gradients = RowGradients(model, model.value_vars, compile_kwargs={"mode": "JAX"})
    metric = Dense([()])
    metric.set(np.array([[1.0]]))
    weights = RowWeights(gradients, AnchorFactors(gradients))
    weights.see(np.zeros(1), metric, np.random.default_rng(1))
    assert weights.copies.min() >= 1
    assert weights.copies[-1] == weights.copies.max()
    assert weights.copies.sum() < 6 * N
