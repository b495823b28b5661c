"""A folder for the time that a process works: one that was killed leaves it to the next process."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pymc_sgmcmc.lock import Lock, delete_abandoned, locked_folder

PREFIX = "pymc_sgmcmc_"
OWNER = "owner.lock"


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for a ``with`` block, and delete those that killed processes have left."""
    parent = Path(tempfile.gettempdir() if parent is None else parent)
    delete_abandoned(parent.glob(f"{PREFIX}*"), OWNER)
    folder = parent / f"{PREFIX}{uuid.uuid4().hex}"
    lock = Lock(folder / OWNER, "this folder")
    try:
        try:
            locked_folder(folder, lock, mode=0o700)
        except OSError:  # a file system without locks, where no other process deletes it either
            if not folder.is_dir():
                raise
        yield folder
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)
