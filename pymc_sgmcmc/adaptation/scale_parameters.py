"""Scale parameters of a model: as one approaches 0, a hierarchy's joint density has no bound."""

from collections.abc import Sequence

import numpy as np
from pymc.model import Model
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.arrays import random_variable

SCALE_TRANSFORMS = {"log", "log_exp_m1", "interval", "logodds", "chain", "softplus"}
"""Names of PyMC's transforms to a logarithmic scale."""
CHOLESKY_TRANSFORMS = {"cholesky-cov-packed", "cholesky-cov"}
"""Names of transforms of covariances whose Cholesky factor has a logarithmic diagonal, row
by row."""


def is_scale(model: Model, vars: Sequence[TensorVariable], shapes) -> np.ndarray:
    """Return which elements of theta are scale parameters, shape (d,).

    They are on a logarithmic scale and are not effects of a hierarchy, such as log-normal slopes;
    shares count if other variables' prior depends on them, as in an R2-D2 prior.
    """
    flags, (effects, depended_on) = [], _effects(model)
    for value, shape in zip(vars, shapes, strict=True):
        rv = random_variable(model, value)
        name = getattr(model.rvs_to_transforms.get(rv), "name", None)
        on_log_scale = name in SCALE_TRANSFORMS or (name == "simplex" and rv in depended_on)
        of_value = np.full(shape, on_log_scale and rv not in effects)
        if name in CHOLESKY_TRANSFORMS:
            ends = np.cumsum(np.arange(1, shape[-1] + 1))  # of the factor's rows
            of_value[..., ends[ends <= shape[-1]] - 1] = True
        flags.append(of_value.ravel())
    return np.concatenate(flags)


def _effects(model: Model) -> tuple[set[TensorVariable], set[TensorVariable]]:
    """Return free variables whose prior depends on others, and on which no other's depends; and
    those on which one depends.
    """
    free = set(model.free_RVs)
    above = {rv: free.intersection(ancestors(rv.owner.inputs)) for rv in free}
    depended_on = set().union(*above.values())
    return {rv for rv in free if above[rv] and rv not in depended_on}, depended_on
