"""All uses of PyMC's and PyTensor's private API, except what a step must override (step, chain)."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any

import numpy as np
from pymc.backends.base import MultiTrace
from pymc.backends.ndarray import NDArray
from pymc.model import Model
from pymc.sampling.mcmc import _quiet_logging
from pymc.step_methods.state import DataClassState, WithSamplingState
from pytensor.graph.basic import Variable

_quiet_runs: list[object] = []
_levels = ExitStack()
_levels_lock = Lock()


@contextmanager
def quiet_logging(quiet: bool) -> Iterator[None]:
    """Silence PyMC's messages, as ``pm.sample(quiet=True)`` does, until the last quiet run ends."""
    if not quiet:
        yield
        return
    # Only PyMC's function lists the loggers that are silenced. It stores the levels it finds, so a
    # second run in another thread would find and keep the silent ones.
    run = object()
    with _levels_lock:
        if not _quiet_runs:
            _levels.enter_context(_quiet_logging(True))
        _quiet_runs.append(run)
    try:
        yield
    finally:
        with _levels_lock:
            _quiet_runs.remove(run)
            if not _quiet_runs:
                _levels.close()


def statistics_of(trace: NDArray) -> list[dict[str, np.ndarray]]:
    """Return a recorder's statistics: one dict per step, with writable arrays."""
    # `get_sampler_stats` is read-only; `record` takes one draw at a time.
    return trace._stats


def forget_statistics(trace: NDArray) -> None:
    """Make a recorder's next `setup` create its own arrays for statistics."""
    # `pm.sample` records each chain in a shallow copy, and `setup` appends to existing arrays.
    trace._stats = None


def report(multitrace: MultiTrace, n_tune: int, n_draws: int, seconds: float) -> None:
    """Set the properties of a run that become attributes of its DataTree."""
    # `SamplerReport` has properties without setters for these; `pm.sample` sets them in the same
    # way.
    multitrace.report._n_tune = n_tune
    multitrace.report._n_draws = n_draws
    multitrace.report._t_sampling = seconds


def model_of(
    model: Model,
    variables: Mapping[Variable, Variable],
    values: Mapping[Variable, Variable],
    of_type: type[Model] = Model,
) -> Any:
    """Return a model of some variables of another one, with that model's coords and dim lengths.

    ``variables`` maps each variable to its replacement, and ``values`` does so for the value
    variables of random ones.
    """
    new = of_type(check_bounds=model.check_bounds, model=None)
    # `add_coords` would copy them, so that data set later would change only one of the models.
    new._coords, new._dim_lengths = model.coords, model.dim_lengths
    for kind in ("free_RVs", "observed_RVs", "deterministics", "potentials", "data_vars"):
        getattr(new, kind).extend(variables[v] for v in getattr(model, kind) if v in variables)
    for old in [*model.free_RVs, *model.observed_RVs]:
        if old in variables:
            rv, value = variables[old], values[old]
            new.rvs_to_values[rv], new.values_to_rvs[value] = value, rv
            new.rvs_to_transforms[rv] = model.rvs_to_transforms[old]
            if old in model.free_RVs:
                new.rvs_to_initial_values[rv] = model.rvs_to_initial_values[old]
    for var in variables.values():
        new.named_vars[var.name] = var
        if var.name in model.named_vars_to_dims:
            new.named_vars_to_dims[var.name] = model.named_vars_to_dims[var.name]
    return new


def is_worker() -> bool:
    """Whether this is a process that `pm.sample` has started for one of its chains."""
    # It ends when `pm.sample` tells it to. If it ended by itself, all draws would be lost.
    return multiprocessing.current_process().name.startswith("worker_chain_")


def saves_state(step: WithSamplingState) -> bool:
    """Whether a step has a `sampling_state` from which it can continue."""
    # Steps that save nothing also have the property; only the class of their state shows it.
    return type(step)._state_class is not DataClassState


def jitted(function: Any) -> Callable:
    """Return the function that numba or JAX compiled, without PyTensor's wrapper."""
    # It is mapped over chains or called from threads, which the wrapper does not support.
    return function.vm.jit_fn


def runs_python(function: Any) -> bool:
    """Whether part of a function of this package's numba linker runs in Python."""
    return getattr(jitted(function), "runs_python", False)
