"""Gradients of single rows, of the prior and of all data, as functions of one flat vector."""

import gallery  # noqa: F401  (its modules fill the table of forms)
import models
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from gallery.forms import ACCEPTED

from pymc_sgmcmc.gradients import whole_gradients
from pymc_sgmcmc.gradients.arrays import PYTHON, array_value
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients

JAX = {"mode": "JAX"}
FORMS = {
    **{name: build for name, build in models.MODELS.items() if name != "normal_mixture"},
    **{name: form.build for name, form in ACCEPTED.items()},
}
CUT_ALONG = {"one_term_elsewhere": "obs", "which_rows.two_groups_one_of_them_cut": "drug row"}


def row_gradients(name, mode="JAX"):
    model = FORMS[name]()
    dim = CUT_ALONG.get(name)
    kwargs = {"mode": mode}
    return RowGradients(model, model.value_vars, minibatch_dim=dim, compile_kwargs=kwargs)


def a_point(functions, scale=0.3):
    """Off the initial one, in float64."""
    start = functions.flat(functions.model.initial_point())
    return start + np.random.default_rng(3).normal(scale=scale, size=start.shape)


def of_model(functions, theta):
    """The model's own log density and flat gradient, as NUTS has them."""
    vars = functions.model.value_vars
    logp = functions.model.logp()
    outputs = [logp, *pytensor.gradient.grad(logp, vars)]
    function = pytensor.function(vars, outputs, mode=PYTHON)
    value, *gradient = function(*functions.split(theta))
    return value, functions.joined(gradient)


def assert_adds_up(rows, theta, rtol=1e-10):
    """The rows and the prior are the model's own; the rtol is of the largest element."""
    index = np.arange(rows.n_rows)
    values, gradients = rows.rows(theta, index)
    log_p, gradient = of_model(rows, theta)
    largest = np.abs(gradients).sum(axis=0).max() + np.abs(gradient).max()
    np.testing.assert_allclose(values.sum() + rows.log_prior(theta), log_p, rtol=rtol)
    total = gradients.sum(axis=0) + rows.prior_gradient(theta)
    np.testing.assert_allclose(total, gradient, rtol=rtol, atol=rtol * largest)
    likelihood = rows.likelihood(theta)
    assert {a.dtype for a in (values, gradients, total, likelihood.scatter)} == {np.dtype("f8")}
    np.testing.assert_allclose(likelihood.value, values.sum(), rtol=1e-12)
    np.testing.assert_allclose(
        likelihood.gradient, gradients.sum(axis=0), rtol=1e-12, atol=1e-12 * largest
    )
    products = gradients.T @ gradients
    np.testing.assert_allclose(likelihood.scatter, products, atol=1e-12 * np.abs(products).max())


def assert_equal_to_batches_of_one(rows, theta):
    source = rows.source
    index = [0, rows.n_rows - 1, 1, 1]
    function = pytensor.function(
        source.inputs,
        [source.log_likelihood, *source.likelihood],
        mode=PYTHON,
        on_unused_input="ignore",
    )
    data = [array_value(array) for array, _ in source.data]
    scale = np.asarray(rows.n_rows, source.rows[0].scale.dtype)
    values, gradients = rows.rows(theta, index)
    for k, value, gradient in zip(index, values, gradients, strict=True):
        one, *its_gradient = function(*rows.split(theta), np.array([k]), scale, *data)
        np.testing.assert_allclose(value * rows.n_rows, one, rtol=1e-10, atol=1e-10)
        expected = rows.joined(its_gradient)
        np.testing.assert_allclose(gradient * rows.n_rows, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.slow(3)
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("linear", "JAX"),
        ("logistic_without_dims", "JAX"),
        ("discrete_choice.softmax_regression", "JAX"),
        ("hierarchical", "JAX"),
        ("hierarchical", "NUMBA"),
        ("two_terms", "JAX"),
        ("one_term_elsewhere", "JAX"),
        ("truncated", "JAX"),
        ("survival.censored_constant_bounds", "JAX"),
        ("potential_along_rows", "JAX"),
        ("rows_not_first", "JAX"),
        pytest.param("rows_not_first", "NUMBA", marks=pytest.mark.long),
        pytest.param("linear", "CVM", marks=pytest.mark.long),
        ("data_in_a_prior", "JAX"),
        ("multivariate_rows", "JAX"),
        ("dims_models.hierarchy", "JAX"),
        ("which_rows.two_groups_one_of_them_cut", "JAX"),
        ("which_rows.two_groups_of_different_length", "JAX"),
    ],
)
def test_rows_and_prior_are_the_model(name, mode):
    rows = row_gradients(name, mode)
    theta = a_point(rows)
    assert_adds_up(rows, theta)
    assert_equal_to_batches_of_one(rows, theta)


