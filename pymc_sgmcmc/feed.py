"""What the chains of one compiled call are fed with: row numbers, or streamed rows themselves."""

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np

from pymc_sgmcmc.step import SGMCMCStep
from pymc_sgmcmc.streaming import StreamedBatches


class Feed(NamedTuple):
    """Batches of a call: of all chains, for ``room`` pieces of draws."""

    rows: list[np.ndarray]
    """Row numbers of each stream, shape (room, chains, updates, batch size)."""
    blocks: dict[int, np.ndarray]
    """Streamed rows, shape (room, chains, updates * batch size, ...), by the place among the
    loop's constants that they take. The row numbers are then those in the block."""
    states: list[list[dict[str, Any]]]
    """State of each chain's streams after these batches."""


def feed(steps: Sequence[SGMCMCStep], threads: Executor, n: int, room: int, n_updates: int) -> Feed:
    """Take the batches of ``n`` pieces of ``n_updates`` from each chain's streams.

    What is above ``n`` of the ``room`` in the arrays is never looked at.
    """
    first = steps[0]
    rows: list[np.ndarray] = []
    blocks: dict[int, np.ndarray] = {}
    for k, stream in enumerate(first.source.rows):
        shape = (room, len(steps), n_updates, stream.batch_size)
        if stream.streamed is None:
            numbers = np.zeros(shape, np.int32 if stream.n_rows < 2**31 else np.int64)

            def fill(c, k=k, numbers=numbers):
                taken = steps[c]._batches[k].take(n * n_updates)
                numbers[:n, c] = taken.reshape(n, *numbers.shape[2:])
        else:
            size = n_updates * stream.batch_size
            numbers = np.broadcast_to(np.arange(size, dtype=np.int32).reshape(shape[2:]), shape)
            own = {
                name: np.empty((*shape[:2], size, *f.shape), f.dtype)
                for name, f in stream.streamed.formats.items()
            }
            blocks |= {first._places[name]: block for name, block in own.items()}

            def fill(c, k=k, own=own):
                for name, taken in steps[c]._batches[k].take(n * n_updates).items():
                    own[name][:n, c] = taken.reshape(n, -1, *taken.shape[1:])

        list(threads.map(fill, range(len(steps))))
        rows.append(numbers)
    return Feed(rows, blocks, [chain.batch_states for chain in steps])


def bytes_per_update(step: SGMCMCStep) -> int:
    """How much of a feed an update of one chain takes."""
    n_bytes = 0
    for stream in step.source.rows:
        n_bytes += 4 * stream.batch_size
        if stream.streamed is not None:
            n_bytes += stream.batch_size * stream.streamed.row_bytes
    return n_bytes


def most_updates(step: SGMCMCStep, n_chains: int, n_bytes: int) -> int:
    """Updates of a draw that one call may do: streamed rows must fit into ``n_bytes``."""
    if not any(isinstance(batches, StreamedBatches) for batches in step._batches):
        return step.thin
    affordable = n_bytes // (n_chains * bytes_per_update(step))
    return max(1, min(step._longest_call, affordable))
