"""Reading of a store: the number of valid draws, whether they are complete, and the result."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from pymc.exceptions import SamplingError
from xarray import DataTree

from pymc_sgmcmc.run.result import longest_cut
from pymc_sgmcmc.storage.checkpoints import all_checkpoints
from pymc_sgmcmc.storage.chunks import GROUPS, check_chunks, open_draws
from pymc_sgmcmc.storage.metadata import DRAW, check_digests, open_root

_log = logging.getLogger("pymc.sgmcmc")

LOADED_BYTES = 100_000_000
"""Largest size in bytes of a result that is read into memory; a larger one is read from disk when
used."""


def count_draws(path: Path, record: dict[str, Any]) -> list[int]:
    """Count the valid draws of each chain, without tuning."""
    counts = []
    for checkpoints in all_checkpoints(path, record):
        checkpoint = checkpoints.latest()
        done = 0 if checkpoint is None else checkpoint["n_draws"]
        ends = [None] * len(checkpoints.chains) if checkpoint is None else checkpoint["ends"]
        own = [done if end is None else end for end in ends]
        counts += [max(0, n - record["tune"]) for n in own]
    return counts


def check_draws(
    path: Path, record: dict[str, Any], read: bool, only_finished: bool = False
) -> None:
    """Check the valid draws, as `check_chunks` does, of all chains or of finished ones."""
    arrays = open_draws(path, record, read_only=True)
    total = record["tune"] + record["draws"]
    for checkpoints in all_checkpoints(path, record):
        checkpoint = checkpoints.latest() or {}
        if checkpoint.get("n_draws") == total or not only_finished:
            check_chunks(path, record, arrays, checkpoints, checkpoint, read)


def read_datatree(path: Path, record: dict[str, Any]) -> DataTree:
    """Return the valid draws, as `ZarrStore.to_datatree` describes."""
    warnings = [c.damage_warning() for c in all_checkpoints(path, record)]
    for warning in filter(None, warnings):
        _log.warning(warning)
    lengths = count_draws(path, record)
    if not any(lengths):
        message = f"No chain in {path} has got past tuning."
        raise SamplingError(" ".join([message, *filter(None, warnings)]))
    chains, length = longest_cut(lengths)
    check_digests(path, record)
    check_draws(path, record, read=False)
    root = open_root(path, record, read_only=True)
    groups = {}
    for name in root.group_keys():
        of_run = name in GROUPS  # others have no draws of this run, whatever their dims are called
        dataset = xr.open_dataset(
            root.store,
            engine="zarr",
            group=name,
            consolidated=False,
            drop_variables=[DRAW] if of_run else None,
        )
        if of_run:
            dataset = dataset.assign_coords(draw=np.arange(record["lengths"][name]))
            dataset = dataset.isel(chain=chains)
            if not name.startswith("warmup_"):
                dataset = dataset.isel(draw=slice(length))
        groups[name] = dataset
    tree = DataTree.from_dict(groups)
    if tree.nbytes > LOADED_BYTES:
        return tree
    try:
        return tree.load()
    except Exception:
        check_draws(path, record, read=True)  # raises an error that names the damaged file
        raise
