"""Adapt a step's kernel to its model."""

import logging
from dataclasses import replace

import numpy as np
import pytensor
from pymc.blocking import PointType
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable

from pymc_sgmcmc.adaptation.adapted import Adapted, UnfitAdaptation
from pymc_sgmcmc.adaptation.earlier import EarlierWarmUp
from pymc_sgmcmc.adaptation.kinds import ROWS, WHOLE, Gradients, kind_of
from pymc_sgmcmc.adaptation.step_size import expected_friction
from pymc_sgmcmc.gradients.row_axis import n_rows_of
from pymc_sgmcmc.kernel import Kernel
from pymc_sgmcmc.schedules import Constant, Schedule

_log = logging.getLogger("pymc.sgmcmc")


def ones_per_row(model: Model, minibatch_dim: str | None) -> SharedVariable:
    """Weights of rows that are drawn alike, as an input of a gradient source."""
    ones = np.ones(n_rows_of(model, minibatch_dim), pytensor.config.floatX)
    return pytensor.shared(ones, name="row weights", shape=(None,))


def adapted(
    kernel: Kernel,
    gradients: Gradients,
    rng: np.random.Generator,
    start: PointType,
    target_bias: float,
    schedule: Schedule | None,
    thin: int | None,
    earlier: Adapted | None = None,
    anew: bool = False,
) -> Adapted:
    """Warm up, unless an earlier warm-up is given, and set the kernel to what was chosen.

    ``schedule`` and ``thin`` are what the user has chosen, the step size in z. An ``earlier``
    warm-up of another model is an `UnfitAdaptation`; with ``anew`` its data may be others, so that
    anchor, row weights and noise are found anew.
    """
    chosen = earlier
    if chosen is None:
        chosen = _warmed_up(kernel, gradients, rng, start, target_bias)
    elif anew:
        chosen = _with_new_data(kernel, gradients, rng, start, target_bias, chosen)
    if isinstance(schedule, Constant):
        h = schedule.value
        friction = expected_friction(kernel.algorithm, h, chosen.noise)
        chosen = replace(chosen, step_size=h, friction=friction)
    if thin is not None:
        passes = chosen.passes_per_draw * thin / chosen.thin
        chosen = replace(chosen, thin=thin, passes_per_draw=passes)
    chosen.apply(kernel)
    if schedule is not None:
        kernel.schedule = schedule
    if earlier is None and not kernel.source.rows:
        _log.info(
            "All rows are used at each update, so minibatches gain nothing: NUTS is about as fast "
            "here, and exact (pm.sample() without step=), as sgm.sample(exact=True) is."
        )
    if earlier is None:
        _log.info(
            f"Warm-up: {chosen.data_passes:.3g} passes over the data, {chosen.windows} windows; "
            f"step size {chosen.step_size:.3g}, {chosen.thin} updates per draw."
        )
    return chosen


def announce(kernel: Kernel) -> None:
    """Say what is about to be adapted: compiling it may take longer than the warm-up."""
    source = kernel.source
    if source.rows:
        rows = f"batches of {source.rows[0].batch_size}"
        rows += " with a control variate" if source.has_control_variate else ""
    else:
        rows = "all rows at each update"
    assert kernel.metric is not None
    _log.info(
        f"Initializing {kernel.name} with {kernel.metric.name} metric, {rows}... A model of a new "
        "form may take half a minute to compile; the warm-up follows."
    )


def _warmed_up(
    kernel: Kernel,
    gradients: Gradients,
    rng: np.random.Generator,
    start: PointType,
    target_bias: float,
) -> Adapted:
    return kind_of(kernel).warm_up(kernel, gradients, rng, target_bias).run(start)


def _with_new_data(
    kernel: Kernel,
    gradients: Gradients,
    rng: np.random.Generator,
    start: PointType,
    target_bias: float,
    earlier: Adapted,
) -> Adapted:
    if kind_of(kernel) not in (ROWS, WHOLE):
        raise UnfitAdaptation(
            "adaptation= of other data is for models without latents= and of at most 2000 "
            "parameters, none of them local: pass adaptation='auto'."
        )
    chosen = EarlierWarmUp(kernel, gradients, rng, target_bias, earlier=earlier).run(start)
    _log.info(
        "Metric and step size are those of an earlier warm-up; anchor and rows anew in "
        f"{chosen.data_passes:.3g} passes over the data."
    )
    return chosen
