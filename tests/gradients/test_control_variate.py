"""Gradients around an anchor, of rows drawn alike or by weight: unbiased, exact at the anchor."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import pymc_sgmcmc as sgm
from pymc_sgmcmc.batches import prefetched
from pymc_sgmcmc.batches.prefetched import PrefetchedBatches
from pymc_sgmcmc.batches.shuffled import Batches
from pymc_sgmcmc.chain import Chain
from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.gradients.control_variate import ControlVariate
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.kernel import Kernel
from pymc_sgmcmc.noise import NoiseStream
from pymc_sgmcmc.schedules import Constant
from tests.samplers import SAMPLERS

PYTHON = Mode("py", "fast_compile")
N, BATCH = 60, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))
GROUP = RNG.integers(3, size=N)
Y = RNG.random(N) < 0.4
COPIES = RNG.integers(1, 6, size=N)
ANCHOR = [RNG.normal(size=3), RNG.normal(size=2), np.array(0.3)]
THETA = [a + 0.5 * RNG.normal(size=a.shape) for a in ANCHOR]
POWERS = [np.zeros(3), np.zeros(2), np.array(1.0)]
SHIFTED = dict(zip(["a", "w", "s_log__"], THETA, strict=True))


def logistic():
    """A hierarchical logistic regression: two vectors and a transformed scale."""
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2, shape=3)
        w = pm.Normal("w", 0, 1, shape=2)
        s = pm.HalfNormal("s", 1)
        pm.Bernoulli("y", logit_p=s * a[GROUP] + pm.Data("X", X) @ w, observed=Y)
    return model


def flat(arrays):
    return np.concatenate([np.ravel(a) for a in arrays])


class Evaluated:
    """Gradients of a source at a point and for a batch, in Python."""

    def __init__(self, source):
        self.source = source
        theta = [v.type() for v in source.vars]
        rows = [pt.lvector() for _ in source.rows]
        constants = [c.type() for c in source.constants]
        evaluation = source.at(theta, rows, constants, {}, NoiseStream(None))
        self.function = pytensor.function(
            [*theta, *rows, *constants],
            [evaluation.potential, *evaluation.prior, *evaluation.likelihood],
            mode=PYTHON,
            on_unused_input="ignore",
        )

    def __call__(self, theta, rows):
        """Potential, gradients of the prior and of the likelihood, flat."""
        scales = [np.asarray(r.n_rows / r.batch_size) for r in self.source.rows]
        data = [array_value(array) for array, _ in self.source.data]
        batches = [np.asarray(rows)] if self.source.rows else []
        potential, *gradients = self.function(*theta, *batches, *scales, *data)
        k = len(self.source.vars)
        return potential, flat(gradients[:k]), flat(gradients[k:])


@pytest.fixture(scope="module")
def exact():
    """Of all rows."""
    model = logistic()
    return Evaluated(gradient_source(model, list(model.value_vars)))


@pytest.fixture(scope="module")
def estimated(exact):
    """By batches around an anchor, with weights of rows."""
    model = logistic()
    weights = pytensor.shared(np.ones(N), name="row weights", shape=(None,))
    plain = gradient_source(model, list(model.value_vars), batch_size=BATCH, row_weights=weights)
    source = ControlVariate.of(plain, model)
    _, _, there = exact(ANCHOR, None)
    source.set_anchor(ANCHOR, [there[:3], there[3:5], there[5]], POWERS)
    return Evaluated(source)


@pytest.fixture(params=[None, COPIES], ids=["rows alike", "rows weighted"])
def copies(request, estimated):
    """How often each row is in the urn; the weights are set to match."""
    model = logistic()
    [sampler] = [s for s in SAMPLERS if s.step is sgm.SGLD]
    kernel = Kernel(
        "SGLD", model, estimated.source, sampler.algorithm(), Constant(0.1), 1, True,
        {"mode": PYTHON},
    )  # fmt: skip
    kernel.set_row_copies(request.param)
    yield np.ones(N, dtype=int) if request.param is None else request.param
    kernel.set_row_copies(None)


# ---- what an estimate is -------------------------------------------------------------------


def test_batches_of_an_epoch_average_to_the_exact_gradient(exact, estimated):
    epoch = np.random.default_rng(1).permutation(N).reshape(-1, BATCH)
    batches = [estimated(THETA, rows) for rows in epoch]
    _, prior, likelihood = exact(THETA, None)
    np.testing.assert_allclose(np.mean([b[2] for b in batches], axis=0), likelihood)
    for _, one_prior, one_likelihood in batches:
        np.testing.assert_allclose(one_prior, prior)
        assert np.abs(one_likelihood - likelihood).max() > 1e-3, "no noise at all"


def test_rows_drawn_by_weight_are_unbiased(exact, estimated, copies):
    """The exact expectation over the urn, by enumeration: a batch's rows are independent."""
    q = copies / copies.sum()
    each = [estimated(THETA, np.full(BATCH, i)) for i in range(N)]
    potential, _, likelihood = exact(THETA, None)
    np.testing.assert_allclose(q @ np.array([e[2] for e in each]), likelihood)
    np.testing.assert_allclose(q @ np.array([e[0] for e in each]), potential)


