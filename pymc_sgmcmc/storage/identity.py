"""What makes a run the run it is: model, data, step and seed, in short digests."""

import hashlib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pymc
import pytensor
from pymc.model import Model
from pymc.step_methods.compound import flatten_steps
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import HasInnerGraph

from pymc_sgmcmc.batches.data_sources import ArraySource, StreamedData
from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.run.chains import Run
from pymc_sgmcmc.step import SGMCMCStep

WHOLE_BYTES = 2**28
"""Arrays beyond this are told apart by evenly spaced pieces of them."""
PIECES = 1024


def identity(run: Run) -> dict[str, Any]:
    """Describe a run, so that another one can be told from it by name.

    Parameters
    ----------
    run : Run

    Returns
    -------
    dict
        Plain values: ``model``, ``data`` and ``recorded`` with a digest by name, ``step`` with a
        description of each step, and the run's own settings.
    """
    model = run.model
    steps = flatten_steps(run.step)
    return {
        "model": _terms(model),
        "likelihood": {
            f"of {names(step)}": graph_digest([step.source.log_likelihood])
            for step in steps
            if isinstance(step, SGMCMCStep)
        },
        "data": _data(model, steps),
        "recorded": {v.name: graph_digest([v]) for v in run.vars},
        "step": [_describe(step) for step in steps],
        "seed": _without_addresses(repr(run.seed if run.seed is not None else run.rngs)),
        "start": [_points_digest(start) for start in run.starts],
        "chains": run.n_chains,
        "tune": run.tune,
        "discard_tuned_samples": not run.keep_warmup,
        "floatX": pytensor.config.floatX,
    }


def versions() -> dict[str, str]:
    """Return versions of what computes: other ones may give other last digits."""
    found = {"pymc": pymc.__version__, "pytensor": pytensor.__version__, "numpy": np.__version__}
    for name in ("jax", "numba"):
        if name in sys.modules:
            found[name] = sys.modules[name].__version__
    return found


def differences(stored: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """Name what differs between two identities."""
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
                    found.append(f"{key}: '{name}' is another one")
        elif key == "start":
            found.append("start: other initial values")
        else:
            found.append(f"{key}: was {then!r}, is {now!r}")
    return found


def _terms(model: Model) -> dict[str, str]:
    """Digest of each variable's log probability."""
    variables = [*model.basic_RVs, *model.potentials]
    terms = model.logp(sum=False)
    if len(terms) != len(variables):
        return {"log probability": graph_digest(terms)}
    return {v.name: graph_digest([t]) for v, t in zip(variables, terms, strict=True)}


def _describe(step: Any) -> str:
    """Class, settings and variables of a step, without memory addresses."""
    if isinstance(step, SGMCMCStep):
        return _without_addresses(f"{step!r}, {step.kernel.compile_kwargs}")
    return f"{type(step).__name__} of [{names(step)}]"


def names(step: Any) -> str:
    """Names of a step's variables."""
    return ", ".join(v.name for v in step.vars)


def _data(model: Model, steps: Sequence[Any]) -> dict[str, str]:
    """Digest of each array and stream of rows."""
    arrays = list(model.data_vars)
    digests = {}
    for step in steps:
        if isinstance(step, SGMCMCStep):
            arrays += [array for array, _ in step.source.data if array not in arrays]
            for rows in step.source.rows:
                if rows.streamed is not None:
                    digests[f"stream {names(step)}"] = _stream_digest(rows.streamed)
    for k, array in enumerate(arrays):
        digests[array.name or f"array {k}"] = _array_digest(array_value(array))
    return digests


def _stream_digest(data: StreamedData) -> str:
    """Digest of a stream's form and of some of its rows: it may be too long to read."""
    digest = hashlib.blake2b(repr(data).encode(), digest_size=16)
    digest.update("".join(map(_array_digest, data.head().values())).encode())
    for source in data.sources:
        if isinstance(source, ArraySource):
            for row in np.linspace(0, data.n_rows - 1, PIECES // 16).astype(int):
                [rows] = source.read(row, row + 1)
                digest.update(_array_digest(rows).encode())
    return digest.hexdigest()


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _array_digest(array: Any) -> str:
    array = np.asanyarray(array)
    digest = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    if array.dtype == object:
        digest.update(repr(array.tolist()).encode())
    elif array.nbytes <= WHOLE_BYTES or array.ndim == 0:
        digest.update(np.ascontiguousarray(array).data)
    else:
        for row in np.linspace(0, len(array) - 1, PIECES).astype(int):
            digest.update(np.ascontiguousarray(array[row]).data)
    return digest.hexdigest()


def _points_digest(point: dict[str, np.ndarray]) -> str:
    return "".join(f"{name}:{_array_digest(value)[:8]} " for name, value in point.items()).strip()


def graph_digest(outputs: Sequence[Variable]) -> str:
    """Digest of an expression: operations, constants, names and types of its inputs.

    The same in another process, and another one where any of these changes.
    """
    numbers: dict[Variable, int] = {}
    digest = hashlib.blake2b(digest_size=16)

    def known(variables: Iterable[Variable]) -> bool:
        return all(v in numbers for v in variables)

    stack = list(reversed(outputs))
    while stack:
        variable = stack[-1]
        if variable in numbers:
            stack.pop()
            continue
        node = variable.owner
        if node is not None and not known(node.inputs):
            stack += [v for v in reversed(node.inputs) if v not in numbers]
            continue
        stack.pop()
        if isinstance(variable, Constant):
            text = f"constant {variable.type} {_constant_digest(variable.data)}"
        elif node is None:
            named = variable.name if isinstance(variable, SharedVariable) or variable.name else ""
            text = f"input {named} {variable.type}"
        else:
            op = node.op
            inner = graph_digest(op.fgraph.outputs) if isinstance(op, HasInnerGraph) else ""
            where = [numbers[v] for v in node.inputs]
            text = (
                f"{type(op).__name__} {_without_addresses(str(op))} {inner} {where} "
                f"{node.outputs.index(variable)} {variable.type}"
            )
        numbers[variable] = len(numbers)
        digest.update(text.encode())
    digest.update(str([numbers[v] for v in outputs]).encode())
    return digest.hexdigest()


def _constant_digest(data: Any) -> str:
    if isinstance(data, np.ndarray | np.generic):
        return _array_digest(data)
    return _without_addresses(repr(data))
