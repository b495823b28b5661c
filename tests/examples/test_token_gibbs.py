"""The LDA example's compiled token sampler: exact on a document whose topics can be enumerated."""

import itertools
import sys
from math import lgamma
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_sgmcmc as sgm
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.gradients.model_gradient import gradient_source

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples"
ALPHA = 0.3


@pytest.fixture(scope="module")
def token_gibbs():
    sys.path.insert(0, str(EXAMPLES))
    try:
        import token_gibbs
    finally:
        sys.path.remove(str(EXAMPLES))
    return token_gibbs


@pytest.fixture
def corpus(token_gibbs):
    documents = [([0, 2], [2, 1]), ([1, 2, 3], [1, 3, 1]), ([3], [1])]
    return token_gibbs.Corpus.of([(np.array(w), np.array(c)) for w, c in documents], n_words=4)


LOG_PI = np.log(np.random.default_rng(0).dirichlet(np.ones(4), size=3))


def enumerated(words):
    """log p(w | pi) of a document and E n_kw, over all assignments of topics."""
    n_topics = len(LOG_PI)
    log_p, counts = [], []
    for z in itertools.product(range(n_topics), repeat=len(words)):
        n_k = np.bincount(z, minlength=n_topics)
        urn = sum(lgamma(ALPHA + n) - lgamma(ALPHA) for n in n_k)
        urn += lgamma(n_topics * ALPHA) - lgamma(n_topics * ALPHA + len(words))
        log_p.append(urn + sum(LOG_PI[k, w] for k, w in zip(z, words, strict=True)))
        n_kw = np.zeros(LOG_PI.shape)
        np.add.at(n_kw, (list(z), words), 1)
        counts.append(n_kw)
    log_p = np.array(log_p)
    weight = np.exp(log_p - log_p.max())
    total = log_p.max() + np.log(weight.sum())
    return total, np.tensordot(weight / weight.sum(), counts, axes=1)


@pytest.mark.slow(5)
def test_expected_counts(token_gibbs, corpus):
    """The mean of many sweeps; the gradient of log p(w | pi) is E n_kw."""
    tokens = [[0, 0, 2], [1, 2, 2, 2, 3], [3]]
    operation = token_gibbs.DocumentLogLik(ALPHA, burn_in=20, n_samples=200_000)
    log_pi = pt.matrix("log_pi", dtype="float64")
    each = operation(pt.arange(3), log_pi, *corpus[:3])
    factor = np.array([1.0, 2.0, 5.0])
    gradient = pt.grad(pt.sum(factor * each), log_pi).eval({log_pi: LOG_PI}, mode=PYTHON)
    exact = [enumerated(words)[1] for words in tokens]
    # 200,000 correlated sweeps of at most 5 tokens: standard errors of at most 0.005 a document
    np.testing.assert_allclose(gradient, np.tensordot(factor, exact, axes=1), atol=0.06)
    values = each.eval({log_pi: LOG_PI}, mode=PYTHON)
    np.testing.assert_allclose(values, [np.sum(n * LOG_PI) for n in exact], atol=0.03)
    # the identity itself, by differences
    step, moved = 1e-6, LOG_PI.copy()
    before = enumerated(tokens[1])[0]
    moved[0, 2] += step
    LOG_PI[:], kept = moved, LOG_PI.copy()
    after = enumerated(tokens[1])[0]
    LOG_PI[:] = kept
    np.testing.assert_allclose((after - before) / step, exact[1][0, 2], rtol=1e-4)


def test_draws_are_functions_of_theta_and_document(token_gibbs, corpus):
    """The same call draws the same, in whatever batch; another theta or document others."""
    documents = [(np.arange(4), np.full(4, 30))] * 2
    twins = token_gibbs.Corpus.of(documents, n_words=4)

    def counts(d, log_pi):
        return token_gibbs.document_counts(d, log_pi, *twins[:3], ALPHA, 1, 1)

    np.testing.assert_array_equal(counts(0, LOG_PI), counts(0, LOG_PI))
    assert not np.array_equal(counts(0, LOG_PI), counts(1, LOG_PI))
    assert not np.array_equal(counts(0, LOG_PI), counts(0, LOG_PI + 1e-12))
    np.testing.assert_array_equal(counts(0, LOG_PI).sum(axis=1), np.full(4, 30))
    whole = token_gibbs.log_lik(np.array([0, 1]), LOG_PI, *twins[:3], ALPHA, 1, 1)
    alone = [token_gibbs.log_lik(np.array([d]), LOG_PI, *twins[:3], ALPHA, 1, 1) for d in (0, 1)]
    np.testing.assert_array_equal(whole, np.ravel(alone))


