"""Parameters that the likelihood follows by jumps, of which no gradient knows."""

import numpy as np
from pymc.exceptions import SamplingError

from pymc_sgmcmc.adaptation.objective import Objective

TRIES = 2
"""Points away from the start at which the likelihood is compared."""
SAME = 1e-9
"""Relative change of a log likelihood that is rounding."""
MOST_NAMED = 5


def refuse_jumps(objective: Objective, theta: np.ndarray, rng: np.random.Generator) -> None:
    """Raise an error for parameters that change the likelihood although its gradient is zero.

    A sampler that moves by gradients would draw them from their prior, and everything else given
    those draws; identities of gradients cannot tell.

    Parameters
    ----------
    objective : Objective
        Of all rows, or of some.
    theta : array, shape (d,)
    rng : numpy.random.Generator

    Raises
    ------
    pymc.exceptions.SamplingError
        Naming the parameters.
    """
    gradients = objective.gradients

    def likelihood(at: np.ndarray) -> tuple[float, np.ndarray]:
        local = objective.at(at)
        return -local.value - gradients.log_prior(at), local.likelihood_gradient

    value, gradient = likelihood(theta)
    still = gradient == 0
    if not still.any() or not np.isfinite(value):
        return
    curvature = np.abs(np.diag(gradients.prior_hessian(theta)))
    sd = 1 / np.sqrt(np.where(curvature > 0, curvature, 1.0))

    def moves(elements: np.ndarray) -> bool:
        for _ in range(TRIES):
            shifted = theta + elements * sd * rng.standard_normal(gradients.size)
            there, gradient = likelihood(shifted)
            if gradient[elements].any():  # it was zero by chance
                return False
            if np.isfinite(there) and abs(there - value) > SAME * abs(value):
                return True
        return False

    if not moves(still):
        return
    each = np.eye(gradients.size, dtype=bool)[still]
    found = [k for k, one in zip(np.flatnonzero(still), each, strict=True) if moves(one)]
    names = ", ".join(f"'{gradients.names[k]}'" for k in found[:MOST_NAMED])
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    raise SamplingError(
        f"The likelihood depends on {names}{more} by jumps only (a comparison, switch, floor or "
        "round of it): its gradient is zero everywhere, so no sampler that uses gradients can draw "
        "it. Make the change smooth, for example pm.math.sigmoid((t - c) / width) for t > c."
    )
