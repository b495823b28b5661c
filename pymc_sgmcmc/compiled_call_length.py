"""The length of compiled calls, about half a second so that Ctrl-C takes effect soon."""

import numpy as np

FIRST_CALL = 100
"""Number of updates in the first compiled call, after which their speed is known."""
SECONDS_PER_CALL = 0.5
"""Target duration of a compiled call in seconds, unless its fixed cost would then be too large a
share."""
FIXED_SHARE, LONG_CALL = 0.1, 1.5
"""Share of a call's time to which its fixed cost is limited, in calls of up to ``LONG_CALL``
seconds: a call copies the state, which may have many millions of elements."""
LARGEST_FIXED_SHARE = 0.25
"""Share of a call's time to which its fixed cost is limited in longer calls."""
LEAST_SHARE = 1 / 3
"""Smallest share of a call's time attributed to its updates, so that a rough estimate of the fixed
cost on a busy machine does not make calls long."""


def seconds_of_updates(fixed: float, target: float) -> float:
    """Return how many seconds the updates of a call may take, in addition to its fixed cost."""
    long = min(fixed / FIXED_SHARE, max(LONG_CALL, fixed / LARGEST_FIXED_SHARE))
    return max(target, long) - fixed


def seconds_per_update(seconds: float, n_updates: int, fixed: float) -> float:
    """Return the seconds per update of a call, without the call's fixed cost."""
    return max(seconds - fixed, LEAST_SHARE * seconds) / n_updates


class CallLength:
    """Chooses ``n_updates`` of a chain's next call from the durations of the previous ones."""

    def __init__(self, longest: int):
        self.longest = longest
        self.n_updates = min(longest, FIRST_CALL)
        self._lengths_run: set[int] = set()
        self._seconds: dict[int, float] = {}

    def took(self, n_updates: int, seconds: float) -> None:
        """Choose the next call's length from this one's time, unless it may include compilation."""
        if n_updates not in self._lengths_run:
            self._lengths_run.add(n_updates)  # it may have compiled: JAX does for each length
            return
        self._seconds[n_updates] = seconds
        if seconds <= SECONDS_PER_CALL and self.n_updates >= self.longest:
            return
        fixed = self._fixed_cost()
        affordable = seconds_of_updates(fixed, SECONDS_PER_CALL)
        affordable /= seconds_per_update(seconds, n_updates, fixed)
        # A power of two, so that few lengths are ever compiled.
        self.n_updates = min(self.longest, 2 ** int(np.log2(max(affordable, 1))))

    def _fixed_cost(self) -> float:
        """Estimate the seconds of a call without updates, from the shortest and longest call."""
        short, long = min(self._seconds), max(self._seconds)
        if short == long:
            return 0.0
        per_update = (self._seconds[long] - self._seconds[short]) / (long - short)
        return float(np.clip(self._seconds[short] - short * per_update, 0, self._seconds[short]))
