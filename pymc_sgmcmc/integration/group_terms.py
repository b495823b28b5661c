"""Which effects of groups can be integrated out, and the terms of the model by group."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.transforms import log
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import LogNormalRV, MvNormalRV, NormalRV
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.batches.data_sources import ArraySource
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.gradients.arrays import Array, has_named_dims
from pymc_sgmcmc.gradients.batch_check import check_terms
from pymc_sgmcmc.gradients.batch_terms import BatchModel, batched_terms
from pymc_sgmcmc.gradients.differentiate import NO_SECOND, with_second_derivatives
from pymc_sgmcmc.gradients.group_sizes import RowGroups
from pymc_sgmcmc.gradients.local_check import check_local
from pymc_sgmcmc.gradients.local_model import Column, LocalModel, LocalVariable, NotLocal
from pymc_sgmcmc.gradients.local_variables import LocalTerms
from pymc_sgmcmc.gradients.model_gradient import shapes_of
from pymc_sgmcmc.gradients.placeholders import check_covered, filled, fitted_to
from pymc_sgmcmc.gradients.rows_in_batches import RowAxis, find_row_axes, find_row_axis
from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.integration.joined_groups import Rows, indices_of_most_groups, joined_by_group

type Integrate = Literal["auto"] | Sequence[str] | None

MOST_EFFECTS = 30
"""Largest number of effects per group."""
ROWS_CHECKED = 32
"""Number of rows whose densities are compared with the model's."""


class NotIntegrated(Exception):
    """Raised with the reason why no effects are integrated out."""


class Effect(NamedTuple):
    """A variable with an element, or several, for each group."""

    value: TensorVariable
    axis: int
    """The axis of groups of the variable."""
    slots: TensorVariable
    """Placeholder that has the groups of a batch along ``axis``."""
    shape: tuple[int, ...]
    """Shape of one group's elements."""

    @property
    def size(self) -> int:
        """Number of elements of one group."""
        return int(np.prod(self.shape))


