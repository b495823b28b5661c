"""NeuralImportance: its gradient, weights, network and posterior against exact enumeration."""

import itertools

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.random.type import random_generator_type
from scipy.special import expit, log_softmax, logsumexp
from scipy.stats import multivariate_normal

import pymc_sgmcmc as sgm
from pymc_sgmcmc.backends.backend import Jax
from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.latents.gradient import latent_gradient_source
from pymc_sgmcmc.latents.importance.recognition import Bernoulli, binary_draw
from pymc_sgmcmc.latents.joint import without_latents
from pymc_sgmcmc.noise import NoiseStream

JAX = {"mode": "JAX"}
COPIES = 500
"""Copies of each row in the data: one evaluation holds so many independent estimates."""
CALLS = 40

rng = np.random.default_rng(3)
PATTERNS = np.array([[1, 0, 1, 1], [0, 0, 1, 0], [1, 1, 0, 1]])
THETA = {"w": rng.normal(size=(2, 4)), "c": rng.normal(size=4), "b": rng.normal(size=2)}


def belief_network(x=PATTERNS, units=2):
    """A sigmoid belief network: 2^units states of z."""
    x = np.asarray(x)
    coords = {"obs": range(len(x)), "unit": range(units), "pixel": range(x.shape[1])}
    with pm.Model(coords=coords) as model:
        data = pm.Data("data", x, dims=("obs", "pixel"))
        w = pm.Normal("w", 0, 1, dims=("unit", "pixel"))
        c = pm.Normal("c", 0, 1, dims="pixel")
        b = pm.Normal("b", 0, 1, dims="unit")
        z = pm.Bernoulli("z", logit_p=b, dims=("obs", "unit"))
        pm.Bernoulli("x", logit_p=z @ w + c, observed=data, dims=("obs", "pixel"))
    return model


def states_of_network(theta, x):
    """All z with log p(x, z) and its gradient with respect to w, c, b, for one row x."""
    z = np.array(list(itertools.product([0, 1], repeat=len(theta["b"]))))
    eta = z @ theta["w"] + theta["c"]
    log_p = (x * eta - np.logaddexp(0, eta)).sum(1)
    log_p += (z * theta["b"] - np.logaddexp(0, theta["b"])).sum(1)
    residual = x - expit(eta)
    gradient = [
        (z[:, :, None] * residual[:, None, :]).reshape(len(z), -1),
        residual,
        z - expit(theta["b"]),
    ]
    return z, log_p, np.concatenate(gradient, axis=1)


def estimates(model, latents, theta, batch_size, n_calls=CALLS, seed=1):
    """Likelihood gradients of independent batches of all rows, flat, and the ESS of each."""
    without = without_latents(model, latents.vars)
    source = latent_gradient_source(
        model, without, without.value_vars, latents, batch_size=batch_size, self_check=False
    )
    inputs = [v.type() for v in source.inputs]
    generator = random_generator_type()
    state = {
        name: [pt.constant(a) for a in arrays]
        for name, arrays in source.init(np.random.default_rng(0)).items()
    }
    k, stream = len(source.vars), NoiseStream(generator)
    at = source.at(inputs[:k], inputs[k : k + 1], inputs[k + 1 :], state, stream)
    function = pytensor.function(
        [*inputs, pytensor.In(generator, mutable=True, borrow=True)],
        [
            pt.concatenate([g.ravel() for g in at.likelihood]),
            *at.diagnostics,
            pytensor.Out(stream.rng, borrow=True),
        ],
        mode="JAX",
        on_unused_input="ignore",
    )
    function.trust_input = True
    state = Jax().generator(np.random.default_rng(seed))
    values = [np.asarray(theta[v.name], dtype=v.dtype) for v in source.vars]
    data = [array_value(array) for array, _ in source.data]
    rows = np.arange(batch_size)
    results = []
    for _ in range(n_calls):
        gradient, ess, state = function(*values, rows, np.asarray(1.0), *data, state)
        results.append((np.asarray(gradient), float(ess)))
    gradients, ess = zip(*results, strict=True)
    return np.array(gradients), np.array(ess)


def assert_mean(draws, expected, factor=4.5):
    """Each element's mean is as expected, within so many standard errors.

    With 4.5 and 40 draws (Student's t) one of some twenty elements fails by chance in 1 of 800.
    """
    error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    assert np.all(np.abs(draws.mean(axis=0) - expected) <= factor * error + 1e-9)


