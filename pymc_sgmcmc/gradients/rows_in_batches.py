"""Find the dimension along which a model's data are sliced into batches."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pymc as pm
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Variable

from pymc_sgmcmc.gradients.arrays import (
    Array,
    array_value,
    arrays_of,
    data_name,
    dims_of,
    evaluate,
    observed_array,
    shape_of,
)
from pymc_sgmcmc.gradients.potentials import Key, with_rows_of_their_own
from pymc_sgmcmc.gradients.refusals import (
    ALL_ROWS,
    advice_on_table,
    element_for_each_row,
    has_axis,
    one_draw_spans,
    potentials_without_dims,
    table_of_groups,
)

FEW_ROWS = 2000
"""Largest number of rows that are all used at each update if there are no others: in batches, their
noise would cost more than they do."""
FEW_BESIDE = 10
"""Smallest ratio of another likelihood's rows to few rows at which the few are all used at each
update."""


@dataclass(frozen=True)
class RowAxis:
    """The dimension along which the model's data are sliced into batches."""

    name: str | None
    length: int
    axes: dict[Variable, int]
    """Axis of rows of each observed variable that has the dimension."""

    def __str__(self):
        return f"dim '{self.name}'" if self.name else f"the dim of length {self.length}"


def batch_ndim(var: Variable) -> int:
    """Return the number of leading axes along which a variable's elements are separate draws."""
    return var.ndim - getattr(var.owner.op, "ndim_supp", 0)


def _separate_axes(var: Variable) -> list[int]:
    """Return the axes along which a variable's elements are separate draws."""
    dims = getattr(var.type, "dims", None)
    if dims is None:
        return list(range(batch_ndim(var)))
    while var.owner.inputs and not hasattr(var.owner.op, "core_dims"):  # a transposed variable
        var = var.owner.inputs[0]
        if var.owner is None:
            return list(range(len(dims)))
    spanned = var.owner.op.core_dims[-1]
    return [axis for axis, dim in enumerate(dims) if dim not in spanned]


def _named_axes(model: pm.Model, rv: Variable) -> list[Key]:
    """Return (name or None, length) of each axis; an unnamed axis takes its data's dim name."""
    shape = shape_of(observed_array(model, rv))
    names = list(dims_of(model, rv))
    by_length: dict[int, set[str]] = {}
    for array in arrays_of(model, rv):
        for dim, length in zip(dims_of(model, array), array_value(array).shape, strict=False):
            if dim is not None:
                by_length.setdefault(length, set()).add(dim)
    for axis, (name, length) in enumerate(zip(names, shape, strict=True)):
        if name is None and len(by_length.get(length, ())) == 1:
            [names[axis]] = by_length[length]
    return list(zip(names, shape, strict=True))


def refuse_missing(model: pm.Model) -> None:
    """Raise an error for observed variables that PyMC has split in two."""
    for rv in model.observed_RVs:
        name = rv.name.removesuffix("_observed")
        if f"{name}_unobserved" in model.named_vars:
            raise ValueError(
                f"The observed variable '{name}' has masked (missing) values: its rows cannot be "
                "sliced into batches. Drop those rows, or impute the values beforehand; "
                "sgm.sample() without step= drops rows with missing outcomes by itself."
            )


def _refuse_unsuitable(model: pm.Model) -> None:
    """Raise an error for observed variables that PyMC has already split in two or scaled."""
    refuse_missing(model)
    for rv in model.observed_RVs:
        if isinstance(rv.owner.op, MinibatchRandomVariable):
            raise ValueError(
                f"The observed variable '{rv.name}' has total_size= and the step has batch_size=, "
                "so the likelihood would be scaled twice. Remove total_size (and pm.Minibatch) "
                "from the model, or batch_size from the step."
            )


class NoRowAxis(ValueError):
    """No variable of the model has an axis of rows."""


def find_row_axis(
    model: pm.Model, minibatch_dim: str | None, latents: Collection[Variable] = ()
) -> RowAxis:
    """Find the dimension of the rows, or raise an error that names those that qualify.

    ``latents`` are the free variables that may have one element per row.
    """
    axes = _labelled_axes(model, latents)
    if minibatch_dim is None:
        key = _only_candidate(model, axes, latents)
    else:
        key = _named_key(model, axes, minibatch_dim)
    return _row_axis(model, axes, key, latents)


def find_row_axes(
    model: pm.Model,
    minibatch_dim: str | None = None,
    latents: Collection[Variable] = (),
    few: bool = False,
) -> list[RowAxis]:
    """Find the dimensions of the rows, several if likelihoods have their own rows.

    ``few`` adds dimensions of few rows, which have no batches, after the others.
    """
    axes = _labelled_axes(model, latents)
    axes |= with_rows_of_their_own(model, axes, latents)
    keys = _own_rows(model, axes, latents, few) if minibatch_dim is None else []
    if not keys:
        return [find_row_axis(model, minibatch_dim, latents)]
    return [_row_axis(model, axes, key, latents) for key in keys]


