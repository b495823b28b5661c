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

The lines of SGLD and of fixed friction follow from the stationary covariance of the linear
recursions; those of the thermostat were measured.
"""

from math import ceil, sqrt
from typing import NamedTuple

import numpy as np

from pymc_sgmcmc.algorithm import Algorithm

LARGEST = 0.25
"""Step size of a momentum sampler without noise,"""
NOISE_TO_FRICTION = 0.2
"""... h nu / (2 D), and"""
KICK = 0.7
"""... h sqrt(nu), at the target bias of .05."""
REFERENCE_BIAS = 0.05


class Pace(NamedTuple):
    """How fast a chain goes."""

    step_size: float
    relaxation: float
    """Updates in which a chain forgets where it was, in directions of average noise."""

    def slower(self, factor: float) -> "Pace":
        """Return the pace with a smaller step size."""
        return Pace(self.step_size * factor, self.relaxation / factor)

    @property
    def thin(self) -> int:
        """Updates per draw, so that draws are nearly independent."""
        return max(1, ceil(self.relaxation))


def pace(
    algorithm: Algorithm,
    noise: np.ndarray,
    target_bias: float,
    largest: float = 1.0,
    smallest: float = 1.0,
) -> Pace:
    """Choose the step size in z.

    Parameters
    ----------
    algorithm : Algorithm
        SGLD's or a momentum sampler's.
    noise : array, shape (d,)
        nu, the variances of the gradient's noise along the axes of z.
    target_bias : float
        Tolerated relative error of a standard deviation.
    largest, smallest : float, default 1
        Eigenvalues of the curvature in z.
    """
    most_noise, mean = max(float(noise.max()), 1e-12), float(noise.mean())
    if algorithm.dynamics == "langevin":
        h = min(1 / largest, 8 * target_bias / (largest + most_noise))
        return Pace(h, 2 / (h * smallest))
    diffusion = injected_noise(algorithm) or 1.0
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


def injected_noise(algorithm: Algorithm) -> float:
    """D of a momentum sampler: the injected noise has variance 2 D h per update."""
    return getattr(algorithm, "diffusion", getattr(algorithm, "friction", 0.0))
