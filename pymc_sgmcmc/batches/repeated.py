"""Batches that each serve several consecutive updates."""

from typing import Any

import numpy as np

from pymc_sgmcmc.batches.batch_stream import BatchStream, TakenRows, joined


class RepeatedBatches(BatchStream):
    """A chain's stream of batches, each repeated for several updates; only it uses ``batches``."""

    def __init__(self, batches: BatchStream, times: int):
        self.batches, self.times = batches, times
        self.batch_size, self.by_number = batches.batch_size, batches.by_number
        self.longest = batches.longest
        self._current: TakenRows | None = None
        self._used = times
        """Number of updates that the current batch has served."""
        self._before: dict[str, Any] = {}
        """State of the stream before the current batch."""

    def take(self, n_batches: int) -> TakenRows:
        parts: list[TakenRows] = []
        if self._current is not None and (again := min(self.times - self._used, n_batches)):
            parts.append(self._repeated(self._current, again))
            self._used += again
            n_batches -= again
        if n_batches:
            n_new = -(-n_batches // self.times)
            if n_new > 1:
                parts.append(self._repeated(self.batches.take(n_new - 1), self.times))
            self._before = self.batches.state
            self._current = self.batches.take(1)
            self._used = n_batches - (n_new - 1) * self.times
            parts.append(self._repeated(self._current, self._used))
        return joined(parts)

    def order_warning(self) -> str | None:
        return self.batches.order_warning()

    def infinite(self) -> list[str]:
        return self.batches.infinite()

    def _repeated(self, rows: TakenRows, times: int) -> TakenRows:
        if isinstance(rows, np.ndarray):
            return np.repeat(rows, times, axis=0)
        n = self.batch_size
        batches = {name: a.reshape(-1, n, *a.shape[1:]) for name, a in rows.items()}
        repeated = {name: np.repeat(a, times, axis=0) for name, a in batches.items()}
        return {name: a.reshape(-1, *a.shape[2:]) for name, a in repeated.items()}

    @property
    def state(self) -> dict[str, Any]:
        if self._used == self.times:
            return {"batches": self.batches.state, "used": 0}
        return {"batches": self._before, "used": self._used}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self.batches.state = state["batches"]
        self._before, self._current, self._used = state["batches"], None, self.times
        if state["used"]:
            self._current, self._used = self.batches.take(1), int(state["used"])
