"""The files of a store other than draws, listed in its record so that damage is detected.

The record of a run has the text of each file of zarr's metadata, and a digest of each file of
coordinates and data. Metadata that is damaged, or was half changed when a process died, is written
again from the record.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pymc_sgmcmc.storage.digests import digest_of

ROOT = "zarr.json"
DRAW = "draw"
"""Name of the coordinate that grows: its values 0, 1, ... need no digest."""

type Edit = Callable[[str, dict[str, Any]], None]
"""Function that changes the metadata of the group or array at a path, in place."""


def recorded_files(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Texts of a new store's metadata and digests of its other files, by relative path."""
    texts, digests = {}, {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.name == ROOT:
            texts[name] = path.read_text()
        elif not name.startswith(".") and name.split("/")[1] != DRAW:
            digests[name] = digest_of(path.read_bytes())
    return texts, digests


def edited(texts: dict[str, str], edit: Edit) -> dict[str, str]:
    """Apply a change to the metadata of each group and array, in its own file and in the root's."""
    changed = {}
    for name, text in texts.items():
        node = json.loads(text)
        if name == ROOT:
            for path, known in node["consolidated_metadata"]["metadata"].items():
                edit(path, known)
        else:
            edit(name.removesuffix(f"/{ROOT}"), node)
        changed[name] = json.dumps(node, indent=2)
    return changed


def repair_metadata(folder: Path, record: dict[str, Any]) -> None:
    """Rewrite metadata that differs from the record.

    Raises
    ------
    ValueError
        If a coordinate or data is missing or damaged, naming the file.
    """
    for name, text in record["metadata"].items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != text.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, text)
    for name, digest in record["digests"].items():
        path = folder / name
        if not path.is_file() or digest_of(path.read_bytes()) != digest:
            raise ValueError(
                f"{path} is missing or damaged, so the run cannot be read completely or resumed. "
                "Restore it from a copy; or read only the draws, xarray.open_zarr("
                f"{str(folder)!r}, group='posterior'); or start a new run, "
                f"ZarrStore({str(folder)!r}, overwrite=True)."
            )
    for group, length in record["lengths"].items():
        _repair_draw_numbers(folder, f"{group}/{DRAW}", length)


def _repair_draw_numbers(folder: Path, name: str, length: int) -> None:
    import zarr

    array: Any = zarr.open_array(folder / name, mode="r+")
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
