"""Steps on data that stays on disk: the same draws as from resident rows, and what is refused."""

import logging
import os
import pickle
import subprocess
import sys
import textwrap

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytest
from loaders import Loader
from pymc.step_methods.state import equal_dataclass_values
from scipy.sparse import csr_array

import pymc_sgmcmc as sgm
from pymc_sgmcmc import kernel
from pymc_sgmcmc.batches.streamed_batches import StreamedBatches
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.run import mapped_chains, sequential
from pymc_sgmcmc.run.mapped_chains import VectorizedChains

N = 3000
RUN = dict(progressbar=False, compute_convergence_checks=False)


@pytest.fixture(scope="module")
def rows():
    """Rows of a linear regression on bytes, sorted by the target."""
    rng = np.random.default_rng(42)
    X = rng.integers(256, size=(N, 2), dtype="uint8")
    y = (X / 255.0 - 0.5) @ [1.0, -0.5] + rng.normal(size=N)
    order = np.argsort(y)
    return {"X": X[order], "y": y[order]}


@pytest.fixture(scope="module")
def on_disk(rows, tmp_path_factory):
    """The same as memory maps."""
    directory = tmp_path_factory.mktemp("rows")
    for name, array in rows.items():
        np.save(directory / f"{name}.npy", array)
    return {name: np.load(directory / f"{name}.npy", mmap_mode="r") for name in rows}


def regression(rows):
    with pm.Model() as model:
        X = pm.Data("X", rows["X"], dims=("obs", "feature"))
        y = pm.Data("y", rows["y"], dims="obs")
        w = pm.Normal("w", 0, 3, dims="feature")
        pm.Normal("likelihood", (X / 255.0 - 0.5) @ w, 1, observed=y, dims="obs")
    return model


def mixture(rows):
    """Two lines; which of them a row belongs to is a latent variable."""
    with pm.Model() as model:
        X = pm.Data("X", rows["X"], dims=("obs", "feature"))
        y = pm.Data("y", rows["y"], dims="obs")
        w = pm.Normal("w", 0, 3, dims="feature")
        z = pm.Bernoulli("z", 0.3, dims="obs")
        pm.Normal("likelihood", (X / 255.0 - 0.5) @ w + 2 * z, 1, observed=y, dims="obs")
    return model


def make_step(model, data=None, **options):
    options = {"step_size": 0.005, "batch_size": 30, "thin": 7} | options
    options["compile_kwargs"] = {"mode": options.pop("mode", "JAX")}
    with model:
        return sgm.MSGNHT_S(data=data, **options)


def sample(model, step, **options):
    options = {"draws": 15, "tune": 5, "chains": 2, "cores": 1, "random_seed": 3} | RUN | options
    with model:
        return pm.sample(step=step, **options)


def draws(step, n=4, start=None, before_each=lambda: None):
    point, kept = start or step.model.initial_point(), []
    for _ in range(n):
        before_each()
        point, [stats] = step.step(point)
        kept.append([*point.values(), stats["potential"]])
    return point, kept


# ---- the same draws ------------------------------------------------------------------------


def in_the_same_order(rows, on_disk, make_model, **options):
    """Draws of a step on streamed rows, and of one on resident rows that gets the same batches."""
    windows = dict(window=500, chunk=20)
    data = sgm.StreamedData(on_disk, **windows)
    streamed = make_step(make_model(data.head()), data, **options)
    resident = make_step(make_model(rows), **options)
    for step in (streamed, resident):
        step.setup_chain(np.random.default_rng(1), 0, 0)
    numbers = StreamedBatches(
        sgm.StreamedData({"row": np.arange(N)}, **windows),
        30,
        np.random.default_rng(0),
        streamed.replacement,
    )
    numbers.state = streamed.chain.batch_states[0]
    [batches] = resident.chain.batches
    batches.take = lambda n: numbers.take(n)["row"].reshape(n, 30)
    return draws(streamed, 8)[1], draws(resident, 8)[1]


