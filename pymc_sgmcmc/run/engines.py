"""Choose how the chains of a run are advanced: in turns, in processes, together, on a cluster."""

import logging
from collections.abc import Generator
from typing import Any

import numpy as np
from pymc.step_methods.compound import flatten_steps

from pymc_sgmcmc.run.cluster import client_of, on_cluster
from pymc_sgmcmc.run.processes import context_for, parallel
from pymc_sgmcmc.run.run import Event, Run
from pymc_sgmcmc.run.sequential import sequential
from pymc_sgmcmc.run.vectorized import check_step, vectorized
from pymc_sgmcmc.step import SGMCMCStep

_log = logging.getLogger("pymc.sgmcmc")

MOST_ELEMENTS_ON_CPU = 200_000
"""Elements of all chains above which one chain alone keeps a CPU busy."""
METHODS = ("sequential", "parallel", "vectorized", "dask")


def _default_method(run: Run, cores: int, uses_jax: bool) -> str:
    """Choose the fastest method, including compilation; docs/scaling.md has measurements."""
    if run.n_chains == 1:
        return "sequential"
    if not uses_jax:
        return "parallel" if cores > 1 else "sequential"
    try:
        check_step(run.step)
    except ValueError:
        return "sequential"
    n_elements = run.n_chains * sum(np.size(value) for value in run.starts[0].values())
    small = n_elements <= MOST_ELEMENTS_ON_CPU
    return "vectorized" if small or run.step.kernel.backend.has_accelerator else "sequential"


def engine_of(
    run: Run, method: str | None, cores: int, mp_ctx: Any, blas_cores: Any, client: Any
) -> tuple[Generator[Event], str]:
    """Return the engine of a chain method, or the one that suits the backend."""
    steps = flatten_steps(run.step)
    uses_jax = any(s.kernel.backend.is_jax for s in steps if isinstance(s, SGMCMCStep))
    if method is None:
        method = _default_method(run, cores, uses_jax)
    if method == "vectorized":
        check_step(run.step)
        run.together = True
        _log.info(f"chain_method='vectorized': {run.n_chains} chains in one compiled call")
        return vectorized(run), method
    if method == "parallel":
        context = context_for(mp_ctx, uses_jax)
        workers = max(1, cores)
        threads = cores if blas_cores == "auto" else blas_cores
        threads = None if threads is None else max(1, threads // workers)
        _log.info(
            f"chain_method='parallel': {run.n_chains} chains in {workers} processes "
            f"({context.get_start_method()})"
        )
        return parallel(run, workers, context, threads), method
    if method == "dask":
        client = client_of(client)
        n_workers = len(client.scheduler_info()["workers"])
        _log.info(f"chain_method='dask': {run.n_chains} chains on {n_workers} workers")
        return on_cluster(run, client), method
    if method == "sequential":
        _log.info(f"chain_method='sequential': {run.n_chains} chains, one after another")
        return sequential(run), method
    raise ValueError(f"chain_method={method!r} must be one of {', '.join(map(repr, METHODS))}.")
