"""Targets with known answers."""

from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import softmax

# ---- several one-dimensional potentials and a correlated Gaussian, side by side ------------

COVARIANCE = np.array([[1.0, 0.24], [0.24, 0.09]])
"""Of the first two columns: standard deviations 1 and 0.3, correlation 0.8.

Their narrowest direction has the sd 0.175, the wide Gaussian's column 2: a ratio of 11 in one
variable. `ILL_SCALED` has more, for exact answers: in a chain the step sizes would have to be
so small that the wide columns hardly moved.
"""

ILL_SCALED = np.array([[1.0, 0.08], [0.08, 0.01]])
"""Standard deviations 1 and 0.1, correlation 0.8."""

POLYNOMIALS = {
    # coefficients of t, t^2, t^3, t^4
    "wide Gaussian": [0.0, 0.125, 0.0, 0.0],
    # (t + 4)(t + 1)(t - 1)(t - 3) / 14 (+ 0.5)
    "double well": [-1 / 14, -13 / 14, 1 / 14, 1 / 14],
    "tilted quartic": [0.5, 0.0, 0.0, 0.25],
}
"""Potentials U of the other columns, by name."""

N_COLUMNS = 2 + len(POLYNOMIALS)


def zoo(replicas: int, columns=range(N_COLUMNS)) -> pm.Model:
    """Many independent copies of all or some columns in one variable: rows are replicas.

    The density is an observed term over N = 1 datum, for samplers that look at the likelihood.
    """
    precision = np.zeros((N_COLUMNS, N_COLUMNS))
    precision[:2, :2] = np.linalg.inv(COVARIANCE)
    precision = precision[np.ix_(columns, columns)]
    a, b, c, d = np.array([[0.0] * 4] * 2 + list(POLYNOMIALS.values()))[columns].T

    def logp(value, t):
        correlated = 0.5 * pt.sum(precision * t[..., :, None] * t[..., None, :])
        return -correlated - pt.sum(t * (a + t * (b + t * (c + t * d)))) + 0 * value

    with pm.Model() as model:
        theta = pm.Flat("theta", shape=(replicas, len(columns)))
        pm.CustomDist("zoo", theta, logp=logp, signature="(r,c)->()", observed=np.zeros(1))
    return model


GRID = np.linspace(-12, 12, 24_001)


class Quadrature:
    """A one-dimensional density proportional to exp(-U(t)) weight(t), on a fine grid."""

    def __init__(self, coefficients, weight=None):
        a, b, c, d = coefficients
        t = GRID
        U = t * (a + t * (b + t * (c + t * d)))
        self.slope = a + t * (2 * b + t * (3 * c + t * 4 * d))
        p = np.exp(U.min() - U)
        if weight is not None:
            p = p * weight(self.slope)
        self.p = p / p.sum()
        self.mean = self.expectation(t)
        self.var = self.expectation((t - self.mean) ** 2)

    def expectation(self, values: np.ndarray) -> float:
        return float(np.sum(self.p * values))

    def draws(self, rng, n: int) -> np.ndarray:
        return np.interp(rng.random(n), np.cumsum(self.p), GRID)


# ---- conjugate normal means, with minibatches ----------------------------------------------


class NormalMeans:
    """Means of R columns of N rows: theta ~ N(0, 1), y ~ N(theta, sigma^2), by minibatches.

    The columns are orthogonal with the same sample variance, so the noise of the minibatch
    gradient has exactly the covariance s^2 I (rows drawn with replacement), whatever theta.
    """

    n_rows, n_columns, sigma, batch_size = 100, 64, 5.0, 4

    def __init__(self):
        rng = np.random.default_rng(3)
        raw = rng.normal(size=(self.n_rows, self.n_columns))
        unit, _ = np.linalg.qr(raw - raw.mean(axis=0))
        centre = rng.normal(size=self.n_columns)
        N = self.n_rows
        self.y = centre + self.sigma * np.sqrt(N) * unit
        self.likelihood_precision = N / self.sigma**2
        self.precision = 1 + self.likelihood_precision
        self.mean = self.likelihood_precision * centre / self.precision
        self.gradient_variance = N**2 / self.batch_size * self.y.var(axis=0)[0] / self.sigma**4

    def model(self) -> pm.Model:
        with pm.Model(coords={"obs": range(self.n_rows), "column": range(self.n_columns)}) as model:
            theta = pm.Normal("theta", dims="column")
            y = pm.Data("data", self.y, dims=("obs", "column"))
            pm.Normal("y", theta, self.sigma, observed=y, dims=("obs", "column"))
        return model


