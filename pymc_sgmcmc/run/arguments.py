"""The arguments of `sample`, checked and completed before anything is compiled."""

import logging
import multiprocessing
from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from pymc.initial_point import PointType, StartDict
from pymc.model import Model
from pymc.sampling.mcmc import assign_step_methods, instantiate_steppers
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.arraystep import PopulationArrayStepShared
from pymc.step_methods.compound import BlockedStep, CompoundStep, flatten_steps
from pymc.util import (
    RandomGeneratorState,
    get_random_generator,
    get_state_from_generator,
    random_generator_from_state,
)
from pytensor.graph.basic import Variable
from xarray import Dataset, DataTree

from pymc_sgmcmc.argument_checks import shown, whole_number
from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.backends.cores import n_cores
from pymc_sgmcmc.gradients.arrays import dims_of, evaluate
from pymc_sgmcmc.run.saved_state import from_plain, to_plain
from pymc_sgmcmc.step import SGMCMCStep

_log = logging.getLogger("pymc.sgmcmc")

CHAINS = 4
"""Default number of chains: enough for R-hat, and the same on every machine."""
MOST_CHAINS = 100_000
"""Each has a generator, a recorder and a starting point of its own, made before anything else."""
STATE = RandomGeneratorState.__name__
"""What a store's record says of a seed that is a generator's state."""
STRATEGIES = ("prior", "support_point")
"""What PyMC takes for an initial value and is none."""


def checked_numbers(draws: Any, tune: Any, chains: Any) -> tuple[int | None, int | None, int]:
    """Return draws, tune and chains as numbers, or raise an error."""
    return (
        None if draws is None else whole_number("draws", draws, 1),
        None if tune is None else whole_number("tune", tune, 0),
        CHAINS if chains is None else whole_number("chains", chains, 1, MOST_CHAINS),
    )


def checked_cores(cores: Any, blas_cores: Any) -> int:
    """Return the number of processes, or raise an error."""
    if blas_cores is not None and blas_cores != "auto":
        whole_number("blas_cores", blas_cores, 1, remedy="or 'auto', or None for no limit.")
    return min(4, n_cores()) if cores is None else whole_number("cores", cores, 1)


def check_kinds(model: Any, callback: Any, idata_kwargs: Any, mp_ctx: Any) -> None:
    """Raise an error for arguments that would only fail when draws have been made."""
    if not isinstance(model, Model | None):
        fits = " A model that has fit(): with sgm.instead_of_nuts(): model.fit(...)."
        raise ValueError(
            f"model={shown(model)} must be a pymc.Model, or None inside its context."
            f"{fits if hasattr(model, 'fit') else ''}"
        )
    if callback is not None and not callable(callback):
        raise ValueError(
            f"callback={shown(callback)} must be a function, called as "
            "callback(trace=..., draw=...)."
        )
    if not isinstance(idata_kwargs, dict | None):
        raise ValueError(
            f"idata_kwargs={shown(idata_kwargs)} must be a dict of arguments of "
            "pymc.to_inference_data."
        )
    methods = multiprocessing.get_all_start_methods()
    if not (mp_ctx is None or mp_ctx in methods or hasattr(mp_ctx, "get_start_method")):
        raise ValueError(
            f"mp_ctx={shown(mp_ctx)} must be one of {', '.join(map(repr, methods))}, a context of "
            "multiprocessing, or None."
        )


def check_seed(random_seed: Any) -> None:
    """Raise an error for seeds that NumPy would take, and dicts that are not from a store."""
    empty = isinstance(random_seed, list | tuple | np.ndarray) and np.size(random_seed) == 0
    foreign = isinstance(random_seed, dict) and random_seed.get("__class__") != STATE
    if isinstance(random_seed, bool) or (np.isscalar(random_seed) and random_seed == -1):
        raise ValueError(
            f"random_seed={random_seed} is not allowed: pass another integer, or None for a random "
            "seed."
        )
    if empty or foreign:
        raise _no_seed(random_seed)


def check_names(model: Model, names: Any, argument: str, predictions: bool = False) -> None:
    """Raise an error for names that the model does not have."""
    if names is None:
        return
    if isinstance(names, str):
        raise ValueError(f"{argument}={shown(names)} must be a list of names: [{names!r}].")
    if not isinstance(names, Collection):
        raise ValueError(f"{argument}={shown(names)} must be a list of names of variables.")
    if argument == "var_names" and len(names) == 0 and not predictions:
        raise ValueError(
            "var_names=[] would record nothing: name a variable, leave var_names= out, or pass "
            "predictions=."
        )
    starts = argument == "initvals"
    own_scale = model.free_RVs if starts else model.unobserved_RVs
    known = {v.name for v in [*own_scale, *model.value_vars]}
    for name in names:
        name = getattr(name, "name", name)
        if starts and name in {v.name for v in model.deterministics}:
            raise ValueError(
                f"initvals: '{name}' is a deterministic, which follows from other variables. Give "
                f"these initial values: {', '.join(rv.name for rv in model.free_RVs)}."
            )
        if name not in known:
            raise ValueError(
                f"{argument}: the model has no variable '{name}'. It has: "
                f"{', '.join(sorted(known))}."
            )


