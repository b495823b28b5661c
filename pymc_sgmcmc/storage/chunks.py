"""The chunks of draws on disk, checked before they are used."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pymc_sgmcmc.storage.checkpoints import Checkpoints

GROUPS = ("posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats")


def open_draws(path: Path) -> dict[str, dict[str, Any]]:
    """Open a store's arrays of draws, by group and name."""
    import zarr

    root: Any = zarr.open_group(path, mode="r+")
    return {
        name: {
            key: array.with_config({"write_empty_chunks": True})
            for key, array in root[name].arrays()
            if key != "draw" and "draw" in array.metadata.dimension_names
        }
        for name in GROUPS
        if name in root
    }


def check_chunks(
    path: Path,
    record: dict[str, Any],
    arrays: dict[str, dict[str, Any]],
    checkpoints: Checkpoints,
    n_draws: int,
    read: bool,
) -> None:
    """Raise an error if valid draws are missing or damaged.

    Parameters
    ----------
    path : pathlib.Path
        The store.
    record : dict
    arrays : dict
        From `open_draws`.
    checkpoints : Checkpoints
        Of some chains.
    n_draws : int
        Their valid draws, tuning included.
    read : bool
        Whether to read each chunk, which checks its checksum, or only check that its file exists.

    Raises
    ------
    ValueError
        Naming the array, draws and chains, and what to do.
    """
    chains, size = checkpoints.chains, record["chunk"]
    for group, name, first, end in _counted(record, arrays, n_draws):
        array = arrays[group][name]
        place = [chains.start // record["chains_together"], first // size]
        file = path / group / name / "/".join(map(str, ["c", *place, *[0] * (array.ndim - 2)]))
        try:
            if not file.exists():
                raise FileNotFoundError("the file is missing")
            if read:
                array[chains.start : chains.stop, first:end]
        except Exception as error:
            whose = f"chain {chains.start}" + (f" to {chains[-1]}" if len(chains) > 1 else "")
            raise ValueError(
                f"{path / group / name}: draws {first} to {end - 1} of {whose} are damaged "
                f"({file}: {error}). They were written completely, so the disk or another "
                f"program has changed them. {checkpoints.remedy}"
            ) from error


def _counted(
    record: dict[str, Any], arrays: dict[str, dict[str, Any]], n_draws: int
) -> Iterator[tuple[str, str, int, int]]:
    """Group, array, first draw and end of each chunk with valid draws."""
    tune, size = record["tune"], record["chunk"]
    for group, named in arrays.items():
        is_warmup = group.startswith("warmup_")
        count = min(n_draws, tune) if is_warmup else max(0, n_draws - tune)
        for name in named:
            for first in range(0, count, size):
                yield group, name, first, min(first + size, count)
