"""The identity of a run: short digests of its model, data, step and seed."""

import platform
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pymc
import pytensor
from pymc.model import Model
from pymc.step_methods.compound import flatten_steps

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.batches.data_sources import ArraySource
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.run.run_events import Run
from pymc_sgmcmc.step import SGMCMCStep, minibatch_steps
from pymc_sgmcmc.storage.digests import (
    ArrayDigests,
    array_digest,
    graph_digest,
    rows_digest,
    value_digest,
    without_addresses,
)


def identity(run: Run) -> dict[str, Any]:
    """Describe a run by plain values, most of them digests, so that differences can be named."""
    model = run.model
    steps = flatten_steps(run.step)
    ours = minibatch_steps(run.step)
    arrays = ArrayDigests()
    return {
        "model": _terms(model, arrays),
        "likelihood": {
            f"of {names(step)}": graph_digest([step.source.log_likelihood], arrays) for step in ours
        },
        "data": _data(model, ours, arrays),
        "coords": {dim: value_digest(labels) for dim, labels in model.coords.items()},
        "recorded": {v.name: graph_digest([v], arrays) for v in run.recorder.vars},
        "step": [_describe(step) for step in steps],
        "settings": {
            f"{name} of {names(step)}": value_digest(value)
            for step in ours
            for name, value in _settings(step).items()
        },
        "seed": without_addresses(repr(run.seed if run.seed is not None else run.rngs)),
        "start": [_points_digest(start) for start in run.starts],
        "chains": run.n_chains,
        # Results of many chains in one call are rounded differently from those of single chains.
        "chain_method": "vectorized" if run.together else "sequential, parallel or dask",
        "tune": run.tune,
        "discard_tuned_samples": not run.keep_warmup,
        "floatX": pytensor.config.floatX,
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages on which the last digits of draws may depend."""
    found = {"pymc": pymc.__version__, "pytensor": pytensor.__version__, "numpy": np.__version__}
    found["python"] = platform.python_version()
    for name in ("jax", "numba"):
        if name in sys.modules:
            found[name] = sys.modules[name].__version__
    return found


def differences(stored: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """Return what differs between two identities, by name."""
    found = []
    for key, now in present.items():
        then = stored.get(key)
        if then == now:
            continue
        if isinstance(now, dict) and isinstance(then, dict):
            for name in {**then, **now}:
                if name not in now:
                    found.append(f"{key}: '{name}' is missing")
                elif name not in then:
                    found.append(f"{key}: '{name}' is new")
                elif then[name] != now[name]:
                    found.append(f"{key}: '{name}' is different")
        elif key == "start":
            found.append("start: other initial values")
        else:
            found.append(f"{key}: was {then!r}, is {now!r}")
    return found


@quick_graphs()
def _terms(model: Model, arrays: ArrayDigests) -> dict[str, str]:
    """Return the digest of each variable's log probability."""
    variables = [*model.basic_RVs, *model.potentials]
    terms = model.logp(sum=False)
    if len(terms) != len(variables):
        return {"log probability": graph_digest(terms, arrays)}
    return {v.name: graph_digest([t], arrays) for v, t in zip(variables, terms, strict=True)}


def _describe(step: Any) -> str:
    """Return the class, settings and variables of a step, without memory addresses."""
    if isinstance(step, SGMCMCStep):
        return without_addresses(f"{step!r}, {step.kernel.compile_kwargs}")
    return f"{type(step).__name__} of [{names(step)}]"


def _settings(step: SGMCMCStep) -> dict[str, Any]:
    """Return what a step's description may not show in full, such as functions and long arrays."""
    settings = {"step_size": step.schedule, "hyperparameters": step.algorithm}
    settings |= {} if step.latents is None else {"latents": step.latents}
    return settings | ({} if step.adapted is None else {"adaptation": step.adapted})


def names(step: Any) -> str:
    """Return the names of a step's variables."""
    return ", ".join(v.name for v in step.vars)


def _data(model: Model, steps: Sequence[SGMCMCStep], arrays: ArrayDigests) -> dict[str, str]:
    """Return the digest of each array and stream of rows."""
    data = list(model.data_vars)
    digests = {}
    for step in steps:
        data += [array for array, _ in step.source.data if array not in data]
        for rows in step.source.rows:
            if rows.streamed is not None:
                digests[f"stream {names(step)}"] = _stream_digest(rows.streamed)
    for k, array in enumerate(data):
        digests[array.name or f"array {k}"] = arrays(array_value(array))
    return digests


def _stream_digest(data: StreamedData) -> str:
    """Return the digest of a stream: its form, all rows of arrays, and an iterable's first rows."""
    parts = [repr(data)]
    head = data.head()
    for source in data.sources:
        if isinstance(source, ArraySource):
            first = head[source.names[0]]
            like = np.broadcast_to(np.empty((), first.dtype), (source.n_rows, *first.shape[1:]))
            parts.append(rows_digest(partial(_rows, source), source.n_rows, like))
        else:
            parts += [array_digest(head[name]) for name in source.names]
    return value_digest(parts)


def _rows(source: ArraySource, first: int, end: int) -> np.ndarray:
    [rows] = source.read(first, end)
    return rows


def _points_digest(point: dict[str, np.ndarray]) -> str:
    return "".join(f"{name}:{array_digest(value)[:8]} " for name, value in point.items()).strip()
