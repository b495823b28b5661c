"""Minibatches of an unchanged model: which arrays hold rows, and each term for a batch of rows.

The likelihood of a batch is not cut out of the full likelihood's graph (that graph has the number
of rows baked in). Instead each observed variable is built anew from the batch's rows, resized by
PyMC's own `change_dist_size`, and its log probability derived as PyMC derives any other.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.shape_utils import change_dist_size
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, walk
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

type Array = SharedVariable | Constant


PYTHON = Mode(linker="py", optimizer="fast_compile")
"""For graphs that run once or twice: no code is generated (with `pytensor.config.cxx` empty)."""


def evaluate(*outputs: Variable) -> list[np.ndarray]:
    """Evaluate expressions of data once, without compiling them."""
    with pytensor.config.change_flags(cxx=""):
        return pytensor.function([], list(outputs), mode=PYTHON, on_unused_input="ignore")()


def array_value(array: Array | np.ndarray) -> np.ndarray:
    """Return the array itself (no copy), as it is now."""
    if isinstance(array, SharedVariable):
        return array.get_value(borrow=True)
    return array.data if isinstance(array, Constant) else array


def array_name(array: Array) -> str:
    """Return a name for messages, the shape standing in where there is none."""
    return f"'{array.name}'" if array.name else f"the array of shape {array_value(array).shape}"


@dataclass(frozen=True)
class Term:
    """One observed variable or potential: its log probability for each row of a batch."""

    name: str
    logp: TensorVariable
    """Elementwise, not scaled; depends on the value variables, ``rows`` and the data."""
    full: TensorVariable
    """The same for all rows, as the model itself has it."""
    axis: int
    """Axis of the rows in both."""
    variable: Variable
    """The model's own variable."""


class CutArray(NamedTuple):
    """An array that is cut into batches."""

    whole: TensorVariable
    """Stands for all its rows in the terms."""
    axis: int
    """Axis of the rows."""


@dataclass(frozen=True)
class RowAxis:
    """The dimension along which the model's data is cut into batches."""

    name: str | None
    length: int
    axes: dict[Variable, int]
    """Axis of each observed variable that carries the dimension."""

    def __str__(self):
        return f"dim '{self.name}'" if self.name else f"the dim of length {self.length}"


def leaf_arrays(outputs: Iterable[Variable], stop: Sequence[Variable]) -> list[Array]:
    """Shared variables and array constants that outputs depend on, not through ``stop``."""
    blocked = set(stop)

    def parents(var: Variable):
        return None if var in blocked or var.owner is None else reversed(var.owner.inputs)

    return [
        var
        for var in walk(outputs, parents)
        if isinstance(var, SharedVariable | Constant)
        and isinstance(array_value(var), np.ndarray)
        and array_value(var).ndim > 0
    ]


def _dims(model: pm.Model, var: Variable) -> tuple[str | None, ...]:
    return tuple(model.named_vars_to_dims.get(var.name) or (None,) * var.ndim)


def _arrays_of(model: pm.Model, rv: Variable) -> list[Array]:
    others = [*model.free_RVs, *(o for o in model.observed_RVs if o is not rv)]
    value = model.rvs_to_values.get(rv)
    return leaf_arrays([rv] if value is None else [rv, value], stop=others)


def _batch_ndim(var: Variable) -> int:
    """Leading axes along which the elements of a variable are separate draws."""
    return var.ndim - getattr(var.owner.op, "ndim_supp", 0)


def _observed_array(model: pm.Model, rv: Variable) -> Variable:
    """Return what was passed as observed=, without PyMC's cast to the variable's type."""
    value = model.rvs_to_values[rv]
    while value.owner is not None and isinstance(value.owner.op, Elemwise):
        [value] = value.owner.inputs
    return value


def _shape(var: Variable) -> tuple[int, ...]:
    if isinstance(var, SharedVariable | Constant):
        return array_value(var).shape
    if None not in var.type.shape:
        return var.type.shape
    return tuple(int(n) for n in evaluate(var.shape)[0])


