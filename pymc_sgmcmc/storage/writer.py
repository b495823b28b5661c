"""Writes some chains of a store: draws in whole chunks, then a checkpoint that counts them."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from pymc_sgmcmc.run.run_events import Block, Run
from pymc_sgmcmc.storage.checkpoints import Checkpoints
from pymc_sgmcmc.storage.chunks import (
    Checksums,
    check_chunks,
    checksum_of,
    chunk_file,
    n_chunks,
    open_draws,
    synced_checksum,
    write_chunk,
)
from pymc_sgmcmc.storage.record import clear_errors, read_record, run_replaced

RENAMED = {
    "model_logp": "lp",
    "mean_tree_accept": "acceptance_rate",
    "depth": "tree_depth",
    "tree_size": "n_steps",
}
"""Names of PyMC's statistics that are different in a DataTree."""
LEFT_OUT = {"tune", "in_warmup", "warning"}
"""Statistics that PyMC leaves out of a DataTree."""


class Writer:
    """Writes the draws of some chains that advance together, and their checkpoints.

    A chunk that is not full yet stays in memory and is written again as a whole. ``state`` is the
    sampler's state in the last checkpoint, after ``n_draws`` draws, tuning included.
    """

    _ends: list[int | None]
    """Number of draws, tuning included, of each chain that ended before the others."""

    def __init__(self, path: Path, run_id: str, run: Run, chains: range, seconds: float):
        self.path, self.run, self.chains, self.seconds = path, run, chains, seconds
        self._run_id = run_id
        self._checkpoints = Checkpoints(path, chains, run_id)
        self._lock = self._checkpoints.lock()
        self._sources = _sources(run.step.stats_dtypes)

    def __enter__(self) -> "Writer":
        try:
            self._lock.acquire()
        except FileNotFoundError as error:
            raise run_replaced(self.path) from error
        try:
            self._record = read_record(self.path, self._run_id)
            self._arrays = open_draws(self.path, self._record, read_only=False)
            checkpoint = self._checkpoints.latest() or {}
            self._number = checkpoint.get("number", 0)
            self.state = checkpoint.get("state")
            self.n_draws = self._done = checkpoint.get("n_state", 0)
            found = check_chunks(
                self.path, self._record, self._arrays, self._checkpoints, checkpoint, read=True
            )
            ends = checkpoint.get("ends", [None] * len(self.chains))
            # A chain that ended after the saved state will end again.
            self._ends = [e if e is not None and e <= self.n_draws else None for e in ends]
            self._chunk = self._read_chunk()
            self._checksums = self._cut(found)
            self._written: dict[tuple[str, str], set[int]] = {}
            if checkpoint.get("n_draws", 0) > self._done:
                self._forget_draws_after_state()
            self._complete = True
            self._has_new = False
            self._committed = time.perf_counter()
            self._cost = 0.0
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *exc) -> None:
        self._lock.release()

    # ---- where a draw goes -----------------------------------------------------------------

    def _place(self, number: int) -> tuple[str, int, int]:
        """Return the prefix of a draw's groups, its position in them and their length."""
        tune = self.run.tune
        if number < tune:
            return "warmup_", number, tune
        return "", number - tune, self.run.draws

    def _kept(self, prefix: str) -> bool:
        return not prefix or self.run.keep_warmup

    def _groups(self, prefix: str) -> dict[str, dict[str, Any]]:
        return {g: a for g, a in self._arrays.items() if g.startswith("warmup_") == bool(prefix)}

    # ---- writing ---------------------------------------------------------------------------

    def write(self, block: Block) -> None:
        """Keep a block, and write full chunks to disk."""
        self._complete = False  # until this returns: it may be interrupted anywhere
        self._has_new = True
        prefix, at, length = self._place(block.first)
        if self._kept(prefix):
            columns = self._columns(block, prefix)
            size = self._record["chunk"]
            done = 0
            while done < block.n_draws:
                position = at + done
                n = min(block.n_draws - done, size - position % size)
                for key, column in columns.items():
                    self._chunk.setdefault(key, []).append(column[:, done : done + n])
                done += n
                if (position + n) % size == 0 or position + n == length:
                    self._flush(position + n)
                    self._chunk = {}
        for k, end in enumerate(self._ends):
            if end is None and block.count(k) < block.n_draws:
                self._ends[k] = block.first + block.count(k)
        self._done = block.first + block.n_draws
        self._complete = True

    def _columns(self, block: Block, prefix: str) -> dict[tuple[str, str], np.ndarray]:
        """Return a block's arrays by group and name, as PyMC would convert them."""
        columns = {}
        for group, arrays in self._groups(prefix).items():
            for name in arrays:
                if group.endswith("posterior"):
                    column = block.values[name]
                else:
                    parts = [block.stats[k][stat] for k, stat in self._sources[name]]
                    column = parts[0] if len(parts) == 1 else np.stack(parts, axis=-1)
                columns[group, name] = column
        return columns

    def _flush(self, end: int) -> None:
        """Write the draws of the current chunk up to a position."""
        if not self._lock.is_held:
            raise run_replaced(self.path)
        size = self._record["chunk"]
        first = (end - 1) // size * size
        for (group, name), parts in self._chunk.items():
            values = np.concatenate(parts, axis=1)
            with clear_errors(self.path):
                write_chunk(self._arrays[group][name], self.chains, first, values)
            self._written.setdefault((group, name), set()).add(first)
            self._chunk[group, name] = [values]

    def due(self) -> bool:
        """Return whether a checkpoint is due; checkpoints take at most a twentieth of the time."""
        since = time.perf_counter() - self._committed
        return since >= max(self.seconds, 20 * self._cost)

    def commit(self, state: Any) -> None:
        """Write a checkpoint that counts all draws so far.

        Without the sampler's ``state`` after them, resuming samples them again from the last one.
        """
        if not self._complete:  # something was interrupted: the last checkpoint remains valid
            return
        if self._number > 0 and not self._has_new:
            return
        began = time.perf_counter()
        self._complete = False
        if state is not None:
            self.state, self.n_draws = state, self._done
        if self._chunk:
            _, at, _ = self._place(self._done - 1)
            self._flush(at + 1)
        self._save()
        self._committed = time.perf_counter()
        self._cost = self._committed - began
        self._complete = True

    def _save(self) -> None:
        """Write a checkpoint, after all chunks that it counts."""
        if not self._lock.is_held:
            raise run_replaced(self.path)
        with clear_errors(self.path):
            for (group, name), firsts in self._written.items():
                array = self._arrays[group][name]
                sums = self._checksums[array.path]
                for first in sorted(firsts):
                    file = chunk_file(self.path, array, self.chains, first)
                    sums[first // self._record["chunk"] :] = [synced_checksum(file)]
            self._written = {}
            self._number += 1
            checkpoint = {
                "number": self._number,
                "n_draws": self._done,
                "ends": self._ends,
                "n_state": self.n_draws,
                "state": self.state,
                "checksums": self._checksums,
            }
            self._checkpoints.save(checkpoint)

    # ---- resuming --------------------------------------------------------------------------

    def _cut(self, found: Checksums) -> Checksums:
        """Return the checksums of the chunks with valid draws."""
        cut = {}
        for group, arrays in self._arrays.items():
            n = n_chunks(self._record, group, self._done)
            for array in arrays.values():
                cut[array.path] = found.get(array.path, [])[:n]
        return cut

    def _forget_draws_after_state(self) -> None:
        """Save a checkpoint without the draws after the state, which may be replaced by others."""
        for (group, name), [values] in self._chunk.items():
            array = self._arrays[group][name]
            self._checksums[array.path][-1] = checksum_of(array, values)
        self._save()

    def _read_chunk(self) -> dict[tuple[str, str], list[np.ndarray]]:
        """Read the valid draws of a chunk that is not full yet."""
        if self._done == 0:
            return {}
        prefix, at, length = self._place(self._done - 1)
        end = at + 1
        size = self._record["chunk"]
        ended = prefix and end == length
        if end % size == 0 or ended or not self._kept(prefix):
            return {}
        where = slice(self.chains.start, self.chains.stop), slice(end // size * size, end)
        return {
            (group, name): [array[where]]
            for group, arrays in self._groups(prefix).items()
            for name, array in arrays.items()
        }


def _sources(stats_dtypes: list[dict[str, Any]]) -> dict[str, list[tuple[int, str]]]:
    """Return the steps and names from which each statistic of the result is taken."""
    sources: dict[str, list[tuple[int, str]]] = {}
    for k, dtypes in enumerate(stats_dtypes):
        for name in dtypes:
            if name not in LEFT_OUT:
                sources.setdefault(RENAMED.get(name, name), []).append((k, name))
    return sources
