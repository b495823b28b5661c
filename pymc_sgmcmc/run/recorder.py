"""From points to recorded variables, by default all except those with one number per row."""

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.backends.ndarray import NDArray
from pymc.blocking import PointType
from pymc.model import Model
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Cast
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable
from xarray import DataTree

from pymc_sgmcmc.backends.backend import backend_of
from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.gradients.arrays import PYTHON, has_named_dims, python_function, tensor_model
from pymc_sgmcmc.gradients.substitute import without_views
from pymc_sgmcmc.step import minibatch_steps

_log = logging.getLogger("pymc.sgmcmc")

TILE = 64
"""Number of points that `Recorder.record` turns into recorded variables in one call."""
MOST_OPERATIONS = 30
"""Number of operations on whole arrays that NumPy carries out while other modes still compile."""
MOST_OPERANDS = 32
"""Largest number of operands, the result included, of an elementwise operation in NumPy."""
NOTHING = "nothing_recorded"
"""Name of the number that is recorded if nothing else is."""


class Recorder:
    """Turns points into recorded variables, given as expressions of value variables.

    It is compiled when first needed, and pickled without compiled code. ``mode`` is used for
    expressions for which `is_quick_in_python` does not hold.
    """

    def __init__(
        self,
        model: Model,
        vars: list,
        start: PointType,
        trace: NDArray | None = None,
        mode: Any = None,
    ):
        self.model, self.vars, self._start, self._mode = model, vars, start, mode
        if trace is not None:
            self.trace = trace

    def __getstate__(self):
        compiled = ("trace", "_many")
        return {name: value for name, value in self.__dict__.items() if name not in compiled}

    @cached_property
    @quick_graphs()
    def trace(self) -> NDArray:
        """PyMC's recorder, without draws: a function of one point, names, types and shapes."""
        mode = PYTHON if is_quick_in_python(self.vars) else self._mode
        if mode is None:
            return NDArray(model=self.model, vars=self.vars, test_point=self._start)
        # What PyMC's recorder would compile itself, but in this mode.
        of_one_point = self.model.compile_fn(
            outs=[pytensor.Out(v, borrow=True) for v in self.vars],
            inputs=[pytensor.In(v, borrow=True) for v in self.model.value_vars],
            mode=mode,
            point_fn=False,
            on_unused_input="ignore",
            trust_input=True,
        )
        return NDArray(model=self.model, vars=self.vars, test_point=self._start, fn=of_one_point)

    def new_trace(self) -> NDArray:
        """Return another PyMC recorder for the same variables, without draws."""
        like = self.trace
        return NDArray(
            model=self.model,
            vars=like.vars,
            fn=like.fn,
            var_shapes=like.var_shapes,
            var_dtypes=like.var_dtypes,
        )

    @property
    def _derived(self) -> list:
        """Recorded variables that are not themselves value variables."""
        return [v for v in self.trace.vars if v not in self.model.value_vars]

    @cached_property
    @quick_graphs()
    def _many(self) -> Any:
        """A function of `TILE` points that returns the derived variables."""
        inputs, outs = self.model.value_vars, self._derived
        if has_named_dims(self.model):
            plain = tensor_model(self.model)
            inputs, outs = plain.value_vars, plain.tensors(outs)
        many = [v.type.clone(shape=(TILE, *v.type.shape))(v.name) for v in inputs]
        outs = vectorize_graph(without_views(outs), dict(zip(inputs, many, strict=True)))
        if is_quick_in_python(outs):
            return python_function(many, outs)
        return pytensor.function(many, outs, mode=self._mode, on_unused_input="ignore")

    def record(self, points: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Turn many points into recorded variables at once, both by name with shapes (n, ...)."""
        derived = self._derived
        n = len(next(iter(points.values())))
        columns: dict[str, list] = {v.name: [] for v in derived}
        for first in range(0, n if derived else 0, TILE):
            # Tiles have a fixed size, because the end of a block must not change how its draws are
            # rounded.
            tile = [points[v.name][first : first + TILE] for v in self.model.value_vars]
            short = TILE - len(tile[0])
            if short:
                tile = [np.concatenate([t, np.repeat(t[-1:], short, axis=0)]) for t in tile]
            for name, column in zip(columns, self._many(*tile), strict=True):
                columns[name].append(np.asarray(column)[: TILE - short])
        made = {name: np.concatenate(column) for name, column in columns.items()}
        return {
            v.name: np.ascontiguousarray(
                made[v.name] if v.name in made else points[v.name],
                dtype=self.trace.var_dtypes[v.name],
            )
            for v in self.trace.vars
        }


def is_quick_in_python(outputs: Sequence[Variable]) -> bool:
    """Whether NumPy evaluates expressions faster than they could be compiled.

    This holds for few operations, such as transforms back to the model's scale, none of which loops
    over elements or has a graph of its own.
    """
    nodes = {v.owner for v in ancestors(outputs) if v.owner is not None}
    return len(nodes) <= MOST_OPERATIONS and all(map(_is_one_call, nodes))


def _is_one_call(node: Apply) -> bool:
    if isinstance(node.op, Elemwise):
        has_function = node.op.nfunc_spec is not None or isinstance(node.op.scalar_op, Cast)
        return has_function and len(node.inputs) < MOST_OPERANDS
    return not isinstance(node.op, Blockwise | HasInnerGraph)


def recorder_of(
    model: Model,
    step: Any,
    start: PointType,
    var_names: Sequence[str] | None,
    transformed: bool,
) -> Recorder:
    """Choose what to record: by default everything except variables with one number per row."""
    rows, mode = {}, None
    for one in minibatch_steps(step):
        # A user of JAX should not wait for numba to compile deterministics.
        if backend_of(one.kernel.mode).compiles_sooner:
            mode = one.kernel.mode
        for stream in one.source.rows:
            for length, [(array, axis), *_] in zip(stream.lengths, stream.sliced, strict=True):
                dims = model.named_vars_to_dims.get(array.name or "")
                rows[length] = dims[axis] if dims else None
    if var_names is not None and len(var_names) == 0:
        return Recorder(model, [_nothing(model)], start, mode=mode)
    if var_names is not None:
        named = {getattr(v, "name", v) for v in var_names}
        chosen = [v for v in model.unobserved_RVs if v.name in named]
        if not chosen:
            raise ValueError(
                f"var_names={list(var_names)!r} names no free variable or deterministic on its own "
                "scale: " + ", ".join(v.name for v in model.unobserved_RVs) + "."
            )
        return Recorder(model, model.replace_rvs_by_values(chosen), start, mode=mode)
    chosen = list(model.unobserved_RVs)
    left_out = [
        v
        for v in model.deterministics
        if set(model.named_vars_to_dims.get(v.name, ())) & {d for d in rows.values() if d}
    ]
    recorder = Recorder(model, _values(model, chosen, left_out, transformed), start, mode=mode)
    shapes = recorder.trace.var_shapes
    more = [
        v
        for v in model.deterministics
        if v not in left_out
        and v.name not in model.named_vars_to_dims
        and set(shapes[v.name]) & set(rows)
    ]
    if more:
        left_out += more
        recorder = Recorder(model, _values(model, chosen, left_out, transformed), start, mode=mode)
    if left_out:
        names = ", ".join(f"'{v.name}'" for v in left_out)
        _log.info(f"Not recorded (one number per row): {names}. Name it in var_names to record it.")
    return recorder


def _nothing(model: Model) -> TensorVariable:
    """Return a number that takes the place of recorded variables, by which PyMC counts draws."""
    zero = pt.zeros_like(model.value_vars[0].sum())
    zero.name = NOTHING
    return zero


def without_nothing(tree: DataTree) -> DataTree:
    """Return a result without the number that takes the place of variables, if it is there."""
    for group in ("posterior", "warmup_posterior"):
        if group in tree.children and NOTHING in tree[group]:
            tree[group] = DataTree(tree[group].to_dataset().drop_vars(NOTHING))
    return tree


def _values(model: Model, chosen: list, left_out: list, transformed: bool) -> list:
    kept = model.replace_rvs_by_values([v for v in chosen if v not in left_out])
    if transformed:
        kept += [v for v in model.value_vars if v.name not in {k.name for k in kept}]
    return kept