def test_a_batch_is_the_mean_of_its_rows(estimated, copies):
    rows = np.random.default_rng(2).integers(N, size=BATCH)
    each = [estimated(THETA, np.full(BATCH, i))[2] for i in rows]
    np.testing.assert_allclose(estimated(THETA, rows)[2], np.mean(each, axis=0))


def test_no_noise_at_the_anchor(exact, estimated, copies):
    _, _, likelihood = exact(ANCHOR, None)
    for rows in np.random.default_rng(3).integers(N, size=(5, BATCH)):
        np.testing.assert_allclose(estimated(ANCHOR, rows)[2], likelihood, rtol=1e-12)


def test_less_noise_near_the_anchor(exact, estimated):
    """It is of the order of the distance: at 1/100 less than a tenth, in every element."""
    rng = np.random.default_rng(4)
    noise = []
    for share in (1.0, 0.01):
        theta = [a + share * (t - a) for a, t in zip(ANCHOR, THETA, strict=True)]
        _, _, likelihood = exact(theta, None)
        off = [estimated(theta, rng.integers(N, size=BATCH))[2] - likelihood for _ in range(40)]
        noise.append(np.std(off, axis=0))
    np.testing.assert_array_less(noise[1], 0.1 * noise[0])


# ---- the urn -------------------------------------------------------------------------------


def test_the_urn_draws_by_weight():
    """Frequencies as the copies say, within 5 binomial standard errors; the stream resumes."""
    urn = np.repeat(np.arange(N), COPIES)
    batches = Batches(N, BATCH, np.random.default_rng(5), replacement=True, urn=urn)
    n = 40_000
    rows = batches.take(n // BATCH)
    q = COPIES / COPIES.sum()
    seen = np.bincount(rows.ravel(), minlength=N) / n
    np.testing.assert_array_less(np.abs(seen - q), 5 * np.sqrt(q * (1 - q) / n))
    state, following = batches.state, batches.take(7)
    other = Batches(N, BATCH, np.random.default_rng(6), replacement=True, urn=urn)
    other.state = state
    np.testing.assert_array_equal(other.take(7), following)


def kernel_of(copies, mode=PYTHON):
    """A kernel whose updates draw from an urn, around an anchor."""
    model = logistic()
    weights = pytensor.shared(np.ones(N), name="row weights", shape=(None,))
    plain = gradient_source(model, list(model.value_vars), batch_size=BATCH, row_weights=weights)
    source = ControlVariate.of(plain, model)
    source.set_anchor(ANCHOR, [np.full(3, 0.1), np.full(2, 0.2), np.array(0.3)], POWERS)
    [sampler] = [s for s in SAMPLERS if s.step is sgm.MSGNHT_S]
    kernel = Kernel(
        "MSGNHT_S", model, source, sampler.algorithm(), Constant(0.02), 4, True, {"mode": mode}
    )
    kernel.set_row_copies(copies)
    kernel.load_data()
    return kernel


@pytest.fixture(scope="module")
def kernel():
    return kernel_of(COPIES)


def path_of(chain, n):
    point, path = SHIFTED, []
    for _ in range(n):
        point = chain.draw(point).moved
        path.append(flat(point.values()))
    return np.array(path)


def test_fetched_rows_give_the_same_draws(kernel, monkeypatch):
    """Rows of large tables are fetched ahead: data, weights and indices stay together."""
    monkeypatch.setattr(prefetched, "MIN_TABLE_BYTES", 0)
    monkeypatch.setattr(prefetched, "n_cores", lambda: 2)
    chains = [
        Chain(kernel, np.random.default_rng(7), tune=0, fetch_ahead=ahead)
        for ahead in (False, True)
    ]
    assert isinstance(chains[0].batches[0], Batches)
    assert isinstance(chains[1].batches[0], PrefetchedBatches)
    tables = {v.name for v in chains[1].batches[0]._tables}
    assert {"X", "row weights"} <= tables
    np.testing.assert_array_equal(*(path_of(chain, 5) for chain in chains))


def test_a_chain_with_an_urn_resumes(kernel):
    one = Chain(kernel, np.random.default_rng(8), tune=0)
    path = path_of(one, 3)
    state, last = one.sampling_state, dict(zip(SHIFTED, np.split(path[-1], [3, 5]), strict=True))
    last = {name: np.reshape(v, SHIFTED[name].shape) for name, v in last.items()}
    other = Chain(kernel, np.random.default_rng(9), tune=0)
    other.sampling_state = state
    after = [flat(chain.draw(last).moved.values()) for chain in (one, other)]
    np.testing.assert_array_equal(*after)


def test_another_urn_without_compiling_again(kernel):
    """Weights and urn are set anew between calls."""
    weighted = path_of(Chain(kernel, np.random.default_rng(10), tune=0), 2)
    compiled = kernel.loop
    kernel.set_row_copies(None)
    kernel.load_data()
    try:
        alike = Chain(kernel, np.random.default_rng(10), tune=0)
        assert alike.batches[0].urn is None
        assert np.abs(path_of(alike, 2) - weighted).max() > 1e-6
        np.testing.assert_array_equal(kernel.source.rows[0].weights.get_value(), np.ones(N))
    finally:
        kernel.set_row_copies(COPIES)
        kernel.load_data()
    again = path_of(Chain(kernel, np.random.default_rng(10), tune=0), 2)
    np.testing.assert_array_equal(again, weighted)
    assert kernel.loop is compiled
