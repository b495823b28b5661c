"""The minibatch gradient is exact on average: the mean over an epoch is the full gradient."""

import math

import models
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from models import MODELS, OPTIONS, N
from pytensor.gradient import disconnected_grad
from pytensor.graph.traversal import ancestors

from pymc_sgmcmc.batches.shuffled import Batches
from pymc_sgmcmc.gradients.arrays import PYTHON, array_value
from pymc_sgmcmc.gradients.differentiate import before_gradients
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients
from pymc_sgmcmc.noise import NoiseStream


def random_point(model, seed=1):
    """A point off the initial one, inside every support (value variables are unconstrained)."""
    rng = np.random.default_rng(seed)
    return {
        name: (value + rng.normal(scale=0.5, size=np.shape(value))).astype(value.dtype)
        for name, value in model.initial_point().items()
    }


def constants(source, point):
    """Values of `source.constants`, as a step passes them."""
    scales = [np.asarray(r.n_rows / r.batch_size, pytensor.config.floatX) for r in source.rows]
    data = [array_value(array) for array, _ in source.data]
    return [*scales, *data, *(point[v.name] for v in source.others)]


def cycle_of_batches(n_rows, batch_size):
    """Whole epochs, cut into whole batches."""
    batches = Batches(n_rows, batch_size, np.random.default_rng(2))
    return batches.take(math.lcm(n_rows, batch_size) // batch_size)


def function_of(source, outputs):
    return pytensor.function(source.inputs, outputs, mode=PYTHON, on_unused_input="ignore")


def average_over_batches(source, point, outputs):
    """Mean of each output over all batches (streams go on side by side)."""
    function = function_of(source, outputs)
    theta = [point[v.name] for v in source.vars]
    streams = [cycle_of_batches(r.n_rows, r.batch_size) for r in source.rows]
    n_batches = math.lcm(*(len(s) for s in streams))
    results = [
        function(*theta, *(s[k % len(s)] for s in streams), *constants(source, point))
        for k in range(n_batches)
    ]
    return [np.mean(values, axis=0) for values in zip(*results, strict=True)]


def evaluate(model, outputs, point):
    function = pytensor.function(model.value_vars, outputs, mode=PYTHON, on_unused_input="ignore")
    return function(*(point[v.name] for v in model.value_vars))


def assert_unbiased(model, source, rtol=1e-9, full_model=None):
    """Log likelihood, log posterior and gradient agree with the model's own, as NUTS has them."""
    full_model = full_model or model
    point = random_point(model)
    k = len(source.vars)
    names = [v.name for v in source.vars]
    vars = [v for v in full_model.value_vars if v.name in names]
    total = source.log_prior + source.log_likelihood
    log_p, *prior_and_likelihood = average_over_batches(
        source, point, [total, *source.prior, *source.likelihood]
    )
    gradient = [
        p + lik for p, lik in zip(prior_and_likelihood[:k], prior_and_likelihood[k:], strict=True)
    ]
    expected, *full = evaluate(
        full_model, [full_model.logp(), *pytensor.grad(full_model.logp(), vars)], point
    )
    np.testing.assert_allclose(log_p, expected, rtol=rtol)
    full = dict(zip([v.name for v in vars], full, strict=True))
    scale = max(np.abs(np.concatenate([np.ravel(g) for g in full.values()])))
    for name, value in zip(names, gradient, strict=True):
        np.testing.assert_allclose(value, full[name], rtol=rtol, atol=rtol * scale, err_msg=name)


@pytest.mark.slow(3)
@pytest.mark.parametrize("name", MODELS)
def test_average_over_batches_is_the_full_gradient(name):
    model = MODELS[name]()
    source = gradient_source(model, model.value_vars, batch_size=5, **OPTIONS.get(name, {}))
    assert_unbiased(model, source)


@pytest.mark.parametrize("batch_size", [1, 7, N])
def test_any_batch_size(batch_size):
    model = models.hierarchical()
    assert_unbiased(model, gradient_source(model, model.value_vars, batch_size=batch_size))


def test_without_batches_the_gradient_is_exact():
    model = models.two_terms()
    source = gradient_source(model, model.value_vars)
    assert not source.rows
    assert_unbiased(model, source)


@pytest.mark.slow(3)
@pytest.mark.parametrize(
    "name", ["linear", "bounded_transforms", "multivariate_rows", "data_in_a_prior"]
)
def test_prior_and_likelihood_apart(name):
    """The prior has the transforms' Jacobians, as NUTS has them, and never sees a batch."""
    model = MODELS[name]()
    source = gradient_source(model, model.value_vars, batch_size=5)
    point = random_point(model)
    outputs = [source.log_prior, source.log_likelihood, *source.prior, *source.likelihood]
    ours = average_over_batches(source, point, outputs)
    prior, likelihood = model.varlogp, model.observedlogp
    gradients = [
        pytensor.gradient.grad(logp, model.value_vars, disconnected_inputs="ignore")
        for logp in (prior, likelihood)
    ]
    expected = evaluate(model, [prior, likelihood, *gradients[0], *gradients[1]], point)
    for value, full in zip(ours, expected, strict=True):
        np.testing.assert_allclose(value, full, rtol=1e-9, atol=1e-9)
    index = source.rows[0].index
    assert index not in pytensor.graph.traversal.ancestors([source.log_prior, *source.prior])


def test_variables_of_other_steps():
    """Their values come in at each call; only our own variables have gradients."""
    model = models.linear()
    w, sigma = model.value_vars
    source = gradient_source(model, [w], batch_size=5)
    assert source.others == [sigma]
    assert_unbiased(model, source)


@pytest.mark.parametrize("name", ["linear", "hierarchical", "two_terms"])
def test_float32(name):
    with pytensor.config.change_flags(floatX="float32"):
        model = MODELS[name]()
        source = gradient_source(model, model.value_vars, batch_size=5)
        outputs = [source.log_prior, source.log_likelihood, *source.prior, *source.likelihood]
        assert {out.dtype for out in outputs} == {"float32"}
        assert_unbiased(model, source, rtol=1e-5)


def test_new_data_with_another_number_of_rows():
    """pm.set_data between the step and the run: N and the scale follow."""
    rng = np.random.default_rng(5)
    with pm.Model(coords={"obs": range(N)}) as model:
        x = pm.Data("x", models.REAL, dims="obs")
        target = pm.Data("target", models.COUNT, dims="obs")
        pm.Poisson("y", pm.math.exp(pm.Normal("w") * x), observed=target, dims="obs")
    source = gradient_source(model, model.value_vars, batch_size=5)
    assert_unbiased(model, source)
    new = {"x": rng.normal(size=31), "target": rng.poisson(2, 31)}
    pm.set_data(new, model=model, coords={"obs": range(31)})
    assert [r.n_rows for r in source.rows] == [31]
    assert_unbiased(model, source)


def test_evaluation_at_another_theta():
    """What the samplers see: potential, total and mean gradient, curvature along a direction."""
    model = models.poisson_int64_data()
    source = gradient_source(model, model.value_vars, batch_size=5)
    [w] = source.vars
    theta, direction = w.type("theta"), w.type("direction")
    rows, others = source.inputs[1], source.constants
    at = source.at([theta], [rows], others, {}, NoiseStream(None))
    outputs = [at.potential, *at.total, *at.likelihood, *at.mean_likelihood]
    outputs += at.mean_curvature([direction])
    function = pytensor.function([theta, direction, rows, *others], outputs, mode=PYTHON)
    function_of_source = function_of(
        source, [source.log_prior + source.log_likelihood, *source.prior, *source.likelihood]
    )
    rng = np.random.default_rng(0)
    value, v = rng.normal(size=(2, 3))
    batch, constant = np.array([3, 1, 4, 15, 9]), constants(source, {})
    potential, total, likelihood, mean, curvature = function(value, v, batch, *constant)
    log_p, prior, lik = function_of_source(value, batch, *constant)
    np.testing.assert_allclose(potential, -log_p)
    np.testing.assert_allclose(total, prior + lik)
    np.testing.assert_allclose(likelihood, lik)
    np.testing.assert_allclose(mean, lik / N)
    ahead, behind = (function(value + e * v, v, batch, *constant)[2] for e in (1e-5, -1e-5))
    np.testing.assert_allclose(curvature, (ahead - behind) / 2e-5 / N, rtol=1e-6)


# ---- models written with pm.Minibatch ------------------------------------------------------


def with_minibatches(kind, dtype):
    """The model of two_terms, or its first term, on batches of pm.Minibatch (None: all rows)."""
    x, y, counts = models.X, models.REAL, models.COUNT.astype(dtype or "int64")
    with pm.Model() as model:
        if kind == "data containers":
            x, y, counts = pm.Data("x", x), pm.Data("y_data", y), pm.Data("counts_data", counts)
        x_of_y = x_of_counts = x
        if dtype is not None:
            x_of_y, y, counts = pm.Minibatch(x, y, counts, batch_size=5)
            x_of_counts = x_of_y
        if dtype is not None and kind == "separate":
            x_of_counts, counts = pm.Minibatch(x, models.COUNT.astype(dtype), batch_size=7)
        total_size = N if dtype else None
        w = pm.Normal("w", 0, 1, shape=3)
        tau = pm.HalfNormal("tau", 1)
        pm.Normal("y", pm.math.dot(x_of_y, w), tau, observed=y, total_size=total_size)
        if kind != "one term":
            mu = pm.math.exp(pm.math.dot(x_of_counts, w) / 3)
            pm.Poisson("counts", mu, observed=counts, total_size=total_size)
    return model


@pytest.mark.parametrize(
    ("kind", "dtype", "streams"),
    [
        ("one term", "int32", 1),
        ("shared", "int32", 1),
        ("separate", "int32", 2),
        ("data containers", "int64", 1),
        ("data containers", "int8", 1),
        ("data containers", "float32", 1),
    ],
)
def test_written_with_minibatch(kind, dtype, streams):
    model = with_minibatches(kind, dtype)
    source = gradient_source(model, model.value_vars)
    assert len(source.rows) == streams
    assert_unbiased(model, source, full_model=with_minibatches(kind, None))


LABELS = ["bool", "int8", "uint8", "int16", "int32", "int64", "float32", "float64"]
AS_THEY_ARE = {
    "float64": ["bool", "uint8", "int32", "float64"],
    "float32": ["bool", "uint8", "int16", "float32"],
}
"""Types that PyMC does not cast: others it refuses in pm.Minibatch, before we see them."""


@pytest.mark.parametrize("floatX", AS_THEY_ARE)
@pytest.mark.parametrize("dtype", LABELS)
def test_labels_of_any_type(dtype, floatX):
    """Plain arrays of 0 and 1, with ``batch_size`` and by pm.Minibatch."""

    def build(batches):
        x, y = models.X[:, 0].astype(floatX), (models.REAL > 0.3).astype(dtype)
        if batches:
            x, y = pm.Minibatch(x, y, batch_size=5)
        with pm.Model() as model:
            p = pm.math.sigmoid(pm.Normal("w", 0, 1) * x)
            pm.Bernoulli("y", p, observed=y, total_size=N if batches else None)
        return model

    rtol = 1e-9 if floatX == "float64" else 1e-5
    with pytensor.config.change_flags(floatX=floatX):
        full = build(batches=False)
        source = gradient_source(full, full.value_vars, batch_size=5)
        assert {str(g.dtype) for g in [*source.prior, *source.likelihood]} == {floatX}
        assert_unbiased(full, source, rtol=rtol)
        if dtype in AS_THEY_ARE[floatX]:
            model = build(batches=True)
            assert_unbiased(
                model, gradient_source(model, model.value_vars), rtol=rtol, full_model=full
            )


def test_new_data_in_a_model_written_with_minibatch():
    rng = np.random.default_rng(5)

    def build(batches):
        with pm.Model() as model:
            data = pm.Data("data", models.REAL)
            size = data.shape[0]
            y = pm.Minibatch(data, batch_size=5) if batches else data
            total_size = [size] if batches else None
            pm.Normal("y", pm.Normal("mu", 0, 1), 1, observed=y, total_size=total_size)
        return model

    model, full_model = build(True), build(False)
    source = gradient_source(model, model.value_vars)
    y = rng.normal(size=31)
    for m in (model, full_model):
        m.set_data("data", y)
    assert_unbiased(model, source, full_model=full_model)


def test_data_are_inputs():
    """Arrays of rows are passed in at each call, not copied into the graph or pickled twice."""
    for model, options in [
        (models.logistic_without_dims(), {"batch_size": 5}),
        (models.two_terms(), {"batch_size": 5}),
        (with_minibatches("shared", "int32"), {}),
    ]:
        source = gradient_source(model, model.value_vars, **options)
        variables = pytensor.graph.traversal.ancestors([*source.prior, *source.likelihood])
        held = [v for v in variables if hasattr(v, "data") and np.size(v.data) >= N]
        assert not held
        shapes = [array_value(array).shape for array, _ in source.data]
        assert {shape[0] for shape in shapes if shape} == {N}


def test_large_constants_are_inputs():
    """Not a part of the compiled code, which numba could then not store."""
    X = np.random.default_rng(1).normal(size=(1500, 100))
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=100)
        pm.Normal("y", X @ w, 1, observed=X.sum(axis=1))
    source = gradient_source(model, model.value_vars)
    large = [array for array, _ in source.data]
    assert [array.data.shape for array in large] == [(1500, 100)]
    inside = ancestors([source.log_likelihood, *source.likelihood])
    assert not set(large) & set(inside)
    found = WholeGradients(model, model.value_vars, compile_kwargs={"mode": PYTHON}).gradient(
        np.zeros(100)
    )
    np.testing.assert_allclose(found, X.T @ X.sum(axis=1))