# ---- normal with unknown mean and precision ------------------------------------------------


class NormalGamma:
    """y ~ N(mu, 1 / gamma), mu ~ N(0, 1 / gamma), gamma ~ Gamma(1, 1) (SGNHT paper, 5.1)."""

    n_rows = 20

    def __init__(self):
        self.y = np.random.default_rng(7).normal(0.5, 1, size=self.n_rows)
        N, centre = self.n_rows, self.y.mean()
        kappa, self.shape = 1 + N, 1 + N / 2
        self.rate = 1 + 0.5 * np.sum((self.y - centre) ** 2) + 0.5 * N * centre**2 / kappa
        self.mu_mean = N * centre / kappa
        self.mu_var = self.rate / (kappa * (self.shape - 1))
        self.gamma_mean = self.shape / self.rate
        self.gamma_var = self.shape / self.rate**2

    def model(self, replicas: int) -> pm.Model:
        """PyMC's own distributions, gamma on the log scale; the last axis counts replicas."""
        with pm.Model() as model:
            gamma = pm.Gamma("gamma", 1, 1, shape=replicas)
            mu = pm.Normal("mu", 0, gamma**-0.5, shape=replicas)
            y = np.broadcast_to(self.y[:, None], (self.n_rows, replicas))
            pm.Normal("y", mu, gamma**-0.5, observed=y)
        return model


# ---- probabilities of categories, with or without minibatches ------------------------------


class DirichletCategorical:
    """pi ~ Dirichlet(alpha), N rows of one category each: the posterior is Dirichlet(alpha + n)."""

    alpha = np.array([1.0, 0.5, 1.5])
    counts = np.array([30, 12, 3])

    def __init__(self):
        self.n_rows = int(self.counts.sum())
        shape = self.alpha + self.counts
        total = shape.sum()
        self.mean = shape / total
        spread = np.diag(self.mean) - np.outer(self.mean, self.mean)
        self.covariance = spread / (total + 1)
        self.sd = np.sqrt(np.diag(self.covariance))

    def replicas(self, n: int) -> pm.Model:
        """Many independent simplexes that have seen the same rows."""
        with pm.Model() as model:
            pi = pm.Dirichlet("pi", self.alpha, shape=(n, 3))
            pm.Multinomial("n", self.n_rows, pi, observed=np.tile(self.counts, (n, 1)))
        return model

    def rows(self, replicas: int | None = None) -> pm.Model:
        """A row for each observation, of one simplex or of several that see the same."""
        category, shape = np.repeat(range(3), self.counts), None
        if replicas is not None:
            category, shape = np.tile(category[:, None], replicas), (replicas, 3)
        dims = ("obs", "replica")[: category.ndim]
        coords = {"obs": range(self.n_rows), "replica": range(replicas or 1)}
        with pm.Model(coords=coords) as model:
            category = pm.Data("category", category, dims=dims)
            pi = pm.Dirichlet("pi", self.alpha, shape=shape)
            pm.Categorical("y", pi, observed=category, dims=dims)
        return model

    @staticmethod
    def simplex(y: np.ndarray) -> np.ndarray:
        """PyMC's y to pi."""
        logits = np.concatenate([y, -y.sum(axis=-1, keepdims=True)], axis=-1)
        return softmax(logits, axis=-1)


@cache
def quadratures() -> list[Quadrature]:
    """The exact one-dimensional columns of the zoo."""
    return [Quadrature(c) for c in POLYNOMIALS.values()]
