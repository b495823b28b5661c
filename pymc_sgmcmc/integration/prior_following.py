"""Modes and curvatures of groups with one normal effect, which follow the effect's prior.

They are found once, at values of what is shared in the middle of the posterior. The likelihood's
part of gradient and curvature is nearly the same for others, but the prior's is not: where the
scale that effects share is far below that at which modes were found, constant points would be too
far apart for the narrow density, and the sum would grow without bound around the closest. So the
prior's part is evaluated anew, and the modes take one of Newton's steps. With a prior that is not
normal such a step may lead anywhere, and they stay.
"""

from typing import Any, NamedTuple

OF_PRIOR = 0.1
"""Least curvature, relative to that of the prior, where the rows' density is not concave."""


class Followed(NamedTuple):
    """Where and how densely groups are evaluated."""

    modes: Any
    """a*, shape (groups, k)."""
    factors: Any
    """L, shape (groups, k, k)."""
    log_scales: Any
    """log |L|, shape (groups,)."""


def follow_prior(
    modes: Any, scores: Any, of_rows: Any, gradient: Any, hessian: Any, xp: Any
) -> Followed:
    """Move the modes, and find L = (-h'')^{-1/2} there; -h'' is at least a share of the prior's.

    Parameters
    ----------
    modes : shape (groups, 1)
        a* at other values of what is shared.
    scores : shape (groups, 1)
        The gradient of the log likelihood of the groups' rows there,
    of_rows : shape (groups, 1, 1)
        ... and its part of -h''.
    gradient, hessian : shapes (groups, 1) and (groups, 1, 1)
        Of the log prior at ``modes``, for the present values of what is shared.
    xp : module
        `numpy` or `pytensor.tensor`, whose arrays these are.
    """
    curvature = xp.maximum(of_rows - hessian, -OF_PRIOR * hessian)[:, :, 0]
    moved = modes + (scores + gradient) / curvature
    return Followed(moved, (1 / xp.sqrt(curvature))[:, :, None], -xp.log(curvature[:, 0]) / 2)
