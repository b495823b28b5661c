"""A line on the screen with the stage of a warm-up and its passes over the data."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_log = logging.getLogger("pymc.sgmcmc")

REFRESH_SECONDS = 0.1
SECONDS_OF_SILENCE = 30.0
"""Where no line can be drawn, the log has one so often."""
_shown: ContextVar[bool] = ContextVar("shown", default=True)


@contextmanager
def progress_shown(shown: bool) -> Iterator[None]:
    """Show the progress of warm-ups in this block, or do not."""
    before = _shown.set(shown)
    try:
        yield
    finally:
        _shown.reset(before)


class WarmUpProgress:
    """Shows one line while a warm-up runs, which then disappears.

    Where the output is not a terminal or a notebook, a long warm-up logs a line now and then. There
    is no thread: the line is drawn when the warm-up reports.

    Examples
    --------
    >>> from pymc_sgmcmc.adaptation.progress import WarmUpProgress, progress_shown
    >>> with progress_shown(False), WarmUpProgress() as progress:
    ...     progress.report("window 1", passes=3.5)
    """

    def __init__(self):
        columns = [
            SpinnerColumn(),
            TextColumn("Warm-up: {task.description}"),
            TextColumn("{task.fields[passes]:.3g} passes over the data"),
            TimeElapsedColumn(),
        ]
        self._bar = Progress(*columns, transient=True, auto_refresh=False, disable=not _shown.get())
        self._last = 0.0
        self._began = self._logged = time.monotonic()

    def __enter__(self) -> "WarmUpProgress":
        self._began = self._logged = time.monotonic()
        self._bar.start()
        self._task = self._bar.add_task("start", passes=0.0, total=None)
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def report(self, stage: str, passes: float) -> None:
        """Show the stage, and the passes over the data made so far."""
        now = time.monotonic()
        console = self._bar.console
        drawn = not self._bar.disable and (console.is_terminal or console.is_jupyter)
        if not drawn and now - self._logged > SECONDS_OF_SILENCE:
            self._logged = now
            _log.info(
                f"Warm-up: {stage}, {passes:.3g} passes over the data, {now - self._began:.0f} s "
                "so far."
            )
        if now - self._last > REFRESH_SECONDS:
            self._last = now
            self._bar.update(self._task, description=stage, passes=passes)
            self._bar.refresh()
