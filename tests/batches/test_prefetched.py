"""Batches whose rows a thread fetches: the same rows, whatever the calls."""

import multiprocessing
import threading
import time

import numpy as np
import pymc as pm
import pytest

import pymc_sgmcmc as sgm
from pymc_sgmcmc.backends.cores import n_cores
from pymc_sgmcmc.batches import prefetched
from pymc_sgmcmc.batches.prefetched import PrefetchedBatches, prefetching_pays
from pymc_sgmcmc.batches.shuffled import Batches

N = 1000
TABLES = {"x": np.arange(3 * N).reshape(N, 3), "y": np.arange(N, dtype="int8")}
CALLS = [3, 1, 20, 20, 20, 7, 50, 50, 50, 50, 2, 300, 1, 1, 1]


def batches(seed=0, replacement=False):
    return Batches(N, 7, np.random.default_rng(seed), replacement)


@pytest.fixture(params=[1, 1000, 100_000], ids=lambda n: f"blocks of {n} bytes")
def block_bytes(request, monkeypatch):
    monkeypatch.setattr(prefetched, "BLOCK_BYTES", request.param)


@pytest.mark.parametrize("replacement", [False, True])
def test_rows_are_those_of_the_batches(block_bytes, replacement):
    stream = PrefetchedBatches(batches(replacement=replacement), TABLES)
    numbers = batches(replacement=replacement)
    for n in CALLS:
        rows, expected = stream.take(n), numbers.take(n).ravel()
        for name, table in TABLES.items():
            assert rows[name].dtype == table.dtype
            np.testing.assert_array_equal(rows[name], table[expected])


@pytest.mark.parametrize("replacement", [False, True])
def test_state_is_that_of_the_batches(block_bytes, replacement):
    """At any place, so that a run may go on with the one or the other."""
    stream, numbers = (
        PrefetchedBatches(batches(replacement=replacement), TABLES),
        batches(replacement=replacement),
    )
    for n in CALLS:
        assert stream.state == numbers.state
        stream.take(n)
        numbers.take(n)
        other = PrefetchedBatches(batches(9, replacement), TABLES)
        other.take(4)
        other.take(4)
        other.state = stream.state
        following = batches(8, replacement)
        following.state = numbers.state
        np.testing.assert_array_equal(other.take(30)["y"], TABLES["y"][following.take(30).ravel()])


def test_what_is_saved_does_not_move_with_the_stream():
    stream = PrefetchedBatches(batches(), TABLES)
    for n in (5, 5, 5):
        stream.take(n)
    state = stream.state
    expected = stream.take(40)["x"].copy()
    stream.take(200)
    stream.state = state
    np.testing.assert_array_equal(stream.take(40)["x"], expected)


class Slow(np.ndarray):
    """An array from which rows come slowly."""

    def take(self, *args, **kwargs):
        time.sleep(0.1)
        return np.asarray(self).take(*args, **kwargs)


def test_rows_are_fetched_while_the_main_thread_works():
    stream = PrefetchedBatches(batches(), {"x": TABLES["x"].view(Slow)})
    stream.take(5)
    before = threading.active_count()
    stream.take(5)  # nothing is there yet: waits, and from now on reads ahead
    assert threading.active_count() == before + 1
    waited = 0.0
    for _ in range(3):
        time.sleep(0.3)
        began = time.perf_counter()
        stream.take(5)
        waited += time.perf_counter() - began
    assert waited < 0.15  # without the thread 0.3


def test_calls_of_one_length_get_parts_of_one_block(monkeypatch):
    """Nothing is put together, except where the length has changed."""
    monkeypatch.setattr(prefetched, "BLOCK_BYTES", 10_000)
    stream, joined = PrefetchedBatches(batches(), TABLES), []
    concatenate = np.concatenate
    monkeypatch.setattr(np, "concatenate", lambda parts: joined.append(1) or concatenate(parts))
    lengths = [3] * 2 + [10] * 40 + [4] * 40
    for n in lengths:
        stream.take(n)
    assert len(joined) <= 2 * len(TABLES)


def test_an_error_of_the_thread_surfaces_and_can_be_retried():
    class Unlucky(np.ndarray):
        left = 2

        def take(self, *args, **kwargs):
            Unlucky.left -= 1
            if Unlucky.left == 0:
                raise MemoryError("no room")
            return np.asarray(self).take(*args, **kwargs)

    stream, numbers = PrefetchedBatches(batches(), {"y": TABLES["y"].view(Unlucky)}), batches()
    np.testing.assert_array_equal(stream.take(4)["y"], TABLES["y"][numbers.take(4).ravel()])
    with pytest.raises(MemoryError, match="no room"):
        stream.take(4)
    for _ in range(3):
        np.testing.assert_array_equal(stream.take(4)["y"], TABLES["y"][numbers.take(4).ravel()])


