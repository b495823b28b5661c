"""The measurements for the verdict on a run, given the step that made it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from xarray import Dataset, DataTree

from pymc_sgmcmc.adaptation.local_gradients import LocalGradients
from pymc_sgmcmc.diagnosis.coordinates import Coordinates
from pymc_sgmcmc.diagnosis.gradients_at_draws import (
    AtDraws,
    LatentsAtDraws,
    RowsAtDraws,
    WholeAtDraws,
)
from pymc_sgmcmc.diagnosis.measure import measure, measure_local
from pymc_sgmcmc.gradients.flat_model import FlatModel
from pymc_sgmcmc.gradients.value_draws import value_draws


def _measure_network(
    idata: DataTree, step: Any, gradients: FlatModel, draws: np.ndarray | None
) -> Dataset:
    """Compare the thermostat with its prediction; the parameters alone allow no judgement."""
    found = {"parameters": step.kernel.n_elements}
    if "thermostat" in idata["sample_stats"]:
        found["thermostat"] = float(idata["sample_stats"]["thermostat"].mean())
        found["thermostat_predicted"] = float(step.adapted.friction.mean())
    return Dataset(found, attrs={"predictions_only": 1})


def _measure_groups(
    idata: DataTree, step: Any, gradients: LocalGradients, draws: np.ndarray | None
) -> Dataset:
    """Measure everything of a model with local variables."""
    gradients.load_data()
    times = step.kernel.metric.times
    measured = measure_local(
        idata, step.model, gradients, full_data=False, times=times, draws=draws
    )
    return measured.assign_attrs(batches=step.batches)


def _measure_draws(at_draws: type[AtDraws]) -> Callable[..., Dataset]:
    """Return a function that measures everything from gradients at draws of all variables."""

    def measure_run(
        idata: DataTree, step: Any, gradients: FlatModel, draws: np.ndarray | None
    ) -> Dataset:
        gradients.load_data()
        kernel, source = step.kernel, step.kernel.source
        if draws is None:
            draws = value_draws(step.model, step.vars, idata["posterior"].to_dataset())
        at = Coordinates(kernel.metric.matrix, step.adapted.metric)
        if source.has_control_variate:
            anchor, gradient = (
                gradients.joined([shared.get_value() for shared in arrays])
                for arrays in (source.anchor, source.anchor_gradient)
            )
            copies = step.adapted.row_copies
            at = at._replace(anchor=anchor, anchor_gradient=gradient, row_copies=copies)
        return measure(idata, gradients, draws, at, False, at_draws)

    return measure_run


MEASURES: dict[str, Callable[..., Dataset]] = {
    "groups": _measure_groups,
    "latents": _measure_draws(LatentsAtDraws),
    "network": _measure_network,
    "rows": _measure_draws(RowsAtDraws),
    "whole": _measure_draws(WholeAtDraws),
}
"""The measurement for each kind of model, by what it is `judged_as`; it takes a run's result, step
and evaluator, and draws of all variables if not all were recorded."""
