"""Less work for Python while graphs are built and compiled."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, RLock

import pytensor

THRESHOLDS = (50_000, 20, 100)
"""Thresholds of Python's garbage collector: with its own, (700, 10, 10), it repeatedly searches
millions of graph nodes and pieces of LLVM code, all of them in use, which takes a seventh of the
compilation time."""

_lock = Lock()
compile_lock = RLock()
"""Lock for building or compiling graphs and for reading PyTensor's configuration, because PyTensor
changes its configuration while it compiles, and two threads at once would leave it changed."""
# A process forked while another thread holds a lock would wait for it forever.
os.register_at_fork(
    before=compile_lock.acquire,
    after_in_parent=compile_lock.release,
    after_in_child=compile_lock.release,
)
_users = 0
_thresholds_before = gc.get_threshold()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage less often, in all threads, until the last one has left."""
    global _users, _thresholds_before
    with _lock:
        _users += 1
        if _users == 1:
            _thresholds_before = gc.get_threshold()
            if 0 < _thresholds_before[0] < THRESHOLDS[0]:  # 0: never
                gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                gc.set_threshold(*_thresholds_before)


@contextmanager
def quick_graphs() -> Iterator[None]:
    """Build graphs without recording the line that made each node, because none is the user's."""
    with compile_lock, rare_collections(), pytensor.config.change_flags(traceback__limit=0):
        yield


@contextmanager
def without_code() -> Iterator[None]:
    """Make functions without generating C code, which takes longer than one or two calls."""
    with compile_lock, pytensor.config.change_flags(cxx=""):
        yield
