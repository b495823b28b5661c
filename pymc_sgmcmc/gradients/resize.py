"""Rebuild expressions of all rows of the data for a batch of rows.

The number of rows is fixed in a graph in three ways: by expressions that depend only on constants,
by lengths (``reshape((N, k))``), and by the types of the inner graphs of operations.
"""

from collections.abc import Collection, Sequence

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.compile.builders import OpFromGraph, SymbolicOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import io_toposort
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.basic import Alloc, AllocEmpty, Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type import TensorType, integer_dtypes
from pytensor.tensor.variable import TensorConstant, TensorVariable

from pymc_sgmcmc.gradients.arrays import evaluate

# ---- expressions of constants --------------------------------------------------------------


def folded(
    outputs: Sequence[Variable], n_rows: int, stop: Collection[Variable]
) -> dict[Variable, TensorConstant]:
    """Evaluate expressions that depend only on constants and involve the number of rows.

    Expressions computed row by row are left out, since they can be computed from a batch's rows,
    without memory for the results of all rows; so are expressions from which those in ``stop`` are
    computed.
    """
    constant: set[Variable] = set()
    of_rows: set[Variable] = set()
    by_row: set[Variable] = set()
    used: dict[Variable, None] = {}
    for node in io_toposort(list(stop), list(outputs)):
        fixed = all(isinstance(i, Constant) or i in constant for i in node.inputs)
        if fixed and node.inputs and not isinstance(node.op, SymbolicRandomVariable):
            constant.update(node.outputs)
            if any(i in of_rows or _knows_length(i, n_rows) for i in node.inputs):
                of_rows.update(node.outputs)
            if _computes_by_row(node, by_row, n_rows):
                by_row.update(node.outputs)
        else:
            used.update(dict.fromkeys(node.inputs))
    used.update(dict.fromkeys(outputs))
    whole = [v for v in used if v in of_rows - by_row and _may_be_held(v, n_rows)]
    values = evaluate(*whole) if whole else []
    return {v: pt.constant(value) for v, value in zip(whole, values, strict=True)}


def _knows_length(var: Variable, n_rows: int) -> bool:
    """Whether a constant has n_rows in its shape, or is a length or shape that contains it."""
    if not isinstance(var, Constant) or not isinstance(var.type, TensorType | ScalarType):
        return False
    return n_rows in np.shape(var.data) or _is_length(var, n_rows)


def _is_length(var: Variable, n_rows: int) -> bool:
    return (
        isinstance(var, Constant)
        and var.type.dtype in integer_dtypes
        and np.ndim(var.data) < 2
        and n_rows in np.atleast_1d(var.data)
    )


def _computes_by_row(node: Apply, by_row: Collection[Variable], n_rows: int) -> bool:
    """Whether each row of an expression depends on only one row of its constants."""
    arrays = node.inputs
    if isinstance(node.op, Subtensor):
        arrays = node.inputs[:1]
        whole = slice(None)
        picked = zip(arrays[0].type.shape, node.op.idx_list, strict=False)
        if any(n == n_rows and entry != whole for n, entry in picked):
            return False
    elif isinstance(node.op, Reshape):
        arrays = node.inputs[:1]
        if not _joins_rows(node, n_rows):
            return False
    elif not isinstance(node.op, Elemwise | DimShuffle):
        return False
    known = (v in by_row or isinstance(v, TensorConstant) for v in arrays)
    return node.outputs[0].type.ndim > 0 and all(known)


def _joins_rows(node: Apply, n_rows: int) -> bool:
    """Whether a reshape joins rows with another axis: N x k x m to N*k x m, as in `dot`."""
    before, after = node.inputs[0].type.shape, node.outputs[0].type.shape
    return (
        before[:1] == (n_rows,)
        and before.count(n_rows) == 1
        and None not in (*before, *after)
        and 0 < len(after) < len(before)
        and after[0] != n_rows
        and after[1:] == before[len(before) - len(after) + 1 :]
    )


def _may_be_held(var: Variable, n_rows: int) -> bool:
    """Whether it may be kept in memory: not a matrix of all rows by all rows, nor a sparse one."""
    return type(var.type) is TensorType and var.type.shape.count(n_rows) < 2