def fixed_proposal(name, x, z, weights):
    """Far from the posterior on purpose: the same for all x."""
    return weights["logit"] + 0.0 * x["x"][..., :2]


LOGIT = np.array([0.5, -0.5])


def expected_estimate(log_p, gradient, log_q, n_samples):
    """Exact mean of the self-normalised estimate: a sum over all tuples of draws."""
    total = 0
    for drawn in itertools.product(range(len(log_p)), repeat=n_samples):
        at = list(drawn)
        log_w = log_p[at] - log_q[at]
        share = np.exp(log_w - logsumexp(log_w))
        total += np.exp(log_q[at].sum()) * (share @ gradient[at])
    return total


@pytest.mark.slow(3)
@pytest.mark.parametrize("n_samples", [2, 5])
def test_gradient_is_the_self_normalised_estimate(n_samples):
    """Equation 6, its bias included: the mean over all possible draws."""
    model = belief_network(np.repeat(PATTERNS, COPIES, axis=0))
    latents = sgm.NeuralImportance(
        ["z"], n_samples, proposal=fixed_proposal, weights={"logit": LOGIT}, learning_rate=0
    )
    draws, ess = estimates(model, latents, THETA, COPIES * len(PATTERNS))
    expected = exact = 0
    for x in PATTERNS:
        z, log_p, gradient = states_of_network(THETA, x)
        log_q = (z * LOGIT - np.logaddexp(0, LOGIT)).sum(1)
        expected = expected + expected_estimate(log_p, gradient, log_q, n_samples)
        exact = exact + np.exp(log_p - logsumexp(log_p)) @ gradient
    assert_mean(draws / COPIES, expected)
    # the test sees the bias: it is many standard errors
    error = draws.std(axis=0) / COPIES / np.sqrt(CALLS)
    assert np.max(np.abs(expected - exact) / error) > 8
    assert np.all((ess > 1) & (ess < n_samples))


@pytest.mark.long
def test_bias_falls_as_one_over_n_samples():
    model = belief_network(np.repeat(PATTERNS, COPIES, axis=0))
    exact = 0
    for x in PATTERNS:
        _, log_p, gradient = states_of_network(THETA, x)
        exact = exact + np.exp(log_p - logsumexp(log_p)) @ gradient
    scaled, errors = [], []
    for n_samples in (8, 32):
        latents = sgm.NeuralImportance(
            ["z"], n_samples, proposal=fixed_proposal, weights={"logit": LOGIT}, learning_rate=0
        )
        draws, _ = estimates(model, latents, THETA, COPIES * len(PATTERNS), n_calls=80)
        scaled.append(n_samples * (draws.mean(axis=0) / COPIES - exact))
        errors.append(n_samples * draws.std(axis=0) / COPIES / np.sqrt(80))
    # L times the bias is a constant: along its direction at L = 8, within the noise (3 sd) and
    # the term of order 1 / L^2 (a fifth)
    direction = scaled[0] / np.linalg.norm(scaled[0])
    one, other = (s @ direction for s in scaled)
    noise = np.sqrt(sum(((e * direction) ** 2).sum() for e in errors))
    assert one > 10 * np.sqrt(((errors[0] * direction) ** 2).sum())
    assert abs(one - other) < 3 * noise + 0.2 * one


# ---- the default network -------------------------------------------------------------------


def one_unit():
    """p(z | x) is a Bernoulli whose logit is affine in x."""
    model = belief_network(np.repeat(PATTERNS, COPIES, axis=0), units=1)
    theta = {"w": THETA["w"][:1], "c": THETA["c"], "b": THETA["b"][:1]}
    change = np.logaddexp(0, theta["w"] + theta["c"]) - np.logaddexp(0, theta["c"])
    weights = {"z from x": theta["w"].T, "z": theta["b"] - change.sum()}
    gradient, evidence = 0, []
    for x in PATTERNS:
        _, log_p, of_state = states_of_network(theta, x)
        evidence.append(logsumexp(log_p))
        gradient = gradient + np.exp(log_p - evidence[-1]) @ of_state
    return model, theta, weights, gradient, evidence


