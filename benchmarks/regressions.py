"""Logistic regressions of any size with known posteriors, for `crossover.py` and `exact.py`.

Correlated columns, labels from known weights and N(0, 2.5^2) priors.

Truth: with few rows importance sampling, 40 000 points of a Student distribution about the mode:
weights are nearly equal, so that an error of a mean has a standard deviation of .005 sd. From
100 000 rows on the normal approximation at the mode. Its mean is corrected by the third
derivatives, .02 sd at 100 000 rows; what is left is of the order of 1 / N.
"""

from functools import cache

import numpy as np
import pymc as pm
from scipy import stats
from scipy.special import softmax
from truth import Moments

COLUMNS = 20
PRIOR_SD = 2.5
NORMAL_FROM = 100_000
"""Rows from which on the normal approximation is the truth."""
POINTS = 40_000
POINTS_AT_ONCE = 500


@cache
def data(n_rows: int, columns: int = COLUMNS):
    """Rows with correlated columns, labels from known weights."""
    rng = np.random.default_rng(0)
    X = 0.7 * rng.normal(size=(n_rows, columns)) + 0.7 * rng.normal(size=(n_rows, 1))
    weights = np.linspace(-1, 1, columns)
    return X, (rng.random(n_rows) < 1 / (1 + np.exp(-(X @ weights)))).astype("int32")


def build_model(n_rows: int, columns: int = COLUMNS) -> pm.Model:
    """The regression on all rows."""
    X, y = data(n_rows, columns)
    with pm.Model() as model:
        w = pm.Normal("w", 0, PRIOR_SD, shape=columns)
        features = pm.Data("X", X, dims=("row", "feature"))
        pm.Bernoulli("y", logit_p=features @ w, observed=y, dims="row")
    return model


def mode_of(X: np.ndarray, y: np.ndarray, prior_sd: float) -> tuple[np.ndarray, np.ndarray]:
    """Mode and covariance of the normal approximation there, by Newton's method."""
    w = np.zeros(X.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-(X @ w)))
        hessian = (X.T * (p * (1 - p))) @ X + np.eye(len(w)) / prior_sd**2
        move = np.linalg.solve(hessian, X.T @ (y - p) - w / prior_sd**2)
        w = w + move
        if move @ hessian @ move < 1e-16:
            break
    return w, np.linalg.inv(hessian)


def normal_approximation(n_rows: int, columns: int = COLUMNS):
    """Mean and sds, from three derivatives at the mode."""
    mean, covariance = corrected_normal(*data(n_rows, columns))
    return mean, np.sqrt(np.diag(covariance))


def corrected_normal(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean, corrected by third derivatives at the mode, and covariance there."""
    w, covariance = mode_of(X, y, PRIOR_SD)
    p = 1 / (1 + np.exp(-(X @ w)))
    third = p * (1 - p) * (1 - 2 * p) * ((X @ covariance) * X).sum(axis=1)
    return w - covariance @ (X.T @ third) / 2, covariance


def true_moments(n_rows: int, columns: int = COLUMNS) -> Moments:
    """Mean and sds of the posterior."""
    if n_rows >= NORMAL_FROM:
        mean, sd = normal_approximation(n_rows, columns)
    else:
        mean, sd = weighted_moments(*data(n_rows, columns))
    return Moments({"w": mean}, {"w": sd})


def weighted_moments(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sds by importance sampling."""
    proposal = stats.multivariate_t(*corrected_normal(X, y), df=30)
    points = proposal.rvs(POINTS, random_state=0)
    log_weights = []
    for block in np.array_split(points, POINTS // POINTS_AT_ONCE):
        eta = X @ block.T
        log_likelihood = y @ eta - np.logaddexp(0, eta).sum(axis=0)
        log_prior = -np.square(block / PRIOR_SD).sum(axis=1) / 2
        log_weights.append(log_likelihood + log_prior - proposal.logpdf(block))
    weights = softmax(np.concatenate(log_weights))
    mean = weights @ points
    return mean, np.sqrt(weights @ np.square(points - mean))
