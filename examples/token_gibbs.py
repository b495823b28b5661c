"""Gibbs sampling of LDA's topic assignments, compiled, and its place in a PyMC model.

A document d of words w_t has topic proportions ~ Dirichlet(alpha, ..., alpha), integrated out, and
a topic z_t for each word. Given the topics pi (topic k gives word w the probability pi_kw)

    p(z_t = k | the other z, w, pi)  is proportional to  (alpha + n_dk without t) pi_kw

(high-order paper, supplement, eq 12). The gradient of the document's likelihood is a mean over z

    d log p(w_d | pi) / d log pi_kw = E n_dkw

with n_dkw the number of words w in d that have topic k (eq 11): that is what `DocumentLogLik`
gives to PyTensor, so any sampler of the library can use it.
"""

from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from numba import njit
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import (
    default_hash_key_from_props,
    register_funcify_and_cache_key,
)


class Corpus(NamedTuple):
    """Documents as bags of words: document d has the entries first[d] to first[d + 1]."""

    word: np.ndarray
    """Word of each entry, int64."""
    count: np.ndarray
    """How often it is there, int64."""
    first: np.ndarray
    """Shape (documents + 1,), int64."""
    n_words: int
    """Size of the vocabulary."""

    @classmethod
    def of(cls, documents, n_words: int) -> "Corpus":
        """Make a corpus of pairs (words, counts), one for each document."""
        words, counts = zip(*documents, strict=True)
        first = np.concatenate([[0], np.cumsum([len(w) for w in words])])
        word, count = np.concatenate(words), np.concatenate(counts)
        return cls(word.astype("int64"), count.astype("int64"), first.astype("int64"), n_words)

    @property
    def n_documents(self) -> int:
        """Number of documents."""
        return len(self.first) - 1

    @property
    def n_tokens(self) -> int:
        """Number of words, repetitions counted."""
        return int(self.count.sum())

    def documents(self, chosen) -> "Corpus":
        """Return a corpus of some of the documents."""
        spans = [slice(self.first[d], self.first[d + 1]) for d in chosen]
        return Corpus.of([(self.word[s], self.count[s]) for s in spans], self.n_words)

    def halves(self, rng: np.random.Generator, share: float = 0.5) -> tuple["Corpus", "Corpus"]:
        """Deal each document's tokens at random into two parts, a ``share`` and the rest."""
        sides: tuple[list, list] = ([], [])
        for d in range(self.n_documents):
            span = slice(self.first[d], self.first[d + 1])
            tokens = rng.permutation(np.repeat(self.word[span], self.count[span]))
            parts = np.split(tokens, [int(np.ceil(share * len(tokens)))])
            for side, part in zip(sides, parts, strict=True):
                side.append(np.unique(part, return_counts=True))
        first, second = (Corpus.of(side, self.n_words) for side in sides)
        return first, second


