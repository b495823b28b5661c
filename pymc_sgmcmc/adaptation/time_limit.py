"""How long a call may take, and how long it has taken."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pymc.exceptions import SamplingError


class TimeLimit:
    """Seconds from now on.

    Parameters
    ----------
    seconds : float

    Examples
    --------
    >>> from pymc_sgmcmc.adaptation.time_limit import TimeLimit
    >>> TimeLimit(60.0).has_passed
    False
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def has_passed(self) -> bool:
        return time.monotonic() >= self._end


_of_warm_ups: ContextVar[TimeLimit | None] = ContextVar("time limit", default=None)


@contextmanager
def warm_up_within(limit: TimeLimit | None) -> Iterator[None]:
    """Warm-ups in this block raise an error when the time has passed."""
    before = _of_warm_ups.set(limit)
    try:
        yield
    finally:
        _of_warm_ups.reset(before)


def check_time(stage: str, passes: float) -> None:
    """Raise an error if the time for a warm-up has passed, naming its stage.

    Raises
    ------
    pymc.exceptions.SamplingError
    """
    limit = _of_warm_ups.get()
    if limit is not None and limit.has_passed:
        raise SamplingError(
            f"max_seconds={limit.seconds:g} have passed in the warm-up, at its stage '{stage}' and "
            f"after {passes:.3g} passes over the data, so there are no draws. Pass a larger "
            "max_seconds, or warm up without a limit, step = sgm.MSGNHT_S(), and pass it: "
            "sgm.sample(step=step, max_seconds=...)."
        )
