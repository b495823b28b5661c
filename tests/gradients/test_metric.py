"""Updates in coordinates of a metric: L z and L' g, stationary moments, streams."""

from functools import cache

import numpy as np
import pymc as pm
import pytensor
import pytest
from pytensor.compile.mode import Mode

from pymc_sgmcmc.chain import Chain
from pymc_sgmcmc.gradients.control_variate import ControlVariate
from pymc_sgmcmc.gradients.local_scales import LocalScales
from pymc_sgmcmc.gradients.metric import Dense, Diagonal
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.kernel import Kernel
from pymc_sgmcmc.schedules import Constant
from tests.samplers import SAMPLERS, assert_mean, blocks, stationary_covariance

PYTHON = Mode("py", "fast_compile")
SHAPES = [(), (2, 2)]
D = 5


class Regression:
    """y = b + X W + noise of a known sd, with correlated and badly scaled columns.

    The posterior of theta = (b, W) is a Gaussian.
    """

    n_rows, batch_size, sigma, prior_sd = 400, 100, 2.0, 10.0

    def __init__(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(self.n_rows, 4))
        X[:, 1] = X[:, 0] + 0.3 * X[:, 1]
        self.X = (X + 0.5) * [1.0, 1.0, 30.0, 0.1]
        rows = np.column_stack([np.ones(self.n_rows), self.X])
        self.rows = rows / self.sigma
        theta = np.array([1.0, 0.5, -0.5, 0.02, 3.0])
        self.y = rows @ theta + self.sigma * rng.normal(size=self.n_rows)
        self.precision = self.rows.T @ self.rows + np.eye(D) / self.prior_sd**2
        self.covariance = np.linalg.inv(self.precision)
        self.mean = self.covariance @ (self.rows.T @ (self.y / self.sigma))

    def model(self):
        with pm.Model() as model:
            b = pm.Normal("b", 0, self.prior_sd)
            W = pm.Normal("W", 0, self.prior_sd, shape=(2, 2))
            pm.Normal("y", b + pm.Data("X", self.X) @ W.ravel(), self.sigma, observed=self.y)
        return model

    def likelihood_gradient(self, theta):
        return self.rows.T @ (self.y / self.sigma - self.rows @ theta)


TARGET = Regression()


def split(flat):
    return [np.asarray(flat[0]), np.reshape(flat[1:], (2, 2))]


def flat(arrays):
    return np.concatenate([np.ravel(a) for a in arrays])


def metric_of(name):
    """A metric that suits the target as far as one of its kind can."""
    sd = np.sqrt(np.diag(TARGET.covariance))
    if name == "local":
        metric = LocalScales(SHAPES, [True, False])  # in z the shared W comes before b
        metric.set(np.linalg.cholesky(TARGET.covariance[1:, 1:]), [sd[0]])
    elif name == "diag":
        metric = Diagonal(SHAPES)
        metric.set(sd)  # the correlation of .96 is left to the sampler
    else:
        metric = Dense(SHAPES)
        # Not symmetric and not triangular: L' is not L.
        turn, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(D, D)))
        metric.set(np.linalg.cholesky(TARGET.covariance) @ turn)
    return metric


def matrix(metric):
    """L, by its NumPy product with the unit vectors."""
    return metric.times(np.eye(D)).T


# ---- the products --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["diag", "dense", "local"])
def test_products_agree(name):
    """L z and L' g, symbolic and in NumPy, for a scalar and a matrix; L' is the transpose of L."""
    metric, rng = metric_of(name), np.random.default_rng(2)
    z, g = rng.normal(size=(2, D))
    ends = np.cumsum([int(np.prod(shape)) for shape in metric.z_shapes])[:-1]
    parts = zip(np.split(z, ends), metric.z_shapes, strict=True)
    flat_z = [pytensor.shared(part.reshape(shape)) for part, shape in parts]
    arrays = [pytensor.shared(a) for a in metric.arrays]
    symbolic_z = [pytensor.tensor.as_tensor(v) for v in flat_z]
    symbolic_g = [pytensor.tensor.as_tensor(v) for v in split(g)]
    theta = metric.to_theta(symbolic_z, arrays)
    back = metric.to_z(symbolic_g, arrays)
    assert [v.type.ndim for v in theta] == [0, 2]
    assert [v.type.ndim for v in back] == [len(shape) for shape in metric.z_shapes]
    values = pytensor.function([], [*theta, *back], mode=PYTHON)()
    L = matrix(metric)
    np.testing.assert_allclose(flat(values[:2]), L @ z)
    np.testing.assert_allclose(flat(values[2:]), L.T @ g)
    np.testing.assert_allclose(metric.transposed_times(g), L.T @ g)
    both = rng.normal(size=(3, D))
    np.testing.assert_allclose(metric.times(both), both @ L.T)
    np.testing.assert_allclose(metric.transposed_times(both), both @ L)
    np.testing.assert_allclose(metric.inverse_times(L @ z), z)
    np.testing.assert_allclose(metric.spread(), np.linalg.norm(L, axis=1))


