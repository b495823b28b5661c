"""The seam between what makes draws and what keeps them.

A *runner* advances some chains in step and hands out blocks; `run_and_keep` writes them to a store,
with the runner's state now and then. An *engine* decides where runners run: one after another
(`sequential.py`), each in a process of its own (`processes.py`) or as a task of a cluster
(`cluster.py`), all chains in one compiled call (`vectorized.py`).
"""

from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, Protocol

from pymc_sgmcmc.run.run import Block, Event, Resumed, Run, Stopped


class Runner(Protocol):
    """What advances one chain, or several at once with all of them at the same draw."""

    chains: range

    def blocks(self) -> Iterator[Block | Stopped]:
        """Run to the end. What `state` says holds between blocks."""
        ...

    def state(self) -> dict[str, Any]:
        """All that the next draws depend on, as plain values (see `saved_state.py`)."""
        ...

    def restore(self, n_draws: int, state: dict[str, Any]) -> None:
        """Go on after ``n_draws`` draws, tuning included."""
        ...


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
        # A chain that stopped is left as it was, so that resuming finds the same; the state of
        # several says which have.
        writer.commit(None if stopped and not run.together else runner.state())
