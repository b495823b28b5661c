"""Binary rows with an effect for each group: two models, and their posteriors by quadrature.

intercepts   logistic regression with an intercept for each of 2000 groups of 1 to 39 rows
rasch        1100 persons who answer 12 items each, in long form

The effects are integrated out, group by group, by Gauss-Hermite quadrature around their modes. What
is shared then has 5 and 15 parameters, and is drawn by importance sampling from a Student
distribution at the mode, in pairs of opposite points. `truth.py` writes the moments.
"""

from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np
import pymc as pm
from scipy import optimize, special, stats

NODES = 15
PAIRS = 4000


class Rows(NamedTuple):
    """Rows in the order of their groups; their logits are X fixed + effect."""

    y: np.ndarray
    X: np.ndarray
    group: np.ndarray

    @property
    def ends(self) -> np.ndarray:
        """Where each group's rows begin, and the last end."""
        return np.concatenate([[0], np.cumsum(np.bincount(self.group))])


class GroupPosterior(NamedTuple):
    """A model, and the same with its effects integrated out."""

    model: Callable[[], pm.Model]
    rows: Callable[[], Rows]
    start: np.ndarray
    """Parameters, of the order of those that made the data."""
    log_prior: Callable[[np.ndarray], float]
    """With the Jacobians of logarithms."""
    split: Callable[[np.ndarray], tuple[np.ndarray, float, float]]
    """From parameters to the fixed part, and the effects' mean and scale."""
    variables: Callable[[np.ndarray], dict[str, np.ndarray]]
    """From draws of the parameters to those of the model's shared variables."""


# ---- intercepts ------------------------------------------------------------------------------


def intercepts_rows() -> Rows:
    rng = np.random.default_rng(4)
    sizes = rng.integers(1, 40, 2000)
    group = np.repeat(np.arange(2000), sizes)
    X = rng.normal(size=(len(group), 3))
    effects = rng.normal(-0.5, 0.8, 2000)
    y = rng.binomial(1, special.expit(X @ [0.5, -0.3, 0.2] + effects[group]))
    return Rows(y, X, group)


def intercepts_model() -> pm.Model:
    y, X, group = intercepts_rows()
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 2)
        a = pm.Normal("a", mu, tau, shape=int(group[-1]) + 1)
        pm.Bernoulli("y", logit_p=X @ beta + a[group], observed=y)
    return model


def intercepts_log_prior(v: np.ndarray) -> float:
    log_p = stats.norm.logpdf(v[:3]).sum() + stats.norm.logpdf(v[3], 0, 2)
    return log_p + stats.halfnorm.logpdf(np.exp(v[4]), 0, 2) + v[4]


# ---- Rasch -----------------------------------------------------------------------------------


def rasch_rows() -> Rows:
    rng = np.random.default_rng(15)
    ability, difficulty = rng.normal(0, 1.2, 1100), rng.normal(0.5, 0.9, 12)
    y = rng.binomial(1, special.expit(ability[:, None] - difficulty))
    return Rows(y.ravel(), -np.tile(np.eye(12), (1100, 1)), np.repeat(np.arange(1100), 12))


def rasch_model() -> pm.Model:
    y, X, person = rasch_rows()
    item = np.argmin(X, axis=1)
    with pm.Model() as model:
        s_person, s_item = pm.HalfCauchy("s_person", 2.5), pm.HalfCauchy("s_item", 2.5)
        mu = pm.Normal("mu", 0, 5)
        theta = pm.Normal("theta", 0, s_person, shape=1100)
        b = pm.Normal("b", mu, s_item, shape=12)
        pm.Bernoulli("y", logit_p=theta[person] - b[item], observed=y)
    return model


def rasch_log_prior(v: np.ndarray) -> float:
    b, mu, scales = v[:12], v[12], np.exp(v[13:])
    log_p = stats.norm.logpdf(b, mu, scales[0]).sum() + stats.norm.logpdf(mu, 0, 5)
    return log_p + stats.halfcauchy.logpdf(scales, 0, 2.5).sum() + v[13:].sum()