@dataclass(frozen=True)
class GroupTerms:
    """log p(y_j, a_j | shared) of groups j, as expressions of placeholders."""

    model: pm.Model
    effects: list[Effect]
    n_groups: int
    group_of_row: np.ndarray
    groups: TensorVariable
    """Numbers of a batch's groups, shape (groups,)."""
    rows: TensorVariable
    """Numbers of the batch's rows, group by group."""
    places: TensorVariable
    """The place of each row's group in ``groups``."""
    arrays: dict[Array, TensorVariable]
    """Data of all rows, with their placeholders."""
    priors: list[TensorVariable]
    """Log priors of the effects, shape (groups,)."""
    likelihoods: list[TensorVariable]
    """Log likelihoods of the rows, shape (rows,)."""
    variables: list[Variable]
    """The observed variables and potentials that run along the rows."""
    lengths: tuple[int, ...]
    """Number of rows of each likelihood, of which ``group_of_row`` has all."""
    of_rows: bool
    """Whether the groups are rows themselves, each with its own effects."""

    @property
    def k(self) -> int:
        """Number of effects of a group."""
        return sum(effect.size for effect in self.effects)

    @property
    def names(self) -> list[str]:
        """Names of the effects."""
        return [self.model.values_to_rvs[e.value].name for e in self.effects]

    @property
    def values(self) -> list[TensorVariable]:
        """The effects' value variables."""
        return [effect.value for effect in self.effects]

    @property
    def are_normal(self) -> bool:
        """Whether the effects have separate priors that are normal on the sampled scale."""
        effects = [self.model.values_to_rvs[value] for value in self.values]
        return all(self._is_normal(rv) for rv in effects) and not any(
            other in ancestors(rv.owner.inputs) for rv in effects for other in effects
        )

    def _is_normal(self, rv: TensorVariable) -> bool:
        op, transform = rv.owner.op, self.model.rvs_to_transforms[rv]
        is_normal = isinstance(op, NormalRV | MvNormalRV) and transform is None
        return is_normal or (isinstance(op, LogNormalRV) and transform is log)

    def split(self, a: TensorVariable) -> list[TensorVariable]:
        """Cut effects of shape (..., groups, k) into arrays like the variables' slots.

        The dims before the groups stay in front.
        """
        parts, first, before = [], 0, a.ndim - 2
        for effect in self.effects:
            part = a[..., first : first + effect.size]
            part = part.reshape((*(part.shape[i] for i in range(a.ndim - 1)), *effect.shape))
            parts.append(pt.moveaxis(part, before, before + effect.axis))
            first += effect.size
        return parts

    def log_joint(self, a: TensorVariable, placeholders: dict) -> TensorVariable:
        """Return log p(y_j, a_j | shared), shape (groups,), for effects of shape (groups, k)."""
        slots = {e.slots: part for e, part in zip(self.effects, self.split(a), strict=True)}
        *priors, rows = substitute([*self.priors, self._all_rows], {**placeholders, **slots})
        total = pt.zeros(a.shape[:1], dtype=a.dtype)
        total = total[placeholders[self.places]].inc(rows.astype(a.dtype))
        return total + pt.add(*priors).astype(a.dtype)

    def derivatives(self, a: TensorVariable, placeholders: dict) -> list[TensorVariable]:
        """Return the same with gradient and Hessian, shapes (groups, k) and (groups, k, k)."""
        h = self.log_joint(a, placeholders)
        gradient = pt.grad(h.sum(), a)
        hessian = [pt.grad(gradient[:, i].sum(), a) for i in range(self.k)]
        return [h, gradient, pt.stack(hessian, axis=1)]

    def log_joint_at_points(
        self, a: TensorVariable, placeholders: dict, counted: TensorVariable | None = None
    ) -> TensorVariable:
        """Return `log_joint`, shape (points, groups), for effects of shape (points, groups, k).

        ``counted``, shape (groups, rows of each), tells which rows count of groups with equal
        numbers of rows; by default all count, of groups with any numbers.
        """
        all_rows = self._all_rows
        if counted is not None:
            all_rows = self._with_repeats(all_rows, counted.type.shape[1])
        *priors, rows = substitute([*self.priors, all_rows], placeholders)
        many = dict(zip([e.slots for e in self.effects], self.split(a), strict=True))
        *priors, rows = vectorize_graph([*priors, rows], many)
        if counted is None:
            total = pt.zeros(a.shape[:2], dtype=a.dtype)
            total = total[:, placeholders[self.places]].inc(rows.astype(a.dtype))
        else:
            rows = rows.reshape((a.shape[0], counted.shape[0], counted.shape[1]))
            total = pt.switch(counted, rows.astype(a.dtype), 0).sum(axis=-1)
        return total + pt.add(*priors).astype(a.dtype)

    def gradients_at_points(
        self, a: TensorVariable, placeholders: dict, counted: TensorVariable | None = None
    ) -> TensorVariable:
        """Gradients of `log_joint_at_points` in the effects, shape (points, groups, k)."""
        return pt.grad(self.log_joint_at_points(a, placeholders, counted).sum(), a)

    def prior_derivatives(
        self, a: TensorVariable, placeholders: dict
    ) -> tuple[TensorVariable, TensorVariable]:
        """Gradient and Hessian of log p(a_j | shared), shapes (groups, k) and (groups, k, k).

        Normal priors have linear gradients, whose differences give the Hessian more cheaply than
        second derivatives.
        """
        around = pt.concatenate([a[None], a + pt.eye(self.k, dtype=a.dtype)[:, None]])
        priors = substitute(self.priors, placeholders)
        slots = [effect.slots for effect in self.effects]
        priors = vectorize_graph(priors, dict(zip(slots, self.split(around), strict=True)))
        gradients = pt.grad(pt.add(*priors).sum(), around)
        return gradients[0], (gradients[1:] - gradients[0]).dimshuffle(1, 0, 2)

    def _with_repeats(self, rows: TensorVariable, n: int) -> TensorVariable:
        """Repeat what rows look up by ``places``, n times for each group.

        For all points it is far cheaper on JAX.
        """
        repeats = {}
        for looked_up in ancestors([rows]):
            node = looked_up.owner
            if node is not None and isinstance(node.op, AdvancedSubtensor):
                of_groups, *index = node.inputs
                if node.op.idx_list == (0,) and index == [self.places]:
                    each = of_groups[:, None] * np.ones((1, n, *[1] * (of_groups.ndim - 1)))
                    repeats[looked_up] = pt.join_dims(each.astype(looked_up.dtype), 0, 2)
        return substitute([rows], repeats)[0]

    @property
    def _all_rows(self) -> TensorVariable:
        return pt.add(*self.likelihoods) if len(self.likelihoods) > 1 else self.likelihoods[0]


def _of_each(logp: TensorVariable, axis: int) -> TensorVariable:
    return logp.sum(axis=[a for a in range(logp.ndim) if a != axis])


