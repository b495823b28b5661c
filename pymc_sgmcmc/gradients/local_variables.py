"""Find the variables that only few rows touch, and write the model for those of a batch alone.

A local variable has an element (or row) for each group, enters the likelihood only through
``alpha[group_of_row]`` or ``f(alpha)[group_of_row]``, and has a prior that is a sum over groups.
Both are rebuilt for the groups that a batch touches, which are in `slots`; `local_check` then
compares the numbers with the model's own.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import TensorType, integer_dtypes
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.batches.whole_groups import coarsest, most_groups
from pymc_sgmcmc.gradients.arrays import array_value, python_function
from pymc_sgmcmc.gradients.differentiate import simplified
from pymc_sgmcmc.gradients.local_model import (
    Column,
    EmptyGroups,
    LocalModel,
    LocalVariable,
    NotLocal,
    PriorDraw,
)
from pymc_sgmcmc.gradients.resize import resized

_log = logging.getLogger("pymc.sgmcmc")

Local = Literal["auto"] | Sequence[str] | None
LEAST_GROUPS = 500
"""Smallest number of groups for which "auto" makes variables local, if a batch has fewer rows than
groups: moving all groups would cost more than the rest of an update, and most would get no gradient
at all."""

GROUPS_PER_BATCH = 4
"""Smallest mean number of groups in a batch of whole groups, so that their noise averages out."""


def n_looked_up(model: pm.Model) -> int:
    """Count the elements of free variables that terms of the likelihood look up by index."""
    arrays = [
        v.owner.inputs[0]
        for v in ancestors([*model.observed_RVs, *model.potentials])
        if v.owner is not None and isinstance(v.owner.op, AdvancedSubtensor)
    ]
    free = model.free_RVs
    within, shapes = set(ancestors(arrays, blockers=free)), model.eval_rv_shapes()
    return sum(int(np.prod(shapes[rv.name])) for rv in free if rv in within)


def elements_per_group(
    variables: Sequence[LocalVariable], shapes: Mapping[TensorVariable, tuple[int, ...]]
) -> int:
    """Return the largest number of elements per group."""
    elements = Counter[Column]()
    for v in variables:
        elements[v.column] += int(np.prod(shapes[v.value])) // v.column.n_groups
    return max(elements.values())


class _Lookup(NamedTuple):
    """An array of groups, and the index of a batch's rows into it."""

    node: Apply
    array: TensorVariable
    index: TensorVariable


def find_local(
    builder: "LocalTerms", wanted: Local, check: Callable[[LocalModel], None]
) -> LocalModel | None:
    """Write the model for the groups that a batch touches, as far as possible.

    With ``wanted="auto"`` variables with many groups are local if that is possible; ``check``
    raises `NotLocal` if a model's numbers differ from the original's.
    """
    model, vars, batches = builder.model, list(builder.shapes), builder.batches
    names = None if wanted == "auto" else _checked_names(model, vars, wanted)
    reasons: dict[str, str] = {}
    candidates = []
    # Variables that rows look up come first, because another variable may be in their prior.
    for value in sorted(vars, key=builder.is_looked_up, reverse=True):
        name = model.values_to_rvs[value].name
        if names is not None and name not in names:
            continue
        try:
            found = builder.candidate(value)
        except NotLocal as error:
            reasons[name] = str(error)
            continue
        n_groups = found.column.n_groups
        if names is None and (n_groups < LEAST_GROUPS or n_groups <= builder.batch_size):
            continue
        candidates.append(found)
    local = None
    while candidates and local is None:
        try:
            local = builder.build(builder.with_slots(candidates))
            check(local)
        except NotLocal as error:
            local = None
            reasons |= {model.values_to_rvs[v].name: str(error) for v in error.values}
            candidates = [c for c in candidates if c.value not in error.values]
    if names is not None and reasons:
        name, reason = next(iter(reasons.items()))
        raise ValueError(
            f"local: '{name}' cannot be local: {reason}. Leave it out of local=, so that it moves "
            "at every update."
        )
    for name, reason in reasons.items():
        if builder.is_large(name) and builder.is_indexed(name):
            _log.info(f"'{name}' moves at every update, not only with its rows: {reason}.")
    if local is None and batches == "groups":
        known = [model.values_to_rvs[v].name for v in vars if builder.is_looked_up(v)]
        remedy = f"name them, as in local={known}, or use" if known else "use"
        raise ValueError(
            f"batches='groups' needs local variables, and local={wanted!r} finds none: {remedy} "
            "batches='rows'."
        )
    if local is not None and names is None:
        listed = ", ".join(f"'{model.values_to_rvs[v.value].name}'" for v in local.variables)
        _log.info(f"Only the groups of a batch's rows move (local='auto'): {listed}.")
    if local is not None and local.row_weights is not None and batches == "auto":
        _log.info("Batches have whole groups, as each has several elements (batches='auto').")
    return local


