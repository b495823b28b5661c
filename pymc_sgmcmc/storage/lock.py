"""A lock of one process, on a file."""

import time
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SECONDS_FOR_LOCK = 15.0
"""How long a chain waits for the process of an earlier run to end."""


class Lock:
    """Keeps two processes from writing the same chains; falls when its process ends."""

    def __init__(self, path: Path):
        self.path = path
        self._file: Any = None

    def acquire(self) -> None:
        if fcntl is None:
            return
        self._file = open(self.path, "a")  # noqa: SIM115  held until `release`
        until = time.monotonic() + SECONDS_FOR_LOCK
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    self.release()
                    raise RuntimeError(
                        f"{self.path} is locked: another process is still writing these chains. "
                        "Wait for it, or end it."
                    ) from None
                time.sleep(0.05)

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