def test_float32():
    with pytensor.config.change_flags(floatX="float32"):
        rows = row_gradients("hierarchical")
        theta = a_point(rows)
        # float32 rounds to 6e-8, sums of some 100 terms to some 1e-6 of the largest
        assert_adds_up(rows, theta, rtol=2e-5)
    assert rows.point(theta)["mu"].dtype == "float32"
    exact = row_gradients("hierarchical").rows(theta, [4, 2])[1]
    np.testing.assert_allclose(rows.rows(theta, [4, 2])[1], exact, rtol=1e-4, atol=1e-4)


def test_blocks():
    """Many blocks, the last of them not full, or one."""
    rows = row_gradients("linear")
    theta = a_point(rows)
    index = np.random.default_rng(5).integers(rows.n_rows, size=31)
    values, gradients = rows.rows(theta, index)
    rows.block = 8
    in_blocks = rows.rows(theta, index)
    np.testing.assert_allclose(in_blocks[0], values, rtol=1e-12)
    np.testing.assert_allclose(in_blocks[1], gradients, rtol=1e-12)
    some = rows.likelihood(theta, index, scatter=False)
    assert some.scatter is None
    np.testing.assert_allclose(some.value, values.sum())
    np.testing.assert_allclose(some.gradient, gradients.sum(axis=0))
    assert rows.rows(theta, [])[1].shape == (0, rows.size)


