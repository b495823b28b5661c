"""One chain from its start, or from a saved state, to its end, in blocks of draws.

The seam between what makes draws and what keeps them. A *runner* advances some chains in step and
hands out blocks; `run_and_keep` writes them to a store, with the runner's state now and then. An
*engine* decides where runners run: one after another here, each in a process of its own
(`processes.py`), all chains in one compiled call.
"""

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pytensor
from pymc.backends.ndarray import NDArray
from pymc.blocking import PointType
from pymc.model import Model
from pymc.step_methods.compound import flatten_steps
from pymc.util import RandomGeneratorState, random_generator_from_state
from pytensor.graph.replace import vectorize_graph

from pymc_sgmcmc.gradients.arrays import has_named_dims, tensor_model
from pymc_sgmcmc.gradients.start_check import BadStart
from pymc_sgmcmc.run.plain import from_plain, to_plain
from pymc_sgmcmc.step import SGMCMCStep

SECONDS_PER_BLOCK = 0.1
"""Draws are handed on about ten times a second: often enough for a progress bar."""
BYTES_PER_BLOCK = 2**23
"""... or sooner, where draws are large."""
SECONDS_PER_TURN = 0.5
"""Chains in one process take turns of at least this long,"""
TURNS_PER_CHANGE = 20
"""... and of this multiple of what changing costs: a shuffle of all row numbers."""
TILE = 64
"""Points that `Run.record` turns into recorded variables in one call."""


@dataclass
class Block:
    """Consecutive draws of some chains, all of them from tuning or none."""

    chains: range
    first: int
    """Number of the first draw, tuning included."""
    n_draws: int
    values: dict[str, np.ndarray]
    """Recorded variables, shapes (chains, draws, ...); empty for draws that are not kept."""
    stats: list[dict[str, np.ndarray]]
    """Statistics of each step, shapes (chains, draws, ...)."""
    points: list[list[PointType]] | None = None
    """Value variables of each chain's draws, where a callback wants them."""


@dataclass
class Stopped:
    """A chain that ended before its time, with the reason for the user."""

    chain: int
    message: str


@dataclass
class Resumed:
    """Chains that go on after some draws, tuning included, of an earlier run."""

    chains: range
    n_draws: int


Event = Block | Stopped | Resumed


