"""Adapt a step's kernel to its model."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor
from pymc.blocking import PointType
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable

from pymc_sgmcmc.adaptation.adapted import Adapted
from pymc_sgmcmc.adaptation.curvature_warm_up import CurvatureWarmUp
from pymc_sgmcmc.adaptation.latent_warm_up import LatentWarmUp
from pymc_sgmcmc.adaptation.local_gradients import LocalGradients
from pymc_sgmcmc.adaptation.local_warm_up import LocalWarmUp
from pymc_sgmcmc.adaptation.many_parameters_warm_up import ManyParametersWarmUp
from pymc_sgmcmc.adaptation.plan import LARGEST_LOW_RANK, is_scale
from pymc_sgmcmc.adaptation.step_size import expected_friction
from pymc_sgmcmc.gradients.batch_gradients import BatchGradients
from pymc_sgmcmc.gradients.control_variate import ControlVariate
from pymc_sgmcmc.gradients.local_source import LocalSource
from pymc_sgmcmc.gradients.row_axis import n_rows_of
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.streamed_rows import StreamedRowGradients
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients
from pymc_sgmcmc.integration.group_gradients import GroupGradients
from pymc_sgmcmc.integration.integrated_model import IntegratedModel
from pymc_sgmcmc.kernel import Kernel
from pymc_sgmcmc.latents.gradient import LatentGradientSource
from pymc_sgmcmc.latents.latent_gradients import LatentGradients
from pymc_sgmcmc.schedules import Constant, Schedule

_log = logging.getLogger("pymc.sgmcmc")

type Gradients = RowGradients | WholeGradients | BatchGradients | LocalGradients
"""What a warm-up evaluates."""


def ones_per_row(model: Model, minibatch_dim: str | None) -> SharedVariable:
    """Weights of rows that are drawn alike, as an input of a gradient source."""
    ones = np.ones(n_rows_of(model, minibatch_dim), pytensor.config.floatX)
    return pytensor.shared(ones, name="row weights", shape=(None,))


def adaptation_gradients(kernel: Kernel, start: PointType, minibatch_dim: str | None) -> Gradients:
    """Gradients of single rows, or of all data for a kernel that uses all rows at each update.

    Of batches where there are many parameters, or local ones, or latent variables.
    """
    source = kernel.source
    if isinstance(source, LocalSource):
        return LocalGradients(kernel, start)
    options: dict[str, Any] = {"compile_kwargs": kernel.compile_kwargs, "start": start}
    if isinstance(source, LatentGradientSource):
        return LatentGradients(kernel.model, source, **options)
    if kernel.n_elements > LARGEST_LOW_RANK:
        return BatchGradients(kernel.model, source, **options)
    if not source.rows:
        return WholeGradients(kernel.model, source.vars, **options)
    options["minibatch_dim"] = minibatch_dim
    if source.streamed is not None:
        return StreamedRowGradients(kernel.model, source.vars, data=source.streamed, **options)
    kind = GroupGradients if isinstance(kernel.model, IntegratedModel) else RowGradients
    return kind(kernel.model, source.vars, **options)


def adapted(
    kernel: Kernel,
    gradients: Gradients,
    rng: np.random.Generator,
    start: PointType,
    target_bias: float,
    schedule: Schedule | None,
    thin: int | None,
    earlier: Adapted | None = None,
) -> Adapted:
    """Warm up, unless an earlier warm-up is given, and set the kernel to what was chosen.

    Parameters
    ----------
    kernel : Kernel
        With a metric.
    gradients : RowGradients, WholeGradients, BatchGradients or LocalGradients
        Of its model.
    rng : numpy.random.Generator
    start : dict of arrays
        Where the warm-up starts.
    target_bias : float
        Tolerated relative error of a standard deviation.
    schedule : Schedule, optional
        A step size that the user has chosen, in z.
    thin : int, optional
        Updates per draw that the user has chosen.
    earlier : Adapted, optional
        What a warm-up of the same model has chosen.

    Raises
    ------
    UnfitAdaptation
        If ``earlier`` is of another model.
    """
    chosen = earlier
    if chosen is None:
        chosen = _warmed_up(kernel, gradients, rng, start, target_bias)
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


def _warmed_up(
    kernel: Kernel,
    gradients: Gradients,
    rng: np.random.Generator,
    start: PointType,
    target_bias: float,
) -> Adapted:
    source = kernel.source
    if source.rows:
        rows = f"batches of {source.rows[0].batch_size}"
        rows += " with a control variate" if isinstance(source, ControlVariate) else ""
    else:
        rows = "all rows at each update"
    assert kernel.metric is not None
    _log.info(f"Initializing {kernel.name} with {kernel.metric.name} metric, {rows}...")
    flags = is_scale(kernel.model, source.vars, source.shapes)
    if isinstance(gradients, LatentGradients):
        return LatentWarmUp(kernel, gradients, flags, rng, target_bias).run(start)
    if isinstance(gradients, BatchGradients):
        return ManyParametersWarmUp(kernel, gradients, rng, target_bias).run(start)
    if isinstance(gradients, LocalGradients):
        return LocalWarmUp(kernel, gradients, flags, rng, target_bias).run(start)
    return CurvatureWarmUp(kernel, gradients, flags, rng, target_bias).run(start)
