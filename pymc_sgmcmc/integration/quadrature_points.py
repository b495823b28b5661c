"""Points and weights that integrate against a standard normal density."""

from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2, norm, ortho_group, qmc

NODES = {1: 11, 2: 5, 3: 5}
"""Number of Gauss-Hermite nodes per effect, by the number of effects of a group."""
REFINED = 1.5
"""Factor of this number for densities of two or three effects that are skew."""
POINTS, POINTS_PER_EFFECT = 64, 10
"""Smallest number of points of a Sobol sequence in groups with more effects, in total and per
effect; the number is a power of 2."""
ROUNDS = 20
"""Number of rounds in which the points' covariance and distances become exact."""
ROTATIONS = 1024
"""Number of random rotations of such points, which groups take in turn."""
EQUALLY_SPACED = {1: (41, 6.0), 2: (21, 4.8), 3: (9, 3.6)}
"""Number of nodes per effect, and largest node in sds, for densities with several modes."""
SCAN = {1: (201, 20.0), 2: (21, 20.0), 3: (13, 12.0)}
"""Number of nodes per effect, and largest node, of a scan for modes that are far apart and for long
tails, by the number of effects."""


class Points(NamedTuple):
    """The integral of f(x) N(x; 0, I) is about ``sum(exp(log_weights) * f(x))``."""

    x: np.ndarray
    """Shape (points, k)."""
    log_weights: np.ndarray
    """Shape (points,)."""
    equally_spaced: bool = False

    @property
    def log_ratios(self) -> np.ndarray:
        """Return log weights relative to the normal density, up to a constant, shape (points,)."""
        return 0.5 * np.sum(self.x**2, axis=1) + self.log_weights


def points_of(k: int, refine: float = 1, equally_spaced: bool = False) -> Points:
    """Return the points for groups with k effects.

    For up to three effects they are a product of Gauss-Hermite rules, whose error falls
    geometrically with the number of nodes. For more effects they are antithetic points of a Sobol
    sequence, moved so that their mean and covariance are exact, and so are mean and variance of
    their squared distances from the centre: the integral depends on these when the scale of a
    density changes, for example with that of the rows' errors. Each group has its own rotation of
    them, so that the errors of the groups' integrals do not add up.

    Equally spaced nodes are for densities with several modes: within modes whose standard
    deviations are five times the distance of nodes their error is negligible, at twice the distance
    it is below 1e-4, and they leave no gaps between modes.

    Parameters
    ----------
    k : int
        Number of effects of a group.
    refine : float, default 1
        With 2, twice the nodes per effect, or twice the points; `REFINED` for Gauss-Hermite nodes.
    equally_spaced : bool, default False
        For groups of up to three effects; for more effects there are four times the points.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_sgmcmc.integration.quadrature_points import points_of
    >>> points = points_of(1)
    >>> float(np.sum(np.exp(points.log_weights) * points.x[:, 0] ** 4).round(6))
    3.0
    """
    if k in NODES:
        if equally_spaced:
            n, largest = EQUALLY_SPACED[k]
            x, w = _equally_spaced(int(refine * (n - 1)) + 1, largest)
        else:
            x, w = np.polynomial.hermite_e.hermegauss(int(refine * NODES[k]))
        return _product(k, x, w, equally_spaced)
    refine = 4 * refine if equally_spaced else refine
    least = max(POINTS, 2 ** int(np.ceil(np.log2(POINTS_PER_EFFECT * k))))
    half = int(least * refine) // 2
    uniform = qmc.Sobol(k, rng=np.random.default_rng(0)).random(half)
    x = norm.ppf(np.clip(uniform, 1e-9, 1 - 1e-9))
    squares = chi2.ppf((np.arange(half) + 0.5) / half, k)
    squares = k + (squares - k) * np.sqrt(2 * k) / squares.std()
    for _ in range(ROUNDS):
        lengths = np.sqrt(np.sum(x**2, axis=1))
        x *= (np.sqrt(squares)[lengths.argsort().argsort()] / lengths)[:, None]
        x = x @ np.linalg.inv(np.linalg.cholesky(x.T @ x / half)).T
    x = np.concatenate([x, -x])
    return Points(x, np.full(len(x), -np.log(len(x))), equally_spaced)


def rule_of(k: int, refined: bool, equally_spaced: bool) -> Points:
    """Return the points of a form in which a model is sampled.

    Equally spaced points of one effect are refined for densities with kinks, where their error only
    falls with the square of the distance.
    """
    if equally_spaced:
        return points_of(k, 2 if refined and k == 1 else 1, equally_spaced)
    return points_of(k, REFINED if refined else 1)


def finer_than(rule: Points) -> Points:
    """Return points that show a rule's error: a scan for one effect, twice the nodes for two or
    three, and four times the points for more.
    """
    k = rule.x.shape[1]
    if k > 1:
        return points_of(k, 2 if k in NODES else 4, rule.equally_spaced)
    n, largest = SCAN[1]
    is_fine = rule.equally_spaced and len(rule.x) > EQUALLY_SPACED[1][0]
    return _product(1, *_equally_spaced(2 * n - 1 if is_fine else n, largest), equally_spaced=True)


@cache
def rotations(k: int) -> np.ndarray:
    """Return rotations and reflections drawn uniformly, shape (ROTATIONS, k, k)."""
    return ortho_group.rvs(k, size=ROTATIONS, random_state=0)


def scan(k: int) -> Points:
    """Return points for up to three effects that reach far from a mode."""
    return _product(k, *_equally_spaced(*SCAN[k]), equally_spaced=True)


def _product(k: int, x: np.ndarray, w: np.ndarray, equally_spaced: bool) -> Points:
    grid = np.stack(np.meshgrid(*[x] * k, indexing="ij"), axis=-1).reshape(-1, k)
    weights = np.stack(np.meshgrid(*[w / w.sum()] * k, indexing="ij"), axis=-1)
    return Points(grid, np.log(weights).sum(axis=-1).ravel(), equally_spaced)


def _equally_spaced(n: int, largest: float) -> tuple[np.ndarray, np.ndarray]:
    x = np.linspace(-largest, largest, n)
    return x, norm.pdf(x)
