r"""Gradients of a batch for the groups that it touches, and for what all rows share.

For a batch of n of the N rows, with m_j of the n_j rows of group j, the gradient of a local
variable of group j is::

    g_j = grad log p(alpha_j | shared) + n_j / m_j sum_{i in batch, of j} grad log p(y_i | ...)

the prior in full, since alpha_j moves only when it is touched. That of the shared variables is::

    g = grad log p(shared) + N/n sum_{i in batch} (grad log p(y_i | ...)
                                                   + 1 / n_{j(i)} grad log p(alpha_{j(i)} | shared))

The prior of a group is spread over its rows, so both sums are unbiased. Groups without rows do not
contribute: given the shared variables, they have their prior's distribution.

In batches of whole groups each row has a weight u_i, by which its log likelihood and its share of
the groups' prior are multiplied, and n_j / m_j is n_j / (m_j u_i); see `batches.whole_groups`.
"""

from dataclasses import dataclass, field, fields, replace

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.batches.touched import GroupsOfRows
from pymc_sgmcmc.batches.whole_groups import WholeGroups, coarsest, groups_around
from pymc_sgmcmc.gradients.arrays import sum_of, weighted
from pymc_sgmcmc.gradients.differentiate import before_gradients, gradients_of, tidy
from pymc_sgmcmc.gradients.group_sizes import GroupsOfData
from pymc_sgmcmc.gradients.local_model import Column, LocalModel, LocalVariable
from pymc_sgmcmc.gradients.source import GradientSource
from pymc_sgmcmc.local_slots import Touched


@dataclass(frozen=True)
class LocalSource(GradientSource):
    """A source of batches of rows in which some variables are local to groups of rows.

    The inherited part is the same model with all groups, with which data and starts are checked. An
    evaluation uses ``of_batch``, in which a local variable has only the groups in the slots.
    """

    variables: list[LocalVariable] = field(kw_only=True)
    columns: list[Column] = field(kw_only=True)
    row_weights: TensorVariable | None = field(kw_only=True)
    sizes: list[np.ndarray] = field(kw_only=True)
    """Number of rows of each group, for each column, counted when the step was made."""
    of_batch: GradientSource = field(kw_only=True)

    def tables(self, rows):
        """Return no tables, because row numbers are needed to know the groups."""
        return []

    @property
    def local_variables(self):
        return self.variables

    @property
    def has_whole_groups(self):
        return self.row_weights is not None

    @property
    def batch_types(self):
        [rows] = self.rows
        types = super().batch_types
        for column in self.columns:
            of_slots = (column.slots, column.weights.dtype)
            types += [(column.slots, "int64"), (rows.batch_size, "int64"), of_slots]
        weights = self.row_weights
        return types if weights is None else [*types, (rows.batch_size, weights.dtype)]

    def touched(self, batch):
        of_column = {
            column: (batch[1 + 3 * k], batch[3 + 3 * k]) for k, column in enumerate(self.columns)
        }
        of = {v.value: v for v in self.variables}
        return [
            Touched(*of_column[of[v].column], of[v].axis) if v in of else None for v in self.vars
        ]

    def at(self, theta, rows, constants, state, stream):
        of_columns = [x for c in self.columns for x in (c.groups, c.places, c.weights)]
        of_rows = [] if self.row_weights is None else [self.row_weights]
        inputs = [*self.of_batch.vars, self.rows[0].index, *of_columns, *of_rows, *self.constants]
        values = dict(zip(inputs, [*theta, *rows, *constants], strict=True))
        return self.of_batch._evaluate(values, state={}, diagnostics=[])

    def with_prior_draws(self, theta, constants, stream):
        values = dict(zip(self.vars, theta, strict=True))
        data = dict(zip(self.constants, constants, strict=True))
        for draw in (v.prior_draw for v in self.variables):
            if draw is not None:
                values[draw.value] = draw.into(values[draw.value], {**data, **values}, stream)
        return [values[v] for v in self.vars]

    def streamed_groups(self):
        if self.streamed is None:
            return None
        groups = self._groups_of_data()

        def of_rows(rows):
            found = zip(groups.of_streamed(rows), self.columns, strict=True)
            return [index % column.n_groups for index, column in found]

        return of_rows

    def _groups_of_data(self):
        indices = [column.index for column in self.columns]
        return GroupsOfData(self.rows[0].index, dict(self.data), indices)

    def groups_of_rows(self):
        [rows] = self.rows
        if self.streamed is not None:
            return [
                GroupsOfRows(np.empty(0), sizes, c.slots, c.weights.dtype)
                for sizes, c in zip(self.sizes, self.columns, strict=True)
            ]
        found = self._groups_of_data()(rows.n_rows, {})
        groups = [  # a negative index counts from the end, as in the model
            GroupsOfRows.of(
                index.astype(np.int64) % c.n_groups, c.n_groups, c.slots, c.weights.dtype
            )
            for index, c in zip(found, self.columns, strict=True)
        ]
        self._check_empty(dict(zip(self.columns, groups, strict=True)))
        return groups

    def whole_groups(self, groups_of_rows):
        if self.row_weights is None:
            return None
        k = coarsest([groups.group_of_row for groups in groups_of_rows])
        if k is None:
            raise ValueError(
                "Batches of whole groups need nested groups, and in the current data they are "
                "crossed. Make a new step with batches='rows'."
            )
        around = {
            i: groups_around(each.group_of_row, groups_of_rows[k].group_of_row, len(each.sizes))
            for i, each in enumerate(groups_of_rows)
            if i != k
        }
        return WholeGroups(groups_of_rows[k], self.rows[0].batch_size, around)

    def _check_empty(self, groups: dict[Column, GroupsOfRows]) -> None:
        """Raise an error if other groups are without rows than when the step was made."""
        for v in self.variables:
            now = np.flatnonzero(groups[v.column].sizes == 0)
            then = np.empty(0) if v.prior_draw is None else v.prior_draw.groups.numbers.data
            if not np.array_equal(now, then):
                raise ValueError(
                    f"{len(now)} groups of '{v.value.name}' have no rows in the current data; "
                    f"{len(then)}, or others, had none when the step was made. Make a new step."
                )


