"""Where chains start."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from pymc.initial_point import PointType, StartDict, make_initial_point_fns_per_chain
from pymc.model import Model
from pytensor.graph.basic import Variable
from xarray import Dataset, DataTree

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.gradients.arrays import dims_of, evaluate
from pymc_sgmcmc.number_checks import shown

STRATEGIES = ("prior", "support_point")
"""Strings that PyMC accepts as initial values."""


@quick_graphs()
def starts_of(
    model: Model,
    initvals: StartDict | Sequence[StartDict | None] | None,
    init: str,
    generators: Sequence[np.random.Generator],
) -> list[PointType]:
    """Return each chain's starting point: PyMC's initial point, with the jitter of PyMC's NUTS.

    The jitter is uniform in [-1, 1], unconstrained, for variables without their own initial value.
    """
    one = initvals if isinstance(initvals, dict) else None
    each = [one] * len(generators) if isinstance(initvals, dict | None) else list(initvals)

    def jittered(given: StartDict | None) -> set:
        named = {getattr(name, "name", name) for name in given or {}}
        return {
            rv
            for rv in model.free_RVs
            if init == "jitter"
            and np.issubdtype(np.dtype(rv.dtype), np.floating)
            and model.rvs_to_initial_values.get(rv) is None
            and not named & {rv.name, model.rvs_to_values[rv].name}
        }

    # In the order and with the seeds of `pm.sample`, so the same seed gives the same chains there.
    seeds = [int(rng.integers(2**30)) for rng in generators]
    if isinstance(initvals, dict | None):
        functions = make_initial_point_fns_per_chain(
            model=model, overrides=one, jitter_rvs=jittered(one), chains=len(generators)
        )
    else:
        functions = [
            make_initial_point_fns_per_chain(
                model=model, overrides=given, jitter_rvs=jittered(given), chains=1
            )[0]
            for given in each
        ]
    return [function(seed) for function, seed in zip(functions, seeds, strict=True)]


def start_of_warm_up(
    model: Model,
    initvals: StartDict | Sequence[StartDict | None] | None,
    generator: np.random.Generator,
) -> PointType | None:
    """Return the point of the first chain's initial values, or None if none are given."""
    first = initvals if isinstance(initvals, dict | None) else initvals[0]
    return starts_of(model, first, "point", generator.spawn(1))[0] if first else None


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


def check_starts(
    model: Model, initvals: StartDict | Sequence[StartDict | None] | None, init: str, chains: int
) -> None:
    """Raise an error for starts that the model does not have, or unless there is one per chain."""
    if not isinstance(initvals, dict | list | tuple | None):
        raise _no_starts(initvals)
    for one in [initvals] if isinstance(initvals, dict) else initvals or []:
        if not isinstance(one, dict | None):
            raise _no_starts(initvals)
        check_names(model, one, "initvals")
        for name, value in (one or {}).items():
            _check_value(model, str(getattr(name, "name", name)), value)
    if not isinstance(initvals, dict | None) and len(initvals) != chains:
        raise ValueError(
            f"initvals has {len(initvals)} entries, but there are {chains} chains: pass one dict "
            "per chain, or a single dict."
        )
    if init not in ("jitter", "point"):
        raise ValueError(
            f"init={shown(init)} must be 'jitter' or 'point': it says where chains start. The "
            "metric, which init= of NUTS chooses too, is the step's: "
            "step=sgm.MSGNHT_S(adaptation='diag')."
        )


def _no_starts(initvals: Any) -> ValueError:
    of_run = ""
    each = initvals if isinstance(initvals, list | tuple) else [initvals]
    if any(isinstance(one, DataTree | Dataset) for one in each):
        of_run = (
            " A draw of a run is {rv.name: idata.posterior[rv.name].values[0, -1] for rv in "
            "model.free_RVs}."
        )
    return ValueError(
        f"initvals={shown(initvals)} must be a dict of initial values by variable, or a list with "
        f"one such dict, or None, for each chain.{of_run}"
    )


def _check_value(model: Model, name: str, value: Any) -> None:
    """Raise an error for an initial value without numbers, or with axes other than its
    variable's.
    """
    if isinstance(value, str) and value not in STRATEGIES:
        raise ValueError(
            f"initvals: the value {shown(value)} for '{name}' must be a number or an array, or one "
            f"of {', '.join(map(repr, STRATEGIES))}."
        )
    if value is None or isinstance(value, str | Variable):
        return
    value = np.asarray(value)
    if value.dtype.kind not in "biuf":
        raise ValueError(
            f"initvals: the value for '{name}' has the type {value.dtype}: it must have numbers. "
            "Convert it, for example with np.asarray(value, dtype=float)."
        )
    variables = {v.name: v for v in [*model.value_vars, *model.unobserved_RVs]}
    dims = dims_of(model, variables[name])
    shape = [
        n if dim is None else int(evaluate(model.dim_lengths[dim])[0])
        for n, dim in zip(variables[name].type.shape, dims, strict=True)
    ]
    given = value.shape
    if given and (
        len(given) != len(shape)
        or any(n not in (None, m) for n, m in zip(shape, given, strict=True))
    ):
        expected = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(
            f"initvals: the value for '{name}' has the shape {given}, but the variable has "
            f"({expected}). Pass an array of that shape."
        )
