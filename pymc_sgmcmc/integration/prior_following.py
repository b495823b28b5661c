r"""Points and curvatures of groups with normal effects, which follow the effects' prior.

The points are found once, at values of the shared parameters in the middle of the posterior: mean
(or mode) a* and covariance of each group's k effects. The likelihood's part of gradient and
curvature is nearly the same for other values, but the prior's is not: where the scale that effects
share is far below the one at which points were found, constant points would be too far apart for
the narrow density, and the sum would grow without bound around the closest. So the prior's part is
evaluated again: with precision P of a group's normal approximation,

    P = (rows' part) + (prior's part now),   a = a* + P^{-1} (rows' score + prior's gradient at a*)

With a prior that is not normal such a step may lead anywhere, so the points stay.
"""

from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

OF_PRIOR = 0.1
"""Smallest curvature, relative to the prior's, if the rows' density of one effect is not
concave."""


class Followed(NamedTuple):
    """The centres of groups' points, and the factors that scale them."""

    modes: Any
    """a, shape (groups, k)."""
    factors: Any
    """L, shape (groups, k, k), with L L' = P^{-1}."""
    log_scales: Any
    """log |L|, shape (groups,)."""


def part_of_rows(factors: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    """Return the rows' part of the precision (L L')^{-1}, shape (groups, k, k).

    For one effect it may be negative; for several effects it is made positive.
    """
    if factors.shape[1] == 1:
        return factors**-2.0 + hessian
    inverse = np.linalg.inv(factors)
    values, vectors = np.linalg.eigh(inverse.swapaxes(1, 2) @ inverse + hessian)
    return (vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.swapaxes(1, 2)


def follow_prior(
    modes: Any, scores: Any, of_rows: Any, gradient: Any, hessian: Any, xp: Any
) -> Followed:
    """Move the points, and find L there.

    ``modes``, shape (groups, k), are a* at other values of the shared parameters; ``scores``, shape
    (groups, k), and ``of_rows``, shape (groups, k, k), are the gradient of the rows' log likelihood
    there and its part of the precision. ``gradient`` and ``hessian``, of the same shapes, are those
    of the log prior at ``modes`` for the present values. ``xp`` is the module of the arrays,
    `numpy` or `pytensor.tensor`.
    """
    k = (modes.type if xp is pt else modes).shape[1]
    if k == 1:
        curvature = xp.maximum(of_rows - hessian, -OF_PRIOR * hessian)[:, :, 0]
        moved = modes + (scores + gradient) / curvature
        return Followed(moved, (1 / xp.sqrt(curvature))[:, :, None], -xp.log(curvature[:, 0]) / 2)
    precision = of_rows - hessian
    if xp is np:
        inverse_root = np.linalg.inv(np.linalg.cholesky(precision))
    else:
        root = pt.linalg.cholesky(precision, lower=True)
        inverse_root = pt.linalg.solve_triangular(root, pt.eye(k, dtype=root.dtype), lower=True)
    step = xp.sum(inverse_root * (scores + gradient)[:, None, :], axis=2)  # L' times the gradient
    moved = modes + xp.sum(inverse_root * step[:, :, None], axis=1)
    logs = sum(xp.log(inverse_root[:, i, i]) for i in range(k))
    return Followed(moved, inverse_root.swapaxes(1, 2), logs)