def advice_on_tables(model: pm.Model, rows: Sequence[RowAxis], least: int) -> Iterator[str]:
    """Yield advice for tables with at least ``least`` effects, and more than rows, across rows."""
    axes = _labelled_axes(model)
    for row_axis in rows:
        for rv, own in row_axis.axes.items():
            shape = [length for _, length in axes[rv]]
            for axis, key in enumerate(axes[rv]):
                effects = [v for v in model.free_RVs if has_axis(model, v, *key)]
                if axis != own and key[1] >= max(least, row_axis.length + 1) and effects:
                    yield advice_on_table(rv, shape, row_axis, axis, effects)


def n_rows_of(model: pm.Model, minibatch_dim: str | None = None) -> int:
    """Count the rows that are sliced into batches."""
    return sum(axis.length for axis in find_row_axes(model, minibatch_dim))


def _labelled_axes(
    model: pm.Model, latents: Collection[Variable] = ()
) -> dict[Variable, list[Key]]:
    """Return name and length of the axes of each variable that may have rows."""
    _refuse_unsuitable(model)
    axes = {rv: _named_axes(model, rv) for rv in model.observed_RVs if rv.ndim > 0}
    if not axes:  # a likelihood written as potentials
        axes = with_rows_of_their_own(model, {}, latents)
    if not axes and model.observed_RVs:
        names = ", ".join(f"'{rv.name}'" for rv in model.observed_RVs)
        raise NoRowAxis(
            f"No observation dim found: the observed {names} have no axis to slice into batches, "
            "each is one value."
        )
    if not axes and model.potentials:
        raise potentials_without_dims(model)
    if not axes:
        raise NoRowAxis(
            "No observation dim found: the model has no observed variable, and no potential with "
            "dims=, with an axis to slice into batches."
        )
    return axes


def _named_key(model: pm.Model, axes: dict[Variable, list[Key]], minibatch_dim: str) -> Key:
    """Return name and length of the dim that the user has chosen."""
    if minibatch_dim not in model.dim_lengths:
        known = ", ".join(f"'{dim}'" for dim in model.dim_lengths) or "none"
        raise ValueError(
            f"minibatch_dim='{minibatch_dim}' is not a dim of the model. Its dims are: {known}."
        )
    [length] = evaluate(model.dim_lengths[minibatch_dim])
    key = minibatch_dim, int(length)
    for labels in axes.values():  # an unnamed axis of that length counts as the dim
        matches = [a for a, (name, n) in enumerate(labels) if name is None and n == key[1]]
        if key not in labels and len(matches) == 1:
            labels[matches[0]] = key
    return key


def _row_axis(
    model: pm.Model, axes: dict[Variable, list[Key]], key: Key, latents: Collection[Variable]
) -> RowAxis:
    """Return the dimension, which must suit all variables that have it."""
    found = {rv: labels.index(key) for rv, labels in axes.items() if key in labels}
    row_axis = RowAxis(*key, {rv: a for rv, a in found.items() if rv in model.observed_RVs})
    if not found:
        names = ", ".join(f"'{rv.name}'" for rv in axes)
        raise ValueError(
            f"No observation dim found: none of the observed {names} has {row_axis}. Pass another "
            "minibatch_dim=, or give dims= to the observed variable."
        )
    for rv, axis in row_axis.axes.items():
        if axis not in _separate_axes(rv):
            raise one_draw_spans(rv, row_axis)
    free = [rv for rv in model.free_RVs if rv not in latents]
    local = [rv for rv in free if key[0] is not None and key[0] in dims_of(model, rv)]
    if local:
        raise element_for_each_row(local, row_axis)
    return row_axis


def _candidates(
    model: pm.Model, axes: dict[Variable, list[Key]], free: Collection[Variable]
) -> list[Key]:
    """Return dimensions that may be the rows: of separate draws, and not of any free variable."""
    free_dims = _dims_of_all(model, free)
    free_lengths = {n for rv in free for n in rv.type.shape if n is not None}
    free_lengths |= {int(n) for n in evaluate(*(model.dim_lengths[dim] for dim in free_dims))}
    candidates: list[Key] = []
    for rv, labels in axes.items():
        for name, length in (labels[axis] for axis in _separate_axes(rv)):
            taken = name in free_dims if name else rv.ndim > 1 and length in free_lengths
            if length > 1 and not taken and (name, length) not in candidates:
                candidates.append((name, length))
    return candidates


def _own_rows(
    model: pm.Model, axes: dict[Variable, list[Key]], latents: Collection[Variable], few: bool
) -> list[Key]:
    """Return the rows of each likelihood if each has just one candidate dimension, else none.

    Dimensions with an element of a free variable each are left out, because they are groups of
    other rows. So are, unless ``few``, few rows next to many, which cost little at each update and
    would add much noise in batches.
    """
    free = [rv for rv in model.free_RVs if rv not in latents]
    keys: dict[Key, None] = {}
    for rv, labels in axes.items():
        own = _candidates(model, {rv: labels}, free)
        if len(own) > 1:
            return []
        keys |= dict.fromkeys(own)
    rows = [key for key in keys if not any(has_axis(model, rv, *key) for rv in free)]
    if any(name is None and [m for _, m in rows].count(n) > 1 for name, n in rows):
        return []  # possibly the same rows, which cannot be known without names
    most = max((n for _, n in rows), default=0)
    if any(n > most for _, n in keys):
        return []  # more than groups would be
    many = [(name, n) for name, n in rows if n > FEW_ROWS or n * FEW_BESIDE > most]
    return [*many, *(key for key in rows if few and key not in many)]


