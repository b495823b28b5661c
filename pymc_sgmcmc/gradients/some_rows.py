"""A variable with an element for each row, rebuilt for only some of the rows."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.type import TensorType

from pymc_sgmcmc.gradients.arrays import array_value, arrays_of
from pymc_sgmcmc.gradients.batch_terms import of_size
from pymc_sgmcmc.gradients.resize import folded, resized, with_plain_scalars
from pymc_sgmcmc.gradients.rows_in_batches import RowAxis, sliced_axis
from pymc_sgmcmc.gradients.sparse_rows import products_of_rows
from pymc_sgmcmc.gradients.substitute import substitute


def of_some_rows(
    model: pm.Model, rv: Variable, row_axis: RowAxis, rows: np.ndarray, shape: tuple[int, ...]
) -> Variable:
    """Rebuild a random variable of all rows, which run along its first axis, for some of them.

    The arrays of its parameters are copied without the other rows. ``shape`` is that of one row's
    elements along which draws are separate.
    """
    n, size = row_axis.length, pt.lscalar("rows")
    # Free variables are replaced too, so that data inside their priors keep all rows; all are
    # replaced by placeholders, because no operation's inner graph may depend on the number of rows.
    free = {v: v.type(v.name) for v in model.free_RVs}
    folds = {**folded([rv], n, model.free_RVs), **products_of_rows([rv], n, model.free_RVs)}
    replace: dict[Variable, Variable] = dict(free)
    values: dict[Variable, Variable] = {size: pt.constant(len(rows))}
    for array in arrays_of(model, rv, folds):
        axis = sliced_axis(model, array, row_axis)
        if axis is not None:
            lengths = (m if a != axis else None for a, m in enumerate(array.type.shape))
            replace[array] = TensorType(array.type.dtype, tuple(lengths))(array.name)
            name = None if array.name is None else f"{array.name}, of some rows"
            values[replace[array]] = pt.constant(np.take(array_value(array), rows, axis), name)
    for v, expression in folds.items():
        [new] = resized([expression], replace, n, size)
        replace.setdefault(v, new)
    [out] = resized([rv], replace, n, size)
    out = with_plain_scalars(of_size(out, (len(rows), *shape)))
    [out] = substitute([out], {**values, **{v: rv for rv, v in free.items()}})
    return out
