"""Errors of the file system, explained to the user."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pymc_sgmcmc.storage.record import is_run

ADVICE = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space",
    errno.EROFS: "Choose a path that can be written",
    errno.EACCES: "Choose a path that can be written",
}
"""What the user can do about errors of the file system, by their numbers."""


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Name the store that cannot be written, the reason and the remedy."""
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
