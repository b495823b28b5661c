"""The length of compiled calls: about half a second, so that Ctrl-C takes effect soon."""

import numpy as np

FIRST_CALL = 100
"""Updates in the first compiled call, after which their speed is known."""
SECONDS_PER_CALL = 0.5
"""A call is kept to about this long."""


class Pace:
    """Chooses the number of updates of a chain's next call from the time the last ones took.

    Parameters
    ----------
    longest : int
        Largest number of updates per call.

    Attributes
    ----------
    n_updates : int
        Updates of the next call.
    """

    def __init__(self, longest: int):
        self.longest = longest
        self.n_updates = min(longest, FIRST_CALL)
        self._lengths_run: set[int] = set()

    def took(self, n_updates: int, seconds: float) -> None:
        """Choose the next call's length from this one's time, unless it may include compilation."""
        if n_updates not in self._lengths_run:
            self._lengths_run.add(n_updates)  # it may have compiled: JAX does for each length
        elif seconds > SECONDS_PER_CALL or self.n_updates < self.longest:
            affordable = int(SECONDS_PER_CALL * n_updates / seconds)
            # A power of two, so that few lengths are ever compiled.
            affordable = 2 ** int(np.log2(max(affordable, 1)))
            self.n_updates = min(self.longest, affordable)
