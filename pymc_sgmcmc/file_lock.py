"""A file lock held by one process."""

import errno
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCKS_HOLD = fcntl is not None
"""Whether this system has such locks; if not, every lock appears to be free."""

SECONDS_FOR_LOCK = 15.0
"""Seconds to wait for the process of an earlier run to end."""


class Lock:
    """Keeps two processes from writing the same chains; released when its process ends.

    Forked processes also hold it, until they end or this one releases it; ``what`` describes what
    is locked.
    """

    def __init__(self, path: Path, what: str):
        self.path, self.what = path, what
        self._file: Any = None
        self._process: int | None = None

    def acquire(self, seconds: float | None = None) -> None:
        """Wait for the lock, `SECONDS_FOR_LOCK` by default, then raise an error."""
        if not LOCKS_HOLD:
            return
        until = time.monotonic() + (SECONDS_FOR_LOCK if seconds is None else seconds)
        while True:
            file = self._opened()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                if time.monotonic() > until:
                    raise RuntimeError(
                        f"{self.path} is locked: another process is still writing {self.what}. "
                        "Wait for that process, or end it."
                    ) from None
                time.sleep(0.05)
                continue
            if self._is_there(file):
                self._file, self._process = file, os.getpid()
                return
            file.close()  # the file was deleted in the meantime: open the current one

    @property
    def is_held(self) -> bool:
        """Whether the locked file is still the one at the path: its folder was not deleted."""
        return not LOCKS_HOLD or (self._file is not None and self._is_there(self._file))

    def _opened(self) -> Any:
        """Open the file; an existing one is opened read-only where writing is not possible."""
        try:
            return open(self.path, "a")  # held until `release`
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise
            return open(self.path)

    def _is_there(self, file: Any) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock."""
        if self._file is not None:
            if self._process == os.getpid():  # forked processes have the file open too
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
            self._file = None

    def __getstate__(self):
        return self.__dict__ | {"_file": None, "_process": None}


def locked_folder(folder: Path, lock: Lock, mode: int = 0o777) -> None:
    """Create a folder that contains a lock, and acquire the lock."""
    while True:
        folder.mkdir(mode, parents=True, exist_ok=True)
        lock.path.parent.mkdir(exist_ok=True)
        try:
            lock.acquire()
            return
        except FileNotFoundError:  # another process has just deleted the folder, not yet locked
            continue


def delete_abandoned(folders: Iterable[Path], lock_name: str | Path) -> None:
    """Delete the folders whose lock no process holds: the process that made them has died."""
    for folder in folders if LOCKS_HOLD else ():
        lock = Lock(folder / lock_name, "this folder")
        with suppress(OSError, RuntimeError):  # owned by another user, in use, or just finished
            if lock.path.exists():
                lock.acquire(seconds=0.0)
                shutil.rmtree(folder, ignore_errors=True)
                lock.release()
