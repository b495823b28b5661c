"""A step's kernel: the gradients and batches of its updates, according to the step's arguments."""

import logging
import math
from typing import Any, Literal

import numpy as np
import pytensor
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable

from pymc_sgmcmc.adaptation.metric_and_batch_size import (
    LARGEST_DENSE,
    LARGEST_SHARED,
    Asked,
    Plan,
    adapts,
    planned,
    tell_of_rows,
)
from pymc_sgmcmc.gradients.all_rows import with_all_rows
from pymc_sgmcmc.gradients.arrays import warn_if_integers_overflowed
from pymc_sgmcmc.gradients.control_variate import ControlVariate
from pymc_sgmcmc.gradients.full_terms import message_of
from pymc_sgmcmc.gradients.local_scales import LocalScales
from pymc_sgmcmc.gradients.local_variables import elements_per_group
from pymc_sgmcmc.gradients.metric import Metric
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.gradients.pm_minibatch import written_in_minibatches
from pymc_sgmcmc.gradients.rows_in_batches import n_rows_of
from pymc_sgmcmc.gradients.source import GradientSource
from pymc_sgmcmc.gradients.tempered import tempered
from pymc_sgmcmc.kernel import Kernel
from pymc_sgmcmc.latents.gradient import latent_gradient_source
from pymc_sgmcmc.latents.joint import Latents, without_latents
from pymc_sgmcmc.number_checks import is_auto
from pymc_sgmcmc.schedules import Schedule, as_schedule

_log = logging.getLogger("pymc.sgmcmc")


FIRST_STEP_SIZE = 1e-3
"""Step size until one has been chosen."""


def kernel_of(
    asked: Asked, schedule: Schedule | None, thin: int | None, compile_kwargs: dict[str, Any]
) -> tuple[Kernel, int | None]:
    """Make the kernel of a step, and return it with the planned rows per batch.

    Raises an error for arguments that cannot be combined.
    """
    local = asked.local if asked.takes_local and asked.latents is None else None
    plan = planned(asked, local)
    source = _source(plan, asked)
    if plan.tentative and not source.local_variables:
        plan = planned(asked, None)
        source = _source(plan, asked)
    chosen = plan.metric is not None and is_auto(asked.batch_size)
    if chosen and asked.data is None and asked.latents is None:
        tell_of_rows(asked.model, asked.minibatch_dim)
    if source.full:
        _log.info(message_of(source.full))
    if asked.updates_per_batch > 1 and not source.rows:
        raise ValueError(
            f"updates_per_batch={asked.updates_per_batch} needs batches: pass batch_size= too."
        )
    for array, _ in source.data:
        warn_if_integers_overflowed(array)
    metric, algorithm = _metric(source, plan.metric), asked.algorithm
    if isinstance(metric, LocalScales):
        algorithm = algorithm.for_groups()
    kernel = Kernel(
        asked.name,
        asked.model,
        source,
        algorithm,
        as_schedule(FIRST_STEP_SIZE) if schedule is None else schedule,
        thin or 1,
        _independent_rows(source, plan, asked),
        compile_kwargs,
        metric,
        asked.updates_per_batch,
    )
    return kernel, plan.batch_size


def model_of_step(
    name: str,
    model: Model,
    latents: Latents | None,
    step_size: Any,
    adaptation: Any,
    batch_size: Any,
) -> tuple[Model, int | Literal["auto"] | None]:
    """Return the model whose gradients the updates use, and the rows per batch.

    It contains no latent variables, nor pm.Minibatch where gradients of single rows are needed.
    """
    if latents is not None:
        return without_latents(model, latents.vars), batch_size
    if not adapts(step_size, adaptation) or not written_in_minibatches(model):
        return model, batch_size
    if not is_auto(batch_size):
        raise ValueError(
            f"batch_size={batch_size!r} and pm.Minibatch: use only one of them (prefer "
            "batch_size=, with which predictions use all the data)."
        )
    try:
        return with_all_rows(model)
    except ValueError as error:
        raise ValueError(
            f"{error} So adaptation cannot look at single rows: write the model with all its "
            f"data, or pass {name}(step_size=..., thin=...) with numbers."
        ) from error


