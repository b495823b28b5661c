"""Names of variables given as arguments."""

from collections.abc import Collection
from typing import Any

from pymc.model import Model

from pymc_sgmcmc.argument_checks import shown


def check_names(model: Model, names: Any, argument: str, predictions: bool = False) -> None:
    """Raise an error for names that the model does not have."""
    if names is None:
        return
    if isinstance(names, str):
        raise ValueError(f"{argument}={shown(names)} must be a list of names: [{names!r}].")
    if not isinstance(names, Collection):
        raise ValueError(f"{argument}={shown(names)} must be a list of names of variables.")
    if argument == "var_names" and len(names) == 0 and not predictions:
        raise ValueError(
            "var_names=[] would record nothing: name a variable, leave var_names= out, or pass "
            "predictions=."
        )
    starts = argument == "initvals"
    own_scale = model.free_RVs if starts else model.unobserved_RVs
    known = {v.name for v in [*own_scale, *model.value_vars]}
    for name in names:
        name = getattr(name, "name", name)
        if starts and name in {v.name for v in model.deterministics}:
            raise ValueError(
                f"initvals: '{name}' is a deterministic, which follows from other variables. Give "
                f"these initial values: {', '.join(rv.name for rv in model.free_RVs)}."
            )
        if name not in known:
            raise ValueError(
                f"{argument}: the model has no variable '{name}'. It has: "
                f"{', '.join(sorted(known))}."
            )
