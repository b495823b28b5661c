"""Batches: which rows of the data each update sees."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_sgmcmc.batches.permutation import Permutation, permutation


@dataclass
class Batches:
    """A chain's stream of row numbers.

    By default the rows come in shuffled epochs: one random permutation of all rows follows
    another, and batches are cut from that endless stream. So every row comes exactly once in each
    N consecutive positions that start at an epoch, none is starved, every batch has exactly n
    rows, and N / n is the right weight of each (a batch may end one epoch and begin the next).

    Parameters
    ----------
    n_rows : int
        N, rows in the data.
    batch_size : int
        n, rows in a batch.
    rng : numpy.random.Generator
        Owned by this stream.
    replacement : bool, default False
        Draw each row independently instead.

    Examples
    --------
    >>> import numpy as np
    >>> batches = Batches(n_rows=6, batch_size=4, rng=np.random.default_rng(0))
    >>> rows = batches.take(3)
    >>> rows.shape, np.bincount(rows.ravel()).tolist()
    ((3, 4), [2, 2, 2, 2, 2, 2])
    """

    n_rows: int
    batch_size: int
    rng: np.random.Generator
    replacement: bool = False
    _epoch: Permutation = field(init=False, repr=False)
    _epoch_rng: dict[str, Any] = field(init=False, repr=False)
    _position: int = field(init=False, repr=False)

    def __post_init__(self):
        if not self.replacement:
            self._new_epoch()

    def _new_epoch(self) -> None:
        # The generator's state at the epoch's start stands for the permutation when saving.
        self._epoch_rng = dict(self.rng.bit_generator.state)
        self._epoch = permutation(self.rng, self.n_rows)
        self._position = 0

    def take(self, n_batches: int) -> np.ndarray:
        """Row numbers of the next batches.

        Parameters
        ----------
        n_batches : int
            How many, one an update.

        Returns
        -------
        array of int64
            Shape (n_batches, batch_size).
        """
        shape = (n_batches, self.batch_size)
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
        """Plain values from which the stream goes on identically (no copy of the permutation)."""
        if self.replacement:
            return {"rng": self.rng.bit_generator.state, "position": 0}
        return {"rng": self._epoch_rng, "position": self._position}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        if not self.replacement:
            self._new_epoch()
            self._position = state["position"]
