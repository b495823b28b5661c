"""The chains of a run, advanced to their end or to Ctrl-C, with no draw lost."""

import itertools
import logging
import signal
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress

from pymc.exceptions import SamplingError
from xarray import DataTree

from pymc_sgmcmc.adaptation.time_limit import TimeLimit
from pymc_sgmcmc.backends import interrupts
from pymc_sgmcmc.run.adapted_run import FreeLength, describe_adaptation
from pymc_sgmcmc.run.collect import collect
from pymc_sgmcmc.run.enough_draws import EnoughDraws
from pymc_sgmcmc.run.progress import Progress
from pymc_sgmcmc.run.result import InMemoryDraws, salvage
from pymc_sgmcmc.run.result_form import example_of
from pymc_sgmcmc.run.run import Event, Run, Stopped
from pymc_sgmcmc.run.step_in_use import in_use

_log = logging.getLogger("pymc.sgmcmc")


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
    """Advance all chains with the engine and return the draws.

    Parameters
    ----------
    run : Run
    engine : callable
    convert : callable
        Makes a DataTree of draws in memory.
    progress : Progress
    callback : callable, optional
    length : FreeLength, optional
        For a run that ends when its draws are enough.
    needs : callable, optional
        How many times as many draws a verdict on a result needs.
    limit : TimeLimit, optional
    """
    store, in_memory = run.store, None
    example = example_of(run, convert)
    if store is None:
        in_memory = InMemoryDraws(run)
    else:
        run = store.begin(run, example)
    events = engine(run)
    if store is not None and min(store.n_draws) >= run.draws and not run.observed:
        events.close()
    began = time.perf_counter()

    def result() -> DataTree:
        seconds = time.perf_counter() - began
        if in_memory is not None:
            return convert(in_memory, seconds=seconds)
        with suppress(OSError):  # a full disk can be read
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
            closing(events),  # the engine ends when no draw is on its way
        ):
            # The progress bar has a thread, and a process should not be forked while threads run.
            first = [event for event in [next(events, None)] if event is not None]
            with progress:
                events_and_first = itertools.chain(first, events)
                collect(events_and_first, in_memory, progress, callback, run, stops, enough, limit)
    except KeyboardInterrupt:
        interrupted = True
    except BaseException as error:  # a handler of SIGTERM, say, that calls sys.exit
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
