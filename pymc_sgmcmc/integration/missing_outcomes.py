"""Missing outcomes of rows, left out of the model that is sampled, and drawn afterwards.

PyMC makes two variables of an outcome ``y`` with masked elements: ``y_observed``, and
``y_unobserved`` with an element to sample for each missing one. If nothing else depends on these,
they say nothing about the parameters: the integral over them is 1. What remains are the rows with
an outcome. Given the parameters, missing outcomes are independent draws from their distribution.
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import PartialObservedRV
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

from pymc_sgmcmc.backends.compile_time import quick_graphs, without_code
from pymc_sgmcmc.gradients.arrays import (
    array_value,
    arrays_of,
    dims_of,
    evaluate,
    has_named_dims,
    sum_of,
)
from pymc_sgmcmc.gradients.batch_check import DISTANCES, near, total_of
from pymc_sgmcmc.gradients.rows_in_batches import RowAxis, batch_ndim
from pymc_sgmcmc.gradients.some_rows import of_some_rows
from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.pymc_internals import model_of

_log = logging.getLogger("pymc.sgmcmc")


MOST_COLUMNS = 12
"""Largest number of columns of a table with partly missing rows, each of which is compiled."""


class Kept(NamedTuple):
    """The observed part of an outcome, in separate rows."""

    variable: Variable
    values: np.ndarray


class MissingOutcome(NamedTuple):
    """An outcome with some missing elements."""

    name: str
    row_axis: RowAxis
    observed: Variable
    unobserved: Variable
    """The model's own variables, of the observed and of the missing elements."""
    kept: list[Kept]
    """Replacements of the first of these, one for each column if rows are partly missing."""
    missing: Variable
    """Replacements of the second, with only the rows that are missing."""


@dataclass(frozen=True)
class MissingOutcomes:
    """A model without its missing outcomes."""

    written: pm.Model
    sampled: pm.Model
    outcomes: list[MissingOutcome]

    def depend(self) -> list[str]:
        """Names of the missing outcomes, and of variables computed from them."""
        gone = {outcome.unobserved for outcome in self.outcomes}
        return [v.name for v in self.written.unobserved_RVs if not gone.isdisjoint(ancestors([v]))]

    def is_of_rows(self, name: str) -> bool:
        """Whether a deterministic has an element for each row, including missing rows."""
        return _is_of_rows(self.written, self.written[name], self.outcomes)


class _NotSeparate(Exception):
    """Raised with the reason why missing outcomes stay in the model."""