def _named_axes(model: pm.Model, rv: Variable) -> list[tuple[str | None, int]]:
    """(name or None, length) of each axis; an unnamed axis takes a data container's dim name."""
    shape = _shape(_observed_array(model, rv))
    names = list(_dims(model, rv))
    by_length: dict[int, set[str]] = {}
    for array in _arrays_of(model, rv):
        for dim, length in zip(_dims(model, array), array_value(array).shape, strict=False):
            if dim is not None:
                by_length.setdefault(length, set()).add(dim)
    for axis, (name, length) in enumerate(zip(names, shape, strict=True)):
        if name is None and len(by_length.get(length, ())) == 1:
            [names[axis]] = by_length[length]
    return list(zip(names, shape, strict=True))


def _refuse_unsuitable(model: pm.Model) -> None:
    """Refuse observed variables that are split in two by PyMC, or scaled already."""
    for rv in model.observed_RVs:
        name = rv.name.removesuffix("_observed")
        if f"{name}_unobserved" in model.named_vars:
            raise ValueError(
                f"The observed variable '{name}' has masked (missing) values: its rows cannot be "
                "cut into batches. Drop those rows, or impute them in a variable of their own."
            )
        if isinstance(rv.owner.op, MinibatchRandomVariable):
            raise ValueError(
                f"The observed variable '{rv.name}' has total_size= and the step has batch_size=: "
                "scale once. Remove total_size (and pm.Minibatch) from the model, or batch_size."
            )


def find_row_axis(
    model: pm.Model, minibatch_dim: str | None, latents: Collection[Variable] = ()
) -> RowAxis:
    """Find the dimension that the observed variables' rows lie along.

    ``latents`` are the free variables that may have an element for each row.

    Raises
    ------
    ValueError
        If no dimension or more than one can be meant, naming them and the remedy.
    """
    _refuse_unsuitable(model)
    axes = {rv: _named_axes(model, rv) for rv in model.observed_RVs if rv.ndim > 0}
    if not axes:  # a likelihood written as potentials, if they say which dim is theirs
        named = [p for p in model.potentials if p.name in model.named_vars_to_dims]
        axes = {p: list(zip(_dims(model, p), _shape(p), strict=True)) for p in named}
    if not axes:
        raise ValueError(
            "No observation dim found: the model has no observed variable, and no potential with "
            "dims=, with an axis to cut into batches. Leave batch_size=None to use the whole "
            "model at each update."
        )
    if minibatch_dim is not None:
        if minibatch_dim not in model.dim_lengths:
            known = ", ".join(f"'{dim}'" for dim in model.dim_lengths) or "none"
            raise ValueError(
                f"minibatch_dim='{minibatch_dim}' is not a dim of the model (dims: {known})."
            )
        [length] = evaluate(model.dim_lengths[minibatch_dim])
        key: tuple[str | None, int] = (minibatch_dim, int(length))
        for labels in axes.values():  # an unnamed axis of that length is taken to be the dim
            matches = [a for a, (name, n) in enumerate(labels) if name is None and n == key[1]]
            if key not in labels and len(matches) == 1:
                labels[matches[0]] = key
    else:
        key = _only_candidate(model, axes, latents)
    found = {rv: labels.index(key) for rv, labels in axes.items() if key in labels}
    row_axis = RowAxis(*key, {rv: a for rv, a in found.items() if rv in model.observed_RVs})
    if not found:
        names = ", ".join(f"'{rv.name}'" for rv in axes)
        raise ValueError(
            f"No observation dim found: none of the observed {names} has {row_axis}. Give another "
            "minibatch_dim=, or dims= to the observed variable."
        )
    for rv, axis in row_axis.axes.items():
        if axis >= _batch_ndim(rv):
            raise ValueError(
                f"The observed variable '{rv.name}' is not conditionally independent along "
                f"{row_axis}: one draw of its distribution spans it (a multivariate normal, a "
                "Gaussian process or a time series over the rows?). Leave batch_size=None, or "
                "give another minibatch_dim."
            )
    for rv in model.free_RVs:
        if rv not in latents and key[0] is not None and key[0] in _dims(model, rv):
            raise ValueError(
                f"The free variable '{rv.name}' has an element for each row of {row_axis}: it is "
                "local to the data and cannot be sampled with minibatches of rows. Integrate it "
                f"out with latents=sgm.Gibbs(['{rv.name}']), or leave batch_size=None."
            )
    return row_axis


