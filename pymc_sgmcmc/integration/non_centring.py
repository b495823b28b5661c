"""The non-centred parametrisation of effects that a model writes with their mean and scale.

Rows that say little of effects a ~ N(m, s) leave them to their prior, which is a funnel: the
smaller s, the closer they are together. Of a = m + s z the standard variable z is then nearly
independent of s (Papaspiliopoulos, Roberts and Skoeld 2007). So z is the free variable here, and a
a deterministic.
"""

from collections.abc import Collection

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import log
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import LogNormalRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.gradients.arrays import has_named_dims
from pymc_sgmcmc.integration.stand_ins import with_stand_in


def centred_effects(model: pm.Model) -> dict[TensorVariable, TensorVariable]:
    """Return the variables that are written with a scale which is sampled too, and that scale.

    They are normal, or log-normal and sampled on the logarithmic scale.
    """
    if has_named_dims(model):
        return {}
    free, found = set(model.free_RVs), {}
    for rv in model.free_RVs:
        transform = model.rvs_to_transforms[rv]
        is_normal = isinstance(rv.owner.op, NormalRV) and transform is None
        is_log_normal = isinstance(rv.owner.op, LogNormalRV) and transform is log
        if (is_normal or is_log_normal) and not all(rv.type.broadcastable):
            scale = rv.owner.op.dist_params(rv.owner)[1]
            if not free.isdisjoint(ancestors([scale])):
                found[rv] = scale
    return found


@quick_graphs()
def with_non_centred_effects(model: pm.Model, names: Collection[str]) -> pm.Model:
    """Return the model in the non-centred parametrisation of some of its `centred_effects`."""
    for name in names:
        rv = model[name]
        mean, scale = rv.owner.op.dist_params(rv.owner)
        z = pm.Normal.dist(0, 1, shape=rv.shape)
        effects = mean + scale * z
        if isinstance(rv.owner.op, LogNormalRV):
            effects = pt.exp(effects)
        model = with_stand_in(model, rv, z, effects, {})
    return model