# ---- compiled sampling ---------------------------------------------------------------------

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(inline="always")
def mix(x):
    """Scramble 64 bits (the finaliser of splitmix64, Steele, Lea and Flood 2014)."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(inline="always")
def uniform(x):
    """Turn 64 random bits into a number in [0, 1)."""
    return np.float64(x >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(fastmath=True, cache=True)
def draw_topic(weight, row, u, p):
    """Draw k with probability proportional to weight_k row_k, from a uniform u; p is scratch."""
    K = weight.size
    total = 0.0
    for k in range(K):
        p[k] = weight[k] * row[k]
        total += p[k]
    left = u * total
    for k in range(K - 1):
        left -= p[k]
        if left < 0.0:
            return k
    return K - 1


@njit(cache=True)
def sample_document(rows, count, alpha, burn_in, n_samples, seed, n_kw, weight, z):
    """Gibbs sweeps over one document's tokens.

    Parameters
    ----------
    rows : array, shape (entries, K)
        pi of the document's distinct words.
    count : array, shape (entries,)
    burn_in, n_samples : int
        Sweeps that are thrown away, after a first that fills in the topics one by one, and kept.
    seed : uint64
    n_kw : array, shape (entries, K)
        The kept sweeps' counts are added to it.
    weight : array, shape (K,)
        Left as alpha + the last sweep's counts of topics.
    z : array, at least as long as the document
        Scratch.
    """
    K = rows.shape[1]
    p = np.empty(K)
    weight[:] = alpha
    for sweep in range(burn_in + n_samples + 1):
        t = 0
        for entry in range(count.size):
            for _ in range(count[entry]):
                if sweep > 0:
                    weight[z[t]] -= 1.0
                seed += GOLDEN
                k = draw_topic(weight, rows[entry], uniform(mix(seed)), p)
                z[t] = k
                weight[k] += 1.0
                t += 1
                if sweep > burn_in:
                    n_kw[entry, k] += 1.0


@njit(cache=True)
def rows_of(log_pi, word, rows):
    """Exponentiate pi of some words, shape (entries, K), and hash it."""
    bits = np.uint64(0)
    one = np.empty(1)
    for entry in range(word.size):
        for k in range(log_pi.shape[0]):
            rows[entry, k] = np.exp(log_pi[k, word[entry]])
        one[0] = rows[entry, 0]
        bits = mix(bits + GOLDEN + one.view(np.uint64)[0])
    return bits


@njit(cache=True)
def document_counts(d, log_pi, word, count, first, alpha, burn_in, n_samples):
    """Topic counts, shape (entries, K), of one document, means over the sweeps.

    The draws depend on the document's number and on the bits of its words' pi alone: the same
    call gives the same draws, another theta others.
    """
    span = slice(first[d], first[d + 1])
    K = log_pi.shape[0]
    rows = np.empty((word[span].size, K))
    seed = mix(rows_of(log_pi, word[span], rows) + GOLDEN * np.uint64(d + 1))
    n_kw = np.zeros(rows.shape)
    z = np.empty(count[span].sum(), dtype=np.int64)
    weight = np.empty(K)
    sample_document(rows, count[span], alpha, burn_in, n_samples, seed, n_kw, weight, z)
    return n_kw / n_samples


@njit(cache=True)
def log_lik(documents, log_pi, word, count, first, alpha, burn_in, n_samples):
    """Mean over z of log p(w | z, pi) for each document, shape (n,)."""
    out = np.zeros(documents.size, dtype=log_pi.dtype)
    for i in range(documents.size):
        d = documents[i]
        n_kw = document_counts(d, log_pi, word, count, first, alpha, burn_in, n_samples)
        for entry in range(len(n_kw)):
            for k in range(log_pi.shape[0]):
                if n_kw[entry, k] > 0:
                    out[i] += n_kw[entry, k] * log_pi[k, word[first[d] + entry]]
    return out


@njit(cache=True)
def topic_counts(factor, documents, log_pi, word, count, first, alpha, burn_in, n_samples):
    """n_kw summed over documents, each times its factor, shape (K, words)."""
    out = np.zeros(log_pi.shape, dtype=log_pi.dtype)
    for i in range(documents.size):
        d = documents[i]
        n_kw = document_counts(d, log_pi, word, count, first, alpha, burn_in, n_samples)
        for entry in range(len(n_kw)):
            for k in range(log_pi.shape[0]):
                out[k, word[first[d] + entry]] += factor[i] * n_kw[entry, k]
    return out


# ---- as operations of a graph --------------------------------------------------------------


class TokenOp(Op):
    """What both operations share: the Dirichlet's alpha and the numbers of sweeps."""

    __props__ = ("alpha", "burn_in", "n_samples")

    def __init__(self, alpha: float, burn_in: int, n_samples: int):
        self.alpha, self.burn_in, self.n_samples = float(alpha), int(burn_in), int(n_samples)

    def perform(self, node, inputs, output_storage):
        settings = (self.alpha, self.burn_in, self.n_samples)
        output_storage[0][0] = self.function(*inputs, *settings)


class DocumentLogLik(TokenOp):
    """(documents, log_pi, word, count, first) -> log p(w | z, pi) of each, mean over draws of z.

    Its gradient with respect to log_pi is that of log p(w | pi), estimated from the same draws.
    """

    function = staticmethod(log_lik)

    def make_node(self, documents, log_pi, *corpus):
        inputs = [pt.as_tensor(x) for x in (documents, log_pi, *corpus)]
        return Apply(self, inputs, [pt.tensor(shape=(None,), dtype=inputs[1].dtype)])

    def pullback(self, inputs, outputs, cotangents):
        counts = TopicCounts(self.alpha, self.burn_in, self.n_samples)
        disconnected = [pytensor.gradient.disconnected_type() for _ in inputs[2:]]
        return [disconnected[0].clone(), counts(cotangents[0], *inputs), *disconnected]

    def connection_pattern(self, node):
        return [[i == 1] for i in range(len(node.inputs))]


class TopicCounts(TokenOp):
    """(factor, documents, log_pi, word, count, first) -> n_kw summed over the documents."""

    function = staticmethod(topic_counts)

    def make_node(self, factor, documents, log_pi, *corpus):
        inputs = [pt.as_tensor(x) for x in (factor, documents, log_pi, *corpus)]
        return Apply(self, inputs, [inputs[2].type()])


@register_funcify_and_cache_key(TokenOp)
def numba_funcify_TokenOp(op, node, **kwargs):
    """Put the compiled functions into numba's graphs."""
    function, alpha, burn_in, n_samples = op.function, op.alpha, op.burn_in, op.n_samples

    if isinstance(op, DocumentLogLik):

        @njit
        def call(documents, log_pi, word, count, first):
            return function(documents, log_pi, word, count, first, alpha, burn_in, n_samples)

    else:

        @njit
        def call(factor, documents, log_pi, word, count, first):
            return function(
                factor, documents, log_pi, word, count, first, alpha, burn_in, n_samples
            )

    return call, default_hash_key_from_props(op, version=1)


# ---- perplexity and batch Gibbs ------------------------------------------------------------