def _checked_names(model: pm.Model, vars: Sequence[Variable], wanted: Any) -> list[str]:
    if isinstance(wanted, str) or not isinstance(wanted, Sequence):
        raise ValueError(f"local={wanted!r} must be 'auto', None or a list of names of variables.")
    known = [model.values_to_rvs[v].name for v in vars]
    for name in wanted:
        if name not in known:
            shown = ", ".join(f"'{n}'" for n in known)
            raise ValueError(f"local: {name!r} is not a variable of this step; those are {shown}.")
    return list(wanted)


class LocalTerms:
    """Rebuilds a model's terms for candidate local variables, given all variables' shapes.

    ``terms`` are the likelihood of a batch with the row numbers ``rows``, and ``rest`` the observed
    variables and potentials that do not run along the rows. With ``batches="auto"`` batches have
    whole groups if these are in memory, have several elements each, are nested, and a batch
    contains several of them. In a batch of rows the errors of such a group's elements are
    correlated, and thermostats control the energy of each element but not that of all their
    combinations.
    """

    def __init__(self, model, shapes, terms, rest, rows, batch_size, groups, batches):
        self.groups = groups
        self.sizes: dict[TensorVariable, np.ndarray] = {}
        self.empty: dict[Column, EmptyGroups] = {}
        self.model, self.shapes, self.rest, self.rows = model, shapes, rest, rows
        self.batch_size, self.batches = batch_size, batches
        self.whole_groups = batches == "groups"
        self.terms = [term.logp for term in terms]
        self.row_axes = [term.axis for term in terms]
        self.values = set(model.value_vars)
        self.columns: dict[tuple[Variable, int], Column] = {}
        self.lookups = self._lookups()

    def is_large(self, name: str) -> bool:
        """Whether "auto" would make a variable local."""
        value = self.model.rvs_to_values[self.model[name]]
        return max(self.shapes[value], default=0) >= max(LEAST_GROUPS, self.batch_size + 1)

    def is_indexed(self, name: str) -> bool:
        """Whether its elements are taken by index, as effects of groups are.

        An index may also choose among values of rows, such as the classes' probabilities.
        """
        value = self.model.rvs_to_values[self.model[name]]
        nodes = {v.owner: None for v in ancestors(self.terms) if v.owner is not None}
        taken = [ancestors([n.inputs[0]]) for n in nodes if isinstance(n.op, AdvancedSubtensor)]
        return any(value in made_of and self.rows not in made_of for made_of in map(set, taken))

    def _lookups(self) -> list[_Lookup]:
        found = []
        for node in {v.owner: None for v in ancestors(self.terms) if v.owner is not None}:
            if not isinstance(node.op, AdvancedSubtensor) or node.op.idx_list[0] != 0:
                continue
            array, index, *others = node.inputs
            by_row = index.ndim == 1 and index.dtype in integer_dtypes and self._of_rows(index)
            if by_row and not any(map(self._of_rows, others)) and self._values_of(array):
                found.append(_Lookup(node, array, index))
        return found

    def _of_rows(self, var: Variable) -> bool:
        made_of = set(ancestors([var]))
        return self.rows in made_of and self.values.isdisjoint(made_of)

    def _values_of(self, *outputs: Variable) -> list[Variable]:
        return [v for v in ancestors(outputs) if v in self.values]

    def _length(self, array: Variable) -> int:
        if array.type.shape[0] is not None:
            return array.type.shape[0]
        of_point = python_function(self.model.value_vars, array.shape[0])
        start = self.model.initial_point()
        return int(of_point(*(start[v.name] for v in self.model.value_vars)))

    def is_looked_up(self, value: TensorVariable) -> bool:
        """Whether rows index into an expression of the value."""
        return any(value in ancestors([lookup.array]) for lookup in self.lookups)

    def sizes_in(self, column: Column) -> np.ndarray:
        """Return the number of rows of each group."""
        if column.index not in self.sizes:
            self.sizes[column.index] = self.groups.sizes(column)
        return self.sizes[column.index]

    def empty_groups(self, column: Column) -> EmptyGroups:
        """Return the groups without rows."""
        if column not in self.empty:
            empty = np.flatnonzero(self.sizes_in(column) == 0)
            variable = pt.tensor("empty", shape=(empty.size,), dtype="int64")
            self.empty[column] = EmptyGroups(pt.constant(empty, dtype="int64"), variable)
        return self.empty[column]

    def candidate(self, value: TensorVariable) -> LocalVariable:
        """Return a variable's column and axis of groups, or raise `NotLocal`."""
        columns = set()
        for lookup in self.lookups:
            if value in ancestors([lookup.array]):
                n_groups = self._length(lookup.array)
                if n_groups in self.shapes[value]:
                    columns.add((lookup.index, n_groups))
        if not columns:
            columns = {(c.index, c.n_groups) for c in self._columns_by_prior(value)}
        if not columns:
            raise NotLocal([value], "no data are an index of rows into it")
        if len(columns) > 1:
            raise NotLocal([value], "rows look it up by several indices")
        [(index, n_groups)] = columns
        key = index, n_groups
        column = self.columns.setdefault(key, Column.of(*key, self.batch_size))
        return LocalVariable.of(value, column, self.shapes[value])

    def _columns_by_prior(self, value: TensorVariable) -> set[Column]:
        """Return the columns of variables with an element per group in whose prior a value is."""
        found = set()
        for (index, n_groups), column in self.columns.items():
            if n_groups not in self.shapes[value]:
                continue
            for lookup in self.lookups:
                for u in self._values_of(lookup.array) if lookup.index is index else ():
                    [logp] = self.model.logp(vars=[self.model.values_to_rvs[u]], sum=False)
                    if n_groups in self.shapes.get(u, ()) and value in ancestors([logp]):
                        found.add(column)
        return found

    def with_slots(self, variables: list[LocalVariable]) -> list[LocalVariable]:
        """Give variables as many slots as batches of whole groups need.

        Raises an error if the groups are not all nested in those of one column, or if rows are
        streamed.
        """
        if self.batches == "groups" and self.groups.are_streamed:
            raise ValueError(
                "batches='groups' needs all rows in memory, and data= streams them: use "
                "batches='rows'."
            )
        columns = list(dict.fromkeys(v.column for v in variables))
        auto, self.whole_groups = self.batches == "auto", False
        if self.batches == "rows" or (auto and not self._rows_are_biased(variables)):
            return variables
        k = coarsest([self.groups.of(c.index) % c.n_groups for c in columns])
        if auto and (k is None or not self._are_small(columns[k])):
            return variables
        self.whole_groups = True
        if k is None:
            names = ", ".join(f"'{self.model.values_to_rvs[v.value].name}'" for v in variables)
            raise ValueError(
                f"batches='groups' needs nested groups, and those of {names} are crossed: use "
                "batches='rows', or name in local= only variables whose groups are nested."
            )
        around = columns[k]
        slots = most_groups(self.sizes_in(around), self.batch_size)
        column = Column.of(around.index, around.n_groups, slots)
        return [
            LocalVariable.of(v.value, column, self.shapes[v.value]) if v.column is around else v
            for v in variables
        ]

    def _rows_are_biased(self, variables: list[LocalVariable]) -> bool:
        """Whether a row in memory informs about several elements of its group."""
        return not self.groups.are_streamed and elements_per_group(variables, self.shapes) > 1

    def _are_small(self, column: Column) -> bool:
        """Whether a batch contains several groups."""
        sizes = self.sizes_in(column)
        return self.batch_size >= GROUPS_PER_BATCH * sizes[sizes > 0].mean()

    def build(self, variables: list[LocalVariable]) -> LocalModel:
        """Write the model for the groups in the slots, or raise `NotLocal`."""
        local = {v.value: v for v in variables}
        model = self.model
        shared = self.shared(local)
        priors = [self.prior(v, local) for v in variables]
        variables = [v._replace(prior_draw=self._prior_draw(v)) for v in variables]
        rows = self.rows_of(local)
        shared_prior = model.logp(vars=[*shared, *self.rest])
        floatX = pytensor.config.floatX
        weights = pt.vector("row_weights", dtype=floatX) if self.whole_groups else None
        sizes = [self.sizes_in(c) for c in dict.fromkeys(v.column for v in variables)]
        return LocalModel(variables, shared_prior, priors, rows, self.row_axes, weights, sizes)

    def shared(self, local: dict) -> list[Variable]:
        """Return the free variables that are not local, or raise `NotLocal`."""
        model = self.model
        shared = [rv for rv in model.free_RVs if model.rvs_to_values[rv] not in local]
        for rv in [*shared, *self.rest]:
            [logp] = (
                model.replace_rvs_by_values([rv])
                if rv in model.potentials
                else model.logp(vars=[rv], sum=False)
            )
            used = [v for v in self._values_of(logp) if v in local]
            if used:
                raise NotLocal(used, f"the term of '{rv.name}' depends on it")
        return shared

    def prior(self, v: LocalVariable, local: dict) -> TensorVariable:
        rv = self.model.values_to_rvs[v.value]
        [logp] = self.model.logp(vars=[rv], sum=False)
        others = [u for u in self._values_of(logp) if u in local and local[u].column != v.column]
        if others:
            raise NotLocal(others, f"the prior of '{rv.name}', of other groups, depends on it")
        if logp.ndim <= v.axis:
            raise NotLocal([v.value], "one draw of its prior spans the groups")
        [logp] = simplified([logp])  # with plain numbers for lengths
        stand_ins = {u: local[u].slots for u in local}
        logp = self._at(v.column.groups, logp, v.column.n_groups, stand_ins)
        return logp.sum(axis=[a for a in range(logp.ndim) if a != v.axis])

    def rows_of(self, local: dict) -> list[TensorVariable]:
        at_places = {}
        for node, array, index in self.lookups:
            used = [v for v in self._values_of(array) if v in local]
            if not used:
                continue
            column = local[used[0]].column
            if index is not column.index or self._length(array) != column.n_groups:
                raise NotLocal(used, "it is indexed together with variables of other groups")
            if any(local[v].column != column for v in used):
                raise NotLocal(used, "it is combined with variables of other groups")
            stand_ins = {v: local[v].slots for v in used}
            of_slots = self._at(column.groups, array, column.n_groups, stand_ins)
            [found] = node.op.make_node(of_slots, column.places, *node.inputs[2:]).outputs
            at_places[node.outputs[0]] = found
        rows = resized(self.terms, at_places, 0, None)
        left = [v for v in self._values_of(*rows) if v in local]
        if left:
            raise NotLocal(left, "the likelihood uses it other than through an index of rows")
        return rows

    def _at(
        self, groups: Variable, of_all: Variable, n_groups: int, stand_ins: dict
    ) -> TensorVariable:
        """Rebuild an expression of all groups for some; ``stand_ins`` are their local variables."""
        of_some = dict(stand_ins)
        for leaf in ancestors([of_all]):
            if leaf in stand_ins or leaf.owner is not None or not isinstance(leaf.type, TensorType):
                continue
            is_array = isinstance(leaf, SharedVariable | Constant)
            shape = np.shape(array_value(leaf)) if is_array else self.shapes.get(leaf, ())
            if n_groups not in shape:
                continue
            if not is_array:
                used = [v for v in self._values_of(of_all) if v in stand_ins]
                raise NotLocal(used, f"it is combined with '{leaf.name}', which is not local")
            of_some[leaf] = leaf[(*(slice(None),) * shape.index(n_groups), groups)]
        known = groups.type.shape[0]
        size = groups.shape[0] if known is None else pt.constant(known, dtype="int64")
        [out] = resized([of_all], of_some, n_groups, size)
        return out

    def _prior_draw(self, v: LocalVariable) -> PriorDraw | None:
        """Return the draw of elements of groups without rows, or None if there are none."""
        empty = self.empty_groups(v.column)
        n_empty = empty.variable.type.shape[0]
        if not n_empty:
            return None
        model = self.model
        rv = model.values_to_rvs[v.value]
        if not isinstance(rv.owner.op, RandomVariable):
            raise NotLocal([v.value], "some groups have no rows, and its prior cannot be drawn")
        groups = empty.variable
        parameters = simplified(model.replace_rvs_by_values(rv.owner.inputs[2:]))
        n_groups = v.column.n_groups
        stand_ins = {
            u: u[(*(slice(None),) * self.shapes[u].index(n_groups), groups)]
            for u in self._values_of(*parameters)
            if n_groups in self.shapes[u]
        }
        parameters = [self._at(groups, p, n_groups, stand_ins) for p in parameters]
        shape = self.shapes[v.value]
        shape = (*shape[: v.axis], n_empty, *shape[v.axis + 1 :])
        size = shape[: len(shape) - rv.owner.op.ndim_supp]
        return PriorDraw(
            v.value, empty, v.axis, rv.owner.op, size, parameters, model.rvs_to_transforms[rv]
        )
