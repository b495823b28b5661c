"""How long a call may take."""

import time


class TimeLimit:
    """Seconds from now on."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def has_passed(self) -> bool:
        return time.monotonic() >= self._end
