"""Factors of gradients at an anchor: which parameters have one, and what it does to the noise."""

import numpy as np
import pymc as pm
import pytest

from pymc_sgmcmc.gradients.anchor_factors import LARGEST, AnchorFactors, log_slope
from pymc_sgmcmc.gradients.row_gradients import RowGradients

JAX = {"mode": "JAX"}
N = 400


def regression():
    """Coefficients that are free, positive, and between bounds, of which one is random."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4))
    with pm.Model() as model:
        free, positive = pm.Normal("free"), pm.HalfNormal("positive", 1)
        bounded = pm.Uniform("bounded", -1, 1)
        below = pm.Uniform("below", 0, pm.math.exp(free))
        sigma = pm.HalfNormal("sigma", 1)
        mean = X @ pm.math.stack([free, positive, bounded, below])
        pm.Normal("y", mean, sigma, observed=0.3 * X[:, 0] + 0.01 * X[:, 1] + rng.normal(size=N))
    return model


@pytest.fixture(scope="module")
def factors():
    model = regression()
    return AnchorFactors(RowGradients(model, model.value_vars, compile_kwargs=JAX))


def test_which_parameters_may_have_a_factor(factors):
    """A bound that is a parameter would be part of the slope."""
    model = factors.gradients.model
    possible = {rv.name for rv in model.free_RVs if log_slope(model, model.rvs_to_values[rv])}
    assert possible == {"positive", "bounded", "sigma"}
    assert factors.is_possible.tolist() == [name in possible for name in model.named_vars][:5]


def test_powers_are_those_with_the_least_noise(factors):
    """A coefficient's gradient changes as its slope; that of sigma, as its inverse square."""
    rng = np.random.default_rng(1)
    anchor = factors.gradients.flat(
        {
            "free": 0.3,
            "positive_log__": np.log(0.04),
            "bounded_interval__": 0.0,
            "below_interval__": 0.0,
            "sigma_log__": 0.0,
        }
    )
    points = anchor + rng.normal(size=(20, 5)) * [0.05, 0.8, 0.05, 0.05, 0.04]
    factors.powers[:] = 0.0
    np.testing.assert_array_equal(factors.at(points, anchor), 1)
    factors.choose(anchor, points, rng)
    assert factors.powers[1] == 1
    assert factors.powers[[0, 3, 4]].tolist() == [0, 0, 0]
    found = factors.at(points, anchor)
    np.testing.assert_allclose(found[:, 1], np.exp(points - anchor)[:, 1].clip(max=LARGEST))
    rows = np.arange(N)
    here, there = (factors.gradients.rows(p, rows)[1][:, 1] for p in (points[0], anchor))
    assert np.var(here - found[0, 1] * there) < 0.1 * np.var(here - there)
    far = anchor + np.array([0, 9.0, 0, 0, 0])
    assert factors.at(far, anchor)[1] == pytest.approx(LARGEST)


def test_the_slope_of_an_interval(factors):
    """By differences of the transform itself."""
    model = factors.gradients.model
    value, x, step = model.rvs_to_values[model["bounded"]], 0.7, 1e-5
    transform = model.rvs_to_transforms[model["bounded"]]
    backward = [
        transform.backward(x + s, *model["bounded"].owner.inputs).eval() for s in (-step, step)
    ]
    slope = log_slope(model, value)(np.float64(x)).eval()
    assert np.exp(slope) == pytest.approx((backward[1] - backward[0]) / (2 * step), rel=1e-6)
