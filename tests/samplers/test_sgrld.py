"""SGRLD: the paper's update, its stationary law in sparse corners, what it refuses."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import simplex as simplex_transform
from scipy.stats import gamma, norm

import pymc_sgmcmc as sgm
from pymc_sgmcmc import kernel
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.samplers import sgrld
from tests.samplers import Chain, OneUpdate, assert_mean
from tests.targets import DirichletCategorical

pytestmark = pytest.mark.usefixtures("python_by_default")

RUN = dict(progressbar=False, compute_convergence_checks=False)
expanded_mean = sgm.SGRLD.algorithm_class


def to_y(theta):
    log_theta = np.log(theta)
    return (log_theta - log_theta.mean(axis=-1, keepdims=True))[..., :-1]


def to_pi(y):
    return DirichletCategorical.simplex(y)


# ---- the update ----------------------------------------------------------------------------


def test_simplex_is_pymcs():
    y = np.random.default_rng(0).normal(size=(2, 3, 4))
    pi = simplex_transform.backward(pt.as_tensor(y)).eval(mode=PYTHON)
    np.testing.assert_allclose(sgrld.simplex(pt.as_tensor(y)).eval(mode=PYTHON), pi)
    np.testing.assert_allclose(sgrld.unconstrained(pt.as_tensor(7 * pi)).eval(mode=PYTHON), y)


def test_simplex_gradient():
    """G = theta * d/dtheta of a function of theta / sum(theta), by PyTensor's own chain rule."""
    theta = pt.tensor("theta", shape=(2, 4), dtype="float64")
    y = pt.tensor("y", shape=(2, 3), dtype="float64")

    def function(pi):
        return pt.sum(pt.sin(3 * pi) * np.arange(1, 9).reshape(2, 4))

    expected = theta * pt.grad(function(theta / theta.sum(axis=-1, keepdims=True)), theta)
    mine = sgrld.simplex_gradient(pt.grad(function(sgrld.simplex(y)), y))
    value = np.random.default_rng(1).gamma(1.0, size=(2, 4))
    np.testing.assert_allclose(
        mine.eval({y: to_y(value)}, mode=PYTHON), expected.eval({theta: value}, mode=PYTHON)
    )


