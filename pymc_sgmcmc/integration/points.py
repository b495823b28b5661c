"""Points and weights that integrate against a standard normal density."""

from typing import NamedTuple

import numpy as np
from scipy.stats import norm, qmc

NODES = {1: 11, 2: 5, 3: 5}
"""Gauss-Hermite nodes per effect, in groups with so many effects,"""
POINTS = 64
"""... and points of a Sobol sequence in groups with more."""


class Points(NamedTuple):
    """The integral of f(x) N(x; 0, I) is about ``sum(exp(log_weights) * f(x))``."""

    x: np.ndarray
    """Shape (points, k)."""
    log_weights: np.ndarray
    """Shape (points,)."""

    @property
    def log_ratios(self) -> np.ndarray:
        """Logs of the weights relative to the normal density, up to a constant, shape (points,)."""
        return 0.5 * np.sum(self.x**2, axis=1) + self.log_weights


def points_of(k: int, refine: int = 1) -> Points:
    """Return the points for groups with k effects.

    For up to three effects a product of Gauss-Hermite rules, whose error falls geometrically with
    the number of nodes. For more, antithetic points of a Sobol sequence, moved so that their mean
    and covariance are exact.

    Parameters
    ----------
    k : int
        Effects of a group.
    refine : int, default 1
        2: twice the nodes per effect, or twice the points.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_sgmcmc.integration.points import points_of
    >>> x, log_weights = points_of(1)
    >>> float(np.sum(np.exp(log_weights) * x[:, 0] ** 4).round(6))
    3.0
    """
    if k in NODES:
        x, w = np.polynomial.hermite_e.hermegauss(refine * NODES[k])
        grid = np.stack(np.meshgrid(*[x] * k, indexing="ij"), axis=-1).reshape(-1, k)
        weights = np.stack(np.meshgrid(*[w / w.sum()] * k, indexing="ij"), axis=-1)
        return Points(grid, np.log(weights).sum(axis=-1).ravel())
    half = max(POINTS, 2 ** int(np.ceil(np.log2(2 * k + 2)))) * refine // 2
    uniform = qmc.Sobol(k, rng=np.random.default_rng(0)).random(half)
    x = norm.ppf(np.clip(uniform, 1e-9, 1 - 1e-9))
    x = np.concatenate([x, -x])
    x = x @ np.linalg.inv(np.linalg.cholesky(x.T @ x / len(x))).T
    return Points(x, np.full(len(x), -np.log(len(x))))
