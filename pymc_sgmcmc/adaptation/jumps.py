"""Parameters that the likelihood follows by jumps, or whose edges it has: no gradient knows."""

from collections.abc import Sequence

import numpy as np
from pymc.exceptions import SamplingError

from pymc_sgmcmc.adaptation.objective import Objective

TRIES = 2
"""Points away from the start at which the likelihood is compared."""
SAME = 1e-9
"""Relative change of a log likelihood that is rounding."""
MOST_NAMED = 5
STEEP = 3.0
"""Standard deviations from the mode, by gradient and curvature, from which on an end of the search
is no mode."""
BISECTIONS = 30
GAINS = (0.5, 5.0)
"""Gains of log density by which an edge is looked for."""


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
    raise SamplingError(
        f"The likelihood depends on {_listed(objective, found)} by jumps only (a comparison, "
        "switch, floor or round of it): its gradient is zero everywhere, so no sampler that uses "
        "gradients can draw it. Make the change smooth, for example "
        "pm.math.sigmoid((t - c) / width) for t > c."
    )


def refuse_edges(objective: Objective, start: np.ndarray, end: np.ndarray) -> None:
    """Raise an error for parameters that the data push against an edge of their support.

    The upper bound of a uniform likelihood is one: the density grows up to the largest observation
    and is 0 beyond. Its gradient does not vanish at the edge, and does not see it.

    Parameters
    ----------
    objective : Objective
        Of all rows.
    start, end : array, shape (d,)
        Between which points the warm-up's search for the mode went. The end may be beyond an edge
        that is set by rows the search has not seen.

    Raises
    ------
    pymc.exceptions.SamplingError
        Naming the parameters.
    """
    theta, local = end, objective.at(end)
    if not np.isfinite(local.value):
        if not np.isfinite(objective.at(start).value):
            return
        theta = _last_inside(objective, start, end)
        local = objective.at(theta)
    slope = np.abs(local.gradient)
    curvature = np.abs(np.diag(objective.gradients.prior_hessian(theta)))
    if (slope > STEEP * np.sqrt(curvature)).any():
        curvature = np.maximum(curvature, np.diag(local.curvature()))
    steep = np.flatnonzero(slope > STEEP * np.sqrt(curvature))

    def has_edge(k: int) -> bool:
        for gain in GAINS:  # of log density, if the gradient told all
            there = theta.copy()
            there[k] -= gain / local.gradient[k]
            if not np.isfinite(objective.at(there).value):
                return True
        return False

    found = [k for k in steep[:MOST_NAMED] if has_edge(k)]
    if found:
        raise SamplingError(
            f"The likelihood is 0 beyond an edge that {_listed(objective, found)} sets, and "
            "largest next to it, as where data are uniform up to an unknown bound: gradients do "
            "not see the edge. Use NUTS for this model (pm.sample without step=), which rejects "
            "moves across it."
        )


def _last_inside(objective: Objective, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The last point with a density on the way from one that has it to one that has not."""
    inside, outside = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (inside + outside) / 2
        if np.isfinite(objective.at(start + middle * (end - start)).value):
            inside = middle
        else:
            outside = middle
    return start + inside * (end - start)


def _listed(objective: Objective, elements: Sequence[np.integer]) -> str:
    names = ", ".join(f"'{objective.gradients.names[k]}'" for k in elements[:MOST_NAMED])
    more = len(elements) - MOST_NAMED
    return f"{names} and {more} more" if more > 0 else names
