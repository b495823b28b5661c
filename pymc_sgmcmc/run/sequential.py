"""Engine: chains that take turns in this process, and the runner of a single chain."""

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
from pymc.blocking import PointType
from pymc.step_methods.compound import CompoundStep, flatten_steps
from pymc.util import random_generator_from_state

from pymc_sgmcmc.backends.interrupts import raise_deferred
from pymc_sgmcmc.gradients.start_check import BadStart
from pymc_sgmcmc.run.run_events import Block, Event, Run, Stopped, reason_to_stop
from pymc_sgmcmc.run.runner import run_and_keep
from pymc_sgmcmc.run.saved_state import from_plain, to_plain
from pymc_sgmcmc.step import SGMCMCStep, minibatch_steps

SECONDS_PER_BLOCK = 0.1
"""Seconds between blocks of draws: ten blocks a second are enough for a progress bar."""
BYTES_PER_BLOCK = 2**23
"""Largest size in bytes of a block of draws; blocks of large draws are passed on sooner."""
SECONDS_PER_TURN = 0.5
"""Length in seconds of a turn of a chain that shares a process with others."""
PART_PER_TURN = 0.1
"""A turn as a part of the run so far: a run that ends early has chains of nearly equal length."""
TURNS_PER_CHANGE = 20
"""Shortest turn as a multiple of the time to change chains, which shuffles all row numbers."""


class ChainRunner:
    """Runs one chain with PyMC's steps, in this process."""

    def __init__(self, run: Run, chain: int):
        self.run = run
        self.chain = chain
        self.chains = range(chain, chain + 1)
        self.point = run.starts[chain]
        self.n_draws = 0
        step = run.step
        _forget_other_chains(step, run.fresh)
        step.setup_chain(random_generator_from_state(run.rngs[chain]), run.tune, run.draws)
        step.tune = run.tune > 0
        if hasattr(step, "reset_tuning"):
            step.reset_tuning()
        if hasattr(step, "iter_count"):
            step.iter_count = 0
        self._steps = minibatch_steps(step)
        self._own = [step.chain for step in self._steps]
        self._away: Any = None
        self._abandoned = False

    def state(self) -> dict[str, Any] | None:
        if self._abandoned:  # perhaps in the middle of a draw
            return None
        if self._away is None and self._other_chain() is not None:
            return None
        state = self.run.step.sampling_state if self._away is None else self._away
        return {"point": dict(self.point), "step": to_plain(state, "step")}

    def pause(self) -> None:
        """Leave the step to another chain."""
        self._check_step()
        self._away = self.run.step.sampling_state
        if not any(_reads_in_order(step) for step in self._steps):
            self._own = []  # its rows are not needed in the meantime

    def go_on(self) -> None:
        """Take the step back after `pause`."""
        if self._own:
            for step, chain in zip(self._steps, self._own, strict=True):
                step.go_on_with(chain)
        else:
            self.run.step.sampling_state = self._away
            self._own = [step.chain for step in self._steps]
        self._away = None

    def _other_chain(self) -> SGMCMCStep | None:
        """Return the step that has begun another chain since this chain's last draw, if any."""
        each = zip(self._steps, self._own, strict=True)
        return next((step for step, chain in each if step.chain is not chain), None)

    def _check_step(self) -> None:
        """Raise an error if anything other than this run has drawn with the step."""
        if (step := self._other_chain()) is not None:
            raise RuntimeError(
                f"This {type(step).__name__} has begun another chain while this run is in "
                "progress, perhaps in its callback, and a step holds the state of one chain. Give "
                "the other run its own step: step=copy.deepcopy(step)."
            )

    def restore(self, n_draws: int, state: dict[str, Any]) -> None:
        self.n_draws = n_draws
        self.point = {name: state["point"][name] for name in self.point}
        step = self.run.step
        step.sampling_state = from_plain(state["step"], step.sampling_state)

    def blocks(self) -> Iterator[Block | Stopped]:
        run, step, waiting = self.run, self.run.step, _Waiting(self)
        failure: dict[str, Any] | None = None
        try:
            while self.n_draws < run.total and failure is None:
                raise_deferred()
                self._check_step()
                if self.n_draws == run.tune:
                    step.stop_tuning()
                self._abandoned = True  # unless the draw ends
                try:
                    point, stats = step.step(self.point)
                except BadStart as error:
                    yield Stopped(self.chain, f"Chain {self.chain} stopped at once. {error}")
                    return
                self._abandoned = False
                failure = _nonfinite(stats)
                if failure is None:
                    waiting.add(point, stats)
                    self.point = point
                    self.n_draws += 1
                    if waiting.due():
                        yield waiting.block()
            if waiting.draws:
                yield waiting.block()
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not self._abandoned:  # between blocks
                raise
            self._abandoned = True
            if waiting.draws:
                yield waiting.block()
            raise
        if failure is not None:
            yield Stopped(self.chain, reason_to_stop(run, self.chain, self.n_draws, failure))


