"""Creation of a run in a store, in place of any existing one: completely or not at all."""

import os
import shutil
import uuid
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from xarray import Dataset, DataTree

from pymc_sgmcmc.file_lock import Lock, delete_abandoned, locked_folder
from pymc_sgmcmc.run.run_events import Run
from pymc_sgmcmc.run.saved_state import to_plain
from pymc_sgmcmc.step import adaptation_of
from pymc_sgmcmc.storage.checkpoints import all_checkpoints
from pymc_sgmcmc.storage.chunks import GROUPS, draws_per_chunk
from pymc_sgmcmc.storage.identity import versions
from pymc_sgmcmc.storage.metadata import consolidate, recorded_files
from pymc_sgmcmc.storage.names_and_labels import refuse_unstorable
from pymc_sgmcmc.storage.record import (
    FOLDER,
    FORMAT,
    clear_errors,
    is_run,
    not_a_run,
    read_record,
    write_adapted,
    write_record,
)
from pymc_sgmcmc.storage.writer import LEFT_OUT

PREFIX, NEW, OLD = ".pymc_sgmcmc_", ".new", ".old"
"""Beginning and endings of names of folders whose run is incomplete or is being deleted."""
RUN_LOCK = Path(FOLDER, "run.lock")
"""Lock of the whole run, which is held while the run is created, resumed or replaced."""


def run_lock(folder: Path) -> Lock:
    """Return the lock of the run in a folder."""
    return Lock(folder / RUN_LOCK, "this run")


def create(
    path: Path,
    run: Run,
    tree: DataTree,
    identity: dict[str, Any],
    *,
    dtype: np.dtype | None,
    overwrite: bool,
) -> tuple[str, Lock]:
    """Create a new run, in place of any existing one if ``overwrite``; return its id and held lock.

    ``tree`` is the form of the result with one chain and one draw, and real variables are stored as
    ``dtype``.
    """
    for dtypes in run.step.stats_dtypes:
        for name, own in dtypes.items():
            if np.dtype(own) == object and name not in LEFT_OUT:
                raise ValueError(
                    f"The statistic '{name}' has objects as values, which cannot be stored. "
                    "Leave out trace=, or use another step."
                )
    draws = {n: t.to_dataset() for n, t in tree.children.items() if n in GROUPS}
    others = {n: t.to_dataset() for n, t in tree.children.items() if n not in GROUPS}
    for dataset in (*draws.values(), *others.values()):
        labels = {dim: values.to_numpy() for dim, values in dataset.coords.items()}
        refuse_unstorable(dataset.variables, labels)
    lengths = {n: run.tune if n.startswith("warmup_") else run.draws for n in draws}
    variables = [value for dataset in draws.values() for value in dataset.values()]
    size = sum(value.dtype.itemsize * int(np.prod(value.shape[2:])) for value in variables)
    run_id = uuid.uuid4().hex
    record = {
        "format": FORMAT,
        "run_id": run_id,
        "identity": identity,
        "seed": run.seed,
        "fresh": to_plain(run.fresh, "of the step"),
        "versions": versions(),
        "draws": run.draws,
        "tune": run.tune,
        "chains": run.n_chains,
        "chains_together": run.chains_together,
        "chunk": draws_per_chunk(size * run.chains_together),
        "lengths": lengths,
        "dtype": str(dtype),
        "seconds": 0.0,
    }
    target = Path(os.path.realpath(path))
    # The folder has another name until the run is complete.
    folder = target.with_name(f"{PREFIX}{run_id}{NEW}")
    with clear_errors(path):
        for old in target.parent.glob(f"{PREFIX}*{OLD}"):  # its deletion was interrupted
            shutil.rmtree(old, ignore_errors=True)
        delete_abandoned(target.parent.glob(f"{PREFIX}*{NEW}"), RUN_LOCK)
        lock = run_lock(folder)
        locked_folder(folder, lock)
        try:
            _lay_out(folder, run, draws, others, record, dtype)
            if (adapted := adaptation_of(run.step)) is not None:
                write_adapted(folder, adapted)
            _move(path, folder, target, overwrite)
        except BaseException:
            lock.release()
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return run_id, lock


