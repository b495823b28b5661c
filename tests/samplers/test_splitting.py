"""Each letter by hand, and each update against the papers' equations written in NumPy."""

from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from scipy.linalg import solve_discrete_lyapunov

import pymc_sgmcmc as sgm
from pymc_sgmcmc.samplers.msgnht import MultivariateThermostatSymmetric
from pymc_sgmcmc.samplers.splitting import (
    EULER,
    LETTERS,
    MIDPOINT,
    MOMENTUM_FIRST,
    SYMMETRIC,
    Dynamics,
    Letter,
    Phase,
    drift_to_gradient,
    elementwise,
    fixed_friction,
    integrate,
    kick,
    shared,
)
from tests.samplers import UNCONSTRAINED, OneUpdate

PYTHON = Mode(linker="py", optimizer=None)


def after(
    splitting,
    *,
    h=0.1,
    theta=1.0,
    p=2.0,
    xi=3.0,
    diffusion=5.0,
    z=0.5,
    thermostat=elementwise,
    mass=1.0,
):
    """Theta, p and xi after a splitting, with the force -4 theta and the same noise z at each O."""
    phase = Phase([pt.constant([theta])], [pt.constant([p])], [pt.constant([xi])])
    dynamics = Dynamics(
        lambda theta: [-4.0 * theta[0]],
        lambda: [pt.constant([z])],
        diffusion,
        thermostat,
        mass=mass,
    )
    phase = integrate(splitting, phase, pt.constant(h), dynamics)
    out = pytensor.function([], [x[0][0] for x in phase], mode=PYTHON)()
    return [float(x) for x in out]


@pytest.mark.parametrize(
    ("letter", "expected"),
    [
        ("X", (1.2, 2.0, 3.0)),  # 1 + 0.1 * 2
        ("T", (1.0, 2.0, 3.3)),  # 3 + 0.1 * (2 * 2 - 1): p squared, not |p|
        ("A", (1.2, 2.0, 3.3)),
        ("B", (1.0, 1.4816364413634358, 3.0)),  # 2 exp(-0.3)
        ("b", (1.0, 1.4, 3.0)),  # 2 - 0.1 * 3 * 2
        ("i", (1.0, 1.5384615384615383, 3.0)),  # 2 / (1 + 0.1 * 3)
        ("O", (1.0, 2.1, 3.0)),  # 2 - 0.1 * 4 + sqrt(2 * 5 * 0.1) * 0.5
    ],
)
def test_letter(letter, expected):
    np.testing.assert_allclose(after(letter), expected, rtol=1e-14)


def test_heavy_thermostats_react_slowly():
    np.testing.assert_allclose(after("A", mass=30.0), (1.2, 2.0, 3 + 0.3 / 30), rtol=1e-14)


def test_letters_share_the_step():
    np.testing.assert_allclose(after("XX"), after("X"))
    np.testing.assert_allclose(after("BB"), after("B"))
    # two halves of O: each its own noise of variance D h
    np.testing.assert_allclose(after("OO")[1], 2 - 0.4 + 2 * np.sqrt(5 * 0.1) * 0.5)


def test_splittings_are_read_from_left_to_right():
    np.testing.assert_allclose(after("XT"), after("TX"))
    assert after("XO")[1] != after("OX")[1]
    np.testing.assert_allclose(after("XO")[1], 2 - 0.1 * 4 * 1.2 + 0.5)


def test_held_friction_stays():
    assert after("TAT", thermostat=fixed_friction)[2] == 3.0


def test_shared_thermostat_averages_over_all_elements():
    phase = Phase([], [pt.constant([1.0, 2.0]), pt.constant(3.0)], [pt.constant(1.0)])
    dynamics = Dynamics(lambda theta: [], lambda: [], 1.0, shared)
    (new,) = shared(phase, pt.constant(0.3), dynamics)
    value = pytensor.function([], new, mode=PYTHON)()
    np.testing.assert_allclose(value, 1 + 0.3 * ((1 + 4 + 9) / 3 - 1))


# ---- effects of groups ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("from_gradient", "too_large"),
    [("OiAAb", 1.0), ("OBAAB", np.cosh(0.4 * 1.5 / 2))],  # MIDPOINT, SYMMETRIC
)
def test_variance_where_the_gradient_is_taken(from_gradient, too_large):
    """Of N(0, 1/4) with a steady friction, over the kinetic temperature, which thermostats hold."""

    def update(theta, p, z):
        options = {"h": 0.4, "xi": 1.5, "diffusion": 1.5, "thermostat": fixed_friction}
        return np.array(after(from_gradient, theta=theta, p=p, z=z, **options)[:2])

    matrix = np.transpose([update(1.0, 0.0, 0.0), update(0.0, 1.0, 0.0)])
    noise = update(0.0, 0.0, 1.0)
    before_kick = solve_discrete_lyapunov(matrix, np.outer(noise, noise))
    friction = {"b": 1 - 0.2 * 1.5, "B": np.exp(-0.2 * 1.5)}[from_gradient[-1]]
    temperature = before_kick[1, 1] / friction**2
    np.testing.assert_allclose(4 * before_kick[0, 0] / temperature, too_large, rtol=1e-12)


