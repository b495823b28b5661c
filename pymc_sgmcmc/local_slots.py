"""Slots: the elements of local variables that an update moves, gathered and scattered back.

All other elements, with their momentum and thermostats, stay in their arrays, which compiled
updates change in place, so the cost of an update does not depend on the number of groups.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable


class Touched(NamedTuple):
    """The groups of an array that a batch touches."""

    groups: TensorVariable
    """Numbers of the groups, one for each slot; unused slots repeat the first group."""
    weights: TensorVariable
    """Weight of each slot's group; 0 in unused slots."""
    axis: int
    """The axis of the array that indexes groups."""

    @property
    def slots(self) -> tuple:
        """Index of the slots in an array of all groups."""
        return (*(slice(None),) * self.axis, self.groups)

    def used(self, ndim: int) -> TensorVariable:
        """Whether each slot is in use, broadcastable to arrays with ``ndim`` axes."""
        return pt.expand_dims(self.weights > 0, [a for a in range(ndim) if a != self.axis])


def gathered(
    arrays: Sequence[TensorVariable], touched: Sequence[Touched | None]
) -> list[TensorVariable]:
    """Take the slots' elements; arrays without groups are taken whole."""
    return [
        a if which is None else a[which.slots] for a, which in zip(arrays, touched, strict=True)
    ]


def scattered(
    arrays: Sequence[TensorVariable],
    new: Sequence[TensorVariable],
    touched: Sequence[Touched | None],
) -> list[TensorVariable]:
    """Write new elements from the slots back into their arrays."""
    return [
        n if which is None else pt.set_subtensor(a[which.slots], _repeated(n, which))
        for a, n, which in zip(arrays, new, touched, strict=True)
    ]


def masked(
    arrays: Sequence[TensorVariable], touched: Sequence[Touched | None]
) -> list[TensorVariable]:
    """Set unused slots to 0, so that they do not count in sums over elements."""
    return [
        a if which is None else pt.switch(which.used(a.ndim), a, np.asarray(0, a.dtype))
        for a, which in zip(arrays, touched, strict=True)
    ]


def n_touched(
    arrays: Sequence[TensorVariable], touched: Sequence[Touched | None]
) -> list[TensorVariable]:
    """Count the elements of each variable, excluding unused slots."""
    counts = []
    for a, which in zip(arrays, touched, strict=True):
        if which is None:
            counts.append(a.size)
        else:
            in_each = math.prod(a.type.shape) // a.type.shape[which.axis]
            counts.append(in_each * pt.sum(which.weights > 0))
    return counts


def _repeated(slots: TensorVariable, which: Touched) -> TensorVariable:
    """Copy the first slot's element into unused slots: both are written to the same place."""
    first = slots[(*(slice(None),) * which.axis, slice(0, 1))]
    return pt.switch(which.used(slots.ndim), slots, first)