def normal_mixture():
    """p(z | x) is a Categorical whose logits are affine in x (equal sds)."""
    x = np.array([-0.5, 0.3, 1.0])
    with pm.Model(coords={"obs": range(3 * COPIES), "component": range(3)}) as model:
        mu = pm.Normal("mu", 0, 1, shape=3)
        z = pm.Categorical("z", np.array([0.2, 0.5, 0.3]), dims="obs")
        pm.Normal("x", mu[z], 0.7, observed=np.repeat(x, COPIES), dims="obs")
    mu = np.array([-1.0, 0.2, 0.8])
    weights = {
        "z from x": mu[None] / 0.49,
        "z": np.log([0.2, 0.5, 0.3]) - 0.5 * mu**2 / 0.49,
    }
    density = np.log([0.2, 0.5, 0.3]) - 0.5 * ((x[:, None] - mu) / 0.7) ** 2
    evidence = logsumexp(density, axis=1) - np.log(0.7 * np.sqrt(2 * np.pi))
    share = np.exp(log_softmax(density, axis=1))
    return model, {"mu": mu}, weights, (share * (x[:, None] - mu) / 0.49).sum(0), evidence


def factor():
    """p(z | x) is a Normal with a mean affine in x and one sd."""
    x = np.array([[1.0, -0.5], [0.2, 0.1], [-2.0, 0.4]])
    coords = {"obs": range(3 * COPIES), "feature": range(2)}
    with pm.Model(coords=coords) as model:
        w = pm.Normal("w", 0, 1, dims="feature")
        z = pm.Normal("z", 0, 1, dims="obs")
        observed = np.repeat(x, COPIES, axis=0)
        pm.Normal("x", z[:, None] * w, 0.5, observed=observed, dims=("obs", "feature"))
    w = np.array([0.8, -0.3])
    variance = 1 / (1 + w @ w / 0.25)
    weights = {
        "z from x": np.stack([variance * w / 0.25, np.zeros(2)], axis=1),
        "z": np.array([0.0, 0.5 * np.log(variance)]),
    }
    covariance = np.outer(w, w) + 0.25 * np.eye(2)
    inverse = np.linalg.inv(covariance)
    gradient = sum(inverse @ np.outer(row, row) @ inverse @ w - inverse @ w for row in x)
    evidence = multivariate_normal(np.zeros(2), covariance).logpdf(x)
    return model, {"w": w}, weights, gradient, evidence


def explaining_away():
    """Two units that the data make dependent: p(z | x) of one x, unit after unit."""
    model = belief_network(np.repeat(PATTERNS[:1], 3 * COPIES, axis=0))
    _, log_p, gradient = states_of_network(THETA, PATTERNS[0])
    p = np.exp(log_softmax(log_p)).reshape(2, 2)  # p[z_0, z_1]
    log_odds = np.log(p[:, 1] / p[:, 0])  # of unit 1, given unit 0
    weights = {
        "z from x": np.zeros((4, 2)),
        "z": np.array([np.log(p[1].sum() / p[0].sum()), log_odds[0]]),
        # nothing on and above the diagonal counts
        "z within": np.array([[5.0, -7.0], [log_odds[1] - log_odds[0], 3.0]]),
    }
    assert abs(weights["z within"][1, 0]) > 0.2
    return model, THETA, weights, 3 * p.ravel() @ gradient, np.full(3, logsumexp(log_p))


@pytest.mark.slow(4)
@pytest.mark.parametrize("case", [one_unit, normal_mixture, factor, explaining_away])
def test_exact_network(case):
    """With q the posterior itself all weights are p(x | theta) and the gradient is unbiased."""
    model, theta, weights, expected, evidence = case()
    units_see_each_other = case is explaining_away
    latents = sgm.NeuralImportance(
        ["z"], 3, weights=weights, autoregressive=units_see_each_other, learning_rate=0
    )
    draws, ess = estimates(model, latents, theta, 3 * COPIES)
    np.testing.assert_allclose(ess, 3, rtol=1e-9)
    assert_mean(draws / COPIES, expected)
    result = sgm.log_marginal_likelihood(
        theta, latents, method="importance", n_samples=1, model=model, compile_kwargs=JAX
    )
    np.testing.assert_allclose(result.log_p[0, 0, ::COPIES], evidence, rtol=1e-7)


def train(model, latents, theta, batch_size, n_updates=3000):
    """Let the network learn at a theta that all but stands still; statistics of its last tenth."""
    with model:
        step = sgm.SGLD(
            step_size=1e-20, batch_size=batch_size, thin=n_updates // 10, latents=latents,
            compile_kwargs=JAX,
        )  # fmt: skip
    point = step.model.initial_point() | theta
    step.setup_chain(np.random.default_rng(1), tune=0, draws=10)
    for _ in range(10):
        point, [stats] = step.step(point)
    return latents.trained(step), stats