def test_a_row_is_what_the_data_lose_without_it(regression, regression_data):
    """The model's own gradient of all rows but one; and the data are read anew."""
    X, y = regression_data
    rows = RowGradients(regression, regression.value_vars, compile_kwargs=JAX)
    theta = a_point(rows)
    value, gradient = rows.rows(theta, [7])
    with_it = of_model(rows, theta)
    keep = np.arange(len(y)) != 7
    with regression:
        pm.set_data({"X": X[keep], "target": y[keep]}, coords={"obs": np.arange(keep.sum())})
    rows.load_data()
    assert rows.n_rows == len(y) - 1
    without = of_model(rows, theta)
    np.testing.assert_allclose(value[0], with_it[0] - without[0], rtol=1e-9)
    np.testing.assert_allclose(gradient[0], with_it[1] - without[1], rtol=1e-9)
    assert_adds_up(rows, theta)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("hierarchical", "FAST_COMPILE"),
        ("multivariate_rows", "FAST_COMPILE"),
        ("hierarchical", "JAX"),
        ("multivariate_rows", "JAX"),
        ("hierarchical", "NUMBA"),
        pytest.param("multivariate_rows", "NUMBA", marks=pytest.mark.long),
        pytest.param("hierarchical", "CVM", marks=pytest.mark.long),
        pytest.param("multivariate_rows", "CVM", marks=pytest.mark.long),
    ],
)
def test_rows_at_points_of_their_own(name, mode):
    functions = row_gradients(name, mode)
    index = np.arange(functions.n_rows)[::-3]
    centre = a_point(functions)
    points = centre + np.random.default_rng(4).normal(scale=0.1, size=(len(index), len(centre)))
    each = [
        functions.rows(theta, [i])[1][0] for theta, i in zip(points[:5], index[:5], strict=True)
    ]
    assert "_of_rows_at" not in vars(functions), "compiled where nothing asks for it"
    found = functions.rows_at(points, index)
    assert found.shape == points.shape
    np.testing.assert_allclose(found[:5], each, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("requests", [0, 1000])
def test_rows_at_one_point_that_is_asked_for_often(requests, monkeypatch):
    rows = row_gradients("linear")
    theta, index = a_point(rows), [5, 2, 5, 0]
    expected = rows.rows(theta, index)[1]
    found = rows.rows_of(theta, requests)
    evaluated = []
    monkeypatch.setattr(rows, "rows", lambda t, i: evaluated.append(i) or (None, expected))
    np.testing.assert_allclose(found(index), expected, rtol=1e-12)
    assert bool(evaluated) == (requests == 0), "looked up, or evaluated"


def test_points_and_names():
    rows = row_gradients("hierarchical")
    theta = np.arange(float(rows.size))
    assert rows.names[:2] == ["mu", "tau_log__"]
    assert rows.names[2:6] == [f"alpha[{k}]" for k in range(4)]
    point = rows.point(theta)
    assert point["mu"].shape == ()
    np.testing.assert_array_equal(point["alpha"], [2, 3, 4, 5])
    np.testing.assert_array_equal(rows.flat({**point, "more": 1.0}), theta)


def test_some_variables_stay_at_the_start(regression):
    w, _, sigma = regression.value_vars
    start = {**regression.initial_point(), "b": np.array(0.7)}
    some = RowGradients(regression, [w, sigma], compile_kwargs=JAX, start=start)
    every = RowGradients(regression, regression.value_vars, compile_kwargs=JAX)
    theta = every.flat(start) + np.array([0.1, -0.2, 0, 0.3])
    np.testing.assert_allclose(
        some.rows(theta[[0, 1, 3]], [3])[1], every.rows(theta, [3])[1][:, [0, 1, 3]], rtol=1e-12
    )
    assert some.log_prior(theta[[0, 1, 3]]) == pytest.approx(every.log_prior(theta))


# ---- the prior -----------------------------------------------------------------------------


def with_prior(build):
    with pm.Model() as model:
        build()
        pm.Normal("y", pm.Normal("mu", 0, 2), 1, observed=np.zeros(50))
    return RowGradients(model, model.value_vars, compile_kwargs=JAX)


def test_curvature_of_the_prior():
    """A group's effects given their scale, whose logarithm is sampled."""
    n = 4
    rows = with_prior(lambda: pm.Normal("a", 0, pm.HalfNormal("t", 3), shape=n))
    theta = a_point(rows)
    log_t, a, _ = theta[0], theta[1 : n + 1], theta[-1]
    precision = np.exp(-2 * log_t)
    expected = np.zeros((n + 2, n + 2))
    # log density: -a.a exp(-2 l) / 2 - n l  -  exp(2 l) / 18 + l  -  mu^2 / 8
    expected[0, 0] = -2 * precision * (a @ a) - 4 * np.exp(2 * log_t) / 18
    expected[0, 1 : n + 1] = expected[1 : n + 1, 0] = 2 * precision * a
    expected[range(1, n + 1), range(1, n + 1)] = -precision
    expected[-1, -1] = -1 / 4
    np.testing.assert_allclose(rows.prior_hessian(theta), expected, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(rows.prior_curvature_diagonal(theta), np.diag(expected), rtol=1e-10)


def random_walk(n):
    steps = pm.Normal("x", 0, 1, shape=n)[1:] - pm.Model.get_context()["x"][:-1]
    pm.Potential("smooth", -0.5 * ((steps / pm.HalfNormal("s", 1)) ** 2).sum())


@pytest.mark.parametrize(
    ("build", "most_products"),
    [
        (lambda: pm.Normal("x", 0, pm.HalfNormal("t"), shape=60), 10),
        (lambda: random_walk(60), 20),
        (lambda: pm.MvNormal("x", np.zeros(5), np.eye(5) + 1, shape=5), 20),
    ],
)
def test_diagonal_of_coupled_elements(build, most_products):
    """As many products as elements only where all couple."""
    rows = with_prior(build)
    theta = a_point(rows)
    expected = np.diag(rows.prior_hessian(theta))
    products, calls = rows._prior_products, []
    rows._prior_products = lambda *args: calls.append(1) or products(*args)
    np.testing.assert_allclose(rows.prior_curvature_diagonal(theta), expected, rtol=1e-7)
    assert len(calls) <= most_products


def slopes_and_intercepts():
    chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1))
    pm.MvNormal("ab", pm.Normal("m", shape=2), chol=chol, shape=(30, 2))


def nested():
    pm.Normal("b", pm.Normal("a", 0, 1, shape=20) ** 2, pm.HalfNormal("s"), shape=(20,))