# ---- in a step -----------------------------------------------------------------------------


def model_of(kind):
    rng = np.random.default_rng(5)
    X, group = rng.normal(size=(300, 3)), rng.integers(4, size=300)
    y = X @ [1.0, -1.0, 0.5] + rng.normal(size=300)
    with pm.Model() as model:
        w, a = pm.Normal("w", shape=3), pm.Normal("a", shape=4)
        if kind == "pm.Minibatch":
            X, y = pm.Minibatch(X, y, batch_size=10)
            pm.Normal("y", X @ w, 1, observed=y, total_size=300)
        elif kind == "rows along the second axis":
            X = pm.Data("X", X.T, dims=("column", "row"))
            pm.Normal("y", w @ X, 1, observed=y, dims="row")
        elif kind == "also used whole":
            X = pm.Data("X", X)
            pm.Normal("mean", X.mean() + w[0], 1, observed=0.5)
            pm.Normal("y", X @ w, 1, observed=y)
        else:
            order = "F" if kind == "columns contiguous" else "C"
            X = pm.Data("X", np.asarray(X, order=order))
            pm.Normal("y", X @ w + a[group], 1, observed=y)
    return model


def draws(step, point):
    """Draws of a chain, saved and restored on the way, and the kind of its streams."""
    step.setup_chain(np.random.default_rng(3), tune=0, draws=0)
    drawn = []
    for k in range(12):
        if k == 6:
            step.sampling_state = step.sampling_state
        point, _ = step.step(point)
        drawn.append(np.concatenate([point["w"], point["a"]]))
    return np.array(drawn), [type(b) for b in step.chain.batches]


def step_of(model, kind, mode):
    size = {} if kind == "pm.Minibatch" else {"batch_size": 10}
    with model:
        return sgm.MSGNHT_S(step_size=0.02, thin=7, compile_kwargs={"mode": mode}, **size)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("rows contiguous", "NUMBA"),
        pytest.param("rows contiguous", "JAX", marks=pytest.mark.long),
        pytest.param("rows contiguous", "CVM", marks=pytest.mark.long),
        ("columns contiguous", "NUMBA"),
        ("pm.Minibatch", "JAX"),
    ],
)
@pytest.mark.slow(9)
def test_fetching_ahead_changes_no_draw(kind, mode, monkeypatch):
    model = model_of(kind)
    step, start = step_of(model, kind, mode), model.initial_point()
    expected, streams = draws(step, start)
    assert streams == [Batches]  # a small table
    monkeypatch.setattr(prefetched, "MIN_TABLE_BYTES", 1)
    monkeypatch.setattr(prefetched, "n_cores", lambda: 2)
    monkeypatch.setattr(prefetched, "BLOCK_BYTES", 10_000)
    fetched_ahead, streams = draws(step, start)
    assert streams == [PrefetchedBatches]
    np.testing.assert_array_equal(fetched_ahead, expected)


@pytest.mark.slow(2)
@pytest.mark.parametrize("kind", ["rows along the second axis", "also used whole"])
def test_what_cannot_be_fetched_is_looked_up(kind, monkeypatch):
    model = model_of(kind)
    step, start = step_of(model, kind, "FAST_COMPILE"), model.initial_point()
    expected, _ = draws(step, start)
    monkeypatch.setattr(prefetched, "MIN_TABLE_BYTES", 1)
    monkeypatch.setattr(prefetched, "n_cores", lambda: 2)
    looked_up, streams = draws(step, start)
    assert streams == [Batches]
    np.testing.assert_array_equal(looked_up, expected)


def test_where_fetching_pays(monkeypatch):
    rows = {"x": np.zeros((10, 4)), "y": np.zeros(10)}
    assert not prefetching_pays({})
    assert not prefetching_pays(rows)
    monkeypatch.setattr(prefetched, "MIN_TABLE_BYTES", 400)
    assert prefetching_pays(rows) == (n_cores() > 1)
    monkeypatch.setattr(prefetched, "n_cores", lambda: 2)
    assert prefetching_pays(rows)
    assert not prefetching_pays({"x": np.zeros((10, 40))})  # long rows
    monkeypatch.setattr(prefetched, "n_cores", lambda: 1)
    assert not prefetching_pays(rows)
    monkeypatch.setattr(prefetched, "n_cores", lambda: 2)
    monkeypatch.setattr(multiprocessing, "parent_process", object)  # as in a worker
    assert not prefetching_pays(rows)
