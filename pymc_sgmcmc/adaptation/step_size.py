r"""Step size and updates per draw, for a target whose covariance is the identity.

For z with a Gaussian target of covariance I and gradients whose noise has the variances nu, the
relative error of a standard deviation is about

========================  ==============================  ==============================
sampler                   of the integrator               of the minibatches' noise
========================  ==============================  ==============================
SGLD                      e / 8                           e nu / 8
fixed friction D          below .05 for h <= .25          h nu / (4 D)
thermostat                below .05 for h <= .25          absorbed: below .05 where h nu / (2 D)
                                                          <= .2 and h sqrt(nu) <= .7
========================  ==============================  ==============================

The rows for SGLD and fixed friction follow from the stationary covariance of the linear recursions;
those for the thermostat were measured.
"""

from math import ceil, sqrt
from typing import NamedTuple

import numpy as np

from pymc_sgmcmc.algorithm import Algorithm

LARGEST = 0.25
"""Largest step size h of a momentum sampler, without noise."""
NOISE_TO_FRICTION = 0.2
"""Largest h nu / (2 D) at the reference bias."""
KICK = 0.7
"""Largest h sqrt(nu) at the reference bias."""
REFERENCE_BIAS = 0.05


class Pace(NamedTuple):
    """The speed of a chain: its step size and relaxation."""

    step_size: float
    relaxation: float
    """Number of updates in which a chain forgets its position, in directions of average noise."""

    def slower(self, factor: float) -> "Pace":
        """Return the pace with a smaller step size."""
        return Pace(self.step_size * factor, self.relaxation / factor)

    @property
    def thin(self) -> int:
        """Number of updates per draw with which draws are nearly independent."""
        return max(1, ceil(self.relaxation))


def pace(
    algorithm: Algorithm,
    noise: np.ndarray,
    target_bias: float,
    largest: float = 1.0,
    smallest: float = 1.0,
    in_tails: float = 0.0,
) -> Pace:
    """Choose the step size in z for noise of these variances along its axes.

    ``target_bias`` is the tolerated relative error of a standard deviation; ``largest`` and
    ``smallest`` are eigenvalues of the curvature in z; ``in_tails`` is the largest noise where that
    is far larger than on average.
    """
    most_noise, mean = max(float(noise.max()), in_tails, 1e-12), float(noise.mean())
    if algorithm.dynamics == "langevin":
        h = min(1 / largest, 8 * target_bias / (largest + most_noise))
        return Pace(h, 2 / (h * smallest))
    diffusion = algorithm.injected_noise or 1.0
    relative = target_bias / REFERENCE_BIAS
    h = LARGEST * sqrt(relative / largest)
    if algorithm.dynamics == "thermostat":
        h = min(
            h,
            2 * diffusion * NOISE_TO_FRICTION * relative / most_noise,
            KICK * sqrt(relative / most_noise),
        )
        return Pace(h, (diffusion + h * mean / 2) / (h * smallest))
    h = min(h, 2 * diffusion * target_bias / most_noise)
    return Pace(h, diffusion / (h * smallest))


def expected_friction(algorithm: Algorithm, step_size: float, noise: np.ndarray) -> np.ndarray:
    """Return D + h nu / 2, at which a thermostat settles, or the friction if it is fixed."""
    return algorithm.injected_noise + step_size * noise / 2


def slowed(algorithm: Algorithm, noise: np.ndarray, target_bias: float) -> np.ndarray:
    """Return factors of L that let noisy directions bear the step size of noiseless ones.

    With the factor f a direction has the noise f^2 nu, as with a step size f h and a friction D /
    f.
    """
    if algorithm.dynamics == "langevin":
        return 1 / np.sqrt(1 + noise)
    diffusion = algorithm.injected_noise or 1.0
    relative = target_bias / REFERENCE_BIAS
    h = LARGEST * sqrt(relative)
    if algorithm.dynamics == "thermostat":
        most = min(2 * diffusion * NOISE_TO_FRICTION * relative / h, KICK**2 * relative / h**2)
    else:
        most = 2 * diffusion * target_bias / h
    return np.sqrt(np.minimum(1.0, most / np.maximum(noise, 1e-12)))
