"""Every sampler draws from the posterior: moments, thermostats and the order of the bias."""

from functools import cache

import numpy as np
import pymc as pm
import pymc_sgmcmc as sgm
import pytensor.tensor as pt
import pytest

from tests.samplers import (
    BACKENDS,
    LINEAR,
    SAMPLERS,
    THERMOSTATS,
    Chain,
    assert_mean,
    blocks,
    stationary_covariance,
)
from tests.targets import (
    COVARIANCE,
    N_COLUMNS,
    POLYNOMIALS,
    NormalGamma,
    NormalMeans,
    Quadrature,
    quadratures,
    zoo,
)

every_sampler = pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: s.name)
every_backend = pytest.mark.parametrize("mode", BACKENDS)

REPLICAS = 2000


@cache
def zoo_chain(sampler_name: str, mode: str) -> Chain:
    (sampler,) = (s for s in SAMPLERS if s.name == sampler_name)
    return Chain(zoo(REPLICAS), sampler.algorithm(), mode)


def equilibrium(seed: int, targets: list[Quadrature]) -> list[np.ndarray]:
    """Exact draws in the one-dimensional columns; the correlated Gaussian starts at 0.

    A crossing of the double well takes long: a wrong sampler leaves equilibrium sooner than a
    right one would find it.
    """
    rng = np.random.default_rng(seed)
    columns = [np.zeros(REPLICAS)] * 2 + [t.draws(rng, REPLICAS) for t in targets]
    return [np.column_stack(columns)]


# ---- exact results on a Gaussian -----------------------------------------------------------


@pytest.mark.parametrize("sampler", LINEAR, ids=lambda s: s.name)
def test_order_of_the_bias_on_a_gaussian(sampler):
    """Lyapunov: the error of the stationary covariance goes as h to the promised order."""
    covariance = np.array([[1.0, 0.4], [0.4, 0.5]])
    steps = 0.2 * 2.0 ** -np.arange(4)
    exact = [
        stationary_covariance(sampler.algorithm(), np.linalg.inv(covariance), h) for h in steps
    ]
    errors = {
        "theta": [np.linalg.norm(S[:2, :2] - covariance) for S in exact],
        "p": [np.linalg.norm(S[2:, 2:] - np.eye(2)) for S in exact if len(S) > 2],
    }
    for part, order in sampler.order.items():
        slope, _ = np.polyfit(np.log(steps), np.log(errors[part]), 1)
        assert abs(slope - order) < 0.15, (part, slope)


@pytest.mark.parametrize("sampler", LINEAR, ids=lambda s: s.name)
def test_momentum_is_independent_of_theta_in_the_limit(sampler):
    S = stationary_covariance(sampler.algorithm(), np.linalg.inv(COVARIANCE), 1e-4)
    limit = np.eye(len(S))
    limit[:2, :2] = COVARIANCE
    np.testing.assert_allclose(S, limit, atol=2e-3)


# ---- moments without minibatches -----------------------------------------------------------


@every_backend
@every_sampler
def test_moments(sampler, mode):
    """Correlated and ill-scaled Gaussians, double well, tilted quartic; momentum, thermostat."""
    targets = quadratures()
    start = equilibrium(1, targets)
    chain = zoo_chain(sampler.name, mode)
    theta, state = chain.run(
        sampler.step_size, seed=2, snapshots=40, every=50, burn_in=20, start=start
    )
    # Replicas are independent (for SGNHT nearly: 10,000 elements share one xi), so the standard
    # error comes from the spread of their averages over time.
    theta = theta[0]
    pair = np.einsum("kri,krj->krij", theta[..., :2], theta[..., :2])
    expected, bias = COVARIANCE, sampler.bias * COVARIANCE
    if sampler.kind == "linear":
        precision = np.linalg.inv(COVARIANCE)
        exact = stationary_covariance(sampler.algorithm(), precision, sampler.step_size)
        expected, bias = exact[:2, :2], 0
    assert_mean(theta[..., :2].mean(axis=0), 0)
    assert_mean(pair.mean(axis=0), expected, bias)
    for column, target in zip(theta.T[2:], targets, strict=True):
        sd = np.sqrt(target.var)
        assert_mean(column.mean(axis=1), target.mean, sampler.bias * sd)
        assert_mean(((column - target.mean) ** 2).mean(axis=1), target.var, sampler.bias * sd**2)
    well, last = start[0][:, 3] > 0, theta[-1, :, 3] > 0
    assert np.mean(well != last) > 0.02, "no crossings: the double well shows nothing"
    if "p" in state:
        p = state["p"][0]
        assert_mean(p.mean(axis=0), 0)
        if sampler.kind == "linear":
            p_pair = np.einsum("kri,krj->krij", p[..., :2], p[..., :2])
            assert_mean(p_pair.mean(axis=0), exact[2:, 2:])
        assert_mean((p**2).mean(axis=0)[:, 2:], 1, sampler.bias)
    if "xi" in state:
        xi = state["xi"][0]
        # the one xi of SGNHT: its snapshots, 1.5 units of time apart, stand for replicas
        assert_mean(xi.mean(axis=0) if xi.ndim > 1 else xi, sampler.algorithm().diffusion, 0.04)


@pytest.mark.parametrize("mode", ["CVM", "JAX"])
@every_sampler
def test_backends_agree(sampler, mode):
    """A few updates on two backends from one state: the same numbers.

    JAX draws other noise, so there the step size is tiny... 
    """
