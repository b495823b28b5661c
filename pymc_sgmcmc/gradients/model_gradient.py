"""The gradient source of a model: all its data, batches of rows, or its own `pm.Minibatch`."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.blocking import PointType
from pymc.model.core import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, explicit_graph_inputs
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.gradients.arrays import (
    Array,
    array_value,
    has_named_dims,
    refuse_nan,
    sum_of,
    tensor_model,
    weighted,
)
from pymc_sgmcmc.gradients.batch_check import check_terms, rows_looked_at
from pymc_sgmcmc.gradients.batch_terms import BatchModel, batched_terms
from pymc_sgmcmc.gradients.common_row_numbers import joined_terms
from pymc_sgmcmc.gradients.differentiate import before_gradients, gradients_of, tidy
from pymc_sgmcmc.gradients.full_terms import full_terms
from pymc_sgmcmc.gradients.group_sizes import RowGroups, StreamedRowGroups
from pymc_sgmcmc.gradients.local_check import check_local
from pymc_sgmcmc.gradients.local_model import LocalModel
from pymc_sgmcmc.gradients.local_source import local_source
from pymc_sgmcmc.gradients.local_variables import Local, LocalTerms, find_local
from pymc_sgmcmc.gradients.placeholders import check_covered, filled, fitted_to, refuse_whole
from pymc_sgmcmc.gradients.pm_minibatch import uses_minibatch, written_with_minibatch
from pymc_sgmcmc.gradients.rows_in_batches import NoRowAxis, RowAxis, find_row_axes, find_row_axis
from pymc_sgmcmc.gradients.source import GradientSource, Rows, check_batch_size

LARGE_CONSTANT = 10**6
"""Largest size of a constant, in bytes, that numba copies into the compiled code."""


@quick_graphs()
def gradient_source(
    model: Model,
    vars: list[TensorVariable],
    *,
    batch_size: int | None = None,
    minibatch_dim: str | None = None,
    self_check: bool = True,
    data: StreamedData | None = None,
    start: PointType | None = None,
    row_weights: SharedVariable | None = None,
    local: Local = None,
    batches: Literal["auto", "rows", "groups"] = "rows",
) -> GradientSource:
    """Derive the stochastic gradient of a model with respect to some of its value variables.

    The gradient of the likelihood is scaled by N / n, so that it is unbiased; with
    ``batch_size=None`` it is that of all the data, or of a model written with `pm.Minibatch`.
    ``self_check`` compares batches with the model near ``start``, ``row_weights`` has a factor for
    each row's log likelihood, and ``local`` and ``batches`` are as for `find_local` and
    `LocalTerms`.
    """
    variables = [*model.free_RVs, *model.observed_RVs, *model.potentials]
    minibatches = [var for var in variables if uses_minibatch(model, var)]
    if batch_size is None and minibatch_dim is not None:
        raise ValueError(f"minibatch_dim='{minibatch_dim}' needs batch_size= too.")
    if batch_size is not None and minibatches:
        raise ValueError(
            f"batch_size={batch_size!r} and pm.Minibatch in '{minibatches[0].name}': use only one "
            "of them (prefer batch_size=, with which predictions use all the data)."
        )
    if data is not None and batch_size is None:
        raise ValueError("data= needs batch_size= too, and a model without pm.Minibatch.")
    if has_named_dims(model):
        if local is not None and local != "auto":
            raise ValueError(f"local={local!r}: variables of pymc.dims move at every update.")
        local = None
        model = tensor_model(model)
        vars = [v for v in model.value_vars if v.name in {var.name for var in vars}]
    parts: tuple[Any, ...]
    if minibatches:
        parts = written_with_minibatch(model)
    elif batch_size is not None:
        data = None if data is None else fitted_to(model, data)
        with filled(model, data):
            parts = _slice_into_batches(
                model,
                vars,
                batch_size,
                minibatch_dim,
                self_check,
                data,
                start,
                row_weights,
                local,
                batches,
            )
    else:
        parts = _whole(model)
    source = _differentiate(model, vars, *parts)
    if data is not None:
        refuse_whole(explicit_graph_inputs([source.log_prior]), data)
    return source


def _n_rows(terms: Sequence[Variable]) -> TensorVariable:
    sizes = [t.shape[0] for t in terms if t.ndim > 0] or [pt.constant(1)]
    n = sizes[0]
    for size in sizes[1:]:
        n = pt.maximum(n, size)
    return n.astype(pytensor.config.floatX)


def _whole(model: Model):
    """Use all the data at each update, for exact gradients."""
    likelihood = model.logp(vars=model.observed_RVs, sum=False) if model.observed_RVs else []
    prior = model.logp(vars=[*model.free_RVs, *model.potentials])
    return prior, sum_of(likelihood), _n_rows(likelihood), [], {}, []


def _slice_into_batches(
    model, vars, batch_size, minibatch_dim, self_check, data, start, row_weights, local, batches
):
    """Slice an unchanged model into batches."""
    try:
        if data is None:
            row_axes = find_row_axes(model, minibatch_dim)
        else:
            row_axes = [find_row_axis(model, minibatch_dim)]
    except NoRowAxis as error:
        raise ValueError(
            f"{error} Pass batch_size=None to use all the data at each update."
        ) from None
    n_rows = sum(row_axis.length for row_axis in row_axes)
    check_batch_size(batch_size, data.n_rows if data else n_rows)
    start = model.initial_point() if start is None else start
    parts = [_terms_of(model, row_axis, self_check, data, start) for row_axis in row_axes]
    if len(parts) == 1:
        index, terms = parts[0].index, parts[0].terms
    else:
        index = pt.lvector("rows")
        terms = joined_terms(parts, index)
    arrays = {array: whole for part in reversed(parts) for array, whole in part.arrays.items()}
    along = {term.variable for term in terms}
    rest = [var for var in [*model.observed_RVs, *model.potentials] if var not in along]
    prior = model.logp(vars=[*model.free_RVs, *rest])
    scale = pt.scalar("N/n", dtype=pytensor.config.floatX)
    each = [term.logp for term in terms]
    if row_weights is not None:
        arrays[row_weights] = row_weights.type(row_weights.name)
        weights = arrays[row_weights][index]
        each = [weighted(term.logp, term.axis, weights) for term in terms]
    likelihood = scale * sum_of(each)
    axes = tuple(part.axes for part in parts)
    rows = Rows(index, scale, int(batch_size), axes, data, weights=row_weights)
    found = None
    if local is not None and row_weights is None:
        shapes = dict(zip(vars, shapes_of(model, vars), strict=True))
        batch = rows_looked_at(n_rows, model)[:batch_size]

        groups = RowGroups(index, arrays, n_rows)
        if data is not None:
            groups = StreamedRowGroups(index, arrays, n_rows, data)

        def check(of_groups: LocalModel) -> None:
            values = {v: np.asarray(array_value(a), v.dtype) for a, v in arrays.items()}
            of_batch = {c.index: groups.of(c.index)[batch] for c in of_groups.columns}
            check_local(model, of_groups, terms, values, index, batch, of_batch, start)

        builder = LocalTerms(model, shapes, terms, rest, index, batch_size, groups, batches)
        found = find_local(builder, local, check)
    full = full_terms(model, rest, batch_size)
    return prior, likelihood, scale * batch_size, [rows], arrays, full, found


def _terms_of(
    model: Model,
    row_axis: RowAxis,
    self_check: bool,
    data: StreamedData | None,
    start: PointType,
) -> BatchModel:
    """Return the terms along one dimension, for a batch of its rows."""
    part = batched_terms(model, row_axis, pt.lvector("rows"), data=data).simplified()
    if data is not None:
        check_covered(part.sliced, data)
    for array in part.arrays:
        refuse_nan(array)
    if self_check:
        check_terms(model, part.terms, part.arrays, part.index, row_axis, start)
    return part


def explicit_data(
    expressions: Sequence[TensorVariable], arrays: dict[Array, TensorVariable]
) -> tuple[list[TensorVariable], dict[Array, TensorVariable]]:
    """Make the data explicit inputs of expressions; ``arrays`` already are.

    This includes large constants: otherwise the compiled code would contain them or, on numba,
    their address.
    """
    for var in ancestors(expressions):
        if isinstance(var, SharedVariable) and isinstance(var.type, RandomType):
            raise ValueError(
                "The model's log probability contains a random draw without a value. Only draws of "
                "pm.Minibatch are supported there: make the draw a variable of the model."
            )
    data = dict(arrays)
    for var in ancestors(expressions):
        is_large = isinstance(var, Constant) and getattr(var.data, "nbytes", 0) > LARGE_CONSTANT
        if (isinstance(var, SharedVariable) or is_large) and var not in data:
            data[var] = TensorType(var.type.dtype, var.type.shape)(var.name)
    return clone_replace(expressions, data, rebuild_strict=False), data


@quick_graphs()
def shapes_of(model: Model, vars: Sequence[TensorVariable]) -> list[tuple[int, ...]]:
    """Return the shapes of value variables."""
    if all(None not in v.type.shape for v in vars):
        return [v.type.shape for v in vars]
    start = model.initial_point()
    return [np.shape(start[v.name]) for v in vars]


def _differentiate(model, vars, log_prior, log_likelihood, n_data, rows, arrays, full, local=None):
    """Make the data explicit inputs and take the gradients."""
    own = [] if local is None else local.expressions
    expressions, data = explicit_data([log_prior, log_likelihood, n_data, *own], arrays)
    used = set(explicit_graph_inputs(expressions))
    log_prior, log_likelihood, n_data, *own = expressions
    log_prior, log_likelihood = before_gradients([log_prior, log_likelihood])
    source = GradientSource(
        vars=vars,
        shapes=shapes_of(model, vars),
        rows=rows,
        data=[(array, v) for array, v in data.items() if v in used],
        others=[v for v in model.value_vars if v not in vars and v in used],
        log_prior=log_prior,
        log_likelihood=log_likelihood,
        n_data=n_data,
        prior=gradients_of(log_prior, vars),
        likelihood=tidy(gradients_of(log_likelihood, vars)),
        full=full,
        is_costly=getattr(model, "is_costly", False),
    )
    source.check_data()
    return source if local is None else local_source(source, local.rebuilt(own))
