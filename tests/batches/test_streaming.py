"""Data that stays on disk: what is read, in which order, and that the draws are right."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import tracemalloc

import h5py
import numpy as np
import pytest
import zarr
from loaders import Loader
from scipy import stats

import pymc_sgmcmc as sgm
from pymc_sgmcmc.batches.data_sources import ArraySource
from pymc_sgmcmc.batches.streamed_batches import StreamedBatches
from pymc_sgmcmc.batches.windows import OrderCheck, chunk_order

N = 1003
ROWS = np.arange(N)


def of_loader(*arrays, window=200, n_rows=None, **options):
    keys = ("x", "row")[-len(arrays) :]
    loader = Loader(*arrays, keys=keys, **options)
    return sgm.StreamedData(loader, window=window, n_rows=n_rows)


def of_arrays(n_rows=N, window=200, chunk=16):
    rows = np.arange(n_rows)
    x = np.stack([rows, rows**2], axis=1)
    return sgm.StreamedData({"x": x, "row": rows}, window=window, chunk=chunk)


def stream(data, seed=0, batch_size=10, replacement=False):
    return StreamedBatches(data, batch_size, np.random.default_rng(seed), replacement)


# ---- epochs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_rows", "window", "chunk"),
    [(1003, 200, 16), (1000, 200, 10), (1003, 100, 100), (97, 97, 7), (97, 1000, 1), (100, 30, 1)],
)
@pytest.mark.parametrize("kind", ["arrays", "iterable"])
def test_every_row_once_an_epoch_and_containers_aligned(kind, n_rows, window, chunk):
    if kind == "arrays":
        data = of_arrays(n_rows, window, chunk)
    else:
        rows = np.arange(n_rows)
        data = of_loader(np.stack([rows, rows**2], axis=1), rows, window=window)
    taken = stream(data, batch_size=1).take(3 * n_rows)
    np.testing.assert_array_equal(taken["x"][:, 1], taken["row"] ** 2)
    epochs = taken["row"].reshape(3, n_rows)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(n_rows), (3, 1)))
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize(("n_chunks", "per_window"), [(60, 12), (63, 12), (7, 7), (5, 9), (50, 1)])
def test_windows_take_chunks_from_all_over(n_chunks, per_window):
    windows = chunk_order(n_chunks, per_window, np.random.default_rng(0))
    assert sorted(np.concatenate(windows)) == list(range(n_chunks))
    assert max(map(len, windows)) <= per_window
    n_strata = -(-n_chunks // len(windows))
    bounds = np.arange(n_strata + 1) * n_chunks // n_strata
    for chunks in windows:
        assert np.all(np.diff(chunks) > 0)  # read forwards
        strata = np.searchsorted(bounds, chunks, side="right")
        assert len(set(strata.tolist())) == len(chunks)
    first = [tuple(chunk_order(60, 12, np.random.default_rng(s))[0]) for s in range(5)]
    assert len(set(first)) == 5


def test_rows_of_a_window_are_in_random_order():
    """Chi-square test of the places of one row, over many epochs of a single window."""
    data = sgm.StreamedData({"row": np.arange(20)})
    epochs = stream(data, batch_size=20, seed=5).take(1000)["row"].reshape(1000, 20)
    for row in (0, 7, 19):
        counts = np.bincount(np.argmax(epochs == row, axis=1), minlength=20)
        assert np.sum((counts - 50.0) ** 2) / 50 < stats.chi2(19).isf(1e-6)


def test_replacement_draws_rows_of_the_window_independently():
    """Neighbours in a batch coincide with probability 1 / W: one window holds all rows."""
    data = sgm.StreamedData({"row": np.arange(50)})
    rows = stream(data, batch_size=50, replacement=True).take(400)["row"].reshape(-1, 2)
    same, p = np.mean(rows[:, 0] == rows[:, 1]), 1 / 50
    assert abs(same - p) < 5 * np.sqrt(p * (1 - p) / len(rows))


@pytest.mark.parametrize("dropped", [False, True])
def test_loader_that_drops_its_last_rows(dropped):
    """1003 rows in batches of 70: 980 of them come, the last window is short or empty."""
    for window in (200, 490, 981):
        data = of_loader(ROWS, window=window, drop_last=dropped)
        n = 980 if dropped else N
        assert data.n_rows == N
        epochs = stream(data, batch_size=1).take(2 * n)["row"].reshape(2, n)
        np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(n), (2, 1)))


# ---- the bias of a window ------------------------------------------------------------------


def batch_mean_variance(data, batch_size, n_batches, seed):
    """Variance of batch means over that of uniform sampling, with its standard error."""
    values = data.sources[0]._array if data.by_row else data.sources[0].iterable.arrays[0]
    taken = stream(data, seed=seed, batch_size=batch_size).take(n_batches)["row"]
    deviations = taken.reshape(n_batches, batch_size).mean(axis=1) - values.mean()
    squares = deviations**2 * batch_size / values.var()
    blocks = squares.reshape(32, -1).mean(axis=1)  # of whole epochs, which are independent
    return blocks.mean(), blocks.std(ddof=1) / np.sqrt(32)


@pytest.mark.parametrize("batch_size", [4, 32])
@pytest.mark.parametrize("order", ["sorted", "clusters"])
@pytest.mark.parametrize("kind", ["arrays", "iterable"])
def test_variance_of_batch_means_is_as_stated(kind, order, batch_size):
    """n deff / W of the windows' means and (1 - deff / W) (1 - n / W) of the rows within them.

    That is 1 + n (deff - 1) / W where n, deff << W. Sorted array: a window has a random one of the
    K = N / W chunks, whose means are C / N of the range apart, from each of W / C stretches, so
    Var(window mean) = (K^2 - 1) / 12 (C / N)^2 C / W. Array of clusters, each a chunk of equal
    rows, in random order: Var(window mean) = Var(row) (1 - 1 / K) C / W. An iterable's windows are
    the same W rows each time.
    """
    n, window, chunk = 16_384, 512, 16
    if order == "sorted":
        values = np.arange(n) / n
    else:
        values = np.repeat(np.random.default_rng(0).normal(size=n // chunk), chunk)
    k = n // window
    if kind == "iterable":
        data = of_loader(values, window=window, batch_size=100)
        deff = window * values.reshape(k, window).mean(axis=1).var() / values.var()
    else:
        data = sgm.StreamedData({"row": values}, window=window, chunk=chunk)
        of_sorted = (k**2 - 1) / 12 * (chunk / n) ** 2 * chunk / values.var()
        deff = of_sorted if order == "sorted" else chunk * (1 - 1 / k)
    expected = batch_size * deff / window + (1 - deff / window) * (1 - batch_size / window)
    measured, error = batch_mean_variance(data, batch_size, 2**19 // batch_size, seed=3)
    assert abs(measured - expected) < 5 * error
    assert error < 0.03 * expected


@pytest.mark.parametrize(
    ("values", "kind", "told"),
    [
        (np.arange(20_000.0), "iterable", True),
        (np.arange(20_000.0), "arrays", False),
        (np.repeat(np.random.default_rng(1).normal(size=200), 100), "arrays", True),
        (np.random.default_rng(2).normal(size=20_000), "iterable", False),
        (np.random.default_rng(3).standard_cauchy(size=(20_000, 3)), "iterable", False),
        ((np.random.default_rng(4).random((20_000, 3)) < 1e-4).astype("uint8"), "iterable", False),
        (np.zeros(20_000), "iterable", False),
    ],
)
def test_bad_orders_are_told_once(values, kind, told):
    if kind == "arrays":
        data = sgm.StreamedData({"row": values}, window=1000, chunk=100)
    else:
        data = of_loader(values, window=1000)
    batches = stream(data)
    batches.take(2000)
    warning = batches.order_warning()
    assert bool(warning) == told
    if told:
        assert "data['row']" in warning
        assert "shuffle_on_disk" in warning
        assert batches.order_warning() is None


def test_estimated_design_effect():
    """Clusters of 100 equal rows: deff = 100 within 5 standard errors of a chi-square ratio."""
    values = np.repeat(np.random.default_rng(1).normal(size=4000), 100)
    check = OrderCheck()
    for k in range(20):
        rows = np.random.default_rng(k).permutation(values[k * 20_000 : (k + 1) * 20_000])
        check.see({"x": rows})
    [(_, effect)] = check.design_effects().values()
    assert abs(effect / 100 - 1) < 5 * np.sqrt(2 / 19)


# ---- state ---------------------------------------------------------------------------------


STREAMS = {
    "arrays": of_arrays,
    "iterable": lambda: of_loader(ROWS[:, None], ROWS),
    "dropping": lambda: of_loader(ROWS[:, None], ROWS, drop_last=True),
}


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("taken", [0, 1, 19, 20, 97, 98, 100, 230])
def test_saved_state_goes_on_identically(kind, taken, replacement):
    """From any position: inside a window, at its end, at an epoch's end (98 batches if dropped)."""
    data = STREAMS[kind]()
    first = stream(data, replacement=replacement)
    if taken:
        first.take(taken)
    saved = json.loads(json.dumps(first.state))
    expected = first.take(300)["row"]
    second = stream(data, seed=9, replacement=replacement)
    second.take(5)
    second.state = saved
    assert second.state == saved
    np.testing.assert_array_equal(second.take(300)["row"], expected)
    first.state = saved
    np.testing.assert_array_equal(first.take(300)["row"], expected)
    assert first.state == second.state


