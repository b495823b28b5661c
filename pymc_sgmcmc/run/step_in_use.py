"""A step is the state of one chain: it takes part in one run of `sample` at a time."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from pymc.step_methods.compound import flatten_steps

_in_use: WeakSet[Any] = WeakSet()


def refuse_step_in_use(step: Any) -> None:
    """Raise an error for a step of a run of `sample` that has not ended."""
    for one in flatten_steps(step):
        if one in _in_use:
            raise RuntimeError(
                f"This {type(one).__name__} is in use by a run of sgm.sample that has not ended, "
                "and a step holds the state of one chain. Give this run its own step: "
                "step=copy.deepcopy(step)."
            )


@contextmanager
def in_use(step: Any) -> Generator[None]:
    """Have other runs refuse a step until the block ends, in whichever way."""
    steps = flatten_steps(step)
    _in_use.update(steps)
    try:
        yield
    finally:
        _in_use.difference_update(steps)
