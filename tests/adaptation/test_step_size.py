"""The automatic step size against the theory of linear recursions.

For a Gaussian target of variance 1 and gradients with noise of variance nu, an update of SGLD and
of SGHMC_S is a linear map plus Gaussian noise, x' = M x + e. Its stationary covariance S solves
S = M S M' + cov(e); the integrated autocorrelation time of z follows from the powers of M. With a
thermostat the same holds for a friction fixed at its mean, D + h nu / 2.
"""

import numpy as np
import pytest
from scipy.linalg import expm, solve_discrete_lyapunov

from pymc_sgmcmc.adaptation.step_size import expected_friction, pace
from pymc_sgmcmc.samplers.msgnht import MultivariateThermostatSymmetric
from pymc_sgmcmc.samplers.sghmc import HamiltonianSymmetric
from pymc_sgmcmc.samplers.sgld import Langevin

NOISE = [0.0, 0.1, 0.5, 1.0, 3.0, 30.0]


def langevin(e, nu):
    return np.array([[1 - e / 2]]), np.array([[e + e**2 * nu / 4]])


def momentum(h, nu, injected, friction):
    """ABOBA with a fixed friction: z, p."""
    drift = np.array([[1, h / 2], [0, 1]])
    decay = np.diag([1, np.exp(-h / 2 * friction)])
    kick = np.array([[1, 0], [-h, 1]])
    after = drift @ decay
    noise = after @ np.diag([0, 2 * injected * h + h**2 * nu]) @ after.T
    return after @ kick @ decay @ drift, noise


def sd_and_time(recursion, noise):
    """Stationary sd of z, and the sum of its autocorrelations over all lags."""
    covariance = solve_discrete_lyapunov(recursion, noise)
    n = len(recursion)
    both = np.linalg.solve(np.eye(n) - recursion, np.eye(n) + recursion) @ covariance
    return np.sqrt(covariance[0, 0]), both[0, 0] / covariance[0, 0]


def test_these_recursions_are_those_of_the_paper():
    # For small h the exact solution of d z = p dt, d p = (-z - D p) dt + sqrt(2 D) d W.
    h, friction = 1e-3, 1.3
    recursion, _ = momentum(h, 0.0, friction, friction)
    exact = expm(h * np.array([[0, 1], [-1, -friction]]))
    np.testing.assert_allclose(recursion, exact, atol=h**2)
    assert sd_and_time(*momentum(h, 0.0, friction, friction))[0] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("target_bias", [0.05, 0.01])
@pytest.mark.parametrize("nu", NOISE)
def test_sgld_has_the_bias_that_was_asked_for(nu, target_bias):
    chosen = pace(Langevin(), np.array([nu]), target_bias)
    sd, time = sd_and_time(*langevin(chosen.step_size, nu))
    # e / 8 and e nu / 8 are the first order of the errors.
    assert abs(sd - 1) < 1.25 * target_bias
    assert abs(sd - 1) > 0.5 * target_bias or nu == 0.0 or chosen.step_size == 1
    # After a relaxation exp(-1) of the autocorrelation is left: the integrated time is two of them.
    assert time == pytest.approx(2 * chosen.relaxation, rel=0.1)


@pytest.mark.parametrize("target_bias", [0.05, 0.01])
@pytest.mark.parametrize("nu", NOISE)
def test_held_friction_has_the_bias_that_was_asked_for(nu, target_bias):
    chosen = pace(HamiltonianSymmetric(friction=1.0), np.array([nu]), target_bias)
    sd, _ = sd_and_time(*momentum(chosen.step_size, nu, 1.0, 1.0))
    assert abs(sd - 1) < 1.1 * target_bias


@pytest.mark.parametrize("target_bias", [0.05, 0.01])
@pytest.mark.parametrize("nu", NOISE)
def test_a_thermostat_at_its_mean_has_the_bias_that_was_asked_for(nu, target_bias):
    chosen = pace(MultivariateThermostatSymmetric(diffusion=1.0), np.array([nu]), target_bias)
    h = chosen.step_size
    sd, time = sd_and_time(*momentum(h, nu, 1.0, 1 + h * nu / 2))
    assert abs(sd - 1) < 1.1 * target_bias
    # Draws a relaxation apart: their integrated autocorrelation time is within a factor of 3 of 1.
    assert time < 3 * chosen.thin


@pytest.mark.parametrize("nu", NOISE)
def test_at_the_expected_friction_a_thermostat_stands_still(nu):
    """xi moves by h (p^2 - 1): at its mean the momentum has variance 1, to the order h^2."""
    h, algorithm = 1e-3, MultivariateThermostatSymmetric(diffusion=1.3)
    [friction] = expected_friction(algorithm, h, np.array([nu]))
    momentum_variance = solve_discrete_lyapunov(*momentum(h, nu, 1.3, friction))[1, 1]
    # without the noise's term the error would be h nu / (2 D): 4e-5 where nu is least, 0.1
    assert momentum_variance == pytest.approx(1, abs=5e-6)


def test_noise_that_is_ignored_would_be_seen():
    # What the rule protects from: at h = 0.25, noise of variance 30 widens a held friction by 2.
    assert sd_and_time(*momentum(0.25, 30.0, 1.0, 1.0))[0] > 1.9


def test_curvature_and_noise_slow_down():
    algorithm, quiet = MultivariateThermostatSymmetric(), np.zeros(3)
    still = pace(algorithm, quiet, 0.05)
    assert still.step_size == 0.25
    assert pace(algorithm, quiet, 0.05, largest=4.0).step_size == 0.125
    assert pace(algorithm, quiet, 0.05, smallest=0.1).relaxation == 10 * still.relaxation
    assert pace(algorithm, np.array([0.0, 0.0, 20.0]), 0.05).step_size < 0.03
    assert still.slower(0.5).thin == 2 * still.thin
