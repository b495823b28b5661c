"""One numbering, and one index of groups, for the rows of several likelihoods.

In a hurdle model or a joint model of visits and survival, rows of several kinds look up the same
effects. A group then has rows of all kinds, and its density is the product of theirs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.arrays import Array, array_value
from pymc_sgmcmc.gradients.batch_terms import BatchModel, Term
from pymc_sgmcmc.gradients.common_row_numbers import joined_terms
from pymc_sgmcmc.gradients.group_sizes import RowGroups
from pymc_sgmcmc.gradients.local_model import NotLocal
from pymc_sgmcmc.gradients.local_variables import LocalTerms


class Rows(NamedTuple):
    """Rows with their log likelihoods, of one likelihood or of several."""

    terms: list[Term]
    arrays: dict[Array, TensorVariable]
    """Data of all rows, with their placeholders in the terms."""
    index: TensorVariable
    """Numbers of rows."""
    lengths: tuple[int, ...]
    """Number of rows of each likelihood."""
    axes: tuple[int, ...] | None
    """Each array's axis of rows, or None if arrays have the rows of some likelihoods only."""

    @classmethod
    def of(cls, part: BatchModel) -> "Rows":
        """Return the rows of one likelihood, or of several with the same rows."""
        axes = tuple(axis for _, axis in part.axes)
        n_rows = array_value(part.axes[0][0]).shape[axes[0]]
        return cls(part.terms, part.arrays, part.index, (n_rows,), axes)

    @property
    def n_rows(self) -> int:
        """Number of all rows."""
        return sum(self.lengths)

    def taken(self, batch: np.ndarray) -> tuple[np.ndarray, dict[TensorVariable, np.ndarray]]:
        """Return numbers and values, for ``index`` and the placeholders, that give a batch."""
        values = {whole: array_value(array) for array, whole in self.arrays.items()}
        if self.axes is None:
            return batch, {whole: value.astype(whole.dtype) for whole, value in values.items()}
        some = {
            whole: np.take(value, batch, axis).astype(whole.dtype)
            for (whole, value), axis in zip(values.items(), self.axes, strict=True)
        }
        return np.arange(len(batch)), some


def joined_by_group(parts: Sequence[BatchModel], indices: Sequence[TensorVariable]) -> Rows:
    """Number the rows of several likelihoods from first to last, with one index of their groups.

    ``indices`` are the parts' own. A row takes the group of its own likelihood, also where another
    likelihood evaluates it without counting it.
    """
    group, index = pt.lvector("group of row"), pt.lvector("rows")
    every = [Rows.of(part) for part in parts]
    own = [
        RowGroups(rows.index, rows.arrays, rows.n_rows).of(i)
        for rows, i in zip(every, indices, strict=True)
    ]
    looked_up = [
        part._replace(
            terms=[
                replace(term, logp=clone_replace(term.logp, {i: group}, rebuild_strict=False))
                for term in part.terms
            ]
        )
        for part, i in zip(parts, indices, strict=True)
    ]
    terms = joined_terms(looked_up, index)
    of_all = pt.lvector("groups of rows")
    logps = clone_replace([term.logp for term in terms], {group: of_all[index]})
    arrays = {a: whole for rows in reversed(every) for a, whole in rows.arrays.items()}
    arrays[pt.constant(np.concatenate(own))] = of_all
    terms = [replace(term, logp=logp) for term, logp in zip(terms, logps, strict=True)]
    return Rows(terms, arrays, index, tuple(rows.n_rows for rows in every), None)


def indices_of_most_groups(
    model: pm.Model,
    shapes: Mapping[TensorVariable, tuple[int, ...]],
    parts: Sequence[BatchModel],
    names: Collection[str],
) -> list[set[TensorVariable]]:
    """Return each likelihood's indices into the named variables that have the most groups."""
    found: list[set[tuple[int, TensorVariable]]] = []
    for part in parts:
        rows = Rows.of(part)
        groups = RowGroups(rows.index, rows.arrays, rows.n_rows)
        builder = LocalTerms(model, shapes, part.terms, part.rest, part.index, 1, groups, "rows")
        columns = set()
        for value in filter(builder.is_looked_up, shapes):
            if model.values_to_rvs[value].name in names:
                try:
                    column = builder.candidate(value).column
                except NotLocal:
                    continue
                columns.add((column.n_groups, column.index))
        found.append(columns)
    most = max((n for columns in found for n, _ in columns), default=0)
    return [{index for n, index in columns if n == most} for columns in found]
