"""States of steps as plain values: dicts, lists, arrays, numbers and strings, nothing pickled."""

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

CLASS = "__class__"
TUPLE = "__tuple__"
DTYPE = "__dtype__"
ARRAY = "__array__"
SCALAR = "__scalar__"


def to_plain(value: Any, where: str) -> Any:
    """Turn a step's saved state into plain values, or raise an error that names the culprit."""
    if is_dataclass(value) and not isinstance(value, type):
        plain = {
            f.name: to_plain(getattr(value, f.name), f"{where}.{f.name}") for f in fields(value)
        }
        return {CLASS: type(value).__name__, **plain}
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
        plain = {name: to_plain(getattr(value, name), f"{where}.{name}") for name in value._fields}
        return {CLASS: type(value).__name__, **plain}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"The state {where} has the key {key!r}, which is not a string.")
        return {key: to_plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, tuple):
        return {TUPLE: [to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, list):
        return [to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, np.dtype):
        return {DTYPE: value.str}
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"The state {where} is a {type(value).__name__}, which cannot be stored without pickle: "
        "a run with this step cannot be resumed. Use another step, or no store."
    )


def from_plain(plain: Any, like: Any) -> Any:
    """Undo `to_plain`; ``like`` is the current state of the same step, for its classes."""
    if isinstance(plain, dict) and CLASS in plain:
        if type(like).__name__ != plain[CLASS]:
            raise ValueError(
                f"The stored state is a {plain[CLASS]}, but that of this step is a "
                f"{type(like).__name__}. Resume with the step and version that wrote it."
            )
        return type(like)(
            **{
                name: from_plain(item, getattr(like, name))
                for name, item in plain.items()
                if name != CLASS
            }
        )
    if isinstance(plain, dict) and TUPLE in plain:
        items = plain[TUPLE]
        return tuple(from_plain(i, _nth(like, k)) for k, i in enumerate(items))
    if isinstance(plain, dict) and DTYPE in plain:
        return np.dtype(plain[DTYPE])
    if isinstance(plain, dict):
        likes = like if isinstance(like, Mapping) else {}
        return {name: from_plain(item, likes.get(name)) for name, item in plain.items()}
    if isinstance(plain, list):
        return [from_plain(item, _nth(like, k)) for k, item in enumerate(plain)]
    return plain


def _nth(items: Any, k: int) -> Any:
    return items[k] if isinstance(items, list | tuple) and k < len(items) else None


def save(path: Path, plain: Any) -> None:
    """Write plain values to a file that exists either completely or not at all.

    It is a NumPy archive, whose checksums detect damage: one entry per array, and everything else
    as JSON.
    """
    arrays: list[np.ndarray] = []

    def strip(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            arrays.append(np.asarray(value))
            return {ARRAY: len(arrays) - 1, SCALAR: isinstance(value, np.generic)}
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items()}
        if isinstance(value, list):
            return [strip(item) for item in value]
        return value

    rest = np.array(json.dumps(strip(plain)))
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        np.savez(file, allow_pickle=False, rest=rest, **{f"a{k}": a for k, a in enumerate(arrays)})
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def load(path: Path) -> Any:
    """Read values written by `save`, or raise an error if the file is damaged."""
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as archive:
            entries = {name: archive[name] for name in archive.files}
        rest = json.loads(str(entries["rest"]))
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error

    def fill(value: Any) -> Any:
        if isinstance(value, dict) and ARRAY in value:
            array = entries[f"a{value[ARRAY]}"]
            return array[()] if value[SCALAR] else array
        if isinstance(value, dict):
            return {key: fill(item) for key, item in value.items()}
        if isinstance(value, list):
            return [fill(item) for item in value]
        return value

    return fill(rest)
