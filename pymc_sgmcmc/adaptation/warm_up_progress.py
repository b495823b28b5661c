"""A line on the screen with a warm-up's stage and passes over the data, and its time limit."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from pymc.exceptions import SamplingError
from rich import get_console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_log = logging.getLogger("pymc.sgmcmc")

REFRESH_SECONDS = 0.1
"""Seconds between two drawings of the line."""
SECONDS_OF_SILENCE = 30.0
"""Seconds between two messages in the log, if no line can be drawn."""


class TimeLimit:
    """A limit on the seconds that a call may take, counted from its construction."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def has_passed(self) -> bool:
        return time.monotonic() >= self._end


_options: ContextVar[tuple[bool, TimeLimit | None]] = ContextVar("warm-ups", default=(True, None))
"""Whether the progress of warm-ups is shown, and how long they may take."""


@contextmanager
def warm_ups(shown: bool, limit: TimeLimit | None = None) -> Iterator[None]:
    """Set whether warm-ups in this block show their progress, and how long they may take."""
    before = _options.set((shown, limit))
    try:
        yield
    finally:
        _options.reset(before)


class WarmUpProgress:
    """Shows one line while a warm-up runs, drawn when it reports; without a terminal it logs."""

    def __init__(self):
        columns = [
            SpinnerColumn(),
            TextColumn("Warm-up: {task.description}"),
            TextColumn("{task.fields[passes]:.3g} passes over the data"),
            TimeElapsedColumn(),
        ]
        shown, self._limit = _options.get()
        console = get_console()
        self._drawn = shown and (console.is_interactive or console.is_jupyter)
        disable = not self._drawn
        self._bar = Progress(*columns, transient=True, auto_refresh=False, disable=disable)
        self._last = 0.0
        self._began = self._logged = time.monotonic()

    def __enter__(self) -> "WarmUpProgress":
        self._began = self._logged = time.monotonic()
        self._bar.start()
        self._task = self._bar.add_task("start", passes=0.0, total=None)
        return self

    def __exit__(self, *_) -> None:
        if self._drawn:  # elsewhere rich before 14.3 would leave an empty line
            self._bar.stop()

    def report(self, stage: str, passes: float) -> None:
        """Show the stage, and the passes over the data made so far, if there is time left.

        The line is drawn again after `REFRESH_SECONDS`.
        """
        limit = self._limit
        if limit is not None and limit.has_passed:
            raise SamplingError(
                f"max_seconds={limit.seconds:g} have passed in the warm-up, at its stage "
                f"'{stage}' and after {passes:.3g} passes over the data, so there are no draws. "
                "Pass a larger max_seconds, or warm up without a limit, step = sgm.MSGNHT_S(), and "
                "pass it: sgm.sample(step=step, max_seconds=...)."
            )
        now = time.monotonic()
        if not self._drawn and now - self._logged > SECONDS_OF_SILENCE:
            self._logged = now
            _log.info(
                f"Warm-up: {stage}, {passes:.3g} passes over the data, {now - self._began:.0f} s "
                "so far."
            )
        if now - self._last > REFRESH_SECONDS:
            self._last = now
            self._bar.update(self._task, description=stage, passes=passes)
            self._bar.refresh()

    def report_at_once(self, stage: str, passes: float) -> None:
        """Show the stage and the passes, regardless of when the line was last drawn."""
        self._last = -np.inf
        self.report(stage, passes)
