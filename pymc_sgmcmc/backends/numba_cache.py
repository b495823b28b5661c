"""numba's cache on disk, if a directory for it can be written."""

from collections.abc import Callable

from numba import njit


def cached_njit(**options) -> Callable:
    """Return `numba.njit` with a cache of compiled functions on disk.

    If no directory can be written (home and installation are read-only, and ``NUMBA_CACHE_DIR`` is
    not set), each process compiles them again.
    """

    def decorate(function: Callable) -> Callable:
        try:
            return njit(**options, cache=True)(function)
        except RuntimeError:  # numba: "cannot cache function: no locator available"
            return njit(**options)(function)

    return decorate
