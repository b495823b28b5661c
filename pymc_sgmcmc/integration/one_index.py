"""Effects that rows look up by two indices, such as category and week, rewritten for one index."""

from math import prod

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import integer_dtypes
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.arrays import has_named_dims, shape_of
from pymc_sgmcmc.integration.group_terms import MOST_EFFECTS
from pymc_sgmcmc.integration.reparametrised_models import with_stand_in, with_terms


def with_one_index(model: pm.Model) -> pm.Model:
    """Return the model with one index of groups in each lookup, or itself if it has no other.

    If effects are independent, ``gamma[c, w]`` becomes ``flat[c * W + w]``, also if gamma is first
    multiplied or transformed element by element. Otherwise, as with effects that are correlated
    within groups, groups are along the longer axis, and the other index picks one of a group's
    effects: ``a[g, c]`` becomes ``(a[g] * (c == [0, ..., k - 1])).sum(1)``.
    """
    if has_named_dims(model):
        return model
    for name in [rv.name for rv in model.free_RVs]:
        rv = model[name]
        elementwise = isinstance(rv.owner.op, RandomVariable) and rv.owner.op.ndim_supp == 0
        if rv.ndim == 2 and elementwise and model.rvs_to_transforms[rv] is None:
            terms = [*model.observed_RVs, *model.potentials]
            nodes = {v.owner: None for v in ancestors(terms) if v.owner is not None}
            by_two = [node for node in nodes if _is_by_two(node, rv)]
            model = _flattened(model, rv, by_two) if by_two else model
    return _by_groups(model)


def _by_groups(model: pm.Model) -> pm.Model:
    terms = [*model.observed_RVs, *model.potentials]
    replace: dict[Variable, Variable] = {rv: rv for rv in model.free_RVs}
    for node in {v.owner: None for v in ancestors(terms) if v.owner is not None}:
        if isinstance(node.op, AdvancedSubtensor) and not set(model.free_RVs).isdisjoint(
            ancestors(node.inputs[:1])
        ):
            of_group = _of_group(node)
            if of_group is not None:
                replace[node.outputs[0]] = of_group
    return with_terms(model, replace) if len(replace) > len(model.free_RVs) else model


def _of_group(node: Apply) -> TensorVariable | None:
    """Return what rows look up in a matrix, as a function of rows looked up by one index."""
    array, *indices = node.inputs
    if array.ndim != 2 or not all(i.ndim < 2 and i.dtype in integer_dtypes for i in indices):
        return None
    match node.op.idx_list, [i.ndim for i in indices]:
        case (slice(start=None, stop=None, step=None), 0), [1]:
            return array.T[indices[0]].T
        case (0, 1), [0, 1]:
            return array[indices[0]][indices[1]]
        case (0, 1), [1, 1]:
            (n_rows, n_columns), (group, which) = shape_of(array), indices
            if n_columns > n_rows:
                array, group, which, n_columns = array.T, which, group, n_rows
            if n_columns > MOST_EFFECTS:
                return None
            picked = pt.eq(which[:, None] % n_columns, np.arange(n_columns))
            return (array[group] * picked).sum(axis=1)
    return None


def _is_by_two(node: Apply, rv: TensorVariable) -> bool:
    """Whether rows take elements of a matrix that is made of a variable element by element."""
    if not isinstance(node.op, AdvancedSubtensor) or node.op.idx_list != (0, 1):
        return False
    array, *indices = node.inputs
    return all(i.ndim == 1 and i.dtype != "bool" for i in indices) and _is_made_of(array, rv)


def _is_made_of(array: TensorVariable, rv: TensorVariable) -> bool:
    if array is rv:
        return True
    if array.owner is None or not isinstance(array.owner.op, ViewOp | Elemwise):
        return False
    return all(_is_made_of(i, rv) for i in array.owner.inputs if rv in ancestors([i])) and (
        rv in ancestors([array])
    )


def _flattened(model: pm.Model, rv: TensorVariable, by_two: list[Apply]) -> pm.Model:
    shape = model.eval_rv_shapes()[rv.name]
    op, node = rv.owner.op, rv.owner
    parameters = [_flat(p, {}, shape) for p in op.dist_params(node)]
    flat = op.make_node(op.rng_param(node), (prod(shape),), *parameters).outputs[1]
    replace = {}
    for lookup in by_two:
        array, first, second = lookup.inputs
        index = first % shape[0] * shape[1] + second % shape[1]  # indices may count from the end
        replace[lookup.outputs[0]] = _flat(array, {rv: flat}, shape)[index]
    return with_stand_in(model, rv, flat, flat.reshape(shape), replace)


def _flat(array: TensorVariable, known: dict, shape: tuple[int, ...]) -> TensorVariable:
    """Return an expression that broadcasts to a matrix as one that broadcasts to its elements."""
    if array in known:
        return known[array]
    if all(array.type.broadcastable):
        return array.reshape(())
    if not set(known).isdisjoint(ancestors([array])):
        return array.owner.op(*(_flat(i, known, shape) for i in array.owner.inputs))
    matrix = pt.atleast_2d(array)
    both = np.divmod(np.arange(prod(shape)), shape[1])  # numbers of groups, of which some are taken
    broadcast = matrix.type.broadcastable
    row, column = (np.zeros_like(k) if one else k for k, one in zip(both, broadcast, strict=True))
    return matrix[row, column]