def _only_candidate(
    model: pm.Model,
    axes: dict[Variable, list[tuple[str | None, int]]],
    latents: Collection[Variable],
) -> tuple[str | None, int]:
    free = [rv for rv in model.free_RVs if rv not in latents]
    free_dims = {dim for rv in free for dim in _dims(model, rv) if dim is not None}
    free_lengths = {n for rv in free for n in rv.type.shape if n is not None}
    candidates: list[tuple[str | None, int]] = []
    for rv, labels in axes.items():
        for name, length in labels[: _batch_ndim(rv)]:
            taken = name in free_dims if name else rv.ndim > 1 and length in free_lengths
            if length > 1 and not taken and (name, length) not in candidates:
                candidates.append((name, length))
    if len(candidates) > 1:  # latent variables have the rows along their first axis
        first = {(_dims(model, rv) or (None,))[0] for rv in latents}
        lengths = {n for rv in latents for n in rv.type.shape[:1]}
        local = [c for c in candidates if c[0] in first - {None} or c[1] in lengths - {None}]
        candidates = local if len(local) == 1 else candidates
    if len(candidates) > 1:  # prefer what all observed variables have
        common = [c for c in candidates if all(c in labels for labels in axes.values())]
        candidates = common or candidates
    if len(candidates) > 1:  # prefer what the data on the other side of the model has too
        lengths = {
            n
            for rv in axes
            for array in _arrays_of(model, rv)
            if array is not model.rvs_to_values[rv]
            for n in array_value(array).shape
        }
        shared = [c for c in candidates if c[1] in lengths]
        candidates = shared if len(shared) == 1 else candidates
    if len(candidates) == 1:
        return candidates[0]
    names = ", ".join(f"'{rv.name}'" for rv in axes)
    if not candidates:
        raise ValueError(
            f"No observation dim found: no axis of the observed {names} can be cut into batches "
            "(each is part of one multivariate draw, has length 1, or belongs to a free variable "
            "too). Give minibatch_dim=, integrate out variables with a value for each row by "
            "latents=, or leave batch_size=None."
        )
    options = ", ".join(f"'{name}'" if name else f"(length {n})" for name, n in candidates)
    raise ValueError(
        f"Several dims of the observed {names} could be cut into batches: {options}. Say which "
        "with minibatch_dim= (and give dims= to the observed variables and pm.Data)."
    )


def sliced_axis(model: pm.Model, array: Array, rows: RowAxis) -> int | None:
    """Axis of an array that runs along the rows, or None if it has none."""
    dims, shape = _dims(model, array), array_value(array).shape
    if rows.name is not None and rows.name in dims:
        return dims.index(rows.name)
    fitting = [a for a, n in enumerate(shape) if dims[a] is None and n == rows.length]
    if len(fitting) > 1:
        raise ValueError(
            f"{array_name(array)} has several axes of length {rows.length}: it is not clear "
            f"which of them runs along {rows}. Wrap it in pm.Data with dims= and pass "
            "minibatch_dim=."
        )
    return fitting[0] if fitting else None


def local_shape(model: pm.Model, rv: Variable, row_axis: RowAxis) -> tuple[int, ...]:
    """Shape of one row's value of a latent variable; refuse one that is not local to the rows."""
    dims = _dims(model, rv)
    lengths = [
        known if known is not None else int(evaluate(model.dim_lengths[dim])[0]) if dim else None
        for known, dim in zip(rv.type.shape, dims, strict=True)
    ]
    unknown = [axis for axis, n in enumerate(lengths) if n is None]
    if unknown:
        raise ValueError(
            f"The latent variable '{rv.name}' has axes of unknown length {unknown}: give it dims=."
        )
    local = lengths[:1] == [row_axis.length] and dims[0] in (None, row_axis.name)
    if not local or row_axis.name in dims[1:]:
        raise ValueError(
            f"The latent variable '{rv.name}' (shape {tuple(lengths)}, dims {dims}) is not local "
            f"to the rows: its first axis must run along {row_axis}, and no other. Variables "
            "shared by the rows are sampled, not integrated out."
        )
    if _batch_ndim(rv) < 1:
        raise ValueError(
            f"The latent variable '{rv.name}' is not independent along {row_axis}: one draw of "
            "its distribution spans the rows."
        )
    return tuple(n for n in lengths[1:] if n is not None)


