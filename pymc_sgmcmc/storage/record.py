"""The record of a run in a store: its identity, numbers of draws and layout; its warm-up."""

import logging
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from pymc_sgmcmc.adaptation.adapted import Adapted
from pymc_sgmcmc.run.saved_state import load, save, to_plain
from pymc_sgmcmc.storage.metadata import refuse_foreign_names

_log = logging.getLogger("pymc.sgmcmc")

FORMAT = 2
"""Number of the format that this version writes and reads."""
FOLDER = ".sampler"
"""Folder of a store that has everything except draws."""


def record_path(path: Path) -> Path:
    """Return the file of a store's record."""
    return path / FOLDER / "run.npz"


def is_run(path: Path) -> bool:
    """Return whether there is a run at a path, finished or not."""
    return os.path.exists(record_path(path))  # False, too, where nothing may be read


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a record, replacing any existing one."""
    save(record_path(path), record)


def read_record(path: Path, run_id: str | None = None) -> dict[str, Any]:
    """Read a store's record, and check that it is that of the run ``run_id``, if given.

    No run is a FileNotFoundError, a damaged record or another format a ValueError, and another run
    a RuntimeError.
    """
    if not is_run(path):
        lost = path.is_dir() and any(path.iterdir())
        raise FileNotFoundError(f"There is no run in {path}." if not lost else not_a_run(path))
    try:
        record = load(record_path(path))
    except ValueError as error:
        raise ValueError(
            f"{error}. This file identifies the run, which cannot be resumed without it. "
            "Restore the file from a copy; or read the draws, xarray.open_datatree("
            f"zarr.storage.LocalStore({str(path)!r}), engine='zarr'); or start a new run, "
            f"ZarrStore({str(path)!r}, overwrite=True)."
        ) from error
    if record["format"] != FORMAT:
        raise ValueError(
            f"{path} has the format {record['format']}, but this version of pymc_sgmcmc "
            f"reads {FORMAT}. Use the version that wrote it, or another path."
        )
    refuse_foreign_names(path, record)
    if run_id is not None and record["run_id"] != run_id:
        raise run_replaced(path)
    return record


def run_replaced(path: Path) -> RuntimeError:
    """Return the error for a run that another one has replaced."""
    return RuntimeError(
        f"{path} no longer belongs to this run: another process has started a run there, "
        "or deleted it, and the draws with it. Give each run its own path."
    )


def not_a_run(path: Path) -> str:
    """Return the message about a folder that is not a store."""
    return (
        f"{path} exists but is not a run of this package, or its file "
        f"{record_path(path).relative_to(path)} is missing. Restore that file, or choose "
        "another path."
    )


def adapted_path(path: Path) -> Path:
    """Return the file of a store that has the choices of the warm-up."""
    return path / FOLDER / "adapted.npz"


def write_adapted(path: Path, adapted: Adapted) -> None:
    """Write what the warm-up of a new run has chosen."""
    save(adapted_path(path), to_plain(adapted, "of the warm-up"))


def read_adapted(path: Path) -> Adapted | None:
    """Return what the warm-up of a run has chosen, or None if its file is missing or damaged.

    A warm-up depends on the run's seed alone, so it can be repeated.
    """
    try:
        plain = load(adapted_path(path))
        return Adapted(**{f.name: plain[f.name] for f in fields(Adapted) if f.name in plain})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        _log.warning(f"The warm-up is repeated, because its file cannot be read: {error}")
        return None
