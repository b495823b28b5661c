"""The store: the same result as without, whatever ended the run in between."""

import errno
import os
import pickle
import re
import resource
import shutil
import signal
import sys
import time
import warnings
from contextlib import suppress
from datetime import datetime

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytest
import xarray as xr
from kills import (
    CHAINS,
    DRAWS,
    MODE,
    TUNE,
    die_at,
    ended,
    in_child,
    kill_after,
    moments_of,
    prepared,
    same,
    small_model,
    small_run,
    small_step,
)
from pymc.exceptions import SamplingError

import pymc_sgmcmc as sgm
from pymc_sgmcmc import file_lock
from pymc_sgmcmc.run import parametrisation, sequential
from pymc_sgmcmc.run.saved_state import from_plain, load, save, to_plain
from pymc_sgmcmc.storage import chunks, read, writer
from pymc_sgmcmc.storage.record import read_record, write_record


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.fixture(scope="module")
def model(quick_compilation):
    return small_model()


@pytest.fixture(scope="module")
def step(model):
    return small_step(model)


@pytest.fixture(scope="module")
def expected(model, step):
    return small_run(model, step)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.zarr"


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few draws, and a block for each draw."""
    monkeypatch.setattr(chunks, "DRAWS_PER_CHUNK", 5)
    monkeypatch.setattr(sequential, "SECONDS_PER_BLOCK", -1.0)


def stop_at(number, chain=None, error=KeyboardInterrupt):
    """A callback that ends the run after a draw."""

    def callback(trace, draw):
        if draw.draw_idx == number and chain in (None, draw.chain):
            raise error

    return callback


# ---- what is stored ------------------------------------------------------------------------


@pytest.mark.slow(3)
@pytest.mark.parametrize("method", ["sequential", "parallel"])
def test_a_store_holds_the_result(model, step, expected, path, method):
    """As zarr it is opened by xarray, without a warning, as what was returned."""
    returned = small_run(model, step, trace=path, chain_method=method, cores=2)
    assert same(returned, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = xr.open_datatree(path, engine="zarr")
        assert same(opened, expected)
    assert opened.posterior.attrs["tuning_steps"] == TUNE
    assert opened.posterior.attrs["sampling_time"] > 0
    assert sgm.ZarrStore(path).n_draws == [DRAWS] * CHAINS
    files = [os.path.join(d, f) for d, _, names in os.walk(path) for f in names]
    assert not [f for f in files if f.endswith((".pickle", ".pkl"))]
    for file in files:
        if file.endswith(".npz"):
            with np.load(file, allow_pickle=False) as archive:  # raises if it held objects
                assert all(archive[name].dtype != object for name in archive.files)


def test_without_tuning_and_other_options(model, step, path):
    options = dict(discard_tuned_samples=True, var_names=["w"], idata_kwargs={}, include_data=False)
    stored = small_run(model, step, trace=str(path), **options)
    assert same(stored, small_run(model, step, **options))
    assert set(stored.children) == {"posterior", "sample_stats"}


@pytest.mark.parametrize("chains", [1, 2])
def test_log_densities_of_stored_draws(model, step, path, chains):
    """Computed from the draws when the result is made, as in memory."""
    options = dict(chains=chains, idata_kwargs={"log_likelihood": True, "log_prior": ["s"]})
    stored = small_run(model, step, trace=path, **options)
    assert same(stored, small_run(model, step, **options))
    assert stored.log_likelihood["y"].shape == (chains, DRAWS, 60)
    assert list(stored.log_prior) == ["s"]
    assert "log_likelihood" not in sgm.ZarrStore(path).to_datatree().children


def test_draws_that_are_not_of_the_run_stay_whole(model, step, path):
    prior = {"w": np.arange(8.0).reshape(4, 2)}
    stored = small_run(model, step, trace=path, draws=3, idata_kwargs={"prior": prior})
    np.testing.assert_array_equal(stored.prior["w"][0], prior["w"])


def test_float32_storage(model, step, expected, path):
    stored = small_run(model, step, trace=sgm.ZarrStore(path, dtype="float32"))
    assert stored.posterior["w"].dtype == np.float32
    assert stored.sample_stats["potential"].dtype == np.float64
    np.testing.assert_array_equal(
        stored.posterior["w"], expected.posterior["w"].values.astype("float32")
    )


def test_callback_gets_the_store(model, step, path):
    seen = []
    small_run(model, step, trace=path, callback=lambda trace, draw: seen.append((trace, draw)))
    assert len(seen) == CHAINS * (DRAWS + TUNE)
    assert all(isinstance(trace, sgm.ZarrStore) for trace, _ in seen)


def test_large_results_stay_on_disk(model, step, path, monkeypatch):
    monkeypatch.setattr(read, "LOADED_BYTES", 10)
    tree = small_run(model, step, trace=path)
    assert not tree.posterior["w"]._in_memory
    assert same(pickle.loads(pickle.dumps(tree)), tree)
    assert float(tree.posterior["w"].sum()) != 0


# ---- going on ------------------------------------------------------------------------------


@pytest.mark.slow(3)
@pytest.mark.parametrize("method", ["sequential", "parallel"])
@pytest.mark.parametrize("number", [0, TUNE - 1, TUNE, TUNE + 4, TUNE + 7])
def test_resumed_is_as_never_stopped(model, step, expected, path, small_chunks, method, number):
    """Stopped in tuning, at its end, at and between borders of chunks."""
    options = dict(trace=path, chain_method=method, cores=2)
    if number < TUNE:
        with suppress(SamplingError):  # the other chain may have got beyond tuning
            small_run(model, step, callback=stop_at(number, chain=0), **options)
    else:
        part = small_run(model, step, callback=stop_at(number, chain=0), **options)
        n = part.posterior.sizes["draw"]
        # On a slow machine the chains take turns, and two shorter ones may have more draws.
        kept = n * part.posterior.sizes["chain"]
        assert kept > (0 if method == "parallel" else number - TUNE)
        for chain in part.posterior.chain.values:
            np.testing.assert_array_equal(
                part.posterior["w"].sel(chain=chain), expected.posterior["w"][chain, :n]
            )
    assert same(small_run(model, step, resume=True, **options), expected)


@pytest.mark.slow(5)
def test_stopped_again_and_again(model, step, expected, path, small_chunks):
    for number in range(TUNE, TUNE + DRAWS, 2):
        small_run(
            model,
            step,
            trace=path,
            resume=path.exists(),
            callback=stop_at(number, chain=CHAINS - 1),
        )
    assert same(small_run(model, step, trace=path, resume=True), expected)


def test_the_state_is_needed(model, step, expected, path, small_chunks, monkeypatch):
    """A run that goes on with fresh momentum or batches is seen to differ."""
    small_run(model, step, trace=path, callback=stop_at(TUNE + 5))
    monkeypatch.setattr(
        sequential.ChainRunner, "restore", lambda self, n, state: setattr(self, "n_draws", n)
    )
    assert not same(small_run(model, step, trace=path, resume=True), expected)


@pytest.mark.slow(4)
@pytest.mark.parametrize(
    ("sampler", "options"),
    [(sgm.PSGLD, {"step_size": sgm.PolynomialDecay(1e-3, 10, 0.5)}),
     (sgm.SGHMC_S, {"replacement": True})],
)  # fmt: skip
def test_other_samplers_on_jax(model, path, small_chunks, sampler, options):
    options = {"step_size": 0.001, "batch_size": 20, "thin": 3} | options
    with model:
        step = sampler(compile_kwargs={"mode": "JAX"}, **options)
    expected = small_run(model, step)
    small_run(model, step, trace=path, callback=stop_at(TUNE + 6))
    assert same(small_run(model, step, trace=path, resume=True), expected)


@pytest.mark.long
def test_steps_of_pymc(path, small_chunks):
    """NUTS, still tuning when it is stopped, Slice and Metropolis go on exactly too."""
    with pm.Model() as model:
        a, b, c = pm.Normal("a", shape=2), pm.Normal("b", shape=2), pm.Normal("c")
        k = pm.Poisson("k", 3)
        pm.Normal("y", a.sum() + b.sum() + c + k, observed=np.arange(10.0))
    timed = ["process_time_diff", "perf_counter_diff", "perf_counter_start"]

    def steps():
        with model:
            return [
                sgm.SGLD([a], step_size=0.01, compile_kwargs={"mode": MODE}),
                pm.NUTS([b]),
                pm.Slice([c]),
                pm.Metropolis([k], tune_interval=10),
            ]

    def run(steps, **options):
        tree = small_run(model, steps, tune=30, **options)
        for name in ("sample_stats", "warmup_sample_stats"):
            tree[name] = xr.DataTree(tree[name].to_dataset().drop_vars(timed))
        return tree

    expected, used = run(steps()), steps()
    for number in (15, 34):
        stop = stop_at(number, error=ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            run(used, trace=path, resume=path.exists(), callback=stop)
    assert same(run(used, trace=path, resume=True), expected)


@pytest.mark.slow(4)
def test_a_finished_run_is_made_longer(model, step, path, small_chunks):
    long = small_run(model, step, draws=23)
    small_run(model, step, trace=path, random_seed=1)
    part = small_run(
        model, step, trace=path, resume=True, draws=23, callback=stop_at(TUNE + DRAWS + 3)
    )
    assert 0 < part.posterior.sizes["draw"] < 23
    assert same(small_run(model, step, trace=path, resume=True, draws=23), long)
    assert same(xr.open_datatree(path, engine="zarr"), long)
    with pytest.raises(ValueError, match=r"draws: was 23, is 12"):
        small_run(model, step, trace=path, resume=True)


def test_finished_runs_are_only_read(model, step, expected, path, monkeypatch):
    small_run(model, step, trace=path)
    monkeypatch.setattr(type(step), "step", None)
    assert same(small_run(model, step, trace=path, resume=True), expected)


@pytest.mark.slow(10)
def test_random_seeds_are_kept(model, step, path, small_chunks):
    """Without a seed, or with a generator, the run goes on with its own."""
    for seed in (None, np.random.default_rng(5)):
        shutil.rmtree(path, ignore_errors=True)
        part = small_run(model, step, trace=path, random_seed=seed, callback=stop_at(TUNE + 5))
        whole = small_run(model, step, trace=path, random_seed=None, resume=True)
        first = part.posterior["w"]  # of the chain the machine was quick enough to run
        np.testing.assert_array_equal(first, whole.posterior["w"].sel(first.indexes))
        again = small_run(model, step, random_seed=sgm.ZarrStore(path).record["seed"])
        assert same(whole, again)


@pytest.mark.slow(3)
def test_a_stopped_chain_stops_again(model, path, small_chunks):
    """What a non-finite update ended is the same after resuming."""

    def explode(update):
        return 0.005 if update < 3 * (TUNE + 6) else 1e12

    step = small_step(model, step_size=explode)
    first = small_run(model, step, trace=path)
    assert first.posterior.sizes["draw"] == 6
    assert same(first, small_run(model, step))
    assert same(first, small_run(model, step, trace=path, resume=True))


class Broken(Exception):
    pass


@pytest.mark.slow(4)
def test_an_error_in_a_draw_leaves_the_store_whole(model, expected, path, small_chunks):
    fault = path.with_name("fault")  # outside: what a schedule holds is part of the run

    def schedule(update):
        if update == 3 * (TUNE + 6) + 1 and fault.exists():
            raise Broken
        return 0.005

    step = small_step(model, step_size=schedule)
    for method in ("sequential", "parallel"):
        shutil.rmtree(path, ignore_errors=True)
        fault.touch()
        with pytest.raises((Broken, SamplingError)) as caught:
            small_run(model, step, trace=path, chain_method=method, cores=2)
        assert Broken in (type(caught.value), type(caught.value.__cause__))
        assert max(sgm.ZarrStore(path).n_draws) == 6
        kept = caught.value.idata.posterior.sizes["draw"]
        assert 0 < kept <= 6  # the other chain may not have got as far
        fault.unlink()
        whole = small_run(model, step, trace=path, resume=True)
        np.testing.assert_array_equal(whole.posterior["w"], expected.posterior["w"])


# ---- kill -9 -------------------------------------------------------------------------------


@pytest.mark.slow(15)
def test_killed_at_any_moment_of_writing(model, step, path):
    """Before, in the middle of and after every 101st file that is written or renamed."""
    go = prepared(model, step, path, draws=6, tune=2, chains=1)
    expected = go()
    n = moments_of(go, path)
    assert n > 500
    for k in range(0, n, 101):
        die_at(go, path, k)
        assert same(go(), expected), f"killed at moment {k} of {n}"


@pytest.mark.slow(12)
@pytest.mark.parametrize("method", [pytest.param("sequential", marks=pytest.mark.long), "parallel"])
def test_killed_at_random_moments(model, step, path, method):
    """SIGKILL, again and again, then through; benchmarks/kills.py does it 50 times.

    Workers whose parent is killed end by themselves, and leave the store to the next run.
    """
    go = prepared(model, step, path, method, draws=200)
    sequential.SECONDS_PER_BLOCK, before = 0.01, sequential.SECONDS_PER_BLOCK
    try:
        began = time.perf_counter()
        expected = go()
        seconds = time.perf_counter() - began
        shutil.rmtree(path)
        rng = np.random.default_rng(0)
        kills = sum(kill_after(in_child(go), rng.uniform(0, 0.4 * seconds)) for _ in range(4))
        assert kills == 4
        assert same(go(), expected)
    finally:
        sequential.SECONDS_PER_BLOCK = before


@pytest.mark.slow(2)
def test_two_processes_do_not_write_one_chain(model, step, path, monkeypatch):
    small_run(model, step, trace=path, callback=stop_at(TUNE + 2))
    monkeypatch.setattr(file_lock, "SECONDS_FOR_LOCK", 0.1)
    held = file_lock.Lock(path / ".sampler" / "chains_0_0.lock", "these chains")
    held.acquire()
    with pytest.raises(RuntimeError, match="another process is still writing"):
        small_run(model, step, trace=path, resume=True)
    held.release()
    small_run(model, step, trace=path, resume=True)


# ---- refusals ------------------------------------------------------------------------------


@pytest.mark.slow(5)
def test_another_run_is_refused_by_name(model, step, path):
    small_run(model, step, trace=path, callback=stop_at(TUNE + 2))

    def refused(message, model=model, step=step, **options):
        with pytest.raises(ValueError, match=message):
            small_run(model, step, trace=path, resume=True, **options)

    refused(r"seed: was '1', is '2'", random_seed=2)
    refused(r"chains: was 2, is 3", chains=3)
    refused(r"tune: was 4, is 5", tune=5)
    refused(r"recorded: 's' is missing", var_names=["w"])
    refused(r"start: other initial values", initvals={"w": [0.1, 0.2]})
    refused(r"discard_tuned_samples: was False, is True", discard_tuned_samples=True)
    refused(
        r"step: was .*step_size=0.005.*, is .*step_size=0.006",
        step=small_step(model, step_size=0.006),
    )
    with model:
        sghmc = sgm.SGHMC_S(step_size=0.005, batch_size=20, thin=3, compile_kwargs={"mode": MODE})
    refused(r"step: was .*MSGNHT_S.* is .*SGHMC_S", step=sghmc)
    X = model["X"].get_value()
    with model:
        pm.set_data({"X": X + 1e-9})
        refused(r"data: 'X' is different")
        pm.set_data({"X": X})
    with pm.Model() as wider:
        w = pm.Normal("w", 0, 4, shape=2)
        s = pm.HalfNormal("s", 2)
        pm.Normal("y", pm.Data("X", X) @ w, s, observed=X @ [1.0, -0.5] + 0.1)
    refused(r"model: 'w' is different", wider, small_step(wider))
    with pytest.raises(ValueError, match=r"dtype: was None, is float32"):
        small_run(model, step, trace=sgm.ZarrStore(path, dtype="float32"), resume=True)
    small_run(model, step, trace=path, resume=True)


@pytest.mark.slow(2)
@pytest.mark.parametrize("method", ["sequential", "parallel"])
def test_a_relative_path_stays_where_it_was(model, step, expected, path, monkeypatch, method):
    """Also when the working directory changes before the run, or during it."""
    monkeypatch.chdir(path.parent)
    (path.parent / "elsewhere").mkdir()
    store = sgm.ZarrStore(path.name)
    run = dict(chain_method=method, cores=2)

    def leave(trace, draw):
        os.chdir(path.parent / "elsewhere")

    assert same(small_run(model, step, trace=path.name, callback=leave, **run), expected)
    assert os.listdir() == []
    assert same(small_run(model, step, trace=store, resume=True, **run), expected)
    with pytest.raises(FileExistsError, match=re.escape(f"{path} has a run")):
        small_run(model, step, trace=store)
    assert repr(store) == f"ZarrStore({str(path)!r})"


@pytest.mark.slow(2)
def test_nothing_is_overwritten_unasked(model, step, expected, path):
    small_run(model, step, trace=path, random_seed=9)
    with pytest.raises(FileExistsError, match=r"12 draws and 2 chains.*overwrite=True"):
        small_run(model, step, trace=path)
    assert same(small_run(model, step, trace=sgm.ZarrStore(path, overwrite=True)), expected)
    with pytest.raises(ValueError, match="contradict"):
        small_run(model, step, trace=sgm.ZarrStore(path, overwrite=True), resume=True)
    other = path.with_name("other")
    other.mkdir()
    (other / "thesis.tex").touch()
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="not a run of this package"):
            small_run(model, step, trace=sgm.ZarrStore(other, overwrite=overwrite))
    assert (other / "thesis.tex").exists()


def test_bad_options(tmp_path):
    with pytest.raises(ValueError, match=r"seconds must be .* got -1"):
        sgm.ZarrStore(tmp_path, seconds=-1)
    with pytest.raises(ValueError, match="dtype='int32' must be a real type"):
        sgm.ZarrStore(tmp_path, dtype="int32")
    with pytest.raises(FileNotFoundError, match="no run"):
        sgm.ZarrStore(tmp_path / "none").to_datatree()


@pytest.mark.parametrize(
    "labels",
    [
        pd.date_range("2020", periods=2, tz="UTC"), pd.period_range("2020", periods=2),
        pd.interval_range(0, 2), [2**70, 2**71], [2**63, 2**63 + 1], ["a", None],
        [datetime(1, 1, 1)] * 2,
    ],
)  # fmt: skip
def test_labels_that_do_not_come_back(path, monkeypatch, labels):
    """Refused before the default step is made, naming the dim."""
    monkeypatch.setattr(parametrisation, "default_step", lambda *_: pytest.fail("A step was made."))
    with pm.Model(coords={"f": labels}) as model:
        pm.Normal("y", pm.Normal("w", dims="f").sum(), 1, observed=np.arange(5.0))
    with pytest.raises(ValueError, match=r"labels of the dim 'f', such as .* Make strings of them"):
        small_run(model, None, trace=path)
    assert not path.exists()


@pytest.mark.parametrize("name", ["", "..", "zarr.json", "a\\b", "a\0b", "x" * 300, "é" * 130])
def test_names_of_no_folder(path, monkeypatch, name):
    monkeypatch.setattr(parametrisation, "default_step", lambda *_: pytest.fail("A step was made."))
    with pm.Model() as model:
        pm.Normal("y", pm.Normal(name), 1, observed=np.arange(5.0))
    shown = re.escape(repr(name)[1:40].rstrip("'"))
    with pytest.raises(ValueError, match=rf"of the name '{shown}.*: .*Rename it"):
        small_run(model, None, trace=path)
    assert not path.exists()


def test_names_that_only_the_step_decides_on(model, step, path):
    """Deterministics with one number per row are left out, so others are checked later."""
    named = model.copy()
    with named:
        pm.Deterministic("a\\b", named["s"] * 2)
    with pytest.raises(ValueError, match="Rename it"):
        small_run(named, small_step(named), trace=path)
    assert not path.exists()


def test_zarr_is_asked_for(model, step, path, monkeypatch):
    monkeypatch.delattr("zarr.Array.with_config")
    with pytest.raises(ImportError, match=r"zarr 3\.1\.6 or later, and this is \d"):
        small_run(model, step, trace=path)
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImportError, match=r"pip install 'pymc-sgmcmc\[zarr\]'"):
        small_run(model, step, trace=path)


def test_a_path_that_cannot_be_written(model, step):
    with pytest.raises(OSError, match=r"store /proc/run.zarr cannot be written"):
        small_run(model, step, trace="/proc/run.zarr")


@pytest.mark.slow(2)
@pytest.mark.parametrize("name", ["run #3", "a;b?c", "a\nb"])
def test_a_path_that_looks_like_a_url(model, step, path, name):
    """Its own folder is written and read, also below the folder of that name, and no other."""
    options = dict(draws=3, chains=1)
    for folder in (path.with_name(name), path.with_name("in") / name / "run.zarr"):
        made = small_run(model, step, trace=folder, **options)
        assert same(sgm.ZarrStore(folder).to_datatree(), made)
    assert same(small_run(model, step, trace=folder, resume=True, **options), made)
    assert {p.name for p in path.parent.iterdir()} == {name, "in"}
    assert {p.name for p in (path.parent / "in").iterdir()} == {name}


def test_the_part_before_a_hash_is_another_store(model, step, path):
    one, two = (small_run(model, step, trace=path.with_name(n), chains=1, random_seed=k)
                for k, n in enumerate(["exp", "exp2"]))  # fmt: skip
    path.with_name("exp2").rename(path.with_name("exp#2"))
    assert same(sgm.ZarrStore(path.with_name("exp#2")).to_datatree(), two)
    assert same(sgm.ZarrStore(path.with_name("exp")).to_datatree(), one)


@pytest.mark.parametrize(
    ("name", "reason"), [("a\0b", "null character"), ("x" * 256, "256 bytes"), ("é" * 130, "260")]
)
def test_a_path_that_no_file_system_has(tmp_path, name, reason):
    with pytest.raises(ValueError, match=reason):
        sgm.ZarrStore(tmp_path / name / "run")


def test_the_longest_path_name(model, step, path):
    path = path.with_name("x" * 255)
    assert same(
        small_run(model, step, draws=2, chains=1, trace=path),
        small_run(model, step, draws=2, chains=1),
    )


def test_a_store_deleted_during_the_run(model, step, path, small_chunks, monkeypatch):
    """Nothing is made again in its place, and nothing is said of draws that could be read."""
    monkeypatch.setattr(writer.Writer, "due", lambda self: True)

    def delete(trace, draw):
        if draw.draw_idx == TUNE + 2:
            shutil.rmtree(path)

    with pytest.raises(RuntimeError, match="no longer belongs to this run") as told:
        small_run(model, step, trace=path, callback=delete)
    assert "can be read" not in str(told.value)
    assert not path.exists()


def test_a_finished_run_where_nothing_can_be_written(model, step, expected, path, monkeypatch):
    """As on a file system that is read-only: nothing is left to be done."""
    small_run(model, step, trace=path)
    files = {p: p.stat().st_mtime_ns for p in path.rglob("*")}

    def refused(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def only_read(file, mode="r", *args, **kwargs):
        return refused() if set(mode) & set("wax+") else opened(file, mode, *args, **kwargs)

    opened = open
    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", only_read)
        patched.setattr(os, "replace", refused)
        patched.setattr(type(path), "touch", refused)
        patched.setattr(type(step), "step", None)
        assert same(small_run(model, step, trace=path, resume=True), expected)
        with pytest.raises(OSError, match=r"cannot be written: Read-only file system"):
            small_run(model, step, trace=path, resume=True, draws=DRAWS + 1)
    assert files == {p: p.stat().st_mtime_ns for p in path.rglob("*")}


def test_a_seed_sequence(model, step, path):
    seed = np.random.SeedSequence(5, spawn_key=(3,))
    options = dict(draws=6, chains=2, random_seed=seed)
    expected = small_run(model, step, **options)
    assert same(small_run(model, step, **options), expected)  # it counts what is spawned of it
    small_run(model, step, trace=path, callback=stop_at(TUNE + 2), **options)
    assert same(small_run(model, step, trace=path, resume=True, **options), expected)


@pytest.mark.slow(2)
def test_a_record_with_names_of_other_files(model, step, path):
    """Of a store that somebody else has made: nothing outside of it is written or read."""
    small_run(model, step, draws=2, chains=1, trace=path)
    (path / "link").symlink_to(path.parent)
    outside = path.with_name("outside")
    record = read_record(path)
    for place, value in (("metadata", "owned"), ("digests", "owned"), ("lengths", 5)):
        for name in (str(outside), "../outside", "link/outside", f"{outside}/zarr.json"):
            write_record(path, record | {place: record[place] | {name: value}})
            with pytest.raises(ValueError, match=r"not a store of this package: .*outside"):
                sgm.ZarrStore(path).to_datatree()
    with pytest.raises(ValueError, match=r"not a store of this package: .*outside"):
        small_run(model, step, draws=2, chains=1, trace=path, resume=True)
    assert not outside.exists()


def test_a_record_with_names_of_other_files_of_the_store(model, step, path):
    small_run(model, step, draws=2, chains=1, trace=path)
    record = read_record(path)
    record["metadata"][".sampler/run.npz"] = "owned"
    write_record(path, record)
    with pytest.raises(ValueError, match=r"names the file '.sampler/run.npz'"):
        sgm.ZarrStore(path).to_datatree()


def test_reading_writes_nothing(model, step, expected, path):
    """Not even what is damaged and could be written again."""
    small_run(model, step, trace=path)
    (path / "zarr.json").write_text("{}")
    (path / "posterior" / "w" / "zarr.json").unlink()
    (path / "posterior" / "draw" / "c" / "0").unlink()
    files = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    assert same(sgm.ZarrStore(path).to_datatree(), expected)
    assert files == {p: p.stat().st_mtime_ns for p in path.rglob("*")}


def test_a_full_disk(model, step, expected, path, small_chunks):
    """What is there can be read, the message says so, and the run goes on when there is room."""

    def fill():
        # Files of this process cannot grow any more: a checkpoint does not fit.
        writer.Writer.due = lambda self: self._done >= TUNE + 7
        sequential.SECONDS_PER_TURN = sequential.PART_PER_TURN = np.inf  # the first chain only
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10**9, 10**9))

        def limit(trace, draw):
            if draw.draw_idx == TUNE + 8:
                resource.setrlimit(resource.RLIMIT_FSIZE, (500, 10**9))

        with pytest.raises(
            OSError, match=r"cannot be written.* Earlier draws can be read, and resume"
        ):
            small_run(model, step, trace=path, callback=limit)
        os._exit(7)

    assert ended(in_child(fill)) == 7
    kept = sgm.ZarrStore(path).to_datatree().posterior
    n = kept.sizes["draw"]
    assert n >= 8
    np.testing.assert_array_equal(kept["w"][0], expected.posterior["w"][0, :n])
    assert same(small_run(model, step, trace=path, resume=True), expected)


@pytest.mark.slow(3)
def test_damage_is_seen(model, step, expected, path, small_chunks):
    small_run(model, step, trace=sgm.ZarrStore(path, seconds=0.0), callback=stop_at(TUNE + 9))
    chunk = path / "posterior" / "w" / "c" / "0" / "0" / "0"
    whole = chunk.read_bytes()

    def refused():
        with pytest.raises(ValueError, match=r"posterior/w: draws 0 to 4 of chain 0 are damaged"):
            small_run(model, step, trace=path, resume=True)

    chunk.write_bytes(whole[: len(whole) // 2])
    refused()
    chunk.write_bytes(whole[:3] + bytes([whole[3] ^ 1]) + whole[4:])
    refused()
    chunk.unlink()
    refused()
    chunk.write_bytes(whole)
    # A damaged checkpoint: the one before it counts.
    slots = sorted((path / ".sampler").glob("chains_0_0.*.npz"), key=lambda p: load(p)["number"])
    slots[-1].write_bytes(slots[-1].read_bytes()[:-30])
    assert same(small_run(model, step, trace=path, resume=True), expected)


# ---- in pm.sample --------------------------------------------------------------------------


@pytest.mark.slow(2)
@pytest.mark.parametrize("cores", [1, 2])
def test_in_pm_sample(model, step, path, cores):
    options = dict(draws=DRAWS, tune=TUNE, chains=2, cores=cores, random_seed=1, step=step)
    options |= dict(progressbar=False, compute_convergence_checks=False)
    with model:
        expected = pm.sample(**options)
        stored = sgm.ZarrStore(path, seconds=0.0)
        assert same(pm.sample(trace=stored, **options), expected)
        assert same(stored.to_datatree(), expected)
        with pytest.raises(FileExistsError, match="overwrite=True"):
            pm.sample(trace=sgm.ZarrStore(path), **options)
        again = sgm.ZarrStore(path, overwrite=True)
        with pytest.raises(OSError, match="unlucky"):
            pm.sample(trace=again, callback=stop_at(TUNE + 8, 1, OSError("unlucky")), **options)
    kept = again.to_datatree().posterior
    assert 1 in kept.chain
    assert kept.sizes["draw"] == 9 or cores == 2
    n = kept.sizes["draw"]
    np.testing.assert_array_equal(kept["w"].sel(chain=1), expected.posterior["w"][1, :n])
    with pytest.raises(ValueError, match=r"written by pm.sample"):
        small_run(model, step, trace=path, resume=True)


# ---- plain values --------------------------------------------------------------------------


def test_plain_values_come_back_exactly(tmp_path):
    values = {
        "arrays": [np.arange(3, dtype="int32"), np.zeros((2, 0)), np.array(0.1), np.array([True])],
        "scalars": [np.float32(0.1), np.int64(2**60), np.bool_(True)],
        "python": [0.1, -0.0, float("inf"), 2**127 + 1, True, None, "text"],
        "tuple": (1, (2.5, "a")),
        "dtype": np.dtype("float32"),
        "nested": {"a": {"b": [{}]}},
    }
    save(tmp_path / "x.npz", to_plain(values, "x"))
    back = from_plain(load(tmp_path / "x.npz"), values)

    def check(a, b):
        assert type(a) is type(b)
        if isinstance(a, dict):
            assert list(a) == list(b)
            [check(a[k], b[k]) for k in a]
        elif isinstance(a, list | tuple):
            assert len(a) == len(b)
            [check(x, y) for x, y in zip(a, b, strict=True)]
        elif isinstance(a, np.ndarray | np.generic):
            assert a.dtype == b.dtype
            assert np.shape(a) == np.shape(b)
            assert a.tobytes() == b.tobytes()
        else:
            assert repr(a) == repr(b)

    check(values, back)


def test_what_is_not_plain_is_named():
    with pytest.raises(TypeError, match=r"state of the step\.a\[1\] is a set"):
        to_plain({"a": [1, {2}]}, "of the step")
    with pytest.raises(TypeError, match="key 1, which is not a string"):
        to_plain({1: 2}, "of the step")


def test_a_state_of_another_class_is_refused(step, model):
    plain = to_plain(step.sampling_state, "step")
    with model:
        other = pm.Slice([model["w"]])
    with pytest.raises(ValueError, match="is a SGMCMCState, but that of this step is a SliceState"):
        from_plain(plain, other.sampling_state)
