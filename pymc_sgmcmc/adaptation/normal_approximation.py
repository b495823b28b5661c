"""Is a normal approximation far wider than the posterior; if so, make it narrower.

The curvature at the mode says too little if the likelihood is nearly flat there and falls steeply
on one side, as for a level of a factor without events. A normal approximation that holds on average
over its own points satisfies, with U = -log posterior and E over N(mean, covariance),

    E[grad U] = 0,    E[Hessian of U] = covariance^-1

(Opper and Archambeau 2009, The variational Gaussian approximation revisited, eqs 8 and 9).
"""

from math import ceil

import numpy as np

from pymc_sgmcmc.adaptation.curvature import positive
from pymc_sgmcmc.adaptation.objective import Evaluated, Objective
from pymc_sgmcmc.gradients.metric import root_of_inverse

PAIRS, COORDINATES = 2, 16
"""Smallest number of antithetic pairs of points, and smallest number of all their coordinates."""
FAR_TOO_WIDE = 4.0
"""Rise of -log posterior over these points that is too large, relative to that of a normal
posterior, d / 2."""
SPREADS = 1.0, 0.5, 0.25, 0.0
"""Spreads of points around a centre, tried in turn until all points are in the posterior."""
LARGEST_RISE = 10.0
"""Largest rise of -log posterior over these points, in addition to `FAR_TOO_WIDE` d / 2."""
MAX_ROUNDS = 20
CALM = 3
"""Number of consecutive rounds that are not far too wide after which it is narrow enough."""
SHARE = 0.5
"""Weight of a round in the covariance, and share of its step taken, because the points are few."""


def _points(mean: np.ndarray, matrix: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    pairs = max(PAIRS, ceil(COORDINATES / len(mean)))
    z = rng.standard_normal((pairs, len(mean))) @ root_of_inverse(matrix).T
    return mean + np.concatenate([z, -z])


def is_far_too_wide(
    objective: Objective, mean: np.ndarray, matrix: np.ndarray, rng: np.random.Generator
) -> bool:
    """Whether -log posterior rises far more over N(mean, matrix^-1) than it should."""
    values = [objective.at(point).value for point in _points(mean, matrix, rng)]
    return _rises_too_much(values, objective.at(mean).value, len(mean))


def _rises_too_much(values: list[float], lowest: float, size: int) -> bool:
    return not np.mean(values) - lowest < FAR_TOO_WIDE * size / 2


def spread_with_density(
    objective: Objective, centre: np.ndarray, shifts: np.ndarray, highest: float
) -> tuple[float, list[Evaluated]]:
    """Return the largest spread whose points all have about the centre's density, and those points.

    ``shifts``, shape (points, d), are draws of a normal approximation around 0, and ``highest`` is
    -log posterior of the centre.
    """
    most = highest + FAR_TOO_WIDE * len(centre) / 2 + LARGEST_RISE
    for spread in SPREADS:
        seen = [objective.at(point) for point in centre + spread * shifts]
        if all(local.value < most for local in seen):
            break
    return spread, seen


def narrowed(
    objective: Objective, mean: np.ndarray, matrix: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Narrow a normal approximation until it is about as wide as the posterior.

    ``matrix`` is the positive inverse of its covariance; the mean must have a density.
    """
    calm = 0
    for _ in range(MAX_ROUNDS):
        seen = [objective.at(point) for point in _points(mean, matrix, rng)]
        values = [local.value for local in seen]
        if not _rises_too_much(values, objective.at(mean).value, len(mean)):
            calm += 1
            if calm == CALM:
                break
            continue
        calm = 0
        inside = [local for local in seen if np.isfinite(local.value)]
        if len(inside) < len(seen):  # the curvature does not show how far the density reaches
            matrix = matrix / max(SHARE, len(inside) / len(seen))
            continue
        curvature = np.mean([positive(local.curvature()) for local in seen], axis=0)
        root = root_of_inverse(positive(curvature))
        covariance = np.linalg.inv(matrix)
        covariance += SHARE * (root @ root.T - covariance)
        matrix = positive(np.linalg.inv(covariance))
        gradient = np.mean([local.gradient for local in seen], axis=0)
        mean = _stepped(objective, mean, -covariance @ gradient, matrix)
    return mean, matrix


def _stepped(
    objective: Objective, mean: np.ndarray, step: np.ndarray, matrix: np.ndarray
) -> np.ndarray:
    """Take part of a step, at most one standard deviation per element."""
    length = np.sqrt(step @ matrix @ step / len(step))
    there = mean + SHARE * step / max(1.0, length)
    return there if np.isfinite(objective.at(there).value) else mean
