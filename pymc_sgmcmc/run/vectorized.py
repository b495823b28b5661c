"""Engine: all chains together, in this process."""

import math
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import numpy as np
from pymc.util import random_generator_from_state

from pymc_sgmcmc.gradients.start_check import BadStart
from pymc_sgmcmc.run.chains_together import MAX_WARNINGS, Drawn, check_step
from pymc_sgmcmc.run.mapped_chains import VectorizedChains
from pymc_sgmcmc.run.run_events import Block, Event, Run, Stopped, reason_to_stop
from pymc_sgmcmc.run.runner import run_and_keep
from pymc_sgmcmc.run.saved_state import from_plain, to_plain
from pymc_sgmcmc.run.threaded_chains import ThreadedChains


class VectorizedRunner:
    """All chains of a run, for `sample`."""

    def __init__(self, run: Run):
        self.run = run
        self.chains = range(run.n_chains)
        rngs = [random_generator_from_state(state) for state in run.rngs]
        check_step(run.step)
        maps = run.step.kernel.backend.maps_functions
        kind = VectorizedChains if maps else ThreadedChains
        self._vectorized = kind(run.step, run.starts, rngs, run.tune, run.draws)
        if run.each_draw:
            self._vectorized.most_draws_a_call = 1
        self._drawn: Drawn | None = None
        self._restored: dict[str, Any] = {}
        self._stopped: dict[int, tuple[int, str]] = {}
        """Number of draws, tuning included, of each chain that has stopped, and the reason."""

    def blocks(self) -> Iterator[Block | Stopped]:
        yield from self._stops(self._stopped)
        for drawn in self._vectorized.run():
            self._drawn = drawn
            failed = [c for c in drawn.failures if c not in self._stopped]
            for c in failed:
                self._stopped[c] = self._end(drawn, c)
            yield self._block(drawn)
            yield from self._stops(failed)
            if len(self._stopped) == len(self.chains):
                return

    def _end(self, drawn: Drawn, chain: int) -> tuple[int, str]:
        """Return the number of draws after which a chain ends, and the message for the user."""
        n_draws = drawn.first + int(np.argmax(drawn.stats["nonfinite"][chain]))
        if n_draws == 0:
            try:
                self._vectorized.chains[chain].check_start(self.run.starts[chain])
            except BadStart as error:
                return 0, f"Chain {chain} stopped at once. {error}"
        failure = drawn.failures[chain].extra
        return n_draws, reason_to_stop(self.run, chain, n_draws, failure)

    def _stops(self, chains: Iterable[int]) -> Iterator[Stopped]:
        """Yield events of chains that have stopped; of many, only the first has a message."""
        chains = list(chains)
        for k, c in enumerate(chains):
            message = self._stopped[c][1]
            if len(chains) > MAX_WARNINGS:
                others = f"{len(chains) - 1} other chains"
                message = f"{message} ({others} stopped for similar reasons.)" if k == 0 else ""
            yield Stopped(c, message)

    def state(self) -> dict[str, Any]:
        """Return, for each chain, the state that a runner of this chain alone would return."""
        if self._drawn is None:
            return self._restored
        points, states = self._vectorized.saved(self._drawn)
        return {
            "stopped": [[c, n, message] for c, (n, message) in self._stopped.items()],
            "chains": [
                {"point": point, "step": to_plain(state, "step")}
                for point, state in zip(points, states, strict=True)
            ],
        }

    def restore(self, n_draws: int, state: dict[str, Any]) -> None:
        self._restored = state
        self._stopped = {c: (n, message) for c, n, message in state["stopped"]}
        names = list(self.run.starts[0])
        like = self.run.step.sampling_state
        self._vectorized.restore(
            n_draws,
            [{name: one["point"][name] for name in names} for one in state["chains"]],
            [from_plain(one["step"], like) for one in state["chains"]],
        )

    def _block(self, drawn: Drawn) -> Block:
        run = self.run
        values, points = {}, None
        if run.needs_points or run.keep_warmup or drawn.first >= run.tune:
            fetched = self._vectorized.fetch(drawn.theta)
            theta = {
                var.name: np.ascontiguousarray(draws[: drawn.n].swapaxes(0, 1))
                for var, draws in zip(run.step.vars, fetched, strict=True)
            }
            shape = len(self.chains), drawn.n
            flat = {name: t.reshape(math.prod(shape), *t.shape[2:]) for name, t in theta.items()}
            values = {
                name: v.reshape(*shape, *v.shape[1:])
                for name, v in run.recorder.record(flat).items()
            }
            if run.needs_points:
                names = list(run.starts[0])
                points = [
                    [{name: theta[name][c, i] for name in names} for i in range(drawn.n)]
                    for c in self.chains
                ]
        block = Block(self.chains, drawn.first, drawn.n, values, [drawn.stats], points)
        if self._stopped:
            ends = [self._stopped.get(c, (run.total,))[0] - drawn.first for c in self.chains]
            block.end_early([min(max(end, 0), drawn.n) for end in ends])
        return block


def vectorized(run: Run) -> Generator[Event]:
    """Engine: all chains together, in this process."""
    yield from run_and_keep(VectorizedRunner(run), run)
