"""The form of a result: names, labels and `idata_kwargs`, checked before anything is sampled.

What xarray does not accept would otherwise end a run after all its draws have been made.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pymc import to_inference_data
from pymc.model import Model
from xarray import DataTree

from pymc_sgmcmc.gradients.arrays import dims_of, evaluate
from pymc_sgmcmc.number_checks import shown
from pymc_sgmcmc.run.log_densities import COMPUTE
from pymc_sgmcmc.run.result import InMemoryDraws, data_bytes, is_affordable
from pymc_sgmcmc.run.run_events import Run

SAMPLES = ("chain", "draw")


def names_in_result(
    model: Model, var_names: Sequence | None, include_data: bool | None
) -> list[str]:
    """Return the names of variables and data that every result has, whatever the step is."""
    chosen = model.free_RVs if var_names is None else var_names
    with_data = is_affordable(data_bytes(model)) if include_data is None else include_data
    return [str(getattr(v, "name", v)) for v in chosen] + data_names(model, with_data)


def data_names(model: Model, include_data: bool) -> list[str]:
    """Return the names of the data in a result."""
    return [v.name for v in [*model.observed_RVs, *model.data_vars]] if include_data else []


def check_form(
    model: Model, names: Iterable[str], idata_kwargs: Mapping[str, Any]
) -> dict[str, np.ndarray | None]:
    """Return the labels of each dim of some variables and data in the result, or None for numbers.

    Labels that a result cannot have raise an error that names the dim, the value and the remedy.
    """
    own = idata_kwargs.get("coords") or {}
    coords = {**model.coords, **own}
    used: dict[str, np.ndarray | None] = {}
    for name in names:
        for axis, dim in enumerate(_dims(model, name, idata_kwargs)):
            if dim is None:
                continue
            if "/" in dim:
                raise ValueError(
                    f"The name of the dim '{dim}' has a '/', which a DataTree reserves for paths: "
                    "rename it."
                )
            labels = coords.get(dim)
            used[dim] = None if labels is None else _labels(dim, labels)
            if dim in own and labels is not None:
                _check_length(model, name, axis, dim, len(labels))
    for dim in set(coords) - set(used):  # PyMC makes arrays of all labels
        if coords[dim] is not None:
            _labels(dim, coords[dim], used=False)
    return used


def _dims(model: Model, name: str, idata_kwargs: Mapping[str, Any]) -> Sequence[str | None]:
    """Return the dims of a variable in the result, None for those that ArviZ will name."""
    given = (idata_kwargs.get("dims") or {}).get(name)
    if given is not None:
        return [dim for dim in given if dim not in SAMPLES]
    variable = model.named_vars.get(name)
    return () if variable is None else dims_of(model, variable)


def _labels(dim: str, labels: Any, used: bool = True) -> np.ndarray:
    """Return labels as an array, which must have one axis if they are used."""
    array = _as_array(labels)
    if array is None or (used and array.ndim != 1):
        raise ValueError(
            f"The labels of the dim '{dim}' are not single numbers or strings: {_shown(labels)}. "
            "Make strings of them, [str(label) for label in labels]. A MultiIndex can be assigned "
            "to the result."
        )
    return array


def _as_array(labels: Any) -> np.ndarray | None:
    """Return labels as PyMC converts them, or None for tuples of different lengths."""
    try:
        return np.asarray(labels)
    except ValueError:
        return None


def _shown(labels: Any) -> str:
    """Return the first labels, for a message."""
    first = ", ".join(repr(label) for label in list(labels)[:2])
    return f"{first}, ..." if len(labels) > 2 else first


def _check_length(model: Model, name: str, axis: int, dim: str, n_labels: int) -> None:
    """Raise an error for too many or too few labels, if the variable's shape is known."""
    variable = model.named_vars.get(name)
    length = None if variable is None else variable.type.shape[axis]
    if length is None and dim in model.dim_lengths:
        length = int(evaluate(model.dim_lengths[dim])[0])
    if length not in (None, n_labels):
        raise ValueError(
            f"idata_kwargs: coords has {n_labels} labels for the dim '{dim}' of '{name}', which "
            f"has the length {length}: pass one label for each element."
        )


def check_idata_kwargs(
    model: Model, var_names: Sequence | None, idata_kwargs: Mapping[str, Any]
) -> None:
    """Raise an error for arguments that `pymc.to_inference_data` would not accept in the end."""
    known = [name for name in inspect.signature(to_inference_data).parameters if name != "trace"]
    for name in idata_kwargs:
        if name not in known:
            raise ValueError(
                f"idata_kwargs={{{name!r}: ...}}: pymc.to_inference_data does not take this from "
                f"sgm.sample. It takes {', '.join(known)}."
            )
    for name in ("coords", "dims"):
        value = idata_kwargs.get(name)
        if not isinstance(value, Mapping | None):
            raise ValueError(f"idata_kwargs: {name}={shown(value)} must be a dict.")
    for dim in SAMPLES:
        if dim in (idata_kwargs.get("coords") or {}):
            raise ValueError(
                f"idata_kwargs: coords has labels for '{dim}', but a run may end with fewer: leave "
                f"them out, and assign them to the result: .assign_coords({dim}=...)."
            )
    for name, given in (idata_kwargs.get("dims") or {}).items():
        if not isinstance(given, list | tuple):
            raise ValueError(
                f"idata_kwargs: dims={{{name!r}: {shown(given)}}} must have a list of dims."
            )
        dims = _dims(model, name, idata_kwargs)
        if name in model.named_vars and len(dims) > model.named_vars[name].ndim:
            raise ValueError(
                f"idata_kwargs: dims={{{name!r}: {given!r}}} has {len(dims)} dims, but '{name}' "
                f"has {model.named_vars[name].ndim}. Name at most one for each axis."
            )
    for name in COMPUTE:
        _check_log_density(model, var_names, name, idata_kwargs.get(name))


def _check_log_density(model: Model, var_names: Sequence | None, name: str, value: Any) -> None:
    """Raise an error for a log density of other variables, or without the draws that it needs."""
    if value is None or value is False:
        return
    of = model.observed_RVs if name == "log_likelihood" else model.free_RVs
    kind = "observed" if name == "log_likelihood" else "free"
    known = [v.name for v in of]
    names = isinstance(value, Collection) and not isinstance(value, str)
    listed = names and all(one in known for one in value)
    if not (listed or value is True):
        raise ValueError(
            f"idata_kwargs: {name}={shown(value)} must be True or a list of {kind} variables, "
            f"which are: {', '.join(known)}."
        )
    recorded = {getattr(v, "name", v) for v in var_names or []}
    missing = [rv.name for rv in model.free_RVs if rv.name not in recorded]
    if var_names is not None and missing:
        raise ValueError(
            f"idata_kwargs: {name} needs the draws of all free variables, but var_names leaves out "
            f"{', '.join(missing)}. Record them, or leave {name} out."
        )


def example_of(run: Run, convert: Callable[..., DataTree]) -> DataTree:
    """Convert one arbitrary draw before sampling, so that what would fail at the end fails now."""
    try:
        return convert(InMemoryDraws.example(run), seconds=0.0)
    except Exception as error:
        error.add_note(
            "Nothing has been sampled: this was a trial, the conversion of one draw to a DataTree "
            "with the model's names and coords and with idata_kwargs=."
        )
        raise
