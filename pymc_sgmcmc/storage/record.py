"""The record of a run in a store: its identity, numbers of draws and layout; its warm-up."""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from pymc_sgmcmc.adaptation.adapted_settings import Adapted
from pymc_sgmcmc.run.saved_state import load, save, to_plain
from pymc_sgmcmc.storage.metadata import refuse_foreign_names

_log = logging.getLogger("pymc.sgmcmc")

FORMAT = 4
"""Number of the format that this version writes and reads."""
FOLDER = ".sampler"
"""Folder of a store that contains everything except draws."""
ADVICE = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space",
    errno.EROFS: "Choose a path that can be written",
    errno.EACCES: "Choose a path that can be written",
}
"""Remedies for errors of the file system, by error number."""


def record_path(path: Path) -> Path:
    """Return the file of a store's record."""
    return path / FOLDER / "run.npz"


def is_run(path: Path) -> bool:
    """Return whether there is a run at a path, finished or not."""
    return os.path.exists(record_path(path))  # also False if nothing may be read


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a record, replacing any existing one."""
    save(record_path(path), record)


def read_record(path: Path, run_id: str | None = None) -> dict[str, Any]:
    """Read a store's record, and check that it is that of the run ``run_id``, if given.

    Raises FileNotFoundError for no run, ValueError for a damaged record, and RuntimeError for
    another run.
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
    """Return the file of a store that contains the choices of the warm-up."""
    return path / FOLDER / "adapted.npz"


def write_adapted(path: Path, adapted: Adapted) -> None:
    """Write what the warm-up of a new run has chosen."""
    save(adapted_path(path), to_plain(adapted, "of the warm-up"))


def read_adapted(path: Path) -> Adapted | None:
    """Return what the warm-up has chosen, or None if it cannot be read: it can be repeated."""
    try:
        plain = load(adapted_path(path))
        return Adapted(**{f.name: plain[f.name] for f in fields(Adapted) if f.name in plain})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        _log.warning(f"The warm-up is repeated, because its file cannot be read: {error}")
        return None


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Raise an error that names the store that cannot be written, the reason and the remedy."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        advice = ADVICE.get(error.errno or 0, "Correct the cause, or choose another path")
        after = ""
        if is_run(path):
            after = " Earlier draws can be read, and resume=True continues the run."
        message = f"The store {path} cannot be written: {reason}. {advice}.{after}"
        raise OSError(error.errno, message) from error