class _Waiting:
    """Draws of one chain that have not been passed on yet."""

    def __init__(self, runner: ChainRunner):
        self.runner = runner
        self.trace = runner.run.recorder.trace
        self.draws: list[tuple[PointType, Sequence | None, Sequence]] = []
        self.first = runner.n_draws
        size = sum(
            int(np.prod(shape)) * np.dtype(self.trace.var_dtypes[name]).itemsize
            for name, shape in self.trace.var_shapes.items()
        )
        if runner.run.needs_points:
            size += sum(np.asarray(value).nbytes for value in runner.point.values())
        self.most = 1 if runner.run.each_draw else max(1, BYTES_PER_BLOCK // max(size, 1))
        self.since = time.perf_counter()

    def add(self, point: PointType, stats: Sequence[dict[str, Any]]) -> None:
        run = self.runner.run
        kept = run.wants_warmup or self.runner.n_draws >= run.tune
        # One call per draw, like PyMC's recorder, so that recorded values are bitwise the same.
        values = self.trace.fn(*point.values()) if kept else None
        self.draws.append((point, values, stats))

    def due(self) -> bool:
        return (
            len(self.draws) >= self.most
            or time.perf_counter() - self.since > SECONDS_PER_BLOCK
            or self.runner.n_draws == self.runner.run.tune
        )

    def block(self) -> Block:
        points, values, stats = zip(*self.draws, strict=True)
        run = self.runner.run
        n = len(points)
        columns = {}
        if run.wants_warmup or self.first >= run.tune:
            columns = {
                name: np.array(column, dtype=self.trace.var_dtypes[name])[None]
                for name, column in zip(self.trace.varnames, zip(*values, strict=True), strict=True)
            }
        block = Block(
            self.runner.chains,
            self.first,
            n,
            columns,
            [
                {name: _column(name, dtype, k, stats)[None] for name, dtype in dtypes.items()}
                for k, dtypes in enumerate(run.step.stats_dtypes)
            ],
            [list(points)] if run.needs_points else None,
        )
        # Done last, so that after an earlier Ctrl-C the same draws are passed on again, in the same
        # places.
        self.first, self.draws, self.since = self.first + n, [], time.perf_counter()
        return block


def _column(name: str, dtype: Any, sampler: int, stats: Sequence[Sequence[dict]]) -> np.ndarray:
    """Return one statistic of one step over draws; 0 where it is missing, as in PyMC."""
    column = np.zeros(len(stats), dtype=dtype)
    for i, draw in enumerate(stats):
        if name in draw[sampler]:
            column[i] = draw[sampler][name]
    return column


def _forget_other_chains(step: Any, fresh: Any) -> None:
    """Give steps their first state; ours begin a chain without it, and keep that of others."""
    if isinstance(step, CompoundStep):
        for one, state in zip(step.methods, fresh.methods, strict=True):
            _forget_other_chains(one, state)
    elif not isinstance(step, SGMCMCStep):
        step.sampling_state = fresh


def _reads_in_order(step: SGMCMCStep) -> bool:
    """Whether rows come from an iterable, which must restart to be read from the middle."""
    streamed = step.source.streamed
    return streamed is not None and not streamed.by_row


def _nonfinite(stats: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the variable that became non-finite in a draw and where, or None."""
    for step_stats in stats:
        if step_stats.get("nonfinite", False):
            return step_stats["warning"].extra
    return None


def sequential(run: Run) -> Generator[Event]:
    """Run all chains in this process, in turns of at most about half a second.

    Steps that are not ours, such as PyMC's, run one chain after another, because not all of them
    save their whole state.
    """
    ours = minibatch_steps(run.step)
    in_turns = len(ours) == len(flatten_steps(run.step))
    # This may be inside the callback of a run of pm.sample, which continues afterwards.
    earlier = {step: step.chain for step in ours if step.n_updates > 0}
    waiting = deque(range(run.n_chains))
    begun: dict[int, tuple[ChainRunner, Generator]] = {}
    began_run = time.perf_counter()
    try:
        while waiting:
            began = time.perf_counter()
            chain = waiting.popleft()
            if chain in begun:
                runner, events = begun[chain]
                runner.go_on()
            else:
                runner = ChainRunner(run, chain)
                events = run_and_keep(runner, run)
                begun[chain] = runner, events
            changed = time.perf_counter()
            turn = min(SECONDS_PER_TURN, PART_PER_TURN * (changed - began_run))
            turn = max(turn, TURNS_PER_CHANGE * (changed - began))
            for event in events:
                yield event
                if in_turns and waiting and time.perf_counter() - changed > turn:
                    runner.pause()
                    waiting.append(chain)
                    break
    finally:
        for _, events in begun.values():
            events.close()
        for step, chain in earlier.items():
            step.go_on_with(chain)
