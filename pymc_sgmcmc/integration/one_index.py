"""Effects that rows look up by two indices, such as category and week, rewritten for one index."""

from math import prod

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.arrays import has_named_dims
from pymc_sgmcmc.integration.stand_ins import with_stand_in


def with_one_index(model: pm.Model) -> pm.Model:
    """Return the model with flat arrays for matrices of effects, or itself if it has none.

    ``gamma[c, w]`` becomes ``flat[c * W + w]``, also if gamma is first multiplied or transformed
    element by element.
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
    return model


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
