"""Variables with an element for each row, such as the true value of an error-prone covariate.

They are effects of groups of one row each, looked up by the numbers of the rows.
"""

from collections.abc import Iterator

import numpy as np
import pymc as pm
from pytensor.compile.ops import view_op
from pytensor.graph.traversal import walk
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.arrays import has_named_dims
from pymc_sgmcmc.gradients.rows_in_batches import RowAxis, batch_ndim, find_row_axes
from pymc_sgmcmc.integration.reparametrised_models import (
    SUFFIX,
    own_name,
    with_stand_in,
    with_terms,
)


def with_row_numbers(model: pm.Model) -> tuple[pm.Model, list[TensorVariable]]:
    """Return the model with its effects of rows looked up by the rows' numbers, and these effects.

    In the terms of the rows ``x`` becomes ``x[0:n]`` by numbers, as rows look up effects of groups;
    priors stay as they are. A model without such effects is itself returned.
    """
    found = None if has_named_dims(model) else _row_effects(model)
    if found is None:
        return model, []
    row_axis, effects = found
    names = [own_name(rv.name) + SUFFIX for rv in effects]
    for name in [rv.name for rv in effects]:  # a variable with the rows' dim could not be sliced
        stand_in = model[name].owner.clone().outputs[1]
        model = with_stand_in(model, model[name], stand_in, view_op(stand_in), {})
    return _looked_up(model, names, row_axis.length)


def _row_effects(model: pm.Model) -> tuple[RowAxis, list[TensorVariable]] | None:
    """Find the longest axis of rows with their own effects, and return these too."""
    used = set(_used_one_by_one(model))
    by_length: dict[int, list[TensorVariable]] = {}
    for rv, shape in zip(model.free_RVs, _shapes(model), strict=True):
        if rv in used and batch_ndim(rv) and np.issubdtype(np.dtype(rv.dtype), np.floating):
            by_length.setdefault(shape[0], []).append(rv)
    for length in sorted(by_length, reverse=True):
        effects = by_length[length]
        try:
            row_axes = find_row_axes(model, None, effects, few=True)
        except ValueError:
            continue
        for row_axis in row_axes:
            if row_axis.length == length:
                return row_axis, effects
    return None


def _shapes(model: pm.Model) -> list[tuple[int, ...]]:
    shapes = model.eval_rv_shapes()
    return [shapes[rv.name] for rv in model.free_RVs]


def _used_one_by_one(model: pm.Model) -> Iterator[TensorVariable]:
    """Yield the free variables that terms of the likelihood use other than by an index."""
    free = set(model.free_RVs)

    def parents(v):
        looks_up = v.owner is None or isinstance(v.owner.op, AdvancedSubtensor)
        return None if looks_up or v in free else reversed(v.owner.inputs)

    for v in walk([*model.observed_RVs, *model.potentials], parents):
        if v in free and isinstance(v.owner.op, RandomVariable):
            yield v


def _looked_up(
    model: pm.Model, names: list[str], n_rows: int
) -> tuple[pm.Model, list[TensorVariable]]:
    """Look up some variables by numbers of rows, in observed variables and potentials.

    ``x[0:n][group]``, of rows that look them up by an index too, is simplified to ``x[group]``.
    """
    effects, numbers = [model[name] for name in names], np.arange(n_rows)
    replace = {rv: rv for rv in model.free_RVs} | {rv: rv[numbers] for rv in effects}
    return with_terms(model, replace), effects
