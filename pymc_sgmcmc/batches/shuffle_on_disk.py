"""Write the rows of any source to disk once, in random order."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pymc_sgmcmc.batches.data_sources import Passage
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.temporary_folder import temporary_folder

LONGEST_NAME = 240
"""Largest length of a container's name in bytes; a file's name adds a suffix and may have 255."""


def shuffle_on_disk(
    data: StreamedData | Mapping[str | tuple[str, ...], Any] | Iterable,
    directory: str | os.PathLike,
    *,
    seed: int | np.random.Generator | None = None,
) -> dict[str, np.memmap]:
    """Write rows in uniformly random order, one ``.npy`` file per container.

    Use it for data that are sorted (by time or label) or have runs of similar rows. The data are
    read and written twice: each row goes to a random bucket, then each bucket, which fits into
    memory, is shuffled (Rao, 1961; Sandelius, 1962). This needs memory for about two windows and,
    while it runs, disk space for two copies of the data.

    Parameters
    ----------
    data : StreamedData, or an argument for it
        The rows; a bucket holds about half a window of them.
    directory : path
        The folder to write to, which is created if it does not exist.
    seed : int or numpy.random.Generator, optional
        Seed of the order.

    Returns
    -------
    dict of numpy.memmap
        By container, read-only; pass it as ``data=`` of a step.

    Raises
    ------
    ValueError
        If the name of a container cannot be that of a file.
    FileExistsError
        If one of the files exists already.

    Examples
    --------
    >>> import numpy as np, pymc_sgmcmc as sgm, tempfile
    >>> rows = {"x": np.arange(10), "y": np.arange(10) ** 2}
    >>> shuffled = sgm.shuffle_on_disk(rows, tempfile.mkdtemp(), seed=1)
    >>> bool(np.all(shuffled["y"] == shuffled["x"] ** 2)), np.sort(shuffled["x"]).tolist()
    (True, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    data = StreamedData.of(data)
    rng = np.random.default_rng(seed)
    directory = Path(directory)
    for name in data.names:
        _check_file_name(name)
    directory.mkdir(parents=True, exist_ok=True)
    paths = {name: directory / f"{name}.npy" for name in data.names}
    for path in paths.values():
        if path.exists():
            raise FileExistsError(f"{path} exists already: pass another directory, or delete it.")
    with temporary_folder(directory) as scratch:
        sizes = _deal(data, scratch, rng)
        files = {
            name: np.lib.format.open_memmap(
                path, "w+", data.formats[name].dtype, (sum(sizes), *data.formats[name].shape)
            )
            for name, path in paths.items()
        }
        start = 0
        for bucket, size in enumerate(sizes):
            order = rng.permutation(size)
            for name, file in files.items():
                rows = np.fromfile(_bucket(scratch, name, bucket), file.dtype)
                file[start : start + size] = rows.reshape(size, *file.shape[1:])[order]
                file.flush()
            start += size
    return {name: np.load(path, mmap_mode="r") for name, path in paths.items()}


def _check_file_name(name: str) -> None:
    if Path(f"{name}.npy").name != f"{name}.npy" or "\0" in name:
        reason = "it is a path"
    elif len(os.fsencode(name)) > LONGEST_NAME:
        reason = f"it has more than {LONGEST_NAME} bytes"
    else:
        return
    shown = name if len(name) <= 40 else f"{name[:40]}..."
    raise ValueError(
        f"The name of the container {shown!r} cannot be a file's name: {reason}. Rename it for "
        "this call; the arrays that are returned can be passed as data= under any name."
    )


def _bucket(scratch: Path, name: str, number: int) -> Path:
    return scratch / f"{name}.{number}"


def _deal(data: StreamedData, scratch: Path, rng: np.random.Generator) -> list[int]:
    """Append each row to the files of a random bucket; return the number of rows per bucket."""
    n_buckets = -(-2 * data.n_rows // data.window)
    sizes = np.zeros(n_buckets, dtype=np.int64)
    for name in data.names:
        for bucket in range(n_buckets):
            _bucket(scratch, name, bucket).touch()
    passage = Passage(data.sources)
    for start in range(0, data.n_rows, data.window):
        for piece in passage.pieces(start, min(start + data.window, data.n_rows)):
            bucket_of_row = rng.integers(n_buckets, size=len(next(iter(piece.values()))))
            order = np.argsort(bucket_of_row, kind="stable")
            counts = np.bincount(bucket_of_row, minlength=n_buckets)
            ends = np.cumsum(counts)
            filled = np.flatnonzero(counts).tolist()
            for name, rows in piece.items():
                data.formats[name].check(name, rows)
                dealt = rows[order].astype(data.formats[name].dtype, copy=False)
                for bucket in filled:
                    with open(_bucket(scratch, name, bucket), "ab") as file:
                        dealt[ends[bucket] - counts[bucket] : ends[bucket]].tofile(file)
            sizes += counts
    passage.finish()
    return sizes.tolist()
