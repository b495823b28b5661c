"""The model with all rows that corresponds to one written with `pm.Minibatch`."""

from typing import NamedTuple

import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.tensor import NoneConst

from pymc_sgmcmc.gradients.arrays import array_value, evaluate
from pymc_sgmcmc.gradients.pm_minibatch import (
    minibatch_nodes,
    refuse_unscaled,
    uses_minibatch,
    written_in_minibatches,
)
from pymc_sgmcmc.pymc_internals import model_of


class AllRows(NamedTuple):
    """A model with all rows, and the rows per batch for which it was written."""

    model: pm.Model
    batch_size: int


def with_all_rows(model: pm.Model) -> AllRows:
    """Rewrite a model without `pm.Minibatch`, with all rows from which its batches are drawn.

    Values and data are the same, and Deterministics that depend on a batch are left out. The model
    must have one call of `pm.Minibatch`, and the number of rows as ``total_size=``; otherwise an
    error names the variable.
    """
    refuse_unscaled(model)
    for var in [*model.free_RVs, *model.potentials]:
        if uses_minibatch(model, var):
            raise ValueError(
                f"'{var.name}' uses pm.Minibatch and has no total_size=, so its value with all "
                "rows is not known."
            )
    observed = [rv for rv in model.observed_RVs if uses_minibatch(model, rv)]
    values = [model.rvs_to_values[rv] for rv in observed]
    nodes = minibatch_nodes([*observed, *values])
    tables = {
        batch: table
        for node in nodes
        for batch, table in zip(node.outputs[:-1], node.inputs[:-1], strict=True)
    }
    n_rows = _n_rows(observed[0], nodes)
    for rv in observed:
        _check_total_size(rv, n_rows)
    kinds = ("free_RVs", "observed_RVs", "deterministics", "potentials", "data_vars")
    inner = {rv: rv.owner.inputs[0] for rv in observed}
    every = [v for kind in kinds for v in getattr(model, kind)]
    kept = [v for v in every if v in inner or not minibatch_nodes([v])]
    written = [*(inner.get(v, v) for v in kept), *values]
    replaced = clone_replace(written, tables, rebuild_strict=False)
    new = dict(zip(kept, replaced[: len(kept)], strict=True))
    new_values = dict(zip(observed, replaced[len(kept) :], strict=True))

    for old, rv in new.items():
        rv.name = old.name
    values = model.rvs_to_values | new_values
    return AllRows(model_of(model, new, values), nodes[0].outputs[0].type.shape[0])


def model_of_all_rows(model: pm.Model) -> pm.Model:
    """Return a model with all its rows: itself, unless it is written with `pm.Minibatch`."""
    return with_all_rows(model).model if written_in_minibatches(model) else model


def _n_rows(rv: Variable, nodes: list) -> int:
    """Return the number of rows of the tables from which a single call draws."""
    if len({node.inputs[-1] for node in nodes}) > 1:
        raise ValueError(
            f"'{rv.name}' and other variables take their rows from several calls of pm.Minibatch."
        )
    for node in nodes:
        for table in node.inputs[:-1]:
            if not isinstance(table, SharedVariable | Constant):
                raise ValueError(
                    f"'{rv.name}' uses pm.Minibatch of the expression {table}, not of an array."
                )
    return array_value(nodes[0].inputs[0]).shape[0]


def _check_total_size(rv: Variable, n_rows: int) -> None:
    """Raise an error if a term is not scaled to the number of rows, along its first axis."""
    _, total, *others = rv.owner.inputs
    found = int(evaluate(total)[0])
    if found != n_rows or not all(NoneConst.equals(other) for other in others):
        raise ValueError(
            f"'{rv.name}' has total_size={found}, but its pm.Minibatch draws from {n_rows} rows."
        )
