"""Other ways to a posterior of an unchanged PyMC model, for `default_call.py` and `crossover.py`.

NUTS of nutpie, with both of its metrics, and of NumPyro; PyMC's mean-field ADVI; the normal
approximation at the mode, as it is and with Pareto-smoothed importance weights (PSIS); Pathfinder
of pymc-extras with PSIS. Each takes a model and a seed and returns the draws, as a DataTree with
group `posterior`. Its attributes have `data_passes` (row gradients / N) where they are known, and
`k_hat` where there are importance weights; draws that are not equally likely have the group
`weights` with `log_weight`. Libraries that the package does not need are imported where they are
used.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from arviz_base import convert_to_dataset
from arviz_stats.base import array_stats
from posteriordb import n_rows
from pymc.model import Model
from pytensor.graph import ancestors
from pytensor.graph.replace import clone_replace
from scipy import stats
from scipy.optimize import minimize

ADVI_BATCH = 500
"""Rows of a minibatch of ADVI; models with at most 1000 rows use them all."""
ADVI_UPDATES = 30_000
N_DRAWS = 4000
"""Independent draws from an approximation."""
N_POINTS = 1000
"""Points of the normal approximation that are weighted, as many as Pathfinder returns."""
MOST_ROWS_TOGETHER = 200_000
"""Rows up to which memory suffices for Pathfinder to evaluate 1000 points together."""
NUMBERS_AT_ONCE = 10_000_000
"""Rows times points whose densities are evaluated together."""


def nutpie_nuts(model: Model, seed: int, adaptation: str = "diag") -> xr.DataTree:
    """NUTS with nutpie's defaults."""
    import nutpie

    compiled = nutpie.compile_pymc_model(model)
    tree = nutpie.sample(compiled, seed=seed, adaptation=adaptation, progress_bar=False)
    groups = ("warmup_sample_stats", "sample_stats")
    tree["posterior"].attrs["data_passes"] = sum(float(tree[g]["n_steps"].sum()) for g in groups)
    return tree


def numpyro_nuts(model: Model, seed: int) -> xr.DataTree:
    """NUTS with NumPyro's defaults, chain by chain on one core; passes are without warm-up."""
    from pymc.sampling.jax import sample_numpyro_nuts

    tree = sample_numpyro_nuts(model=model, random_seed=seed, progressbar=False)
    tree["posterior"].attrs["data_passes"] = float(tree["sample_stats"]["n_steps"].sum())
    return tree


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
    n = n_rows(model)
    batch_size = ADVI_BATCH if n > 1000 else n
    if batch_size < n:
        put_in_minibatches(model, batch_size)
    fit = pm.fit(updates, method="advi", model=model, random_seed=seed, progressbar=False)
    tree = fit.sample(N_DRAWS, random_seed=seed)
    tree["posterior"].attrs["data_passes"] = updates * batch_size / n
    return tree


class NormalAtMode(NamedTuple):
    """The normal approximation on the unconstrained scale."""

    mean: np.ndarray
    covariance: np.ndarray
    passes: int
    """Gradients that it took."""


def normal_at_mode(model: Model) -> NormalAtMode:
    """Mode and inverse Hessian."""
    density = model.logp_dlogp_function(ravel_inputs=True)
    density.set_extra_values({})
    passes = 0

    def objective(x):
        nonlocal passes
        passes += 1
        value, slope = density(x)
        return -value, -slope

    def gradient(x):
        return -objective(x)[1]

    start = model.initial_point()
    x = np.concatenate([np.ravel(start[value.name]) for value in model.continuous_value_vars])
    x = minimize(objective, x, jac=True, method="BFGS").x
    for _ in range(3):  # Newton's method takes it from there
        hessian = negative_hessian(gradient, x)
        x = x + np.linalg.solve(hessian, gradient(x))
    covariance = np.linalg.inv(negative_hessian(gradient, x))
    np.linalg.cholesky(covariance)  # raises where the mode is none
    return NormalAtMode(x, covariance, passes)