def _lay_out(
    folder: Path,
    run: Run,
    draws: dict[str, Dataset],
    others: dict[str, Dataset],
    record: dict[str, Any],
    dtype: np.dtype | None,
) -> None:
    """Write a new run without its draws, and its record, next to the folder ``.sampler``.

    ``draws`` and ``others`` are the result's groups with and without draws, of one chain and one
    draw.
    """
    from zarr.storage import LocalStore  # a path with a "#" would be taken for a URL

    store = LocalStore(folder)
    for name, dataset in draws.items():
        # Only their coordinates are written here; the draws' own arrays follow.
        others[name] = dataset.drop_vars([*dataset.data_vars, "chain", "draw"])
        others[name] = others[name].assign_coords(
            chain=np.arange(run.n_chains), draw=np.arange(record["lengths"][name])
        )
    with warnings.catch_warnings():  # strings have no final place in zarr's format yet
        warnings.filterwarnings("ignore", module="zarr")
        DataTree.from_dict(others).to_zarr(store, mode="a", consolidated=False)
    for name, dataset in draws.items():
        _create_arrays(store, name, dataset, run, record, dtype)
    consolidate(store)
    texts, digests = recorded_files(folder, draws)
    write_record(folder, record | {"metadata": texts, "digests": digests})


def _create_arrays(
    store: Any,
    name: str,
    dataset: Dataset,
    run: Run,
    record: dict[str, Any],
    dtype: np.dtype | None,
) -> None:
    import zarr
    from zarr.codecs import Crc32cCodec

    group: Any = zarr.open_group(store, mode="r+")[name]
    for variable, value in dataset.items():
        own: Any = value.dtype
        if dtype is not None and own.kind == "f" and name.endswith("posterior"):
            own = dtype
        group.create_array(
            str(variable),
            shape=(run.n_chains, record["lengths"][name], *value.shape[2:]),
            chunks=(run.chains_together, record["chunk"], *(max(n, 1) for n in value.shape[2:])),
            dtype=own,
            fill_value=np.nan if own.kind == "f" else 0,
            compressors=[Crc32cCodec()],  # random digits do not compress; checksums detect damage
            dimension_names=[str(d) for d in value.dims],
            attributes=dict(value.attrs),
        )


def _move(path: Path, folder: Path, target: Path, overwrite: bool) -> None:
    """Move a new run to its path, once no process writes an existing run there."""
    while True:
        if overwrite and is_run(path):
            try:
                _delete(path, target, folder.with_suffix(OLD))
            except FileNotFoundError:  # another process has just deleted it
                continue
        try:
            os.rename(folder, target)
            return
        except OSError as error:
            if not target.exists():
                raise
            if not is_run(path):
                raise FileExistsError(not_a_run(path)) from error
            if not overwrite:
                raise FileExistsError(
                    f"Another process has started a run in {path} in the meantime. Choose "
                    "another path, or wait until it has finished."
                ) from error


def _delete(path: Path, target: Path, old: Path) -> None:
    """Delete the existing run, once no process writes it."""
    locks = _locks(path)
    try:
        for lock in locks:
            lock.acquire()
        os.rename(target, old)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        for lock in locks:
            lock.release()


def _locks(path: Path) -> list[Lock]:
    """Return the locks of the existing run and of all its chains."""
    try:
        record = read_record(path)
    except ValueError:  # damaged, or of another version: take the existing files
        paths = list((path / FOLDER).glob("chains_*.lock"))
        return [run_lock(path), *(Lock(path, "these chains") for path in paths)]
    return [run_lock(path), *(c.lock() for c in all_checkpoints(path, record))]
