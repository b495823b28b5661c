"""What is needed next, fetched by a thread while something else is in use."""

import os
import sys
from collections.abc import Callable
from functools import cache
from threading import Thread
from weakref import WeakSet

_reading: WeakSet[Thread] = WeakSet()


def _wait_for_readers() -> None:
    # A lock that a reader holds during a fork (of HDF5, for one) stays locked in the child.
    for thread in list(_reading):
        thread.join()


@cache
def _wait_at_fork(beside_hdf5: bool) -> None:
    """Have forks wait for readers, once more when h5py has come.

    Hooks run in the reverse order of their registration, and h5py's own takes the lock that a
    reader may be waiting for: ours must be the later one.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_wait_for_readers)


class ReadAhead[T]:
    """A function's result, computed by a thread of its own that ends with it."""

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
        """Wait for it; what it raised is raised here."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result