def _source(plan: Plan, asked: Asked) -> GradientSource:
    """Make the gradient source of a step, or raise an error for arguments that cannot be combined.

    With ``batches="auto"`` it has whole groups where an adapted step's local variables need them.
    """
    temperature, local, batches = asked.algorithm.temperature, asked.local, asked.batches
    if plan.metric is not None and temperature != 1:
        raise ValueError(
            f"temperature={temperature!r} needs a step_size: a number or schedule. What is "
            "adapted to the model, as with step_size='auto', is right for temperature 1 only."
        )
    reason = _reason_against_local(plan, asked)
    if reason is not None and local and local != "auto":
        raise ValueError(f"local={local!r}: {reason}.")
    if batches == "groups" and (reason is not None or local is None):
        raise ValueError(
            f"batches='groups' needs local variables, but {reason or 'local=None'}. Use "
            "batches='rows'."
        )
    options: dict[str, Any] = {
        "batch_size": plan.batch_size,
        "minibatch_dim": asked.minibatch_dim,
        "self_check": asked.self_check,
        "start": asked.start,
        "data": asked.data,
    }
    source: GradientSource
    if asked.latents is not None:
        source = latent_gradient_source(
            asked.made_for, asked.model, asked.vars, asked.latents, **options
        )
    elif plan.control_variate:
        if asked.data is None:  # rows can be drawn by weight
            options["row_weights"] = _ones_per_row(asked.model, asked.minibatch_dim)
        rows_source = gradient_source(asked.model, asked.vars, **options)
        source = ControlVariate.of(rows_source, asked.model)
    else:
        if plan.metric is not None:
            local = plan.local
        elif batches == "auto":
            batches = "rows"  # which manual settings assume
        found = None if reason is not None else local
        source = gradient_source(asked.model, asked.vars, local=found, batches=batches, **options)
        shared = _shared_elements(source)
        better = _reason_to_move_together(source) if plan.tentative else None
        if better is not None:
            _log.info(f"Yet all elements move at every update: {better}.")
            source = gradient_source(asked.model, asked.vars, **options)
        elif plan.metric is not None and shared > LARGEST_SHARED:
            if local != "auto" or batches == "groups":
                raise ValueError(
                    f"local={local!r}: the other variables have {shared} elements, and adaptation "
                    f"makes a matrix of at most {LARGEST_SHARED}. Pass step_size=, batch_size= and "
                    "thin= with numbers, or local=None."
                )
            _log.info(
                f"Yet all elements move at every update: {shared} others would need a matrix, "
                f"which adaptation makes of at most {LARGEST_SHARED}."
            )
            source = gradient_source(asked.model, asked.vars, **options)
    if plan.metric is not None and asked.data is not None and not source.local_variables:
        size = sum(int(np.prod(shape)) for shape in source.shapes)
        if size > LARGEST_DENSE:
            raise ValueError(
                f"With {size} parameters that move together, more than {LARGEST_DENSE}, data= "
                "and an automatic step size do not go together yet. Pass step_size=..., "
                "batch_size=... and thin=... with numbers."
            )
    if batches == "groups" and not source.local_variables:
        raise ValueError(
            "batches='groups' needs local variables, and the model has none. Use batches='rows'."
        )
    return tempered(source, asked.model, temperature)


def _ones_per_row(model: Model, minibatch_dim: str | None) -> SharedVariable:
    """Return equal weights of all rows, as an input of a gradient source."""
    ones = np.ones(n_rows_of(model, minibatch_dim), pytensor.config.floatX)
    return pytensor.shared(ones, name="row weights", shape=(None,))


def _shared_elements(source: GradientSource) -> int:
    """Count the elements that do not belong to local variables; 0 if there are none of these."""
    local = {v.value for v in source.local_variables}
    if not local:
        return 0
    both = zip(source.vars, source.shapes, strict=True)
    return sum(int(np.prod(shape)) for v, shape in both if v not in local)


def _reason_to_move_together(source: GradientSource) -> str | None:
    """Return the reason why one metric for all parameters is better than local scales, if any."""
    if not source.local_variables:
        return None
    shared, size = _shared_elements(source), sum(map(math.prod, source.shapes))
    shapes = dict(zip(source.vars, source.shapes, strict=True))
    if 2 * shared > size:
        return f"{shared} of {size} belong to no group"
    if not source.has_whole_groups and elements_per_group(source.local_variables, shapes) > 1:
        return "with batches of rows, scales of groups with several elements would be too small"
    return None


def _metric(source: GradientSource, metric: Metric | None) -> Metric | None:
    """Return a plan's metric, or the one that the source's local variables need."""
    local = {v.value for v in source.local_variables}
    if metric is None or not local:
        return metric
    return LocalScales(source.shapes, [v in local for v in source.vars])


def _independent_rows(source: GradientSource, plan: Plan, asked: Asked) -> bool:
    """Whether rows are drawn independently: as requested, or as suits the sampler best."""
    adapted, streamed = plan.metric is not None, source.streamed is not None
    # An adapted step has measured the noise of independent rows. A stream with a control variate
    # has hardly any noise that epochs could average out.
    measured = adapted and (not streamed or bool(source.local_variables))
    if asked.replacement is False and measured and plan.batch_size is not None:
        raise ValueError(
            "replacement=False and adaptation: the step size is adapted to the noise of "
            "independent rows. Leave replacement out, or pass numbers as step_size and thin."
        )
    if not is_auto(asked.replacement):
        return bool(asked.replacement)
    little_noise = adapted and streamed and source.has_control_variate
    suits = asked.algorithm.absorbs_noise and not little_noise
    return plan.batch_size is not None and (measured or suits)


def _reason_against_local(plan: Plan, asked: Asked) -> str | None:
    """Return the reason why no variable of a step can be local, if there is one."""
    if not asked.takes_local:
        return "SGRLD moves all elements at every update"
    if plan.batch_size is None:
        return "local variables move with the rows of a batch: pass batch_size= too"
    if asked.algorithm.temperature != 1:
        return "groups without rows have no tempered prior to draw from: use temperature=1"
    if asked.latents is not None:
        return "latents= and local= do not go together yet"
    return None
