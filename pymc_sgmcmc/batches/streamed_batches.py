"""Batches of streamed data: blocks of shuffled rows, read ahead by a thread."""

from functools import partial
from typing import Any

import numpy as np

from pymc_sgmcmc.batches.batch_stream import BatchStream, joined
from pymc_sgmcmc.batches.read_ahead import ReadAhead
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.batches.windows import Check, OrderCheck, Window, shuffled_windows


class StreamedBatches(BatchStream):
    """A chain's stream of batches of data that stays on disk.

    The state of ``rng`` determines where the stream begins, and ``check`` refuses invalid rows that
    were just read.
    """

    def __init__(
        self,
        data: StreamedData,
        batch_size: int,
        rng: np.random.Generator,
        replacement: bool = False,
        check: Check = lambda rows: None,
    ):
        if batch_size > data.window:
            raise ValueError(
                f"batch_size={batch_size} is larger than the shuffle window of {data.window} rows: "
                "pass StreamedData(..., window=...) with room for many batches."
            )
        self.data, self.batch_size, self.replacement = data, batch_size, replacement
        self._check = check
        self.longest = data.window // batch_size
        """Largest number of batches per call, so that a block is no larger than a window."""
        self._bit_generator = type(rng.bit_generator)
        self._warned = False
        self._begin_at(dict(rng.bit_generator.state), 0)

    def _begin_at(self, epoch_state: dict[str, Any], position: int) -> None:
        """Continue from a position in the epoch that began with this state of the generator."""
        rng = np.random.Generator(self._bit_generator())
        rng.bit_generator.state = epoch_state
        self._epoch, self._epoch_state, self._position = 0, epoch_state, position
        self._order = OrderCheck()
        self._windows = shuffled_windows(
            self.data, rng, position, self.replacement, self._order, self._check
        )
        self._window: Window | None = None
        self._ahead: ReadAhead[Window] | None = None

    def take(self, n_batches: int) -> dict[str, np.ndarray]:
        """Return rows of the next batches by container: batch after batch, (n_batches * n, ...).

        They may be part of the window itself, so they must not be modified.
        """
        wanted = n_batches * self.batch_size
        parts: list[dict[str, np.ndarray]] = []
        while wanted > 0:
            window = self._window_of_next_row()
            begin = self._position - window.start
            count = min(wanted, window.n_rows - begin)
            parts.append({name: a[begin : begin + count] for name, a in window.rows.items()})
            self._position += count
            wanted -= count
        return joined(parts)

    def _window_of_next_row(self) -> Window:
        """Return the window with the next row, while a thread reads the window after it."""
        window = self._window
        # A stream that is only tried out reads one window and leaves no thread behind.
        go_on = window is not None
        while window is None or self._position == window.start + window.n_rows:
            try:
                window = next(self._windows) if self._ahead is None else self._ahead.result()
            except BaseException:
                self._begin_at(
                    self._epoch_state, self._position
                )  # so that the caller can try again
                raise
            self._window, self._ahead = window, None
            if window.epoch != self._epoch:
                self._epoch, self._epoch_state = window.epoch, window.epoch_state
                self._position = 0
        if go_on and self._ahead is None:
            self._ahead = ReadAhead(partial(next, self._windows))
        return window

    def infinite(self) -> list[str]:
        rows = {} if self._window is None else self._window.rows
        return [name for name, a in rows.items() if a.dtype.kind == "f" and np.isinf(a).any()]

    def order_warning(self) -> str | None:
        warning = None if self._warned else self._order.warning
        self._warned |= warning is not None
        return warning

    @property
    def state(self) -> dict[str, Any]:
        """Plain values from which the stream continues identically; rows read ahead do not count.

        An iterable must yield the same rows in the same order again.
        """
        return {"rng": self._epoch_state, "position": self._position}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._begin_at(state["rng"], int(state["position"]))