@dataclass
class Run:
    """What all chains of a run share. Starts and generators have one entry a chain."""

    model: Model
    step: Any
    tune: int
    draws: int
    starts: list[PointType]
    rngs: list[RandomGeneratorState]
    """States, not generators: NumPy forgets a generator's children when it pickles it."""
    vars: list
    """Variables to record, in terms of value variables."""
    keep_warmup: bool
    each_draw: bool = False
    """Blocks of one draw, with its point, for a callback."""
    store: Any = None
    seed: Any = None
    """As it was given, as plain values."""
    together: bool = False
    """Whether one runner advances all chains."""
    fresh: Any = None
    """The step's state before its first chain."""
    recorder: NDArray | None = field(default=None, repr=False)
    """What `recorded` gives, once it is there; to be forgotten where `vars` change."""
    _record: Any = field(default=None, repr=False)

    @property
    def n_chains(self) -> int:
        return len(self.starts)

    @property
    def chains_together(self) -> int:
        """Chains of one runner."""
        return self.n_chains if self.together else 1

    @property
    def wants_warmup(self) -> bool:
        """Whether draws of tuning are made into recorded variables."""
        return self.keep_warmup or self.each_draw

    @property
    def total(self) -> int:
        return self.tune + self.draws

    @property
    def recorded(self) -> NDArray:
        """PyMC's recorder: what turns a point into recorded variables, their names and types.

        Compiled where it is first needed, so a run can be sent to another process.
        """
        if self.recorder is None:
            self.recorder = NDArray(model=self.model, vars=self.vars, test_point=self.starts[0])
        return self.recorder

    def record(self, points: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Turn many points into recorded variables at once, for engines with many chains.

        Parameters
        ----------
        points : dict
            Value variables by name, shapes (n, ...).

        Returns
        -------
        dict
            Recorded variables by name, shapes (n, ...), C-contiguous.
        """
        values = self.model.value_vars
        derived = [v for v in self.recorded.vars if v not in values]
        if derived and self._record is None:
            inputs, outs = values, derived
            if has_named_dims(self.model):
                plain = tensor_model(self.model)
                inputs, outs = plain.value_vars, plain.tensors(derived)
            many = [v.type.clone(shape=(TILE, *v.type.shape))(v.name) for v in inputs]
            outs = vectorize_graph(outs, dict(zip(inputs, many, strict=True)))
            self._record = pytensor.function(many, outs, on_unused_input="ignore")
        n = len(next(iter(points.values())))
        columns: dict[str, list] = {v.name: [] for v in derived}
        for first in range(0, n if derived else 0, TILE):
            # Tiles of one size: where a block ends must not change how its draws are computed.
            tile = [points[v.name][first : first + TILE] for v in values]
            short = TILE - len(tile[0])
            if short:
                tile = [np.concatenate([t, np.repeat(t[-1:], short, axis=0)]) for t in tile]
            for name, column in zip(columns, self._record(*tile), strict=True):
                columns[name].append(np.asarray(column)[: TILE - short])
        made = {name: np.concatenate(column) for name, column in columns.items()}
        return {
            v.name: np.ascontiguousarray(
                made[v.name] if v.name in made else points[v.name],
                dtype=self.recorded.var_dtypes[v.name],
            )
            for v in self.recorded.vars
        }

    def __getstate__(self):
        return self.__dict__ | {"recorder": None, "_record": None}


class Runner(Protocol):
    """What advances one chain, or several at once with all of them at the same draw."""

    chains: range

    def blocks(self) -> Iterator[Block | Stopped]:
        """Run to the end. What `state` says holds between blocks."""
        ...

    def state(self) -> dict[str, Any]:
        """All that the next draws depend on, as plain values (see `plain.py`)."""
        ...

    def restore(self, n_draws: int, state: dict[str, Any]) -> None:
        """Go on after ``n_draws`` draws, tuning included."""
        ...


class ChainRunner:
    """Runs one chain with PyMC's steps, in this process."""

    def __init__(self, run: Run, chain: int):
        self.run = run
        self.chain = chain
        self.chains = range(chain, chain + 1)
        self.point = run.starts[chain]
        self.n_draws = 0
        step = run.step
        step.sampling_state = run.fresh  # nothing is left of another chain
        step.setup_chain(random_generator_from_state(run.rngs[chain]), run.tune, run.draws)
        step.tune = run.tune > 0
        if hasattr(step, "reset_tuning"):
            step.reset_tuning()
        if hasattr(step, "iter_count"):
            step.iter_count = 0
        self._away: Any = None

    def state(self) -> dict[str, Any]:
        state = self.run.step.sampling_state if self._away is None else self._away
        return {"point": dict(self.point), "step": to_plain(state, "step")}

    def pause(self) -> None:
        """Leave the step to another chain."""
        self._away = self.run.step.sampling_state

    def go_on(self) -> None:
        """Take the step back after `pause`."""
        self.run.step.sampling_state, self._away = self._away, None

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
                if self.n_draws == run.tune:
                    step.stop_tuning()
                try:
                    point, stats = step.step(self.point)
                except BadStart as error:
                    yield Stopped(self.chain, f"Chain {self.chain} stopped at once. {error}")
                    return
                failure = _nonfinite(stats)
                if failure is None:
                    waiting.add(point, stats)
                    self.point = point
                    self.n_draws += 1
                    if waiting.due():
                        yield waiting.block()
        except BaseException:
            if waiting.draws:
                yield waiting.block()
            raise
        if waiting.draws:
            yield waiting.block()
        if failure is not None:
            yield Stopped(self.chain, self._reason(failure))

    def _reason(self, failure: dict[str, Any]) -> str:
        phase = "tuning " if self.n_draws < self.run.tune else ""
        done = self.n_draws - (0 if phase else self.run.tune)
        return (
            f"Chain {self.chain} stopped after {done} {phase}draws: {failure['name']} "
            f"became non-finite at update {failure['update']} with step size "
            f"{failure['step_size']:.4g}. Try a smaller step_size or a larger batch_size, "
            "standardise the data, or start elsewhere (initvals=)."
        )


class _Waiting:
    """Draws of one chain that have not been handed on."""

    def __init__(self, runner: ChainRunner):
        self.runner = runner
        self.recorded = runner.run.recorded
        self.draws: list[tuple[PointType, Sequence | None, Sequence]] = []
        self.first = runner.n_draws
        size = sum(
            int(np.prod(shape)) * np.dtype(self.recorded.var_dtypes[name]).itemsize
            for name, shape in self.recorded.var_shapes.items()
        )
        self.most = 1 if runner.run.each_draw else max(1, BYTES_PER_BLOCK // max(size, 1))
        self.since = time.perf_counter()

    def add(self, point: PointType, stats: Sequence[dict[str, Any]]) -> None:
        run = self.runner.run
        kept = run.wants_warmup or self.runner.n_draws >= run.tune
        # As PyMC's recorder does it, one call a draw, so that recorded values are the same bits.
        values = self.recorded.fn(*point.values()) if kept else None
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
        first, self.first = self.first, self.first + n
        columns = {}
        if run.wants_warmup or first >= run.tune:
            columns = {
                name: np.array(column, dtype=self.recorded.var_dtypes[name])[None]
                for name, column in zip(
                    self.recorded.varnames, zip(*values, strict=True), strict=True
                )
            }
        self.draws = []
        self.since = time.perf_counter()
        return Block(
            self.runner.chains,
            first,
            n,
            columns,
            [
                {name: _column(name, dtype, k, stats)[None] for name, dtype in dtypes.items()}
                for k, dtypes in enumerate(run.step.stats_dtypes)
            ],
            [list(points)] if run.each_draw else None,
        )


def _column(name: str, dtype: Any, sampler: int, stats: Sequence[Sequence[dict]]) -> np.ndarray:
    """Return one statistic of one step over draws; 0 where it is missing, as PyMC has it."""
    column = np.zeros(len(stats), dtype=dtype)
    for i, draw in enumerate(stats):
        if name in draw[sampler]:
            column[i] = draw[sampler][name]
    return column


def _nonfinite(stats: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Name what became non-finite in a draw, if anything."""
    for step_stats in stats:
        if step_stats.get("nonfinite", False):
            return step_stats["warning"].extra
    return None


def run_and_keep(runner: Runner, run: Run) -> Generator[Event]:
    """Run chains to their end, keeping their blocks in the run's store, if it has one.

    Goes on from what the store holds of these chains. What the store keeps does not come out
    again, unless a callback wants it: those blocks have no values.
    """
    if run.store is None:
        yield from runner.blocks()
        return
    with run.store.writer(run, runner.chains) as writer:
        if writer.n_draws:
            runner.restore(writer.n_draws, writer.state)
            yield Resumed(runner.chains, writer.n_draws)
        stopped = False
        try:
            for event in runner.blocks():
                stopped = stopped or isinstance(event, Stopped)
                if isinstance(event, Block):
                    writer.write(event)
                    if writer.due():
                        writer.commit(runner.state())
                    if not run.each_draw:
                        event.values = {}
                yield event
        except GeneratorExit:  # between blocks: the state is that after the last
            writer.commit(runner.state())
            raise
        except BaseException:  # in the middle of a draw, or of a write
            with suppress(OSError):  # what is wrong with the store has been said
                writer.commit(None)
            raise
        # A chain that stopped is left as it was, so that resuming finds the same.
        writer.commit(None if stopped else runner.state())


def sequential(run: Run) -> Generator[Event]:
    """Engine: all chains in this process, in turns of about half a second.

    So Ctrl-C finds all of them about equally far. PyMC's steps and those of others run one chain
    after another: not all save their whole state.
    """
    in_turns = all(isinstance(step, SGMCMCStep) for step in flatten_steps(run.step))
    waiting = deque(range(run.n_chains))
    begun: dict[int, tuple[ChainRunner, Generator]] = {}
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
            turn = max(SECONDS_PER_TURN, TURNS_PER_CHANGE * (changed - began))
            for event in events:
                yield event
                if in_turns and waiting and time.perf_counter() - changed > turn:
                    runner.pause()
                    waiting.append(chain)
                    break
    finally:
        for _, events in begun.values():
            events.close()
