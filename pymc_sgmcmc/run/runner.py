"""The interface between making draws and keeping them.

A *runner* advances some chains together and yields blocks; `run_and_keep` shows them to the run's
observers and writes them to its store, at intervals together with the runner's state. An *engine*
decides where runners run: `sequential.py`, `processes.py`, `cluster.py` or `vectorized.py`.
"""

from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, Protocol

from pymc_sgmcmc.run.run_events import Block, Event, Resumed, Run, Stopped


class Runner(Protocol):
    """Advances one chain, or several chains that are always at the same draw."""

    chains: range

    def blocks(self) -> Iterator[Block | Stopped]:
        """Run to the end. `state` is valid between blocks."""
        ...

    def state(self) -> dict[str, Any] | None:
        """Everything that the next draws depend on, as plain values (see `saved_state.py`)."""
        ...

    def restore(self, n_draws: int, state: dict[str, Any]) -> None:
        """Continue after ``n_draws`` draws, tuning included."""
        ...


def run_and_keep(runner: Runner, run: Run) -> Generator[Event]:
    """Run chains to their end, from the draws that the store has, and keep their blocks in it.

    Blocks that the store keeps are yielded without values, unless a callback needs them.
    """
    run.observers.begin(runner.chains)
    if run.store is None:
        yield from _observed(runner, run)
        return
    with run.store.writer(run, runner.chains) as writer:
        if writer.n_draws:
            run.observers.check_stored(writer.state)
            run.observers.restore(runner.chains, writer.state)
            runner.restore(writer.n_draws, writer.state.get("draws", writer.state))
            yield Resumed(runner.chains, writer.n_draws)
        stopped = False
        try:
            for event in _observed(runner, run):
                stopped = stopped or isinstance(event, Stopped)
                if isinstance(event, Block):
                    writer.write(event)
                    if writer.due():
                        writer.commit(_state(runner, run))
                    if not run.each_draw:
                        event.values = {}
                yield event
        except GeneratorExit:  # between blocks: the state is that after the last block
            writer.commit(_state(runner, run))
            raise
        except BaseException:  # in the middle of a draw, or of a write
            with suppress(OSError):  # a store's error has already been raised
                writer.commit(None)
            raise
        # The state of a single chain that stopped is not saved, so that the chain stops again if
        # resumed; the state of chains together records which have stopped.
        writer.commit(None if stopped and not run.together else _state(runner, run))


def _observed(runner: Runner, run: Run) -> Iterator[Block | Stopped]:
    """Yield a runner's events after the run's observers have seen their draws."""
    for event in runner.blocks():
        if run.observers and isinstance(event, Block):
            if event.first >= run.tune:
                for chain, _, point, stats in event.each_draw():
                    run.observers.add(chain, point, stats)
            if not run.each_draw:
                event.points = None
        yield event


def _state(runner: Runner, run: Run) -> dict[str, Any] | None:
    """Return the state of a runner, with what observers have computed from its chains."""
    state = runner.state()
    if state is None or not run.observers:
        return state
    return {"draws": state, **run.observers.state(runner.chains)}