def _is_random(var: Variable) -> bool:
    """Whether a variable is not made of constants alone."""
    return any(v.owner is None and not isinstance(v, Constant) for v in ancestors([var]))


def finite_support(rv: Variable) -> np.ndarray | None:
    """Return the values that a discrete variable can take, where they are few and known."""
    name = type(rv.owner.op).__name__
    parameters = rv.owner.inputs[2:]
    if name == "BernoulliRV":
        return np.array([0, 1])
    if name == "CategoricalRV":
        p = parameters[0]
        n = p.type.shape[-1] if p.type.shape[-1] is not None else int(evaluate(p.shape[-1])[0])
        return np.arange(n)
    known = [p for p in parameters if not _is_random(p)]
    bounds = [int(evaluate(p)[0].item()) for p in known if all(p.type.broadcastable)]
    if name == "DiscreteUniformRV" and len(bounds) == 2:
        return np.arange(bounds[0], bounds[1] + 1)
    if name in ("BinomialRV", "BetaBinomialRV") and not _is_random(parameters[0]):
        return np.arange(int(np.max(evaluate(parameters[0])[0])) + 1)
    return None


class BatchModel(NamedTuple):
    """The part of a model that is cut into batches."""

    terms: list[Term]
    """One for each latent variable, observed variable and potential along the rows."""
    cuts: dict[Array, CutArray]
    """Each array that is cut, with what stands for it in the terms."""
    rest: list[Variable]
    """The observed variables and potentials that do not run along the rows."""
    latents: dict[Variable, Variable]
    """Each latent variable, anew for a batch: a function of what `batched_terms` was given."""
    observed: dict[str, TensorVariable]
    """Values of each observed variable along the rows, rows along the first axis."""


