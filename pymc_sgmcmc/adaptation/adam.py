"""Adam: gradient ascent with gradients of batches."""

from collections.abc import Callable

import numpy as np

LEARNING_RATE = 0.01
"""Rate of the first update, in units of each element."""
SCATTER = 0.1
"""Standard deviation of Adam's starting points, in units of each element."""
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


def adam(
    slope: Callable[[np.ndarray], np.ndarray], theta: np.ndarray, unit: np.ndarray, n_updates: int
) -> np.ndarray:
    """Climb by noisy slopes, with a rate that falls to zero as a cosine (Kingma and Ba 2015).

    No element moves much farther than `reach`; ``unit``, shape (d,), is the scale of its steps.
    """
    mean, square = np.zeros_like(theta), np.zeros_like(theta)
    for t in range(1, n_updates + 1):
        rate = LEARNING_RATE * unit * (1 + np.cos(np.pi * t / n_updates)) / 2
        theta = theta + rate * direction(slope(theta), mean, square, t)
    return theta


def direction(g: np.ndarray, mean: np.ndarray, square: np.ndarray, t: int) -> np.ndarray:
    """Return the direction of update t >= 1 (Algorithm 1), and update the means in place."""
    mean[...] = BETA1 * mean + (1 - BETA1) * g
    square[...] = BETA2 * square + (1 - BETA2) * g * g
    return mean / (1 - BETA1**t) / (np.sqrt(square / (1 - BETA2**t)) + EPSILON)


def reach(unit: np.ndarray, n_updates: int) -> np.ndarray:
    """Return how far each element gets if all its slopes agree in sign, shape (d,)."""
    return LEARNING_RATE * unit * n_updates / 2


def prior_unit(curvature: np.ndarray) -> np.ndarray:
    """Return the prior's standard deviations, or 1 where they are larger.

    ``curvature`` is the diagonal of the Hessian of the log prior, shape (d,).
    """
    return np.where(-curvature > 1, np.maximum(-curvature, 1) ** -0.5, 1.0)
