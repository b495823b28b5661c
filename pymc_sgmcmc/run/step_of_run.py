"""The step of a run: a single one for all variables, either given or the default step."""

import logging
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytensor
from pymc.initial_point import PointType
from pymc.model import Model
from pymc.sampling.mcmc import assign_step_methods, instantiate_steppers
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.arraystep import PopulationArrayStepShared
from pymc.step_methods.compound import BlockedStep, CompoundStep, flatten_steps
from xarray import DataTree

from pymc_sgmcmc.adaptation.adapted_settings import Adapted, UnfitAdaptation, anchor_of
from pymc_sgmcmc.adaptation.metric_and_batch_size import LARGEST_DENSE, groups_for
from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.gradients.local_variables import n_looked_up
from pymc_sgmcmc.integration.integrated_model import DIM
from pymc_sgmcmc.number_checks import shown
from pymc_sgmcmc.samplers.msgnht import MSGNHT_S
from pymc_sgmcmc.step import SGMCMCStep

_log = logging.getLogger("pymc.sgmcmc")


def sampled_model(model: Model, step: Any) -> Model:
    """Return the sampled model, which may be one that the step has derived from this model."""
    steps = step if isinstance(step, list | tuple) else [step]
    for one in steps:
        if isinstance(one, SGMCMCStep) and one.made_for is model:
            return one.model
        if isinstance(one, SGMCMCStep) and one.latents is not None:
            rest = {rv.name for rv in one.model.free_RVs}
            if rest < {rv.name for rv in model.free_RVs}:
                return one.model
    return model


@quick_graphs()
def step_for_all(model: Model, step: Any, start: PointType, compile_kwargs: Any) -> Any:
    """Return one step for all variables; PyMC chooses steps for variables without one."""
    if isinstance(step, type):
        raise ValueError(
            f"step={step.__name__} is a class. Pass an instance: step={step.__name__}(...)"
        )
    provided = list(step) if isinstance(step, list | tuple) else [step]
    for one in provided:
        if not isinstance(one, BlockedStep | CompoundStep):
            raise ValueError(
                f"step={shown(one)} is not a step. Pass one made in the model's context, such as "
                "step=sgm.MSGNHT_S(), or leave step= out."
            )
    selected: dict[Any, list] = {}
    # PyMC writes out the model's density even if it has no steps to choose.
    if {v for one in provided for v in one.vars} != set(model.value_vars):
        provided, selected = assign_step_methods(model, provided, methods=STEP_METHODS)
    step = instantiate_steppers(
        model,
        steps=provided,
        selected_steps=selected,
        step_kwargs={},
        initial_point=start,
        compile_kwargs=compile_kwargs,
    )
    if isinstance(step, list):
        step = CompoundStep(step)
    for variables in selected.values():
        names = ", ".join(f"'{v.name}'" for v in variables)
        _log.info(f"PyMC chose steps for {names}; they use all the data at each draw.")
    steps = flatten_steps(step)
    if len(steps) > 1 and any(getattr(one, "adapted", None) is not None for one in steps):
        _log.info(
            "Several steps take turns, so there is no verdict at the end, and the adapted ones "
            "have no control variate, which needs all other variables to stay where they are."
        )
    for one in steps:
        if isinstance(one, PopulationArrayStepShared):
            raise ValueError(
                f"{type(one).__name__} must update all chains together, which sgm.sample cannot "
                "do. Use pm.sample, or another step."
            )
        if isinstance(one, SGMCMCStep) and one.model is not model:
            raise ValueError(
                f"{one!r} was made for another model: make it in the context of the model that "
                "you sample."
            )
    return step


def default_step(
    model: Model,
    compile_kwargs: dict[str, Any] | None,
    rng: np.random.Generator,
    adaptation: Adapted | DataTree | str = "auto",
    of_groups: bool = False,
    data: StreamedData | None = None,
    start: PointType | None = None,
) -> MSGNHT_S:
    """Make the step for all variables.

    ``adaptation`` is "auto", the warm-up of the run that is resumed, or a result of other data. The
    warm-up begins at ``start``, or at the model's initial point.
    """
    if compile_kwargs is None and not of_groups:  # whose shapes are those of the given backend
        compile_kwargs = _compile_kwargs_of(model)
    make = partial(
        MSGNHT_S, model=model, compile_kwargs=compile_kwargs, rng=rng, initial_point=start
    )
    if of_groups:
        with quick_graphs():
            size = sum(np.size(value) for value in model.initial_point().values())
        sizes = model.centres.rows.sizes
        batch_size = min(groups_for(size, sizes.mean()), len(sizes))
        make = partial(make, minibatch_dim=DIM, batch_size=batch_size, local=None)
    else:
        make = partial(make, data=data)
    if of_groups and isinstance(adaptation, Adapted | DataTree):
        anchor = anchor_of(adaptation)
        if len(anchor) == size:  # or the step says what differs
            model.settle(anchor)  # the points of integration are data too
    if isinstance(adaptation, Adapted):
        with suppress(UnfitAdaptation):  # the store then reports what differs from its run
            return make(adaptation=adaptation)
        adaptation = "auto"
    return make(adaptation=adaptation)


@quick_graphs()
def _compile_kwargs_of(model: Model) -> dict[str, Any] | None:
    """Return how to compile the default step: networks with JAX, which compiles them far sooner."""
    start = model.initial_point()
    size = sum(np.size(start[v.name]) for v in model.continuous_value_vars)
    chosen_by_user = (pytensor.config.mode, pytensor.config.linker) != ("Mode", "auto")
    if size <= LARGEST_DENSE or chosen_by_user or find_spec("jax") is None:
        return None
    if 2 * n_looked_up(model) > size:
        return None
    _log.info(
        f"With {size} parameters the step is compiled with JAX, which is ready sooner. For numba "
        "pass compile_kwargs={'mode': 'NUMBA'}."
    )
    return {"mode": "JAX"}