def batched_terms(
    model: pm.Model,
    row_axis: RowAxis,
    index: TensorVariable,
    latents: dict[Variable, TensorVariable] | None = None,
    global_values: dict[Variable, Variable] | None = None,
    dtypes: Mapping[str, np.dtype] | None = None,
) -> BatchModel:
    """Build the terms of the model that are cut into batches.

    Parameters
    ----------
    model : pymc.Model
    row_axis : RowAxis
    index : integer vector
        Row numbers of the batch.
    latents : dict, optional
        What stands for the batch's values of each latent variable, rows along the first axis.
    global_values : dict, optional
        What stands for the other free variables; default: the model's value variables.
    dtypes : mapping, optional
        Types in which the rows of some arrays come, by the arrays' names; default: their own.
    """
    latents = latents or {}
    observed_values = {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}
    potentials = [p for p in model.potentials if _runs_along(model, p, row_axis, latents)]
    cuts: dict[Array, CutArray] = {}
    batch: dict[Variable, TensorVariable] = {}

    def cut(array: Variable, axis: int | None) -> None:
        if axis is None or array in cuts or not isinstance(array, SharedVariable | Constant):
            return
        shape = [n if a != axis else None for a, n in enumerate(array_value(array).shape)]
        dtype = (dtypes or {}).get(array.name, array.type.dtype)
        whole = pt.tensor(array.name, shape=shape, dtype=dtype)
        cuts[array] = CutArray(whole, axis)
        batch[array] = whole[(slice(None),) * axis + (index,)].astype(array.type.dtype)

    for rv, axis in row_axis.axes.items():
        cut(_observed_array(model, rv), axis)
    for var in [*latents, *row_axis.axes, *potentials]:
        for array in _arrays_of(model, var):
            if array not in cuts:
                cut(array, sliced_axis(model, array, row_axis))
    if not cuts:
        raise ValueError(f"No array of the model has rows along {row_axis}: give dims= to pm.Data.")

    # Free variables are cut off first, so that data inside their priors stays whole.
    free = {rv: rv.type(rv.name) for rv in model.free_RVs if rv not in latents}
    if global_values is None:
        values = model.replace_rvs_by_values(list(free))
        global_values = dict(zip(free, values, strict=True))
    substitute = {free[rv]: value for rv, value in global_values.items()}

    def for_batch(var: Variable, others: dict) -> Variable:
        others = {**latents, **others}
        others.pop(var, None)
        [out] = clone_replace([var], {**free, **others, **batch}, rebuild_strict=False)
        return out

    batch_values = {
        rv: for_batch(value, {}) if rv in row_axis.axes else value
        for rv, value in observed_values.items()
    }
    parts: list[tuple[Variable, TensorVariable, int]] = []
    batch_rvs = {}
    for rv, value in [*latents.items(), *((rv, batch_values[rv]) for rv in row_axis.axes)]:
        batch_rv = for_batch(rv, batch_values)
        if rv in latents:
            size = (index.shape[0], *value.type.shape[1 : _batch_ndim(rv)])
        else:
            size = tuple(value.shape[a] for a in range(_batch_ndim(rv)))
        try:
            batch_rv = change_dist_size(batch_rv, size)
            logp = pm.logp(batch_rv, value)
        except NotImplementedError as error:
            raise ValueError(
                f"The variable '{rv.name}' cannot be cut into batches: {error} "
                "Leave batch_size=None, or write the model with pm.Minibatch."
            ) from error
        parts.append((rv, logp, row_axis.axes.get(rv, 0)))
        if rv in latents:
            batch_rvs[rv] = batch_rv
    for potential in potentials:
        axis = _row_axis_of_potential(model, potential, row_axis)
        parts.append((potential, for_batch(potential, batch_values), axis))
    observed = [pt.moveaxis(batch_values[rv], axis, 0) for rv, axis in row_axis.axes.items()]
    replaced = clone_replace(
        [*(logp for _, logp, _ in parts), *batch_rvs.values(), *observed],
        substitute,
        rebuild_strict=False,
    )
    k, m = len(parts), len(batch_rvs)
    terms = [
        Term(var.name, logp, _full_term(model, var), axis, var)
        for (var, _, axis), logp in zip(parts, replaced[:k], strict=True)
    ]
    rest = [
        var
        for var in [*model.observed_RVs, *model.potentials]
        if var not in row_axis.axes and var not in potentials
    ]
    names = [rv.name for rv in row_axis.axes]
    return BatchModel(
        terms,
        cuts,
        rest,
        latents=dict(zip(batch_rvs, replaced[k : k + m], strict=True)),
        observed=dict(zip(names, replaced[k + m :], strict=True)),
    )


def _full_term(model: pm.Model, var: Variable) -> TensorVariable:
    if var in model.potentials:
        [full] = model.replace_rvs_by_values([var])
    else:
        [full] = model.logp(vars=[var], sum=False, jacobian=False)
    return full


def _row_axis_of_potential(model: pm.Model, potential: Variable, row_axis: RowAxis) -> int:
    if potential.name in model.named_vars_to_dims:
        return _dims(model, potential).index(row_axis.name)
    return _shape(potential).index(row_axis.length)


def _runs_along(
    model: pm.Model, potential: Variable, row_axis: RowAxis, latents: Collection[Variable]
) -> bool:
    """Whether a potential has an element for each row (else it counts as part of the prior)."""
    if potential.name in model.named_vars_to_dims:
        return row_axis.name in _dims(model, potential)
    if not set(latents).isdisjoint(ancestors([potential])):
        raise ValueError(
            f"The potential '{potential.name}' depends on a latent variable: say by dims= which "
            f"of its axes runs along {row_axis}."
        )
    if potential.ndim == 0 or all(
        sliced_axis(model, array, row_axis) is None for array in _arrays_of(model, potential)
    ):
        return False
    return row_axis.length in _shape(potential)