def test_what_is_held_is_not_differentiated_after_simplifying():
    x = pt.dscalar("x")
    [held] = before_gradients([x * disconnected_grad(x**2)])
    assert pytensor.grad(held, x).eval({x: 3.0}) == 9.0


@pytest.mark.parametrize("family", ["exponential", "weibull"])
def test_long_censored_times_have_a_density(family, python_by_default):
    """By PyMC's own log probability, log(1 - (1 - exp(-1500))), it is minus infinity."""
    time, end = np.array([2.0, 1500.0, 3.0, 1500.0]), np.array([9.0, 1500.0, 3.0, 1500.0])
    with pm.Model() as model:
        a, k = pm.Normal("a"), pm.Exponential("k")
        if family == "weibull":
            of_time, k_of_family = pm.Weibull.dist(k, pm.math.exp(a)), 1.1
        else:
            of_time, k_of_family = pm.Exponential.dist(lam=k * pm.math.exp(-a)), 1.0
        pm.Censored("time", of_time, lower=None, upper=end, observed=time)

    [log_likelihood] = before_gradients([model.logp(model.observed_RVs)])
    vars = model.value_vars
    function = pytensor.function(
        vars, [log_likelihood, *pt.grad(log_likelihood, vars)], mode=PYTHON
    )

    def right(at, log_k):
        """log k + (k - 1) log t - k a - (t / e^a)^k of the first time; the last part of others."""
        of_k = np.exp(log_k) if family == "weibull" else 1.0
        scale = np.exp(at) if family == "weibull" else np.exp(at - log_k)
        seen = np.log(of_k) + (of_k - 1) * np.log(time[0]) - of_k * np.log(scale)
        return seen - ((time / scale) ** of_k).sum()

    at = np.array([0.0, np.log(k_of_family)])
    assert np.isneginf(model.compile_fn(model.logp(), mode=PYTHON)(dict(a=at[0], k_log__=at[1])))
    value, *gradient = function(*at)
    assert value == pytest.approx(right(*at), rel=1e-12)
    for found, step in zip(gradient, 1e-5 * np.eye(2), strict=True):
        by_differences = (right(*at + step) - right(*at - step)) / 2e-5
        assert found == pytest.approx(by_differences, rel=1e-6)
