"""The interface between making draws and keeping them.

A *runner* advances some chains together and yields blocks; `run_and_keep` writes them to a store,
and from time to time the runner's state. An *engine* decides where runners run: in turns in one
process (`sequential.py`), each in its own process (`processes.py`) or as a task of a cluster
(`cluster.py`), all chains in one compiled call (`vectorized.py`).
"""

from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, Protocol

from pymc_sgmcmc.run.predicting import PredictingRunner, of_runner
from pymc_sgmcmc.run.run import Block, Event, Resumed, Run, Stopped


class Runner(Protocol):
    """Advances one chain, or several at once that are always at the same draw."""

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
    """Run chains to their end, keeping their blocks in the run's store, if it has one.

    Continues from the draws that the store has of these chains. Blocks that the store keeps are
    yielded without values, unless a callback needs them.
    """
    if run.observed:
        runner = PredictingRunner(runner, run)
    if run.store is None:
        yield from runner.blocks()
        return
    with run.store.writer(run, runner.chains) as writer:
        if writer.n_draws:
            if not run.predictions and writer.state.get("predictions"):
                raise ValueError(
                    "The stored run averages predictions: resume it with the same predictions=, "
                    "or begin a new run."
                )
            runner.restore(
                writer.n_draws, writer.state if run.observed else of_runner(writer.state)
            )
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
        except GeneratorExit:  # between blocks: the state is that after the last block
            writer.commit(runner.state())
            raise
        except BaseException:  # in the middle of a draw, or of a write
            with suppress(OSError):  # an error of the store has been raised already
                writer.commit(None)
            raise
        # The state of a single chain that stopped is not saved, so that it stops again if resumed;
        # the state of chains together says which have stopped.
        writer.commit(None if stopped and not run.together else runner.state())
