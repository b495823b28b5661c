"""The files of a store other than draws, listed in its record so that damage is detected.

This package reads zarr's metadata from the record; the files are for other readers, and are written
again when the run is resumed if they differ.
"""

import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from pymc_sgmcmc.storage.digests import digest_of

ROOT = "zarr.json"
"""Name of zarr's files of metadata."""
DRAW = "draw"
"""Name of the coordinate that grows, whose values 0, 1, ... need no digest."""


def recorded_files(folder: Path, groups: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the texts of a new store's metadata and digests of its other files, by path."""
    texts, digests = {}, {}
    numbers = tuple(f"{group}/{DRAW}/" for group in groups)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.name == ROOT:
            texts[name] = path.read_text()
        elif not name.startswith((".", *numbers)):
            digests[name] = digest_of(path.read_bytes())
    return texts, digests


def refuse_foreign_names(folder: Path, record: dict[str, Any]) -> None:
    """Raise an error for a record that names files which its store cannot have."""
    inside = folder.resolve()
    for name in [*record["metadata"], *record["digests"], *record["lengths"]]:
        own = name not in record["metadata"] or name.split("/")[-1] == ROOT
        if not own or not (folder / name).resolve().is_relative_to(inside):
            raise ValueError(
                f"{folder} is not a store of this package: its record names the file {name!r}, "
                "which no store has. Do not use it; choose another path."
            )


def edited(texts: dict[str, str], edit: Callable[[Any], None]) -> dict[str, str]:
    """Return metadata after a change of the root group that it describes, without any data."""
    import zarr
    from zarr.core.buffer import cpu

    files: dict[str, Any] = {
        name: cpu.Buffer.from_bytes(text.encode()) for name, text in texts.items()
    }
    store = zarr.storage.MemoryStore(files)
    edit(zarr.open_group(store, mode="r+", use_consolidated=False))
    consolidate(store)
    return {name: files[name].to_bytes().decode() for name in texts}


def lengthened(record: dict[str, Any], draws: int) -> dict[str, Any]:
    """Return the record of the same run with more draws, to which arrays are then enlarged."""
    grown = ("posterior", "sample_stats")

    def set_length(root: Any) -> None:
        for group in grown:
            for _, array in root[group].arrays() if group in root else ():
                names = array.metadata.dimension_names or ()
                if DRAW in names:
                    array.resize(
                        [draws if d == DRAW else n for d, n in zip(names, array.shape, strict=True)]
                    )

    lengths = {n: draws if n in grown else length for n, length in record["lengths"].items()}
    metadata = edited(record["metadata"], set_length)
    return record | {"draws": draws, "lengths": lengths, "metadata": metadata}


def consolidate(store: Any) -> None:
    """Gather all metadata in one file, so that opening the store lists no folders."""
    import zarr

    with warnings.catch_warnings():  # zarr warns of other readers, which do not need this file
        warnings.filterwarnings("ignore", module="zarr")
        zarr.consolidate_metadata(store)


def check_digests(folder: Path, record: dict[str, Any]) -> None:
    """Raise an error that names the file if coordinates or data are missing or damaged."""
    for name, digest in record["digests"].items():
        path = folder / name
        if not path.is_file() or digest_of(path.read_bytes()) != digest:
            raise ValueError(
                f"{path} is missing or damaged, so the run cannot be read completely or resumed. "
                "Restore it from a copy; or read only the draws, xarray.open_zarr("
                f"zarr.storage.LocalStore({str(folder)!r}), group='posterior'); or start a new "
                f"run, ZarrStore({str(folder)!r}, overwrite=True)."
            )


def repair_metadata(folder: Path, record: dict[str, Any]) -> None:
    """Rewrite metadata and draw numbers that differ from the record, for other readers."""
    for name, text in record["metadata"].items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != text.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, text)
    for group, length in record["lengths"].items():
        _repair_draw_numbers(open_root(folder, record, read_only=False)[group][DRAW], length)


def open_root(folder: Path, record: dict[str, Any], read_only: bool) -> Any:
    """Open a store's root group as its record describes it."""
    import zarr

    from pymc_sgmcmc.storage.recorded_store import RecordedStore

    store = RecordedStore(folder, record["metadata"], read_only=read_only)
    return zarr.open_group(store, mode="r" if read_only else "r+", use_consolidated=False)


def _repair_draw_numbers(array: Any, length: int) -> None:
    numbers = np.arange(length)
    try:
        whole = bool((array[:] == numbers).all())
    except Exception:  # any error that a codec raises for damaged bytes
        whole = False
    if not whole:
        array[:] = numbers


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text)
    os.replace(partial, path)