def test_calls_of_any_length_give_one_stream():
    whole, parts = stream(of_arrays()), stream(of_arrays())
    pieces = [parts.take(k)["row"] for k in (1, 3, 45, 1, 17, 200)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole.take(267)["row"])


def test_seeds_make_different_streams():
    assert len({stream(of_arrays(), seed=s).take(10)["row"].tobytes() for s in range(5)}) == 5


# ---- reading ahead -------------------------------------------------------------------------


class Watched:
    """An array that notes which thread reads it, and can fail or wait."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.threads, self.fail, self.wait = [], False, 0.0

    def __getitem__(self, rows):
        self.threads.append(threading.current_thread().name)
        time.sleep(self.wait)
        if self.fail:
            raise OSError("network gone")
        return self.array[rows]


def test_next_window_is_read_by_a_thread():
    source = Watched(ROWS)
    batches = stream(sgm.StreamedData({"row": source}, window=200, chunk=200))
    source.threads.clear()
    batches.take(1)
    assert source.threads == ["MainThread"]  # a step that is only tried out reads no more
    batches.take(1)
    batches._ahead._thread.join()
    assert source.threads == ["MainThread", "read-ahead"]
    batches.take(60)
    assert set(source.threads[1:]) == {"read-ahead"}


def test_reading_overlaps_with_what_the_main_thread_does():
    source = Watched(np.arange(2000))
    batches = stream(sgm.StreamedData({"row": source}, window=200, chunk=200), batch_size=200)
    batches.take(1)
    source.wait = 0.1
    batches.take(1)
    began = time.perf_counter()
    for _ in range(4):
        time.sleep(0.15)
        batches.take(1)
    assert time.perf_counter() - began < 4 * 0.25


def test_errors_while_reading_surface_and_can_be_retried():
    source, reference = Watched(ROWS), stream(of_arrays(chunk=50))
    batches = stream(sgm.StreamedData({"row": source}, window=200, chunk=50))
    np.testing.assert_array_equal(batches.take(3)["row"], reference.take(3)["row"])
    source.fail = True
    with pytest.raises(OSError, match="network gone"):
        batches.take(60)
    position = batches.state["position"]
    source.fail = False
    reference.state = batches.state
    np.testing.assert_array_equal(batches.take(50)["row"], reference.take(50)["row"])
    assert position > 30


def test_forks_wait_for_readers():
    """What a reader locks is free in the child."""
    lock = threading.Lock()

    class Locking(Watched):
        def __getitem__(self, rows):
            with lock:
                return super().__getitem__(rows)

    source = Locking(ROWS)
    batches = stream(sgm.StreamedData({"row": source}, window=200, chunk=200))
    batches.take(1)
    source.wait = 0.3
    batches.take(1)
    while not lock.locked():
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        os._exit(0 if lock.acquire(timeout=1) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_memory_is_bounded():
    """Two windows, of which one is being filled, and the block at hand; not the data (64 MB)."""

    class Ones:
        shape, dtype = (1_000_000, 8), np.dtype(float)

        def __getitem__(self, rows):
            return np.ones((min(rows.stop, 1_000_000) - rows.start, 8))

    data = sgm.StreamedData({"x": Ones()}, window=20_000, chunk=100)
    window_bytes = 20_000 * 64
    batches = stream(data, batch_size=100)
    tracemalloc.start()
    try:
        for _ in range(60):
            block = None  # or it lives for as long as the thread that takes the next one is slow
            block = batches.take(batches.longest)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(block["x"]) == 20_000
    # The window before lives until the next is there, and columns are compared in float64.
    assert peak < 5 * window_bytes


# ---- sources -------------------------------------------------------------------------------


def memmaps(directory):
    """Views of files on disk, and what they hold."""
    rng = np.random.default_rng(0)
    a = rng.integers(256, size=(5000, 7), dtype="uint8")
    np.save(directory / "a.npy", a)
    mapped = np.load(directory / "a.npy", mmap_mode="r")
    b = rng.normal(size=30_000)
    b.tofile(directory / "b.bin")
    tail = np.memmap(directory / "b.bin", dtype=float, mode="r", offset=20_008)
    return {
        "npy": (mapped, a),
        "view": (np.asarray(mapped), a),
        "part": (mapped[1000:], a[1000:]),
        "strided": (mapped[::-2, 1:6:2], a[::-2, 1:6:2]),
        "offset": (tail, b[2501:]),
        "reshaped": (tail[1:1001].reshape(100, 10), b[2502:3502].reshape(100, 10)),
    }


@pytest.mark.parametrize("case", ["npy", "view", "part", "strided", "offset", "reshaped"])
def test_memory_maps_are_opened_again_by_path(tmp_path, case):
    mapped, values = memmaps(tmp_path)[case]
    source = ArraySource("x", mapped)
    pickled = pickle.dumps(source)
    assert len(pickled) < 1000
    again = pickle.loads(pickled)
    for opened in (source, again):
        np.testing.assert_array_equal(opened.read(3, 90)[0], values[3:90])
        np.testing.assert_array_equal(opened.read(0, len(values))[0], values)


def in_forked_child(read):
    """The sum of what a child reads: a lock or thread that it misses would hang it."""
    ours, its = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os.write(its, str(read().sum()).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return int(os.read(ours, 100))


def test_zarr_and_hdf5(tmp_path):
    values = np.random.default_rng(0).integers(256, size=(1000, 5), dtype="uint8")
    stored = zarr.create_array(tmp_path / "x.zarr", data=values, chunks=(64, 5))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("group/x", data=values, chunks=(32, 5))
    expected = None
    for x, chunk in ((stored, 64), (h5py.File(tmp_path / "x.h5")["group/x"], 32)):
        data = sgm.StreamedData({"x": x}, window=256)
        assert data.chunk == chunk
        assert len(pickle.dumps(data)) < 2000
        data = sgm.StreamedData({"x": x}, window=256, chunk=64)
        for opened in (data, pickle.loads(pickle.dumps(data))):
            taken = stream(opened).take(200)["x"]
            expected = taken if expected is None else expected
            np.testing.assert_array_equal(taken, expected)
        assert in_forked_child(lambda opened=data: stream(opened).take(200)["x"]) == expected.sum()
    in_memory = sgm.StreamedData({"x": values}, window=256, chunk=64)
    np.testing.assert_array_equal(stream(in_memory).take(200)["x"], expected)


def test_kinds_of_sources_give_the_same_rows():
    x, y = np.arange(3000).reshape(N - 3, 3), np.arange(N - 3)
    kinds = [
        sgm.StreamedData(Loader(x, y, keys=("x", "y")), window=100),
        sgm.StreamedData({("x", "y"): Loader(x, y)}, window=100),
        sgm.StreamedData({"x": Loader(x), "y": Loader(y, batch_size=33)}, window=100),
        sgm.StreamedData({"x": Loader(x), "y": y}, window=100),
        sgm.StreamedData({"x": list(np.split(x, 10)), "y": y}, n_rows=1000, window=100),
    ]
    taken = [stream(data).take(150) for data in kinds]
    for other in taken[1:]:
        for name in ("x", "y"):
            np.testing.assert_array_equal(other[name], taken[0][name])


def test_defaults():
    """64 MiB a window, 128 KiB a chunk; for narrow rows fewer."""
    images = sgm.StreamedData({"x": np.broadcast_to(np.zeros((), "uint8"), (10**7, 784))})
    assert (images.window, images.chunk) == (2**26 // 784, 2**17 // 784)
    numbers = sgm.StreamedData({"x": np.broadcast_to(0.0, (10**7,))})
    assert (numbers.window, numbers.chunk) == (2**18, 1024)
    few = sgm.StreamedData({"x": np.zeros((10, 3))})
    assert (few.window, few.chunk) == (10, 1)


@pytest.mark.parametrize("kind", STREAMS)
def test_shuffle_on_disk(tmp_path, kind):
    """Each row once, containers aligned, every place as likely; files are never overwritten."""
    data = STREAMS[kind]()
    n = 980 if kind == "dropping" else N
    shuffled = sgm.shuffle_on_disk(data, tmp_path / "a", seed=1)
    assert all(isinstance(a, np.memmap) for a in shuffled.values())
    np.testing.assert_array_equal(np.sort(shuffled["row"]), np.arange(n))
    np.testing.assert_array_equal(shuffled["x"][:, 0], shuffled["row"])
    again = sgm.shuffle_on_disk(data, tmp_path / "b", seed=1)
    np.testing.assert_array_equal(again["row"], shuffled["row"])
    assert sorted(os.listdir(tmp_path / "a")) == ["row.npy", "x.npy"]
    # over places cut into ten: chi-square of the rows of the first tenth
    counts = np.bincount(np.flatnonzero(shuffled["row"] < n // 10) * 10 // n, minlength=10)
    assert np.sum((counts - counts.mean()) ** 2 / counts.mean()) < stats.chi2(9).isf(1e-6)
    # inside a bucket too: the number of ascents has mean (n - 1) / 2 and variance (n + 1) / 12
    ascents = np.count_nonzero(np.diff(shuffled["row"]) > 0)
    assert abs(ascents - (n - 1) / 2) < 5 * np.sqrt((n + 1) / 12)
    assert abs(np.corrcoef(shuffled["row"], np.arange(n))[0, 1]) < 5 / np.sqrt(n)
    with pytest.raises(FileExistsError, match="another directory"):
        sgm.shuffle_on_disk(data, tmp_path / "b", seed=1)


@pytest.mark.parametrize("name", ["../x", "{absolute}", "a/b", "a\0b", "x" * 300])
def test_shuffle_on_disk_stays_in_its_directory(tmp_path, name):
    name = name.format(absolute=tmp_path / "x")
    with pytest.raises(ValueError, match=r"cannot be a file's name.* Rename it"):
        sgm.shuffle_on_disk({name: np.zeros((10, 2))}, tmp_path / "a" / "b", seed=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow(5)
def test_fork_does_not_wait_for_a_reader_of_hdf5_for_ever(tmp_path):
    """h5py locks all of HDF5 for a fork; in this process it may come before or after us."""
    program = f"""
import os, signal, time
import numpy as np
from pymc_sgmcmc.batches.read_ahead import ReadAhead
ReadAhead(lambda: 1).result()  # before h5py is there
import h5py
with h5py.File({str(tmp_path / "x.h5")!r}, "w") as file:
    file["x"] = np.arange(10)
    def slow():
        time.sleep(0.5)
        return file["x"][:]
    signal.alarm(20)
    reader = ReadAhead(slow)
    if os.fork() == 0:
        os._exit(0)
    print(reader.result().sum())
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "45\n", done.stderr