@pytest.mark.slow(3)
@pytest.mark.parametrize("mode", ["JAX", "FAST_COMPILE"])
def test_same_draws_as_resident_rows_in_the_same_order(rows, on_disk, mode):
    """Row for row the same batches, N / n of all rows, bytes that are cast as the model casts."""
    tolerance = dict(rtol=1e-12) if mode == "FAST_COMPILE" else dict(rtol=1e-9)
    for a, b in zip(*in_the_same_order(rows, on_disk, regression, mode=mode), strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, **tolerance)


@pytest.mark.slow(3)
def test_latent_variables_of_streamed_rows(rows, on_disk):
    """The same draws of them too, and the gradient that they give."""
    options = dict(latents=sgm.Gibbs(["z"], n_samples=3, burn_in=2), mode="FAST_COMPILE")
    for a, b in zip(*in_the_same_order(rows, on_disk, mixture, **options), strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-10)


@pytest.mark.slow(3)
def test_bytes_travel_as_bytes(on_disk):
    data = sgm.StreamedData(on_disk)
    step = make_step(regression(data.head()), data)
    [rows], constants = step.chain.batches_of_call(4)
    types = {array.name: constants[k].dtype for k, (array, _) in enumerate(step.source.data, 1)}
    assert types == {"X": np.uint8, "y": np.float64}
    assert rows.shape == (4, 30)
    # a container of floats takes bytes, which become floats where they are used
    model = regression({"X": np.zeros((2, 2)), "y": np.zeros(2)})
    other = make_step(model, {"X": on_disk["X"], "y": on_disk["y"]})
    assert {array.name: v.dtype for array, v in other.source.data} == {"X": "uint8", "y": "float64"}
    for one in (step, other):
        one.setup_chain(np.random.default_rng(1), 0, 0)
    for x, y in zip(draws(step)[1], draws(other)[1], strict=True):
        # bytes / 255.0 are float32, floats / 255.0 float64
        np.testing.assert_allclose(x[0], y[0], atol=1e-6)


def test_bytes_become_the_containers_floats_before_anything_is_computed(rows):
    """The product of two bytes would wrap around."""
    with pm.Model() as model:
        X = pm.Data("X", np.zeros((2, 2)), dims=("obs", "feature"))
        y = pm.Data("y", np.zeros(2), dims="obs")
        w = pm.Normal("w", 0, 3)
        product = X[:, 0] * X[:, 1]
        pm.Normal("likelihood", product / 255**2 * w, 1, observed=y, dims="obs")
    kept = []
    for features in (rows["X"], rows["X"].astype(float)):
        data = sgm.StreamedData({"X": features, "y": rows["y"]}, window=500, chunk=20)
        step = make_step(model, data, mode="FAST_COMPILE")
        step.setup_chain(np.random.default_rng(1), 0, 0)
        kept.append(draws(step, 2)[0]["w"])
    np.testing.assert_allclose(*kept)


@pytest.mark.slow(12)
@pytest.mark.parametrize("kind", ["arrays", pytest.param("iterable", marks=pytest.mark.long)])
def test_posterior(rows, kind):
    """Against the exact posterior: of arrays sorted by the target, of iterables in random order.

    Draws are 20 updates apart, the chain forgets in about as many (h lambda / friction = 0.06), so
    each of the four chains of 250 draws has an effective size of at least 100: 5 standard errors
    of the mean of 400 are 0.25 sd, of the sd 0.18 of itself. The bias at this step size and batch
    size is about 0.05 sd (the same as with resident rows).
    """
    X, y = rows["X"] / 255.0 - 0.5, rows["y"]
    precision = X.T @ X + np.eye(2) / 9
    mean, sd = np.linalg.solve(precision, X.T @ y), np.sqrt(np.diag(np.linalg.inv(precision)))
    if kind == "arrays":
        data = sgm.StreamedData(rows, window=1500, chunk=10)
    else:
        order = np.random.default_rng(5).permutation(N)
        data = sgm.StreamedData(Loader(rows["X"][order], y[order], keys=("X", "y")), window=1500)
    options = dict(step_size=0.01, diffusion=5.0, batch_size=100, thin=20, replacement=True)
    step = make_step(regression(data.head()), data, **options)
    w = sample(step.model, step, draws=250, tune=50, chains=4).posterior["w"].values.reshape(-1, 2)
    assert np.all(np.abs(w.mean(axis=0) - mean) < 0.3 * sd)
    assert np.all(np.abs(w.std(axis=0) / sd - 1) < 0.23)


