"""Check that the data still fits together and that indices in it are within range.

`pm.set_data` may change the data after a step was made. Compiled updates do not check this: if a
row or an index is out of range, numba reads beyond the array and JAX takes the last element
instead.
"""

from collections.abc import Mapping, Sequence, Set
from threading import Lock
from typing import NamedTuple

import numpy as np
from pymc.logprob.utils import ParameterValueError
from pymc.model import Model
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import constant, tensor_from_scalar
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.type import TensorType, integer_dtypes
from pytensor.tensor.variable import TensorConstant

from pymc_sgmcmc.backends.compile_time import compile_lock, without_code
from pymc_sgmcmc.gradients.arrays import array_name, array_value, python_function
from pymc_sgmcmc.gradients.source import GradientSource


class Lookup(NamedTuple):
    """An index into an array that only data determine, as in ``effect[group]``."""

    index: Variable
    length: Variable
    """Length of the indexed axis."""
    data: str
    """The data that the index comes from, for messages."""
    indexed: str
    """The indexed array, for messages."""

    def check(self, index: np.ndarray, length: int) -> None:
        """Raise an error for an index out of range."""
        bad = (index < -length) | (index >= length)
        if bad.any():
            at = np.argwhere(bad)[0].tolist()
            where = f" (at {at[0] if len(at) == 1 else tuple(at)})" if at else ""
            raise ValueError(
                f"The {self.data} has the index {index[bad].flat[0]}{where} into {self.indexed}, "
                f"which has {length} elements along this axis, numbered from 0 to {length - 1}. "
                "Correct the data (pm.set_data), or make a new model with more elements."
            )


class IndexCheck:
    """Checks the range of each index that comes from data."""

    def __init__(self, source: GradientSource):
        self._data = [variable for _, variable in source.data]
        self._rows = [rows.index for rows in source.rows]
        streamed = set(source.streamed.names if source.streamed else ())
        self._streamed = [v.name in streamed for v in self._data]
        # Streamed data have only placeholders: their rows are checked as they are read.
        placeholders = {v for v, s in zip(self._data, self._streamed, strict=True) if s}
        names = {v: array_name(array) for array, v in source.data}
        outputs = [source.log_prior, source.log_likelihood]
        known, variables = {*self._data, *self._rows}, [*source.vars, *source.others]
        found = lookups_in(outputs, names, known, variables, set(self._rows))
        self._lookups: dict[bool, list[Lookup]] = {False: [], True: []}
        for lookup in found:
            depends = placeholders.intersection(ancestors([lookup.index]))
            self._lookups[bool(depends)].append(lookup)
        self._functions = {
            of_stream: self._function(lookups) for of_stream, lookups in self._lookups.items()
        }
        self._lock = Lock()  # streams of several chains are read by threads

    def _function(self, lookups: Sequence[Lookup]):
        if not lookups:
            return None
        outputs = [v for lookup in lookups for v in (lookup.index, lookup.length)]
        return python_function([*self._rows, *self._data], outputs)

    def __call__(self, data: Sequence[np.ndarray], n_rows: Sequence[int]) -> None:
        """Check all data that is not streamed; ``n_rows`` are those of each stream of batches."""
        self._check(False, data, n_rows)

    def of_streamed(self, data: Sequence[np.ndarray], rows: Mapping[str, np.ndarray]) -> None:
        """Check rows that were just read, by container; ``data`` is the rest."""
        given = [
            rows[v.name] if streamed else value
            for v, value, streamed in zip(self._data, data, self._streamed, strict=True)
        ]
        self._check(True, given, [len(next(iter(rows.values())))])

    def _check(self, of_stream: bool, data: Sequence[np.ndarray], n_rows: Sequence[int]) -> None:
        function = self._functions[of_stream]
        if function is None:
            return
        inputs = [np.arange(n) for n in n_rows]
        inputs += [np.asarray(a, v.dtype) for a, v in zip(data, self._data, strict=True)]
        with self._lock:
            out = iter(function(*inputs))
        for lookup in self._lookups[of_stream]:
            lookup.check(np.asarray(next(out)), int(next(out)))


