"""Errors for models that cannot be sliced into batches: the variable, a cause and a remedy."""

from collections.abc import Container, Mapping, Sequence

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

from pymc_sgmcmc.gradients.arrays import array_value, dims_of, evaluate, shape_of
from pymc_sgmcmc.gradients.resize import resized

ALL_ROWS = "With batch_size=None all the data are used at each update."


ADDING_UP = "adding up by index"


def one_draw_spans(variable: Variable, rows: object) -> ValueError:
    """Return the error for an observed variable whose rows are drawn jointly."""
    return ValueError(
        f"The observed variable '{variable.name}' is not conditionally independent along {rows}: "
        "one draw of its distribution spans it (a multivariate normal, a Gaussian process or a "
        "time series over the rows?). Pass another minibatch_dim, or batch_size=None, with which "
        "all the data are used at each update."
    )


def element_for_each_row(variables: Sequence[Variable], rows: object) -> ValueError:
    """Return the error for free variables that are local to the rows."""
    names = ", ".join(f"'{variable.name}'" for variable in variables)
    one = len(variables) == 1
    has, it, is_local = ("has", "it", "it is") if one else ("have", "them", "they are")
    return ValueError(
        f"The free variable{'' if one else 's'} {names} {has} an element for each row of {rows}: "
        f"{is_local} local to the data and cannot be sampled with minibatches of rows. Integrate "
        f"{it} out with latents=sgm.Gibbs([{names}]), an argument of the step, or use all rows at "
        "each update: batch_size=None, with a number for step_size=."
    )


def table_of_groups(
    variable: Variable, shape: Sequence[int], local: Mapping[int, Sequence[Variable]]
) -> ValueError:
    """Return the error for a table with elements of free variables along its axes."""
    names = ", ".join(f"'{rv.name}'" for variables in local.values() for rv in variables)
    first = ", ".join(f"'{rv.name}'" for rv in next(iter(local.values())))
    return ValueError(
        f"The observed variable '{variable.name}' is a table ({' x '.join(map(str, shape))}), and "
        f"free variables have an element for each row or column ({names}), so it cannot be sliced "
        f"into batches along any axis. {_long_form(shape, local)} Or integrate out, as an argument "
        f"of the step, latents=sgm.Gibbs([{first}])."
    )


def _long_form(shape: Sequence[int], local: Mapping[int, Sequence[Variable]]) -> str:
    """Explain how to write a table with free variables along its axes in long form."""
    index = [f"i{axis}" for axis in range(len(shape))]
    looked_up = ", ".join(
        f"{rv.name}[{index[axis]}]" for axis, variables in local.items() for rv in variables
    )
    return (
        f"Write it in long form, with a row for each value: {', '.join(index)} = "
        f"np.indices({tuple(shape)}).reshape({len(shape)}, -1), then {looked_up} in its parameters "
        "and observed=<the values>.ravel()."
    )


def advice_on_table(
    variable: Variable, shape: Sequence[int], rows: object, axis: int, local: Sequence[Variable]
) -> str:
    """Return advice for a table whose effects lie across the few rows of its batches."""
    names = " and ".join(f"'{rv.name}'" for rv in local)
    return (
        f"The observed variable '{variable.name}' is a table ({' x '.join(map(str, shape))}) whose "
        f"rows run along {rows}, so every update moves all elements of {names}. "
        f"{_long_form(shape, {axis: local})}"
    )


def potentials_without_dims(model: pm.Model) -> ValueError:
    """Return the error for a likelihood written as potentials whose rows are not known."""
    with_axes = [p for p in model.potentials if p.ndim > 0]
    if not with_axes:
        names = ", ".join(f"'{p.name}'" for p in model.potentials)
        return ValueError(
            f"No observation dim found: the model has no observed variable, and {names} is no sum "
            "over rows of data. Pass the terms of the rows to pm.Potential, or their sum, "
            f"computed row by row from arrays with as many rows. {ALL_ROWS}"
        )
    shown = ", ".join(f"'{p.name}' (shape {shape_of(p)})" for p in with_axes)
    return ValueError(
        "No observation dim found: the model has no observed variable, and no potential that is "
        "computed row by row from arrays with as many rows. Pass dims= to pm.Potential for "
        f"{shown}, with the dim of the rows, and to the pm.Data of its rows if these have several "
        f"axes of that length. {ALL_ROWS}"
    )


def has_axis(model: pm.Model, variable: Variable, name: str | None, length: int) -> bool:
    """Whether a variable has an axis with this name, or of this length if it has no name."""
    dims = dims_of(model, variable)
    if name is not None:
        return name in dims
    known = [
        n if dim is None else int(evaluate(model.dim_lengths[dim])[0])
        for n, dim in zip(variable.type.shape, dims, strict=True)
    ]
    return length in known


def local_variable(model: pm.Model, of: Variable, length: int) -> Variable | None:
    """Find a free variable whose elements are combined one by one with the rows of a term.

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
    """Describe the operation that combines several rows in a term, if the graph shows it."""
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
        return "assigning to some of them" if op.set_instead_of_inc else ADDING_UP
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
        return "a matrix product" if rows else None  # else a matrix with that many columns
    return None


def dependent_rows(
    model: pm.Model, variable: Variable, full: TensorVariable, rows: object, length: int
) -> ValueError | None:
    """Return the error for a term with dependent rows, if its graph shows the cause."""
    what = combined_rows(model, full, length)
    if what is None:
        return None
    remedy = "Compute it beforehand, outside the model,"
    if what.startswith(ADDING_UP):
        remedy = f"Arrange the data as a table whose rows lie along {rows}, padded with a mask,"
    return ValueError(
        f"The term '{variable.name}' is not conditionally independent along {rows}: {what} "
        f"over the rows makes them depend on each other. {remedy} "
        "or pass batch_size=None (self_check=False turns this check off)."
    )


def explained(
    model: pm.Model, variable: Variable, full: TensorVariable, rows: object, length: int
) -> ValueError | None:
    """Return the error for a term whose batches do not add up, if its graph shows the cause."""
    local = local_variable(model, variable, length)
    if local is not None:
        return element_for_each_row([local], rows)
    return dependent_rows(model, variable, full, rows, length)
