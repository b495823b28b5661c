r"""Points and curvatures of groups with more than three effects, which follow the joint density.

So many effects are integrated at points of a Sobol sequence, which give means and covariances of
the effects exactly but not fourth moments. Around constant points the error of each group's
integral grows with the square of the change of its curvature, and adds up over the groups: for any
number of groups it may be as large as a posterior standard deviation. So the points move with the
shared parameters, whatever effects these scale: by a Newton step from the old centre, with
curvatures from the gradient's change over `STEP` standard deviations. For normal densities it is
exact, and the integrals have no error.

All is in standard deviations x of the group where the points were found, a = a* + L x. With
gradient g and curvature H of log p(y, a | shared) in x, now and where the points were found (0)::

    P = I - H + H_0,   x* = P^{-1} (g - g_0)
"""

from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_sgmcmc.integration.prior_following import Followed, follow_prior

STEP = 0.5
"""Distance over which gradients are compared: small where densities are skew, large for rounding
errors."""


def places_of_gradients(modes: Any, factors: Any, xp: Any) -> Any:
    """Return the centre of each group and a step along each column of L, shape (1 + k, groups, k).

    ``xp`` is the module of the arrays, `numpy` or `pytensor.tensor`.
    """
    columns = factors.transpose(2, 0, 1)
    return xp.concatenate([modes[None], modes + STEP * columns])


def derivatives(factors: Any, gradients: Any, xp: Any) -> tuple[Any, Any]:
    """Return gradient and Hessian in standard deviations, from the gradients at these places."""
    in_sds = xp.sum(factors * gradients[..., None], axis=2)  # L' times each gradient
    hessian = ((in_sds[1:] - in_sds[0]) / STEP).transpose(1, 0, 2)
    return in_sds[0], (hessian + hessian.transpose(0, 2, 1)) / 2


def follow_density(
    held: Followed, scores: Any, curvatures: Any, gradient: Any, hessian: Any, xp: Any
) -> Followed:
    """Move the points, except those of groups without a positive P.

    ``held`` are the points where they were found, ``scores``, shape (groups, k), are -g_0, and
    ``curvatures``, shape (groups, k, k), are I + H_0.
    """
    zeros = xp.zeros_like(held.modes)
    if xp is np:
        gradient, hessian = _positive(scores, curvatures, gradient, hessian)
    x, roots, logs = follow_prior(zeros, scores, curvatures, gradient, hessian, xp)
    moved = Followed(
        held.modes + xp.sum(held.factors * x[:, None, :], axis=2),
        held.factors @ roots,
        held.log_scales + logs,
    )
    if xp is np:
        return moved
    # Without a Cholesky factor all of a group's numbers are NaN.
    stay = pt.isnan(logs + x.sum(axis=1))
    return Followed(
        *(
            pt.switch(stay.reshape((-1, *[1] * (old.ndim - 1))), old, new)
            for old, new in zip(held, moved, strict=True)
        )
    )


def _positive(
    scores: np.ndarray, curvatures: np.ndarray, gradient: np.ndarray, hessian: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return derivatives with which groups without a positive P stay."""
    gradient, hessian = gradient.copy(), hessian.copy()
    stay = ~np.isfinite(gradient).all(axis=1) | ~np.isfinite(hessian).all(axis=(1, 2))
    hessian[stay] = 0.0
    stay |= np.linalg.eigvalsh(curvatures - hessian)[:, 0] <= 0
    gradient[stay] = -scores[stay]
    hessian[stay] = curvatures[stay] - np.eye(hessian.shape[1])
    return gradient, hessian
