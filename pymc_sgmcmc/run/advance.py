"""The chains of a run, advanced to their end or to Ctrl-C, with no draw lost.

The events of an engine are handled here: draws are kept, progress is shown, the callback is called.
"""

import itertools
import logging
import signal
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager, suppress
from typing import Any
from weakref import WeakSet

import numpy as np
from pymc.exceptions import SamplingError
from pymc.sampling.parallel import Draw
from pymc.stats.convergence import log_warning_stats
from pymc.step_methods.compound import flatten_steps
from xarray import DataTree

from pymc_sgmcmc.adaptation.warm_up_progress import TimeLimit
from pymc_sgmcmc.backends import interrupts
from pymc_sgmcmc.run.adapted_run import FreeLength, describe_adaptation
from pymc_sgmcmc.run.enough_draws import EnoughDraws
from pymc_sgmcmc.run.progress import Progress
from pymc_sgmcmc.run.result import InMemoryDraws, salvage
from pymc_sgmcmc.run.result_form import example_of
from pymc_sgmcmc.run.run_events import Event, Observed, Resumed, Run, Stopped

_log = logging.getLogger("pymc.sgmcmc")


_in_use: WeakSet[Any] = WeakSet()
"""Steps of runs that have not ended, because a step holds the state of one chain."""


def refuse_step_in_use(step: Any) -> None:
    """Raise an error for a step that belongs to an unfinished run of `sample`."""
    for one in flatten_steps(step):
        if one in _in_use:
            raise RuntimeError(
                f"This {type(one).__name__} is in use by a run of sgm.sample that has not ended, "
                "and a step holds the state of one chain. Give this run its own step: "
                "step=copy.deepcopy(step)."
            )


@contextmanager
def in_use(step: Any) -> Generator[None]:
    """Make other runs refuse a step until the block ends, for whatever reason."""
    steps = flatten_steps(step)
    _in_use.update(steps)
    try:
        yield
    finally:
        _in_use.difference_update(steps)


def advanced(
    run: Run,
    engine: Callable[[Run], Generator[Event]],
    convert: Callable[..., DataTree],
    progress: Progress,
    callback: Callable | None,
    length: FreeLength | None,
    needs: Callable[[DataTree], float] | None,
    limit: TimeLimit | None,
) -> DataTree:
    """Advance all chains with the engine, and return the draws as converted by ``convert``.

    ``needs`` returns the factor by which the verdict on a result of free ``length`` needs more
    draws.
    """
    store, in_memory = run.store, None
    example = example_of(run, convert)
    if store is None:
        in_memory = InMemoryDraws(run)
    else:
        run = store.begin(run, example)
    events = engine(run)
    if store is not None and min(store.n_draws) >= run.draws and not run.observers:
        events.close()
    began = time.perf_counter()

    def result() -> DataTree:
        seconds = time.perf_counter() - began
        if in_memory is not None:
            return convert(in_memory, seconds=seconds)
        with suppress(OSError):  # a full disk can still be read
            store.add_seconds(seconds)
        return store.to_datatree()

    def times_as_many_draws() -> float:
        so_far = convert(in_memory, seconds=0.0, include_data=False)
        describe_adaptation(so_far, run.step, run.tune, with_arrays=False)
        assert needs is not None
        return needs(so_far)

    enough = None
    if in_memory is not None and length is not None:
        times = None if needs is None else times_as_many_draws
        enough = EnoughDraws(run, in_memory, length.ess, times)
    stops: list[Stopped] = []
    interrupted = False
    interrupts.handle()
    try:
        with (
            in_use(run.step),
            interrupts.handled(signal.SIGTERM),
            interrupts.deferred,
            closing(events),  # the engine ends when no draw is in progress
        ):
            # The progress bar has a thread, and a process should not be forked while threads run.
            first = [event for event in [next(events, None)] if event is not None]
            with progress:
                events_and_first = itertools.chain(first, events)
                _collect(events_and_first, in_memory, progress, callback, run, stops, enough, limit)
    except KeyboardInterrupt:
        interrupted = True
    except BaseException as error:  # for example, a SIGTERM handler that calls sys.exit
        salvage(error, result)
        raise
    tree: DataTree | None = None
    try:
        with interrupts.deferred:
            if store is not None:
                store.restore_rest(run)
            tree = result()
    except KeyboardInterrupt:
        if tree is None:
            raise
    except SamplingError as error:
        reasons = ["Interrupted."] if interrupted else [stop.message for stop in stops[:1]]
        if not reasons and limit is not None and limit.has_passed:
            reasons = [f"max_seconds={limit.seconds:g} was too little."]
        raise SamplingError(" ".join([str(error), *reasons])) from None
    except BaseException as error:
        salvage(error, result)
        raise
    if interrupted:
        _log.warning("Interrupted: the draws made so far are returned.")
    return tree


def _collect(
    events: Iterable[Event],
    in_memory: InMemoryDraws | None,
    progress: Progress,
    callback: Callable | None,
    run: Run,
    stops: list[Stopped],
    enough: EnoughDraws | None,
    limit: TimeLimit | None,
) -> None:
    """Keep the engine's draws until it ends, until there are ``enough`` or until the time is up."""
    for event in events:
        if isinstance(event, Stopped):
            stops.append(event)
            if event.message:
                _log.error(event.message)
            progress.failed(event.chain)
            continue
        if isinstance(event, Observed):
            run.observers.restore(event.chains, event.state)
            continue
        if isinstance(event, Resumed):
            progress.resumed(event)
            continue
        if in_memory is not None:
            in_memory.write(event)
        progress.block(event)
        for stats in event.stats:
            for warning in stats.get("warning", np.empty(0, dtype=object)).flat:
                if warning:
                    log_warning_stats([{"warning": warning}])
        if callback is not None:
            for chain, number, point, draw_stats in event.each_draw():
                trace = run.store if in_memory is None else in_memory.traces[chain]
                last, tuning = number + 1 == run.total, number < run.tune
                callback(trace=trace, draw=Draw(chain, last, number, tuning, draw_stats, point))
        if enough is not None:
            if enough.reached():
                progress.kept(enough.look_at)
                return
            progress.expect(enough.look_at)
        if limit is not None and limit.has_passed:
            remedy = "With trace=, a run can be resumed."
            if run.store is not None:
                remedy = "Call it again with resume=True to continue."
            _log.warning(
                f"max_seconds={limit.seconds:g} have passed: the draws made so far are returned. "
                f"{remedy}"
            )
            return
