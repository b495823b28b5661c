"""Other ways to a posterior of an unchanged PyMC model, for `default_call.py` and `crossover.py`.

nutpie's NUTS with both of its metrics, PyMC's mean-field ADVI, and the normal approximation at the
mode. Each takes a model and a seed and returns the draws, as a DataTree with group `posterior`.
"""

import numpy as np
import pymc as pm
import xarray as xr
from arviz_base import convert_to_dataset
from posteriordb import n_rows
from pymc.model import Model
from pytensor.graph import ancestors
from pytensor.graph.replace import clone_replace
from scipy.optimize import minimize

ADVI_BATCH = 500
"""Rows of a minibatch of ADVI; models with at most 1000 rows use them all."""
ADVI_UPDATES = 30_000
N_DRAWS = 4000
"""Independent draws from an approximation."""


def nutpie_nuts(
    model: Model, seed: int, adaptation: str = "diag", draws: int | None = None
) -> xr.DataTree:
    """NUTS with nutpie's defaults."""
    import nutpie

    compiled = nutpie.compile_pymc_model(model)
    return nutpie.sample(
        compiled, draws=draws, seed=seed, adaptation=adaptation, progress_bar=False
    )


def put_in_minibatches(model: Model, batch_size: int) -> None:
    """Replace the observed term by its estimate from a random batch of the rows."""
    [observed] = model.observed_RVs
    n = n_rows(model)
    [term] = model.logp(vars=[observed], sum=False)
    arrays = [v for v in ancestors([term]) if v.owner is None and rows_of(v) == n]
    batches = pm.Minibatch(*arrays, batch_size=batch_size)
    if len(arrays) == 1:
        batches = [batches]
    of_batch = clone_replace(term, dict(zip(arrays, batches, strict=True)), rebuild_strict=False)
    model.observed_RVs.clear()
    with model:
        pm.Potential("minibatch", of_batch.sum() * (n / batch_size))


def rows_of(variable) -> int | None:
    """Length of the first axis of a constant or shared array."""
    value = getattr(variable, "data", None)
    if hasattr(variable, "get_value"):
        value = variable.get_value(borrow=True)
    return len(value) if isinstance(value, np.ndarray) and value.ndim else None


def advi(model: Model, seed: int, updates: int = ADVI_UPDATES) -> xr.DataTree:
    """Mean-field ADVI with PyMC's defaults and more updates."""
    if n_rows(model) > 1000:
        put_in_minibatches(model, ADVI_BATCH)
    fit = pm.fit(updates, method="advi", model=model, random_seed=seed, progressbar=False)
    return fit.sample(N_DRAWS, random_seed=seed)


def laplace(model: Model, seed: int) -> xr.DataTree:
    """Draws of the normal approximation at the mode on the unconstrained scale."""
    density = model.logp_dlogp_function(ravel_inputs=True)
    density.set_extra_values({})
    start = model.initial_point()
    names = [value.name for value in model.continuous_value_vars]
    shapes = [start[name].shape for name in names]
    ends = np.cumsum([start[name].size for name in names])[:-1]

    def gradient(x):
        return density(x)[1]

    def objective(x):
        value, slope = density(x)
        return -value, -slope

    x = np.concatenate([np.ravel(start[name]) for name in names])
    x = minimize(objective, x, jac=True, method="BFGS").x
    for _ in range(3):  # Newton's method takes it from there
        hessian = negative_hessian(gradient, x)
        x = x + np.linalg.solve(hessian, gradient(x))
    covariance = np.linalg.inv(negative_hessian(gradient, x))
    np.linalg.cholesky(covariance)  # raises where the mode is none
    draws = np.random.default_rng(seed).multivariate_normal(x, covariance, size=N_DRAWS)
    variables = model.free_RVs + model.deterministics
    constrained = model.compile_fn(
        model.replace_rvs_by_values(variables), inputs=model.value_vars, mode="FAST_COMPILE"
    )
    rows = []
    for draw in draws:
        parts = zip(names, np.split(draw, ends), shapes, strict=True)
        rows.append(constrained({name: part.reshape(shape) for name, part, shape in parts}))
    columns = zip(variables, zip(*rows, strict=True), strict=True)
    return xr.DataTree.from_dict(
        {"posterior": convert_to_dataset({v.name: np.array(x)[None] for v, x in columns})}
    )


def negative_hessian(gradient, x: np.ndarray) -> np.ndarray:
    """Central differences of the gradient."""
    columns = []
    for k, step in enumerate(1e-5 * np.maximum(np.abs(x), 1e-2)):
        move = np.zeros_like(x)
        move[k] = step
        columns.append((gradient(x - move) - gradient(x + move)) / (2 * step))
    return (np.array(columns) + np.array(columns).T) / 2


RIVALS = {
    "nutpie": nutpie_nuts,
    "nutpie_low_rank": lambda model, seed: nutpie_nuts(model, seed, "low_rank"),
    "ADVI": advi,
    "Laplace": laplace,
}
