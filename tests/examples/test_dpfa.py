"""Deep Poisson factor analysis: the local draws and the gradient against enumeration, one run."""

import itertools
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.random.type import random_generator_type
from scipy.special import gammaln

import pymc_sgmcmc as sgm
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.latents.gradient import latent_gradient_source
from pymc_sgmcmc.latents.joint import without_latents
from pymc_sgmcmc.noise import NoiseStream

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import dpfa
import dpfa_authors
from frozen_gradient import FrozenGradient_E, FrozenGradient_S
from token_gibbs import Corpus
from topic_gibbs import TopicGibbs, network, predict_words, sample_documents

pytestmark = [pytest.mark.usefixtures("python_by_default"), pytest.mark.long]

SIZES = (2, 2, 1)
BETA = dpfa.BETA
DOCUMENTS = np.array([[2, 1, 0], [1, 1, 1], [0, 0, 3]])
UNITS = np.array(list(itertools.product([0, 1], repeat=sum(SIZES))))
POINT = {
    "topics": np.array([[0.7, 0.2, 0.1], [0.15, 0.25, 0.6]]),
    "r": np.array([0.6, 1.7]),
    "gamma0": np.array(1.3),
    "c1": np.array([-0.4, 0.3]),
    "c2": np.array([0.2, -0.5]),
    "c3": np.array([0.4]),
    "w1": np.array([[1.5, -1.0], [-0.8, 2.0]]),
    "w2": np.array([[1.2, -1.4]]),
}
"""Of two topics and three words, all different, so that nothing cancels."""


# ---- enumeration ---------------------------------------------------------------------------


def log_bernoulli(h, log_odds):
    return np.sum(h * log_odds - np.logaddexp(0, log_odds), axis=-1)


def log_prior_of_units(p):
    """Of all UNITS, shape (32,)."""
    h1, h2, h3 = UNITS[:, :2], UNITS[:, 2:4], UNITS[:, 4:]
    return (
        log_bernoulli(h1, h2 @ p["w1"] + p["c1"])
        + log_bernoulli(h2, h3 @ p["w2"] + p["c2"])
        + log_bernoulli(h3, p["c3"] + 0 * h3)
    )


def joint(x, p):
    """p(x, counts of the topics, units) by counts' splits (s, 2) and units: shape (s, 32).

    Of each word some tokens are of topic 0, the others of topic 1; psi is integrated out.
    """
    first = np.array(list(itertools.product(*(range(c + 1) for c in x))))
    splits = np.stack([first, x - first], axis=1)  # (s, topics, words)
    words = (splits * np.log(p["topics"]) - gammaln(splits + 1)).sum(axis=(1, 2))
    n = splits.sum(axis=2)
    on = (
        gammaln(p["r"] + n)
        - gammaln(p["r"])
        + p["r"] * np.log(BETA)
        - (p["r"] + n) * np.log(BETA + 1)
    )
    with np.errstate(divide="ignore"):
        off = np.log(n == 0)  # a topic that is off has no tokens
    h1 = UNITS[:, :2].astype(bool)
    topics = np.where(h1[None], on[:, None], off[:, None]).sum(axis=2)
    return np.exp(words[:, None] + topics + log_prior_of_units(p)), n


def log_evidence(x, p):
    return np.log(joint(x, p)[0].sum())


def posterior(x, p, function):
    """Mean of function(n, h1, h), arrays over splits and units, given x."""
    weight, n = joint(x, p)
    weight = weight / weight.sum()
    values = function(n[:, None], UNITS[None, :, :2], UNITS[None])
    return np.einsum(
        "su,su...->...", weight, np.broadcast_to(values, (*weight.shape, values.shape[-1]))
    )


# ---- local draws ---------------------------------------------------------------------------

N = 4000
"""Copies of a document, drawn independently."""


@cache
def draws(document: int):
    copies = np.tile(DOCUMENTS[document], (N, 1))
    net = network(POINT, len(SIZES))
    # the fifth draw of each copy is as good as the first: the burn-in is long enough
    psi, units = sample_documents(
        1 + document, copies, POINT["topics"], *net, np.array(SIZES), BETA, 40, 2
    )
    return psi[1], units[1].astype(float)


def assert_mean(values, exact):
    """Within 4.5 standard errors of independent draws, for every element."""
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    assert np.all(np.abs(values.mean(axis=0) - exact) < 4.5 * error + 1e-12), (
        values.mean(axis=0) - exact
    ) / error