@pytest.mark.parametrize(("sampler", "independent"), [(sgm.MSGNHT_S, True), (sgm.SGLD, False)])
def test_order_of_a_window_suits_the_sampler(on_disk, sampler, independent):
    data = sgm.StreamedData(on_disk, window=500, chunk=20)
    with regression(data.head()):
        step = sampler(
            step_size=1e-3, batch_size=30, data=data, compile_kwargs={"mode": "FAST_COMPILE"}
        )
    assert step.replacement == independent


# ---- chains, processes, states -------------------------------------------------------------


@pytest.mark.slow(2)
def test_draws_depend_on_the_seed_alone(on_disk):
    data = sgm.StreamedData(on_disk, window=500, chunk=20)
    step = make_step(regression(data.head()), data, mode="FAST_COMPILE", thin=3)
    first = sample(step.model, step).posterior["w"].values
    again = sample(step.model, step, chains=3).posterior["w"].values
    forked = sample(step.model, step, cores=2, mp_ctx="fork").posterior["w"].values
    np.testing.assert_array_equal(first, again[:2])
    np.testing.assert_array_equal(first, forked)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, sample(step.model, step, random_seed=4).posterior["w"])


def test_restored_state_goes_on_identically(on_disk):
    """Also in a step that was pickled, by which no data is copied."""
    data = sgm.StreamedData(on_disk, window=400, chunk=20)
    step = make_step(regression(data.head()), data, mode="FAST_COMPILE")
    step.setup_chain(np.random.default_rng(5), 0, 0)
    point, _ = draws(step, 6)
    pickled = cloudpickle.dumps(step)
    assert all(array[500:520].tobytes() not in pickled for array in on_disk.values())
    saved = pickle.loads(pickle.dumps(step.sampling_state))
    assert isinstance(saved.batch_states[0]["position"], int)
    expected = draws(step, 12, point)[1]
    step.setup_chain(np.random.default_rng(99), 0, 0)
    step.sampling_state = saved
    assert equal_dataclass_values(step.sampling_state, saved)
    for other in (step, cloudpickle.loads(pickled)):
        for a, b in zip(draws(other, 12, point)[1], expected, strict=True):
            for x, y in zip(a, b, strict=True):
                np.testing.assert_array_equal(x, y)


def test_calls_are_no_longer_than_a_window(on_disk):
    """A block is at most one window, and splitting a call changes nothing."""
    data = sgm.StreamedData(on_disk, window=400, chunk=20)
    step = make_step(regression(data.head()), data, mode="FAST_COMPILE", thin=40)
    pace = step.chain.call_length
    pace.took(13, 1e-6)
    pace.took(13, 1e-6)
    assert pace.n_updates == pace.longest == 400 // 30
    runs = []
    for length in (13, 4):
        step.setup_chain(np.random.default_rng(1), 0, 0)
        step.chain.call_length.n_updates, step.chain.call_length.took = (
            length,
            lambda n, seconds: None,
        )
        runs.append(draws(step, 3)[0]["w"])
    np.testing.assert_allclose(*runs, rtol=1e-12)


SCRIPT = """
    import sys, numpy as np, pymc as pm, pymc_sgmcmc as sgm

    def main():
        directory = sys.argv[1]
        arrays = {n: np.load(f"{directory}/{n}.npy", mmap_mode="r") for n in ("X", "y")}
        data = sgm.StreamedData(arrays, window=500)
        with pm.Model():
            X = pm.Data("X", data.head()["X"], dims=("obs", "feature"))
            y = pm.Data("y", data.head()["y"], dims="obs")
            w = pm.Normal("w", 0, 3, dims="feature")
            pm.Normal("likelihood", (X / 255.0) @ w, 1, observed=y, dims="obs")
            step = sgm.MSGNHT_S(step_size=0.005, batch_size=50, thin=5, data=data,
                                compile_kwargs={"mode": "FAST_COMPILE"})
            run = dict(step=step, draws=20, tune=5, chains=2, random_seed=1,
                       progressbar=False, compute_convergence_checks=False)
            here = pm.sample(cores=1, **run).posterior["w"]
            there = pm.sample(cores=2, mp_ctx="spawn", **run).posterior["w"]
        np.testing.assert_array_equal(here, there)
        print("IDENTICAL")

    if __name__ == "__main__":
        main()
"""