def crossed():
    both = pm.Normal("a", 0, 1, shape=20).sum() * pm.Normal("b", 0, 1, shape=30).sum()
    pm.Potential("p", -(both**2))


@pytest.mark.parametrize(
    ("build", "most_products"),
    [
        (slopes_and_intercepts, 2 * 2 + 3 + 2 + 1),
        (nested, 2 * 2 + 1 + 1),
        (lambda: random_walk(20), 2 + 20 + 1 + 1),
        (crossed, 2 * 2 + 20 + 30 + 1),
    ],
)
def test_hessian_of_groups(build, most_products):
    """Two products for each element of a group, where groups are independent."""
    rows = with_prior(build)
    theta = a_point(rows)
    products, tried = rows._prior_products, []
    expected = products(theta, np.eye(rows.size))
    rows._prior_products = lambda theta, W: tried.append(len(W)) or products(theta, W)
    np.testing.assert_allclose(rows.prior_hessian(theta), expected, rtol=1e-9, atol=1e-9)
    assert sum(tried) <= most_products


def test_hessian_where_all_variables_have_groups():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x", 0, 2, shape=20).sum(), 1, observed=np.zeros(50))
    rows = RowGradients(model, model.value_vars, compile_kwargs=JAX)
    np.testing.assert_allclose(rows.prior_hessian(a_point(rows)), np.eye(20) / -4)


