r"""`robust`: draws whose spread does not trust the model's variances.

If a model is wrong about the rows' distribution, the posterior's covariance V describes how curved
the log likelihood is, not how much its maximum varies from one data set to the next. The latter is
the sandwich V J V, where J is the sum of g g' over the gradients g of single rows. Draws are moved
by an open-faced sandwich (Shaby 2014)::

    theta -> m + A (theta - m),   A = V^(1/2) (V^(1/2) J V^(1/2))^(1/2) V^(-1/2)

where m is their mean; they then have the covariance A V A' = V J V. If the model is right, J V = I
up to the prior's share, and the draws stay where they are.
"""

from typing import Any

import numpy as np
from pymc.model import Model
from xarray import Dataset, DataTree

from pymc_sgmcmc.diagnosis.as_sampled import as_sampled, row_gradients
from pymc_sgmcmc.exact.certificate_in_result import on_their_own_scale
from pymc_sgmcmc.gradients.value_draws import value_draws


def robust(idata: DataTree, model: Model, data: Any = None) -> DataTree:
    """Return draws with the covariance of a sandwich estimator, for a model that may be wrong.

    Standard deviations and intervals are then about right for the parameters to which the maximum
    of the likelihood converges, even if rows vary more than the model says, or differently. Means
    stay what they are.

    Parameters
    ----------
    idata : DataTree
        From `sample` or `pm.sample`, of independent rows. It is not changed.
    model : pymc.Model
        The sampled model. All of its parameters should be informed by many rows, which the effect
        of a group is not. If `sample` has integrated effects out, groups take the place of rows:
        the covariance is that of clustered data.
    data : StreamedData or what it takes, optional
        The rows, if the model has placeholders for them.

    Returns
    -------
    DataTree
        With the group ``posterior``: the free variables except integrated-out effects, draw
        by draw as in ``idata``.

    Raises
    ------
    ValueError
        If the model cannot be cut into rows or has discrete variables, a variable was not recorded,
        or the draws are too few for a covariance.

    References
    ----------
    Shaby (2014), The open-faced sandwich adjustment for MCMC using estimating functions, Journal of
    Computational and Graphical Statistics 23(3).

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm, xarray as xr
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-4, 4, 100))  # too small an sd
    >>> draws = np.random.default_rng(1).normal(0, 0.1, size=(4, 500))
    >>> posterior = xr.Dataset({"mu": (("chain", "draw"), draws)})
    >>> idata = xr.DataTree.from_dict({"/posterior": posterior})
    >>> ratio = sgm.robust(idata, model).posterior["mu"].std() / draws.std()
    >>> round(float(ratio), 1)
    2.3
    """
    if not isinstance(idata, DataTree) or "posterior" not in idata.children:
        raise ValueError("idata must be the DataTree that sgm.sample or pm.sample has returned.")
    model = as_sampled(model, idata["posterior"].to_dataset(), data)
    if model.discrete_value_vars:
        names = ", ".join(f"'{v.name}'" for v in model.discrete_value_vars)
        raise ValueError(f"{names}: rows have no gradient with respect to discrete variables.")
    gradients = row_gradients(model, data)
    posterior = idata["posterior"].to_dataset().transpose("chain", "draw", ...)
    draws = value_draws(model, gradients.source.vars, posterior)
    flat = draws.reshape(-1, gradients.size)
    if len(flat) < 2 * gradients.size:
        raise ValueError(
            f"The {len(flat)} draws are too few for a covariance of {gradients.size} parameters: "
            f"draw {10 * gradients.size} or more."
        )
    mean = flat.mean(axis=0)
    scatter = gradients.likelihood(mean).scatter
    assert scatter is not None
    moved = mean + (flat - mean) @ _sandwich(np.cov(flat.T).reshape(scatter.shape), scatter).T
    values = on_their_own_scale(gradients, moved)
    variables = {
        name: (posterior[name].dims, each.reshape(posterior[name].shape))
        for name, each in values.items()
    }
    dims = {dim for own, _ in variables.values() for dim in own}
    coords = {name: c for name, c in posterior.coords.items() if set(c.dims) <= dims}
    return DataTree.from_dict({"/posterior": Dataset(variables, coords, posterior.attrs)})


def _sandwich(covariance: np.ndarray, scatter: np.ndarray) -> np.ndarray:
    """Return A, from the draws' covariance V and J."""
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(values)) @ vectors.T
    inverse = (vectors / np.sqrt(values)) @ vectors.T
    inner, axes = np.linalg.eigh(root @ scatter @ root)
    return root @ (axes * np.sqrt(np.maximum(inner, 0))) @ axes.T @ inverse