@pytest.mark.long
@pytest.mark.slow(29)
def test_worker_processes_open_the_files_themselves(on_disk, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    directory = os.path.dirname(on_disk["X"].filename)
    result = subprocess.run(
        [sys.executable, str(path), directory],
        env=os.environ | {"PYTENSOR_FLAGS": f"{os.environ['PYTENSOR_FLAGS']},mode=FAST_COMPILE"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "IDENTICAL" in result.stdout, result.stderr


@pytest.mark.slow(5)
@pytest.mark.parametrize("method", ["sequential", "vectorized"])
def test_sample_and_resume(on_disk, tmp_path, method):
    """`sgm.sample` with and without an interruption: the same draws from the same rows."""
    data = sgm.StreamedData(on_disk, window=500, chunk=20)
    step = make_step(regression(data.head()), data, thin=5)
    run = dict(step=step, model=step.model, draws=20, tune=5, chains=2, random_seed=1, **RUN)
    run["chain_method"] = method
    whole = sgm.sample(**run).posterior["w"].values
    assert not np.array_equal(whole[0], whole[1])

    def interrupt(trace, draw):
        if draw.chain == 1 and draw.draw_idx == 9:
            raise OSError("power cut")

    store = tmp_path / "run.zarr"
    with pytest.raises(OSError, match="power cut"):
        sgm.sample(**run, trace=store, callback=interrupt)
    resumed = sgm.sample(**run, trace=store, resume=True)
    np.testing.assert_array_equal(resumed.posterior["w"], whole)


class Counted(Loader):
    """Counts its passes."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


@pytest.mark.slow(6)
def test_an_iterable_is_not_read_again_at_each_change_of_turn(rows, tmp_path, monkeypatch):
    """Chains that change at every draw read as much as chains that do not, and draw the same."""
    loader = Counted(*rows.values(), batch_size=500, keys=("X", "y"))
    data = sgm.StreamedData(loader, window=1000)
    step = make_step(regression(data.head()), data, thin=5, mode=PYTHON)
    run = dict(step=step, model=step.model, draws=25, tune=5, chains=2, random_seed=1, **RUN)
    run["chain_method"] = "sequential"
    monkeypatch.setattr(sequential, "SECONDS_PER_BLOCK", -1.0)
    found, passes = [], []

    def interrupt(trace, draw):
        if draw.chain == 1 and draw.draw_idx == 12:
            raise KeyboardInterrupt

    def counted(**options):
        loader.passes = 0
        found.append(sgm.sample(**run, **options).posterior["w"])
        passes.append(loader.passes)

    counted()
    monkeypatch.setattr(sequential, "SECONDS_PER_TURN", -1.0)
    monkeypatch.setattr(sequential, "TURNS_PER_CHANGE", 0)
    counted()
    # 30 draws of 150 rows are 1.5 passes of each chain, and a window is read ahead.
    assert passes == [4, 4]
    counted(trace=tmp_path / "run.zarr", callback=interrupt)
    counted(trace=tmp_path / "run.zarr", resume=True)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[3], found[0])


@pytest.mark.slow(10)
@pytest.mark.parametrize(
    ("mode", "make_model", "options", "n_bytes"),
    [
        ("JAX", regression, {}, 2**26),
        ("JAX", regression, {}, 2400),
        pytest.param(
            *("JAX", mixture, {"latents": sgm.Gibbs(["z"], n_samples=3, burn_in=2)}, 2400),
            marks=pytest.mark.long,
        ),
    ],
    ids=["whole draws", "parts of a draw", "latents"],
)
def test_chains_together_read_what_each_reads_alone(
    on_disk, monkeypatch, mode, make_model, options, n_bytes
):
    """Their own windows, in calls of several draws and of a part of one; draws end in no window.

    Alike to rounding: XLA may add up several chains in another order. A chain that got another's
    rows, or rows out of turn, would differ in the first digits.
    """
    monkeypatch.setattr(mapped_chains, "BYTES_PER_CALL", n_bytes)
    data = sgm.StreamedData(on_disk, window=500, chunk=20)
    step = make_step(make_model(data.head()), data, mode=mode, **options)
    run = dict(step=step, model=step.model, draws=80, tune=6, chains=3, random_seed=1, **RUN)
    alone = sgm.sample(**run, chain_method="sequential")
    lengths = []
    run_together = VectorizedChains.run

    def watched(self):
        yield from run_together(self)
        lengths.append((self._room, self._updates_a_call))

    monkeypatch.setattr(VectorizedChains, "run", watched)
    at_once = sgm.sample(**run, chain_method="vectorized")
    [(room, n_updates)] = lengths
    # 2400 bytes of 3 chains are 2 updates of 30 rows of 10 bytes and their 4-byte numbers
    assert (room > 1, n_updates) == ((True, 7) if n_bytes == 2**26 else (False, 1))
    np.testing.assert_allclose(at_once.posterior["w"], alone.posterior["w"], rtol=1e-8)
    for name in ("potential", "gradient_norm"):
        a, b = at_once.sample_stats[name], alone.sample_stats[name]
        np.testing.assert_allclose(a, b, rtol=1e-8)


@pytest.mark.slow(3)
@pytest.mark.parametrize("method", ["sequential", "vectorized"])
def test_bad_order_is_logged_once_a_chain(rows, caplog, method):
    loader = Loader(rows["X"], rows["y"], keys=("X", "y"))
    data = sgm.StreamedData(loader, window=500)
    step = make_step(regression(data.head()), data)
    run = dict(draws=15, tune=5, chains=2, random_seed=3, chain_method=method) | RUN
    with caplog.at_level(logging.WARNING, logger="pymc"):
        sgm.sample(step=step, model=step.model, **run)
    told = [r.getMessage() for r in caplog.records if "shuffle windows" in r.getMessage()]
    assert len(told) == 2
    assert "data['y']" in told[0]


# ---- models --------------------------------------------------------------------------------


def test_placeholders_are_given_back(on_disk):
    """Real rows stand in them for the self-check only."""
    model = regression({"X": np.zeros((4, 2), "uint8"), "y": np.zeros(4)})
    make_step(model, on_disk, mode="FAST_COMPILE")
    assert model["X"].get_value().tolist() == [[0, 0]] * 4
    assert model["X"].get_value().dtype == np.uint8
    assert model["y"].get_value().tolist() == [0] * 4


@pytest.mark.slow(2)
def test_one_container_for_all_columns(rows):
    """As loaders of tables have it: features and target in one array; the last rows dropped."""
    table = np.column_stack([rows["X"] / 255.0 - 0.5, rows["y"]])
    order = np.random.default_rng(0).permutation(N)
    loader = Loader(table[order], batch_size=64, drop_last=True)
    with pm.Model() as model:
        table = pm.Data("table", np.zeros((2, 3)), dims=("obs", "column"))
        w = pm.Normal("w", 0, 3, shape=2)
        pm.Normal("y", table[:, :2] @ w, 1, observed=table[:, 2], dims="obs")
    step = make_step(model, {"table": loader}, batch_size=100, step_size=0.01, diffusion=5.0)
    assert step.source.rows[0].n_rows == N
    idata = sample(model, step, draws=60, tune=30)
    np.testing.assert_allclose(idata.posterior["w"].mean(["chain", "draw"]), [1.0, -0.5], atol=0.3)


# ---- refused -------------------------------------------------------------------------------


def refused(matches, data, model=None, error=ValueError, **options):
    with pytest.raises(error) as caught:
        make_step(model or regression(PLACEHOLDERS), data, **options)
    for match in matches:
        caught.match(match)


@pytest.fixture
def _no_loop(monkeypatch):
    monkeypatch.setattr(kernel, "Loop", lambda *args: pytest.fail("compiled before refused"))


PLACEHOLDERS = {"X": np.zeros((2, 2), "uint8"), "y": np.zeros(2)}
X, Y = np.zeros((100, 2), "uint8"), np.linspace(-1, 1, 100)


class Silent:
    """An iterable that does not tell its length."""

    def __iter__(self):
        yield {"X": X, "y": Y}


@pytest.mark.usefixtures("_no_loop")
@pytest.mark.parametrize(
    ("data", "matches"),
    [
        ({"X": X}, ["'y' holds rows like", "data={'y'"]),
        ({"X": X, "y": Y, "z": Y}, ["'z'", "not a pm.Data container", "'X', 'y'", r"head\(\)"]),
        ({"X": X, "y": Y[:99]}, ["different numbers of rows", r"'X'\] 100", r"'y'\] 99"]),
        ({"X": X[:, :1], "y": Y}, [r"data\['X'\]", r"\(1,\)", r"\(2,\)"]),
        ({"X": X.astype(float), "y": Y}, [r"data\['X'\]", "float64", "uint8", "convert"]),
        ({"X": X, "y": Y.astype(complex)}, [r"data\['y'\]", "complex128", "real numbers"]),
        ({"X": X, "y": np.float64(3)}, [r"data\['y'\] is a scalar"]),
        ({}, ["names no container"]),
        ({("X", "y"): Loader(X, Y), "y": Y}, ["two sources", "'y'"]),
        (({"X": X, "y": Y} for _ in range(3)), ["generator", "only once", "__iter__"]),
        ({"X": iter([X]), "y": Y}, [r"data\['X'\]", "list_iterator", "only once"]),
        (Silent(), ["data=", "total_size", r"n_rows=\.\.\."]),
        (Loader(X, Y), ["yields a tuple", r"\(name, another\): iterable"]),
        ({("X", "y"): Loader(X)}, ["100 arrays|70 arrays", "X, y"]),
        (Loader(X, keys=("X",)), ["'y' holds rows like"]),
        ({("X", "y"): [(X, Y[:9])]}, ["same number of rows", "9 for 'y'"]),
        ({"X": X[:0], "y": Y[:0]}, [r"data\['X'\] has 0 rows"]),
        ({"X": np.ma.masked_equal(X, 0), "y": Y}, ["'X' have masked"]),
        ({"X": csr_array(X), "y": Y}, [r"'X' are a sparse array \(csr_array\)", "toarray"]),
        ({"X": [csr_array(X)], "y": Y}, ["'X' are a sparse array", "toarray"]),
    ],
)
def test_sources(data, matches):
    error = TypeError if "yields a tuple" in matches else ValueError
    refused(matches, data, error=error)


@pytest.mark.usefixtures("_no_loop")
@pytest.mark.parametrize(
    ("source", "options", "matches"),
    [
        ({"X": X, "y": Y}, {"window": 20}, ["batch_size=30", "window of 20", "window="]),
        ({"X": X, "y": Y}, {"window": 40, "chunk": 41}, ["chunk=41", "window of 40"]),
        ({"X": X, "y": Y}, {"window": 0}, ["window=0", "at least 1"]),
        ({"X": X, "y": Y}, {"n_rows": 2.5}, [r"n_rows=2\.5", "whole number"]),
        ({"X": X, "y": Y}, {"n_rows": 90}, ["different numbers of rows", "n_rows= 90"]),
        ({("X", "y"): Loader(X, Y)}, {"n_rows": 90}, ["ambiguous", "90", "100"]),
        ({("X", "y"): Loader(X, Y)}, {"chunk": 9}, ["chunk=9", "own order"]),
    ],
)
def test_options(source, options, matches):
    with pytest.raises(ValueError, match=matches[0]) as caught:
        make_step(regression(PLACEHOLDERS), sgm.StreamedData(source, **options))
    for match in matches:
        caught.match(match)


@pytest.mark.usefixtures("_no_loop")
def test_models():
    data = {"X": X, "y": Y}
    refused(["batch_size=101", "between 1 and", "100"], data, batch_size=101)
    refused(["data= needs batch_size="], data, batch_size=None)
    with pm.Model() as model:  # observed values that are no container
        features = pm.Data("X", X[:2], dims=("obs", "feature"))
        w = pm.Normal("w", dims="feature")
        pm.Normal("y", features @ w, 1, observed=Y[:2], dims="obs")
    refused(
        [r"shape \(2,\)|'y", "pm.Data container", "number of placeholder rows"], {"X": X}, model
    )
    with pm.Model() as model:  # rows that are not first
        features = pm.Data("X", X[:2].T, dims=("feature", "obs"))
        target = pm.Data("y", Y[:2], dims="obs")
        w = pm.Normal("w", dims="feature")
        pm.Normal("likelihood", w @ features, 1, observed=target, dims="obs")
    refused(["'X'", "along axis 1", "Transpose"], {"X": X, "y": Y}, model)
    with pm.Model() as model:  # a prior that looks at all rows
        features = pm.Data("X", X[:2], dims=("obs", "feature"))
        target = pm.Data("y", Y[:2], dims="obs")
        w = pm.Normal("w", 0, 1 + features.astype(float).std(axis=0), dims="feature")
        pm.Normal("likelihood", features @ w, 1, observed=target, dims="obs")
    refused(["'X' is used as a whole by a prior"], data, model)
    with pm.Model() as model:  # a container without rows
        scale = pm.Data("scale", np.ones(3))
        target = pm.Data("y", Y[:2], dims="obs")
        w = pm.Normal("w", 0, scale)
        pm.Normal("likelihood", w.sum(), 1, observed=target, dims="obs")
    refused(["'scale' in data=", "not used row by row"], {"scale": Y, "y": Y}, model)
    with pm.Model() as model:  # rows that depend on each other: seen although placeholders are 0
        target = pm.Data("y", np.zeros(2), dims="obs")
        w = pm.Normal("w")
        pm.Normal("likelihood", w * target.mean(), 1, observed=target, dims="obs")
    refused(["'likelihood' is not conditionally independent"], {"y": Y}, model)


@pytest.mark.usefixtures("_no_loop")
def test_group_numbers_out_of_range_are_seen_before_compiling():
    """Real rows stand in the placeholders when the model is checked."""
    with pm.Model(coords={"group": range(3)}) as model:
        group = pm.Data("g", np.zeros(2, "uint8"), dims="obs")
        target = pm.Data("y", np.zeros(2), dims="obs")
        level = pm.Normal("level", dims="group")
        pm.Normal("likelihood", level[group], 1, observed=target, dims="obs")
    groups = np.array([1, 7], "uint8")
    refused(["'likelihood' cannot be evaluated"], {"g": groups, "y": Y[:2]}, model, batch_size=1)


class Lying(Loader):
    """A loader whose number of rows is not what it told."""

    def __init__(self, told, **options):
        super().__init__(X, Y, keys=("X", "y"), **options)
        self.total_size = told


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (Lying(171), "data= ended after 100 rows instead of 171"),  # 70 may be missing
        (Lying(99), "data= yields more than the stated 99 rows"),
        ({"X": X, "y": np.where(Y > 0, np.nan, Y)}, r"data\['y'\] has \d+ NaN values"),
        ([{"X": X, "y": Y}, {"X": X.astype(float), "y": Y}], r"'X'\] yields .* float64, .* uint8"),
        ([{"X": X, "y": Y}, {"X": X[:, :1], "y": Y}], r"'X'\] yields rows of shape \(1,\)"),
        ([{"X": X, "y": Y}, {"X": X}], r"lacks the containers \['y'\]"),
    ],
)
def test_what_only_shows_when_it_is_read(data, match):
    n_rows = 200 if isinstance(data, list) else None
    streamed = sgm.StreamedData(data, window=30, n_rows=n_rows)
    model = regression(PLACEHOLDERS)
    with pytest.raises((ValueError, TypeError), match=match):
        draws(make_step(model, streamed, mode="FAST_COMPILE", step_size=1e-4), 10)


def test_integers_too_large_for_their_container():
    """pm.Data makes int16 of integers under float32: told, not wrapped around."""
    with pytensor.config.change_flags(floatX="float32"), pm.Model():
        group = pm.Data("g", np.zeros(2, int), dims="obs")
        target = pm.Data("y", np.zeros(2), dims="obs")
        mu = pm.Normal("mu")
        pm.Normal("likelihood", mu * (group > 40_000), 1, observed=target, dims="obs")
        assert group.dtype == "int16"
        data = {"g": np.arange(0, 70_000, 700), "y": Y}
        with pytest.raises(ValueError, match=r"'g'\] holds \d+.*int16.*uint32"):
            sgm.SGLD(step_size=1e-4, batch_size=10, data=data)
