"""Minibatches of an unchanged model: which arrays hold rows, and each term for a batch of rows.

The likelihood of a batch is not derived from the graph of the full likelihood, which depends on the
number of rows. Instead each observed variable is rebuilt from the batch's rows, resized by PyMC's
own `change_dist_size`, and PyMC derives its log probability as for any other variable.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.custom import CustomSymbolicDistRV
from pymc.distributions.shape_utils import change_dist_size
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType, integer_dtypes
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.gradients.arrays import (
    Array,
    array_value,
    arrays_of,
    dims_of,
    leaf_arrays,
    observed_array,
    shape_of,
)
from pymc_sgmcmc.gradients.differentiate import simplified
from pymc_sgmcmc.gradients.potentials import elements_of, values_of
from pymc_sgmcmc.gradients.refusals import dependent_rows
from pymc_sgmcmc.gradients.resize import folded, resized, with_plain_scalars
from pymc_sgmcmc.gradients.rows_in_batches import RowAxis, batch_ndim, sliced_axis
from pymc_sgmcmc.gradients.sparse_rows import products_of_rows


@dataclass(frozen=True)
class Term:
    """One observed variable or potential: its log probability for each row of a batch."""

    name: str
    logp: TensorVariable
    """Elementwise and unscaled; depends on the value variables, ``rows`` and the data."""
    full: TensorVariable
    """The same for all rows, from the model itself."""
    axis: int
    """Axis of the rows in both expressions."""
    variable: Variable
    """The model's own variable."""


class SlicedArray(NamedTuple):
    """An array that is sliced into batches."""

    full: TensorVariable
    """Placeholder for the array, with all its rows, in the terms."""
    axis: int
    """Axis of the rows."""


class BatchModel(NamedTuple):
    """The part of a model that is sliced into batches."""

    terms: list[Term]
    """One term per latent variable, observed variable and potential along the rows."""
    sliced: dict[Array, SlicedArray]
    """Each sliced array, with its placeholder in the terms."""
    rest: list[Variable]
    """The observed variables and potentials that do not run along the rows."""
    latents: dict[Variable, Variable]
    """Each latent variable, rebuilt for a batch from the arguments of `batched_terms`."""
    observed: dict[str, TensorVariable]
    """Values of each observed variable along the rows, with rows along the first axis."""
    index: TensorVariable
    """Row numbers of the batch."""

    @property
    def arrays(self) -> dict[Array, TensorVariable]:
        """Maps each sliced array to its placeholder in the terms."""
        return {array: s.full for array, s in self.sliced.items()}

    @property
    def axes(self) -> tuple[tuple[Array, int], ...]:
        """Each sliced array, with its axis of rows."""
        return tuple((array, s.axis) for array, s in self.sliced.items())

    def simplified(self) -> "BatchModel":
        """Return the same with simplified terms, in which equal index arrays are merged."""
        logps = clone_replace([term.logp for term in self.terms], _equal_indices(self.sliced))
        both = zip(self.terms, simplified(logps), strict=True)
        return self._replace(terms=[replace(term, logp=logp) for term, logp in both])