def group_terms(
    model: pm.Model,
    wanted: Literal["auto"] | Sequence[str] = "auto",
    data: StreamedData | None = None,
    of_rows: Collection[Variable] = (),
    check: bool = True,
) -> GroupTerms:
    """Find the effects to integrate out, and write the model group by group.

    Of the indices of rows into free variables, the one with the most groups is used; variables with
    elements of other groups remain to be sampled. ``wanted`` are the names of the effects or
    "auto"; ``data`` are memory-mapped rows for which the model has placeholders; ``of_rows`` are
    the random variables with an element for each row. ``check`` compares the densities of some
    groups with those of the model. Raises `NotIntegrated` with the reason.
    """
    if has_named_dims(model):
        raise NotIntegrated("effects of pymc.dims are sampled")
    vars = model.value_vars
    shapes = dict(zip(vars, shapes_of(model, vars), strict=True))
    data = None if data is None else fitted_to(model, data)
    with filled(model, data):
        rows = _rows(model, shapes, wanted, of_rows, data, check and data is None)
    if data is not None:
        columns = _mapped(data)
        arrays = {columns[str(array.name)]: whole for array, whole in rows.arrays.items()}
        rows = rows._replace(arrays=arrays, lengths=(data.n_rows,))
    along = [term.variable for term in rows.terms]
    rest = [v for v in [*model.observed_RVs, *model.potentials] if v not in along]

    groups = RowGroups(rows.index, rows.arrays, rows.n_rows)
    builder = LocalTerms(model, shapes, rows.terms, rest, rows.index, 1, groups, "rows")
    column, found = _effects(builder, wanted)
    group_of_row = groups.of(column.index) % column.n_groups
    try:
        local = {v.value: v for v in found}
        builder.shared(local)
        priors = [builder.prior(v, local) for v in found]
        logps = builder.rows_of(local)
        if check:
            of_groups = LocalModel(found, pt.zeros(()), priors, logps, builder.row_axes, None, [])
            _check(rows, of_groups, group_of_row, model)
    except NotLocal as error:
        names = ", ".join(f"'{model.values_to_rvs[v].name}'" for v in error.values)
        raise NotIntegrated(f"{names}: {error}") from error
    effects = []
    for v in found:
        shape = tuple(n for axis, n in enumerate(shapes[v.value]) if axis != v.axis)
        effects.append(Effect(v.value, v.axis, v.slots, shape))
    likelihoods = [_of_each(logp, t.axis) for logp, t in zip(logps, rows.terms, strict=True)]
    expressions = with_second_derivatives([*priors, *likelihoods])
    terms = GroupTerms(
        model,
        effects,
        column.n_groups,
        group_of_row,
        column.groups,
        rows.index,
        column.places,
        rows.arrays,
        expressions[: len(priors)],
        expressions[len(priors) :],
        along,
        rows.lengths,
        bool(of_rows),
    )
    if check:
        _check_second_derivatives(terms)
    return terms


def _check_second_derivatives(terms: GroupTerms) -> None:
    """Raise `NotIntegrated` if Newton's steps to the groups' modes cannot be made."""
    a = pt.matrix("effects")
    try:
        gradient = pt.grad(terms.log_joint(a, {terms.places: terms.places}).sum(), a)
        pt.grad(gradient.sum(), a)
    except NO_SECOND as error:
        names = ", ".join(f"'{name}'" for name in terms.names)
        raise NotIntegrated(f"PyTensor has no second derivatives for {names}") from error


def _rows(
    model: pm.Model,
    shapes: Mapping[TensorVariable, tuple[int, ...]],
    wanted: Literal["auto"] | Sequence[str],
    of_rows: Collection[Variable],
    data: StreamedData | None,
    check: bool,
) -> Rows:
    """Return the rows of all likelihoods that look up the effects.

    Likelihoods with few rows of their own need not look them up: every update evaluates them.
    """

    def part_of(row_axis: RowAxis) -> BatchModel:
        part = batched_terms(model, row_axis, pt.lvector("rows"), data=data).simplified()
        if data is not None:
            check_covered(part.sliced, data)
        if check:
            start = model.initial_point()
            check_terms(model, part.terms, part.arrays, part.index, row_axis, start)
        return part

    try:
        if data is not None:
            return Rows.of(part_of(find_row_axis(model, None, of_rows)))
        parts = [part_of(row_axis) for row_axis in find_row_axes(model, None, of_rows)]
    except ValueError as error:
        raise NotIntegrated(str(error)) from error
    needed = len(parts)
    for row_axis in find_row_axes(model, None, of_rows, few=True)[needed:]:
        with suppress(ValueError):
            parts.append(part_of(row_axis))
    if len(parts) == 1:
        return Rows.of(parts[0])
    chosen = [rv.name for rv in model.free_RVs] if wanted == "auto" else wanted
    indices = indices_of_most_groups(model, shapes, parts, chosen)
    for part, of_part in zip(parts[:needed], indices, strict=False):
        if not of_part:
            names = ", ".join(f"'{term.name}'" for term in part.terms)
            raise NotIntegrated(f"there are rows of {names}, which do not look up the effects")
    if any(len(of_part) > 1 for of_part in indices):
        raise NotIntegrated("rows of different kinds look up effects by several indices")
    both = [(part, *index) for part, index in zip(parts, indices, strict=True) if index]
    return joined_by_group(*zip(*both, strict=True)) if len(both) > 1 else Rows.of(both[0][0])


