"""A ``with`` block in which calls of `pm.sample`, such as those of Bambi, run another function."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from threading import Lock
from typing import Any

import pymc as pm

from pymc_sgmcmc.run.unknown_arguments import of_pymc_sample

_replacement: ContextVar[Callable | None] = ContextVar("replacement of pm.sample", default=None)
"""The function to call instead; None outside all blocks of this thread."""
_blocks = 0
_counting = Lock()


@contextmanager
def pymc_sample_replaced(by: Callable) -> Iterator[None]:
    """Call another function wherever this thread calls `pm.sample` without a step."""
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
        # If another library has wrapped it in the meantime, it stays, and only passes calls on.
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


def is_bambi(model: Any) -> bool:
    """Whether this is a Bambi model; Bambi need not be installed."""
    return type(model).__module__.split(".")[0] == "bambi" and hasattr(model, "fit")


def fitting_bambi[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Make `sample`, given a Bambi model, run inside that model's `fit`."""
    known = list(signature(function).parameters)

    @wraps(function)
    def fitting(*args: P.args, **kwargs: P.kwargs) -> R:
        model: Any = kwargs.get("model")
        if not is_bambi(model):
            return function(*args, **kwargs)
        given = {"draws": args[0] if args else None, **kwargs}
        del given["model"]

        def of_fit(**passed: Any) -> R:
            kept, _ = of_pymc_sample(passed, given, known)
            return function(**kept, **given)  # type: ignore[arg-type, call-arg]

        with pymc_sample_replaced(of_fit):
            return model.fit()

    return fitting