def mean_with_skewed_noise(algorithm, h=0.25, n=2000, updates=2000):
    """Mean, in sds, of N(0, 10), with noise of variance 1.6: one in ten kicks is large."""
    rng = np.random.default_rng(1)
    theta, p, xi, z, kick = (pt.dvector(name) for name in ("theta", "p", "xi", "z", "kick"))
    new, state = algorithm.update(
        [theta],
        {"p": [p], "xi": [xi]},
        lambda theta: SimpleNamespace(total=[kick - theta[0] / 10]),
        pt.constant(h),
        lambda: [z],
    )
    update = pytensor.function([theta, p, xi, z, kick], [*new, *state["p"], *state["xi"]])
    now, total = [np.sqrt(10) * rng.normal(size=n), rng.normal(size=n), np.full(n, 1.2)], 0.0
    for k in range(updates):
        rare = (rng.random(n) < 0.1) - 0.1
        now = update(*now, rng.normal(size=n), np.sqrt(1.6 / 0.09) * rare)
        total += now[0].mean() * (k >= 200)
    return total / (updates - 200) / np.sqrt(10)


@pytest.mark.slow(4)
def test_skewed_noise_does_not_move_the_means_of_groups():
    """Errors of 0.04 sd, alike in all groups, add up in their scale.

    The standard error is that of 2000 elements, 1800 updates and a relaxation in 10 * 1.2 / h = 48
    of them: sqrt(2 * 48 / 1800 / 2000) = 0.005.
    """
    plain = MultivariateThermostatSymmetric()
    assert mean_with_skewed_noise(plain) < -6 * 0.005
    assert abs(mean_with_skewed_noise(plain.for_groups())) < 4 * 0.005


# ---- whole updates -------------------------------------------------------------------------

H = 0.13
SHAPES = [(2,), ()]


def log_likelihood(theta):
    """Neither Gaussian nor a sum over variables: order and place of the gradient matter."""
    w, b = theta
    return -pt.sum(w**4) / 4 - pt.sum(w * b) - b**2


def log_prior(theta):
    return -pt.sum(theta[0] ** 2) / 2


def likelihood_gradient(w, b):
    return -(w**3) - b, -w.sum() - 2 * b


N_DATA = 7


def gradient(theta):
    g_w, g_b = likelihood_gradient(*theta)
    return SimpleNamespace(
        total=[g_w - theta[0], g_b], mean_likelihood=[g_w / N_DATA, g_b / N_DATA]
    )


@pytest.mark.parametrize("sampler", UNCONSTRAINED, ids=lambda s: s.name)
def test_updates_are_the_papers(sampler):
    """Five updates of two variables of different shapes, from the same state and noise."""
    rng = np.random.default_rng(0)
    theta = [np.asarray(rng.normal(size=shape)) for shape in SHAPES]
    settings = sampler.noisy_settings
    algorithm = sampler.step.algorithm_class(**settings)
    update = OneUpdate(algorithm, theta, log_likelihood, log_prior, n_data=N_DATA)
    state = algorithm.init(theta, rng)
    expected, other = theta, SimpleNamespace(**{k: list(v) for k, v in state.items()})
    for _ in range(5):
        noise = [
            [np.asarray(rng.normal(size=shape)) for shape in SHAPES]
            for _ in range(sampler.n_gradients)
        ]
        theta, state = update(theta, state, H, *noise)
        expected = sampler.reference(expected, other, *noise, H, settings, gradient)
        for mine, theirs in zip(theta, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-11)
    for name, arrays in vars(other).items():
        for mine, theirs in zip(state[name], arrays, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-11)


def test_psgld_gamma_is_the_derivative_of_the_preconditioner():
    """Gamma = dG / dtheta, here by finite differences (V's past held, signs as the noise says)."""
    algorithm = sgm.PSGLD.algorithm_class(alpha=0.6, lam=0.3, gamma=True)
    plain = sgm.PSGLD.algorithm_class(alpha=0.6, lam=0.3)
    theta = [np.array([0.7]), np.asarray(-0.4)]
    state = {"V": [np.array([0.02]), np.asarray(0.05)]}
    zero = [np.zeros(1), np.zeros(())]
    with_gamma = OneUpdate(algorithm, theta, log_likelihood, log_prior, n_data=N_DATA)
    without = OneUpdate(plain, theta, log_likelihood, log_prior, n_data=N_DATA)
    estimates = []
    for signs in [(1, 1), (1, -1)]:  # opposite signs: the off-diagonal terms cancel
        z = [np.array([float(signs[0])]), np.asarray(float(signs[1]))]
        moved, _ = with_gamma(theta, state, H, z, zero)
        base, _ = without(theta, state, H, zero)
        estimates.append([(m - b) / (H / 2) for m, b in zip(moved, base, strict=True)])
    gamma = [np.mean([e[k] for e in estimates]) for k in range(2)]

    def G(k, shift):
        at = [t + shift * (j == k) for j, t in enumerate(theta)]
        mean = likelihood_gradient(*at)[k] / N_DATA
        return 1 / (0.3 + np.sqrt(0.6 * state["V"][k] + 0.4 * mean**2))

    for k in range(2):
        slope = (G(k, 1e-5) - G(k, -1e-5)) / 2e-5
        np.testing.assert_allclose(gamma[k], np.ravel(slope)[0], rtol=1e-6)


