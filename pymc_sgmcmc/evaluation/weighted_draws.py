"""Averages over draws of decreasing step sizes, in which each draw has its step size as weight."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from xarray import DataArray, Dataset, DataTree


def weighted(idata: DataTree, var_names: Sequence[str] | None = None) -> Any:
    """Weight draws by their step sizes, for averages over a run whose step size decreased.

    A draw stands for the time that the sampler spent near it, h per update (SGLD: eps_t). Constant
    step sizes give equal weights. The weights are those at a draw's last update, which stand for
    all its updates if the step size hardly changes within a draw.

    Parameters
    ----------
    idata : DataTree
        From `sample` or `pm.sample` with one minibatch step.
    var_names : list of str, optional
        Default: all variables of the posterior.

    Returns
    -------
    xarray.core.weighted.DatasetWeighted
        With the methods ``mean``, ``std``, ``var``, ``sum`` and ``quantile`` of (dim), for example
        ``weighted(idata).mean(["chain", "draw"])``.

    Raises
    ------
    ValueError
        If the result has no single step size per draw.
    KeyError
        For a name that the posterior does not have.

    Notes
    -----
    The weighted average (1 / S_T) sum eps_t phi(theta_t) with S_T = sum eps_t of the pSGLD paper,
    section "Finite-time error analysis".

    References
    ----------
    C. Li, C. Chen, D. Carlson and L. Carin (2016), Preconditioned stochastic gradient Langevin
    dynamics for deep neural networks, AAAI, arXiv:1512.07666.

    Examples
    --------
    >>> import numpy as np, pymc_sgmcmc as sgm, xarray as xr
    >>> dims = ("chain", "draw")
    >>> posterior = xr.Dataset({"mu": (dims, np.array([[1.0, 2.0, 6.0]]))})
    >>> stats = xr.Dataset({"step_size": (dims, np.array([[0.3, 0.2, 0.1]]))})
    >>> idata = xr.DataTree.from_dict({"/posterior": posterior, "/sample_stats": stats})
    >>> round(float(sgm.weighted(idata).mean(dims)["mu"]), 3)
    2.167
    """
    stats = idata["sample_stats"].to_dataset() if "sample_stats" in idata.children else Dataset()
    sizes = stats.get("step_size", DataArray(np.zeros(0), dims="draw"))
    if sizes.dims != ("chain", "draw"):
        found = "there is none" if "step_size" not in stats else f"its dims are {sizes.dims}"
        raise ValueError(
            "weighted needs one step_size per draw in sample_stats, of a run with one minibatch "
            f"step, but {found}."
        )
    posterior = idata["posterior"].to_dataset()
    names = list(posterior.data_vars) if var_names is None else list(var_names)
    for name in names:
        if name not in posterior:
            raise KeyError(f"The posterior has no variable '{name}': {list(posterior.data_vars)}.")
    return posterior[names].weighted(sizes)