def _only_candidate(
    model: pm.Model, axes: dict[Variable, list[Key]], latents: Collection[Variable]
) -> Key:
    free = [rv for rv in model.free_RVs if rv not in latents]
    candidates = _candidates(model, axes, free)
    if len(candidates) > 1:  # latent variables have the rows along their first axis
        first = {(dims_of(model, rv) or (None,))[0] for rv in latents}
        lengths = {n for rv in latents for n in rv.type.shape[:1]}
        local = [c for c in candidates if c[0] in first - {None} or c[1] in lengths - {None}]
        candidates = local if len(local) == 1 else candidates
    if len(candidates) > 1:  # prefer a dim that all observed variables have
        common = [c for c in candidates if all(c in labels for labels in axes.values())]
        candidates = common or candidates
    if len(candidates) > 1:  # prefer a dim that the predictors also have
        lengths = {
            n
            for rv in axes
            for array in arrays_of(model, rv)
            if array is not model.rvs_to_values[rv]
            for n in array_value(array).shape
        }
        shared = [c for c in candidates if c[1] in lengths]
        candidates = shared if len(shared) == 1 else candidates
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise _no_candidate(model, axes, latents)
    names = ", ".join(f"'{rv.name}'" for rv in axes)
    options = ", ".join(f"'{name}'" if name else f"(length {n})" for name, n in candidates)
    remedy = (
        "Choose one with minibatch_dim= (and give dims= to the observed variables and pm.Data)."
    )
    if not any(name for name, _ in candidates):
        remedy = (
            "Give dims= to the observed variables and pm.Data, and pass the name of one as "
            "minibatch_dim=."
        )
    raise ValueError(
        f"Several dims of the observed {names} could be sliced into batches: {options}. {remedy}"
    )


def _no_candidate(
    model: pm.Model, axes: dict[Variable, list[Key]], latents: Collection[Variable]
) -> ValueError:
    """Return the error for a model without any dimension that can be sliced."""
    free = [rv for rv in model.free_RVs if rv not in latents]
    for rv, labels in axes.items():  # most models have their rows along the first axis
        long = [axis for axis, (_, length) in enumerate(labels) if length > 1]
        local = {
            axis: [var for var in free if has_axis(model, var, *labels[axis])] for axis in long
        }
        for axis in long:
            rows = RowAxis(*labels[axis], {})
            if axis not in _separate_axes(rv):
                return one_draw_spans(rv, rows)
            # Effects of a single axis, unlike a table of elements, are effects of groups.
            own = [v for v in local[axis] if not any(v in local[a] for a in long if a != axis)]
            others = {a: local[a] for a in long if a != axis and local[a]}
            if own and others and not latents:
                shape = tuple(n for _, n in labels)
                return table_of_groups(rv, shape, {axis: own, **others})
            if local[axis]:
                return element_for_each_row(local[axis], rows)
    names = ", ".join(f"'{rv.name}'" for rv in axes)
    return ValueError(
        f"No observation dim found: the observed {names} have only one row. {ALL_ROWS}"
    )


def _dims_of_all(model: pm.Model, variables: Collection[Variable]) -> set[str]:
    return {dim for rv in variables for dim in dims_of(model, rv) if dim is not None}


def sliced_axis(model: pm.Model, array: Array, rows: RowAxis) -> int | None:
    """Return an array's axis of rows, or None if it has none."""
    dims, shape = dims_of(model, array), array_value(array).shape
    if rows.name is not None and rows.name in dims:
        return dims.index(rows.name)
    possible: set[str | None] = {None}  # dims of data that may be the rows
    if rows.name is None:
        possible |= set(dims) - _dims_of_all(model, model.free_RVs)
    fitting = [a for a, n in enumerate(shape) if dims[a] in possible and n == rows.length]
    if len(fitting) > 1:
        raise ValueError(
            f"{data_name(array)} has several axes of length {rows.length}: it is unclear "
            f"which of them runs along {rows}. Wrap it in pm.Data with dims= and pass "
            "minibatch_dim=."
        )
    return fitting[0] if fitting else None


def local_shape(model: pm.Model, rv: Variable, row_axis: RowAxis) -> tuple[int, ...]:
    """Return the shape of one row's value of a latent variable, which must be local to the rows."""
    dims = dims_of(model, rv)
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
    if batch_ndim(rv) < 1:
        raise ValueError(
            f"The latent variable '{rv.name}' is not independent along {row_axis}: one draw of "
            "its distribution spans the rows."
        )
    return tuple(n for n in lengths[1:] if n is not None)
