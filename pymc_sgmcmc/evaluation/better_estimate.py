"""The largest of several estimates of log p(x | theta), each of which is too low on average."""

import numpy as np
import xarray as xr

from pymc_sgmcmc.evaluation.marginal_likelihood import summary


def better_estimate(*estimates: xr.Dataset) -> xr.Dataset:
    """Choose, for each draw of theta, the estimate with the largest mean over the rows.

    The estimates of annealed and of plain importance sampling are both too low on average, the more
    so the worse the method works, so the larger of the two means is the better one. The choice is
    made for all rows together: the larger estimate of each single row would be too high, by about
    the size of its error.

    Parameters
    ----------
    *estimates : xarray.Dataset
        Results of `log_marginal_likelihood` for the same draws and rows.

    Returns
    -------
    xarray.Dataset
        As from `log_marginal_likelihood`, with the errors and effective sample sizes of the chosen
        estimates, and ``method`` (chain, draw): "ais" or "importance".

    Raises
    ------
    ValueError
        If there are no estimates, or they differ in their draws or number of rows.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> with pm.Model(coords={"obs": range(5)}) as model:
    ...     w = pm.Normal("w")
    ...     z = pm.Bernoulli("z", 0.3, dims="obs")
    ...     x = pm.Normal("x", w * z, 1, observed=np.linspace(-1, 1, 5), dims="obs")
    >>> ais, importance = (
    ...     sgm.log_marginal_likelihood(
    ...         {"w": 2.0}, [z], model=model, random_seed=1, method=method, n_temperatures=20
    ...     )
    ...     for method in ("ais", "importance")
    ... )
    >>> best = sgm.better_estimate(ais, importance)
    >>> bool(best.mean_log_p == max(ais.mean_log_p, importance.mean_log_p))
    True
    """
    if not estimates:
        raise ValueError("better_estimate needs results of log_marginal_likelihood: pass some.")
    first = estimates[0]
    for other in estimates[1:]:
        if not all(first[d].equals(other[d]) for d in ("chain", "draw", "row")):
            raise ValueError(
                "better_estimate: the estimates are of different draws or rows, "
                f"{dict(first.sizes)} and {dict(other.sizes)}. Pass estimates of the same ones."
            )
    best = np.argmax([e.mean_log_p.values for e in estimates], axis=0)

    def chosen(name: str) -> np.ndarray:
        stacked = np.stack([e[name].values for e in estimates])
        return np.take_along_axis(stacked, best[None, ..., None], axis=0)[0]

    coords = {d: first[d].to_numpy() for d in ("chain", "draw")}
    result = summary(coords, chosen("log_p"), chosen("log_p_mcse"), chosen("ess"), {})
    methods = np.array([e.attrs["method"] for e in estimates])
    return result.assign(method=(("chain", "draw"), methods[best]))
