"""Every sampler draws from the posterior: moments, thermostats and the order of the bias."""

from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from scipy.stats import norm

import pymc_sgmcmc as sgm
from pymc_sgmcmc.samplers import sgrld
from tests.samplers import (
    LANGEVIN,
    LINEAR,
    SAMPLERS,
    SIMPLEX,
    THERMOSTATS,
    UNCONSTRAINED,
    WITH_MOMENTUM,
    Chain,
    OneUpdate,
    assert_mean,
    blocks,
    stationary_covariance,
    stationary_law,
)
from tests.targets import (
    COVARIANCE,
    ILL_SCALED,
    POLYNOMIALS,
    DirichletCategorical,
    NormalGamma,
    NormalMeans,
    Quadrature,
    quadratures,
    zoo,
)

every_simplex_sampler = pytest.mark.parametrize("sampler", SIMPLEX, ids=lambda s: s.name)


def sampler_and_mode(value) -> str:
    return getattr(value, "name", value)


# That the C linker draws what Python draws is a test of its own.
ON_NUMBA = (sgm.MSGNHT_S, sgm.SGHMC_S, sgm.SGLD)
"""With a thermostat, with held friction and without a momentum: the others share their letters."""
every_sampler_and_backend = pytest.mark.parametrize(
    ("sampler", "mode"),
    [
        pytest.param(s, "NUMBA", marks=() if s.step in ON_NUMBA else pytest.mark.long)
        for s in UNCONSTRAINED
    ]
    + [(s, "JAX") for s in UNCONSTRAINED],
    ids=sampler_and_mode,
)


REPLICAS = 2000
QUARTIC = Quadrature([0, 0, 0, 0.25])


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
@pytest.mark.parametrize("covariance", [COVARIANCE, ILL_SCALED], ids=["moderate", "ill-scaled"])
def test_momentum_is_independent_of_theta_in_the_limit(sampler, covariance):
    # relative bias of order 1: SGLD's is h / 4 times the largest precision, 278: 0.0013 in a sd^2
    S = stationary_covariance(sampler.algorithm(), np.linalg.inv(covariance), 5e-5)
    limit = np.eye(len(S))
    limit[:2, :2] = covariance
    sd = np.sqrt(np.diag(limit))
    np.testing.assert_allclose(S / np.outer(sd, sd), limit / np.outer(sd, sd), atol=2e-3)


# ---- exact results in one dimension --------------------------------------------------------


def mean_and_sd(update, theta, state, h, of):
    """Of an element's update x -> N(m(x), s(x)^2), read off the algorithm's own.

    ``of`` takes x from what an update returns.
    """
    like = state["total"][0][:, None].repeat(2, 1) if "total" in state else theta
    # not 0: Gamma of PSGLD wants the noise's sign
    mean, above = (
        of(*update([theta], state, h, *[[np.full(like.shape, z)]] * update.n_noises))
        for z in (1e-9, 1.0)
    )
    return mean, above - mean


def law_on_a_line(algorithm, h, potential=(0, 0, 0, 0.25)):
    """Points and their exact law after many updates, without momentum; the potential's density."""
    x = np.linspace(-5, 5, 1001) if potential[3] else np.linspace(-10, 10, 1001)

    a, b, c, d = potential

    def log_likelihood(theta):
        [t] = theta
        return -pt.sum(t * (a + t * (b + t * (c + t * d))))

    update = OneUpdate(algorithm, [x], log_likelihood)
    state = algorithm.init([x], np.random.default_rng(0))
    mean, sd = mean_and_sd(update, x, state, h, of=lambda theta, _: theta[0])
    return x, stationary_law(x, norm.pdf(x[:, None], mean, sd))


def law_on_a_simplex(algorithm, h, shape):
    """The same of an element of the expanded theta, which is reflected at 0; without data."""
    x = np.arange(0.02, 6, 0.01) ** 2  # even where the noise is: its sd goes as sqrt(x)
    y = np.log(x[:, None]) / 2  # of x beside an element of 1
    # elements are independent if the shapes, those of the density to the power 1 / T, sum to A
    shapes = algorithm.temperature * np.array([shape, algorithm.concentration - shape])
    update = OneUpdate(
        algorithm,
        [y],
        lambda y: 0 * pt.sum(y[0]),
        lambda y: pt.sum(shapes * pt.log(sgrld.simplex(y[0]))),
    )
    mean, sd = mean_and_sd(
        update,
        y,
        {"total": [x + 1]},
        h,
        of=lambda y, state: state["total"][0] * DirichletCategorical.simplex(y[0])[:, 0],
    )
    density = norm.pdf(x[:, None], mean, sd) + norm.pdf(-x[:, None], mean, sd)
    return x, stationary_law(x, density)


