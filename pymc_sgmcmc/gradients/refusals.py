"""Errors for models that cannot be sliced into batches: the variable, one cause, one remedy."""

from collections.abc import Container

import numpy as np
import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, io_toposort, walk
from pytensor.scan.op import Scan
from pytensor.tensor.basic import Join
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.arrays import array_value, dims_of, evaluate
from pymc_sgmcmc.gradients.resize import resized


def one_draw_spans(variable: Variable, rows: object) -> ValueError:
    """Return the error for an observed variable whose rows are drawn jointly."""
    return ValueError(
        f"The observed variable '{variable.name}' is not conditionally independent along {rows}: "
        "one draw of its distribution spans it (a multivariate normal, a Gaussian process or a "
        "time series over the rows?). Pass batch_size=None, or pass another minibatch_dim."
    )


def element_for_each_row(variable: Variable, rows: object) -> ValueError:
    """Return the error for a free variable that is local to the rows."""
    return ValueError(
        f"The free variable '{variable.name}' has an element for each row of {rows}: it is local "
        "to the data and cannot be sampled with minibatches of rows. Integrate it out with "
        f"latents=sgm.Gibbs(['{variable.name}']), or use all rows at each update: batch_size=None, "
        "with a number for step_size=."
    )


def has_axis(model: pm.Model, variable: Variable, name: str | None, length: int) -> bool:
    """Whether a variable has an axis with this name, or of this length if there is no name."""
    dims = dims_of(model, variable)
    if name is not None:
        return name in dims
    known = [
        n if dim is None else int(evaluate(model.dim_lengths[dim])[0])
        for n, dim in zip(variable.type.shape, dims, strict=True)
    ]
    return length in known


def local_variable(model: pm.Model, of: Variable, length: int) -> Variable | None:
    """Find a free variable whose elements are combined with the rows of a term one by one.

    Variables that rows index into do not count, so a group's effect may have any length.
    """
    free = set(model.free_RVs)

    def parents(var: Variable):
        picks = var.owner is None or isinstance(var.owner.op, AdvancedSubtensor)
        return None if picks or (var in free and var is not of) else reversed(var.owner.inputs)

    for var in walk([of], parents):
        if var in free and var is not of and has_axis(model, var, None, length):
            return var
    return None


def combined_rows(model: pm.Model, full: TensorVariable, length: int) -> str | None:
    """Describe what combines several rows in a term, if the graph shows it."""
    start = model.initial_point()
    shapes = {v: np.shape(start[v.name]) for v in model.value_vars}
    for v in ancestors([full]):
        if isinstance(v, SharedVariable) and isinstance(v.type, TensorType):
            shapes[v] = array_value(v).shape
    known = {v: TensorType(v.type.dtype, shape)(v.name) for v, shape in shapes.items()}
    [full] = resized([full], known, length, None)
    values = {known[v]: rv.name for rv, v in model.rvs_to_values.items() if v in known}
    for node in io_toposort([], [full]):
        what = _combines(node, length, values)
        if what is not None:
            writes = isinstance(node.op, IncSubtensor | AdvancedIncSubtensor)
            written = node.inputs[1:2] if writes else []
            names = [f"'{values[v]}'" for v in ancestors(written) if v in values]
            return f"{what} of {', '.join(names)}" if names else what
    return None


def _combines(node: Apply, length: int, values: Container[Variable]) -> str | None:
    op, x = node.op, node.inputs[0] if node.inputs else None
    shape = getattr(getattr(x, "type", None), "shape", ())
    along = [axis for axis, n in enumerate(shape) if n == length]
    if isinstance(op, Scan):
        return "a scan"
    if isinstance(op, Join):
        joined = node.outputs[0].type.shape[op.axis]
        return "a concatenation" if joined == length else None
    if isinstance(op, AdvancedIncSubtensor) and along[:1] == [0]:
        return "assigning to some of them"
    if isinstance(op, Subtensor | IncSubtensor):
        entries = dict(enumerate(op.idx_list))
        picks = any(entries.get(axis, slice(None)) != slice(None) for axis in along)
        if not picks:
            return None
        return "a slice" if isinstance(op, Subtensor) else "assigning to some of them"
    if isinstance(op, CumOp) and op.axis in along:
        return "a cumulative sum or product"
    if isinstance(op, CAReduce) and node.outputs[0].type.dtype != "bool":
        over = range(len(shape)) if op.axis is None else op.axis
        return "a sum or mean" if set(over) & set(along) else None
    if isinstance(op, Dot) and along[-1:] == [len(shape) - 1]:
        data = (v for v in ancestors(node.inputs[1:]) if v.owner is None and v not in values)
        rows = any(length in getattr(v.type, "shape", ()) for v in data)
        return "a matrix product" if rows else None  # else a matrix with as many columns
    return None


def dependent_rows(
    model: pm.Model, variable: Variable, full: TensorVariable, rows: object, length: int
) -> ValueError | None:
    """Return the error for a term with dependent rows, if its graph shows the cause."""
    what = combined_rows(model, full, length)
    if what is None:
        return None
    return ValueError(
        f"The term '{variable.name}' is not conditionally independent along {rows}: {what} "
        "over the rows makes them depend on each other. Compute it beforehand, outside the model, "
        "or pass batch_size=None (self_check=False turns this check off)."
    )


def explained(
    model: pm.Model, variable: Variable, full: TensorVariable, rows: object, length: int
) -> ValueError | None:
    """Return the error for a term whose batches do not add up, if its graph shows the cause."""
    local = local_variable(model, variable, length)
    if local is not None:
        return element_for_each_row(local, rows)
    return dependent_rows(model, variable, full, rows, length)
