"""A gradient source for temperatures other than 1, whose transforms' Jacobians are not tempered.

At temperature T a sampler that multiplies its noise by T draws y, a variable on the unconstrained
scale, from exp(V(y) / T), where V has the gradient that the sampler is given. The posterior of x =
x(y) to the power 1 / T, a density with respect to x, is p(x)^(1 / T) |dx / dy| as a density of y.
So::

    V = log p(x(y)) + T log |dx / dy|

and the source's gradient, that of log p + log |dx / dy|, lacks (T - 1) times that of the Jacobian.
"""

from dataclasses import replace

import pytensor.tensor as pt
from pymc.model import Model
from pytensor.graph.replace import clone_replace

from pymc_sgmcmc.gradients.arrays import has_named_dims, tensor_model
from pymc_sgmcmc.gradients.model_gradient import explicit_data, gradients_of
from pymc_sgmcmc.gradients.source import GradientSource


def tempered(source: GradientSource, model: Model, temperature: float) -> GradientSource:
    """Return the source with which a sampler of this temperature draws from posterior^(1 / T).

    It is the same source if T is 1 or none of its variables has a transform. Its ``log_prior``, and
    so the potential, remains that of the model.
    """
    if temperature == 1:
        return source
    if has_named_dims(model):
        model = tensor_model(model)
    values = {var.name: var for var in source.vars}
    jacobians = []
    for value, rv in model.values_to_rvs.items():
        transform = model.rvs_to_transforms[rv]
        if value.name in values and transform is not None:
            [jacobian] = model.replace_rvs_by_values(
                [pt.sum(transform.log_jac_det(value, *rv.owner.inputs))]
            )
            jacobians.append(jacobian)
    if not jacobians:
        return source
    # A model of pymc.dims has been turned into tensors twice: here, and for the source.
    own = {v: values[v.name] for v in model.value_vars if v.name in values}
    jacobians = clone_replace(jacobians, own)
    [jacobian], data = explicit_data([pt.add(*jacobians, 0.0)], dict(source.data))
    slopes = gradients_of(jacobian, source.vars)
    prior = [
        (g + (temperature - 1) * s).astype(g.dtype)
        for g, s in zip(source.prior, slopes, strict=True)
    ]
    return replace(source, prior=prior, data=list(data.items()))