@pytest.mark.parametrize("sampler", LANGEVIN, ids=lambda s: s.name)
def test_order_of_the_bias_on_a_line(sampler):
    """The error of E x^2 goes as h to the promised order: on U = x^4 / 4 or a Gamma(3)."""
    errors = []
    for h in (0.1, 0.05):
        if sampler.kind == "simplex":
            (x, law), exact = law_on_a_simplex(sampler.algorithm(), h, shape=3.0), 12.0
        else:
            (x, law), exact = law_on_a_line(sampler.algorithm(), h), QUARTIC.var
        errors.append(law @ x**2 / exact - 1)
    assert abs(errors[1]) < 0.02
    assert abs(np.log2(errors[0] / errors[1]) - sampler.order["theta"]) < 0.1, errors


# ---- moments without minibatches -----------------------------------------------------------


@pytest.mark.parametrize(  # numba's others are shown under noise, below
    ("sampler", "mode"),
    [*((s, "JAX") for s in UNCONSTRAINED), (THERMOSTATS[-1], "NUMBA")],
    ids=sampler_and_mode,
)
def test_moments(sampler, mode):
    """Correlated and wide Gaussians, double well, tilted quartic; momentum, thermostat."""
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
    p_expected, p_bias = np.eye(2), sampler.bias * (1 - np.eye(2))
    one_xi = "xi" in state and state["xi"][0].ndim == 1
    if sampler.kind == "linear" or one_xi:
        # xi of 10,000 elements has the sd 0.01: it as good as stands at its mean
        xi = state["xi"][0].mean() if one_xi else None
        precision = np.linalg.inv(COVARIANCE)
        exact = stationary_covariance(sampler.algorithm(), precision, sampler.step_size, xi=xi)
        expected, bias = exact[:2, :2], 0
        p_expected, p_bias = exact[2:, 2:], 0
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
        p_pair = np.einsum("kri,krj->krij", p[..., :2], p[..., :2])
        assert_mean(p_pair.mean(axis=0), p_expected, p_bias)
        squares = (p**2).mean(axis=0)
        assert_mean(squares[:, 2:], 1, sampler.bias)
        # A thermostat stands still on average, xi' = xi + h (p^2 - 1): E p^2 = 1 at any step size.
        if sampler.kind == "thermostat":
            assert_mean(squares.mean(axis=1) if one_xi else squares, 1)
    if "xi" in state:
        xi = state["xi"][0]
        # the one xi of SGNHT: its snapshots, 1.5 units of time apart, stand for replicas
        assert_mean(xi.mean(axis=0) if xi.ndim > 1 else xi, sampler.algorithm().diffusion, 0.04)


@pytest.mark.c_linker
@pytest.mark.parametrize(
    "sampler",
    [s if s.step is sgm.SGLD else pytest.param(s, marks=pytest.mark.long) for s in SAMPLERS],
    ids=lambda s: s.name,
)
@pytest.mark.slow(6)
def test_c_linker_draws_what_python_draws(sampler):
    """Both take their noise from the same NumPy generator: the same numbers to rounding.

    SGLD's model is one that is little to compile; those of the others have a transform.
    """
    if sampler.step is sgm.SGLD:
        model = NormalMeans().model()
    else:
        simplexes = sampler in SIMPLEX
        model = DirichletCategorical().replicas(20) if simplexes else NormalGamma().model(20)
    settings = {"seed": 4, "snapshots": 2, "every": 20}
    runs = [
        Chain(model, sampler.algorithm(), mode).run(sampler.step_size, **settings)
        for mode in ("CVM", Mode("py", "fast_compile"))
    ]
    (theta, state), (other_theta, other_state) = runs
    for mine, other in zip(theta, other_theta, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-9)
    for name in state:
        for mine, other in zip(state[name], other_state[name], strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-9)


