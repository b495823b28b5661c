"""Choose how the chains of a run are advanced: in turn, in processes, together or on a cluster."""

import logging
import multiprocessing
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import numpy as np
from pymc.blocking import PointType

from pymc_sgmcmc.number_checks import shown
from pymc_sgmcmc.run.chains_together import check_step
from pymc_sgmcmc.run.cluster import client_of, on_cluster
from pymc_sgmcmc.run.processes import context_for, parallel
from pymc_sgmcmc.run.run_events import Event, Run
from pymc_sgmcmc.run.sequential import sequential
from pymc_sgmcmc.run.vectorized import vectorized
from pymc_sgmcmc.step import minibatch_steps

_log = logging.getLogger("pymc.sgmcmc")

MAX_ELEMENTS_ON_CPU = 200_000
"""Number of elements, of all chains together, above which a single chain keeps a CPU busy."""
METHODS = ("sequential", "parallel", "vectorized", "dask")


def _forks(step: Any) -> bool:
    return all(one.kernel.backend.forks for one in minibatch_steps(step))


def check_method(method: Any) -> None:
    """Raise an error for an unknown chain method."""
    if method is not None and method not in METHODS:
        raise ValueError(
            f"chain_method={shown(method)} must be one of {', '.join(map(repr, METHODS))}."
        )


def chain_method_of(
    method: str | None,
    step: Any,
    starts: Sequence[PointType],
    cores: int,
    even: bool = False,
) -> str:
    """Return the requested chain method, checked, or the fastest one (see docs/scaling.md).

    With ``even``, as in a run of free length, all chains must have the same number of draws at any
    time.
    """
    if method is not None:
        check_method(method)
        if method == "vectorized":
            check_step(step)
        return method
    if len(starts) == 1:
        return "sequential"
    if _forks(step) and not even:
        daemonic = multiprocessing.current_process().daemon  # in a Pool, say: no children
        return "parallel" if cores > 1 and not daemonic else "sequential"
    try:
        check_step(step)
    except ValueError:
        return "sequential"
    n_elements = len(starts) * sum(np.size(value) for value in starts[0].values())
    small = n_elements <= MAX_ELEMENTS_ON_CPU
    return "vectorized" if small or step.kernel.backend.has_accelerator else "sequential"


def engine_of(
    run: Run, method: str, cores: int, mp_ctx: Any, blas_cores: Any, client: Any
) -> Callable[[Run], Generator[Event]]:
    """Return the engine of a chain method, with its arguments checked."""
    if method == "vectorized":
        _log.info(f"chain_method='vectorized': {run.n_chains} chains in one compiled call")
        return vectorized
    if method == "parallel":
        context = context_for(mp_ctx, _forks(run.step))
        workers = max(1, cores)
        threads = cores if blas_cores == "auto" else blas_cores
        threads = None if threads is None else max(1, threads // workers)
        _log.info(
            f"chain_method='parallel': {run.n_chains} chains in {workers} processes "
            f"({context.get_start_method()})"
        )
        return partial(parallel, workers=workers, mp_ctx=context, blas_threads=threads)
    if method == "dask":
        client = client_of(client)
        n_workers = len(client.scheduler_info()["workers"])
        _log.info(f"chain_method='dask': {run.n_chains} chains on {n_workers} workers")
        return partial(on_cluster, client=client)
    _log.info(f"chain_method='sequential': {run.n_chains} chains, taking turns")
    return sequential
