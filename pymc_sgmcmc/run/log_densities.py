"""Log likelihood and log prior of a result's draws, if `idata_kwargs` requests them.

PyMC computes them from its recorders, which a store does not have.
"""

import logging
from typing import Any

from pymc.model import Model
from pymc.stats.log_density import compute_log_likelihood, compute_log_prior
from xarray import DataTree

from pymc_sgmcmc.backends.compile_time import compile_lock

_log = logging.getLogger("pymc.sgmcmc")

COMPUTE = {"log_likelihood": compute_log_likelihood, "log_prior": compute_log_prior}


def without_log_densities(idata_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the conversion without those for log densities."""
    return {name: value for name, value in idata_kwargs.items() if name not in COMPUTE}


def with_log_densities(tree: DataTree, model: Model, idata_kwargs: dict[str, Any]) -> DataTree:
    """Add the requested groups to a result, which has the draws of all free variables."""
    for name, compute in COMPUTE.items():
        wanted = idata_kwargs.get(name, False)
        if wanted is False or wanted is None:
            continue
        try:
            with compile_lock:
                compute(
                    tree,
                    var_names=None if wanted is True else wanted,
                    model=model,
                    sample_dims=idata_kwargs.get("sample_dims") or ("chain", "draw"),
                    progressbar=False,
                )
        except KeyboardInterrupt:
            _log.warning(f"Interrupted: {name} is not computed. pm.compute_{name} can do so later.")
            return tree
    return tree