@pytest.mark.parametrize("make", [Diagonal, Dense])
def test_the_identity_at_first(make):
    np.testing.assert_array_equal(matrix(make(SHAPES)), np.eye(D))


# ---- stationary moments --------------------------------------------------------------------


def kernel_of(sampler_name, metric, mode, h, thin=10):
    """Compiled updates under minibatch noise, with a control variate and its anchor off-centre."""
    (sampler,) = (s for s in SAMPLERS if s.name == sampler_name)
    algorithm = sampler.algorithm()
    model = TARGET.model()
    source = ControlVariate.of(
        gradient_source(model, list(model.value_vars), batch_size=TARGET.batch_size), model
    )
    # A third of a posterior sd off the mean: the anchor's gradient matters.
    anchor = TARGET.mean + 0.3 * np.sqrt(np.diag(TARGET.covariance))
    gradient = TARGET.likelihood_gradient(anchor)
    source.set_anchor(split(anchor), split(gradient), split(np.zeros_like(anchor)))
    options = {"mode": mode}
    kernel = Kernel(
        sampler_name, model, source, algorithm, Constant(h), thin, True, options, metric
    )
    kernel.load_data()
    return kernel


def draws_of(kernel, n, seed=0):
    """Flat draws of one chain from the posterior's mean, shape (n, d)."""
    chain = Chain(kernel, np.random.default_rng(seed), tune=0)
    point = dict(zip(["b", "W"], split(TARGET.mean), strict=True))
    drawn = np.empty((n, D))
    for i in range(n):
        advance = chain.draw(point)
        assert not advance.nonfinite
        point = advance.moved
        drawn[i] = flat([point["b"], point["W"]])
    return drawn


CASES = [
    ("SGLD", "dense", "JAX", 0.1),
    pytest.param("SGHMC_S", "dense", "JAX", 0.2, marks=pytest.mark.long),
    pytest.param("SGNHT_S", "dense", "JAX", 0.2, marks=pytest.mark.long),
    pytest.param("MSGNHT_E", "dense", "JAX", 0.06, marks=pytest.mark.long),
    ("MSGNHT_S", "dense", "JAX", 0.2),
    pytest.param("SGLD", "diag", "JAX", 0.05, marks=pytest.mark.long),
    pytest.param("MSGNHT_S", "dense", "NUMBA", 0.2, marks=pytest.mark.long),
    pytest.param("MSGNHT_S", "diag", "NUMBA", 0.1, marks=pytest.mark.long),
]


@cache
def kernel_for(sampler_name, metric_name, mode, h):
    return kernel_of(sampler_name, metric_of(metric_name), mode, h, thin=50)


@pytest.mark.slow(8)
@pytest.mark.parametrize(("sampler_name", "metric_name", "mode", "h"), CASES)
def test_moments(sampler_name, metric_name, mode, h):
    """Mean and covariance on a conjugate regression by batches, in units of posterior sds.

    The batches' noise around the anchor has in whitened z a variance of about d / n per
    element and unit of squared distance: at most a tenth, which adds less than 1% of variance.
    The step size's own bias is exact for the samplers whose updates are affine, and within
    `Sampler.bias`, of order h or h^2 from its own step size, for thermostats.
    """
    (sampler,) = (s for s in SAMPLERS if s.name == sampler_name)
    metric = metric_of(metric_name)
    L = matrix(metric)
    expected, bias = TARGET.covariance, 0.01
    if sampler.kind == "linear":
        precision = L.T @ TARGET.precision @ L
        expected = L @ stationary_covariance(sampler.algorithm(), precision, h)[:D, :D] @ L.T
    else:
        bias += sampler.bias * max(1.0, h / sampler.step_size) ** sampler.order["theta"] / 4
    kernel = kernel_for(sampler_name, metric_name, mode, h)
    n = int(3e4 / h / 50)  # some 10,000 relaxation times: 1% of a variance
    sd = np.sqrt(np.diag(TARGET.covariance))
    z = (draws_of(kernel, n + 20)[20:] - TARGET.mean) / sd
    if metric_name != "diag":
        # in whitened coordinates, in which the posterior's narrow directions show too
        root = np.linalg.cholesky(TARGET.covariance / np.outer(sd, sd))
        z = np.linalg.solve(root, z.T).T
        expected = np.linalg.solve(root, expected / np.outer(sd, sd))
        expected = np.linalg.solve(root, expected.T)
    else:
        expected = expected / np.outer(sd, sd)
    # Blocks of a few hundred relaxation times are nearly independent.
    assert_mean(blocks(z), 0.0, 0.01)
    pairs = np.einsum("ki,kj->kij", z, z)
    assert_mean(blocks(pairs), expected, bias)