@pytest.mark.slow(3)
@pytest.mark.parametrize("sampler", WITH_MOMENTUM, ids=lambda s: s.name)
def test_jax_computes_what_python_computes(sampler):
    """Without injected noise an update is deterministic and JAX must agree with Python."""
    (injected,) = {"friction", "diffusion"} & set(sampler.settings)
    algorithm = sampler.algorithm(**{injected: 0.0})
    normal = NormalGamma()
    chain = Chain(normal.model(3), algorithm, "JAX")
    theta, state = chain.run(0.02, seed=5, snapshots=2, every=20)
    python = Chain(normal.model(3), algorithm, Mode("py", "fast_compile"))
    other_theta, other_state = python.run(0.02, seed=5, snapshots=2, every=20)
    for mine, other in zip(theta, other_theta, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9)
    for mine, other in zip(state["p"], other_state["p"], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9)


@pytest.mark.parametrize("sampler", UNCONSTRAINED, ids=lambda s: s.name)
def test_normal_gamma(sampler):
    """A PyMC model with a transformed variable; its posterior is known in closed form."""
    normal = NormalGamma()
    chain = Chain(normal.model(replicas=400), sampler.algorithm(), "JAX")
    h = sampler.step_size / (1 if sampler.has_momentum or sampler.kind != "linear" else 2)
    theta, _ = chain.run(h, seed=6, snapshots=60, every=50, burn_in=20)
    names = [v.name for v in chain.source.vars]
    gamma, mu = np.exp(theta[names.index("gamma_log__")]), theta[names.index("mu")]
    for draws, mean, var in [
        (mu, normal.mu_mean, normal.mu_var),
        (gamma, normal.gamma_mean, normal.gamma_var),
    ]:
        assert_mean(draws.mean(axis=0), mean, 2 * sampler.bias * np.sqrt(var))
        assert_mean(((draws - mean) ** 2).mean(axis=0), var, 2 * sampler.bias * var)


@every_simplex_sampler
def test_moments_on_simplexes(sampler):
    """A Dirichlet prior and counts: the posterior is a Dirichlet; numba's are shown under noise."""
    target = DirichletCategorical()
    chain = Chain(target.replicas(REPLICAS), sampler.algorithm(), "JAX")
    theta, _ = chain.run(sampler.step_size, seed=14, snapshots=40, every=50, burn_in=20)
    pi = target.simplex(theta[0])
    deviations = pi - target.mean
    pairs = np.einsum("kri,krj->krij", deviations, deviations)
    assert_mean(pi.mean(axis=0), target.mean, sampler.bias * target.sd)
    bias = sampler.bias * np.outer(target.sd, target.sd)
    assert_mean(pairs.mean(axis=0), target.covariance, bias)


# ---- minibatch noise -----------------------------------------------------------------------


def noisy_variances(sampler, target: NormalMeans, h: float) -> tuple[float, float, float]:
    """Variance of theta and p under minibatch noise, and relative error to allow for in theta's."""
    precision = np.array([[target.precision]])
    s2 = target.gradient_variance
    if sampler.kind == "linear":
        S = stationary_covariance(sampler.algorithm(), precision, h, s2)
        return S[0, 0], S[-1, -1], 0.0
    if sampler.kind == "thermostat":
        return 1 / target.precision, 1.0, sampler.bias
    # PSGLD: V is nearly constant, so the sampler is SGLD with the steps e G
    algorithm, sgld = sampler.algorithm(**sampler.noisy_settings), sgm.SGLD.algorithm_class()
    var = 1 / target.precision
    for _ in range(20):
        V = (s2 + target.likelihood_precision**2 * var) / target.n_rows**2
        # theta is centred at the posterior's mean, where the likelihood's gradient is not 0
        V += (target.mean**2).mean() / target.n_rows**2
        G = 1 / (algorithm.lam + np.sqrt(V))
        var = stationary_covariance(sgld, precision, h * G, s2)[0, 0]
    return var, 1.0, sampler.bias


