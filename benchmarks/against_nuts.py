"""Samples a model by the default call and by PyMC's NUTS, and times both."""

import time

import pymc as pm
from xarray import DataTree

import pymc_sgmcmc as sgm


def sample_both(
    model: pm.Model, target_accept: float = 0.8
) -> tuple[DataTree, DataTree, float, float]:
    """Draws of `sgm.sample()` and of NUTS, and the seconds of each, with compilation.

    NUTS has 4 chains of 1000 draws after 1000 of tuning, one chain after another.
    """
    began = time.perf_counter()
    with model:
        ours = sgm.sample(random_seed=1, progressbar=False, quiet=True)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    with model:
        nuts = pm.sample(
            1000, tune=1000, chains=4, cores=1, random_seed=2, target_accept=target_accept,
            progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
    return ours, nuts, seconds, time.perf_counter() - began