@njit(cache=True)
def completion(pi, word, count, first, word2, first2, alpha, burn_in, n_samples, seed):
    """p(word) of each entry of the second halves, from topics fitted to the first halves."""
    K = pi.shape[0]
    out = np.zeros(word2.size)
    weight, proportions = np.empty(K), np.empty(K)
    log_pi = np.log(pi)
    for d in range(first.size - 1):
        span, span2 = slice(first[d], first[d + 1]), slice(first2[d], first2[d + 1])
        rows = np.empty((word[span].size, K))
        rows_of(log_pi, word[span], rows)
        n_kw = np.zeros(rows.shape)
        z = np.empty(count[span].sum(), dtype=np.int64)
        s = mix(seed + GOLDEN * np.uint64(d + 1))
        sample_document(rows, count[span], alpha, burn_in, n_samples, s, n_kw, weight, z)
        for k in range(K):
            proportions[k] = (alpha + n_kw[:, k].sum() / n_samples) / (K * alpha + z.size)
        for entry in range(span2.start, span2.stop):
            for k in range(K):
                out[entry] += proportions[k] * pi[k, word2[entry]]
    return out


class Perplexity:
    """Held-out perplexity by document completion, of the mean prediction of posterior draws.

    The words of each test document are dealt into two halves (or a ``share`` and the rest); the
    topic proportions are fitted to the first by Gibbs sampling, and the second is predicted.
    """

    def __init__(
        self, test: Corpus, rng: np.random.Generator, alpha: float, sweeps=(20, 20), share=0.5
    ):
        self.seen, self.unseen = test.halves(rng, share)
        self.alpha, self.sweeps = alpha, sweeps
        self.forget()

    def forget(self) -> None:
        """Begin a new mean."""
        self._sum, self._n = np.zeros(len(self.unseen.word)), 0

    def of(self, probability: np.ndarray) -> float:
        """Perplexity of given probabilities of the unseen words."""
        log_p = self.unseen.count @ np.log(probability)
        return float(np.exp(-log_p / self.unseen.n_tokens))

    def add(self, pi: np.ndarray) -> tuple[float, float]:
        """Perplexity of one draw of the topics, and of the mean of all since `forget`."""
        seen, unseen = self.seen, self.unseen
        probability = completion(
            np.asarray(pi, dtype=float), seen.word, seen.count, seen.first, unseen.word,
            unseen.first, self.alpha, *self.sweeps, np.uint64(self._n),
        )  # fmt: skip
        self._sum += probability
        self._n += 1
        return self.of(probability), self.of(self._sum / self._n)


@njit(cache=True)
def collapsed_sweep(z, word, count, first, n_dk, n_wk, n_k, seed, start):
    """One sweep of collapsed Gibbs sampling over all documents; ``start`` fills in the topics.

    The counts include the priors' alpha, beta and their sum over words.
    """
    K = n_k.size
    p, weight = np.empty(K), np.empty(K)
    t = 0
    for d in range(first.size - 1):
        for entry in range(first[d], first[d + 1]):
            w = word[entry]
            for _ in range(count[entry]):
                if not start:
                    old = z[t]
                    n_dk[d, old] -= 1.0
                    n_wk[w, old] -= 1.0
                    n_k[old] -= 1.0
                for k in range(K):
                    weight[k] = n_dk[d, k] / n_k[k]
                seed += GOLDEN
                k = draw_topic(weight, n_wk[w], uniform(mix(seed)), p)
                z[t] = k
                n_dk[d, k] += 1.0
                n_wk[w, k] += 1.0
                n_k[k] += 1.0
                t += 1
    return seed


class BatchGibbs:
    """Collapsed Gibbs sampling (Griffiths and Steyvers 2004) of LDA, topics ~ Dirichlet(beta)."""

    def __init__(self, corpus: Corpus, n_topics: int, alpha: float, beta: float, seed: int):
        self.corpus = corpus
        self.z = np.zeros(corpus.n_tokens, dtype=np.int64)
        self.n_dk = np.full((corpus.n_documents, n_topics), float(alpha))
        self.n_wk = np.full((corpus.n_words, n_topics), float(beta))
        self.n_k = np.full(n_topics, corpus.n_words * beta)
        self.seed = np.uint64(mix(np.uint64(seed + 1)))
        self.sweep(start=True)

    def sweep(self, start: bool = False) -> None:
        """Draw every token's topic once."""
        c = self.corpus
        counts = (self.n_dk, self.n_wk, self.n_k)
        self.seed = np.uint64(
            collapsed_sweep(self.z, c.word, c.count, c.first, *counts, self.seed, start)
        )

    @property
    def pi(self) -> np.ndarray:
        """Mean of the topics given all assignments, shape (K, words)."""
        return (self.n_wk / self.n_wk.sum(axis=0)).T

    def draw_pi(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the topics given all assignments, shape (K, words): a sample like others'."""
        # a gamma of a small shape underflows, but a word without tokens must keep some probability
        g = np.maximum(rng.standard_gamma(self.n_wk), 1e-100)
        return (g / g.sum(axis=0)).T
