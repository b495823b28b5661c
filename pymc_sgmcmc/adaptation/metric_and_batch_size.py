"""What a step adapts, decided before anything is compiled."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any, Literal, NamedTuple

import numpy as np
from pymc.blocking import PointType
from pymc.model import Model
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.algorithm import Algorithm
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.gradients.local_variables import LEAST_GROUPS, Local
from pymc_sgmcmc.gradients.metric import Dense, Diagonal, Metric
from pymc_sgmcmc.gradients.rows_in_batches import (
    FEW_ROWS,
    advice_on_tables,
    find_row_axes,
    find_row_axis,
)
from pymc_sgmcmc.latents.joint import Latents, find_latents
from pymc_sgmcmc.number_checks import is_auto

_log = logging.getLogger("pymc.sgmcmc")

METRICS = ("dense", "diag")
LARGEST_DENSE = 2000
"""Largest number of elements of theta for a dense metric; beyond it the metric is diagonal."""
LARGEST_SHARED = 1000
"""Number of elements of theta above which those of groups of rows are local, and largest number of
elements in addition to local ones."""
BATCH_OF_MANY = 128
"""Rows per batch of a model with more parameters, or with latent variables integrated out."""
LARGEST_DENSE_WITH_LATENTS = 500
"""Largest number of elements of theta for a dense metric with latent variables, which takes several
gradients of batches per element."""


class Plan(NamedTuple):
    """What a step adapts; without a metric, nothing."""

    batch_size: int | None
    metric: Metric | None = None
    control_variate: bool = False
    local: Local = None
    """The variables that may be local if something is adapted."""
    tentative: bool = False
    """Whether there is another plan, with ``local=None``, if no variable is local."""


def adapts(step_size: Any, adaptation: Any) -> bool:
    """Whether a step with these arguments adapts anything."""
    return adaptation is not None and (not is_auto(adaptation) or is_auto(step_size))


@dataclass(frozen=True)
class Asked:
    """The request for a step: its arguments, and the models and variables that they refer to."""

    name: str
    """Name of the sampler, for messages."""
    algorithm: Algorithm
    takes_local: bool
    """Whether the sampler's updates may move only some elements of a variable."""
    made_for: Model
    """The user's model."""
    model: Model
    """The sampled model, without latent variables."""
    vars: list[TensorVariable]
    """The sampled value variables."""
    shapes: list[tuple[int, ...]]
    """Shapes of these variables."""
    start: PointType
    """Point near which batches are compared with all rows."""
    step_size: Any
    adaptation: Any
    """The argument, or "local" for an earlier warm-up."""
    gradient: Any
    batch_size: Any
    minibatch_dim: str | None
    latents: Latents | None
    local: Local
    batches: Literal["auto", "rows", "groups"]
    data: StreamedData | None
    replacement: Any
    updates_per_batch: int
    self_check: bool


def planned(asked: Asked, local: Local) -> Plan:
    """Decide what a step adapts, or raise an error for arguments that contradict each other.

    ``local`` names the variables that may be local.
    """
    batch_size = asked.batch_size
    if asked.adaptation not in ("auto", None, *METRICS, "local"):
        raise ValueError(
            f"adaptation={asked.adaptation!r} must be 'auto', 'dense', 'diag' or None."
        )
    if asked.gradient not in ("auto", "plain", "control_variate"):
        raise ValueError(
            f"gradient={asked.gradient!r} must be 'auto', 'plain' or 'control_variate'."
        )
    if not adapts(asked.step_size, asked.adaptation):
        if is_auto(asked.step_size):
            raise ValueError(
                "step_size='auto' needs adaptation: leave adaptation='auto', or pass a number."
            )
        if asked.gradient == "control_variate":
            raise ValueError(
                "gradient='control_variate' needs an anchor, which adaptation finds: pass "
                "adaptation='dense' (or 'diag'), whose step_size is in units of the posterior's "
                "standard deviation."
            )
        return Plan(None if is_auto(batch_size) else batch_size)
    remedy = f"Pass {asked.name}(step_size=..., batch_size=..., thin=...) with numbers."
    if asked.algorithm.dynamics is None:
        raise ValueError(f"{asked.name} has no automatic step size. {remedy}")
    if asked.updates_per_batch > 1:
        raise ValueError(
            "updates_per_batch= and an automatic step size do not go together yet: adaptation "
            f"assumes independent batches. {remedy}"
        )
    size = sum(int(np.prod(shape)) for shape in asked.shapes)
    if asked.latents is not None:
        _check_latents(asked, size, remedy)
        if is_auto(batch_size):
            rvs = find_latents(asked.made_for, asked.latents.vars)
            batch_size = min(
                BATCH_OF_MANY, find_row_axis(asked.made_for, asked.minibatch_dim, rvs).length
            )
        diagonal = asked.adaptation == "diag" or size > LARGEST_DENSE_WITH_LATENTS
        return Plan(batch_size, Diagonal(asked.shapes) if diagonal else Dense(asked.shapes))
    many = size > LARGEST_DENSE
    for_all = asked.adaptation == "dense"
    asked_for = asked.batches == "groups" or (local and local != "auto")
    tried = size > LARGEST_SHARED and asked.adaptation in ("auto", "local")
    tried = tried and asked.gradient != "control_variate"
    if not asked_for and (for_all or not (many or tried)):
        local = None  # parameters move together, with a metric for all of them
    elif local and for_all:
        raise ValueError(
            f"adaptation={asked.adaptation!r} and local variables do not go together: leave "
            "adaptation='auto', with which shared variables have a matrix and local ones a scale "
            "for each element, or pass local=None."
        )
    metric = (
        Diagonal(asked.shapes) if local else _metric(asked.adaptation, asked.shapes, size, remedy)
    )
    # The gradient at the anchor is exact only while all other variables keep their values.
    alone = len(asked.vars) == len(asked.model.value_vars)
    if asked.gradient == "control_variate" and not alone:
        names = ", ".join(f"'{v.name}'" for v in asked.model.value_vars if v not in asked.vars)
        raise ValueError(
            f"gradient='control_variate' needs one step for all variables, but {names} would move "
            "in another one. Leave gradient='auto', or add them to vars."
        )
    if is_auto(batch_size):
        if asked.data is None:
            batch_size = automatic_batch_size(
                asked.model,
                asked.minibatch_dim,
                size,
                many or bool(local),
                needed=many or bool(asked_for),
            )
        else:
            wanted = BATCH_OF_MANY if many or local else batch_size_for(size)
            batch_size = min(wanted, asked.data.window)
    if many and batch_size is None:
        raise ValueError(
            f"batch_size=None: with {size} parameters adaptation needs batches of rows. Leave "
            f"batch_size='auto'. Or: {remedy}"
        )
    if many and asked.gradient == "control_variate":
        raise ValueError(
            f"gradient='control_variate' works with at most {LARGEST_DENSE} parameters, but the "
            f"model has {size}. Leave gradient='auto'."
        )
    if local and asked_for and asked.gradient == "control_variate":
        raise ValueError(
            "gradient='control_variate' and local variables do not go together: an anchor says "
            "nothing about groups that vary. Leave gradient='auto', or pass local=None."
        )
    possible = batch_size is not None and alone and not many and not local
    tentative = bool(local) and not (asked_for or many)
    return Plan(batch_size, metric, possible and asked.gradient != "plain", local, tentative)


