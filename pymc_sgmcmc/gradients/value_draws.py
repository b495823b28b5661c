"""Recorded draws as draws of value variables, on the unconstrained scale and in one flat vector."""

import math
from collections.abc import Sequence

import numpy as np
from pymc.model import Model
from pytensor.graph.replace import clone_replace
from pytensor.tensor.variable import TensorVariable
from xarray import Dataset

from pymc_sgmcmc.backends.compile_time import without_code
from pymc_sgmcmc.gradients.arrays import python_function, random_variable


def value_draws(model: Model, vars: Sequence[TensorVariable], posterior: Dataset) -> np.ndarray:
    """Map draws of random variables to value variables, shape (chains, draws, d).

    ``posterior`` must have all random variables that the transforms need, or the value variables
    themselves; an error names one that was not recorded.
    """
    posterior = posterior.transpose("chain", "draw", ...)
    if all(v.name in posterior for v in vars):
        return _joined([posterior[v.name].values for v in vars])
    random = [rv for rv in model.free_RVs]
    for rv in random:
        if rv.name not in posterior:
            raise ValueError(
                f"The draws have no variable '{rv.name}', without which the gradient cannot be "
                "computed: record all free variables (leave out var_names=)."
            )
    drawn = {rv: rv.type() for rv in random}
    values = []
    for v in vars:
        rv = random_variable(model, v)
        transform = model.rvs_to_transforms[rv]
        value = drawn[rv]
        if transform is not None:
            value = transform.forward(value, *clone_replace(rv.owner.inputs, drawn))
        values.append(value)
    with without_code():
        function = python_function(drawn.values(), values)
        recorded = [posterior[rv.name].values.astype(rv.dtype) for rv in random]
        shape = recorded[0].shape[:2]
        flat = [r.reshape(math.prod(shape), *r.shape[2:]) for r in recorded]
        each = [function(*point) for point in zip(*flat, strict=True)]
    columns = [np.stack(column) for column in zip(*each, strict=True)]
    return _joined([c.reshape(*shape, *c.shape[1:]) for c in columns])


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Join arrays of shapes (chains, draws, ...) into one, shape (chains, draws, d)."""
    flat = [np.asarray(a, dtype="float64").reshape(*a.shape[:2], -1) for a in arrays]
    return np.concatenate(flat, axis=2)
