"""Potentials as terms with an element for each row, of which a batch takes some."""

from collections.abc import Collection

import pymc as pm
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Sum
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.arrays import (
    array_value,
    arrays_of,
    dims_of,
    evaluate,
    leaf_arrays,
    shape_of,
)
from pymc_sgmcmc.gradients.refusals import combined_rows, has_axis

type Key = tuple[str | None, int]
"""Name, if it has one, and length of a dimension."""


def elements_of(potential: Variable) -> Variable:
    """Return the elements that a scalar potential sums, or the potential itself.

    Products of a sum and scalars without data, and sums of such sums over the same rows, count as
    sums. Rows are the first axis of what is summed.
    """
    if not isinstance(potential, TensorVariable) or potential.ndim > 0:
        return potential
    elements = _summed(potential)
    if elements is None:
        return potential
    elements = pt.tensor_copy(elements.sum(axis=tuple(range(1, elements.ndim))))
    elements.name = potential.name
    return elements


def _summed(scalar: TensorVariable) -> TensorVariable | None:
    node = scalar.owner
    if node is None:
        return None
    if isinstance(node.op, Sum):
        return node.inputs[0]
    if not isinstance(node.op, Elemwise):
        return None
    parts = [_summed(i) for i in node.inputs]
    found = [part for part in parts if part is not None]
    others = [i for i, part in zip(node.inputs, parts, strict=True) if part is None]
    match node.op.scalar_op:
        case ps.Neg() | ps.Mul():
            linear = len(found) == 1 and not leaf_arrays(others, [])
        case ps.TrueDiv():
            linear = parts[0] is not None and len(others) == 1 and not leaf_arrays(others, [])
        case ps.Add() | ps.Sub():
            linear = not others and len({shape_of(part) for part in found}) == 1
        case _:
            linear = False
    if not linear:
        return None
    inputs = [i if part is None else part for i, part in zip(node.inputs, parts, strict=True)]
    return node.op(*inputs)


def axes_of_potential(model: pm.Model, potential: Variable) -> list[Key]:
    """Return name and length of each axis of a potential's elements."""
    elements, dims = elements_of(potential), dims_of(model, potential)
    if elements is not potential or None in dims:
        return [(None, n) for n in shape_of(elements)]
    lengths = evaluate(*(model.dim_lengths[dim] for dim in dims))
    return [(dim, int(n)) for dim, n in zip(dims, lengths, strict=True)]


def with_rows_of_their_own(
    model: pm.Model, observed: dict[Variable, list[Key]], latents: Collection[Variable]
) -> dict[Variable, list[Key]]:
    """Return the elements of potentials with rows other than the observed ones, with their axes.

    If nothing is observed, all potentials with ``dims=`` count. Others do if they are vectors as
    long as data from which they are computed, no free variable but ``latents`` is as long, and the
    graph shows no operation that combines rows. Beside observed variables, a potential that uses
    data as indices only is taken for a prior, such as that of neighbouring areas, which has no
    batches.
    """
    found: dict[Variable, list[Key]] = {}
    known = {n for labels in observed.values() for _, n in labels}
    free = [rv for rv in model.free_RVs if rv not in latents]
    for potential in model.potentials:
        elements, labels = elements_of(potential), axes_of_potential(model, potential)
        if not observed and potential.name in model.named_vars_to_dims:
            found[elements] = labels
        elif len(labels) == 1 and isinstance(elements, TensorVariable):
            [(_, n)] = labels
            local = any(has_axis(model, rv, None, n) for rv in free)
            if not (local or n in known) and _has_rows(model, elements, n, not observed):
                found[elements] = labels
    return found


def _has_rows(model: pm.Model, elements: TensorVariable, n: int, indices: bool) -> bool:
    """Whether the n elements of a vector belong to rows of data; ``indices`` may count as data."""
    data = [a for a in arrays_of(model, elements) if n in array_value(a).shape]
    if not indices:
        used_as_index = {
            i
            for v in ancestors([elements])
            if v.owner is not None and isinstance(v.owner.op, AdvancedSubtensor)
            for i in ancestors(v.owner.inputs[1:])
        }
        data = [a for a in data if a not in used_as_index]
    return bool(data) and combined_rows(model, values_of(model, elements), n) is None


def values_of(model: pm.Model, elements: TensorVariable) -> TensorVariable:
    """Return a potential's elements as a function of the model's value variables."""
    [full] = model.replace_rvs_by_values([elements])
    return full
