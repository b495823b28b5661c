"""numba's cache on disk, where there is a place for one."""

from collections.abc import Callable

from numba import njit


def cached_njit(**options) -> Callable:
    """`numba.njit` that keeps what it compiled on disk.

    Where nothing can be written (a read-only home and installation, no ``NUMBA_CACHE_DIR``) it
    compiles in each process.
    """

    def decorate(function: Callable) -> Callable:
        try:
            return njit(**options, cache=True)(function)
        except RuntimeError:  # numba: "cannot cache function: no locator available"
            return njit(**options)(function)

    return decorate