def check_starts(
    model: Model, initvals: StartDict | Sequence[StartDict | None] | None, init: str, chains: int
) -> None:
    """Raise an error for starts that the model does not have, or not one per chain."""
    if not isinstance(initvals, dict | list | tuple | None):
        raise _no_starts(initvals)
    for one in [initvals] if isinstance(initvals, dict) else initvals or []:
        if not isinstance(one, dict | None):
            raise _no_starts(initvals)
        check_names(model, one, "initvals")
        for name, value in (one or {}).items():
            _check_shape(model, str(getattr(name, "name", name)), value)
    if not isinstance(initvals, dict | None) and len(initvals) != chains:
        raise ValueError(
            f"initvals has {len(initvals)} entries, but there are {chains} chains: pass one dict "
            "per chain, or a single dict."
        )
    if init not in ("jitter", "point"):
        raise ValueError(
            f"init={shown(init)} must be 'jitter' or 'point': it says where chains start. The "
            "metric, which init= of NUTS chooses too, is the step's: "
            "step=sgm.MSGNHT_S(adaptation='diag')."
        )


def _no_starts(initvals: Any) -> ValueError:
    of_run = ""
    each = initvals if isinstance(initvals, list | tuple) else [initvals]
    if any(isinstance(one, DataTree | Dataset) for one in each):
        of_run = (
            " A draw of a run is {rv.name: idata.posterior[rv.name].values[0, -1] for rv in "
            "model.free_RVs}."
        )
    return ValueError(
        f"initvals={shown(initvals)} must be a dict of initial values by variable, or a list with "
        f"one such dict, or None, for each chain.{of_run}"
    )


def _check_shape(model: Model, name: str, value: Any) -> None:
    """Raise an error for an initial value whose axes are not those of its variable."""
    if isinstance(value, str) and value not in STRATEGIES:
        raise ValueError(
            f"initvals: the value {shown(value)} for '{name}' must be a number or an array, or one "
            f"of {', '.join(map(repr, STRATEGIES))}."
        )
    if isinstance(value, str | Variable):
        return
    variables = {v.name: v for v in [*model.value_vars, *model.unobserved_RVs]}
    dims = dims_of(model, variables[name])
    shape = [
        n if dim is None else int(evaluate(model.dim_lengths[dim])[0])
        for n, dim in zip(variables[name].type.shape, dims, strict=True)
    ]
    given = np.shape(value)
    if given and (
        len(given) != len(shape)
        or any(n not in (None, m) for n, m in zip(shape, given, strict=True))
    ):
        expected = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(
            f"initvals: the value for '{name}' has the shape {given}, but the variable has "
            f"({expected}). Pass an array of that shape."
        )


def seeded(random_seed: Any) -> tuple[Any, np.random.Generator]:
    """Return a seed as plain values, and its generator."""
    if random_seed is None:
        random_seed = np.random.SeedSequence().entropy
    if isinstance(random_seed, dict):  # a generator's state, from a store
        state = from_plain(random_seed, RandomGeneratorState({}, {}))
        return random_seed, random_generator_from_state(state)
    if isinstance(random_seed, np.random.SeedSequence):  # a copy: it counts what is spawned of it
        random_seed = np.random.default_rng(deepcopy(random_seed))
    if isinstance(random_seed, np.random.Generator | np.random.BitGenerator):
        generator = get_random_generator(random_seed)
        return to_plain(get_state_from_generator(generator), "seed"), generator
    plain = random_seed if isinstance(random_seed, int) else np.asarray(random_seed).tolist()
    try:
        return plain, get_random_generator(random_seed)
    except (TypeError, ValueError):
        raise _no_seed(random_seed) from None


def _no_seed(random_seed: Any) -> ValueError:
    return ValueError(
        f"random_seed={shown(random_seed)} must be an integer that is not negative, a list of such "
        "integers, a numpy.random.Generator or SeedSequence, or None for a random seed."
    )


def sampled_model(model: Model, step: Any) -> Model:
    """Return the sampled model: that of a step that has made it from this one, if any.

    It has no latent variables that the step integrates out, or all rows instead of pm.Minibatch.
    """
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
def whole_step(model: Model, step: Any, start: PointType, compile_kwargs: Any) -> Any:
    """Return one step for all variables; PyMC chooses steps for variables without one."""
    if isinstance(step, type):
        raise ValueError(
            f"step={step.__name__} is a class. Pass an instance: step={step.__name__}(...)"
        )
    for one in step if isinstance(step, list | tuple) else [step]:
        if not isinstance(one, BlockedStep | CompoundStep):
            raise ValueError(
                f"step={shown(one)} is not a step. Pass one made in the model's context, such as "
                "step=sgm.MSGNHT_S(), or leave step= out."
            )
    provided, selected = assign_step_methods(model, step, methods=STEP_METHODS)
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
