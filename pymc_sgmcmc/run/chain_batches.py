"""Batches of many chains for one compiled call: row numbers, or the streamed rows themselves."""

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np

from pymc_sgmcmc.chain import Chain
from pymc_sgmcmc.gradients.source import GradientSource

IN_USE = 3
"""Number of calls whose batches are in use at a time: those of one are taken while two run."""
ALIGNMENT = 64
"""Alignment of arrays in bytes. On the CPU JAX uses arrays with this alignment without a copy,
which would take as long as many updates."""


class CallBatches(NamedTuple):
    """Batches of all chains for one call, with ``room`` pieces of draws."""

    rows: list[np.ndarray]
    """Row numbers of each stream, shape (room, chains, updates, batch size), followed by the arrays
    that describe the groups of each batch."""
    blocks: dict[int, np.ndarray]
    """Streamed rows, shape (room, chains, updates * batch size, ...), by their position among the
    loop's constants. ``rows`` then contains positions in the block."""
    states: list[list[dict[str, Any]]]
    """State of each chain's streams after these batches."""


class ChainBatches:
    """Takes batches of all chains, into arrays that are reused `IN_USE` calls later."""

    def __init__(self, chains: Sequence[Chain]):
        self.chains = chains
        self._turn = 0
        self._arrays: dict[Any, np.ndarray] = {}

    def take(self, threads: Executor, n: int, room: int, n_updates: int) -> CallBatches:
        """Take the batches of ``n`` pieces of ``n_updates`` from each chain's streams.

        The arrays have ``room`` pieces; the pieces after the first ``n`` are never read.
        """
        kernel = self.chains[0].kernel
        self._turn = (self._turn + 1) % IN_USE
        rows: list[np.ndarray] = []
        own: dict[str, np.ndarray] = {}
        blocks: dict[int, np.ndarray] = {}
        for k, stream in enumerate(kernel.source.rows):
            shape = (room, len(self.chains), n_updates, stream.batch_size)
            if stream.streamed is None:
                dtype = np.int32 if stream.n_rows < 2**31 else np.int64
                rows.append(self._array((self._turn, k), shape, dtype))
                self._fill_rows(threads, k, rows[k], n)
                continue
            size = n_updates * stream.batch_size
            own = {
                name: self._array((self._turn, k, name), (*shape[:2], size, *f.shape), f.dtype)
                for name, f in stream.streamed.formats.items()
            }
            blocks |= {kernel.places[name]: block for name, block in own.items()}
            self._fill_blocks(threads, k, own, n, n_updates)
            rows.append(self._numbers_in_block(k, shape))
        rows += self._touched(threads, rows, own, n)
        return CallBatches(rows, blocks, [chain.batch_states for chain in self.chains])

    def _array(self, key: tuple, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        array = self._arrays.get(key)
        if array is None or array.shape != shape:
            self._arrays[key] = array = _aligned(shape, np.dtype(dtype))
        return array

    def _numbers_in_block(self, k: int, shape: tuple[int, ...]) -> np.ndarray:
        """Return the positions of streamed rows in their block, which are always the same."""
        known = self._arrays.get((k,))
        numbers = self._array((k,), shape, np.int32)
        if numbers is not known:
            numbers[:] = np.arange(math.prod(shape[2:])).reshape(shape[2:])
        return numbers

    def _fill_rows(self, threads: Executor, k: int, rows: np.ndarray, n: int) -> None:
        def fill(c: int) -> None:
            taken: Any = self.chains[c].batches[k].take(n * rows.shape[2])
            rows[:n, c] = taken.reshape(n, *rows.shape[2:])

        list(threads.map(fill, range(len(self.chains))))

    def _touched(
        self, threads: Executor, rows: list[np.ndarray], blocks: dict[str, np.ndarray], n: int
    ) -> list[np.ndarray]:
        """Return what local variables need of each batch: see `Chain.groups_of`."""
        types = self.chains[0].kernel.source.batch_types[len(rows) :]
        arrays = [
            self._array((self._turn, "touched", k), (*rows[0].shape[:3], length), dtype)
            for k, (length, dtype) in enumerate(types)
        ]

        def fill(c: int) -> None:
            own = rows[0][:n, c]
            batches, streamed = own.reshape(-1, own.shape[-1]), None
            if blocks:
                batches = np.arange(batches.size).reshape(batches.shape)
                streamed = {
                    name: block[:n, c].reshape(batches.size, *block.shape[3:])
                    for name, block in blocks.items()
                }
            found = self.chains[c].groups_of(batches, streamed)
            for array, values in zip(arrays, found, strict=True):
                array[:n, c] = values.reshape(n, *array.shape[2:])

        if arrays:
            list(threads.map(fill, range(len(self.chains))))
        return arrays

    def _fill_blocks(
        self, threads: Executor, k: int, blocks: dict[str, np.ndarray], n: int, n_updates: int
    ) -> None:
        def fill(c: int) -> None:
            rows: Any = self.chains[c].batches[k].take(n * n_updates)
            for name, taken in rows.items():
                blocks[name][:n, c] = taken.reshape(n, -1, *taken.shape[1:])

        list(threads.map(fill, range(len(self.chains))))


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    n_bytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(n_bytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + n_bytes].view(dtype).reshape(shape)


def bytes_per_update(source: GradientSource) -> int:
    """Return the number of bytes of the batches per update and chain."""
    of_groups = source.batch_types[len(source.rows) :]
    n_bytes = sum(length * np.dtype(dtype).itemsize for length, dtype in of_groups)
    for stream in source.rows:
        n_bytes += 4 * stream.batch_size
        if stream.streamed is not None:
            n_bytes += stream.batch_size * stream.streamed.row_bytes
    return n_bytes


def most_updates(chains: Sequence[Chain], n_bytes: int) -> int:
    """Return the largest number of updates per call whose streamed rows fit into ``n_bytes``."""
    first = chains[0]
    if first.kernel.source.streamed is None:
        return first.thin
    affordable = n_bytes // (len(chains) * bytes_per_update(first.kernel.source))
    return max(1, min(first.call_length.longest, affordable))