@pytest.mark.slow(12)
@pytest.mark.parametrize("case", [one_unit, pytest.param(normal_mixture, marks=pytest.mark.long)])
def test_training_finds_the_posterior(case):
    """The inclusive KL divergence falls to zero where the network can represent p(z | x)."""
    model, theta, weights, *_ = case()
    latents = sgm.NeuralImportance(["z"], 10, learning_rate=0.01)
    trained, stats = train(model, latents, theta, batch_size=100)
    x = PATTERNS if case is one_unit else np.array([[-0.5], [0.3], [1.0]])

    def log_probabilities(weights):
        logits = x @ weights["z from x"] + weights["z"]
        logits = np.hstack([np.zeros_like(logits), logits]) if logits.shape[1] == 1 else logits
        return log_softmax(logits, axis=1)

    def divergence(weights):
        p, q = log_probabilities(exact), log_probabilities(weights)
        return (np.exp(p) * (p - q)).sum(axis=1).mean()

    exact = weights
    untrained = {name: np.zeros_like(np.asarray(w)) for name, w in weights.items()}
    # what Adam's noise at this learning rate leaves is far below where it began
    assert divergence(untrained) > 0.02
    assert divergence(trained.weights) < 0.002
    assert stats["importance_ess"] > 9.9


@pytest.mark.long
@pytest.mark.slow(17)
def test_units_that_see_each_other_find_a_dependent_posterior():
    """Where a product over units cannot: all weights become alike."""
    model, *_ = explaining_away()
    # either unit explains the pixels, and both together explain them badly
    w = np.array([[3.0, -3, 3, 3], [3.0, -3, 3, 3]])
    theta = {"w": w, "c": -w[0] / 2, "b": np.zeros(2)}
    latents = sgm.NeuralImportance(["z"], 10, autoregressive=True, learning_rate=0.01)
    _, stats = train(model, latents, theta, batch_size=100)
    # the product with the least inclusive KL divergence is that of the marginals
    p = np.exp(log_softmax(states_of_network(theta, PATTERNS[0])[1])).reshape(2, 2)
    q = p.sum(axis=1, keepdims=True) * p.sum(axis=0)
    drawn = np.random.default_rng(0).choice(4, size=(10_000, 10), p=q.ravel())
    w = (p / q).ravel()[drawn]
    ess_of_product = np.mean(w.sum(axis=1) ** 2 / (w**2).sum(axis=1))
    assert ess_of_product < 9.7 < 9.9 < stats["importance_ess"]


def positive():
    """A latent variable that is sampled on the log scale, with q far from its posterior."""
    x = np.array([0, 3, 1])
    with pm.Model(coords={"obs": range(3 * COPIES)}) as model:
        a = pm.Normal("a", 0, 1)
        z = pm.Gamma("z", 2, 1.5, dims="obs")
        pm.Poisson("x", pm.math.exp(a) * z, observed=np.repeat(x, COPIES), dims="obs")
    # marginally negative binomial with mu = exp(a) 2 / 1.5, alpha = 2
    mu = np.exp(0.3) * 2 / 1.5
    return model, {"a": np.array(0.3)}, ((x - mu) * 2 / (2 + mu)).sum()


@pytest.mark.slow(3)
def test_transformed_latent():
    """The Jacobian is in the weights: without it the gradient would be off by about one."""
    model, theta, exact = positive()
    # q: log z is N(0.2 x, 1)
    weights = {"z from x": np.array([[0.2, 0.0]]), "z": np.array([0.0, 0.0])}
    n_samples = 200
    latents = sgm.NeuralImportance(["z"], n_samples, weights=weights, learning_rate=0)
    draws, _ = estimates(model, latents, theta, 3 * COPIES, n_calls=20)
    # the bias to first order, -E_q[w^2 (g - E_p g)] / L with E_q[w] = 1, by quadrature over log z
    u = np.linspace(-5, 4, 20_001)
    bias = 0
    for x in (0, 3, 1):
        log_p = (2 + x) * u - (1.5 + np.exp(0.3)) * np.exp(u)
        p = np.exp(log_p - logsumexp(log_p))
        log_q = -0.5 * (u - 0.2 * x) ** 2
        q = np.exp(log_q - logsumexp(log_q))
        gradient = x - np.exp(u + 0.3)
        bias -= (p**2 / q) @ (gradient - p @ gradient) / n_samples
    error = draws.std() / COPIES / np.sqrt(20)
    assert error < 0.003
    assert abs(draws.mean() / COPIES - exact - bias) < 4 * error + 0.1 * abs(bias)


