"""Adapt a step's kernel to its model."""

import logging
from dataclasses import replace

import numpy as np
from pymc.blocking import PointType

from pymc_sgmcmc.adaptation.adapted_settings import Adapted
from pymc_sgmcmc.adaptation.kinds_of_model import Gradients, kind_of
from pymc_sgmcmc.adaptation.step_size import expected_friction
from pymc_sgmcmc.kernel import Kernel
from pymc_sgmcmc.schedules import Constant, Schedule

_log = logging.getLogger("pymc.sgmcmc")


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
    """Warm up, unless an earlier warm-up is given, and configure the kernel with what was chosen.

    ``schedule`` and ``thin`` are the user's choices; with ``anew`` the data may differ from those
    of the ``earlier`` warm-up.
    """
    chosen = earlier
    if chosen is None or anew:
        warm_up = kind_of(kernel).warm_up(kernel, gradients, rng, target_bias)
        if chosen is None:
            chosen = warm_up.run(start)
        else:
            chosen = warm_up.renew(chosen)
            _log.info(
                "Metric and step size are those of an earlier warm-up; anchor and rows were found "
                f"again in {chosen.data_passes:.3g} passes over the data."
            )
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
    """Log what is about to be adapted, because compiling it may take longer than the warm-up."""
    source = kernel.source
    rows = "all rows at each update"
    if source.rows:
        rows = f"batches of {source.rows[0].batch_size}"
        rows += " with a control variate" if source.has_control_variate else ""
    assert kernel.metric is not None
    _log.info(
        f"Initializing {kernel.name} with {kernel.metric.name} metric, {rows}... A model of a new "
        "form may take half a minute to compile; the warm-up follows."
    )
