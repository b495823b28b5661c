"""A model written for the groups of rows that a batch touches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorConstant, TensorVariable

from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.noise import NoiseStream


@dataclass(frozen=True, eq=False)
class Column:
    """An index of rows: the data that say which group a row belongs to.

    The last three fields represent what a batch touches, as found by `pymc_sgmcmc.batches.touched`.
    """

    index: TensorVariable
    """The group of each row of a batch, as an expression of row numbers and data."""
    n_groups: int
    slots: int
    """Largest number of groups that a batch touches."""
    groups: TensorVariable
    places: TensorVariable
    weights: TensorVariable

    @classmethod
    def of(cls, index: TensorVariable, n_groups: int, batch_size: int) -> "Column":
        """Make the column of an index into ``n_groups`` groups."""
        slots = min(batch_size, n_groups)
        groups = pt.tensor("groups", shape=(slots,), dtype="int64")
        weights = pt.tensor("weights", shape=(slots,), dtype=pytensor.config.floatX)
        return cls(index, n_groups, slots, groups, pt.lvector("places"), weights)


class EmptyGroups(NamedTuple):
    """The groups without rows."""

    numbers: TensorConstant
    variable: TensorVariable
    """Placeholder for the numbers, because so many numbers in a graph would not be cached."""


class PriorDraw(NamedTuple):
    """Draws the elements of groups without rows from their prior, given the other variables."""

    value: TensorVariable
    groups: EmptyGroups
    axis: int
    op: RandomVariable
    size: tuple[int, ...]
    parameters: list[TensorVariable]
    transform: Any

    def into(self, value: TensorVariable, values: dict, stream: NoiseStream) -> TensorVariable:
        """Replace these elements of a value; ``values`` replaces the parameters' inputs."""
        *parameters, groups = substitute([*self.parameters, self.groups.variable], values)
        at = (*(slice(None),) * self.axis, groups)
        drawn = stream.draw(self.op, *parameters, size=self.size)
        if self.transform is not None:
            drawn = self.transform.forward(drawn, None, None, *parameters)
        return pt.set_subtensor(value[at], drawn.astype(value.dtype))


class LocalVariable(NamedTuple):
    """A value variable, and its replacement with only the groups in the slots."""

    value: TensorVariable
    column: Column
    axis: int
    """The axis of groups."""
    slots: TensorVariable
    """Shaped like the value, with the slots in place of the groups."""
    prior_draw: PriorDraw | None = None
    """Draws the elements of groups without rows, if there are any."""

    @classmethod
    def of(cls, value: TensorVariable, column: Column, shape: tuple[int, ...]) -> "LocalVariable":
        """Make the local variable for a value of this shape."""
        axis = shape.index(column.n_groups)
        of_slots = (*shape[:axis], column.slots, *shape[axis + 1 :])
        return cls(value, column, axis, TensorType(value.dtype, of_slots)(value.name))


class LocalModel(NamedTuple):
    """A model's log posterior, written for the groups that a batch touches."""

    variables: list[LocalVariable]
    shared_prior: TensorVariable
    """Log prior of all variables that are not local, a scalar."""
    priors: list[TensorVariable]
    """Log prior of each local variable for each slot, shape (slots,)."""
    rows: list[TensorVariable]
    """Log likelihood of each row of a batch, by term."""
    row_axes: list[int]
    """Axis of the rows in each log likelihood."""
    row_weights: TensorVariable | None
    """Weight of each row of a batch, if batches have whole groups."""
    sizes: list[np.ndarray]
    """Number of rows of each group, for each of ``columns``."""

    @property
    def expressions(self) -> list[TensorVariable]:
        """All expressions in one list."""
        own = [self.shared_prior, *self.priors, *self.rows]
        own += [column.index for column in self.columns]
        return own + [p for draw in self.prior_draws for p in draw.parameters]

    @property
    def columns(self) -> list[Column]:
        """The indices of rows."""
        return list(dict.fromkeys(v.column for v in self.variables))

    @property
    def prior_draws(self) -> list[PriorDraw]:
        """The draws of elements of groups without rows."""
        return [v.prior_draw for v in self.variables if v.prior_draw is not None]

    @property
    def empty(self) -> dict[TensorConstant, TensorVariable]:
        """Maps the groups without rows to their placeholders."""
        return dict(draw.groups for draw in self.prior_draws)

    def rebuilt(self, expressions: Sequence[TensorVariable]) -> "LocalModel":
        """Return the model with other expressions, listed in the order of `expressions`."""
        take = iter(expressions).__next__
        shared_prior = take()
        priors = [take() for _ in self.priors]
        rows = [take() for _ in self.rows]
        columns = {column: replace(column, index=take()) for column in self.columns}
        draws = {
            draw.value: draw._replace(parameters=[take() for _ in draw.parameters])
            for draw in self.prior_draws
        }
        variables = [
            v._replace(column=columns[v.column], prior_draw=draws.get(v.value))
            for v in self.variables
        ]
        return self._replace(
            variables=variables, shared_prior=shared_prior, priors=priors, rows=rows
        )


class NotLocal(Exception):
    """Raised with the reason why some variables are not local."""

    def __init__(self, values: Sequence[Variable], reason: str):
        super().__init__(reason)
        self.values = list(values)