def test_update_is_the_papers():
    """Patterson and Teh's update, written with counts, for two variables of different shapes."""
    rng = np.random.default_rng(2)
    alpha = [np.array([[0.1, 2.0, 0.5], [0.1, 2.0, 0.5]]), np.array([0.3, 0.3, 0.4, 4.0])]
    counts = [np.array([[0.0, 5, 2], [7, 0, 1]]), np.array([0.0, 0, 3, 11])]
    A = [float(a.sum(axis=-1).flat[0]) for a in alpha]

    def weighted_log(weights):
        def log_p(ys):
            return pt.add(
                *(pt.sum(w * pt.log(sgrld.simplex(y))) for w, y in zip(weights, ys, strict=True))
            )

        return log_p

    theta = [rng.gamma(2.0, size=a.shape) for a in alpha]
    ys = [to_y(t) for t in theta]
    state = {"total": [t.sum(axis=-1) for t in theta]}
    update = OneUpdate(expanded_mean(tuple(A)), ys, weighted_log(counts), weighted_log(alpha))
    e = 0.07
    for _ in range(5):
        z = [rng.normal(size=t.shape) for t in theta]
        ys, state = update(ys, state, e, z)
        for k, (a, n) in enumerate(zip(alpha, counts, strict=True)):
            t = theta[k]
            pi = t / t.sum(axis=-1, keepdims=True)
            drift = a - t + n - pi * n.sum(axis=-1, keepdims=True)
            theta[k] = np.abs(t + e / 2 * drift + np.sqrt(e * t) * z[k])
            np.testing.assert_allclose(ys[k], to_y(theta[k]), rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(state["total"][k], theta[k].sum(axis=-1), rtol=1e-10)
    assert update.n_gradients == 1
    assert update.n_noises == 1


def test_start_and_float_type():
    """The expanded theta starts at pi A; all stays in theta's float type."""
    algorithm = expanded_mean((3.0, np.array([1.0, 2.0])))
    theta = [np.zeros((4, 2), "float32"), np.zeros((2, 5), "float32")]
    state = algorithm.init(theta, np.random.default_rng(0))
    assert [t.dtype for t in state["total"]] == ["float32"] * 2
    np.testing.assert_array_equal(state["total"][0], np.full(4, 3.0))
    np.testing.assert_array_equal(state["total"][1], [1.0, 2.0])
    with pytensor.config.change_flags(floatX="float32", warn_float64="raise"):
        ys = [pt.tensor(shape=t.shape, dtype="float32") for t in theta]
        totals = {"total": [pt.constant(t) for t in state["total"]]}
        gradient = SimpleNamespace(total=ys)
        h = pt.scalar(dtype="float32")
        moved, _ = algorithm.update(ys, totals, lambda y: gradient, h, lambda like: like)
    assert [t.dtype for t in moved] == ["float32"] * 2


# ---- stationary law ------------------------------------------------------------------------

CORNERS = np.array([0.1, 0.1, 1.0, 3.0])


@cache
def stationary(alpha: float, e: float) -> tuple[np.ndarray, np.ndarray]:
    """Cells of theta and their stationary probabilities under theta -> |N(m, s^2)|.

    Of one element without data, for which m = theta + e / 2 (alpha - theta), s^2 = e theta, with
    the exact probability of each cell from each cell's centre. The cells are even in sqrt(theta),
    where the noise is, and below e / 100 in log(theta).
    """
    low = 0.01 * e
    tiny = np.exp(np.arange(np.log(1e-9), np.log(low), 0.1))
    edges = np.concatenate([tiny, np.arange(np.sqrt(low), np.sqrt(8 * alpha + 16), 0.005) ** 2])
    centres = (edges[1:] + edges[:-1]) / 2
    m, s = centres + e / 2 * (alpha - centres), np.sqrt(e * centres)
    below = norm.cdf((edges[:, None] - m) / s) - norm.cdf((-edges[:, None] - m) / s)
    below[0], below[-1] = 0.0, 1.0
    balance = np.diff(below, axis=0) - np.eye(len(centres))
    balance[-1] = 1.0  # one equation is superfluous; the probabilities sum to 1
    total = np.zeros(len(centres))
    total[-1] = 1.0
    return centres, np.linalg.solve(balance, total)


@pytest.mark.long
def test_stationary_law_in_sparse_corners():
    """Without data the expanded elements are independent; each has its exact stationary law."""
    e = 0.1
    with pm.Model() as model:
        pm.Dirichlet("pi", CORNERS, shape=(3000, 4))
    chain = Chain(model, expanded_mean(float(CORNERS.sum())), "JAX")
    y, state = chain.run(e, seed=1, snapshots=100, every=20, burn_in=10)
    theta = to_pi(y[0]) * state["total"][0][..., None]
    for k, alpha in enumerate(CORNERS):
        centres, p = stationary(alpha, e)
        grid = 1e-3  # the cells' own error: that much between cells of 0.01 and of 0.005
        assert_mean(theta[..., k].mean(axis=0), p @ centres, grid)
        assert_mean((theta[..., k] ** 2).mean(axis=0), p @ centres**2, 4 * grid)
        rare = centres < 0.01
        assert_mean((theta[..., k] < 0.01).mean(axis=0), p @ rare, 0.02 * (p @ rare) + grid)


def test_order_of_the_bias():
    """1 in e for shapes from 1 on, towards alpha below: what the docs say of the reflection."""
    for alpha, orders in [(3.0, (0.9, 1.1)), (1.0, (0.9, 1.1)), (0.3, (0.3, 0.5))]:
        squares = [p @ centres**2 for centres, p in (stationary(alpha, e) for e in (0.1, 0.05))]
        errors = np.array(squares) - alpha - alpha**2
        order = np.log2(errors[0] / errors[1])
        assert orders[0] < order < orders[1], (alpha, order)


@pytest.mark.long
def test_concentration_does_not_change_the_posterior():
    """The total is Gamma(A), independent of the simplex."""
    target = DirichletCategorical()
    for A in (2.0, 30.0):
        chain = Chain(target.replicas(1000), expanded_mean(A), "JAX")
        y, state = chain.run(4e-4 * A, seed=3, snapshots=40, every=50, burn_in=20)
        pi, total = to_pi(y[0]), state["total"][0]
        assert_mean(pi.mean(axis=0), target.mean, 0.02 * target.sd)
        assert_mean(((pi - target.mean) ** 2).mean(axis=0), target.sd**2, 0.02 * target.sd**2)
        assert_mean(total.mean(axis=0), A, 0.02 * A)
        assert_mean((total < A / 2).mean(axis=0), gamma(A).cdf(A / 2), 0.02)


@pytest.mark.long
@pytest.mark.slow(10)
def test_sparse_corners_with_counts():
    """alpha = 0.1, some elements without counts: their bias falls as e^0.1, the others' as e."""
    alpha, counts = np.full(5, 0.1), np.array([20, 3, 1, 0, 0])
    shape = alpha + counts
    mean = shape / shape.sum()
    means = []
    with pm.Model() as model:
        pi = pm.Dirichlet("pi", alpha, shape=(1000, 5))
        pm.Multinomial("n", 24, pi, observed=np.tile(counts, (1000, 1)))
    chain = Chain(model, expanded_mean(5.0), "JAX")
    for e in (0.2, 0.0125):
        y, _ = chain.run(e, seed=4, snapshots=40, every=200, burn_in=10)
        means.append(to_pi(y[0]).mean(axis=(0, 1)))
    large, small = np.abs(np.array(means) - mean)
    assert np.all(small < large)
    assert np.all(small[1:3] < 0.003)
    # e^0.1 = 0.76 at a step size 16 times smaller; 0.0041 is exact, and 1 in 5 elements all alike
    assert np.all(small[3:] < 0.76 * large[3:])
    assert np.all(small[3:] < 0.01)


# ---- models --------------------------------------------------------------------------------


def test_natural_concentration():
    """The sum of each Dirichlet's alpha; an array where simplexes differ."""
    with pm.Model() as model:
        scale = pm.Data("scale", 2.0)
        pm.Dirichlet("same", scale * np.array([1.0, 2.0]), shape=(4, 2))
        pm.Dirichlet("rows", np.array([[1.0, 2.0, 3.0], [0.1, 0.1, 0.1]]))
        algorithm = sgm.SGRLD.bind(model, list(model.value_vars), {})
    same, rows = algorithm.concentration
    assert same == 6.0
    np.testing.assert_allclose(rows, [6.0, 0.3])


@pytest.mark.slow(16)
def test_simplexes_of_any_batch_shape():
    """Two variables, one of batch shape (2, 3): each simplex gets its own posterior."""
    rng = np.random.default_rng(5)
    n = rng.multinomial(40, [0.2, 0.3, 0.5], size=(2, 3))
    with pm.Model():
        grid = pm.Dirichlet("grid", np.ones(3), shape=(2, 3, 3))
        pair = pm.Dirichlet("pair", np.ones(2))
        pm.Multinomial("n", 40, grid, observed=n)
        pm.Multinomial("m", 10, pair, observed=[2, 8])
        step = sgm.SGRLD(step_size=0.004, thin=100, compile_kwargs={"mode": "JAX"})
        idata = pm.sample(1500, tune=20, chains=1, step=step, random_seed=6, **RUN)
    shape = n + 1.0
    mean = shape / shape.sum(axis=-1, keepdims=True)
    sd = np.sqrt(mean * (1 - mean) / (shape.sum(axis=-1, keepdims=True) + 1))
    posterior = idata.posterior
    # about 1500 nearly independent draws: 5 standard errors are 0.13 sd
    assert np.all(np.abs(posterior["grid"].mean(("chain", "draw")) - mean) < 0.2 * sd)
    assert abs(float(posterior["pair"][..., 1].mean()) - 9 / 12) < 0.03
    np.testing.assert_allclose(posterior["grid"].sum("grid_dim_2"), 1)


@pytest.mark.slow(2)
def test_float32():
    """Sparse corners do not underflow."""
    with pytensor.config.change_flags(floatX="float32"):
        with pm.Model() as model:
            pi = pm.Dirichlet("pi", np.full(50, 0.1), shape=(20, 50))
            pm.Multinomial("n", 5, pi, observed=np.eye(20, 50, dtype="int32") * 5)
            step = sgm.SGRLD(step_size=0.2, thin=50, compile_kwargs={"mode": PYTHON})
        point = model.initial_point()
        for _ in range(6):
            point, [stats] = step.step(point)
        assert not stats["nonfinite"]
        assert point["pi_simplex__"].dtype == "float32"
        assert step.sampler_state["total"][0].dtype == "float32"
    pi = to_pi(point["pi_simplex__"])
    assert pi.min() < 1e-4  # sparse corners were visited
    assert np.diag(pi).mean() > 0.1


@pytest.mark.slow(2)
def test_logits_of_normals_are_the_expanded_natural_form():
    """pi = softmax(beta), beta ~ N(0.1, 1): any sampler; the exact moments by quadrature.

    Only differences of beta matter: (beta_1 - beta_3, beta_2 - beta_3) is N(0, [[2, 1], [1, 2]]).
    """
    counts = np.array([6, 2, 0])
    grid = np.linspace(-9, 9, 241)
    d = np.stack([*np.meshgrid(grid, grid, indexing="ij"), np.zeros((241, 241))], axis=-1)
    pi = np.exp(d) / np.exp(d).sum(axis=-1, keepdims=True)
    precision = np.linalg.inv([[2.0, 1.0], [1.0, 2.0]])
    log_p = -0.5 * np.einsum("abi,ij,abj->ab", d[..., :2], precision, d[..., :2])
    p = np.exp(log_p + np.log(pi) @ counts)
    p /= p.sum()
    mean = np.einsum("ab,abi->i", p, pi)
    var = np.einsum("ab,abi->i", p, (pi - mean) ** 2)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.1, 1, shape=(1000, 3))
        pm.Multinomial("n", 8, pm.math.softmax(beta, axis=-1), observed=np.tile(counts, (1000, 1)))
    chain = Chain(model, sgm.MSGNHT_S.algorithm_class(), "JAX")
    theta, _ = chain.run(0.1, seed=7, snapshots=40, every=50, burn_in=20)
    draws = np.exp(theta[0]) / np.exp(theta[0]).sum(axis=-1, keepdims=True)
    assert_mean(draws.mean(axis=0), mean, 0.005 * np.sqrt(var))
    assert_mean(((draws - mean) ** 2).mean(axis=0), var, 0.01 * var)