def _check_latents(asked: Asked, size: int, remedy: str) -> None:
    """Refuse arguments that cannot be adapted together with latent variables."""
    latents = asked.latents
    assert latents is not None
    name = type(latents).__name__
    if latents.persistent:
        raise ValueError(
            f"persistent=True in {latents!r} and an automatic step size do not go together: the "
            "warm-up compares draws at many points, far from where a row's chain ended. "
            f"{remedy} Or leave persistent=False."
        )
    if latents.state_names:
        raise ValueError(
            f"latents={name}(...) and an automatic step size do not go together: {name} carries "
            "what it has learnt from one batch to the next, so that the warm-up cannot compare "
            f"draws. {remedy} Or use latents=Gibbs(...)."
        )
    if asked.data is not None:
        raise ValueError(
            f"latents=, data= and an automatic step size do not go together yet. {remedy}"
        )
    if size > LARGEST_DENSE:
        raise ValueError(
            f"With {size} parameters, more than {LARGEST_DENSE}, latents= and an automatic step "
            f"size do not go together yet. {remedy}"
        )
    if asked.adaptation == "dense" and size > LARGEST_DENSE_WITH_LATENTS:
        raise ValueError(
            f"adaptation='dense' and latents= go together up to {LARGEST_DENSE_WITH_LATENTS} "
            f"parameters, but the model has {size}: pass 'diag'."
        )
    if asked.gradient == "control_variate":
        raise ValueError(
            "gradient='control_variate' and latents= do not go together: latent variables drawn at "
            "an anchor differ from those of an update. Leave gradient='auto'."
        )


def _metric(kind: str, shapes: Sequence[tuple[int, ...]], size: int, remedy: str) -> Metric:
    if size > LARGEST_DENSE:
        if kind not in ("auto", "diag"):
            raise ValueError(
                f"adaptation={kind!r} works with at most {LARGEST_DENSE} parameters, but the "
                f"model has {size}. Pass adaptation='diag', or: {remedy}"
            )
        return Diagonal(shapes)
    return Diagonal(shapes) if kind == "diag" else Dense(shapes)


def automatic_batch_size(
    model: Model, minibatch_dim: str | None, size: int, many: bool, needed: bool
) -> int | None:
    """Choose the rows per batch: about 2 per parameter, or None to use all if rows are few.

    With a control variate the noise is then that of about one posterior standard deviation. Models
    with many parameters, or with local ones, have small batches whatever the number of rows. If
    batches are ``needed`` and the model cannot be sliced, an error explains why.
    """
    try:
        axes = find_row_axes(model, minibatch_dim)
    except ValueError as error:
        if needed:
            raise ValueError(
                f"With {size} parameters adaptation needs batches of rows. {error}"
            ) from error
        return None
    n_rows = sum(axis.length for axis in axes)
    if many:
        return min(BATCH_OF_MANY, n_rows)
    batch_size = batch_size_for(size)
    return None if n_rows <= max(FEW_ROWS, 8 * batch_size) else batch_size


def tell_of_rows(model: Model, minibatch_dim: str | None) -> None:
    """Log why a model cannot be sliced into batches, or advice on tables with few rows."""
    try:
        axes = find_row_axes(model, minibatch_dim)
    except ValueError as error:
        _log.info(f"All rows are used at each update: {error}")
        return
    for advice in advice_on_tables(model, axes, LEAST_GROUPS):
        _log.warning(advice)


def batch_size_for(size: int) -> int:
    """Return the rows per batch for a number of parameters."""
    return 2 ** ceil(log2(max(32, 2 * size)))


def groups_for(size: int, rows_per_group: float) -> int:
    """Return the number of groups per batch if their effects are integrated out.

    This is an eighth of the number of rows, because a group costs far more, and with the control
    variate the noise stays a fraction of the injected noise. But with few rows per group, such as
    persons in addition to a thousand cities, batches have as many rows as elsewhere, because each
    row informs about one city only.
    """
    rows = batch_size_for(size)
    return max(32, rows // 8, ceil(rows / rows_per_group))
