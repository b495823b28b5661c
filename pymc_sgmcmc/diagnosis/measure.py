"""The measurements for a verdict: chains, thermostats, and the gradients at the draws."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Any

import numpy as np
from pymc.model import Model
from xarray import Dataset, DataTree

from pymc_sgmcmc.adaptation.local_gradients import LocalGradients
from pymc_sgmcmc.diagnosis.coordinates import Coordinates, coordinates_of_draws
from pymc_sgmcmc.diagnosis.gradients_at_draws import (
    EXACT_DRAWS,
    FEWEST_DRAWS,
    MOST_DRAWS,
    MOST_UNEVEN_DRAWS,
    AtDraws,
    GradientsAtDraws,
)
from pymc_sgmcmc.diagnosis.local_identities import local_identities
from pymc_sgmcmc.diagnosis.stein import (
    BLOCKS,
    SteinIdentities,
    block_estimate,
    blocks_for,
    chain_correlation,
    stein_identities,
)
from pymc_sgmcmc.diagnosis.verdict_rows import LARGEST_ERROR, precision
from pymc_sgmcmc.gradients.flat_model import FlatModel
from pymc_sgmcmc.gradients.value_draws import value_draws
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients
from pymc_sgmcmc.run.convergence import convergence

MOST_NUMBERS = 100_000_000
"""Largest number of elements over all draws, for local variables, which bounds the memory."""
ALL_ROWS = 100_000_000
"""Largest number of rows over all draws for models with local variables whose gradients take all
rows, which bounds the time."""
LARGE = 4 * ALL_ROWS
"""Number of rows over `FEWEST_DRAWS` draws above which random rows are used instead."""
NOISE = 0.075
"""Standard error that random rows may leave in a mean gradient if each row has its own gradient;
beyond it, all rows are used if they are not too many."""
MORE = 1.2
"""Safety factor for the error of that standard error, if more random rows make it small enough."""
MANY_DRAWS = 500
"""Smallest number of draws, kept only for the verdict, whose chains are compared: with fewer draws,
the largest R-hat of many elements is due to chance."""
COMPARED = 500
"""Largest number of elements along which chains are compared in models with local variables."""


def measure(
    idata: DataTree,
    gradients: FlatModel,
    draws: np.ndarray,
    at: Coordinates,
    full_data: bool,
    at_draws: type[AtDraws],
) -> Dataset:
    """Measure the chains and the gradients at the draws."""
    free = [rv.name for rv in gradients.model.free_RVs]
    recorded = idata["posterior"].to_dataset()
    left_out = any(name not in recorded for name in free)
    found = measure_chains(idata, recorded, free, draws if left_out else None)
    mean = draws.mean(axis=(0, 1))
    estimates = at_draws(gradients, at if at.anchor is not None else at._replace(anchor=mean))
    if estimates.anchor_error is not None:
        found["anchor_error"] = estimates.anchor_error
    estimate = partial(estimates, exact=full_data)
    chosen = _evenly(draws, EXACT_DRAWS if full_data else estimates.most)
    seen = estimate(chosen.reshape(-1, gradients.size))
    most = MOST_UNEVEN_DRAWS if len(seen.gradients) >= MOST_DRAWS else 0

    def noise() -> float:
        return float(seen.noise.max() / chosen[..., 0].size)

    exact = estimates.with_all_rows() if noise() > NOISE**2 else None
    if noise() > NOISE**2 and (exact is None or exact[1] < chosen[..., 0].size):
        more = estimates.with_rows(MORE * noise() / NOISE**2)
        if more is not None:
            estimate = partial(more, exact=False)
            seen = estimate(chosen.reshape(-1, gradients.size))
    if noise() > NOISE**2 and exact is not None:
        estimate, most = partial(exact[0](), exact=True), min(MOST_UNEVEN_DRAWS, exact[1])
        chosen = _evenly(draws, min(MOST_DRAWS, exact[1]))
        seen = estimate(chosen.reshape(-1, gradients.size))
    found |= _together(draws)
    found |= gradients.further_measurements(chosen.reshape(-1, gradients.size))
    measured = _along_all(found, gradients, chosen, mean, seen, at)
    largest, of_noise = precision(measured)
    further = min(most, draws[..., 0].size) > chosen[..., 0].size
    if further and largest > LARGEST_ERROR and of_noise < largest / 2:
        chosen = _evenly(draws, most)
        seen = estimate(chosen.reshape(-1, gradients.size))
        measured = _along_all(found, gradients, chosen, mean, seen, at)
    return measured


def measure_exact(
    idata: DataTree,
    gradients: FlatModel,
    draws: np.ndarray,
    at_draws: np.ndarray,
    at: Coordinates,
) -> Dataset:
    """Measure exact draws, from the gradients with respect to z at all of them."""
    free = [rv.name for rv in gradients.model.free_RVs]
    posterior = idata["posterior"].to_dataset()
    found = measure_chains(idata, posterior, free, draws) | _together(draws)
    seen = GradientsAtDraws(at_draws, np.zeros(gradients.size), "exact")
    measured = _along_all(found, gradients, draws, draws.mean(axis=(0, 1)), seen, at)
    return measured.assign_attrs(exact_draws=1)


def _along_all(
    found: dict[str, Any],
    gradients: FlatModel,
    draws: np.ndarray,
    mean: np.ndarray,
    seen: GradientsAtDraws,
    at: Coordinates,
) -> Dataset:
    """Add the identities along all directions to the measurements of the chains."""
    chains, n, size = draws.shape
    blocks = min(blocks_for(min(found["ess"], chains * n), chains), n)
    z = np.linalg.solve(at.matrix, (draws - mean).reshape(-1, size).T).T
    stein = stein_identities(z.reshape(draws.shape), seen.gradients.reshape(draws.shape), blocks)
    share = np.abs(at.matrix) / np.linalg.norm(at.matrix, axis=1, keepdims=True)
    mostly = np.array(gradients.names)[share.argmax(axis=0)]
    free = [rv.name for rv in gradients.model.free_RVs]
    attrs = {"variables": free, "metric": at.metric, "rows": seen.method}
    return _identities(found, stein, mostly, seen.noise, chains, n, blocks, attrs)


def measure_local(
    idata: DataTree,
    model: Model,
    gradients: LocalGradients,
    full_data: bool,
    times: Callable[[np.ndarray], np.ndarray] | None = None,
    draws: np.ndarray | None = None,
) -> Dataset:
    """Measure the chains and the gradients at the draws of a model with local variables.

    ``times`` multiplies by the metric; ``draws`` are of all variables, if not all were recorded.
    """
    posterior = idata["posterior"].to_dataset()
    free = [rv.name for rv in model.free_RVs]
    found = measure_chains(idata, posterior, free, draws)
    left_out = [name for name in free if name not in posterior]
    if left_out and draws is None:
        return Dataset(found, attrs={"variables": free, "left_out": left_out})
    size = gradients.kernel.n_elements
    most = int(np.clip(MOST_NUMBERS // size, EXACT_DRAWS, MOST_DRAWS))
    all_rows = full_data or gradients.n_rows * FEWEST_DRAWS <= LARGE
    if all_rows:
        most = min(most, max(FEWEST_DRAWS, ALL_ROWS // gradients.n_rows))
    if draws is None:
        each = ceil(most / posterior.sizes["chain"])
        some = posterior.isel(draw=_even(posterior.sizes["draw"], each))
        draws = value_draws(model, gradients.source.vars, some)
    else:
        draws = _evenly(draws, most)
    chains, n, _ = draws.shape
    found |= _together(draws[:, :, np.linspace(0, size - 1, min(size, COMPARED)).astype(int)])
    order, shared, names = gradients.order()
    if times is None:  # only scales of the groups' elements, which are most of all
        scales = draws.std(axis=(0, 1))
        scales[order[:shared]] = 0.0
        times = partial(np.multiply, scales)
    moves = np.concatenate(
        [
            np.broadcast_to(local is None or gradients.sizes(k) > 0, shape).ravel()
            for k, (local, shape) in enumerate(
                zip(gradients.variables, gradients.source.shapes, strict=True)
            )
        ]
    )  # others are drawn from their prior when a draw is recorded
    _drift(draws, posterior, lambda momentum: times(momentum) * moves)
    at = Coordinates(np.empty((0, 0)), "")
    if shared:
        at = coordinates_of_draws(draws[:, :, order[:shared]])
    blocks = min(blocks_for(min(found["ess"], chains * n), chains), n)
    rng = np.random.default_rng(0)
    whole = _whole(gradients) if all_rows else None
    seen = local_identities(gradients, draws, at.matrix, order, names, blocks, rng, whole)
    attrs = {"variables": free, "metric": at.metric, "rows": seen.rows}
    groups = [int(np.count_nonzero(gradients.sizes(k))) for k in gradients.local]
    found["shared_by"] = "direction", np.array([1] * shared + groups)
    found["prior_share"] = "direction", np.concatenate([np.ones(shared), seen.prior_share])
    for name, of_local in zip(("outward", "outward_error"), seen.outward, strict=True):
        found[name] = "direction", np.concatenate([np.zeros(shared), of_local])
    return _identities(found, seen.stein, seen.names, seen.noise, chains, n, blocks, attrs)


def _identities(
    found: dict[str, Any],
    stein: SteinIdentities,
    names: Sequence[str] | np.ndarray,
    noise: np.ndarray,
    chains: int,
    draws: int,
    blocks: int,
    attrs: dict[str, Any],
) -> Dataset:
    """Combine the measurements of the chains and of the gradients."""
    variables = {
        **found,
        "gradient": ("direction", stein.gradient.mean),
        "gradient_error": ("direction", stein.gradient.error),
        "virial": ("direction", stein.virial.mean),
        "virial_error": ("direction", stein.virial.error),
        "mean_virial": float(stein.mean_virial.mean),
        "mean_virial_error": float(stein.mean_virial.error),
        "cross": ("pair", stein.cross.mean),
        "cross_error": ("pair", stein.cross.error),
        "gradient_noise": ("direction", noise),
        "gradients": chains * draws,
        "blocks": chains * blocks,
    }
    coords = {
        "direction": np.arange(len(names)),
        "element": ("direction", np.array(names)),
        "pair": np.array([f"{i}-{j}" for i, j in stein.pairs], dtype=str),
    }
    return Dataset(variables, coords, attrs)


def measure_chains(
    idata: DataTree, posterior: Dataset, names: Sequence[str], draws: np.ndarray | None = None
) -> dict[str, Any]:
    """Measure what draws and statistics show without gradients.

    ``draws`` are of all variables, if not all were recorded.
    """
    arrays = [
        posterior[name].values
        for name in names
        if name in posterior and np.issubdtype(posterior[name].dtype, np.number)
    ]
    if draws is not None and draws.shape[0] * draws.shape[1] >= MANY_DRAWS:
        arrays.append(draws)
    found: dict[str, Any] = convergence(arrays)._asdict()
    if not arrays:
        found["ess"] = np.nan
    chains = posterior.sizes["chain"]
    blocks = blocks_for(found["ess"], chains)
    if "sample_stats" not in idata.children:
        return found
    stats = idata["sample_stats"].to_dataset()
    if "nonfinite" in stats:
        found["nonfinite"] = float(stats["nonfinite"].mean())
    if "kinetic_temperature" in stats and "thermostat" not in stats:
        held = stats["kinetic_temperature"].values
        if held.ndim == 2:
            mean, error = block_estimate(held, blocks)
            found |= {"held_temperature": float(mean), "held_temperature_error": float(error)}
            found["blocks"] = blocks * chains
    chosen = json.loads(posterior.attrs.get("adaptation", "{}"))
    if chosen.get("metric") != "local":
        found |= thermostat_drift(stats)
    if "thermostat" in stats and stats["thermostat"].ndim == 2:
        found["thermostat"] = float(stats["thermostat"].mean())
        if "friction_mean" in chosen:
            found["thermostat_predicted"] = chosen["friction_mean"]
    if "friction_mean" in chosen and ("thermostat" in found or "held_temperature" in found):
        half = chosen["step_size"] / 2
        injected = chosen["friction_mean"] - half * chosen["noise_mean"]
        found["noise_to_friction"] = half * chosen["noise_largest"] / injected
    return found


def thermostat_drift(stats: Dataset) -> dict[str, float]:
    """Measure by how much the draws were too hot on average, from the drift of their thermostats.

    A thermostat moves by h (p * p - T) in each update, so its drift over a run is the sum of all
    excess temperatures, which is small if the chain has burnt in. Of several thermostats
    (`Groups`), the one that drifts most counts. Thermostats of local variables are not judged: they
    have a larger mass, and move only when their group is in the batch.
    """
    worst: dict[str, float] = {}
    for name in map(str, stats.data_vars):
        prefix = name.removesuffix("thermostat")
        needed = (name, f"{prefix}step_size", f"{prefix}kinetic_temperature", "n_updates")
        if prefix == name or any(n not in stats or stats[n].ndim != 2 for n in needed):
            continue
        xi, h, temperature, updates = (stats[n].values for n in needed)
        if xi.shape[1] <= BLOCKS:
            continue
        excess = np.diff(xi) / (h[:, 1:] * np.diff(updates))  # mean over the updates of each draw
        mean, error = block_estimate(excess, BLOCKS)
        chains = len(excess)
        if chains > 1:  # a drift that falls with time in all chains is no error
            apart = block_estimate(excess - excess.mean(axis=0), BLOCKS)
            error = apart.error * np.sqrt(chains / (chains - 1))
        right = np.mean(temperature) - mean
        if right > 0 and not abs(mean) / right <= abs(worst.get("thermostat_drift", 0)):
            worst = {"thermostat_drift": mean / right, "thermostat_drift_error": error / right}
    return {n: float(v) for n, v in worst.items()}


def _together(draws: np.ndarray) -> dict[str, Any]:
    """Measure whether chains move together, if there are enough draws."""
    chains, n, _ = draws.shape
    if chains == 1 or n < BLOCKS:
        return {}
    together, error = chain_correlation(draws)
    return {"chain_correlation": together, "chain_correlation_error": error}


def _drift(
    draws: np.ndarray, posterior: Dataset, times: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Move draws in place, along a momentum, to where the sampler took its gradients.

    A symmetric splitting ends its updates half a drift away from there. On a normal posterior the
    variance is too small by the fraction h^2 / 4 at the end of an update, and right at the
    gradient. The gradient of a scale adds this up over all elements that share the scale, so its
    mean would show an error that the scale does not have. ``times`` multiplies a momentum, shape
    (..., d), by the metric.
    """
    drift = json.loads(posterior.attrs.get("adaptation", "{}")).get("drift_to_gradient", 0.0)
    rng = np.random.default_rng(1)
    for chain in draws if drift else ():
        chain += drift * times(rng.standard_normal(chain.shape))


def _whole(gradients: LocalGradients) -> WholeGradients:
    kernel, source = gradients.kernel, gradients.source
    options: dict[str, Any] = {"compile_kwargs": kernel.compile_kwargs, "data": source.streamed}
    return WholeGradients(kernel.model, list(source.vars), **options)


def _evenly(draws: np.ndarray, most: int) -> np.ndarray:
    """Return evenly spaced draws of each chain, about ``most`` for all chains together."""
    return draws[:, _even(draws.shape[1], ceil(most / draws.shape[0]))]


def _even(n: int, most: int) -> np.ndarray:
    """Return evenly spaced numbers below n, at most ``most``."""
    return np.linspace(0, n - 1, min(n, max(1, most))).astype(int)