@pytest.mark.parametrize("sampler", UNCONSTRAINED, ids=lambda s: s.name)
def test_gradients_of_an_update(sampler):
    theta = [np.zeros(shape) for shape in SHAPES]
    update = OneUpdate(sampler.algorithm(), theta, log_likelihood)
    assert update.n_gradients == sampler.n_gradients


@pytest.mark.parametrize("sampler", UNCONSTRAINED, ids=lambda s: s.name)
def test_initial_state(sampler):
    """Momentum N(0, I), thermostat D, in theta's float type."""
    theta = [np.zeros(20_000, dtype="float32"), np.zeros((), dtype="float32")]
    algorithm = sampler.algorithm()
    state = algorithm.init(theta, np.random.default_rng(1))
    for arrays in state.values():
        assert all(np.asarray(a).dtype == "float32" for a in arrays)
    if "p" in state:
        assert [a.shape for a in state["p"]] == [t.shape for t in theta]
        assert abs(state["p"][0].var() - 1) < 5 * np.sqrt(2 / 20_000)
    if "xi" in state:
        assert all(np.all(x == algorithm.diffusion) for x in state["xi"])
        shapes = [()] if sampler.has_one_thermostat else [t.shape for t in theta]
        assert [x.shape for x in state["xi"]] == shapes


@pytest.mark.parametrize("sampler", UNCONSTRAINED, ids=lambda s: s.name)
def test_diagnostics_are_named(sampler):
    algorithm = sampler.algorithm()
    theta = [np.zeros(shape) for shape in SHAPES]
    rng = np.random.default_rng(2)
    # at random: means over variables of different sizes show what they are means of
    state = {
        name: [np.asarray(rng.normal(size=np.shape(a))) for a in arrays]
        for name, arrays in algorithm.init(theta, rng).items()
    }
    symbols = {name: [pt.constant(a) for a in arrays] for name, arrays in state.items()}
    scalars = algorithm.diagnostics(symbols)
    assert len(scalars) == len(algorithm.statistics)
    values = [float(s.eval(mode=PYTHON)) for s in scalars]
    expected = {}
    if "p" in state:
        p = np.concatenate([np.ravel(a) for a in state["p"]])
        expected["kinetic_temperature"] = np.mean(p * p)
    if "xi" in state:
        expected["thermostat"] = np.mean(np.concatenate([np.ravel(a) for a in state["xi"]]))
    assert algorithm.statistics == tuple(expected)
    np.testing.assert_allclose(values, list(expected.values()))


@pytest.mark.parametrize("splitting", [EULER, SYMMETRIC, MIDPOINT, MOMENTUM_FIRST, *LETTERS])
def test_known_letters(splitting):
    assert len(after(splitting)) == 3


@pytest.mark.parametrize(("splitting", "letter"), [("ABOBa", "a"), ("BAOAB ", " "), ("KAK", "K")])
def test_unknown_letter_is_named(splitting, letter):
    with pytest.raises(ValueError, match=f"'{splitting}' has the letter '{letter}'"):
        after(splitting)


@pytest.mark.parametrize(
    ("splitting", "share"),
    [("ABOBA", 0.5), ("XbOT", 0), ("bOXT", 0), ("OBABO", 0), ("AOAOA", 1 / 3), ("XOBAOX", 0.5)],
)
def test_drift_between_an_updates_end_and_the_gradient(splitting, share):
    assert drift_to_gradient(splitting) == pytest.approx(share)


def test_a_letter_of_ones_own(monkeypatch):
    """K, a kick without noise: a splitting need not have an O."""

    def noiseless(phase, dt, dynamics):
        return kick(phase, dt, dynamics._replace(diffusion=0.0))

    monkeypatch.setitem(LETTERS, "K", Letter(noiseless, takes_gradient=True))
    # theta = 1 + 0.05 * 2, p = 2 - 0.1 * 4 * 1.1, theta += 0.05 * 1.56
    np.testing.assert_allclose(after("XKX"), (1.178, 1.56, 3.0))
    assert drift_to_gradient("XKX") == 0.5


def test_an_update_without_a_gradient_is_refused(regression):
    class Drift(sgm.MSGNHT_S):
        name = "drift"
        algorithm_class = type("DriftAlone", (sgm.MSGNHT_S.algorithm_class,), {"splitting": "AB"})

    with regression, pytest.raises(ValueError, match=r"DriftAlone evaluates no gradient.* an O\."):
        Drift(step_size=0.1, batch_size=10, compile_kwargs={"mode": PYTHON})