def values_of(model: Model, points: np.ndarray) -> list[dict[str, np.ndarray]]:
    """Unconstrained variables by name at each of the points."""
    start = model.initial_point()
    shapes = {value.name: start[value.name].shape for value in model.continuous_value_vars}
    ends = np.cumsum([start[name].size for name in shapes])[:-1]
    return [
        {
            name: part.reshape(shape)
            for (name, shape), part in zip(shapes.items(), np.split(point, ends), strict=True)
        }
        for point in points
    ]


def on_their_own_scale(model: Model, points: np.ndarray) -> xr.DataTree:
    """Draws of a model's variables from unconstrained points."""
    variables = model.free_RVs + model.deterministics
    constrained = model.compile_fn(
        model.replace_rvs_by_values(variables), inputs=model.value_vars, mode="FAST_COMPILE"
    )
    rows = [constrained(values) for values in values_of(model, points)]
    columns = zip(variables, zip(*rows, strict=True), strict=True)
    return xr.DataTree.from_dict(
        {"posterior": convert_to_dataset({v.name: np.array(x)[None] for v, x in columns})}
    )


def laplace(model: Model, seed: int) -> xr.DataTree:
    """Draws of the normal approximation at the mode on the unconstrained scale."""
    mean, covariance, passes = normal_at_mode(model)
    draws = np.random.default_rng(seed).multivariate_normal(mean, covariance, size=N_DRAWS)
    tree = on_their_own_scale(model, draws)
    tree["posterior"].attrs["data_passes"] = passes
    return tree


def laplace_psis(model: Model, seed: int) -> xr.DataTree:
    """Draws of the normal approximation at the mode, weighted by exact densities."""
    mean, covariance, passes = normal_at_mode(model)
    points = np.random.default_rng(seed).multivariate_normal(mean, covariance, size=N_POINTS)
    of_normal = stats.multivariate_normal(mean, covariance).logpdf(points)
    # psislw takes the logarithm of proposal / target
    log_weights, k_hat = array_stats.psislw(of_normal - log_densities(model, points))
    tree = on_their_own_scale(model, points)
    tree["posterior"].attrs |= {"data_passes": passes, "k_hat": float(k_hat)}
    tree["weights"] = xr.DataTree(
        xr.Dataset({"log_weight": (("chain", "draw"), log_weights[None])})
    )
    return tree


def log_densities(model: Model, points: np.ndarray) -> np.ndarray:
    """Log posterior density at unconstrained points, by blocks of them."""
    import jax
    from pymc.sampling.jax import get_jaxified_logp

    of_block = jax.jit(jax.vmap(get_jaxified_logp(model)))
    size = min(max(NUMBERS_AT_ONCE // n_rows(model), 1), len(points))
    names = [value.name for value in model.value_vars]
    values = values_of(model, np.resize(points, (-(-len(points) // size) * size, points.shape[1])))
    blocks = [values[k : k + size] for k in range(0, len(values), size)]
    found = [of_block([np.stack([v[name] for v in block]) for name in names]) for block in blocks]
    return np.concatenate(found)[: len(points)]


def pathfinder_psis(model: Model, seed: int) -> xr.DataTree:
    """Pathfinder with pymc-extras' defaults: four paths, 1000 of 4000 points by their weights."""
    from pymc_extras.inference import fit_pathfinder

    tree = fit_pathfinder(
        model,
        random_seed=seed,
        parallel=False,
        progressbar=False,
        vectorize_logp=n_rows(model) < MOST_ROWS_TOGETHER,
    )
    tree["posterior"].attrs["k_hat"] = float(tree["pathfinder"]["pareto_k"])
    return tree


def negative_hessian(gradient, x: np.ndarray) -> np.ndarray:
    """Central differences of the gradient."""
    columns = []
    for k, step in enumerate(1e-5 * np.maximum(np.abs(x), 1e-2)):
        move = np.zeros_like(x)
        move[k] = step
        columns.append((gradient(x - move) - gradient(x + move)) / (2 * step))
    return (np.array(columns) + np.array(columns).T) / 2


RIVALS: dict[str, Callable[[Model, int], xr.DataTree]] = {
    "nutpie": nutpie_nuts,
    "nutpie_low_rank": lambda model, seed: nutpie_nuts(model, seed, "low_rank"),
    "ADVI": advi,
    "Laplace": laplace,
}