def _check(
    rows: Rows,
    of_groups: LocalModel,
    group_of_row: np.ndarray,
    model: pm.Model,
) -> None:
    """Raise `NotLocal` unless rows depend only on their own groups' effects.

    The batch has rows of some of the groups, not of all: running sums over groups would pass.
    """
    start, rng = model.initial_point(), np.random.default_rng(0)
    with_rows = np.unique(group_of_row)
    some = rng.choice(with_rows, min(ROWS_CHECKED, (len(with_rows) + 1) // 2), replace=False)
    theirs = np.flatnonzero(np.isin(group_of_row, some))
    batch = rng.choice(theirs, min(ROWS_CHECKED, len(theirs)), replace=False)
    numbers, data = rows.taken(batch)
    groups = {of_groups.columns[0].index: group_of_row[batch]}
    check_local(model, of_groups, rows.terms, data, rows.index, numbers, groups, start)


def _mapped(data: StreamedData) -> dict[str, SharedVariable]:
    """Return the columns of a stream as arrays, of which the system reads only the needed pages.

    They keep the source's type: whatever reads their rows converts these to ``data.formats``.
    """
    columns = {}
    for source in data.sources:
        for name in source.names:
            array = source.in_memory if isinstance(source, ArraySource) else None
            if array is None or not array.dtype.isnative:
                raise NotIntegrated(
                    f"data['{name}'] is not an array in memory or mapped to it, in this machine's "
                    "order of bytes: store it with np.save, and open it with "
                    "np.load(..., mmap_mode='r')"
                )
            data.formats[name].check(name, array)
            columns[name] = pytensor.shared(array, name, borrow=True, shape=(None,) * array.ndim)
    return columns


def _effects(
    builder: LocalTerms, wanted: Literal["auto"] | Sequence[str]
) -> tuple[Column, list[LocalVariable]]:
    """Return the index with the most groups and the variables that have elements for them."""
    model, reasons = builder.model, {}
    of_column: dict[tuple, list[LocalVariable]] = {}
    for value in sorted(builder.shapes, key=builder.is_looked_up, reverse=True):
        rv = model.values_to_rvs[value]
        if wanted != "auto" and rv.name not in wanted:
            continue
        if np.issubdtype(np.dtype(value.dtype), np.integer):
            reasons[rv.name] = "its values are whole numbers"
            continue
        try:
            candidate = builder.candidate(value)
        except NotLocal as error:
            reasons[rv.name] = str(error)
            continue
        key = candidate.column.index, candidate.column.n_groups
        of_column.setdefault(key, []).append(candidate)
    if not of_column:
        raise NotIntegrated("; ".join(f"'{n}': {r}" for n, r in reasons.items()) or "no effects")
    index, n_groups = max(of_column, key=lambda key: key[1])
    slots = min(ROWS_CHECKED, n_groups)
    groups, places = pt.lvectors("groups", "places")
    column = Column(index, n_groups, slots, groups, places, pt.vector("w"))
    variables = []
    for v in of_column[index, n_groups]:
        shape = list(builder.shapes[v.value])
        shape[v.axis] = None
        slots = TensorType(v.value.dtype, tuple(shape))(v.value.name)
        variables.append(LocalVariable(v.value, column, v.axis, slots))
    chosen = [model.values_to_rvs[v.value].name for v in variables]
    if wanted != "auto" and (left := [name for name in wanted if name not in chosen]):
        of_others = f"its groups are not those of '{chosen[0]}'"
        raise NotIntegrated("; ".join(f"'{name}': {reasons.get(name, of_others)}" for name in left))
    k = sum(int(np.prod(builder.shapes[v.value])) // n_groups for v in variables)
    if k > MOST_EFFECTS:
        raise NotIntegrated(f"each group has {k} effects, more than {MOST_EFFECTS}")
    return column, variables
