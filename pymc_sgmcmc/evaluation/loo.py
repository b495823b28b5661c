"""`loo`: leave-one-out cross-validation of data with many rows, based on some of them."""

from typing import Any

import arviz_stats as azs
import numpy as np
import xarray as xr
from arviz_stats.utils import ELPDDataLOOSubsample
from pymc.model import Model, modelcontext
from xarray import DataArray, DataTree

from pymc_sgmcmc.gradients.all_rows import model_of_all_rows
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.rows_in_batches import n_rows_of
from pymc_sgmcmc.gradients.value_draws import value_draws
from pymc_sgmcmc.integration.missing_outcomes import of_observed_rows
from pymc_sgmcmc.number_checks import whole_number

MOST_DRAWS = 2000
"""Largest number of draws used; if there are more, evenly spaced ones are used."""
ROWS_AT_ONCE = 20_000
"""Number of rows whose gradients are held at the same time, which bounds the memory."""


def loo(
    idata: DataTree,
    model: Model | None = None,
    *,
    rows: Any = 400,
    random_seed: Any = 0,
    compile_kwargs: dict[str, Any] | None = None,
) -> ELPDDataLOOSubsample:
    """Estimate the expected log predictive density of all rows by leaving out some of them.

    `pm.compute_log_likelihood` and `az.loo` need a number for each row and draw: 3.2 GB with
    200,000 rows and 2000 draws. This function needs them for ``rows`` rows, and for the others uses
    an approximation from the posterior mean, which the rows left out correct (the difference
    estimator).

    Parameters
    ----------
    idata : DataTree
        With the draws of all free variables. If there are more than 2000 draws, evenly spaced ones
        are used.
    model : pymc.Model, optional
        The sampled model, with its present data. Default: the model on the context stack.
    rows : int or array of int, default 400
        How many random rows to leave out, or which rows. More rows make ``subsampling_se`` smaller.
    random_seed : int, Generator or SeedSequence, default 0
        Seed of the choice of rows. To compare models, use the same for all of them.
    compile_kwargs : dict, optional
        Arguments of `pytensor.function`, for example ``{"mode": "JAX"}``.

    Returns
    -------
    arviz_stats.ELPDDataLOOSubsample
        As from `arviz_stats.loo_subsample`, with pointwise values: ``elpd`` of all rows (natural
        logarithms), ``se``, its standard error as an estimate for new data, ``subsampling_se``,
        the part of the error that comes from the choice of rows, ``p`` and ``pareto_k``.
        `arviz_stats.compare` pairs the rows of several.

    Raises
    ------
    ValueError
        If a free variable was not recorded, the model cannot be cut into rows, or ``rows`` is not a
        number of rows or their numbers.
    TypeError
        Without a model, outside a model context.

    Notes
    -----
    A row's log likelihood is that of all its observed variables together. Rows without an outcome
    do not count. Models with effects of groups (hierarchies) are judged for new rows of the same
    groups.

    References
    ----------
    Magnusson, Andersen, Jonasson and Vehtari (2019), Bayesian leave-one-out cross-validation for
    large data, ICML, section 3 (the difference estimator).

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm, xarray as xr
    >>> rng = np.random.default_rng(1)
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=rng.normal(size=5000))
    >>> draws = rng.normal(0, 5000**-0.5, size=(4, 250))
    >>> idata = xr.DataTree.from_dict(
    ...     {"/posterior": xr.Dataset({"mu": (("chain", "draw"), draws)})}
    ... )
    >>> result = sgm.loo(idata, model, rows=200)
    >>> result.n_data_points, result.subsample_size, -7300 < result.elpd < -6900
    (5000, 200, True)
    >>> bool(result.subsampling_se < result.se / 10)
    True
    """
    model = modelcontext(model)
    model = of_observed_rows(model_of_all_rows(model))
    vars = list(model.continuous_value_vars)
    n_rows = n_rows_of(model)
    index = _chosen(rows, n_rows, random_seed)
    posterior = idata["posterior"].to_dataset()
    step = -(-posterior.sizes["chain"] * posterior.sizes["draw"] // MOST_DRAWS)
    posterior = posterior.isel(draw=slice(None, None, step))
    draws = value_draws(model, vars, posterior)
    gradients = RowGradients(model, vars, compile_kwargs=compile_kwargs)
    of_rows = [[gradients.rows(theta, index)[0] for theta in chain] for chain in draws]
    log_likelihood = DataArray(
        np.array(of_rows), dims=("chain", "draw", "row"), coords={"row": index}
    )
    left_out = azs.loo(
        DataTree.from_dict(
            {
                "/posterior": posterior,
                "/log_likelihood": xr.Dataset({"log_likelihood": log_likelihood}),
            }
        ),
        pointwise=True,
    )
    of_all = _approximation(gradients, draws)
    elpd, subsampling_se, se = left_out.elpd_i.azstats.diff_srs_estimator(
        lpd_approx_sample=of_all.isel(row=index),
        lpd_approx_all=of_all,
        n_data_points=n_rows,
    )
    return ELPDDataLOOSubsample(
        elpd=float(elpd),
        se=float(se),
        p=float(left_out.p) * n_rows / len(index),
        n_samples=left_out.n_samples,
        n_data_points=n_rows,
        scale=left_out.scale,
        warning=left_out.warning,
        good_k=left_out.good_k,
        elpd_i=_among_all(left_out.elpd_i, index, of_all),
        pareto_k=_among_all(left_out.pareto_k, index, of_all),
        approx_posterior=False,
        subsample_size=len(index),
        subsampling_se=float(subsampling_se),
        loo_subsample_observations=index,
        elpd_loo_approx=of_all,
    )


def _chosen(rows: Any, n_rows: int, random_seed: Any) -> np.ndarray:
    """Return the numbers of the rows to leave out, in order."""
    if np.ndim(rows) == 0:
        n = whole_number("rows", rows, 2, n_rows, remedy="or an array of numbers of rows.")
        return np.sort(np.random.default_rng(random_seed).choice(n_rows, n, replace=False))
    index = np.unique(rows)
    whole = np.issubdtype(index.dtype, np.integer)
    if not whole or len(index) != np.size(rows) or len(index) < 2:
        raise ValueError(
            f"rows={rows!r} must be a number of rows, or the different numbers of at least two."
        )
    if index[0] < 0 or index[-1] >= n_rows:
        raise ValueError(f"rows: the numbers must be from 0 to {n_rows - 1}, but one is not.")
    return index


def _approximation(gradients: RowGradients, draws: np.ndarray) -> DataArray:
    """Return, for every row, about what leaving it out gives.

    With the log likelihood l and its gradient g at the posterior mean, and the draws' covariance S,
    that is l - g' S g / 2, up to terms that are about the same for all rows.
    """
    flat = draws.reshape(-1, draws.shape[-1])
    mean, covariance = flat.mean(axis=0), np.atleast_2d(np.cov(flat, rowvar=False))
    n_rows, parts = gradients.n_rows, []
    for first in range(0, n_rows, ROWS_AT_ONCE):
        value, g = gradients.rows(mean, np.arange(first, min(first + ROWS_AT_ONCE, n_rows)))
        parts.append(value - np.einsum("ni,ni->n", g @ covariance, g) / 2)
    return DataArray(np.concatenate(parts), dims="row", coords={"row": np.arange(n_rows)})


def _among_all(values: DataArray, index: np.ndarray, like: DataArray) -> DataArray:
    """Return the values of the chosen rows, NaN for the others."""
    everywhere = xr.full_like(like, np.nan)
    everywhere[index] = values.values
    return everywhere
