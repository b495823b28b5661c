"""All chains together on numba: compiled calls side by side in threads.

One numba loop over all chains was measured against this: it ran no faster, and took ten times as
long to compile.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from pymc_sgmcmc.backends.backend import Host
from pymc_sgmcmc.backends.cores import n_cores
from pymc_sgmcmc.loop import Loop, first_nonfinite
from pymc_sgmcmc.pymc_internals import jitted
from pymc_sgmcmc.run.carry import Carry, Piece


class ThreadChains:
    """A loop's chains in threads of this process; the interface is that of `DeviceChains`.

    The compiled function lets go of Python's lock, so that as many chains run at a time as there
    are cores.
    """

    def __init__(self, loop: Loop, constants: list, theta: list, state: list, rngs: list):
        self._function, self._outcome = jitted(loop.function), loop.outcome
        self._constants = constants
        self._rngs = rngs
        self._n_threads = min(len(rngs), n_cores())
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
        """How many times longer than one chain all may take."""
        return len(self._rngs) / self._n_threads

    def advance(
        self,
        n: int,
        done: int,
        h: np.ndarray,
        rows: list[np.ndarray],
        blocks: dict[int, np.ndarray],
    ) -> Piece:
        """Run pieces of draws, as `DeviceChains.advance`."""

        def run(c: int):
            own = [r[:n, c].astype(np.int64) for r in rows]
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
        theta, state = [np.array(t[c]) for t in old.theta], [np.array(s[c]) for s in old.state]
        variable, update = int(old.variable[c]), int(old.update[c])
        pieces, data = [], list(self._constants)
        for i in range(n):
            if done == 0:
                variable = -1
            for place, block in blocks.items():
                data[place] = block[i]
            out = self._outcome(
                self._function(h[i], *(r[i] for r in rows), *theta, *state, self._rngs[c], *data)
            )
            finite = bool(np.isfinite(out.checksum))
            moved = finite and variable < 0
            if moved:
                theta, state = out.theta, out.state
            elif variable < 0:
                variable, at = first_nonfinite(out.squared_gradient, out.theta)
                update = done + at
            pieces.append(
                Piece(
                    theta,
                    float(out.potential),
                    out.per_update,
                    variable,
                    update,
                    [float(d) for d in out.diagnostics],
                )
            )
        state_of_rng = Host().generator_state(self._rngs[c])
        carry = Carry(theta, state, state_of_rng, variable, update)
        return carry, Piece(*_stack(pieces, axis=0))


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