@cache
def jax_kernel():
    return kernel_of("MSGNHT_S", metric_of("dense"), "JAX", 0.2)


@pytest.mark.long
def test_another_metric_without_compiling_again():
    """L is an input: set anew between calls, the same compiled updates are right for it."""
    kernel = jax_kernel()
    before = draws_of(kernel, 3)
    compiled = kernel.loop
    first = kernel.metric.arrays
    # Mirrored axes, and all directions one and a half times as long: another path.
    kernel.metric.set(1.5 * first[0][:, ::-1])
    kernel.load_adaptation()
    sd = np.sqrt(np.diag(TARGET.covariance))
    z = (draws_of(kernel, 15_000)[100:] - TARGET.mean) / sd
    assert kernel.loop is compiled
    assert_mean(blocks(z), 0.0, 0.01)
    pairs = np.einsum("ki,kj->kij", z, z)
    # The step is h' = .3 in the first z: a bias of h'^2 / 4 at most.
    assert_mean(blocks(pairs), TARGET.covariance / np.outer(sd, sd), 0.03)
    kernel.metric.arrays = first
    kernel.load_adaptation()
    np.testing.assert_array_equal(draws_of(kernel, 3), before)
    np.testing.assert_raises(AssertionError, np.testing.assert_allclose, z[:3], before)


# ---- streams -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["JAX", pytest.param("NUMBA", marks=pytest.mark.slow(10))])
def test_draws_do_not_depend_on_the_calls(mode):
    """A draw in one call, or split into several."""
    kernel = jax_kernel() if mode == "JAX" else kernel_for("MSGNHT_S", "dense", mode, 0.2)
    paths = []
    for most in (100, 3):
        chain = Chain(kernel, np.random.default_rng(1), tune=0)
        point = dict(zip(["b", "W"], split(TARGET.mean), strict=True))
        path = []
        for _ in range(4):
            chain.call_length.n_updates = most
            point = chain.draw(point).moved
            path.append(flat([point["b"], point["W"]]))
        paths.append(path)
    if mode == "NUMBA":
        np.testing.assert_array_equal(paths[0], paths[1])
    else:  # XLA may order the sums otherwise in a scan of another length
        np.testing.assert_allclose(paths[0], paths[1], rtol=1e-9)


# ---- scaled by a curvature and fitted to the noise ---------------------------------------


def of_theta_and_noise():
    """The inverse of a covariance of theta, and a covariance of the gradient's noise."""
    a, b = np.random.default_rng(3).normal(size=(2, D, D))
    units = np.diag([1.0, 100.0, 0.01, 1.0, 3.0])
    return units @ (a @ a.T + np.eye(D)) @ units, units @ (b @ b.T) @ units


def in_z(metric, matrix):
    return metric.matrix.T @ matrix @ metric.matrix


def test_dense_is_scaled_by_the_curvature_and_turned_to_the_noise():
    matrix, noise = of_theta_and_noise()
    metric = Dense(SHAPES)
    metric.scale_to(matrix)
    np.testing.assert_allclose(in_z(metric, matrix), np.eye(D), atol=1e-10)
    variances, largest, smallest = metric.fit_to_noise(in_z(metric, noise), matrix)
    np.testing.assert_allclose(in_z(metric, matrix), np.eye(D), atol=1e-10)
    atol = 1e-10 * variances.max()
    np.testing.assert_allclose(in_z(metric, noise), np.diag(variances), atol=atol)
    assert largest == smallest == 1.0


def test_diagonal_is_scaled_by_the_curvature_and_stays():
    matrix, noise = of_theta_and_noise()
    metric = Diagonal(SHAPES)
    metric.scale_to(matrix)
    np.testing.assert_allclose(metric.matrix, np.diag(np.diag(matrix) ** -0.5))
    noise = in_z(metric, noise)
    variances, largest, smallest = metric.fit_to_noise(noise, matrix)
    np.testing.assert_allclose(metric.matrix, np.diag(np.diag(matrix) ** -0.5))
    eigenvalues = np.linalg.eigvalsh(in_z(metric, matrix))
    np.testing.assert_allclose([smallest, largest], eigenvalues[[0, -1]])
    k = np.argmax(np.diag(noise))
    np.testing.assert_allclose(np.delete(variances, k), np.delete(np.diag(noise), k))
    np.testing.assert_allclose(variances[k], np.linalg.norm(noise, 2))
