"""Processes that want the same path at once: one run has it, the others are told."""

import os
import shutil
import signal
import time
import traceback

import numpy as np
import pymc as pm
import pytensor
import pytest
from kills import ended, in_child, prepared, same, small_model, small_run, small_step

import pymc_sgmcmc as sgm
from pymc_sgmcmc import file_lock
from pymc_sgmcmc.run import sequential
from pymc_sgmcmc.storage import chunks


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


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.zarr"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "DRAWS_PER_CHUNK", 5)
    monkeypatch.setattr(sequential, "SECONDS_PER_BLOCK", -1.0)
    monkeypatch.setattr(file_lock, "SECONDS_FOR_LOCK", 0.5)


def told_or_done(work, path, barrier):
    """A process that waits for the barrier and works; 0 done, 3 told, 1 anything else."""

    def child():
        while not barrier.exists():
            time.sleep(0.001)
        try:
            work()
        except Exception as error:
            if isinstance(error, RuntimeError | FileExistsError) and str(path) in str(error):
                os._exit(3)
            path.with_name(f"{os.getpid()}.log").write_text(traceback.format_exc())
            raise

    return in_child(child)


def left_over(path):
    return [p.name for p in path.parent.iterdir() if p.name.startswith(".pymc_sgmcmc_")]


@pytest.mark.slow(9)
@pytest.mark.parametrize("overwrite", [False, pytest.param(True, marks=pytest.mark.long)])
def test_many_begin_at_once(model, step, path, overwrite):
    """One of eight gets the path, whether or not a run lies there; the others name it."""
    expected = small_run(model, step)
    if overwrite:
        small_run(model, step, trace=path, random_seed=9)
    barrier = path.with_name("barrier")

    def work():
        small_run(model, step, trace=sgm.ZarrStore(path, overwrite=overwrite))

    children = [told_or_done(work, path, barrier) for _ in range(8)]
    barrier.touch()
    statuses = [ended(child) for child in children]
    logs = [p.read_text() for p in path.parent.glob("*.log")]
    assert set(statuses) <= {0, 3}, (statuses, logs)
    assert 0 in statuses
    # Whoever comes when the first has ended may overwrite it, with the same draws.
    assert statuses.count(0) == 1 or overwrite
    assert same(sgm.ZarrStore(path).to_datatree(), expected)
    assert same(small_run(model, step, trace=path, resume=True), expected)
    assert left_over(path) == []


@pytest.mark.slow(15)
@pytest.mark.parametrize("method", ["sequential", pytest.param("parallel", marks=pytest.mark.long)])
def test_a_run_that_is_being_written_is_not_overwritten(model, step, path, method):
    """Nor does it matter at which moment: before its first draw, or between two chains."""
    go = prepared(model, step, path, method, draws=100)
    expected = go()
    other = small_run(model, step, random_seed=9)
    began = path.with_name("began")
    for seconds in (0.0, 0.1):
        if path.exists():
            shutil.rmtree(path)

        def writing():
            began.touch()
            go()

        child = in_child(writing)
        while not (path / ".sampler" / "run.npz").exists():
            time.sleep(0.001)
        time.sleep(seconds)
        with pytest.raises(RuntimeError, match="another process is still writing"):
            small_run(model, step, trace=sgm.ZarrStore(path, overwrite=True), random_seed=9)
        assert ended(child) == 0
        assert same(sgm.ZarrStore(path).to_datatree(), expected)
    # When it has been killed, its workers end soon, and the path is free.
    shutil.rmtree(path)
    child = in_child(go)
    while not (path / ".sampler" / "chains_0_0.lock").exists():
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    file_lock.SECONDS_FOR_LOCK = 15.0
    overwritten = small_run(model, step, trace=sgm.ZarrStore(path, overwrite=True), random_seed=9)
    assert same(overwritten, other)
    assert left_over(path) == []


@pytest.mark.slow(2)
def test_a_worker_whose_store_was_taken_away_says_so(model, step, path, monkeypatch):
    """Where locks do not hold, the run's number still tells."""

    class Taken(sgm.ZarrStore):
        def begin(self, run, tree):
            begun = super().begin(run, tree)
            self._lock.release()
            other = small_run(model, step, trace=sgm.ZarrStore(path, overwrite=True), random_seed=9)
            results.append(other)
            return begun

    results: list = []
    with pytest.raises(
        RuntimeError, match="no longer belongs to this run: another process has started"
    ):
        small_run(model, step, trace=Taken(path))
    assert same(sgm.ZarrStore(path).to_datatree(), results[0])


def test_what_a_dead_process_left_is_cleared_away(model, step, path):
    """Killed while it laid out a run: the next one clears its folder away, and no living one's."""
    left = path.with_name(".pymc_sgmcmc_0123.new")
    (left / ".sampler").mkdir(parents=True)
    (left / ".sampler" / "run.lock").touch()
    alive = path.with_name(".pymc_sgmcmc_4567.new")
    (alive / ".sampler").mkdir(parents=True)
    held = file_lock.Lock(alive / ".sampler" / "run.lock", "it")
    held.acquire()
    small_run(model, step, trace=path)
    assert left_over(path) == [alive.name]
    held.release()


def test_a_new_run_that_another_process_clears_away_is_made_again(model, step, path, monkeypatch):
    """Before it has its lock, it looks like what a dead process left."""
    acquire, cleared = file_lock.Lock.acquire, []

    def late(self, seconds=None):
        if ".new" in str(self.path) and not cleared:
            shutil.rmtree(self.path.parent.parent)
            cleared.append(self.path)
        acquire(self, seconds)

    monkeypatch.setattr(file_lock.Lock, "acquire", late)
    assert same(small_run(model, step, trace=path), small_run(model, step))
    assert cleared
    assert left_over(path) == []


def test_kept_draws_of_one_run_only():
    """The same recorder in a second run, of fewer chains, keeps nothing of the first."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 10), 1, observed=np.arange(5.0))
        kept = sgm.KeptDraws()
        step = sgm.SGLD(step_size=1e-3, compile_kwargs={"mode": "FAST_COMPILE"})
    options = dict(draws=6, tune=2, cores=1, step=step, trace=kept, progressbar=False)
    options |= dict(compute_convergence_checks=False, model=model)
    pm.sample(chains=3, random_seed=1, **options)
    second = pm.sample(chains=2, random_seed=2, **options)
    idata = kept.to_inference_data()
    assert idata.posterior.sizes["chain"] == 2
    np.testing.assert_array_equal(idata.posterior["mu"], second.posterior["mu"])

    def stop(trace, draw):
        if draw.chain == 0 and draw.draw_idx == 5:
            raise OSError("unlucky")

    with pytest.raises(OSError, match="unlucky"):
        pm.sample(chains=2, random_seed=3, callback=stop, **options)
    idata = kept.to_inference_data()
    assert idata.posterior.sizes == {"chain": 1, "draw": 4}