def with_plain_scalars(var: Variable) -> Variable:
    """Evaluate expressions with one element that depend only on constants.

    PyMC omits an infinite bound only if it is a constant. `model.logp` evaluates such expressions
    beforehand, `pm.logp` does not.
    """
    constant: set[Variable] = set()
    used: dict[Variable, None] = {}
    for node in io_toposort([], [var]):
        if node.inputs and all(isinstance(i, Constant) or i in constant for i in node.inputs):
            constant.update(node.outputs)
        else:
            used.update(dict.fromkeys(i for i in node.inputs if i in constant))
    single = [v for v in used if type(v.type) is TensorType and all(v.type.broadcastable)]
    if not single:
        return var
    values = map(pt.constant, evaluate(*single))
    [out] = resized([var], dict(zip(single, values, strict=True)), 0, None)
    return out


# ---- lengths and types ---------------------------------------------------------------------


def resized(
    outputs: Sequence[Variable],
    replace: dict[Variable, Variable],
    n_rows: int,
    size: TensorVariable | None,
) -> list[Variable]:
    """Rebuild expressions with a batch's arrays instead of those of all rows.

    ``replace`` maps each variable to its replacement, and ``size``, the number of rows in the
    batch, replaces ``n_rows`` in lengths; None leaves lengths as they are.
    """
    new = dict(replace)
    for node in io_toposort(list(replace), list(outputs)):
        inputs = [new.get(i, i) for i in node.inputs]
        if size is not None:
            for k in _lengths(node):
                inputs[k] = _length_of_batch(inputs[k], n_rows, size)
            if isinstance(node.op, Reshape) and _joins_rows(node, n_rows):
                inputs[1] = pt.constant([-1, *node.outputs[0].type.shape[1:]], dtype="int64")
        if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            for old, out in zip(node.outputs, _rebuilt(node, inputs, n_rows, size), strict=True):
                out.name = old.name
                for tag, value in vars(old.tag).items():  # for example, that a matrix is triangular
                    vars(out.tag).setdefault(tag, value)
                new.setdefault(old, out)
    return [new.get(out, out) for out in outputs]


def _lengths(node: Apply) -> range:
    """Return the positions of an operation's inputs that are lengths of its output."""
    op = node.op
    if isinstance(op, AllocEmpty):
        return range(len(node.inputs))
    if isinstance(op, Alloc | SpecifyShape):
        return range(1, len(node.inputs))
    if isinstance(op, Reshape | RandomVariable):
        return range(1, 2)
    if isinstance(op, SymbolicRandomVariable) and op.extended_signature is not None:
        [_, at, _], _ = op.get_input_output_type_idxs(op.extended_signature)
        return range(0) if at is None else range(at, at + 1)
    return range(0)


def _length_of_batch(length: Variable, n_rows: int, size: TensorVariable) -> Variable:
    """Replace the number of rows by the batch's size, in a length or a vector of lengths."""
    if isinstance(length, TensorConstant) and _is_length(length, n_rows):
        if length.ndim == 0:
            return size.astype(length.dtype)
        entries = [size if n == n_rows else pt.constant(n) for n in length.data]
        return pt.stack([e.astype(length.dtype) for e in entries])
    node = length.owner
    if node is not None and isinstance(node.op, MakeVector | Join | Elemwise):
        inputs = [_length_of_batch(i, n_rows, size) for i in node.inputs]
        if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            return node.op.make_node(*inputs).outputs[0]
    return length


def _rebuilt(
    node: Apply, inputs: list[Variable], n_rows: int, size: TensorVariable | None
) -> Sequence[Variable]:
    op = node.op
    if isinstance(op, SymbolicOp):  # builds its inner graph again
        return op(*inputs, return_list=True)
    if isinstance(op, OpFromGraph):
        fitting = (t.is_super(i.type) for t, i in zip(op.input_types, inputs, strict=True))
        if not all(fitting):
            return _with_inner_types(op, inputs, n_rows, size)
    return op.make_node(*inputs).outputs


def _with_inner_types(
    op: OpFromGraph, inputs: list[Variable], n_rows: int, size: TensorVariable | None
) -> Sequence[Variable]:
    """Apply an operation to inputs whose types differ from those of its inner graph."""
    graph = op.fgraph.unfreeze()
    if type(op) is OpFromGraph and op.pullback_overrides is None:  # nothing but its inner graph
        return resized(graph.outputs, dict(zip(graph.inputs, inputs, strict=True)), n_rows, size)
    inner = [i.type() for i in inputs]
    outputs = resized(graph.outputs, dict(zip(graph.inputs, inner, strict=True)), n_rows, None)
    inner_graph = FunctionGraph(inner, outputs, clone=False)
    return op.clone_with_inner_graph(inner_graph).make_node(*inputs).outputs
