"""The partially non-centred parametrisation of effects that a model writes with mean and scale.

Rows that say little about effects a ~ N(m, s) leave them to their prior, which is a funnel: the
smaller s, the closer they are together. If the likelihood of an effect is about that of one
observation b / h with precision h, its posterior given m and s is N(c, v) with

    1 / v = 1 / s^2 + h        c = m + v (b - h m)

and z = (a - c) / sqrt(v) is nearly independent of m and s. With h = 0 that is the non-centred
parametrisation, and for large h the centred one (Papaspiliopoulos, Roberts and Skoeld 2003). So z
is the free variable here, and a a deterministic: the density is that of the model for any h and b.

Such rows also say little about s, only that s^2 is below about (sum_j h_j^2 / 2)^{-1/2}, with a sum
over the effects of this scale. So log s has a long tail, which chains take long to traverse, but
the density of s itself is even near 0. It is sampled as x = log(exp(s / w) - 1), with a width w
below that: proportional to s above w, to log s below.
"""

import math
from collections.abc import Mapping

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import log
from pymc.logprob.transforms import Transform
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import LogNormalRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.gradients.arrays import evaluate, has_named_dims
from pymc_sgmcmc.gradients.model_gradient import shapes_of
from pymc_sgmcmc.integration.reparametrised_models import with_stand_in, with_transform

WIDTH = 0.4
"""Width w, relative to the scale for which the rows can say whether s is below it."""


class Softplus(Transform):
    """x = log(exp(s / w) - 1) of positive s, elementwise."""

    name = "softplus"
    ndim_supp = 0

    def __init__(self, width: np.ndarray):
        self.width = width

    def forward(self, value, *inputs):
        s = value / self.width
        return s + pt.log(-pt.expm1(-s))

    def backward(self, value, *inputs):
        return self.width * pt.softplus(value)

    def log_jac_det(self, value, *inputs):
        return np.log(self.width) - pt.softplus(-value)


def centred_effects(model: pm.Model) -> list[TensorVariable]:
    """Return the variables that are written with a scale which is also sampled.

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

    ``known`` maps the name of each of these to h and b of its effects, shape (2, *shape), and names
    from `width_of_scale` to w and to values from which to start, in the same way.
    """
    effects = {rv.name for rv in centred_effects(model)}
    for name in (n for n in known if n not in effects):
        width, start = known[name]
        model = with_transform(model, model[name], Softplus(width), start)
    for name in (n for n in known if n in effects):
        (h, b), rv = known[name], model[name]
        mean, scale = rv.owner.op.dist_params(rv.owner)
        ratio = pt.sqrt(1 + h * scale**2)  # scale / sd, also where scales are rounded to 0
        sd = scale / ratio
        shift = sd * (b - h * mean)
        z = pm.Normal.dist(-shift, ratio, shape=h.shape)
        of_z = mean + sd * (shift + z)
        if isinstance(rv.owner.op, LogNormalRV):
            of_z = pt.exp(of_z)
        model = with_stand_in(model, rv, z, of_z, {})
    return model


@quick_graphs()
def scales_of(
    model: pm.Model, effects: TensorVariable, shape: tuple[int, ...]
) -> tuple[TensorVariable, np.ndarray] | None:
    """Return the variable whose elements scale `centred_effects`, and which element each has.

    None if the scale is not an element of a variable, unchanged: this is found out from two values.
    """
    scale, free = effects.owner.op.dist_params(effects.owner)[1], set(model.free_RVs)
    found = free.intersection(ancestors([scale], blockers=model.free_RVs))
    if len(found) != 1:
        return None
    [variable] = found
    [of_scale] = shapes_of(model, [model.rvs_to_values[variable]])
    values = np.sort(np.random.default_rng(0).uniform(1, 2, math.prod(of_scale)))
    values = np.stack([values, values[::-1]]).astype(variable.dtype)
    of_effects = [
        np.broadcast_to(evaluate(clone_replace(scale, {variable: pt.constant(v)}))[0], shape)
        for v in values.reshape(2, *of_scale)
    ]
    number = np.minimum(np.searchsorted(values[0], of_effects[0]), values.shape[1] - 1)
    is_element = (values[:, number] == of_effects).all()
    return (variable, number) if is_element else None


def width_of_scale(
    model: pm.Model, scale: TensorVariable, of_effects: np.ndarray, h: np.ndarray
) -> np.ndarray | None:
    """Return w for each element of a scale about which the rows say little, from `scales_of`.

    None if the scale is not sampled on the logarithmic scale, or rows say nothing about it.
    """
    [shape] = shapes_of(model, [model.rvs_to_values[scale]])
    squares = np.bincount(of_effects.ravel(), np.square(h).ravel(), minlength=math.prod(shape))
    if model.rvs_to_transforms[scale] is not log or not squares.all():
        return None
    return (WIDTH * (squares / 2) ** -0.25).reshape(shape)
