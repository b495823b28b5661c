"""A normal approximation that is far too wide for the posterior is made narrower."""

from functools import partial

import numpy as np
import pytest
from scipy.special import expit

from pymc_sgmcmc.adaptation.normal_approximation import (
    is_far_too_wide,
    narrowed,
    spread_with_density,
)
from pymc_sgmcmc.adaptation.objective import Evaluated


class Function:
    """-log posterior given by callables of theta; `outside` tells where it has no density."""

    passes = 0.0

    def __init__(self, size, value, gradient, hessian, outside=lambda theta: False):
        self.size = size
        self._value, self._gradient, self.hessian = value, gradient, hessian
        self._outside = outside

    def at(self, theta):
        value = np.inf if self._outside(theta) else float(self._value(theta))
        gradient = np.asarray(self._gradient(theta), dtype=float)
        return Evaluated(value, gradient, gradient, partial(self.hessian, theta))


PRECISION = np.array([[2.0, 1.2, 0], [1.2, 1.5, 0], [0, 0, 30.0]])
NORMAL = Function(
    3,
    lambda theta: theta @ PRECISION @ theta / 2,
    lambda theta: PRECISION @ theta,
    lambda theta: PRECISION,
)
ROWS, PRIOR_SD = 1000, 100.0
# The logit of a level without events: nothing but the prior holds it below. The curvature is that
# of rows' gradients, their sum of squares, as the warm-up has it.
NO_EVENTS = Function(
    1,
    lambda theta: ROWS * np.logaddexp(0, theta[0]) + theta[0] ** 2 / (2 * PRIOR_SD**2),
    lambda theta: ROWS * expit(theta) + theta / PRIOR_SD**2,
    lambda theta: np.array([[ROWS * expit(theta[0]) ** 2 + PRIOR_SD**-2]]),
)
HALF_LINE = Function(  # exponential, of mean 1, with a slight curvature
    1,
    lambda theta: theta[0] + theta[0] ** 2 / 2e4,
    lambda theta: 1 + theta / 1e4,
    lambda theta: np.array([[1e-4]]),
    outside=lambda theta: theta[0] < 0,
)


def too_wide(function, mean, matrix, seed):
    return is_far_too_wide(function, mean, matrix, np.random.default_rng(seed))


@pytest.mark.parametrize("seed", range(5))
def test_of_a_normal_posterior_is_left_alone(seed):
    mean = np.zeros(3)
    assert not too_wide(NORMAL, mean, PRECISION, seed)
    # a rise 25 times that of a normal posterior
    assert too_wide(NORMAL, mean, PRECISION / 25, seed)
    found, matrix = narrowed(NORMAL, mean, PRECISION, np.random.default_rng(seed))
    np.testing.assert_allclose(found, 0, atol=1e-12)
    np.testing.assert_allclose(matrix, PRECISION, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_of_a_level_without_events(seed):
    """Against the moments by quadrature: all but the prior's curvature is on one side."""
    grid = np.linspace(-600, 30, 200_001)
    weight = np.exp(-(ROWS * np.logaddexp(0, grid) + grid**2 / (2 * PRIOR_SD**2)))
    weight /= weight.sum()
    mean = weight @ grid
    sd = np.sqrt(weight @ (grid - mean) ** 2)
    start, matrix = np.array([-20.0]), np.array([[PRIOR_SD**-2]])
    assert too_wide(NO_EVENTS, start, matrix, seed)
    found, matrix = narrowed(NO_EVENTS, start, matrix, np.random.default_rng(seed))
    assert 0.5 * sd < matrix[0, 0] ** -0.5 < 1.1 * sd  # 1.7 at the start
    assert abs(found[0] - mean) < 0.5 * sd
    z = np.random.default_rng(99).standard_normal((4000, 1))

    def rise(at, width):
        return np.mean([NO_EVENTS.at(at + width * e).value for e in z]) - NO_EVENTS.at(at).value

    assert rise(found, matrix[0, 0] ** -0.5) < rise(start, PRIOR_SD) / 200


@pytest.mark.parametrize("seed", range(5))
def test_points_without_a_density_are_left_out(seed):
    start, matrix = np.array([1.0]), np.array([[1e-4]])
    assert too_wide(HALF_LINE, start, matrix, seed)
    found, matrix = narrowed(HALF_LINE, start, matrix, np.random.default_rng(seed))
    assert matrix[0, 0] ** -0.5 < 20  # 100 at the start
    assert np.isfinite(HALF_LINE.at(found).value)


@pytest.mark.parametrize("seed", range(5))
def test_points_with_about_the_density_of_their_centre(seed):
    """Effects under a scale that may be small: most of a wide normal approximation is outside."""
    d = 40

    def value(theta):  # theta[0] is the logarithm of the others' scale
        return np.sum(theta[1:] ** 2) * np.exp(-2 * theta[0]) / 2 + (d - 1) * theta[0]

    funnel = Function(d, value, lambda theta: theta, lambda theta: np.eye(d))
    centre = np.zeros(d)
    z = np.random.default_rng(seed).standard_normal((4, d))
    spread, seen = spread_with_density(funnel, centre, 10 * z, highest=0.0)
    assert spread < 0.5
    assert max(local.value for local in seen) < 4 * d / 2 + 10
    # Of a normal posterior it rises by d / 2, with a standard deviation of sqrt(d / 2).
    normal = Function(
        d, lambda theta: theta @ theta / 2, lambda theta: theta, lambda theta: np.eye(d)
    )
    assert spread_with_density(normal, centre, z, highest=0.0)[0] == 1
