"""The chunks of draws on disk, and their checksums in checkpoints.

A chunk's file ends with zarr's checksum of all its values. A checkpoint has the checksum of each
chunk with only the draws that it counts, so that a chunk with other draws is detected.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pymc_sgmcmc.storage.checkpoints import Checkpoints
from pymc_sgmcmc.storage.metadata import open_root

GROUPS = ("posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats")
"""Groups of a store that contain draws."""
CHECKSUM_BYTES = 4
"""Length in bytes of zarr's CRC-32C checksum at the end of a chunk's file."""

BYTES_PER_CHUNK = 2**23
"""Approximate largest size in bytes of a chunk with the draws of all variables, about 8 MiB,
because a chunk that is not full stays in memory and is written again at each checkpoint."""
DRAWS_PER_CHUNK = 256
"""Largest number of draws in a chunk, which matters for models with few parameters."""

type Checksums = dict[str, list[int]]
"""Checksums of an array's chunks of some chains, in order, by the array's path."""


def draws_per_chunk(bytes_per_draw: int) -> int:
    """Return the number of draws in a chunk, given the size of all variables in one draw."""
    return int(np.clip(BYTES_PER_CHUNK // max(1, bytes_per_draw), 1, DRAWS_PER_CHUNK))


def open_draws(path: Path, record: dict[str, Any], read_only: bool) -> dict[str, dict[str, Any]]:
    """Open a store's arrays of draws, by group and name."""
    root = open_root(path, record, read_only)
    return {
        name: {
            key: array.with_config({"write_empty_chunks": True})
            for key, array in root[name].arrays()
            if key != "draw" and "draw" in array.metadata.dimension_names and array.size
        }
        for name in GROUPS
        if name in root
    }


def write_chunk(array: Any, chains: range, first: int, values: np.ndarray) -> None:
    """Write the first draws of a chunk, and fill values after them: no chunk has to be read."""
    length = min(array.chunks[1], array.shape[1] - first)
    whole = np.full((len(chains), length, *values.shape[2:]), array.fill_value, dtype=array.dtype)
    whole[:, : values.shape[1]] = values
    array[chains.start : chains.stop, first : first + length] = whole


def synced_checksum(file: Path) -> int:
    """Flush a chunk to the disk, and return its checksum."""
    with open(file, "rb+") as opened:
        os.fsync(opened.fileno())
        return _last_bytes(opened)


def checksum_of(array: Any, values: np.ndarray) -> int:
    """Return the checksum of a chunk that has only these draws."""
    import zarr
    from zarr.codecs import Crc32cCodec

    files: dict[str, Any] = {}
    store = zarr.storage.MemoryStore(files)
    alone = zarr.create_array(
        store,
        shape=array.chunks,
        chunks=array.chunks,
        dtype=array.dtype,
        fill_value=array.fill_value,
        compressors=[Crc32cCodec()],
        config={"write_empty_chunks": True},
    )
    alone[tuple(slice(n) for n in values.shape)] = values
    [chunk] = (buffer for name, buffer in files.items() if name != "zarr.json")
    return int.from_bytes(chunk.to_bytes()[-CHECKSUM_BYTES:], "little")


def chunk_file(path: Path, array: Any, chains: range, first: int) -> Path:
    """Return the file of the chunk of some chains that begins with the draw ``first``."""
    place = (chains.start // array.chunks[0], first // array.chunks[1], *[0] * (array.ndim - 2))
    return path / array.path / array.metadata.encode_chunk_key(place)


def check_chunks(
    path: Path,
    record: dict[str, Any],
    arrays: dict[str, dict[str, Any]],
    checkpoints: Checkpoints,
    checkpoint: dict[str, Any],
    read: bool,
) -> Checksums:
    """Check that the draws that a checkpoint counts are there, and return their files' checksums.

    With ``read`` each chunk is read, which also checks its values; ``checkpoint`` is empty if there
    is none.
    """
    chains = checkpoints.chains
    found: Checksums = {}
    known = checkpoint.get("checksums")  # None: an earlier version's
    for group, name, first, end in _counted(record, arrays, checkpoint.get("n_draws", 0)):
        array = arrays[group][name]
        file = chunk_file(path, array, chains, first)
        sums = found.setdefault(array.path, [])
        try:
            with open(file, "rb") as opened:
                sums.append(_last_bytes(opened))
            expected = sums[-1] if known is None else known[array.path][len(sums) - 1]
            if read or sums[-1] != expected:
                values = array[chains.start : chains.stop, first:end]
                if sums[-1] != expected and checksum_of(array, values) != expected:
                    raise ValueError("it has other draws")
        except Exception as error:
            reason = "the file is missing" if isinstance(error, FileNotFoundError) else error
            whose = f"chain {chains.start}" + (f" to {chains[-1]}" if len(chains) > 1 else "")
            raise ValueError(
                f"{path / group / name}: draws {first} to {end - 1} of {whose} are damaged "
                f"({file}: {reason}). They were written completely, so the disk or another "
                "program has changed them, or this is a copy of the store that was made while it "
                f"was written. {checkpoints.remedy}"
            ) from error
    return found


def _last_bytes(file: Any) -> int:
    file.seek(-CHECKSUM_BYTES, os.SEEK_END)
    return int.from_bytes(file.read(), "little")


def _counted(
    record: dict[str, Any], arrays: dict[str, dict[str, Any]], n_draws: int
) -> Iterator[tuple[str, str, int, int]]:
    """Yield the group, array, first draw and end of each chunk with valid draws."""
    size = record["chunk"]
    for group, named in arrays.items():
        count = _draws_in(record, group, n_draws)
        for name in named:
            for first in range(0, count, size):
                yield group, name, first, min(first + size, count)


def n_chunks(record: dict[str, Any], group: str, n_draws: int) -> int:
    """Return the number of a group's chunks with the first draws of a chain, tuning included."""
    return -(-_draws_in(record, group, n_draws) // record["chunk"])


def _draws_in(record: dict[str, Any], group: str, n_draws: int) -> int:
    tune = record["tune"]
    return min(n_draws, tune) if group.startswith("warmup_") else max(0, n_draws - tune)