# ---- the whole chain -----------------------------------------------------------------------


def test_order_and_inputs_of_the_default_network():
    """Layers inverted; other parents of what a variable touches count, once they are drawn."""
    with pm.Model(coords={"obs": range(4), "unit": range(2), "pixel": range(3)}) as model:
        w = pm.Normal("w", shape=(2, 3))
        v = pm.Normal("v", shape=(2, 2))
        top = pm.Bernoulli("top", 0.5, dims=("obs", "unit"))
        size = pm.Normal("size", 0, 1, dims="obs")
        kind = pm.Categorical("kind", np.ones(3) / 3, dims="obs")
        z = pm.Bernoulli("z", logit_p=top @ v, dims=("obs", "unit"))
        pm.Normal("y", size + kind, 1, observed=np.zeros(4), dims="obs")
        pm.Bernoulli("x", logit_p=z @ w, observed=np.zeros((4, 3), int), dims=("obs", "pixel"))
    latents = sgm.NeuralImportance(["top", "size", "kind", "z"])
    source = latent_gradient_source(
        model, without := without_latents(model, latents.vars), without.value_vars, latents,
        batch_size=2,
    )  # fmt: skip
    shapes = [np.shape(a) for a in latents.init(source.joint, np.random.default_rng(0))["network"]]
    network = latents._network(source.joint)
    assert network.inputs == {"size": ["y"], "kind": ["y", "size"], "z": ["x"], "top": ["z"]}
    expected = {
        "size from y": (1, 2),
        "size": (2,),
        "kind from y": (1, 3),
        "kind from size": (1, 3),
        "kind": (3,),
        "z from x": (3, 2),
        "z": (2,),
        "top from z": (2, 2),
        "top": (2,),
    }
    assert network.shapes == expected
    assert sorted(shapes) == sorted(expected.values())


@pytest.mark.slow(7)
def test_posterior_of_theta():
    """One parameter, its posterior on a grid with z summed out: bias stated, sd right."""
    rng = np.random.default_rng(8)
    n = 60
    y = rng.normal(1.5 * (rng.random(n) < 0.4), 1)
    with pm.Model(coords={"obs": range(n)}):
        mu = pm.Normal("mu", 0, 2)
        z = pm.Bernoulli("z", 0.4, dims="obs")
        pm.Normal("y", mu * z, 1, observed=y, dims="obs")
        step = sgm.MSGNHT_S(
            step_size=0.05,
            diffusion=5.0,
            batch_size=30,
            thin=20,
            replacement=True,
            latents=sgm.NeuralImportance([z], n_samples=20, learning_rate=0.01),
            compile_kwargs=JAX,
        )
    idata = pm.sample(
        model=step.model,
        step=step,
        draws=4000,
        tune=200,
        chains=1,
        cores=1,
        random_seed=4,
        progressbar=False,
        compute_convergence_checks=False,
    )
    grid = np.linspace(-3, 5, 4001)
    log_p = -0.5 * (grid / 2) ** 2 + np.logaddexp(
        np.log(0.4) - 0.5 * (y[:, None] - grid) ** 2, np.log(0.6) - 0.5 * y[:, None] ** 2
    ).sum(0)
    p = np.exp(log_p - logsumexp(log_p))
    mean = p @ grid
    sd = np.sqrt(p @ (grid - mean) ** 2)
    draws = idata.posterior.mu.values.ravel()
    # 80 000 updates are some 1000 independent draws: errors of 0.03 sd and 0.02 sd, taken three
    # and four times; the bias at 20 draws from a trained network is below them
    assert abs(draws.mean() - mean) < 0.1 * sd
    assert abs(draws.std() / sd - 1) < 0.1
    assert "z" not in idata.posterior
    ess = idata.sample_stats.importance_ess.values
    assert 18 < ess[0, -1] <= 20


def small_step(**options):
    model = belief_network()
    latents = sgm.NeuralImportance(["z"], n_samples=4, **options)
    return sgm.SGLD(
        step_size=0.01, batch_size=2, latents=latents, model=model, compile_kwargs=JAX, thin=3
    )