POSTERIORS = {
    "groups-intercepts": GroupPosterior(
        intercepts_model,
        intercepts_rows,
        np.array([0.5, -0.3, 0.2, -0.5, np.log(0.8)]),
        intercepts_log_prior,
        lambda v: (v[:3], v[3], np.exp(v[4])),
        lambda v: {"beta": v[:, :3], "mu": v[:, 3], "tau": np.exp(v[:, 4])},
    ),
    "groups-rasch": GroupPosterior(
        rasch_model,
        rasch_rows,
        np.concatenate([np.full(12, 0.5), [0.5], np.log([0.9, 1.2])]),
        rasch_log_prior,
        lambda v: (v[:12], 0.0, np.exp(v[14])),
        lambda v: {
            "s_person": np.exp(v[:, 14]),
            "s_item": np.exp(v[:, 13]),
            "mu": v[:, 12],
            "b": v[:, :12],
        },
    ),
}
COMMON_SCALE = {"groups-intercepts": "tau", "groups-rasch": "s_person"}
"""The scale that the groups' effects share."""


# ---- quadrature ------------------------------------------------------------------------------


@numba.njit
def log_likelihoods(y, fixed, ends, nodes):
    """Of each group at each of its nodes, shape (groups, nodes).

    The sum of the log(1 + exp(logit)) of a group is the log of a product: no row needs a function.
    """
    total = np.zeros(nodes.shape)
    odds, odds_of_nodes = np.exp(fixed), np.exp(nodes)
    for j in range(len(nodes)):
        own = slice(ends[j], ends[j + 1])
        ones, of_ones = y[own].sum(), (y[own] * fixed[own]).sum()
        for q in range(nodes.shape[1]):
            product = 1.0
            for odd in odds[own]:
                product *= 1 + odd * odds_of_nodes[j, q]
            total[j, q] = ones * nodes[j, q] + of_ones - np.log(product)
    return total


class Marginal:
    """Log density of the shared parameters, with nodes where the effects are at some of them."""

    def __init__(self, posterior: GroupPosterior, at: np.ndarray):
        self.posterior, self.rows = posterior, posterior.rows()
        fixed, mu, tau = posterior.split(at)
        y, X, group = self.rows
        mode = np.full(group[-1] + 1, mu)
        for _ in range(20):
            p = special.expit(X @ fixed + mode[group])
            precision = np.bincount(group, p * (1 - p)) + tau**-2
            mode += (np.bincount(group, y - p) - (mode - mu) / tau**2) / precision
        x, weights = np.polynomial.hermite.hermgauss(NODES)
        width = np.sqrt(2 / precision)[:, None]
        self.nodes = mode[:, None] + width * x
        self.log_weights = np.log(weights) + x**2 + np.log(width)

    def __call__(self, v: np.ndarray) -> float:
        fixed, mu, tau = self.posterior.split(v)
        rows = self.rows
        log_p = log_likelihoods(rows.y, rows.X @ fixed, rows.ends, self.nodes) + self.log_weights
        log_p -= ((self.nodes - mu) / tau) ** 2 / 2 + np.log(tau) + np.log(2 * np.pi) / 2
        return special.logsumexp(log_p, axis=1).sum() + self.posterior.log_prior(v)


def hessian(f: Callable[[np.ndarray], float], at: np.ndarray, step: float) -> np.ndarray:
    """By central differences."""
    shifts = step * np.eye(len(at))
    found = [
        [f(at + a + b) - f(at + a - b) - f(at - a + b) + f(at - a - b) for b in shifts]
        for a in shifts
    ]
    return np.array(found) / (4 * step**2)


def weighted_draws(name: str) -> tuple[dict[str, np.ndarray], np.ndarray, float]:
    """Draws of the shared variables, their weights, and the effective number."""
    posterior = POSTERIORS[name]
    mode = posterior.start
    for _ in range(2):  # the second time with nodes where they belong
        marginal = Marginal(posterior, mode)
        mode = optimize.minimize(lambda v, f=marginal: -f(v), mode, method="BFGS").x
    covariance = np.linalg.inv(-hessian(marginal, mode, 1e-2))
    proposal = stats.multivariate_t(mode, covariance, df=10, seed=1)
    half = proposal.rvs(PAIRS)
    draws = np.concatenate([half, 2 * mode - half])
    log_weights = np.array([marginal(v) for v in draws]) - proposal.logpdf(draws)
    weights = special.softmax(log_weights)
    return posterior.variables(draws), weights, 1 / np.square(weights).sum()