def test_restored_state_goes_on_identically():
    options = {"step_size": 0.01, "batch_size": 5, "thin": 5}
    with DirichletCategorical().rows():
        step = sgm.SGRLD(**options, compile_kwargs={"mode": PYTHON})
    step.setup_chain(np.random.default_rng(8), 0, 0)
    point, _ = step.step(step.model.initial_point())
    saved = step.sampling_state
    expected, _ = step.step(point)
    step.setup_chain(np.random.default_rng(9), 0, 0)
    step.sampling_state = saved
    again, _ = step.step(point)
    np.testing.assert_array_equal(expected["pi_simplex__"], again["pi_simplex__"])


# ---- refusals ------------------------------------------------------------------------------


@pytest.fixture
def _no_loop(monkeypatch):
    monkeypatch.setattr(kernel, "Loop", lambda *args: pytest.fail("compiled"))


@pytest.mark.usefixtures("_no_loop")
class TestRefusals:
    def test_not_a_simplex(self):
        with pm.Model():
            pm.Dirichlet("pi", [1.0, 1.0])
            pm.Normal("mu")
            with pytest.raises(ValueError, match=r"'mu' is not one.*SGRLD\(\[pi\]"):
                sgm.SGRLD(step_size=0.1)

    def test_dirichlet_without_its_transform(self):
        with pm.Model():
            pm.Dirichlet("pi", [1.0, 1.0], default_transform=None)
            with pytest.raises(ValueError, match="'pi' is not one"):
                sgm.SGRLD(step_size=0.1)

    def test_concentration_that_is_not_constant(self):
        with pm.Model():
            a = pm.HalfNormal("a")
            pi = pm.Dirichlet("pi", a * np.ones(3))
            with pytest.raises(ValueError, match=r"'pi' is not constant.*concentration="):
                sgm.SGRLD([pi], step_size=0.1)

    def test_simplex_without_a_concentration(self):
        with pm.Model():
            pm.Normal("pi", shape=3, transform=simplex_transform, initval=np.full(3, 1 / 3))
            with pytest.raises(ValueError, match=r"'pi' is not a pm.Dirichlet.*concentration="):
                sgm.SGRLD(step_size=0.1)

    @pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
    def test_concentration(self, value):
        with pm.Model():
            pm.Dirichlet("pi", [1.0, 1.0])
            with pytest.raises(ValueError, match=f"concentration must be .* got {value}"):
                sgm.SGRLD(step_size=0.1, concentration=value)
