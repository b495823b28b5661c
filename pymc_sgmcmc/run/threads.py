"""All chains together on numba: compiled calls side by side in threads.

A single numba loop over all chains is no faster, and takes ten times as long to compile.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from pymc_sgmcmc.backends.backend import Host
from pymc_sgmcmc.backends.cores import n_cores
from pymc_sgmcmc.loop import Loop, failure_of
from pymc_sgmcmc.pymc_internals import jitted
from pymc_sgmcmc.run.stacked import Carry, Piece, go_on


class ThreadChains:
    """A loop's chains in threads of this process: `StackedChains`.

    The compiled function releases Python's lock, so that as many chains run at the same time as
    there are cores. One with an operation that runs in Python cannot run twice at a time: PyTensor
    keeps the operation's results in one place.
    """

    def __init__(self, loop: Loop, constants: list, theta: list, state: list, rngs: list):
        self._function, self._outcome = jitted(loop.function), loop.outcome
        self._constants = constants
        self._rngs = rngs
        in_turns = getattr(self._function, "runs_python", False)
        self._n_threads = 1 if in_turns else min(len(rngs), n_cores())
        none = np.full(len(rngs), -1)
        self.carry = Carry(theta, state, None, none, none)

    asynchronous = False

    @staticmethod
    def is_ready(piece: Piece) -> bool:
        """Pieces are complete when `advance` returns."""
        return True

    @staticmethod
    def fetch(tree: Any) -> Any:
        """Arrays are on the host already."""
        return tree

    @staticmethod
    def one_of(rng: Any, chain: int) -> np.random.Generator:
        """Return one chain's generator from a carry."""
        return Host().restore_generator(rng[chain])

    @property
    def slowdown(self) -> float:
        """Estimated time of all chains relative to one chain."""
        return len(self._rngs) / self._n_threads

    def advance(
        self,
        n: int,
        done: int,
        h: np.ndarray,
        rows: list[np.ndarray],
        blocks: dict[int, np.ndarray],
    ) -> Piece:
        """Run pieces of draws, as `StackedChains.advance`."""

        def run(c: int):
            own = [r[:n, c].astype(_loop_type(r.dtype)) for r in rows]
            return self._one_chain(c, n, done, h, own, {k: b[:, c] for k, b in blocks.items()})

        # BLAS threads would compete with the chains' threads.
        with (
            threadpool_limits(1 if self._n_threads > 1 else None),
            ThreadPoolExecutor(self._n_threads) as threads,
        ):
            carries, pieces = zip(*threads.map(run, range(len(self._rngs))), strict=True)
        self.carry = Carry(*_stack(carries, axis=0))
        return Piece(*_stack(pieces, axis=1))

    def _one_chain(self, c: int, n: int, done: int, h: np.ndarray, rows: list, blocks: dict):
        old = self.carry
        carry = Carry(
            [np.array(t[c]) for t in old.theta],
            [np.array(s[c]) for s in old.state],
            self._rngs[c],
            int(old.variable[c]),
            int(old.update[c]),
        )
        pieces, data = [], list(self._constants)
        for i in range(n):
            for place, block in blocks.items():
                data[place] = block[i]
            own_rows = (r[i] for r in rows)
            outcome = self._outcome(
                self._function(h[i], *own_rows, *carry.theta, *carry.state, carry.rng, *data)
            )
            found = failure_of(outcome)
            failure = (False, -1, -1) if found is None else (True, *found)
            carry, piece = go_on(carry, outcome, done, failure, _select)
            pieces.append(piece)
        carry = carry._replace(rng=Host().generator_state(self._rngs[c]))
        return carry, Piece(*_stack(pieces, axis=0))


def _loop_type(dtype: np.dtype) -> Any:
    """Type of a batch's arrays in the compiled loop: `CallBatches` have narrower integers."""
    return np.int64 if np.issubdtype(dtype, np.integer) else dtype


def _select(condition: bool, a: Any, b: Any) -> Any:
    return a if condition else b


def _stack(tuples: Sequence[tuple], axis: int) -> list:
    """Stack tuples of arrays, and of lists of arrays, field by field."""
    fields: list[Any] = []
    for values in zip(*tuples, strict=True):
        if isinstance(values[0], list):
            fields.append([np.stack(v, axis=axis) for v in zip(*values, strict=True)])
        elif isinstance(values[0], dict):
            fields.append(list(values))
        else:
            fields.append(np.stack(values, axis=axis))
    return fields