def local_source(source: GradientSource, local: LocalModel) -> LocalSource:
    """Make the source for the groups that a batch touches.

    ``source`` is the same model with all groups, for batches of rows, and ``local`` has the data as
    explicit inputs.
    """
    columns = list(dict.fromkeys(v.column for v in local.variables))
    of = {v.value: v for v in local.variables}
    vars = [of[v].slots if v in of else v for v in source.vars]
    shared = [v for v in source.vars if v not in of]
    [rows] = source.rows
    used = {c: pt.gt(c.weights, 0) for c in columns}
    each = local.rows
    if local.row_weights is not None:
        each = [
            weighted(row, axis, local.row_weights)
            for row, axis in zip(local.rows, local.row_axes, strict=True)
        ]
    own, spread = [], []
    for v, prior in zip(local.variables, local.priors, strict=True):
        weights, prior = v.column.weights, pt.switch(used[v.column], prior, 0)
        own.append(prior)
        spread.append(prior * pt.switch(used[v.column], rows.scale / weights, 0))
    log_prior = local.shared_prior + sum_of(spread)
    own, log_prior, of_rows = before_gradients([sum_of(own), log_prior, sum_of(each)])
    slots = [v.slots for v in local.variables]
    prior = dict(zip(shared, gradients_of(log_prior, shared), strict=True))
    prior |= dict(zip(slots, gradients_of(own, slots), strict=True))
    likelihood = dict(zip(vars, tidy(gradients_of(of_rows, vars)), strict=True))
    for v in shared:
        likelihood[v] = rows.scale * likelihood[v]
    for v in local.variables:
        others = [a for a in range(v.slots.ndim) if a != v.axis]
        likelihood[v.slots] = pt.expand_dims(v.column.weights, others) * likelihood[v.slots]
    source = replace(source, data=[*source.data, *local.empty.items()])
    of_batch = replace(
        source,
        vars=vars,
        shapes=[
            v.type.shape if v in slots else s for v, s in zip(vars, source.shapes, strict=True)
        ],
        log_prior=log_prior,
        log_likelihood=rows.scale * of_rows,
        prior=[prior[v] for v in vars],
        likelihood=[likelihood[v] for v in vars],
    )
    own_fields = {f.name: getattr(source, f.name) for f in fields(source)}
    return LocalSource(
        **own_fields,
        variables=local.variables,
        columns=columns,
        row_weights=local.row_weights,
        sizes=local.sizes,
        of_batch=of_batch,
    )
