r"""Gibbs sampling of the local variables of deep Poisson factor analysis, compiled.

A document with counts x_v of the words v, topics phi_k and the layers h1, h2, ... of a sigmoid
belief network (high-order paper, supplement, eq 14-17; the rate beta is (1 - p) / p):

    x_v ~ Pois(sum_k phi_kv psi_k h1_k),  psi_k ~ Gamma(r_k, beta)

Each token t has a topic z_t, and n_k of them have topic k. With psi integrated out, a sweep draws

    z_t = k    with probability proportional to (r_k h1_k + n_k without t) phi_kv
    h1_k = 1   if n_k > 0, else with log odds c1_k + (h2 @ w1)_k + r_k log(beta / (1 + beta))
    h2, ...    unit by unit, given the layers above and below

and for a draw that is kept psi_k ~ Gamma(r_k + n_k, beta + h1_k). `TopicGibbs` puts this in the
place of the general `Gibbs`: the gradient still comes from the PyMC model.
"""

# ruff: noqa: NPY002
# In compiled code np.random is numba's own generator, seeded at each call.

import jax
import numpy as np
import pytensor.tensor as pt
from numba import njit
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.jax.dispatch.basic import jax_funcify
from token_gibbs import draw_topic

from pymc_sgmcmc.latents.joint import LatentDraws, Latents, whole_number

SMALLEST = 1e-30
"""A gamma variable of small shape underflows, and has no logarithm then."""


@njit(cache=True)
def draw_tokens(rows, count, weight, n, z, p, start):
    """Draw each token's topic given those of the others.

    Parameters
    ----------
    rows : array, shape (entries, K)
        phi of the document's distinct words.
    count : array, shape (entries,)
    weight : array, shape (K,)
        r h1 + n, kept up to date.
    n : array, shape (K,)
        Tokens of each topic, kept up to date.
    z : array, at least as long as the document
        Topics of the tokens.
    p : array, shape (K,)
        Scratch.
    start : bool
        Whether to fill in the topics one by one: there are none yet.
    """
    t = 0
    for entry in range(count.size):
        for _ in range(count[entry]):
            if not start:
                weight[z[t]] -= 1.0
                n[z[t]] -= 1.0
            k = draw_topic(weight, rows[entry], np.random.random(), p)
            z[t] = k
            weight[k] += 1.0
            n[k] += 1.0
            t += 1


@njit(cache=True)
def log_odds_given_above(h, layer, sizes, biases, weights, out):
    """Log odds of a layer's units given the layer above."""
    out[: sizes[layer]] = biases[layer, : sizes[layer]]
    if layer + 1 < sizes.size:
        for j in range(sizes[layer + 1]):
            if h[layer + 1, j]:
                for k in range(sizes[layer]):
                    out[k] += weights[layer, j, k]


@njit(cache=True)
def is_on(log_odds):
    """Draw a unit."""
    return 1.0 if np.random.random() * (1.0 + np.exp(-log_odds)) < 1.0 else 0.0


@njit(cache=True, fastmath=True)
def log_ratio(odds, factors):
    """Sum over k of log (1 + odds_k factor_k) / (1 + odds_k), few logarithms taken."""
    out = 0.0
    for first in range(0, odds.size, 16):
        product = 1.0
        for k in range(first, min(first + 16, odds.size)):
            product *= (1.0 + odds[k] * factors[k]) / (1.0 + odds[k])
        out += np.log(product)
    return out


@njit(cache=True)
def draw_layer(h, layer, sizes, biases, weights, factors, above, below):
    """Draw the units of a layer, not the lowest, one by one.

    ``factors`` is exp(weights); ``above`` and ``below`` are scratch.
    """
    n_below = sizes[layer - 1]
    log_odds_given_above(h, layer, sizes, biases, weights, above)
    log_odds_given_above(h, layer - 1, sizes, biases, weights, below)
    odds = np.exp(below[:n_below])
    for j in range(sizes[layer]):
        w, factor = weights[layer - 1, j, :n_below], factors[layer - 1, j, :n_below]
        if h[layer, j]:
            odds /= factor
        log_odds = above[j] - log_ratio(odds, factor)
        for k in range(n_below):
            log_odds += h[layer - 1, k] * w[k]
        h[layer, j] = is_on(log_odds)
        if h[layer, j]:
            odds *= factor


