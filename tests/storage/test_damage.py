"""A store of which a file is lost or damaged: the right result, or an error with a remedy."""

import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytensor
import pytest
import xarray as xr
from kills import (
    TUNE,
    ended,
    in_child,
    prepared,
    same,
    small_model,
    small_run,
    small_step,
)
from pymc.exceptions import SamplingError

import pymc_sgmcmc as sgm
from pymc_sgmcmc.run import sequential
from pymc_sgmcmc.run.saved_state import load, save
from pymc_sgmcmc.storage import chunks, writer
from pymc_sgmcmc.storage.chunks import GROUPS


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


def deleted(file, rng):
    file.unlink()


def truncated(file, rng):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def corrupted(file, rng):
    """One bit is another."""
    whole = bytearray(file.read_bytes())
    whole[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
    file.write_bytes(whole)


DAMAGES = (deleted, truncated, corrupted)


def part_of(tree, whole):
    """Whether all that is there agrees with a whole result."""
    for name, node in tree.children.items():
        kept = node.to_dataset()
        n = {dim: slice(kept.sizes[dim]) for dim in ("draw",) if dim in kept.dims}
        chosen = whole[name].to_dataset().isel(n)
        if "chain" in kept.dims:
            chosen = chosen.sel(chain=kept.chain)
        if not xr.DataTree(kept.load()).to_dataset().identical(chosen.assign_attrs(kept.attrs)):
            return False
    return True


@pytest.mark.slow(13)
@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.long)])
def test_no_damage_goes_unseen(half, model, step, path, monkeypatch, caplog):
    """Each file in turn is damaged in one of three ways; the store is read, and the run resumed."""
    monkeypatch.setattr(chunks, "DRAWS_PER_CHUNK", 5)
    monkeypatch.setattr(sequential, "SECONDS_PER_BLOCK", -1.0)
    go = prepared(model, step, path, discard_tuned_samples=True)
    expected = go()
    shutil.rmtree(path)

    def stop(trace, draw):
        if draw.chain == 1 and draw.draw_idx == TUNE + 8:
            raise KeyboardInterrupt

    options = dict(trace=sgm.ZarrStore(path, seconds=0.0), discard_tuned_samples=True)
    kept = small_run(model, step, callback=stop, **options)
    whole = path.with_name("whole")
    path.rename(whole)
    rng = np.random.default_rng(0)
    files = sorted(
        p.relative_to(whole) for p in whole.rglob("*") if p.is_file() and p.stat().st_size
    )
    assert len(files) > 50
    errors = []
    for k, file in list(enumerate(files))[half::2]:
        damage = DAMAGES[k % len(DAMAGES)]
        for work in (sgm.ZarrStore(path).to_datatree, go):
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(whole, path)
            damage(path / file, rng)
            caplog.clear()
            try:
                with caplog.at_level(logging.WARNING):
                    tree = work()
            except (ValueError, OSError, SamplingError) as error:
                told = str(error)
                assert str(path) in told, f"{file} {damage.__name__}: {told}"
                assert any(
                    remedy in told for remedy in ("resume=True", "overwrite=True", "another path")
                ), f"{file} {damage.__name__}: {told}"
                errors.append(file)
            else:
                right = same(tree, expected) if work is go else part_of(tree, expected)
                assert right, f"{file} {damage.__name__} went unseen"
                if work is not go and tree.posterior.sizes != kept.posterior.sizes:
                    assert str(path) in caplog.text, f"{file} {damage.__name__}"
    # Draws and data cannot be made up; what can be written again is.
    assert {f.name for f in errors}.isdisjoint({"zarr.json", "run.lock"})
    data = ("observed_data", "constant_data")[half]  # each half has the file of one of them
    assert {f.parts[0] for f in errors} >= {"posterior", "sample_stats", data}


@pytest.mark.slow(2)
def test_a_finished_run_with_a_lost_chunk(model, step, path):
    """It must not become NaN; the remedy that is named makes the same draws again."""
    expected = small_run(model, step, trace=path)
    (path / "posterior" / "w" / "c" / "1" / "0" / "0").unlink()
    for again in (
        sgm.ZarrStore(path).to_datatree,
        lambda: small_run(model, step, trace=path, resume=True),
    ):
        with pytest.raises(ValueError, match=r"draws 0 to 11 of chain 1 are damaged") as caught:
            again()
    slots = [path / ".sampler" / f"chains_1_1.{slot}.npz" for slot in "ab"]
    assert f"Delete {slots[0]} and {slots[1]}; then resume=True samples" in str(caught.value)
    for slot in slots:
        slot.unlink(missing_ok=True)
    assert same(small_run(model, step, trace=path, resume=True), expected)


class Copied(Exception):
    """A callback has copied the store, and ends the run."""


def copied_while_written(model, step, path):
    """Draws as they are at one moment, then checkpoints as they are later."""
    copy = path.with_name("copy")

    def callback(trace, draw):
        if draw.chain == 0 and draw.draw_idx == TUNE + 1:
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns(".sampler"))
        if draw.chain == 0 and draw.draw_idx == TUNE + 8:
            shutil.copytree(path / ".sampler", copy / ".sampler")
            raise Copied

    with pytest.raises(Copied):
        small_run(model, step, trace=path, callback=callback)
    shutil.rmtree(path)
    copy.rename(path)


def swapped(model, step, path):
    """Two chunks of one array: each is whole, in the wrong place."""
    small_run(model, step, trace=path)
    one, other = (path / "posterior" / "w" / "c" / "0" / k / "0" for k in "01")
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def of_another_chain(model, step, path):
    small_run(model, step, trace=path)
    one, other = (path / "posterior" / "w" / "c" / k / "0" / "0" for k in "01")
    one.write_bytes(other.read_bytes())


