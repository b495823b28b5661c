"""A folder that lasts while a process works; if that is killed, the next one deletes it."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pymc_sgmcmc.file_lock import Lock, delete_abandoned, locked_folder

PREFIX = "pymc_sgmcmc_"
OWNER = "owner.lock"


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Create a folder for a ``with`` block, and delete those left behind by killed processes."""
    parent = Path(tempfile.gettempdir() if parent is None else parent)
    delete_abandoned(parent.glob(f"{PREFIX}*"), OWNER)
    folder = parent / f"{PREFIX}{uuid.uuid4().hex}"
    lock = Lock(folder / OWNER, "this folder")
    try:
        try:
            locked_folder(folder, lock, mode=0o700)
        except OSError:  # a file system without locks, so no other process deletes it
            if not folder.is_dir():
                raise
        yield folder
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)
