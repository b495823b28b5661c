"""The certificate of a result: its group, its part of the verdict, and corrected moments."""

import logging
from typing import Any

import numpy as np
import pandas as pd
import pytensor
from xarray import Dataset, DataTree

from pymc_sgmcmc.backends.compile_time import without_code
from pymc_sgmcmc.exact.certificate_weights import (
    LARGEST,
    LARGEST_K_HAT,
    certify,
    effective_number,
    moments_of_draws,
    weighted_moments,
)
from pymc_sgmcmc.exact.log_density import LogDensity, NotAllRead
from pymc_sgmcmc.gradients.arrays import PYTHON, has_named_dims, tensor_model
from pymc_sgmcmc.gradients.flat_model import FlatModel
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients
from pymc_sgmcmc.latents.latent_gradients import LatentGradients

_log = logging.getLogger("pymc.sgmcmc")

MOST_NUMBERS = 25_000_000
"""Largest number of data values for which densities are evaluated without being requested: about
two seconds on one core, and not a share of the run's time, so that a seed gives the same groups on
any machine."""


def can_be_certified(gradients: Any) -> bool:
    """Whether densities are exact and the parameters few enough; a message says if they are not."""
    if isinstance(gradients, LatentGradients):
        _log.info("No certificate: with latents= densities are estimates.")
    return isinstance(gradients, RowGradients | WholeGradients) and gradients.size <= LARGEST


def with_certificate(
    idata: DataTree,
    gradients: FlatModel,
    draws: np.ndarray,
    matrix: np.ndarray,
    measured: Dataset,
    asked: bool = True,
) -> Dataset:
    """Add the group ``certificate`` to a result, and its figures to the verdict's measurements.

    With ``asked`` it may take any time, and an error is raised instead of logged.
    """
    try:
        density = LogDensity(gradients)
        if not asked and (numbers := density.numbers()) > MOST_NUMBERS:
            _log.info(
                f"No certificate of {numbers:.1g} numbers of data: it may take as long as the run. "
                "Call sgm.certificate(idata, model)."
            )
            return measured
        found = certify(density, draws, matrix, np.random.default_rng(0))
        posterior = idata["posterior"].to_dataset()
        variables: dict[str, Any] = {"log_weight": ("sample", found.log_weights)}
        values = on_their_own_scale(gradients, found.points)
        for name, each in values.items():
            dims = posterior[name].dims[2:] if name in posterior else None
            variables[name] = (("sample", *(dims or _dims(name, each))), each)
        attrs = {
            "k_hat": found.k_hat,
            "effective_points": effective_number(found.log_weights),
            "log_marginal_likelihood": float(found.log_marginal_likelihood.value),
            "log_marginal_likelihood_error": float(found.log_marginal_likelihood.error),
            "degrees_of_freedom": found.degrees,
        }
        own = {dim for name in values for dim in variables[name][0]}
        coords = {k: v for k, v in posterior.coords.items() if k in own}
        group = Dataset(variables, coords, attrs)
    except NotAllRead as reason:
        _log.info(f"No certificate: {reason}")
        return measured
    except Exception as error:
        if asked:
            raise
        _log.info(f"No certificate: {type(error).__name__}: {error}")
        return measured
    idata["certificate"] = DataTree(group)
    idata["posterior"].attrs |= attrs
    return measured.assign(
        k_hat=found.k_hat,
        certified_mean=("direction", found.mean.value),
        certified_mean_error=("direction", found.mean.error),
        certified_mean_degrees=("direction", found.mean.degrees),
        certified_sd=("direction", found.sd.value),
        certified_sd_error=("direction", found.sd.error),
        certified_sd_degrees=("direction", found.sd.degrees),
    )


def _dims(name: str, values: np.ndarray) -> list[str]:
    return [f"{name}_dim_{i}" for i in range(values.ndim - 1)]


def on_their_own_scale(gradients: FlatModel, points: np.ndarray) -> dict[str, np.ndarray]:
    """Return the values of the random variables at points, by name."""
    model = gradients.model
    if has_named_dims(model):
        model = tensor_model(model)
    own = {v.name: v for v in model.value_vars}
    inputs = [own[v.name] for v in gradients.source.vars]
    random = [model.values_to_rvs[v] for v in inputs]
    with without_code():
        function = pytensor.function(
            inputs, model.replace_rvs_by_values(random), mode=PYTHON, on_unused_input="ignore"
        )
        each = [function(*gradients.split(point)) for point in points]
    return {
        rv.name: np.stack(column)
        for rv, column in zip(random, zip(*each, strict=True), strict=True)
    }


def corrected_moments(idata: DataTree) -> pd.DataFrame:
    """Return the moments of the draws and of the certificate's points: see `certificate`."""
    group = idata["certificate"].to_dataset()
    posterior = idata["posterior"].to_dataset()
    usable = group.attrs["k_hat"] < LARGEST_K_HAT
    log_weights = group["log_weight"].values
    names = ("mean", "corrected_mean", "sd", "corrected_sd", "bias", "bias_error")
    columns: dict[str, list] = {name: [] for name in (*names, "sd_ratio", "sd_ratio_error")}
    index = []
    for name in map(str, group.data_vars):
        if name == "log_weight" or name not in posterior:
            continue
        values = group[name].values.reshape(len(log_weights), -1)
        draws = posterior[name].values
        index += [
            name + (f"[{','.join(map(str, at))}]" if at else "")
            for at in np.ndindex(*draws.shape[2:])
        ]
        draws = draws.reshape(*draws.shape[:2], -1)
        mean, sd = weighted_moments(values, log_weights if usable else log_weights * np.nan)
        plain, plain_sd = moments_of_draws(draws)
        bias, ratio = plain.minus(mean).over(sd.value), plain_sd.minus(sd).over(sd.value)
        for column, numbers in {
            "mean": plain.value,
            "corrected_mean": mean.value,
            "sd": plain_sd.value,
            "corrected_sd": sd.value,
            "bias": bias.value,
            "bias_error": bias.error,
            "sd_ratio": 1 + ratio.value,
            "sd_ratio_error": ratio.error,
        }.items():
            columns[column] += numbers.tolist()
    table = pd.DataFrame(columns, index=index)
    table.attrs = {k: v for k, v in group.attrs.items() if k != "degrees_of_freedom"}
    if not usable:
        for name in ("log_marginal_likelihood", "log_marginal_likelihood_error"):
            table.attrs[name] = np.nan
        _log.warning(
            f"Exact densities cannot correct these draws (k-hat {group.attrs['k_hat']:.2g}, not "
            f"below {LARGEST_K_HAT}): the posterior is far from a Student distribution, or the "
            "draws are far from the posterior. Call sample(exact=True) for exact draws."
        )
    return table