def batched_terms(
    model: pm.Model,
    row_axis: RowAxis,
    index: TensorVariable,
    latents: dict[Variable, TensorVariable] | None = None,
    global_values: dict[Variable, Variable] | None = None,
    data: StreamedData | None = None,
) -> BatchModel:
    """Build the terms of the model that are sliced into batches of the rows in ``index``.

    ``latents`` has placeholders for the batch's values of each latent variable, with rows along the
    first axis, and ``global_values`` replaces the other free variables, by default with the model's
    value variables. Arrays whose rows are streamed have the types of ``data``.
    """
    latents = latents or {}
    formats = {} if data is None else data.formats
    observed_values = {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}
    potentials = [p for p in model.potentials if _runs_along(model, p, row_axis, latents)]
    sliced: dict[Array, SlicedArray] = {}
    batch: dict[Variable, TensorVariable] = {}

    def slice_rows(array: Variable, axis: int | None) -> None:
        if axis is None or array in sliced or not isinstance(array, SharedVariable | Constant):
            return
        shape = [n if a != axis else None for a, n in enumerate(array_value(array).shape)]
        dtype = formats[array.name].dtype if array.name in formats else array.type.dtype
        whole = TensorType(dtype, shape)(array.name)
        sliced[array] = SlicedArray(whole, axis)
        batch[array] = whole[(slice(None),) * axis + (index,)].astype(array.type.dtype)

    def slice_all(arrays: Iterable[Array]) -> None:
        for array in arrays:
            if array not in sliced:
                slice_rows(array, sliced_axis(model, array, row_axis))

    for rv, axis in row_axis.axes.items():
        slice_rows(observed_array(model, rv), axis)
    length = model.dim_lengths.get(row_axis.name)
    if isinstance(length, SharedVariable):  # otherwise it is a constant like any other
        batch[length] = index.shape[0].astype(length.dtype)
    named_dims = not isinstance(model, pm.Model)
    variables = [*latents, *row_axis.axes, *potentials]
    values = [observed_values[rv] for rv in row_axis.axes]
    folds: dict[Variable, TensorVariable] = {
        **folded([*variables, *values], row_axis.length, model.free_RVs),
        **products_of_rows(variables, row_axis.length, model.free_RVs),
    }
    for var in [] if named_dims else variables:
        try:
            slice_all(arrays_of(model, var, folds))
        except ValueError as error:  # an array of all rows by all rows
            full = _full_term(model, var)
            reason = dependent_rows(model, var, full, row_axis, row_axis.length)
            raise reason or error from error

    # Free variables are replaced first, so that data inside their priors are not sliced.
    free = {rv: rv.type(rv.name) for rv in model.free_RVs if rv not in latents}
    if global_values is None:
        values = model.replace_rvs_by_values(list(free))
        global_values = dict(zip(free, values, strict=True))
    substitute = {free[rv]: value for rv, value in global_values.items()}

    def for_batch(var: Variable, others: dict) -> Variable:
        others = {**latents, **others}
        others.pop(var, None)
        replace = {**free, **others, **batch}
        for v, expression in folds.items():
            [new] = resized([expression], replace, row_axis.length, index.shape[0])
            replace.setdefault(v, new)
        [out] = resized([var], replace, row_axis.length, index.shape[0])
        return out

    def with_captured(logp: TensorVariable) -> TensorVariable:
        """Slice the remaining arrays, those captured by the functions of a `pm.CustomDist`."""
        captured = folded([logp], row_axis.length, stop=[])
        slice_all(leaf_arrays([logp], [], captured))
        replace = {v: batch.get(c, c) for v, c in captured.items()}
        [logp] = resized([logp], {**replace, **batch}, row_axis.length, index.shape[0])
        return logp

    batch_values = {
        rv: for_batch(value, {}) if rv in row_axis.axes else value
        for rv, value in observed_values.items()
    }
    parts: list[tuple[Variable, TensorVariable, int]] = []
    batch_rvs = {}
    for rv, value in [*latents.items(), *((rv, batch_values[rv]) for rv in row_axis.axes)]:
        if named_dims:  # PyMC resizes random variables of plain tensors only
            parts.append((rv, with_captured(_full_term(model, rv)), row_axis.axes[rv]))
            continue
        batch_rv = for_batch(rv, batch_values)
        if rv in latents:
            size = (index.shape[0], *value.type.shape[1 : batch_ndim(rv)])
        else:
            size = tuple(value.shape[a] for a in range(batch_ndim(rv)))
        try:
            batch_rv = with_plain_scalars(of_size(batch_rv, size))
            logp = with_captured(pm.logp(batch_rv, value))
        except NotImplementedError as error:
            raise ValueError(
                f"The variable '{rv.name}' cannot be sliced into batches: {error} "
                "Pass batch_size=None, or write the model with pm.Minibatch."
            ) from error
        parts.append((rv, logp, row_axis.axes.get(rv, 0)))
        if rv in latents:
            batch_rvs[rv] = batch_rv
    for potential in potentials:
        axis = _row_axis_of_potential(model, potential, row_axis)
        if named_dims:
            parts.append((potential, with_captured(_full_term(model, potential)), axis))
        else:
            parts.append((potential, for_batch(elements_of(potential), batch_values), axis))
    if not sliced:
        shown = ", ".join(f"'{var.name}'" for var in variables)
        raise ValueError(
            f"No array from which {shown} is computed has rows along {row_axis} (length "
            f"{row_axis.length}). Arrange the data with a row for each element of the dim, padded "
            "with a mask where there are several values for one, and give dims= to pm.Data."
        )
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
        sliced,
        rest,
        latents=dict(zip(batch_rvs, replaced[k : k + m], strict=True)),
        observed=dict(zip(names, replaced[k + m :], strict=True)),
        index=index,
    )


def _equal_indices(sliced: Mapping[Array, SlicedArray]) -> dict[TensorVariable, TensorVariable]:
    """Map plain index arrays with the same values to the placeholder of the first of them.

    PyTensor makes a new constant each time a model uses the same NumPy array.
    """
    first: dict[tuple, TensorVariable] = {}
    same = {}
    for array, s in sliced.items():
        if isinstance(array, Constant) and array.dtype in integer_dtypes and s.axis == 0:
            value = np.ascontiguousarray(array.data)
            key = value.shape, value.dtype, value.tobytes()
            same[s.full] = first.setdefault(key, s.full)
    return {whole: other for whole, other in same.items() if whole is not other}


def of_size(rv: Variable, size: tuple) -> Variable:
    """Change the size of a random variable, as PyMC does."""
    out = change_dist_size(rv, size)
    if isinstance(out.owner.op, CustomSymbolicDistRV):
        # PyMC would give it the parameters of the original distribution instead of these.
        own = rv.owner.op.dist_params(rv.owner)
        new_size, *_ = out.owner.inputs
        rngs = out.owner.inputs[1 + len(own) :]
        out = out.owner.op(new_size, *own, *rngs)
    return out


def _full_term(model: pm.Model, var: Variable) -> TensorVariable:
    if var in model.potentials:
        return values_of(model, elements_of(var))
    [full] = model.logp(vars=[var], sum=False, jacobian=False)
    return full


def _row_axis_of_potential(model: pm.Model, potential: Variable, row_axis: RowAxis) -> int:
    if potential.name in model.named_vars_to_dims:
        return dims_of(model, potential).index(row_axis.name)
    return shape_of(elements_of(potential)).index(row_axis.length)


def _runs_along(
    model: pm.Model, potential: Variable, row_axis: RowAxis, latents: Collection[Variable]
) -> bool:
    """Whether a potential has one element per row (otherwise it counts as part of the prior)."""
    if potential.name in model.named_vars_to_dims:
        return row_axis.name in dims_of(model, potential)
    if not set(latents).isdisjoint(ancestors([potential])):
        raise ValueError(
            f"The potential '{potential.name}' depends on a latent variable: pass dims= to show "
            f"which of its axes runs along {row_axis}."
        )
    elements = elements_of(potential)
    if elements.ndim == 0 or all(
        sliced_axis(model, array, row_axis) is None for array in arrays_of(model, potential)
    ):
        return False
    return row_axis.length in shape_of(elements)
