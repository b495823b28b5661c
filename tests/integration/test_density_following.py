"""Points of groups with more than three effects, which follow the joint density of each group."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.stats import multivariate_normal

from pymc_sgmcmc.gradients.differentiate import before_gradients
from pymc_sgmcmc.integration.density_following import follow_density
from pymc_sgmcmc.integration.group_terms import group_terms
from pymc_sgmcmc.integration.integrated_model import integrated_model
from pymc_sgmcmc.integration.prior_following import Followed
from pymc_sgmcmc.integration.quadrature_error import quadrature_error
from pymc_sgmcmc.integration.quadrature_points import points_of

K, GROUPS, ROWS = 5, 200, 40


def informative_rows(family):
    """A model whose rows say much of effects that it writes as scales times standard variables."""
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(GROUPS), ROWS)
    X = np.column_stack([np.ones(len(group)), rng.normal(size=(len(group), K - 1))])
    eta = 0.3 + (X * rng.normal(0, 0.5, (GROUPS, K))[group]).sum(axis=1)
    with pm.Model() as model:
        z, sd = pm.Normal("z", shape=(GROUPS, K)), pm.HalfNormal("sd", shape=K)
        mean = pm.Normal("mu") + (X * (z * sd)[group]).sum(axis=1)
        if family == "normal":
            y = rng.normal(eta, 0.5)
            pm.Normal("y", mean, pm.HalfNormal("sigma"), observed=y)
        else:
            y = rng.poisson(np.exp(eta))
            pm.Poisson("y", pm.math.exp(mean), observed=y)
    at = {"sd_log__": np.log(np.full(K, 0.5)), "mu": np.array(0.3), "sigma_log__": np.log(0.5)}
    return model, {v.name: np.asarray(at[v.name]) for v in model.value_vars if v.name != "z"}, X, y


def near(at, n, spread=0.7 / GROUPS**0.5):
    """Values as far from each other as draws of the posterior."""
    rng = np.random.default_rng(1)
    return [{k: v + spread * rng.normal(size=v.shape) for k, v in at.items()} for _ in range(n)]


def test_updates_differentiate_integrals_with_their_points(python_by_default):
    """If points stayed, their errors, far larger than those of the integrals, would not cancel."""
    model, at, *_ = informative_rows("poisson")
    integrated = integrated_model(group_terms(model), points_of(K))
    integrated.centres.move(at, afresh=True)
    values = integrated.value_vars
    [density] = before_gradients([integrated.potentials[0].sum()])
    outputs = [density, *pt.grad(density, values)]
    function = integrated.compile_fn(outputs, inputs=values, point_fn=False)
    [theta] = near(at, 1)
    theta = [theta[v.name] for v in values]
    _, *gradients = function(*theta)
    for k, gradient in enumerate(gradients):
        move = np.zeros_like(theta[k])
        move.flat[0] = 1e-4
        above, below = (
            function(*theta[:k], theta[k] + sign * move, *theta[k + 1 :])[0] for sign in (1, -1)
        )
        # the third derivative, about that of 200 groups, adds 1e-8 times their number
        assert gradient.flat[0] == pytest.approx((above - below) / 2e-4, abs=1e-3)


def test_integrals_and_gradients_of_normal_rows_are_exact(python_by_default):
    """Around constant points gradients were off by .5 where the posterior's is 1 per sd."""
    model, at, X, y = informative_rows("normal")
    integrated = integrated_model(group_terms(model), points_of(K))
    integrated.centres.move(at, afresh=True)
    potential = integrated.potentials[0].sum()
    gradients = pt.grad(potential, integrated.value_vars)
    outputs = [potential, *gradients]
    function = integrated.compile_fn(outputs, inputs=integrated.value_vars, point_fn=False)
    names = [v.name for v in integrated.value_vars]

    def exact(point):
        variances = np.exp(2 * point["sd_log__"])
        total = 0.0
        for x, own in zip(X.reshape(GROUPS, ROWS, K), y.reshape(GROUPS, ROWS), strict=True):
            covariance = (x * variances) @ x.T + np.exp(2 * point["sigma_log__"]) * np.eye(ROWS)
            total += multivariate_normal.logpdf(own, np.full(ROWS, point["mu"]), covariance)
        return total

    def slopes(point, name):
        e, slopes = 1e-4, []
        for i in np.ndindex(point[name].shape):
            step = np.zeros(point[name].shape)
            step[i] = e
            above, below = (exact({**point, name: point[name] + s}) for s in (step, -step))
            slopes.append((above - below) / (2 * e))
        return slopes

    for point in (at, *near(at, 2, spread=0.2)):
        value, *found = function(*(point[name] for name in names))
        assert value == pytest.approx(exact(point), rel=1e-9)
        for name, gradient in zip(names, found, strict=True):
            np.testing.assert_allclose(np.ravel(gradient), slopes(point, name), atol=1e-3)


def test_integrals_of_skew_densities(python_by_default):
    """Errors are .04 sds; of points that are alike in all groups .14, and of constant ones .95."""
    model, at, *_ = informative_rows("poisson")
    integrated = integrated_model(group_terms(model), points_of(K))
    integrated.centres.move(at, afresh=True)
    assert quadrature_error(integrated.centres, integrated.points, near(at, 20)) < 0.07


def test_function_and_graph_move_points_alike_and_keep_those_without_curvature():
    rng = np.random.default_rng(0)
    n, k = 6, 4
    factors = np.linalg.cholesky(np.eye(k) + 0.1 * np.ones((k, k))) + np.zeros((n, 1, 1))
    held = Followed(rng.normal(size=(n, k)), factors, np.log(np.linalg.det(factors)))
    scores, gradient = rng.normal(size=(2, n, k))
    curvatures = 0.1 * np.eye(k) + np.zeros((n, 1, 1))
    hessian = -(np.eye(k) + 0.2 * np.ones((k, k))) * np.arange(1, n + 1)[:, None, None]
    hessian[1] = np.eye(k)  # a minimum
    gradient[2, 0] = np.nan
    hessian[3, 0, 0] = np.inf
    arguments = [*held, scores, curvatures, gradient, hessian]

    by_numpy = follow_density(held, scores, curvatures, gradient, hessian, np)
    inputs = [pt.TensorType("float64", (None, *a.shape[1:]))() for a in arguments]
    in_graph = follow_density(Followed(*inputs[:3]), *inputs[3:], pt)
    function = pytensor.function(inputs, list(in_graph))
    for own, other in zip(by_numpy, function(*arguments), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-10)
    for new, old in zip(by_numpy, held, strict=True):
        np.testing.assert_array_equal(new[1:4], old[1:4])
    for j in (0, 4, 5):
        precision = curvatures[j] - hessian[j]
        x = np.linalg.solve(precision, scores[j] + gradient[j])
        np.testing.assert_allclose(by_numpy.modes[j], held.modes[j] + factors[j] @ x)
        covariance = factors[j] @ np.linalg.solve(precision, factors[j].T)
        root = by_numpy.factors[j]
        np.testing.assert_allclose(root @ root.T, covariance)
        assert by_numpy.log_scales[j] == pytest.approx(np.log(np.linalg.det(covariance)) / 2)
