"""Models in which another variable is sampled in place of one that follows from it, or another
function of a variable.
"""

from collections.abc import Mapping

import pymc as pm
from pymc.logprob.transforms import Transform
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.pymc_internals import model_of

SUFFIX = " (as sampled)"
"""Of the names of the variables that are sampled instead."""


def is_own(name: str) -> bool:
    """Whether a variable is of the model that was rewritten, and not a stand-in."""
    return not name.endswith(SUFFIX)


def own_name(name: str) -> str:
    """Return the name of the variable that this one stands in for, or its own."""
    return name.removesuffix(SUFFIX)


def without_suffix(message: str) -> str:
    """Return a message with the names that variables have in the model as it is written."""
    return message.replace(SUFFIX, "")


def has_stand_in(model: pm.Model, name: str) -> bool:
    """Whether a deterministic is a free variable of the model that was rewritten."""
    return name + SUFFIX in model.named_vars


def with_stand_in(
    model: pm.Model,
    rv: TensorVariable,
    stand_in: TensorVariable,
    of_stand_in: TensorVariable,
    replace: Mapping[Variable, Variable],
) -> pm.Model:
    """Rewrite a model: a free variable becomes a deterministic function of a new one.

    If it is a stand-in itself, the new one takes its place, and it is no variable of the model.

    Parameters
    ----------
    model : pymc.Model
    rv : random variable
    stand_in : random variable
        The new one, not yet of a model.
    of_stand_in : variable
        ``rv`` as a function of it.
    replace : dict
        Further expressions of the model, and what they equal.
    """
    name = rv.name
    depend = [v for v in model.named_vars.values() if v is not rv and rv in ancestors([v])]
    new = dict(zip(depend, substitute(depend, {**replace, rv: of_stand_in}), strict=True))
    for old, changed in new.items():
        changed.name = old.name
    kept = {v: new.get(v, v) for v in model.named_vars.values() if v is not rv}
    other = model_of(model, kept, {v: model.rvs_to_values[v] for v in model.basic_RVs if v in kept})
    if is_own(name):
        of_stand_in.name = name
        other.deterministics.append(of_stand_in)
        other.named_vars[name] = of_stand_in
        if name in model.named_vars_to_dims:
            other.named_vars_to_dims[name] = model.named_vars_to_dims[name]
    other.register_rv(stand_in, own_name(name) + SUFFIX)
    return other


def with_transform(model: pm.Model, rv: TensorVariable, transform: Transform) -> pm.Model:
    """Rewrite a model: a free variable is sampled on another scale."""
    values = {v: model.rvs_to_values[v] for v in model.basic_RVs}
    values[rv] = rv.type(f"{rv.name}_{transform.name}__")
    other = model_of(model, {v: v for v in model.named_vars.values()}, values)
    other.rvs_to_transforms[rv] = transform
    return other