@njit(cache=True)
def sweep(rows, count, r, beta, sizes, net, state, start):
    """Draw the tokens, h1, h2, ... of a document once.

    ``state`` is (z, n, h, weight, scratch), ``net`` (biases, weights, exp(weights)).
    """
    z, n, h, weight, scratch = state
    biases, weights, factors = net
    K = sizes[0]
    if start:
        h[:] = 1.0  # a topic that is on dies easily, one that is off hardly ever comes
        n[:] = 0.0
        weight[:] = r
    draw_tokens(rows, count, weight, n, z, scratch[0], start)
    log_odds_given_above(h, 0, sizes, biases, weights, scratch[0])
    log_none = np.log(beta / (1.0 + beta))
    for k in range(K):
        h[0, k] = 1.0 if n[k] > 0 else is_on(scratch[0, k] + r[k] * log_none)
        weight[k] = r[k] * h[0, k] + n[k]
    for layer in range(1, sizes.size):
        draw_layer(h, layer, sizes, biases, weights, factors, scratch[0], scratch[1])


@njit(cache=True)
def rows_of(topics, word):
    """phi of some words, shape (entries, K), in double precision."""
    rows = np.empty((word.size, topics.shape[0]))
    for entry in range(word.size):
        for k in range(topics.shape[0]):
            rows[entry, k] = topics[k, word[entry]]
    return rows


@njit(cache=True)
def new_state(n_tokens, sizes):
    """Arrays that `sweep` works on; layers narrower than the widest are padded."""
    K = sizes.max()
    return (
        np.empty(n_tokens, dtype=np.int64),
        np.zeros(sizes[0]),
        np.ones((sizes.size, K)),
        np.zeros(sizes[0]),
        np.empty((2, K)),
    )


@njit(cache=True)
def unpacked(biases, weights, sizes):
    """Biases (layers, K), weights (layers - 1, K, K) and exp(weights), of flat ones.

    Layers narrower than the widest, K, are padded.
    """
    K = sizes.max()
    wide_biases = np.zeros((sizes.size, K))
    wide_weights = np.zeros((sizes.size - 1, K, K))
    first = first_weight = 0
    for layer in range(sizes.size):
        n = sizes[layer]
        wide_biases[layer, :n] = biases[first : first + n]
        first += n
        if layer > 0:
            m = sizes[layer - 1]
            block = weights[first_weight : first_weight + n * m]
            wide_weights[layer - 1, :n, :m] = block.reshape(n, m)
            first_weight += n * m
    return wide_biases, wide_weights, np.exp(wide_weights)


@njit(cache=True)
def sample_documents(seed, x, topics, r, biases, weights, sizes, beta, burn_in, n_samples):
    """Draw psi, shape (samples, documents, K), and all units, (samples, documents, units)."""
    np.random.seed(seed)
    psi = np.empty((n_samples, len(x), sizes[0]), dtype=topics.dtype)
    units = np.empty((n_samples, len(x), sizes.sum()), dtype=np.int8)
    net = unpacked(biases, weights, sizes)
    for d in range(len(x)):
        word = np.flatnonzero(x[d])
        count = x[d][word].astype(np.int64)
        rows = rows_of(topics, word)
        state = new_state(count.sum(), sizes)
        n, h = state[1], state[2]
        for s in range(-burn_in, n_samples):
            sweep(rows, count, r, beta, sizes, net, state, s == -burn_in)
            if s >= 0:
                for k in range(sizes[0]):
                    draw = np.random.gamma(r[k] + n[k], 1.0)
                    psi[s, d, k] = max(draw / (beta + h[0, k]), SMALLEST)
                first = 0
                for layer in range(sizes.size):
                    for k in range(sizes[layer]):
                        units[s, d, first + k] = np.int8(h[layer, k])
                    first += sizes[layer]
    return psi, units


@njit(cache=True)
def predict_words(
    seed, word, count, first, word2, first2, topics, r, biases, weights, sizes, beta, burn_in,
    n_samples,
):  # fmt: skip
    """p(word) of each entry of the second parts of documents, given the first parts.

    A mean over draws of phi theta / sum(theta), whose mean given h1 and n is known.
    """
    np.random.seed(seed)
    out = np.zeros(word2.size)
    net = unpacked(biases, weights, sizes)
    for d in range(first.size - 1):
        span, span2 = slice(first[d], first[d + 1]), slice(first2[d], first2[d + 1])
        rows, rows2 = rows_of(topics, word[span]), rows_of(topics, word2[span2])
        state = new_state(count[span].sum(), sizes)
        weight, share = state[3], np.zeros(sizes[0])
        for s in range(-burn_in, n_samples):
            sweep(rows, count[span], r, beta, sizes, net, state, s == -burn_in)
            if s >= 0:
                share += weight / weight.sum() / n_samples
        for entry in range(span2.stop - span2.start):
            out[span2.start + entry] = (rows2[entry] * share).sum()
    return out


