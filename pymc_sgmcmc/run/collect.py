"""Handle the events of an engine: keep draws, show progress, log, and call the callback."""

import logging
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from pymc.sampling.parallel import Draw
from pymc.stats.convergence import log_warning_stats

from pymc_sgmcmc.adaptation.time_limit import TimeLimit
from pymc_sgmcmc.run.enough_draws import EnoughDraws
from pymc_sgmcmc.run.predicting import receive
from pymc_sgmcmc.run.progress import Progress
from pymc_sgmcmc.run.result import InMemoryDraws
from pymc_sgmcmc.run.run import Block, Event, Predicted, Resumed, Run, Stopped

_log = logging.getLogger("pymc.sgmcmc")


def collect(
    events: Iterable[Event],
    in_memory: InMemoryDraws | None,
    progress: Progress,
    callback: Callable | None,
    run: Run,
    stops: list[Stopped],
    enough: EnoughDraws | None = None,
    limit: TimeLimit | None = None,
) -> None:
    """Keep the engine's draws, show progress, and pass each draw to the callback.

    Returns when the engine has ended, there are ``enough`` draws or the time has passed.
    """
    for event in events:
        if isinstance(event, Stopped):
            stops.append(event)
            if event.message:
                _log.error(event.message)
            progress.failed(event.chain)
            continue
        if isinstance(event, Predicted):
            receive(run, event)
            continue
        if isinstance(event, Resumed):
            progress.resumed(event)
            continue
        if in_memory is not None:
            in_memory.write(event)
        progress.block(event)
        _log_warnings(event)
        if callback is not None:
            for number, draw in _draws(event, run):
                trace = run.store if in_memory is None else in_memory.traces[number]
                callback(trace=trace, draw=draw)
        if enough is not None and enough.reached():
            return
        if limit is not None and limit.has_passed:
            remedy = "With trace=, a run can be resumed."
            if run.store is not None:
                remedy = "Call it again with resume=True to go on."
            _log.warning(
                f"max_seconds={limit.seconds:g} have passed: the draws made so far are returned. "
                f"{remedy}"
            )
            return


def _draws(block: Block, run: Run) -> Iterator[tuple[int, Draw]]:
    """A block's draws as PyMC's callbacks know them."""
    assert block.points is not None
    for k, chain in enumerate(block.chains):
        for i, point in enumerate(block.points[k][: block.count(k)]):
            number = block.first + i
            stats = [{name: values[k, i] for name, values in s.items()} for s in block.stats]
            last = number + 1 == run.total
            yield chain, Draw(chain, last, number, number < run.tune, stats, point)


def _log_warnings(block: Block) -> None:
    for stats in block.stats:
        for values in stats.get("warning", np.empty(0, dtype=object)).flat:
            if values:
                log_warning_stats([{"warning": values}])
