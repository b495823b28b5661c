"""Which names and labels a store can hold: those that folders can have and zarr reads back."""

import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray import Dataset

LONGEST_NAME = 255
"""Largest number of bytes of a folder's name on the usual file systems."""
TAKEN = ("", ".", "..", "zarr.json")
"""Names of folders and files that the file system or zarr itself uses."""
SAFE_KINDS = "bif"
"""Kinds of labels for which zarr has types, and which are not test-written because there may be
millions of them."""


def refuse_unstorable(names: Iterable[Any], labels: Mapping[Any, np.ndarray | None]) -> None:
    """Raise an error for names, or labels of dims, that a store cannot hold, before a run begins.

    The labels of a dim are None if they are its numbers.
    """
    for name in names:
        _refuse_name(str(name))
    for dim, values in labels.items():
        if values is not None and values.dtype.kind not in SAFE_KINDS:
            _refuse_labels(str(dim), values)


def refuse_impossible_path(path: Path) -> None:
    """Raise an error for a path that no file system can have."""
    if "\0" in str(path):
        raise ValueError(f"The path {str(path)!r} has a null character. Choose another path.")
    for name in path.parts:
        if (length := len(os.fsencode(name))) > LONGEST_NAME:
            raise ValueError(
                f"The name {name[:40]!r}... in the path of the store has {length} bytes, and the "
                f"name of a folder has at most {LONGEST_NAME}. Choose a shorter one."
            )


def _refuse_name(name: str) -> None:
    reason = None
    if name in TAKEN:
        reason = "it has a special meaning there"
    elif "\\" in name or "\0" in name:
        reason = "a folder's name has no backslash and no null character"
    elif (length := len(os.fsencode(name))) > LONGEST_NAME:
        reason = f"it has {length} bytes, and a folder's name has at most {LONGEST_NAME}"
    if reason is not None:
        shown = name if len(name) <= 40 else f"{name[:40]}..."
        raise ValueError(
            f"A store cannot hold a variable or dim of the name {shown!r}: {reason}. Rename it, or "
            "leave out trace=."
        )


def _refuse_labels(dim: str, labels: np.ndarray) -> None:
    """Raise an error for labels that do not come back unchanged from a store in memory."""
    from zarr.storage import MemoryStore

    form, trial = Dataset(coords={dim: labels}), MemoryStore()
    cause = None
    try:
        with warnings.catch_warnings():  # strings have no final place in zarr's format yet
            warnings.filterwarnings("ignore", module="zarr")
            form.to_zarr(trial, consolidated=False)
            same = xr.open_zarr(trial, consolidated=False).load().equals(form)
    except Exception as error:  # whatever xarray, zarr or pandas make of these labels
        same, cause = False, error
    if not same:
        raise ValueError(
            f"A store cannot hold the labels of the dim '{dim}', such as {labels[0]!r}. Make "
            "strings of them, [str(label) for label in labels], or leave out trace=."
        ) from cause
