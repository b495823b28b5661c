"""Splits a log density's dependence on a latent variable: affine maps first, then the rest.

Changing one element of z by d changes an affine map a(z) by d times a fixed column, so a Gibbs
sweep can update a(z) instead of recomputing it (`z @ W + c` costs a matrix product, its change for
one unit costs only a row of W).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Join
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.variable import TensorVariable


@dataclass(frozen=True)
class AffineDependence:
    """An expression of z as a function only of affine maps of z (the frontier)."""

    expression: TensorVariable
    z: TensorVariable
    frontier: list[TensorVariable]
    """Maps that are affine in z, with the same coefficients in each row and rows first."""
    nodes: list[Apply]
    """The nodes from z to the frontier, in order."""

    @property
    def is_elementwise(self) -> bool:
        """Whether each element depends only on the element of z at the same position."""
        tail = io_toposort(self.frontier, [self.expression])
        depends = _dependents([self.z], tail)
        return (
            self.frontier == [self.z]
            and self.expression.type.shape == self.z.type.shape
            and all(isinstance(node.op, Elemwise) for node in tail if depends(node))
        )

    def columns(self, basis: TensorVariable) -> list[TensorVariable]:
        """Return the change of each map for each change of z in ``basis`` (the linear part)."""
        linear: dict[Variable, TensorVariable] = {self.z: basis}
        for node in self.nodes:
            linear[node.outputs[0]] = _linear_part(node, linear)
        return [linear[a] for a in self.frontier]


def affine_dependence(
    expression: TensorVariable, z: TensorVariable, row_variables: Collection[Variable]
) -> AffineDependence:
    """Find the last affine maps of z on the path to an expression.

    ``row_variables`` are the sources of values that differ between rows: a map whose coefficients
    depend on them differs from row to row and does not count.
    """
    by_row = set(row_variables) - {z}
    affine: set[Variable] = {z}
    nodes: list[Apply] = []
    later: list[Apply] = []
    depends = {z}
    for node in io_toposort([z], [expression]):
        if depends.isdisjoint(node.inputs):
            continue
        depends.update(node.outputs)
        if _is_affine(node, affine, depends, by_row):
            affine.add(node.outputs[0])
            nodes.append(node)
        else:
            later.append(node)
    used = {i for node in later for i in node.inputs} | {expression}
    frontier = [a for a in [z, *(node.outputs[0] for node in nodes)] if a in used]
    return AffineDependence(expression, z, frontier, nodes)


def _dependents(sources: Sequence[Variable], nodes: Sequence[Apply]):
    depends = set(sources)
    for node in nodes:
        if not depends.isdisjoint(node.inputs):
            depends.update(node.outputs)
    return lambda node: not depends.isdisjoint(node.inputs)


def _is_dot(node: Apply) -> bool:
    op = node.op
    if isinstance(op, Dot):
        return node.inputs[0].ndim == 2
    return isinstance(op, Blockwise) and isinstance(op.core_op, Dot) and node.outputs[0].ndim == 2


def _keeps_values(old: str, new: str) -> bool:
    """Return whether a cast changes no value, unlike one to bool or of fractions to integers."""
    return new.startswith("float") or np.can_cast(old, new, "safe")


def _is_affine(
    node: Apply, affine: set[Variable], depends: set[Variable], by_row: set[Variable]
) -> bool:
    moving = [i for i in node.inputs if i in depends]
    if not all(i in affine for i in moving) or len(node.outputs) != 1:
        return False

    def same_for_all_rows(inputs: Sequence[Variable]) -> bool:
        return by_row.isdisjoint(ancestors(inputs))

    op, first = node.op, node.inputs[0]
    if _is_dot(node):
        return moving == [first] and same_for_all_rows(node.inputs[1:])
    if isinstance(op, Elemwise):
        scalar_op = op.scalar_op
        # Not Neg, because softplus(-a) and softplus(a) would be two maps to update.
        if isinstance(scalar_op, ps.Cast):
            return _keeps_values(first.dtype, node.outputs[0].dtype)
        if isinstance(scalar_op, ps.Add | ps.Sub | ps.Identity):
            return True
        if isinstance(scalar_op, ps.Mul):
            fixed = [i for i in node.inputs if i not in depends]
            return len(moving) == 1 and same_for_all_rows(fixed)
        if isinstance(scalar_op, ps.TrueDiv):
            return moving == [first] and same_for_all_rows(node.inputs[1:])
        return False
    if isinstance(op, DimShuffle):
        return op.new_order[:1] == (0,)
    if isinstance(op, Sum):
        return op.axis is not None and 0 not in op.axis
    if isinstance(op, Subtensor):
        return (
            moving == [first]
            and op.idx_list[0] == slice(None)
            and same_for_all_rows(node.inputs[1:])
        )
    if isinstance(op, Join):
        return moving == node.inputs[1:]
    return isinstance(op, SpecifyShape)


def _linear_part(node: Apply, linear: dict[Variable, TensorVariable]) -> TensorVariable:
    op = node.op
    if isinstance(op, SpecifyShape):
        return linear[node.inputs[0]]
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, ps.Add):
        return pt.add(*(linear[i] for i in node.inputs if i in linear)).astype(
            node.outputs[0].dtype
        )
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, ps.Sub):
        x, y = (linear.get(i, pt.zeros((), dtype=i.dtype)) for i in node.inputs)
        return (x - y).astype(node.outputs[0].dtype)
    inputs = [linear.get(i, i) for i in node.inputs]
    return node.clone_with_new_inputs(inputs, strict=False).outputs[0]