@pytest.mark.long
@pytest.mark.parametrize("document", [0, 1, 2])
def test_units_have_their_posterior(document):
    """Every unit, and every pair of them: dependence within and between layers."""
    _, units = draws(document)
    pairs = [u for u in itertools.combinations(range(5), 2)]

    def moments(n, h1, h):
        return np.concatenate(
            [h, np.stack([h[..., i] * h[..., j] for i, j in pairs], axis=-1)], axis=-1
        )

    assert_mean(moments(None, None, units), posterior(DOCUMENTS[document], POINT, moments))


@pytest.mark.long
@pytest.mark.parametrize("document", range(3))
def test_psi_has_its_posterior(document):
    psi, units = draws(document)
    r = POINT["r"]

    def exact(n, h1, h):
        shape, rate = r + n, BETA + h1
        mean = shape / rate
        return np.concatenate([mean, mean * h1, shape * (shape + 1) / rate**2], axis=-1)

    values = np.concatenate([psi, psi * units[:, :2], psi**2], axis=-1)
    assert_mean(values, posterior(DOCUMENTS[document], POINT, exact))


@pytest.mark.slow(2)
def test_predictions_of_words():
    """Mean share of each topic in theta given the part that is seen, times the topics."""
    seen, unseen = DOCUMENTS[0], np.array([1, 0, 2])
    corpora = [
        Corpus.of([(np.flatnonzero(x), x[x > 0])] * N, 3) for x in (seen, unseen)
    ]  # the same document again and again
    (word, count, first, _), (word2, _, first2, _) = corpora
    probability = predict_words(
        3, word, count, first, word2, first2, POINT["topics"], *network(POINT, 3),
        np.array(SIZES), BETA, 40, 1,
    ).reshape(N, 2)  # fmt: skip

    def share(n, h1, h):
        weight = POINT["r"] * h1 + n
        return weight / weight.sum(axis=-1, keepdims=True)

    exact = posterior(seen, POINT, share) @ POINT["topics"]
    assert_mean(probability, exact[unseen > 0])


# ---- gradient ------------------------------------------------------------------------------


def values_of(model):
    """POINT on the unconstrained scale, by the names of the model's value variables."""
    log_topics = np.log(POINT["topics"])
    log_topics = log_topics - log_topics.mean(axis=1, keepdims=True)
    logs = {f"{name}_log__": np.log(POINT[name]) for name in ("r", "gamma0")}
    values = {**POINT, **logs, "topics_simplex__": log_topics[:, :-1]}
    return {v.name: values[v.name] for v in model.value_vars}


def numerical_gradient(function, point):
    out = {}
    for name, value in point.items():
        out[name] = np.empty(value.shape)
        for index in np.ndindex(value.shape):
            ends = []
            for h in (1e-4, -1e-4):
                moved = np.array(value)
                moved[index] += h
                ends.append(function(point | {name: moved}))
            out[name][index] = (ends[0] - ends[1]) / 2e-4
    return out


@pytest.mark.slow(4)
def test_gradient_is_that_of_the_enumerated_likelihood():
    """Of all global variables, over independent batches: SGRLD's and MSGNHT_S's part alike."""
    model = dpfa.deep_poisson_factor_analysis(np.tile(DOCUMENTS, (300, 1)), SIZES)
    smaller = without_latents(model, TopicGibbs(SIZES, BETA).vars)
    latents = TopicGibbs(SIZES, BETA, n_samples=2, burn_in=30)
    source = latent_gradient_source(model, smaller, smaller.value_vars, latents, batch_size=900)
    values = values_of(smaller)
    rng = random_generator_type("rng")
    stream = NoiseStream(rng)
    theta = [pt.constant(values[v.name]) for v in source.vars]
    rows = [pt.constant(np.arange(900))]
    data = [pt.constant(array.get_value()) for array, _ in source.data]
    scale = pt.constant(np.asarray(1 / 300))  # the sum over one copy of each document
    estimate = source.at(theta, rows, [scale, *data], {}, stream).likelihood
    function = pytensor.function([rng], [*estimate, stream.rng], mode=PYTHON)
    function.trust_input = True
    generator, batches = np.random.default_rng(5), []
    for _ in range(24):
        *gradients, generator = function(generator)
        batches.append(gradients)

    def log_likelihood(point):
        parameters = dpfa.parameters(point)
        return sum(log_evidence(x, parameters) for x in DOCUMENTS)

    exact = numerical_gradient(log_likelihood, values)
    assert any(name == "topics_simplex__" for name in exact)
    for k, var in enumerate(source.vars):
        gradients = np.array([batch[k] for batch in batches])
        error = gradients.std(axis=0, ddof=1) / np.sqrt(24)
        # 5.2 errors of 24 batches: once in 2000 runs for these 20 elements (Student's t)
        deviation = np.abs(gradients.mean(axis=0) - exact[var.name])
        assert np.all(deviation < 5.2 * error + 1e-6), (var.name, deviation / error)
        assert np.all(error < 0.03), var.name