def test_prior_without_second_derivative():
    """PyTensor has none of the incomplete gamma function by its first argument."""

    def build():
        pm.Potential("p", pt.log(pt.gammainc(pm.Gamma("k", 2, 1), 2.0)))

    rows = with_prior(build)
    theta = a_point(rows)
    # The second derivative from values: their rounding, 1e-15, is divided by the step's square.
    step = 1e-3 * np.eye(2)[0]
    values = [rows.log_prior(theta + k * step) for k in (-1, 0, 1)]
    expected = (values[0] - 2 * values[1] + values[2]) / 1e-6
    np.testing.assert_allclose(rows.prior_hessian(theta)[0, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(rows.prior_curvature_diagonal(theta)[0], expected, rtol=1e-5)


def test_prior_out_of_range_is_not_finite():
    rows = with_prior(lambda: pm.Normal("a", 0, pm.HalfNormal("t", 3), shape=2))
    assert not np.isfinite(rows.log_prior(np.array([-800.0, 1.0, 1.0, 0.0])))


# ---- all data ------------------------------------------------------------------------------


@pytest.mark.parametrize(("floatX", "rtol"), [("float64", 1e-7), ("float32", 3e-3)])
@pytest.mark.parametrize("many", [1, 100])
def test_hessian_of_all_data(floatX, rtol, many, monkeypatch):
    """A Poisson regression on features of very different sizes; differences err by sqrt(eps)."""
    monkeypatch.setattr(whole_gradients, "MANY", many)
    rng = np.random.default_rng(8)
    sizes = np.array([1e-3, 1.0, 1e4])
    X = (rng.normal(size=(300, 3)) * sizes).astype(floatX)
    true = np.array([0.5, -0.3, 0.4]) / sizes
    with pytensor.config.change_flags(floatX=floatX):
        with pm.Model() as model:
            w = pm.Normal("w", 0, 1 / sizes, shape=3)
            y = pm.Data("counts", rng.poisson(np.exp(X @ true)).astype("int32"))
            pm.Poisson("y", pt.exp(pm.Data("X", X) @ w), observed=y)
        whole = WholeGradients(model, model.value_vars, compile_kwargs=JAX)
        hessian = whole.hessian(true)
        log_p, gradient = of_model(whole, true)
        found = whole.log_prior(true) + whole.log_likelihood(true)[0]
        np.testing.assert_allclose(found, log_p, rtol=rtol)
        np.testing.assert_allclose(whole.gradient(true) * sizes, gradient * sizes, rtol=100 * rtol)
    expected = -(X.T * np.exp(X @ true)) @ X - np.diag(sizes**2)
    scaled = [h / np.outer(sizes, sizes) for h in (hessian, expected)]
    np.testing.assert_allclose(*scaled, atol=rtol * np.abs(scaled[1]).max())
    np.testing.assert_array_equal(hessian, hessian.T)


def curves(n_groups):
    """Three effects a group that enter nonlinearly, one of them with means of categories."""
    rng = np.random.default_rng(4)
    group, x = np.repeat(np.arange(n_groups), 12), rng.normal(size=12 * n_groups)
    mean = pm.Normal("mean", 0, 1, shape=10)
    half, top = (pm.Normal(name, 0, 1, shape=n_groups) for name in ("half", "top"))
    slope = pm.LogNormal("slope", 0, 0.3, shape=n_groups)
    at = half[group] + mean[np.arange(n_groups) % 10][group]
    curve = top[group] / (1 + pt.exp(-slope[group] * (x - at)))
    pm.Normal("y", curve, pm.HalfNormal("sigma"), observed=rng.normal(size=len(x)))


def test_hessian_by_products_with_groups():
    """Two products for each effect of a group, and one or two for each other parameter."""
    with pm.Model() as model:
        curves(40)
    whole = WholeGradients(model, model.value_vars, compile_kwargs=JAX)
    theta = a_point(whole)
    found, taken = whole.hessian(theta), whole.gradients_of_hessian
    expected = whole._differences(theta, np.finfo(float).eps ** 0.25)
    sizes = np.sqrt(np.abs(np.diag(expected)))
    assert np.abs((found - expected) / np.outer(sizes, sizes)).max() < 1e-5
    assert taken <= 2 * (2 * 3 + (2 + 10) + 1) + 2


def test_hessian_of_many_parameters_without_second_derivative(monkeypatch):
    monkeypatch.setattr(whole_gradients, "MANY", 1)
    with pm.Model() as model:
        k = pm.Gamma("k", 2, 1)
        pm.CustomDist("y", k, logp=lambda y, k: pt.log(pt.gammainc(k, y)), observed=[2.0, 1.0])
    whole = WholeGradients(model, model.value_vars, compile_kwargs={"mode": PYTHON})
    theta = a_point(whole)
    step = 1e-3
    points = [theta - step, theta, theta + step]
    values = [whole.log_prior(point) + whole.log_likelihood(point)[0] for point in points]
    expected = (values[0] - 2 * values[1] + values[2]) / step**2
    np.testing.assert_allclose(whole.hessian(theta), [[expected]], rtol=1e-5)


@pytest.mark.parametrize("many", [1, 100])
def test_hessian_of_kinks(many, monkeypatch):
    """Second derivatives of |r| are zero; differences far enough apart see its curvature."""
    monkeypatch.setattr(whole_gradients, "MANY", many)
    y = np.random.default_rng(6).laplace(size=400)
    with pm.Model() as model:
        pm.Laplace("y", pm.Normal("a", 0, 10), 1, observed=y)
    whole = WholeGradients(model, model.value_vars, compile_kwargs=JAX)
    # The Fisher information of a row is 1: half of the rows within a step tell of it.
    assert whole.hessian(np.array([np.median(y)]))[0, 0] == pytest.approx(-400, rel=0.4)


def test_whole_and_rows_agree():
    rows = row_gradients("hierarchical")
    whole = WholeGradients(rows.model, rows.model.value_vars, compile_kwargs=JAX)
    theta = a_point(rows)
    likelihood = rows.likelihood(theta)
    total = rows.prior_gradient(theta) + likelihood.gradient
    np.testing.assert_allclose(whole.gradient(theta), total, rtol=1e-10)
    value = rows.log_prior(theta) + likelihood.value
    assert whole.log_prior(theta) + whole.log_likelihood(theta)[0] == pytest.approx(
        value, rel=1e-12
    )


# ---- refused -------------------------------------------------------------------------------


def test_minibatch_models_are_refused(regression_data):
    X, y = regression_data
    with pm.Model() as model:
        X_mb, y_mb = pm.Minibatch(X, y, batch_size=5)
        pm.Normal("y", X_mb @ pm.Normal("w", shape=2), 1, observed=y_mb, total_size=len(y))
    with pytest.raises(ValueError, match=r"'y' uses pm\.Minibatch.*single rows"):
        RowGradients(model, model.value_vars)
    with pytest.raises(ValueError, match=r"'y' uses pm\.Minibatch.*all data"):
        WholeGradients(model, model.value_vars)