@every_sampler_and_backend
def test_minibatch_noise(sampler, mode):
    """A conjugate normal mean by batches of 4 of 100 rows, drawn with replacement.

    The thermostats absorb the gradient's noise: their mean is D + h s^2 / 2. The others get the
    excess variance that the Lyapunov equation says.
    """
    target = NormalMeans()
    h = 0.02
    algorithm = sampler.algorithm(**sampler.noisy_settings)
    chain = Chain(target.model(), algorithm, mode, batch_size=target.batch_size)
    theta, state = chain.run(h, seed=7, snapshots=400, every=100, burn_in=10)
    theta_var, p_var, bias = noisy_variances(sampler, target, h)
    # All columns see the same rows, so blocks of time stand for independent entries.
    assert_mean(blocks(theta[0]), target.mean, 0.005)
    assert_mean(blocks((theta[0] - target.mean) ** 2).mean(axis=1), theta_var, bias * theta_var)
    if "p" in state:
        # exact for thermostats too, see test_moments
        assert_mean(blocks(state["p"][0] ** 2).mean(axis=1), p_var)
    if "xi" in state:
        xi = algorithm.diffusion + h * target.gradient_variance / 2
        mean_xi = state["xi"][0].reshape(len(theta[0]), -1).mean(axis=1)
        assert_mean(blocks(mean_xi), xi, 0.04 * xi)
    if sampler.kind != "thermostat":
        assert theta_var > 1.2 / target.precision, "too little noise to show anything"


@pytest.mark.slow(5)
@pytest.mark.parametrize("mode", [pytest.param("NUMBA", marks=pytest.mark.long), "JAX"])
@every_simplex_sampler
def test_minibatch_noise_on_simplexes(sampler, mode):
    """By batches of 5 of 45 rows, drawn with replacement: posterior and the noise's excess.

    Near the posterior's mean an update is x - k x + N(0, 2 k v) with k = e N / (2 A), v the
    posterior's variance, and the gradient's noise adds N(0, N / n k^2 v). So the variance is
    v (1 + k (N / n + 1) / 2), to first order in k.
    """
    target = DirichletCategorical()
    batch_size, A, h = 5, sampler.noisy_settings["concentration"], 0.01
    algorithm = sampler.step.algorithm_class(**sampler.noisy_settings)
    model = target.rows(replicas=16)
    chain = Chain(model, algorithm, mode, batch_size=batch_size, minibatch_dim="obs")
    theta, _ = chain.run(h, seed=15, snapshots=2000, every=100, burn_in=50)
    pi = target.simplex(theta[0])
    k = h * target.n_rows / (2 * A)
    excess = k * (target.n_rows / batch_size + 1) / 2
    var = target.sd**2 * (1 + excess)
    # All replicas see the same rows: blocks of time are independent, not they. Allowed are a
    # quarter of the excess, 5%, and 5 standard errors of about 1%: noise of 1.2 times the
    # variance adds 20%.
    assert_mean(blocks(pi).mean(axis=1), target.mean, 0.05 * target.sd)
    squares = (pi - target.mean) ** 2
    assert_mean(blocks(squares).mean(axis=1), var, 0.25 * excess * target.sd**2)


# ---- order of the bias, where no exact answer is known -------------------------------------


@pytest.mark.slow(5)
@pytest.mark.parametrize("sampler", [s for s in THERMOSTATS if s.order], ids=lambda s: s.name)
def test_order_of_the_bias_of_thermostats(sampler):
    """The error of E theta^2 on U = theta^4 / 4 goes as h to the promised order.

    Orders 1 and 2 must be told apart: the slope's Monte Carlo error counts against it. (The
    explicit friction of E is unstable for larger steps: h xi may exceed 2 in some replica.)
    """
    order = sampler.order["theta"]
    steps = np.array([0.05, 0.1] if order == 1 else [0.15, 0.3])
    replicas = 20_000
    with pm.Model() as model:
        t = pm.Flat("t", shape=replicas)
        pm.Potential("-U", -0.25 * pt.sum(t**4))
    chain = Chain(model, sampler.algorithm(), "NUMBA")
    start = [QUARTIC.draws(np.random.default_rng(8), replicas)]
    log_error, spread = [], []
    for h in steps:
        theta, state = chain.run(h, seed=9, snapshots=250, every=20, burn_in=5, start=start)
        assert_mean((state["p"][0] ** 2).mean(axis=0), 1)  # at any step size, see test_moments
        squares = (theta[0] ** 2).mean(axis=0)
        error = squares.mean() - QUARTIC.var
        log_error.append(np.log(abs(error)))
        spread.append(squares.std() / np.sqrt(replicas) / abs(error))
    slope = np.diff(log_error)[0] / np.log(2)
    uncertainty = np.hypot(*spread) / np.log(2)
    assert abs(slope - order) + 2 * uncertainty < 0.5, (slope, uncertainty)


# ---- the correction Gamma of PSGLD ---------------------------------------------------------


