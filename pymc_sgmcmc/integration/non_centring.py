"""The partially non-centred parametrisation of effects that a model writes with mean and scale.

Rows that say little of effects a ~ N(m, s) leave them to their prior, which is a funnel: the
smaller s, the closer they are together. If the likelihood of an effect is about that of one
observation b / h with precision h, its posterior given m and s is N(c, v) with

    1 / v = 1 / s^2 + h        c = m + v (b - h m)

and z = (a - c) / sqrt(v) is nearly independent of m and s. With h = 0 that is the non-centred
parametrisation, and for large h the centred one (Papaspiliopoulos, Roberts and Skoeld 2003). So z
is the free variable here, and a a deterministic: the density is that of the model whatever h and b
are.
"""

from collections.abc import Mapping

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import log
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import LogNormalRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.gradients.arrays import has_named_dims
from pymc_sgmcmc.integration.stand_ins import with_stand_in


def centred_effects(model: pm.Model) -> list[TensorVariable]:
    """Return the variables that are written with a scale which is sampled too.

    They are normal, or log-normal and sampled on the logarithmic scale.
    """
    if has_named_dims(model):
        return []
    free, found = set(model.free_RVs), []
    for rv in model.free_RVs:
        transform = model.rvs_to_transforms[rv]
        is_normal = isinstance(rv.owner.op, NormalRV) and transform is None
        is_log_normal = isinstance(rv.owner.op, LogNormalRV) and transform is log
        if (is_normal or is_log_normal) and not all(rv.type.broadcastable):
            scale = rv.owner.op.dist_params(rv.owner)[1]
            if not free.isdisjoint(ancestors([scale])):
                found.append(rv)
    return found


@quick_graphs()
def with_non_centred_effects(model: pm.Model, known: Mapping[str, np.ndarray]) -> pm.Model:
    """Return the model in the partially non-centred parametrisation of some `centred_effects`.

    ``known`` has, for the name of each, h and b of its effects, shape (2, *shape).
    """
    for name, (h, b) in known.items():
        rv = model[name]
        mean, scale = rv.owner.op.dist_params(rv.owner)
        sd = scale / pt.sqrt(1 + h * scale**2)
        shift = sd * (b - h * mean)
        z = pm.Normal.dist(-shift, scale / sd, shape=h.shape)
        effects = mean + sd * (shift + z)
        if isinstance(rv.owner.op, LogNormalRV):
            effects = pt.exp(effects)
        model = with_stand_in(model, rv, z, effects, {})
    return model