@contextmanager
def _taken_apart() -> Iterator[None]:
    """Raise an error that rows are interdependent if expressions of some rows cannot be built."""
    try:
        yield
    except ParameterValueError:  # concerns this point only
        raise
    except (ValueError, IndexError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise _NotSeparate(f"its rows cannot be taken apart ({reason}).") from error


@quick_graphs()
def missing_outcomes(model: pm.Model, needed: Collection[str] = ()) -> MissingOutcomes | None:
    """Find missing outcomes on which nothing else depends, or return None if there are none.

    A message names the missing values that stay in the model, with the reason. ``needed`` has names
    of variables that have to stay.
    """
    if has_named_dims(model):
        return None
    outcomes = []
    for unobserved in _unobserved(model):
        name = unobserved.name.removesuffix("_unobserved")
        try:
            outcomes.append(_missing_outcome(model, name))
        except _NotSeparate as reason:
            _log.info(f"The missing values of '{name}' stay parameters: {reason}")
    if not outcomes:
        return None
    sampled = _sampled(model, outcomes, needed)
    if any(name not in sampled.named_vars for name in needed):
        return None
    return MissingOutcomes(model, sampled, outcomes)


def of_observed_rows(model: pm.Model) -> pm.Model:
    """Return the model without missing outcomes, or itself if there are none to leave out."""
    found = missing_outcomes(model)
    return model if found is None else found.sampled


def _unobserved(model: pm.Model) -> Iterator[Variable]:
    """Yield the missing parts of outcomes of which PyMC has made two variables."""
    for rv in model.observed_RVs:
        name = rv.name.removesuffix("_observed")
        unobserved = model.named_vars.get(f"{name}_unobserved")
        if unobserved in model.free_RVs and model.named_vars.get(name) in model.deterministics:
            yield unobserved


def _missing_outcome(model: pm.Model, name: str) -> MissingOutcome:
    observed, unobserved = model[f"{name}_observed"], model[f"{name}_unobserved"]
    for v in [*model.basic_RVs, *model.potentials]:
        if v not in (observed, unobserved) and unobserved in ancestors([v]):
            raise _NotSeparate(f"'{v.name}' depends on them.")
    is_observed = _is_observed(model[name], observed)
    if is_observed is None:
        raise _NotSeparate("PyMC does not say which elements they are.")
    whole = _of_all_rows(observed, is_observed)
    if batch_ndim(whole) < 1:
        raise _NotSeparate("one draw of its distribution spans the rows.")
    n_rows = len(is_observed)
    row_axis = RowAxis(_dim_of_rows(model, name, whole, n_rows), n_rows, {})
    [values] = evaluate(model.rvs_to_values[observed])
    of_row = is_observed.reshape(n_rows, -1)

    def divided(rv: Variable, is_observed: np.ndarray) -> tuple[Variable, Variable]:
        shape = rv.type.shape[1 : batch_ndim(rv)]
        with _taken_apart():
            kept, missing = (
                of_some_rows(model, rv, row_axis, np.flatnonzero(chosen), shape)
                for chosen in (is_observed, ~is_observed)
            )
        return kept, missing

    if np.all(of_row == of_row[:, :1]):
        variable, missing = divided(whole, of_row[:, 0])
        variable.name = observed.name
        if values.ndim < variable.ndim:  # PyMC lists the elements of a table
            values, missing = values.reshape(-1, *is_observed.shape[1:]), missing.flatten()
        kept = [Kept(variable, values)]
    else:
        kept, parts = [], pt.zeros(is_observed.shape, dtype=unobserved.dtype)
        table = np.zeros(is_observed.shape, dtype=values.dtype)
        table[is_observed] = values
        for k, column in enumerate(_columns(whole)):
            variable, drawn = divided(column, is_observed[:, k])
            variable.name = f"{observed.name}[{k}]"
            if is_observed[:, k].any():
                kept.append(Kept(variable, table[is_observed[:, k], k]))
            parts = parts[np.flatnonzero(~is_observed[:, k]), k].set(drawn)
        missing = parts[np.nonzero(~is_observed)]
    outcome = MissingOutcome(name, row_axis, observed, unobserved, kept, missing)
    _check(model, outcome)
    return outcome


def _columns(table: Variable) -> Iterator[Variable]:
    """Yield the columns of a table of separate draws."""
    op, node = table.owner.op, table.owner
    if batch_ndim(table) < table.ndim:
        raise _NotSeparate("some rows are partly missing, and one draw spans a row.")
    n_rows, n_columns = table.type.shape if table.ndim == 2 else (None, None)
    if not isinstance(op, RandomVariable) or n_columns is None or n_columns > MOST_COLUMNS:
        raise _NotSeparate(
            "some rows of the table are partly missing. Write it in long form, with a row for "
            "each element."
        )
    parameters = op.dist_params(node)
    for k in range(n_columns):
        own = (p[:, 0 if p.type.broadcastable[1] else k] for p in parameters)
        yield op.make_node(op.rng_param(node), (n_rows,), *own).outputs[1]


def _is_observed(joined: Variable, observed: Variable) -> np.ndarray | None:
    """Return the flags with which PyMC writes the observed elements into an outcome."""
    for v in ancestors([joined]):
        node = v.owner
        if node is not None and isinstance(node.op, AdvancedIncSubtensor):
            _, values, *flags = node.inputs
            if values is observed and len(flags) == 1 and isinstance(flags[0], Constant):
                return np.asarray(flags[0].data, dtype=bool)
    return None


def _of_all_rows(observed: Variable, is_observed: np.ndarray) -> Variable:
    """Return the random variable of all rows from which PyMC has taken the observed elements."""
    node = observed.owner
    if isinstance(node.op, PartialObservedRV):
        return node.inputs[0]
    if not isinstance(node.op, RandomVariable):
        raise _NotSeparate("its distribution is not known.")
    op, size = node.op, is_observed.shape
    parameters = [_of_all(p) for p in op.dist_params(node)]
    return op.make_node(op.rng_param(node), size, *parameters).outputs[1]


def _of_all(parameter: Variable) -> Variable:
    """Undo PyMC's choice of observed elements."""
    node = parameter.owner
    if node is not None and isinstance(node.op, AdvancedSubtensor):
        array, *indices = node.inputs
        if any(isinstance(v, Constant) and v.dtype == "bool" for v in ancestors(indices)):
            return array
    return parameter


def _dim_of_rows(model: pm.Model, name: str, whole: Variable, length: int) -> str | None:
    """Return the name of the dim of the rows: the outcome's own, or that of data of its length."""
    own = dims_of(model, model[name])[0]
    if own is not None:
        return own
    names = {
        dim
        for array in arrays_of(model, whole)
        for dim, n in zip(dims_of(model, array), array_value(array).shape, strict=True)
        if dim is not None and n == length
    }
    return names.pop() if len(names) == 1 else None


def _check(model: pm.Model, outcome: MissingOutcome) -> None:
    """Raise an error unless the kept rows have the model's likelihood, and others can be drawn."""
    start = model.initial_point()
    free = dict(zip(model.free_RVs, model.replace_rvs_by_values(model.free_RVs), strict=True))
    *kept, missing = substitute([*(v for v, _ in outcome.kept), outcome.missing], free)
    [of_all] = model.logp(vars=[outcome.observed], sum=False)
    with _taken_apart():
        both = zip(kept, outcome.kept, strict=True)
        of_kept = sum_of([pm.logp(v, own.values) for v, own in both])
    rng = np.random.default_rng(20240)
    with without_code(), np.errstate(all="ignore"):
        functions = [total_of(model.value_vars, term) for term in (of_kept, of_all)]
        for distance in (*DISTANCES, 0.0):
            point = near(start, model.value_vars, rng, distance)
            try:
                with _taken_apart():
                    ours, theirs = (float(function(*point)) for function in functions)
            except ParameterValueError:
                continue
            if np.isfinite([ours, theirs]).all():
                break
        else:
            raise _NotSeparate("its likelihood is not finite near the initial point.")
        if not np.isclose(ours, theirs, rtol=1e-4 if of_all.dtype == "float32" else 1e-8):
            raise _NotSeparate("its rows cannot be taken apart.")
        try:
            total_of(model.value_vars, missing)(*point)
        except NotImplementedError as error:
            raise _NotSeparate("no values can be drawn from its distribution.") from error


def _sampled(model: pm.Model, outcomes: list[MissingOutcome], needed: Collection[str]) -> pm.Model:
    """Return the model without missing outcomes, what depends on them, and values of its rows."""
    gone = {outcome.unobserved for outcome in outcomes}
    observed = {outcome.observed: outcome.kept for outcome in outcomes}
    kept: dict[Variable, Variable] = {}
    for name, v in model.named_vars.items():
        of_rows = v in model.deterministics and _is_of_rows(model, v, outcomes)
        if (
            v not in observed
            and gone.isdisjoint(ancestors([v]))
            and (name in needed or not of_rows)
        ):
            kept[v] = v
    sampled = model_of(
        model, kept, {v: model.rvs_to_values[v] for v in model.basic_RVs if v in kept}
    )
    for rv in model.observed_RVs:
        for variable, values in observed.get(rv, ()):
            sampled.observed_RVs.append(variable)
            sampled.add_named_variable(variable)
            sampled.create_value_var(
                variable, default_transform=None, transform=None, value_var=pt.constant(values)
            )
    return sampled


def _is_of_rows(model: pm.Model, v: Variable, outcomes: list[MissingOutcome]) -> bool:
    dims = dims_of(model, v)
    for row_axis in (outcome.row_axis for outcome in outcomes):
        if row_axis.name is not None and row_axis.name in dims:
            return True
        both = zip(dims, v.type.shape, strict=True)
        if any(dim is None and n == row_axis.length for dim, n in both):
            return True
    return False
