"""Converters: the papers' own recursions and ours give the same trajectory."""

from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

from pymc_sgmcmc.samplers.conversions import FromLearningRate, FromMomentumDecay
from pymc_sgmcmc.samplers.msgnht import MultivariateThermostatEuler
from pymc_sgmcmc.samplers.sghmc import HamiltonianEuler
from pymc_sgmcmc.samplers.sgnht import NoseHooverThermostat
from pymc_sgmcmc.schedules import as_schedule

N_UPDATES = 20
PRECISION = np.array([[2.0, 0.3], [0.3, 0.5]])
START = np.array([1.0, -2.0])
NOISE = np.random.default_rng(0).normal(size=(N_UPDATES, 2))
FIRST_P = np.array([0.4, -0.1])


def gradient(theta):
    """Of a quadratic log posterior."""
    return -PRECISION @ theta


def converter(mixin, algorithm_class):
    """A step that binds no model: what the converters make."""

    class Step(mixin):
        def __init__(self, vars, *, step_size, **hyperparameters):
            self.schedule = as_schedule(step_size)
            self.algorithm = algorithm_class(**hyperparameters)

    return Step


def our_trajectory(step, p, xi=None):
    """Theta and p/xi after each update of the symbolic algorithm, with the given noise."""
    h = float(step.schedule(0))
    theta_in, p_in, z = pt.dvectors("theta", "p", "z")
    xi_in = None if xi is None else pt.as_tensor(xi).type("xi")
    inputs = {"p": [p_in]} | ({} if xi is None else {"xi": [xi_in]})
    theta_out, out = step.algorithm.update(
        [theta_in],
        inputs,
        lambda theta: SimpleNamespace(total=[-pt.dot(PRECISION, theta[0])]),
        pt.constant(h, dtype="float64"),
        lambda: [z],
    )
    state_in = [theta_in, *(s for [s] in inputs.values())]
    state_out = [*theta_out, *(s for [s] in out.values())]
    mode = Mode(linker="py", optimizer="fast_compile")
    update = pytensor.function([*state_in, z], state_out, mode=mode)
    state = [START, p] + ([] if xi is None else [xi])
    trajectory = []
    for z_now in NOISE:
        state = update(*state, z_now)
        trajectory.append(state)
    return [np.array(values) for values in zip(*trajectory, strict=True)]


def test_sgnht_algorithm_2():
    """SGNHT paper, appendix F, in u = p h, eta = h^2, alpha = xi h and a = A h."""
    eta, a = 0.01, 0.3
    h = 0.1
    theta, u, alpha = START, FIRST_P * h, a
    expected = []
    for z in NOISE:
        u = u - alpha * u + eta * gradient(theta) + np.sqrt(2 * a * eta) * z
        theta = theta + u
        alpha = alpha + (u @ u / 2 - eta)
        expected.append((theta, u, alpha))
    expected_theta, u, alpha = map(np.array, zip(*expected, strict=True))
    step = converter(FromLearningRate, NoseHooverThermostat).from_learning_rate(eta=eta, a=a)
    # the paper's alpha starts at a, and init must give the xi that goes with it
    first_xi = step.algorithm.init([START], np.random.default_rng(0))["xi"]
    np.testing.assert_allclose(first_xi[0] * h, a)
    theta, p, xi = our_trajectory(step, FIRST_P, first_xi[0])
    np.testing.assert_allclose(theta, expected_theta)
    np.testing.assert_allclose(p * h, u)
    np.testing.assert_allclose(xi * h, alpha)


def test_multivariate_thermostat_in_learning_rate():
    """The same form with one alpha per element, theta first (high-order paper 2.2)."""
    eta, a = 0.04, 0.1
    h = 0.2
    theta, u, alpha = START, FIRST_P * h, np.full(2, a)
    expected = []
    for z in NOISE:
        theta = theta + u
        u = u - alpha * u + eta * gradient(theta) + np.sqrt(2 * a * eta) * z
        alpha = alpha + (u * u - eta)
        expected.append((theta, u, alpha))
    expected_theta, u, alpha = map(np.array, zip(*expected, strict=True))
    step = converter(FromLearningRate, MultivariateThermostatEuler).from_learning_rate(eta=eta, a=a)
    theta, p, xi = our_trajectory(step, FIRST_P, np.full(2, a / h))
    np.testing.assert_allclose(theta, expected_theta)
    np.testing.assert_allclose(p * h, u)
    np.testing.assert_allclose(xi * h, alpha)


@pytest.mark.parametrize("per_datum", [None, 50])
def test_sghmc_momentum_decay(per_datum):
    """Doubly stochastic paper, eq 4; per datum the gradient, and with it the noise, lose N.

    The paper moves gamma before theta, SGHMC_E after it: the same recursion read from half an
    update later, so ours begins with the paper's first gamma.
    """
    learning_rate, decay = (0.01, 0.05) if per_datum is None else (0.5, 0.05)
    n = per_datum or 1
    h = 0.1
    theta, gamma = START, FIRST_P * h
    expected_theta, expected_p = [], []
    for z in np.vstack([np.zeros(2), NOISE]):
        noise = np.sqrt(2 * decay * learning_rate / n) * z
        gamma = (1 - decay) * gamma + learning_rate * (gradient(theta) / n) + noise
        theta = theta + gamma
        expected_theta.append(theta)
        expected_p.append(gamma / h)
    step = converter(FromMomentumDecay, HamiltonianEuler).from_momentum_decay(
        learning_rate=learning_rate, momentum_decay=decay, per_datum=per_datum
    )
    theta, p = our_trajectory(step, expected_p[0])
    np.testing.assert_allclose(theta, expected_theta[:-1])
    np.testing.assert_allclose(p, expected_p[1:])


@pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf])
def test_learning_rates_are_positive(value):
    with pytest.raises(
        ValueError, match=rf"eta must be a positive finite number, got {value}\. .*square"
    ):
        converter(FromLearningRate, NoseHooverThermostat).from_learning_rate(eta=value, a=0.1)
    with pytest.raises(
        ValueError, match=rf"learning_rate must be a positive .*got {value}\..*square"
    ):
        converter(FromMomentumDecay, HamiltonianEuler).from_momentum_decay(
            learning_rate=value, momentum_decay=0.1
        )


def test_injected_noise_may_be_zero_but_not_negative():
    thermostat = converter(FromLearningRate, NoseHooverThermostat)
    assert thermostat.from_learning_rate(eta=0.01, a=0).algorithm.diffusion == 0
    with pytest.raises(ValueError, match=r"a must be a finite number >= 0, got -0\.1\. .*0\.01"):
        thermostat.from_learning_rate(eta=0.01, a=-0.1)
    with pytest.raises(ValueError, match=r"momentum_decay must be .* >= 0, got -0\.1\. .*0\.01"):
        converter(FromMomentumDecay, HamiltonianEuler).from_momentum_decay(
            learning_rate=0.1, momentum_decay=-0.1
        )


@pytest.mark.parametrize("per_datum", [0, -5])
def test_per_datum_is_a_number_of_rows(per_datum):
    with pytest.raises(
        ValueError, match=rf"per_datum must be a positive .*, got {per_datum}\. .*number of rows"
    ):
        converter(FromMomentumDecay, HamiltonianEuler).from_momentum_decay(
            learning_rate=0.1, momentum_decay=0.1, per_datum=per_datum
        )
