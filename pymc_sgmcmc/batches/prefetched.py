"""Batches whose rows a thread fetches ahead of time from tables too large for the caches.

Fetching a row of such a table from memory takes 100 ns. While the updates of one call run, the
thread copies the rows of the next call into one contiguous block, which is fast to read: an update
then takes as long as for a small table. The batches are the same as without prefetching.
"""

import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pymc_sgmcmc.backends.cores import n_cores
from pymc_sgmcmc.batches.batch_stream import BatchStream, joined
from pymc_sgmcmc.batches.read_ahead import ReadAhead
from pymc_sgmcmc.batches.shuffled import Batches

MIN_TABLE_BYTES = 2**23
"""Smallest size of tables, in bytes, for which prefetching pays: no core's cache holds them."""
MAX_ROW_BYTES = 2**8
"""Largest size of a row, in bytes, for which prefetching pays, because longer rows are read as fast
as they are copied."""
BLOCK_BYTES = 2**22
"""Largest size, in bytes, of a block of rows fetched at a time (unless one call needs more),
because the caches have to hold two blocks."""


def prefetching_pays(tables: Mapping[Any, np.ndarray]) -> bool:
    """Return whether a thread should fetch the rows of these tables.

    The thread needs a core to itself, which it does not have in a worker process, where the other
    cores are busy with chains.
    """
    has_core = n_cores() > 1 and multiprocessing.parent_process() is None
    n_bytes, row_bytes = (
        sum(table[some].nbytes for table in tables.values()) for some in (..., slice(1))
    )
    return has_core and n_bytes >= MIN_TABLE_BYTES and row_bytes <= MAX_ROW_BYTES


@dataclass(frozen=True)
class FetchedBatches:
    """Rows of consecutive batches, batch after batch, by the table's key."""

    state: dict[str, Any]
    """State of the stream before these batches."""
    n_batches: int
    rows: dict[Any, np.ndarray]


class PrefetchedBatches(BatchStream):
    """A chain's stream of batches, with their rows from tables in memory.

    ``batches`` has the row numbers; it runs ahead of this stream, its only user. The tables have
    their rows along the first axis and must not be modified while the stream is in use.
    """

    def __init__(self, batches: Batches, tables: Mapping[Any, np.ndarray]):
        self.batch_size = batches.batch_size
        self._batches, self._tables = batches, tables
        self._batch_bytes = self.batch_size * sum(a[:1].nbytes for a in tables.values())
        self._block: FetchedBatches | None = None
        self._used = 0
        self._ahead: ReadAhead[FetchedBatches] | None = None

    def take(self, n_batches: int) -> dict[Any, np.ndarray]:
        """Return the rows of the next batches by table: batch after batch, (n_batches * n, ...).

        They may be part of a block that is reused, so they must not be modified.
        """
        is_first = self._block is None
        wanted = n_batches
        parts: list[dict[Any, np.ndarray]] = []
        while wanted > 0:
            block = self._block_of_next_batch(wanted)
            count = min(wanted, block.n_batches - self._used)
            begin, end = (k * self.batch_size for k in (self._used, self._used + count))
            parts.append({name: a[begin:end] for name, a in block.rows.items()})
            self._used += count
            wanted -= count
        if self._ahead is None and not is_first:  # trying out a step leaves no thread behind
            self._ahead = ReadAhead(partial(self._fetch, self._next_size(n_batches)))
        return joined(parts)

    def _block_of_next_batch(self, wanted: int) -> FetchedBatches:
        if self._block is None or self._used == self._block.n_batches:
            ahead = self._ahead
            try:
                self._block = self._fetch(wanted) if ahead is None else ahead.result()
            except MemoryError:
                self._ahead = None
                raise
            self._used, self._ahead = 0, None
        return self._block

    def _next_size(self, n_batches: int) -> int:
        """Return how many batches, with the rest of this block, suffice for whole calls."""
        assert self._block is not None
        left = self._block.n_batches - self._used
        calls = max(1, BLOCK_BYTES // (n_batches * self._batch_bytes))
        return -left % n_batches + calls * n_batches

    def _fetch(self, n_batches: int) -> FetchedBatches:
        state = self._batches.state
        numbers = self._batches.take(n_batches).ravel()
        try:
            # All indices are in range, and "clip" makes NumPy skip checking them.
            rows = {name: a.take(numbers, axis=0, mode="clip") for name, a in self._tables.items()}
        except MemoryError:
            self._batches.state = state  # so that the caller can try again
            raise
        return FetchedBatches(state, n_batches, rows)

    @property
    def state(self) -> dict[str, Any]:
        """Plain values as for `Batches`; rows fetched ahead do not count as used."""
        ahead = self._batches
        if self._block is None:
            return ahead.state
        rng = np.random.Generator(type(ahead.rng.bit_generator)())
        used = Batches(ahead.n_rows, ahead.batch_size, rng, ahead.replacement, ahead.urn)
        used.state = self._block.state
        used.take(self._used)
        return used.state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        if self._ahead is not None:
            self._ahead.result()
        self._batches.state = state
        self._block, self._used, self._ahead = None, 0, None
