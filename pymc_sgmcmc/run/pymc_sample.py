"""Another function where libraries call `pm.sample`, inside a ``with`` block of one thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import Lock
from typing import Any

import pymc as pm

_replacement: ContextVar[Callable | None] = ContextVar("replacement of pm.sample", default=None)
"""None outside of all blocks of this thread."""
_blocks = 0
_counting = Lock()


@contextmanager
def pymc_sample_replaced(by: Callable) -> Iterator[None]:
    """Call another function wherever this thread calls `pm.sample` without a step.

    Parameters
    ----------
    by : callable
        It takes what `pm.sample` takes, by name.
    """
    token = _replacement.set(by)
    _begin()
    try:
        yield
    finally:
        _end()
        _replacement.reset(token)


def _begin() -> None:
    global _blocks
    with _counting:
        _blocks += 1
        if _blocks == 1:
            pm.sample = _choosing(pm.sample)


def _end() -> None:
    global _blocks
    with _counting:
        _blocks -= 1
        # Where another library has wrapped it meanwhile, it stays, and only passes calls on.
        if _blocks == 0 and hasattr(pm.sample, "replaced"):
            pm.sample = pm.sample.replaced


def _choosing(pymc_sample: Callable) -> Callable:
    """Return a function that calls the replacement inside a block, and `pm.sample` elsewhere."""

    @wraps(pymc_sample)
    def choosing(*args: Any, **kwargs: Any) -> Any:
        replacement = _replacement.get()
        if replacement is None or kwargs.get("step") is not None:
            return pymc_sample(*args, **kwargs)
        if args:
            (kwargs["draws"],) = args
        return replacement(**kwargs)

    choosing.replaced = pymc_sample  # type: ignore[attr-defined]
    return choosing
