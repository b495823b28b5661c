"""An earlier warm-up for new data: its metric and step size; anchor, row weights and noise anew."""

import json
from collections.abc import Sequence
from dataclasses import fields
from math import ceil
from typing import Any

import numpy as np
from pymc.blocking import PointType
from pymc.model import Model
from xarray import DataTree

from pymc_sgmcmc.adaptation.adapted import Adapted, UnfitAdaptation
from pymc_sgmcmc.adaptation.curvature_warm_up import CurvatureWarmUp
from pymc_sgmcmc.gradients.value_draws import value_draws

MOST_PASSES = 10
"""Largest number of passes over the data in which the new anchor is sought."""
AT_THE_ANCHOR = 0.1
"""Length of a step, in posterior standard deviations, at which the anchor is found."""
STARTS = 16
ANEW = "Pass adaptation='auto' to adapt it anew."


def earlier_adaptation(given: Any, model: Model, vars: Sequence) -> Adapted | None:
    """Return what an earlier step or result was adapted to; None for any other ``adaptation=``.

    A step that is not adapted, or a result without the group ``adaptation``, is an error.
    """
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


class EarlierWarmUp(CurvatureWarmUp):
    """Adapts a kernel to new data by what was chosen for others of the same model."""

    def __init__(self, *args: Any, earlier: Adapted):
        super().__init__(*args)
        self.earlier = earlier

    def _run(self, point: PointType) -> Adapted:
        earlier, size = self.earlier, self.gradients.size
        if len(earlier.anchor) != size:
            raise UnfitAdaptation(
                f"adaptation= was chosen for {len(earlier.anchor)} parameters, but "
                f"{self.kernel.name} has {size} here. {ANEW}"
            )
        self.metric.arrays = [np.asarray(array) for array in earlier.scaling]
        inverse = np.linalg.inv(self.metric.matrix)
        self.matrix = inverse.T @ inverse
        self._set_metric(np.eye(size))
        self.anchor, self.past = self._anchor(), None
        self.stage = "row weights and noise"
        self._weight_rows()
        window = self._settings(2)
        chosen = window.slower(min(1.0, earlier.step_size / window.pace.step_size))
        return self.freeze(
            chosen,
            earlier.starts + self.anchor - earlier.anchor,
            ceil(earlier.thin * earlier.step_size / chosen.pace.step_size),
            jitter=earlier.jitter,
            windows=0,
            ess_per_draw=earlier.ess_per_draw,
        )

    def _anchor(self) -> np.ndarray:
        """Return the mode of the new data, by steps from the earlier anchor in its metric."""
        theta, metric = self.earlier.anchor.astype(float), self.metric
        self.stage = "anchor"
        n_rows = 1 if self.rows is None else self.rows.n_rows
        # With more rows than then the posterior is narrower than the metric.
        rate = min(1.0, (self.earlier.n_rows or n_rows) / n_rows)
        for _ in range(MOST_PASSES):
            here = self.objective.at(theta)
            z = -rate * metric.transposed_times(here.gradient)
            if np.abs(z).max() < AT_THE_ANCHOR:
                self.anchor_gradient = here.likelihood_gradient
                return theta
            theta = theta + metric.times(z)
        raise UnfitAdaptation(
            f"adaptation= does not fit these data: after {MOST_PASSES} passes from its anchor the "
            f"mode of the posterior was not found. {ANEW}"
        )