def weighted(coefficients, left):
    """Posterior x G^-left, for lam = 1 and N = 1."""
    return Quadrature(coefficients, weight=lambda slope: (1 + np.abs(slope)) ** left)


@pytest.mark.parametrize(("gamma", "left"), [(True, 0.0), (False, 1.0)])
@pytest.mark.parametrize("name", ["wide Gaussian", "tilted quartic"])
def test_psgld_correction_without_memory(name, gamma, left):
    """With alpha = 0 G is a function of theta: its exact law for small steps.

    The bias of order 1 drops out of twice the moments at h less those at 2 h. What is left is the
    grid's error where the gradient is 0 and Gamma jumps: 0.2% of a sd, of which twice is allowed.
    """
    algorithm = sgm.PSGLD.algorithm_class(alpha=0.0, lam=1.0, gamma=gamma)
    target = weighted(POLYNOMIALS[name], left)
    moments = []
    for h in (0.02, 0.04):
        x, law = law_on_a_line(algorithm, h, POLYNOMIALS[name])
        moments.append([law @ x, law @ (x - target.mean) ** 2])
    small, large = np.array(moments)
    off = 2 * small - large - [target.mean, target.var]
    assert np.all(np.abs(off) < 0.004 * np.array([np.sqrt(target.var), target.var])), off


@pytest.mark.slow(2)
@pytest.mark.parametrize(("gamma", "left"), [(True, 0.5), (False, 1.0)])
def test_psgld_correction(gamma, left):
    """For small steps PSGLD draws from posterior x G^-left.

    V follows theta at once then, so G is a function of theta, with the correction dG / dtheta:
    Gamma has the fraction 1 - alpha of it. Without Gamma none is corrected for.
    """
    names = ["wide Gaussian", "tilted quartic"]
    targets = [weighted(POLYNOMIALS[name], left) for name in names]
    algorithm = sgm.PSGLD.algorithm_class(alpha=0.5, lam=1.0, gamma=gamma)
    chain = Chain(zoo(REPLICAS, columns=[2, 4]), algorithm, "JAX")
    rng = np.random.default_rng(10)
    start = [np.column_stack([target.draws(rng, REPLICAS) for target in targets])]
    theta, _ = chain.run(0.004, seed=11, snapshots=40, every=100, burn_in=10, start=start)
    for column, name, target in zip(theta[0].T, names, targets, strict=True):
        squares = (column.T - target.mean) ** 2
        assert_mean(squares.mean(axis=0), target.var, 0.02 * target.var)
        assert abs(target.var / Quadrature(POLYNOMIALS[name]).var - 1) > 0.1, name


# ---- streams -------------------------------------------------------------------------------


@pytest.mark.slow(2)
@pytest.mark.parametrize("mode", ["NUMBA", "JAX"])
def test_fresh_batches_and_noise(mode):
    """No update sees an old batch or old noise, no chain those of another.

    With tiny steps the potential shows which rows came, the increments the noise.
    """
    rng = np.random.default_rng(12)
    h, draws = 1e-10, 40
    with pm.Model():
        theta = pm.Normal("theta", shape=50)
        pm.Normal("other", shape=(10, 5))
        y = rng.normal(size=1000)
        pm.Normal("y", theta.sum(), 1, observed=y)
        step = sgm.SGLD(step_size=h, batch_size=5, compile_kwargs={"mode": mode})
        idata = pm.sample(
            draws, tune=0, chains=2, cores=1, step=step, random_seed=13, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    potential = idata.sample_stats["potential"].to_numpy()
    assert len(np.unique(potential.round(3))) == potential.size
    paths = [idata.posterior[name].to_numpy().reshape(2, draws, 50) for name in ("theta", "other")]
    noise = np.diff(np.concatenate(paths, axis=-1), axis=1) / np.sqrt(h)
    n = noise[0].size
    assert abs(noise.var() - 1) < 5 * np.sqrt(2 / (2 * n))
    between_chains = np.mean(noise[0] * noise[1])
    between_updates = np.mean(noise[:, 1:] * noise[:, :-1])
    between_elements = np.mean(noise[..., 1:] * noise[..., :-1])
    between_variables = np.mean(noise[..., :50] * noise[..., 50:])
    for correlation in (between_chains, between_updates, between_elements, between_variables):
        assert abs(correlation) < 5 / np.sqrt(n)