# ---- a whole run ---------------------------------------------------------------------------


class Options:
    """The script's options, for a corpus of a few hundred documents."""

    topic_step, step_size, batch_size, samples, burn_in = 0.5, 0.01, 20, 2, 5
    integrator, repeats = "S", 2


@pytest.mark.long
@pytest.mark.parametrize("script", [dpfa, dpfa_authors])
def test_one_step_moves_all_and_learns(script):
    """Documents of one of two vocabularies: held-out words are predicted as if it were known."""
    rng = np.random.default_rng(0)
    kind = rng.integers(2, size=240)
    x = np.zeros((240, 20), dtype=np.int16)
    for d, side in enumerate(kind):
        x[d] = rng.multinomial(30, np.repeat([1 - side, side], 10) / 10)
    bags = [(np.flatnonzero(row), row[row > 0]) for row in x]
    perplexity = dpfa.DeepPerplexity(Corpus.of(bags[200:], 20), rng, SIZES, (10, 10))
    model = dpfa.deep_poisson_factor_analysis(x[:200], SIZES)
    step = script.make_step(model, SIZES, Options, thin=60, compile_kwargs={"mode": PYTHON})
    start = script.start_point(step.model, 1)
    idata = pm.sample(
        3, tune=1, chains=1, step=step, model=step.model, initvals=start, random_seed=2,
        progressbar=False, compute_convergence_checks=False,
    )  # fmt: skip
    assert not idata.sample_stats["nonfinite"].any()
    names = {"topics", "r", "gamma0", "c1", "c2", "c3", "w1", "w2"}
    assert set(idata.posterior.data_vars) == names
    for name in names:
        values = idata.posterior[name].values[0]
        assert np.all(np.diff(values.reshape(3, -1), axis=0) != 0), name
    last = {name: np.asarray(idata.posterior[name].values[0, -1], float) for name in names}
    before, _ = perplexity.add(dpfa.parameters(start))
    after, _ = perplexity.add(last)
    assert before > 15  # of 20 words alike
    assert after < 11.5  # of 10


@pytest.mark.parametrize(
    ("frozen", "plain"), [(FrozenGradient_S, sgm.MSGNHT_S), (FrozenGradient_E, sgm.MSGNHT_E)]
)
def test_many_updates_on_one_gradient(frozen, plain):
    """Where the gradient is the same everywhere, as many updates of mSGNHT; else they are not."""

    def end(sampler, power, thin=1, **settings):
        with pm.Model():
            x = pm.Flat("x", shape=2, initval=[0.3, -0.2])
            pm.Potential("u", (np.array([1.0, -2.0]) * x**power).sum())
            step = sampler(
                step_size=0.05, diffusion=0.0, thin=thin, compile_kwargs={"mode": PYTHON},
                **settings,
            )  # fmt: skip
        step.setup_chain(np.random.default_rng(1), tune=0, draws=1)
        point, _ = step.step(step.model.initial_point())
        return point["x"]

    many = {"updates": 7, "new_momenta": False}
    np.testing.assert_allclose(end(frozen, 1, **many), end(plain, 1, thin=7), rtol=1e-6)
    assert np.abs(end(frozen, 2, **many) - end(plain, 2, thin=7)).max() > 1e-3


def test_split_of_words():
    corpus = Corpus.of([(np.array([0, 2]), np.array([6, 4])), (np.array([1]), np.array([5]))], 3)
    seen, unseen = corpus.halves(np.random.default_rng(0), 0.8)
    assert (seen.n_tokens, unseen.n_tokens) == (12, 3)
    both = [dpfa.counts_of(part) for part in (seen, unseen, corpus)]
    np.testing.assert_array_equal(both[0] + both[1], both[2])
