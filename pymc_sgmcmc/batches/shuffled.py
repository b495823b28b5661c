"""Batches: which rows of the data each update sees."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_sgmcmc.batches.batch_stream import BatchStream
from pymc_sgmcmc.batches.permutation import Permutation, permutation


@dataclass
class Batches(BatchStream):
    """A chain's stream of row indices.

    The rows come in shuffled epochs: batches are consecutive pieces of random permutations of all
    rows, one after another, so every batch has exactly n rows and N / n is its correct weight. With
    ``replacement`` each row is drawn independently, from ``urn`` if it is given.
    """

    n_rows: int
    batch_size: int
    rng: np.random.Generator
    replacement: bool = False
    urn: np.ndarray | None = None
    """Row numbers to draw from, each repeated in proportion to its probability."""
    _epoch: Permutation = field(init=False, repr=False)
    _epoch_rng: dict[str, Any] = field(init=False, repr=False)
    _position: int = field(init=False, repr=False)

    by_number = True

    def __post_init__(self):
        if not self.replacement:
            self._new_epoch()

    def _new_epoch(self) -> None:
        # The generator's state at the start of the epoch is saved instead of the permutation.
        self._epoch_rng = dict(self.rng.bit_generator.state)
        self._epoch = permutation(self.rng, self.n_rows)
        self._position = 0

    def take(self, n_batches: int) -> np.ndarray:
        """Return the row indices of the next batches, int64, shape (n_batches, batch_size)."""
        shape = (n_batches, self.batch_size)
        if self.urn is not None:
            return self.urn[self.rng.integers(len(self.urn), size=shape)]
        if self.replacement:
            return self.rng.integers(self.n_rows, size=shape)
        rows = np.empty(shape, dtype=np.int64)
        flat = rows.reshape(-1)
        filled, self._position = self._epoch.fill(flat, self._position)
        while filled < flat.size:
            self._new_epoch()
            count, self._position = self._epoch.fill(flat[filled:], self._position)
            filled += count
        return rows

    @property
    def state(self) -> dict[str, Any]:
        """Plain values from which the stream continues identically (no copy of the permutation)."""
        if self.replacement:
            return {"rng": self.rng.bit_generator.state, "position": 0}
        return {"rng": self._epoch_rng, "position": self._position}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        if not self.replacement:
            self._new_epoch()
            self._position = state["position"]
