"""Models rewritten to sample another variable, of which the original one is a function, or to
sample a variable on another scale.
"""

from collections.abc import Mapping

import numpy as np
import pymc as pm
from pymc.logprob.transforms import Transform
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.pymc_internals import model_of

SUFFIX = " (as sampled)"
"""Suffix of the names of the variables that are sampled instead."""


def is_own(name: str) -> bool:
    """Whether a variable belongs to the original model, and is not a stand-in."""
    return not name.endswith(SUFFIX)


def own_name(name: str) -> str:
    """Return the name of the variable that this one stands in for, or its own."""
    return name.removesuffix(SUFFIX)


def without_suffix(message: str) -> str:
    """Return a message with the names of variables in the original model."""
    return message.replace(SUFFIX, "")


def has_stand_in(model: pm.Model, name: str) -> bool:
    """Whether a deterministic is a free variable of the original model."""
    return name + SUFFIX in model.named_vars


def with_stand_in(
    model: pm.Model,
    rv: TensorVariable,
    stand_in: TensorVariable,
    of_stand_in: TensorVariable,
    replace: Mapping[Variable, Variable],
) -> pm.Model:
    """Rewrite a model so that a free variable becomes a deterministic function of a new one.

    ``of_stand_in`` is ``rv`` as a function of ``stand_in``, which is not yet in a model, and
    ``replace`` maps further expressions of the model to what they equal. If ``rv`` is itself a
    stand-in, the new variable takes its place, and ``rv`` is no longer in the model.
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


def with_terms(model: pm.Model, replace: dict[Variable, Variable]) -> pm.Model:
    """Rewrite a model with replaced expressions in its observed variables and potentials."""
    terms = [*model.observed_RVs, *model.potentials]
    new = dict(zip(terms, substitute(terms, replace), strict=True))
    for old, changed in new.items():
        changed.name = old.name
    kept = {v: new.get(v, v) for v in model.named_vars.values()}
    return model_of(model, kept, {v: model.rvs_to_values[v] for v in model.basic_RVs})


def with_transform(
    model: pm.Model, rv: TensorVariable, transform: Transform, start: np.ndarray
) -> pm.Model:
    """Rewrite a model so that a free variable is sampled on another scale, from a start."""
    values = {v: model.rvs_to_values[v] for v in model.basic_RVs}
    values[rv] = rv.type(f"{rv.name}_{transform.name}__")
    other = model_of(model, {v: v for v in model.named_vars.values()}, values)
    other.rvs_to_transforms[rv] = transform
    other.rvs_to_initial_values[rv] = start
    return other
