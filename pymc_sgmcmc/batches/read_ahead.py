"""A thread that fetches what is needed next while other data are in use."""

import atexit
import os
import sys
from collections.abc import Callable
from functools import cache
from threading import Thread
from weakref import WeakSet

_reading: WeakSet[Thread] = WeakSet()

LONGEST_WAIT_AT_EXIT = 10.0
"""Longest time in seconds that Python waits for a reader at exit, because a reader may wait for a
network that no longer responds."""


def _wait_for_readers() -> None:
    # A lock that a reader holds during a fork (for example HDF5's) stays locked in the child.
    for thread in list(_reading):
        thread.join()


@atexit.register
def _wait_at_exit() -> None:
    # Python ends a daemon thread when it next asks for the interpreter, and if C++ code asks, the
    # process aborts.
    for thread in list(_reading):
        thread.join(LONGEST_WAIT_AT_EXIT)


@cache
def _wait_at_fork(beside_hdf5: bool) -> None:
    """Make forks wait for readers; registered again once h5py has been imported.

    Hooks run in reverse order of registration, and h5py's own hook takes the lock that a reader may
    be waiting for, so ours must be registered later.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_wait_for_readers)


class ReadAhead[T]:
    """The result of a function that is computed in a separate thread."""

    def __init__(self, function: Callable[[], T]):
        self._result: T | None = None
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, args=(function,), daemon=True, name="read-ahead")
        _wait_at_fork(beside_hdf5="h5py" in sys.modules)
        _reading.add(self._thread)
        self._thread.start()

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._result = function()
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        """Wait for the result; an exception in the thread is raised here."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result