@pytest.mark.slow(3)
def test_in_a_model(token_gibbs, corpus):
    """The library cuts it by documents, checks that batches add up, and takes its gradient."""
    with pm.Model(coords={"document": range(3)}) as model:
        theta = pm.Normal("theta", shape=(3, 4))
        number = pm.Data("number", np.arange(3), dims="document")
        log_pi = theta - pt.logsumexp(theta, axis=1, keepdims=True)
        operation = token_gibbs.DocumentLogLik(ALPHA, burn_in=20, n_samples=20_000)
        pm.Potential("tokens", operation(number, log_pi, *corpus[:3]), dims="document")
        step = sgm.SGLD(step_size=1e-3, batch_size=1, thin=2, compile_kwargs={"mode": PYTHON})
    _, [stats] = step.step({"theta": LOG_PI})
    assert not stats["nonfinite"]
    source = gradient_source(model, list(model.value_vars), batch_size=2)
    inputs = [*source.vars, source.rows[0].index, *source.constants]
    values = {"theta": LOG_PI, "rows": np.array([1, 0]), "N/n": 1.5, "number": np.arange(3)}
    n_kw = enumerated([1, 2, 2, 2, 3])[1] + enumerated([0, 0, 2])[1]
    expected = 1.5 * (n_kw - np.exp(LOG_PI) * n_kw.sum(axis=1, keepdims=True))
    given = {v: np.asarray(values[v.name], v.dtype) for v in inputs if v.name in values}
    gradient = source.likelihood[0].eval(given, mode=PYTHON)
    np.testing.assert_allclose(gradient, expected, atol=0.15)


@pytest.mark.slow(4)
def test_batch_gibbs_and_completion(token_gibbs):
    """Two topics with words of their own are found, and the unseen words predicted."""
    rng = np.random.default_rng(1)
    documents = []
    for d in range(60):
        words = rng.integers(5, size=20) + 5 * (d % 2)
        documents.append(np.unique(words, return_counts=True))
    corpus = token_gibbs.Corpus.of(documents, n_words=10)
    gibbs = token_gibbs.BatchGibbs(corpus, 2, alpha=0.1, beta=0.1, seed=0)
    for _ in range(30):
        gibbs.sweep()
    assert gibbs.n_k.sum() == pytest.approx(corpus.n_tokens + 2 * 10 * 0.1)
    shares = gibbs.pi[:, :5].sum(axis=1)
    assert min(shares) < 0.02
    assert max(shares) > 0.98
    # topics drawn from a Dirichlet distribution, whose numbers are the counts with the prior's
    drawn = np.array([gibbs.draw_pi(rng) for _ in range(4000)])
    large = gibbs.pi > 0.05
    variance = (gibbs.pi * (1 - gibbs.pi) / (gibbs.n_k[:, None] + 1))[large]
    error = np.sqrt(variance / 4000)
    assert np.all(np.abs(drawn.mean(axis=0) - gibbs.pi)[large] < 4.5 * error)
    np.testing.assert_allclose(drawn.var(axis=0)[large], variance, rtol=0.15)
    perplexity = token_gibbs.Perplexity(corpus, rng, alpha=0.1)
    assert perplexity.seen.n_tokens == perplexity.unseen.n_tokens == corpus.n_tokens / 2
    single, mean = perplexity.add(gibbs.pi)
    assert single == mean
    assert 4.8 < single < 5.5  # five equally likely words
    uniform, _ = perplexity.add(np.full((2, 10), 0.1))
    assert uniform == pytest.approx(10)
