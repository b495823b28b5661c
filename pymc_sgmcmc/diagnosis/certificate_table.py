"""`certificate`: the moments of draws compared with those that exact densities give."""

from typing import Any

import pandas as pd
from pymc.model import Model
from xarray import Dataset, DataTree

from pymc_sgmcmc.diagnosis.as_sampled import as_sampled
from pymc_sgmcmc.diagnosis.coordinates import coordinates_of_draws, stored_coordinates
from pymc_sgmcmc.diagnosis.diagnose import evaluator_of
from pymc_sgmcmc.exact.certificate_in_result import (
    can_be_certified,
    corrected_moments,
    with_certificate,
)
from pymc_sgmcmc.exact.certificate_weights import LARGEST
from pymc_sgmcmc.gradients.value_draws import value_draws


def certificate(idata: DataTree, model: Model | None = None, data: Any = None) -> pd.DataFrame:
    """Return means and standard deviations next to those that exact densities give.

    `sample` evaluates exact log densities at 400 points of a Student distribution that is fitted to
    its draws, in one pass over the data, if these have up to 25 million numbers; with a model it is
    done here, for any data and draws. Weighted by the densities, these points have the exact
    posterior's moments, if the Pareto shape k-hat of the weights is below 0.7.

    Parameters
    ----------
    idata : DataTree
        From `sample` or `pm.sample`. With a model its group ``certificate`` is set.
    model : pymc.Model, optional
        The sampled model, whose densities are then evaluated again; this compiles a function.
        Default: what `sample` has found.
    data : StreamedData or what it takes, optional
        The rows, if the model has placeholders for them.

    Returns
    -------
    pandas.DataFrame
        For each element of each variable that was sampled ``mean``, ``corrected_mean``, ``sd``,
        ``corrected_sd``; ``bias``, the difference of the two means in posterior standard
        deviations; ``sd_ratio``, that of the draws relative to the corrected one; and the Monte
        Carlo standard errors ``bias_error`` and ``sd_ratio_error``. Its ``attrs`` have ``k_hat``,
        ``effective_points`` (the number of points of equal weight to which the 400 are equivalent:
        if it is small, corrected values have large errors, and are a check rather than better
        values),
        ``log_marginal_likelihood`` (natural logarithm of the evidence) and
        ``log_marginal_likelihood_error``. With a k-hat of 0.7 or more, all corrected values and the
        evidence are NaN, and a warning says so: the posterior is far from a Student distribution,
        or the draws are far from the posterior.

    Raises
    ------
    ValueError
        If the result has no certificate, or it cannot be made.

    References
    ----------
    Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling, Journal of
    Machine Learning Research 25(72).

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm, xarray as xr
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    >>> biased = np.random.default_rng(1).normal(0.05, 0.1, size=(4, 500))
    >>> draws = xr.Dataset({"mu": (("chain", "draw"), biased)})
    >>> table = sgm.certificate(xr.DataTree.from_dict({"/posterior": draws}), model)
    >>> round(float(table.loc["mu", "bias"]), 1), table.attrs["k_hat"] < 0.7
    (0.5, True)
    """
    if not isinstance(idata, DataTree) or "posterior" not in idata.children:
        raise ValueError("idata must be the DataTree that sgm.sample or pm.sample has returned.")
    if model is not None:
        _make(idata, model, data)
    if "certificate" not in idata.children:
        raise ValueError(
            "The result has no certificate: there are many data or more than 150 parameters, or "
            "densities are not exact. Call sgm.certificate(idata, model)."
        )
    return corrected_moments(idata)


def _make(idata: DataTree, model: Model, data: Any) -> None:
    """Evaluate exact densities, and set the group ``certificate``."""
    posterior = idata["posterior"].to_dataset()
    model = as_sampled(model, posterior, data)
    if model.discrete_value_vars:
        names = ", ".join(f"'{v.name}'" for v in model.discrete_value_vars)
        raise ValueError(f"{names}: a certificate is for continuous variables only.")
    gradients, _ = evaluator_of(model, data)
    if not can_be_certified(gradients):
        raise ValueError(
            f"The model has {gradients.size} parameters: a certificate is for up to {LARGEST}."
        )
    draws = value_draws(model, gradients.source.vars, posterior)
    at = stored_coordinates(idata, gradients.names) or coordinates_of_draws(draws)
    with_certificate(idata, gradients, draws, at.matrix, Dataset())