def of_another_run(model, step, path):
    small_run(model, step, trace=path)
    other = path.with_name("other")
    small_run(model, step, trace=other, random_seed=2)
    chunk = "posterior/w/c/0/0/0"
    shutil.copy(other / chunk, path / chunk)


@pytest.mark.slow(2)
@pytest.mark.parametrize("put", [copied_while_written, swapped, of_another_chain, of_another_run])
def test_whole_chunks_of_other_draws(put, model, step, path, monkeypatch):
    """Their own checksums are right; the checkpoint has those of the draws that it counts."""
    monkeypatch.setattr(chunks, "DRAWS_PER_CHUNK", 5)
    monkeypatch.setattr(sequential, "SECONDS_PER_BLOCK", -1.0)
    # On a slow machine the turn would pass to chain 1 while the copy is made.
    monkeypatch.setattr(sequential, "SECONDS_PER_TURN", np.inf)
    monkeypatch.setattr(sequential, "PART_PER_TURN", np.inf)
    monkeypatch.setattr(writer.Writer, "due", lambda self: True)
    put(model, step, path)
    for again in (
        sgm.ZarrStore(path).to_datatree,
        lambda: small_run(model, step, trace=path, resume=True),
    ):
        with pytest.raises(ValueError, match=r"draws 0 to \d of chain 0 are damaged .* a copy"):
            again()


def checkpoints_of(path):
    return sorted((path / ".sampler").glob("chains_*.npz"))


def stopped_at(number):
    def callback(trace, draw):
        if draw.draw_idx == number:
            raise KeyboardInterrupt

    return callback


def test_a_store_whose_checkpoints_have_no_checksums(model, step, path, monkeypatch):
    """An earlier version's: it is read and resumed, and then has them."""
    monkeypatch.setattr(chunks, "DRAWS_PER_CHUNK", 5)
    monkeypatch.setattr(sequential, "SECONDS_PER_BLOCK", -1.0)
    expected = small_run(model, step)
    kept = small_run(model, step, trace=path, callback=stopped_at(TUNE + 7))
    for file in checkpoints_of(path):
        checkpoint = load(file)
        del checkpoint["checksums"]
        save(file, checkpoint)
    assert same(sgm.ZarrStore(path).to_datatree(), kept)
    assert same(small_run(model, step, trace=path, resume=True), expected)
    for slots in (checkpoints_of(path)[:2], checkpoints_of(path)[2:]):
        assert "checksums" in max(map(load, slots), key=lambda checkpoint: checkpoint["number"])


def test_draws_made_again_that_differ(model, step, path, monkeypatch):
    """Of a run resumed on another machine: those before are gone, and nothing seems damaged."""
    monkeypatch.setattr(sequential, "SECONDS_PER_BLOCK", -1.0)
    # Interrupted within a draw: its state is not known.
    with monkeypatch.context() as patched:
        patched.setattr(sequential.ChainRunner, "state", lambda self: None)
        small_run(model, step, trace=path, chains=1, callback=stopped_at(TUNE + 7))
    assert sgm.ZarrStore(path).n_draws[0] >= 7

    def on_another_machine():
        write_chunk = writer.write_chunk

        def differ(array, chains, first, values):
            write_chunk(array, chains, first, values + values.dtype.type(1))

        writer.write_chunk = differ
        writer.Writer.due = lambda self: self._flush(self._done - TUNE) or os._exit(7)
        small_run(model, step, trace=path, chains=1, resume=True, callback=lambda **_: None)

    assert ended(in_child(on_another_machine)) == 7
    assert sgm.ZarrStore(path).n_draws == [0]
    expected = small_run(model, step, chains=1)
    assert same(small_run(model, step, trace=path, chains=1, resume=True), expected)


def test_chunks_reach_the_disk_before_the_checkpoint(model, step, path, monkeypatch):
    synced, replace, fsync = [], os.replace, os.fsync

    def syncing(number):
        file = os.path.realpath(f"/proc/self/fd/{number}")
        if ".sampler" not in file:
            synced.append(file)
        fsync(number)

    def replacing(source, target):
        if "chains_0_0" in str(target):
            chunks = {str(p) for g in GROUPS for p in path.glob(f"{g}/*/c/0/**/0") if p.is_file()}
            missing.append({c for c in chunks if "/draw/" not in c} - set(synced))
        replace(source, target)

    missing: list = []
    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", replacing)
    small_run(model, step, trace=path)
    assert missing
    assert not any(missing)
    assert {Path(file).relative_to(path).parts[1] for file in synced} >= {"w", "s", "potential"}


@pytest.mark.slow(2)
def test_a_checkpoint_of_another_run(model, step, path):
    small_run(model, step, trace=path)
    other = path.with_name("other")
    small_run(model, step, trace=other, random_seed=2)
    name = "chains_0_0.a.npz"
    slot = name if (path / ".sampler" / name).exists() else name.replace(".a.", ".b.")
    shutil.copy(other / ".sampler" / slot, path / ".sampler" / slot)
    with pytest.raises(ValueError, match=r"is the checkpoint of another run\. Delete"):
        small_run(model, step, trace=path, resume=True)


@pytest.mark.slow(3)
def test_the_number_of_chains_is_no_chain_method(model, path):
    """One chain alone is not resumed as one of many together: their states differ."""
    pytest.importorskip("jax")
    with model:
        step = sgm.MSGNHT_S(step_size=0.005, batch_size=20, thin=3, compile_kwargs={"mode": "JAX"})
    small_run(model, step, trace=path, chains=1)
    with pytest.raises(ValueError, match=r"chain_method: was 'sequential.*, is 'vectorized'"):
        small_run(model, step, trace=path, chains=1, chain_method="vectorized", resume=True)
