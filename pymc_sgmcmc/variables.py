"""Which variables a step samples."""

from collections import Counter

import numpy as np
from pymc.model import Model
from pymc.util import get_value_vars_from_user_vars


def counterparts(model: Model, smaller: Model, vars) -> list | None:
    """Return the corresponding variables in the model without latent variables."""
    if vars is None:
        return None
    own = {value: smaller.rvs_to_values.get(rv) for rv, value in model.rvs_to_values.items()}
    found = []
    for var in vars if isinstance(vars, list | tuple) else [vars]:
        value = own.get(model.rvs_to_values.get(var, var), var)
        if value is None:
            raise ValueError(
                f"'{var.name}' is in latents=, so it is integrated out, not sampled. Remove it "
                "from vars or from latents."
            )
        found.append(value)
    return found


RESERVED = ("chain", "draw")
"""Dims of every result; ArviZ cannot read a variable with such a name."""
SELF = "self"
"""Name of the first argument of compiled functions, to which PyMC passes values by name."""


def refuse_reserved_names(model: Model) -> None:
    """Raise an error for variables whose name a result or a compiled function cannot take."""
    for rv in model.free_RVs:
        if rv.name == SELF:
            raise ValueError(
                f"The variable '{SELF}' has the name of an argument of PyTensor's functions, which "
                "could not be called with it: rename it."
            )
    for rv in model.unobserved_RVs:
        if rv.name in RESERVED:
            raise ValueError(
                f"The variable '{rv.name}' has the name of a dim of the results, so they could not "
                "be read: rename it."
            )


def refuse_missing_counts(model: Model, value) -> None:
    """Raise an error if a discrete observed variable has missing values."""
    name = model.values_to_rvs[value].name.removesuffix("_unobserved")
    is_missing = f"{name}_observed" in model.named_vars and f"{name}_unobserved" in model.named_vars
    if is_missing and not np.issubdtype(np.dtype(value.dtype), np.floating):
        raise ValueError(
            f"The observed variable '{name}' is discrete and has masked (missing) values, which "
            "have no gradient. Drop those rows, or impute the values beforehand; sgm.sample() "
            "without step= drops rows with missing outcomes by itself."
        )


def continuous(model: Model, vars) -> list:
    """Return the value variables to sample, after checking that all are continuous."""
    if vars is None:
        chosen = list(model.value_vars)
    else:
        vars = list(vars) if isinstance(vars, list | tuple) else [vars]
        known = {*model.free_RVs, *model.value_vars}
        for var in vars:
            if isinstance(var, str):
                raise ValueError(f"vars: '{var}' is a name. Pass the variable: model['{var}'].")
            if var not in known:
                names = ", ".join(f"'{rv.name}'" for rv in model.free_RVs)
                raise ValueError(
                    f"{getattr(var, 'name', None) or var!r} is not a free variable of the model. "
                    f"Its free variables are: {names}."
                )
        chosen = get_value_vars_from_user_vars(vars, model)
        for var, count in Counter(chosen).items():
            if count > 1:
                raise ValueError(f"vars lists '{var.name}' {count} times: list it once.")
    for var in chosen:
        refuse_missing_counts(model, var)
        if not np.issubdtype(np.dtype(var.dtype), np.floating):
            raise ValueError(
                f"'{var.name}' is discrete ({var.dtype}) and has no gradient. If it has one value "
                f"per row of the data, integrate it out: latents=sgm.Gibbs(['{var.name}']). "
                "Otherwise give it to another step, and name the continuous variables as vars of "
                f"this one: step=[..., pm.Metropolis([model['{var.name}']])]."
            )
    return chosen