# ---- as an operation of a graph, and in the place of Gibbs ---------------------------------


class DocumentGibbs(Op):
    """(seed, counts, topics, r, biases, weights) -> draws of psi and of all units."""

    __props__ = ("sizes", "beta", "burn_in", "n_samples")

    def __init__(self, sizes: tuple[int, ...], beta: float, burn_in: int, n_samples: int):
        self.sizes, self.beta = tuple(sizes), float(beta)
        self.burn_in, self.n_samples = int(burn_in), int(n_samples)

    def make_node(self, *inputs):
        inputs = [pt.as_tensor(x) for x in inputs]
        psi = pt.tensor(shape=(self.n_samples, None, self.sizes[0]), dtype=inputs[2].dtype)
        units = pt.tensor(shape=(self.n_samples, None, sum(self.sizes)), dtype="int8")
        return Apply(self, inputs, [psi, units])

    @property
    def settings(self):
        """What `sample_documents` needs besides the inputs."""
        return np.array(self.sizes), self.beta, self.burn_in, self.n_samples

    def perform(self, node, inputs, output_storage):
        seed, *arrays = inputs
        draws = sample_documents(int(seed), *arrays, *self.settings)
        for storage, out in zip(output_storage, draws, strict=True):
            storage[0] = out


@jax_funcify.register(DocumentGibbs)
def jax_funcify_DocumentGibbs(op, node, **kwargs):
    """Let JAX's graphs call it on the host."""

    def sample(seed, *arrays):
        return sample_documents(int(seed), *map(np.asarray, arrays), *op.settings)

    def call(seed, counts, topics, *rest):
        shape = (op.n_samples, counts.shape[0])
        like = (
            jax.ShapeDtypeStruct((*shape, op.sizes[0]), topics.dtype),
            jax.ShapeDtypeStruct((*shape, sum(op.sizes)), np.int8),
        )
        return jax.pure_callback(
            sample, like, seed, counts, topics, *rest, vmap_method="sequential"
        )

    return call


def network(parameters, n_layers: int, concatenate=np.concatenate) -> tuple:
    """r, and the network's biases c1, c2, ... and weights w1, ... as one flat array each."""
    empty = [np.zeros(0)]  # in double precision, as the rest is to be
    biases = [parameters[f"c{layer}"] for layer in range(1, n_layers + 1)]
    weights = [parameters[f"w{layer}"].ravel() for layer in range(1, n_layers)]
    return tuple(concatenate(empty + part) for part in ([parameters["r"]], biases, weights))


class TopicGibbs(Latents):
    """Draw the local variables of deep Poisson factor analysis.

    Of models with the latent variables psi, h1, h2, ..., the parameters topics, r, c1, c2, ...
    and w1, w2, ..., and one observed variable, the counts of words.

    Parameters
    ----------
    sizes : tuple of int
        Units of each layer, h1 first: as many as topics.
    beta : float
        Rate of psi's gamma distribution.
    n_samples : int, default 5
        Draws for each document and gradient, from consecutive sweeps.
    burn_in : int, default 10
        Sweeps before the first of them.
    """

    def __init__(self, sizes, beta: float, n_samples: int = 5, burn_in: int = 10):
        super().__init__(["psi", *(f"h{k + 1}" for k in range(len(sizes)))], n_samples)
        self.sizes, self.beta = tuple(sizes), beta
        self.burn_in = whole_number("burn_in", burn_in, 0)

    def draw(self, joint, state, stream):
        names, values = list(joint.parameters), list(joint.parameters.values())
        parameters = dict(zip(names, joint.evaluate(values), strict=True))
        [counts] = joint.batch()
        seed = stream.draw(pt.random.integers, 0, 2**31 - 1)
        psi, units = DocumentGibbs(self.sizes, self.beta, self.burn_in, self.n_samples)(
            seed,
            counts,
            parameters["topics"],
            *network(parameters, len(self.sizes), pt.concatenate),
        )
        ends = np.cumsum(self.sizes)
        layers = [units[..., end - n : end] for n, end in zip(self.sizes, ends, strict=True)]
        return LatentDraws([psi, *layers], None, {}, [])
