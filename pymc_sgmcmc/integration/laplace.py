r"""The mode and curvature of each group's effects, and the log of each group's integral.

For each group, with h(a) = log p(y, a | shared) of its k effects::

    a* = argmax h,   L L' = (-h''(a*))^{-1}
    log integral exp h(a) da = log sum_s w_s exp(h(a* + L x_s) - log N(a* + L x_s; a*, L L'))

(adaptive quadrature: Pinheiro and Bates 1995), with points x_s and weights w_s for the standard
normal density. The sum is nearly the same for all a* and L near these. So they are found once, at
values of the shared parameters in the middle of the posterior, and for other values follow the
effects' prior (see `pymc_sgmcmc.integration.prior_following`), the joint density
(`pymc_sgmcmc.integration.density_following`), or neither.
"""

from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt
from pymc.blocking import PointType
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.integration.group_density import GroupDensity
from pymc_sgmcmc.integration.group_rows import GroupRows
from pymc_sgmcmc.integration.quadrature_points import Points, scan

MAX_STEPS = 100
CLOSE = 1e-6
"""Largest predicted rise of any h at which Newton's steps end."""
DAMPING = 1e-3
"""First damping of Newton's steps, relative to the curvature, which then changes by factors
of ten."""
MOST_DAMPING = 1e8
"""Largest damping; a group for which it does not help stays where it is."""
SCANNED = 5
"""A higher mode is sought at every fifth node of a scan, which are one sd apart."""
ROWS_PER_CALL = 200_000
"""Approximate number of rows per call, which bounds memory."""


def log_integrals(h: TensorVariable, modes_scale: TensorVariable, points: Points) -> TensorVariable:
    """Return the log of each group's integral, shape (groups,).

    ``h``, shape (points, groups), has log joint densities at a* + L x_s, and ``modes_scale``, shape
    (groups,), has log |L|.
    """
    k = points.x.shape[1]
    terms = h + points.log_ratios[:, None].astype(h.dtype)
    return pt.logsumexp(terms, axis=0) + modes_scale + 0.5 * k * np.log(2 * np.pi)


def modes_and_factors(
    density: GroupDensity, point: PointType, index: np.ndarray, start: np.ndarray, rows: GroupRows
) -> tuple[np.ndarray, np.ndarray]:
    """Return modes, shape (m, k), and factors L, shape (m, k, k), of the groups at places in rows.

    Uses Newton's method from ``start``, shape (m, k), with separate Levenberg damping for each
    group. ``point`` has values of the shared parameters.
    """
    modes, factors = np.empty_like(start), np.empty((*start.shape, start.shape[1]))

    def find(block: slice) -> None:
        def derivatives(which, a):
            return density.derivatives(point, index[block][which], a, rows)

        with np.errstate(all="ignore"):
            modes[block], factors[block] = _newton(derivatives, start[block])

    find(slice(0, 1))  # compiled before there are threads
    density.map(find, rows.blocks(index, ROWS_PER_CALL))
    return modes, factors


def highest_modes(
    density: GroupDensity,
    point: PointType,
    index: np.ndarray,
    modes: np.ndarray,
    factors: np.ndarray,
    rows: GroupRows,
) -> tuple[np.ndarray, np.ndarray]:
    """Return modes and factors, of one effect, from where a scan finds h higher than at the modes.

    Densities that are mixtures have several modes, and Newton's method finds the nearest.
    """
    x = scan(1).x[::SCANNED, None]
    best, higher = modes.copy(), np.zeros(len(index), bool)

    def find(block: slice) -> None:
        a = modes[block] + factors[block][:, :, 0] * x
        h = np.nan_to_num(density.at_points(point, index[block], a, rows), nan=-np.inf)
        node, groups = h.argmax(axis=0), np.arange(h.shape[1])
        best[block] = a[node, groups]
        higher[block] = h[node, groups] > h[len(x) // 2] + CLOSE

    find(slice(0, 1))  # compiled before there are threads
    density.map(find, rows.blocks(index, ROWS_PER_CALL // len(x)))
    if not higher.any():
        return modes, factors
    modes, factors = modes.copy(), factors.copy()
    modes[higher], factors[higher] = modes_and_factors(
        density, point, index[higher], best[higher], rows
    )
    return modes, factors


def _newton(derivatives: Callable, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, moving = np.array(start, dtype="float64"), np.arange(len(start))
    h, gradient, hessian = derivatives(moving, a)
    damping = np.full(len(a), DAMPING)
    for _ in range(MAX_STEPS):
        step = _solved(_positive(-hessian[moving], damping[moving]), gradient[moving])
        rise = np.sum(step * gradient[moving], axis=1)
        left = (rise > CLOSE) & (damping[moving] < MOST_DAMPING)
        moving, step = moving[left], step[left]
        if not len(moving):
            break
        new = derivatives(moving, a[moving] + step)
        finite = np.isfinite(new[0]) & np.isfinite(new[1]).all(axis=1)
        better = finite & ((new[0] >= h[moving]) | ~np.isfinite(h[moving]))
        which = moving[better]
        a[which] += step[better]
        h[which], gradient[which], hessian[which] = (part[better] for part in new)
        damping[moving] *= np.where(better, 0.1, 10.0)
    curvature = _positive(-hessian, 0.0)
    if curvature.shape[1] == 1:
        return a, 1 / np.sqrt(curvature)
    return a, np.linalg.inv(np.linalg.cholesky(curvature)).swapaxes(1, 2)


# Matrices of one element are treated as numbers: calling LAPACK takes longer than dividing them.


def _solved(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    if matrices.shape[1] == 1:
        return vectors / matrices[..., 0]
    return np.linalg.solve(matrices, vectors[..., None])[..., 0]


def _positive(matrices: np.ndarray, damping: np.ndarray | float) -> np.ndarray:
    """Make symmetric matrices positive by their absolute eigenvalues, and damp their diagonals."""
    matrices = np.nan_to_num(matrices, nan=0.0, posinf=1e12, neginf=-1e12)
    if matrices.shape[1] == 1:
        damped = 1 + np.reshape(damping, (-1, 1, 1))
        return np.maximum(np.abs(matrices), 1e-12) * damped
    values, vectors = np.linalg.eigh((matrices + matrices.swapaxes(1, 2)) / 2)
    values = np.abs(values)
    values = np.maximum(values, 1e-8 * (1e-4 + values[:, -1:]))
    values = values * (1 + np.reshape(damping, (-1, 1)))
    return (vectors * values[:, None, :]) @ vectors.swapaxes(1, 2)
