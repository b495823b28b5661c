"""What an earlier step or result was adapted to, as ``adaptation=`` for new data."""

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from pymc.model import Model
from xarray import DataTree

from pymc_sgmcmc.adaptation.adapted import ANEW, Adapted, UnfitAdaptation
from pymc_sgmcmc.gradients.value_draws import value_draws

STARTS = 16
"""Number of a result's draws that are starts."""


def earlier_adaptation(given: Any, model: Model, vars: Sequence) -> Adapted | None:
    """Return what an earlier step or result was adapted to; None for any other ``adaptation=``."""
    if isinstance(given, DataTree):
        return _of_result(given, model, vars)
    if not hasattr(given, "adapted"):
        return None
    if given.adapted is None:
        raise ValueError(f"adaptation={given!r} is a step that was not adapted. {ANEW}")
    return given.adapted


def _of_result(idata: DataTree, model: Model, vars: Sequence) -> Adapted:
    if "adaptation" not in idata.children or "posterior" not in idata.children:
        raise ValueError(
            "adaptation= is a result without the group adaptation: sample with "
            "store_adaptation=True, or pass the step of that run."
        )
    arrays = {name: values.values for name, values in idata["adaptation"].data_vars.items()}
    chosen = json.loads(idata["posterior"].attrs["adaptation"])
    if chosen["metric"] != "dense":
        raise UnfitAdaptation(
            f"adaptation= is a result with the metric '{chosen['metric']}', of which it does not "
            "have all parts: pass the step of that run."
        )
    draws = value_draws(model, vars, idata["posterior"].to_dataset())
    draws = draws.reshape(-1, draws.shape[-1])
    own = {
        "scaling": [arrays["metric"]],
        "anchor": arrays["anchor"],
        "anchor_gradient": arrays["anchor_gradient"],
        "row_copies": None,
        "noise": arrays["noise"],
        "friction": arrays["thermostat_predicted"],
        "starts": draws[np.linspace(0, len(draws) - 1, min(STARTS, len(draws))).astype(int)],
    }
    return Adapted(**{f.name: chosen[f.name] for f in fields(Adapted) if f.name in chosen} | own)
