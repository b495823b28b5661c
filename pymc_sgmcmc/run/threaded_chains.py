"""All chains of a run together on numba: each draws alone, in a thread.

The compiled updates release Python's lock. A single loop over all chains is no faster, and takes
ten times as long to compile.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import Any

import numpy as np
from pymc.blocking import PointType
from pymc.stats.convergence import SamplerWarning
from threadpoolctl import threadpool_limits

from pymc_sgmcmc.backends.cores import n_cores
from pymc_sgmcmc.backends.interrupts import raise_deferred
from pymc_sgmcmc.gradients.start_check import BadStart
from pymc_sgmcmc.pymc_internals import runs_python
from pymc_sgmcmc.run.chains_together import (
    BYTES_PER_CALL,
    SECONDS_PER_CALL,
    ChainsTogether,
    Drawn,
    shorten,
)

POLL_SECONDS = 0.1
"""Seconds between two checks for Ctrl-C."""


class _Abandoned(Exception):
    """Abandons a draw between two compiled calls, because the run was interrupted."""


class ThreadedChains(ChainsTogether):
    """Chains that advance in threads."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._abandon = Event()
        self._stopped: set[int] = set()

    def _check(self) -> None:
        if self._abandon.is_set():
            raise _Abandoned

    @property
    def n_threads(self) -> int:
        """Number of chains that run at the same time: one if an operation runs in Python.

        PyTensor keeps that operation's results in one place, so two chains would find each other's.
        """
        assert self.kernel.loop is not None
        in_turns = runs_python(self.kernel.loop.function)
        return 1 if in_turns else min(len(self.chains), n_cores())

    def run(self) -> Iterator[Drawn]:
        """Advance all chains to the end, in blocks of about `SECONDS_PER_CALL`."""
        n_bytes = sum(np.asarray(value).nbytes for value in self.points[0].values())
        most = BYTES_PER_CALL // (max(n_bytes, 1) * len(self.chains))
        most = max(1, min(most, self.most_draws_a_call))
        n_threads, n = self.n_threads, 1
        # BLAS threads would compete with the chains' threads.
        with (
            threadpool_limits(1 if n_threads > 1 else None),
            ThreadPoolExecutor(n_threads) as threads,
        ):
            while self.n_done < self.total:
                phase_end = self.tune if self.n_done < self.tune else self.total
                n, began = min(n, most, phase_end - self.n_done), time.perf_counter()
                made = [threads.submit(self._draw, c, n) for c in range(len(self.chains))]
                interrupt = None
                try:
                    while wait(made, POLL_SECONDS).not_done:
                        raise_deferred()
                    raise_deferred()
                except BaseException as error:  # the block ends first, unless it is one long draw
                    interrupt = error
                    if n == 1:
                        self._abandon.set()
                try:
                    drawn = self._drawn([one.result() for one in made])
                except _Abandoned:
                    drawn = None
                if drawn is not None:
                    yield drawn
                if interrupt is not None:
                    raise interrupt
                seconds = time.perf_counter() - began
                n = max(1, min(2 * n, int(n * SECONDS_PER_CALL / max(seconds, 1e-6))))

    def _draw(self, c: int, n: int) -> list[tuple[PointType, dict[str, Any]]]:
        """Make draws of one chain, as points and statistics; it stays at a non-finite draw."""
        draws: list[tuple[PointType, dict[str, Any]]] = []
        point = self.points[c]
        for _ in range(n):
            stats: dict[str, Any] = dict.fromkeys(self.step.stats_dtypes[0], np.nan)
            stats |= {"nonfinite": True, "n_updates": self.chains[c].n_updates, "warning": None}
            if c not in self._stopped:
                try:
                    drawn = self.chains[c].draw(point)
                    point, stats = point | drawn.moved, self.step.statistics_of(drawn)
                except BadStart:
                    pass
                if stats["nonfinite"]:
                    self._stopped.add(c)
            draws.append((point, stats))
        return draws

    def _drawn(self, made: Sequence[list[tuple[PointType, dict[str, Any]]]]) -> Drawn:
        """Join the draws of all chains."""
        n, first = len(made[0]), self.n_done
        self.n_done += n
        self.points = [draws[-1][0] for draws in made]
        theta = [
            np.array([[point[v.name] for point, _ in draws] for draws in made]).swapaxes(0, 1)
            for v in self.step.vars
        ]
        stats: dict[str, np.ndarray] = {
            name: np.array([[one[name] for _, one in draws] for draws in made], dtype=dtype)
            for name, (dtype, shape) in self.step.stats_dtypes_shapes.items()
            if shape is not None
        }
        warnings = np.full((len(made), n), None, dtype=object)
        failures: dict[int, SamplerWarning | None] = {}
        for c, draws in enumerate(made):
            for i, (_, one) in enumerate(draws):
                warnings[c, i] = one["warning"]
                if one["nonfinite"]:
                    failures.setdefault(c, one["warning"])
        for i in range(n):
            shorten(warnings[:, i])
        return Drawn(first, n, theta, stats | {"warning": warnings}, failures)