@pytest.mark.slow(7)
def test_network_and_moments_are_saved():
    """From a saved state the chain goes on identically, network and Adam's moments included."""
    step = small_step(learning_rate=0.01)
    step.setup_chain(np.random.default_rng(5), tune=0, draws=1)
    point, _ = step.step(step.model.initial_point())
    saved = step.sampling_state
    updates = saved.sampler_state["network_updates"][0]
    assert updates == 3
    moments = [*saved.sampler_state["network_mean"], *saved.sampler_state["network_square"]]
    assert all(np.any(m != 0) for m in moments)
    first = [step.step(point)[0], step.sampler_state["network"]]
    step.sampling_state = saved
    again = [step.step(point)[0], step.sampler_state["network"]]
    np.testing.assert_equal(again, first)
    assert any(
        np.any(a != b) for a, b in zip(first[1], saved.sampler_state["network"], strict=True)
    )


@pytest.mark.slow(2)
def test_weights_far_apart():
    """Log weights that differ by thousands, in float32."""
    with pytensor.config.change_flags(floatX="float32"):
        model = belief_network(np.repeat(PATTERNS, COPIES, axis=0))
        latents = sgm.NeuralImportance(["z"], 5)
        theta = {"w": 4000 * THETA["w"], "c": 1000 * THETA["c"], "b": THETA["b"]}
        draws, ess = estimates(model, latents, theta, COPIES * 3, n_calls=3)
    assert np.isfinite(draws).all()
    assert np.all((ess >= 1) & (ess <= 5))


@pytest.mark.slow(4)
def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match="n_samples=1 gives every draw the weight 1"):
        sgm.NeuralImportance(["z"], 1)
    with pytest.raises(ValueError, match=r"learning_rate must be .* got -1"):
        sgm.NeuralImportance(["z"], learning_rate=-1)
    with pytest.raises(ValueError, match="proposal= needs weights="):
        sgm.NeuralImportance(["z"], proposal=fixed_proposal)
    with pytest.raises(ValueError, match="autoregressive=True is for the default network"):
        sgm.NeuralImportance(["z"], proposal=fixed_proposal, weights={}, autoregressive=True)
    with pytest.raises(ValueError, match=r"the network needs {'z from x': \(4, 2\)"):
        small_step(weights={"z": np.zeros(2)})
    with pm.Model(coords={"obs": range(3)}) as model:
        rate = pm.HalfNormal("rate")
        pm.Poisson("count", rate, dims="obs")
        pm.Normal("x", model["count"], 1, observed=np.zeros(3), dims="obs")
        latents = sgm.NeuralImportance(["count"])
        with pytest.raises(ValueError, match="no proposal for 'count': it supports Bernoulli"):
            sgm.SGLD(step_size=0.1, batch_size=2, latents=latents)
    with pytest.raises(ValueError, match="The step has not made a draw with these latents"):
        latents.trained(small_step())


@pytest.mark.long
@pytest.mark.slow(10)
@pytest.mark.parametrize(("logit", "calls"), [(-30, 10), (30, 40)])
def test_values_of_tiny_probability_are_not_drawn_more_often(logit, calls):
    """JAX's uniforms of 32 bits are 0 once in 2^23 draws, and 1 once in 2^25, after rounding."""
    with pytensor.config.change_flags(floatX="float32"):
        generator = random_generator_type("rng")
        stream = NoiseStream(generator)
        z = Bernoulli().draw(pt.constant(np.float32(logit)), (5_000_000,), stream)
        count = pytensor.function(
            [pytensor.In(generator, mutable=True, borrow=True)],
            [pt.eq(z, 1.0 if logit < 0 else 0.0).sum(), pytensor.Out(stream.rng, borrow=True)],
            mode="JAX",
        )
        count.trust_input = True
        rng, found = Jax().generator(np.random.default_rng(1)), 0.0
        for _ in range(calls):  # 6 would be drawn on average, and 2e-5 should be
            n, rng = count(rng)
            found += float(n)
    assert found == 0


def test_the_less_probable_value_is_drawn_at_uniforms_near_zero():
    """There uniforms are fine; near 1 they are not, and 1 - 1e-9 is 1 in single precision."""
    logits = np.float32([-25, -1, 1, 25])
    uniforms = np.float32([0, 1e-12, 0.2, 0.3, 0.9999999, 1])
    z = binary_draw(pt.constant(logits[:, None]), pt.constant(uniforms)).eval(mode="FAST_COMPILE")
    assert z.astype(int).tolist() == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 1],
        [0, 0, 1, 1, 1, 1],
    ]
