"""Every sampler at temperature T draws from posterior^(1 / T), with the bias that it has at 1."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.stats import gamma
from test_samplers import law_on_a_line, law_on_a_simplex

import pymc_sgmcmc as sgm
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.gradients.tempered import tempered
from tests.samplers import (
    LANGEVIN,
    LINEAR,
    SAMPLERS,
    THERMOSTATS,
    OneUpdate,
    assert_mean,
    stationary_covariance,
)
from tests.targets import COVARIANCE, Quadrature

QUARTIC = 0.25


@pytest.mark.parametrize("temperature", [1e-4, 3.0])
@pytest.mark.parametrize("sampler", LINEAR, ids=lambda s: s.name)
def test_stationary_covariance_is_proportional_to_the_temperature(sampler, temperature):
    """Of theta and of momentum, with the same bias at the same step size, to the last digits."""
    precision = np.linalg.inv(COVARIANCE)
    one, other = (
        stationary_covariance(sampler.algorithm(temperature=T), precision, 0.02)
        for T in (1.0, temperature)
    )
    np.testing.assert_allclose(other, temperature * one, rtol=1e-8, atol=1e-12 * temperature)


@pytest.mark.parametrize("sampler", LANGEVIN, ids=lambda s: s.name)
def test_order_of_the_bias_is_that_at_temperature_one(sampler):
    """On U = x^4 / 4 and on a Gamma(3), exactly, without random numbers."""
    T, errors = 0.3, []
    algorithm = sampler.algorithm(temperature=T)
    for h in (0.1, 0.05):
        if sampler.kind == "simplex":
            (x, law), exact = law_on_a_simplex(algorithm, h, shape=3.0), 12.0
        else:
            (x, law), exact = law_on_a_line(algorithm, h), Quadrature([0, 0, 0, QUARTIC / T]).var
        errors.append(law @ x**2 / exact - 1)
    assert abs(errors[1]) < 0.02, errors
    assert abs(np.log2(errors[0] / errors[1]) - sampler.order["theta"]) < 0.1, errors


@pytest.mark.slow(4)
@pytest.mark.parametrize("sampler", THERMOSTATS, ids=lambda s: s.name)
def test_moments_with_a_thermostat(sampler):
    """A Gaussian and a quartic, side by side: theta, momentum and the thermostats' mean.

    1500 replicas, whose averages over 30 snapshots are independent: the threshold is 5 standard
    errors, about 6% of a variance, and the sampler's own bias at this step size.
    """
    T, n, h = 0.25, 1500, sampler.step_size
    algorithm = sampler.algorithm(temperature=T)
    targets = [Quadrature([0, 0.5 / T, 0, 0]), Quadrature([0, 0, 0, QUARTIC / T])]
    rng = np.random.default_rng(1)
    theta = np.column_stack([target.draws(rng, n) for target in targets])

    def log_likelihood(theta):
        x, y = theta[0][:, 0], theta[0][:, 1]
        return -pt.sum(0.5 * x**2 + QUARTIC * y**4)

    update = OneUpdate(algorithm, [theta], log_likelihood)
    thetas, state = [theta], algorithm.init([theta], rng)
    diffusion = algorithm.diffusion
    assert_mean(state["p"][0] ** 2, T)
    kept = []
    for k in range(800):
        noise = [[rng.standard_normal((n, 2))] for _ in range(sampler.n_gradients)]
        thetas, state = update(thetas, state, h, *noise)
        if k % 20 == 0 and k > 200:
            kept.append([thetas[0] ** 2, state["p"][0] ** 2, *state["xi"]])
    x_squared, p_squared, *_ = (np.mean(values, axis=0) for values in zip(*kept, strict=True))
    exact = np.array([target.var for target in targets])
    assert_mean(x_squared, exact, bias=sampler.bias * exact)
    assert_mean(p_squared, T, bias=sampler.bias * T)
    # without noise in the gradient friction balances the injected noise
    friction = np.mean([np.mean(values[2]) for values in kept])
    assert abs(friction / diffusion - 1) < 0.05


@pytest.mark.slow(15)
def test_groups_on_variables_with_transforms():
    """posterior^(1 / T) with respect to the variables themselves, whatever their transforms.

    A Gamma(3, 2) to the power 1 / T is a Gamma(2 / T + 1, 2 / T), a Dirichlet(a) is a
    Dirichlet((a - 1) / T + 1). Thresholds are 5 standard errors from 500 independent replicas, and
    3% for the bias of the step sizes; with the Jacobian tempered too, the mean of x
    would be 0.5 sd off.
    """
    T, n = 0.5, 500
    counts = np.array([4.0, 9.0])
    with pm.Model() as model:
        x = pm.Gamma("x", 3, 2, shape=n)
        pi = pm.Dirichlet("pi", counts, shape=(n, 2))
        step = sgm.Groups(
            [sgm.MSGNHT_S.on([x], step_size=0.1), sgm.SGRLD.on([pi], step_size=0.01)],
            temperature=T,
            thin=50,
            compile_kwargs={"mode": "JAX"},
        )
        idata = sgm.sample(
            100, tune=40, chains=1, step=step, random_seed=1, quiet=True, model=model
        )
    draws = idata.posterior["x"].values[0]
    exact = gamma(2 / T + 1, scale=T / 2)
    assert_mean(draws.mean(axis=0), exact.mean(), bias=0.03 * exact.std())
    assert_mean(((draws - exact.mean()) ** 2).mean(axis=0), exact.var(), bias=0.03 * exact.var())
    share = idata.posterior["pi"].values[0, :, :, 0]
    a, b = (counts - 1) / T + 1
    mean, var = a / (a + b), a * b / (a + b) ** 2 / (a + b + 1)
    assert_mean(share.mean(axis=0), mean, bias=0.03 * var**0.5)
    assert_mean(((share - mean) ** 2).mean(axis=0), var, bias=0.03 * var)
    assert "temperature=0.5" in repr(step)


@pytest.mark.slow(3)
def test_a_jacobian_with_a_parameter():
    """The bound of one variable is another: the Jacobian's slope has a part for both."""
    with pm.Model() as model:
        top = pm.Exponential("top", 1)
        pm.Uniform("x", 0, top)
    source = gradient_source(model, model.value_vars)
    point = {"top_log__": np.array(0.3), "x_interval__": np.array(-0.4)}
    with_jacobian, without = (model.compile_dlogp(jacobian=j)(point) for j in (True, False))
    got = [
        g.eval(dict(zip(source.vars, point.values(), strict=True)))
        for g in tempered(source, model, 0.2).prior
    ]
    np.testing.assert_allclose(got, without + 0.2 * (with_jacobian - without), rtol=1e-10)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: s.name)
@pytest.mark.parametrize("temperature", [0, -1.0, np.nan, np.inf, True, "hot", None])
def test_a_temperature_out_of_range(sampler, temperature):
    with pytest.raises(ValueError, match="temperature must be a positive finite number, got"):
        sampler.algorithm(temperature=temperature)


def test_where_a_temperature_is_refused():
    with pm.Model():
        x = pm.Normal("x")
        pm.Normal("y", x, observed=np.zeros(3))
        with pytest.raises(ValueError, match=r"temperature=0.5 needs a step_size"):
            sgm.MSGNHT_S(temperature=0.5)
        with pytest.raises(TypeError, match=r"give it to Groups, not to SGLD\.on"):
            sgm.Groups([sgm.SGLD.on([x], step_size=0.1, temperature=0.5)])
        with pytest.raises(ValueError, match="temperature must be a positive"):
            sgm.Groups([sgm.SGLD.on([x], step_size=0.1)], temperature=0)
