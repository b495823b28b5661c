"""Noise and curvature where a transformed parameter has a large slope limit the step size."""

import numpy as np
import pymc as pm
import pytest
from samplers import SAMPLERS

import pymc_sgmcmc as sgm
from pymc_sgmcmc.adaptation import rows_warm_up
from pymc_sgmcmc.adaptation.objective import RowsObjective
from pymc_sgmcmc.adaptation.rows_warm_up import curvature_in_tails, noise_covariance
from pymc_sgmcmc.adaptation.step_size import pace
from pymc_sgmcmc.gradients.anchor_factors import AnchorFactors
from pymc_sgmcmc.gradients.metric import Diagonal
from pymc_sgmcmc.gradients.row_gradients import RowGradients

N, ANCHOR, SPREAD = 1000, np.log(0.05), 0.7
SHIFT = 1.5
B_FAR = np.exp(ANCHOR + SHIFT)


@pytest.fixture(scope="module")
def coefficient():
    """One positive coefficient b of columns of 1 and 2, with known noise: no prior beside it."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, 3, size=N).astype(float)
    y = rng.normal(size=N)
    with pm.Model() as model:
        b = pm.HalfFlat("b", default_transform=pm.distributions.transforms.log, initval=1.0)
        pm.Normal("y", b * x, 1, observed=y)
    gradients = RowGradients(model, model.value_vars, compile_kwargs={"mode": "JAX"})
    factors = AnchorFactors(gradients)
    factors.powers[:] = 1.0
    return gradients, factors, x, y


def test_noise_in_tails(coefficient):
    """Row i has b x_i (y_i - b x_i) - (b / a) a x_i (y_i - a x_i) = -b (b - a) x_i^2.

    A tenth of the points is far: 5 times 512 rows give a variance of x^2, which has two values,
    within 4 sqrt(1 / 2560) = 8%.
    """
    gradients, factors, x, _ = coefficient
    points = np.full((50, 1), ANCHOR)
    points[::10] += SHIFT
    metric = Diagonal([()])
    metric.set(np.array([SPREAD]))
    anchor, rng = np.array([ANCHOR]), np.random.default_rng(1)
    options = {"urn": None, "batch_size": 32, "rng": rng}
    covariance, in_tails = noise_covariance(gradients, metric, points, anchor, factors, **options)
    change = B_FAR * (B_FAR - np.exp(ANCHOR))
    expected = SPREAD**2 * N**2 / 32 * change**2 * np.var(x**2)
    assert in_tails == pytest.approx(expected, rel=0.08)
    assert covariance[0, 0] == pytest.approx(expected / 10, rel=0.08)
    factors.powers[:] = 0.0
    assert noise_covariance(gradients, metric, points, anchor, factors, **options)[1] == 0.0
    factors.powers[:] = 1.0


def test_curvature_in_tails(coefficient):
    """-log posterior, b^2 X / 2 - b Y - log b, has the second derivative 2 b^2 X - b Y by log b."""
    gradients, factors, x, y = coefficient
    objective = RowsObjective(gradients)
    anchor, spread = np.array([ANCHOR]), np.array([SPREAD])
    points = ANCHOR + np.array([[0.0], [-3.0], [SHIFT]])
    expected = (2 * B_FAR**2 * (x @ x) - B_FAR * (x @ y)) * SPREAD**2
    found = curvature_in_tails(objective, factors, points, anchor, spread)
    assert found == pytest.approx(expected, rel=0.01)
    assert curvature_in_tails(objective, factors, points[:2], anchor, spread) == 0.0


@pytest.mark.parametrize("step", [sgm.MSGNHT_S, sgm.SGHMC_S])
def test_noise_in_tails_limits_the_step_size(step):
    [sampler] = [s for s in SAMPLERS if s.step is step]
    even = np.array([0.1, 0.2])
    steady = pace(sampler.algorithm(), even, 0.05)
    uneven = pace(sampler.algorithm(), even, 0.05, in_tails=40.0)
    everywhere = pace(sampler.algorithm(), np.array([0.1, 40.0]), 0.05)
    assert uneven.step_size == everywhere.step_size < steady.step_size / 2


@pytest.mark.slow(8)
@pytest.mark.parametrize("what", ["noise", "curvature"])
def test_a_warm_up_keeps_to_these_limits(monkeypatch, what):
    """Noise 100 allows 2 * 0.2 / 100, and the curvature 1e4 allows 0.4 / 100."""
    if what == "noise":
        monkeypatch.setattr(
            rows_warm_up, "noise_covariance", lambda *args: (noise_covariance(*args)[0], 100.0)
        )
    else:
        monkeypatch.setattr(rows_warm_up, "curvature_in_tails", lambda *args: 1e4)
    rng = np.random.default_rng(2)
    with pm.Model():
        pm.Normal("y", pm.Normal("a"), pm.HalfNormal("s"), observed=rng.normal(size=5 * N))
        step = sgm.MSGNHT_S(rng=1, compile_kwargs={"mode": "JAX"})
    assert step.adapted.step_size <= 0.004 * (1 + 1e-9)
    assert step.adapted.noise.max() < 1  # the thermostats expected are those of average noise
