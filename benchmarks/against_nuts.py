"""Samples a model by the default call and by PyMC's NUTS, times both, and compares them."""

import time
from collections.abc import Callable, Sequence

import arviz as az
import numpy as np
import pymc as pm
from pymc.distributions.transforms import log
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


def extremes(
    model: pm.Model, ours: DataTree, nuts: DataTree, names: Sequence[str]
) -> dict[str, float]:
    """Return the largest differences of all elements of the named variables, as columns of a table.

    Variables that PyMC samples on the logarithmic scale are compared there.
    """
    errors, ratios, sizes = [], [], []
    positive = {rv.name for rv in model.free_RVs if model.rvs_to_transforms[rv] is log}
    for name in names:
        change: Callable = np.log if name in positive else np.asarray
        own, other = (
            change(tree.posterior[name].values).reshape(4 * tree.posterior.sizes["draw"], -1)
            for tree in (ours, nuts)
        )
        errors += list(np.abs(own.mean(axis=0) - other.mean(axis=0)) / other.std(axis=0))
        ratios += list(own.std(axis=0) / other.std(axis=0))
        sizes.append(float(az.ess(nuts.posterior.to_dataset()[[name]])[name].min()))
    return {
        "error": max(errors),
        "sd low": min(ratios),
        "sd high": max(ratios),
        "NUTS ess": min(sizes),
    }