def lookups_in(
    outputs: Sequence[Variable],
    names: Mapping[Variable, str],
    known: set[Variable],
    variables: Sequence[Variable],
    rows: Set[Variable] = frozenset(),
) -> list[Lookup]:
    """Find where integers that depend only on ``known`` data and row numbers index an array.

    The data are sliced by the numbers in ``rows``; ``names`` and ``variables`` are for messages.
    """
    found = {}
    for node in {v.owner: None for v in ancestors(outputs) if v.owner is not None}:
        if not isinstance(node.op, Subtensor | AdvancedSubtensor):
            continue
        indexed, *indices = node.inputs
        axis = 0
        for entry in node.op.idx_list:
            if not isinstance(entry, int):  # a slice cannot exceed the array
                axis += 1
                continue
            index = indices[entry]
            is_sliced = index in rows and indexed in names  # whose lengths are compared elsewhere
            if index.type.dtype in integer_dtypes and not is_sliced:
                length, inputs = _length(indexed, axis, known), _inputs(index)
                if length is not None and inputs <= known:
                    shown = _shown(indexed, variables, names)
                    found[index, indexed, axis] = Lookup(
                        index if isinstance(index.type, TensorType) else tensor_from_scalar(index),
                        length,
                        _subject(index, [names[v] for v in inputs if v in names]),
                        shown,
                    )
            axis += index.type.ndim if index.type.dtype == "bool" else 1
    return list(found.values())


def _subject(index: Variable, names: Sequence[str]) -> str:
    """Return what an index comes from, as the subject of a sentence after "The"."""
    if not names and isinstance(index, TensorConstant) and index.ndim:
        names = [array_name(index)]
    listed = " and ".join(sorted(names)) or f"index {index}"
    return f"data {listed}" if listed.startswith("'") else listed.removeprefix("the ")


def _inputs(variable: Variable) -> set[Variable]:
    return {v for v in ancestors([variable]) if v.owner is None and not isinstance(v, Constant)}


def _length(array: Variable, axis: int, known: set[Variable]) -> Variable | None:
    """Return the length of an axis, if it is known or depends only on data."""
    if array.type.shape[axis] is not None:
        return constant(array.type.shape[axis])
    length = rewrite_graph(array.shape[axis], include=("ShapeOpt", "canonicalize"))
    return length if _inputs(length) <= known else None


def _shown(array: Variable, variables: Sequence[Variable], names: Mapping[Variable, str]) -> str:
    """Return a name for an indexed array: its own, or those of the variables it is made of."""
    if array in names:
        return names[array]
    made_of = set(ancestors([array]))
    used = [f"'{v.name}'" for v in variables if v in made_of]
    used = used or [name for v, name in names.items() if v in made_of]
    return " and ".join(used) or "an array"


def shapes_of_data(source: GradientSource) -> list[tuple[int, ...]]:
    """Return the shapes of the current data."""
    return [array_value(array).shape for array, _ in source.data]


def check_shapes(source: GradientSource, model: Model, before: Sequence[tuple[int, ...]]) -> None:
    """Raise an error if the shapes of the data, ``before`` and now, no longer fit together."""
    now = shapes_of_data(source)
    if now == list(before):
        return
    with compile_lock:
        start = model.initial_point()
    inputs = [np.asarray(start[v.name], dtype=v.dtype) for v in source.vars]
    inputs += [np.arange(rows.batch_size) for rows in source.rows]
    inputs += [np.ones((), rows.scale.dtype) for rows in source.rows]
    inputs += [np.asarray(array_value(array), dtype=v.dtype) for array, v in source.data]
    inputs += [np.asarray(start[v.name], dtype=v.dtype) for v in source.others]
    with without_code(), np.errstate(all="ignore"):
        density = python_function(source.inputs, source.determined)
        try:
            density(*inputs)
        except (ParameterValueError, NotImplementedError):
            # `check_start` reports parameters out of range; some operations only run compiled.
            return
        except (ValueError, TypeError, IndexError, AssertionError) as error:
            reason = str(error).strip().partition("\n")[0]
            changed = ", ".join(
                f"{array_name(array)} from {old} to {new}"
                for (array, _), old, new in zip(source.data, before, now, strict=True)
                if old != new
            )
            raise ValueError(
                f"The data no longer fits the model after its shapes changed ({changed}): {reason} "
                "Set the other data too, in the same pm.set_data, or make a new model and step."
            ) from error
