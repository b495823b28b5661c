"""The kinds of model that are adapted: how each is evaluated and warmed up."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pymc.blocking import PointType

from pymc_sgmcmc.adaptation.curvature_warm_up import CurvatureWarmUp
from pymc_sgmcmc.adaptation.latent_warm_up import LatentWarmUp
from pymc_sgmcmc.adaptation.local_gradients import LocalGradients
from pymc_sgmcmc.adaptation.local_warm_up import LocalWarmUp
from pymc_sgmcmc.adaptation.many_parameters_warm_up import ManyParametersWarmUp
from pymc_sgmcmc.adaptation.metric_and_batch_size import LARGEST_DENSE
from pymc_sgmcmc.adaptation.rows_warm_up import RowsWarmUp
from pymc_sgmcmc.adaptation.warm_up import WarmUp
from pymc_sgmcmc.gradients.flat_model import FlatModel
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients
from pymc_sgmcmc.integration.group_gradients import GroupGradients
from pymc_sgmcmc.integration.integrated_model import IntegratedModel
from pymc_sgmcmc.kernel import Kernel
from pymc_sgmcmc.latents.latent_gradients import LatentGradients

type Gradients = FlatModel | LocalGradients
"""What a warm-up and a verdict evaluate."""


@dataclass(frozen=True)
class Kind:
    """One kind of model."""

    judged_as: str
    """Key of `pymc_sgmcmc.diagnosis.measure_run` for the measurements behind the verdict."""
    fits: Callable[[Kernel], bool]
    """Whether a step's model is of this kind."""
    gradients: Callable[[Kernel, PointType, str | None], Any]
    """Makes the evaluator, also from values that are not sampled and ``minibatch_dim``."""
    warm_up: type[WarmUp]


def _of_batches(evaluator: type[FlatModel]) -> Callable[..., Any]:
    return lambda kernel, start, minibatch_dim: evaluator(
        kernel.model, kernel.source, kernel.compile_kwargs, start
    )


def _of_rows(evaluator: type[RowGradients]) -> Callable[..., Any]:
    return lambda kernel, start, minibatch_dim: evaluator(
        kernel.model,
        kernel.source.vars,
        minibatch_dim=minibatch_dim,
        compile_kwargs=kernel.compile_kwargs,
        start=start,
        data=kernel.source.streamed,
    )


GROUPS = Kind(
    "groups",
    lambda kernel: bool(kernel.source.local_variables),
    lambda kernel, start, minibatch_dim: LocalGradients(kernel, start),
    LocalWarmUp,
)
LATENTS = Kind(
    "latents",
    lambda kernel: kernel.source.has_latents,
    _of_batches(LatentGradients),
    LatentWarmUp,
)
NETWORK = Kind(
    "network",
    lambda kernel: kernel.n_elements > LARGEST_DENSE,
    _of_batches(FlatModel),
    ManyParametersWarmUp,
)
ROWS = Kind(
    "rows",
    lambda kernel: bool(kernel.source.rows),
    _of_rows(RowGradients),
    RowsWarmUp,
)
WHOLE = Kind(
    "whole",
    lambda kernel: True,
    lambda kernel, start, minibatch_dim: WholeGradients(
        kernel.model, kernel.source.vars, compile_kwargs=kernel.compile_kwargs, start=start
    ),
    CurvatureWarmUp,
)
INTEGRATED = replace(
    ROWS,
    fits=lambda kernel: bool(kernel.source.rows) and isinstance(kernel.model, IntegratedModel),
    gradients=_of_rows(GroupGradients),
)


def kind_of(kernel: Kernel) -> Kind:
    """Return the first kind that fits."""
    kinds = (GROUPS, LATENTS, NETWORK, INTEGRATED, ROWS, WHOLE)
    return next(kind for kind in kinds if kind.fits(kernel))
