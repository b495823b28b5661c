"""What this package needs of PyMC and PyTensor and has no public name there: all in one place."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from pymc.backends.base import MultiTrace, _choose_chains
from pymc.backends.ndarray import NDArray
from pymc.model import Model
from pymc.sampling.mcmc import _quiet_logging
from pymc.step_methods.state import DataClassState, WithSamplingState


def quiet_logging(quiet: bool) -> AbstractContextManager:
    """Hold back PyMC's messages, as ``pm.sample(quiet=True)`` does."""
    # The loggers that it silences are listed in this function alone.
    return _quiet_logging(quiet)


def choose_chains(traces: Sequence[NDArray], n_warmup: int) -> tuple[list[NDArray], int]:
    """Choose chains and a common length, warmup included, so that the most draws are kept."""
    # The rule by which `pm.sample` cuts an interrupted run; nothing public applies it.
    return _choose_chains(traces, n_warmup)


def statistics_of(trace: NDArray) -> list[dict[str, np.ndarray]]:
    """Return a recorder's statistics: one dict a step, arrays that may be written to."""
    # `get_sampler_stats` is for reading; `record` takes one draw at a time.
    return trace._stats


def forget_statistics(trace: NDArray) -> None:
    """Have a recorder's next `setup` make arrays for statistics of its own."""
    # `pm.sample` records each chain in a shallow copy, and `setup` appends to what is there.
    trace._stats = None


def report(multitrace: MultiTrace, n_tune: int, n_draws: int, seconds: float) -> None:
    """Say of a run what its DataTree has as attributes."""
    # `SamplerReport` has these as properties without setters; `pm.sample` sets them like this.
    multitrace.report._n_tune = n_tune
    multitrace.report._n_draws = n_draws
    multitrace.report._t_sampling = seconds


def share_coords(model: Model, other: Model) -> None:
    """Give a model the coords and dim lengths of another, now and after `pm.set_data`."""
    # `add_coords` copies, and data that is set later would change one model only.
    model._coords, model._dim_lengths = other.coords, other.dim_lengths


def saves_state(step: WithSamplingState) -> bool:
    """Whether a step has a `sampling_state` from which it goes on."""
    # Steps that save nothing have the property too: only the class of their state tells.
    return type(step)._state_class is not DataClassState


def jitted(function: Any) -> Callable:
    """Return what numba or JAX compiled of a PyTensor function, without PyTensor's wrapper."""
    # Mapped over chains, or called by threads: the wrapper can do neither.
    return function.vm.jit_fn
