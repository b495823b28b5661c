"""Records: what an update needs of a group, next to each other in memory.

Of many groups, a variable with its momentum, thermostats and scales lies in memory, not in the
caches. Within a call these arrays are interleaved (an array of structures), so that a group is one
cache line.
"""

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.compile.ops import deep_copy_op
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.local_slots import Touched, gathered, scattered

Tensors = list[TensorVariable]


class GroupRecords:
    """Arrays of the same groups, type and shape that are interleaved in a compiled call.

    Array c of A has rows c, A + c, 2 A + c, ... of their record. Updates move the first
    ``n_moving`` arrays.
    """

    def __init__(self, arrays: Tensors, touched: Sequence[Touched | None], n_moving: int):
        self._n_arrays, self._n_moving = len(arrays), n_moving
        self._shapes = [a.type.shape for a in arrays]
        self._axes = [0 if which is None else which.axis for which in touched]
        of_kind: dict[Any, list[int]] = {}
        for k, (array, which) in enumerate(zip(arrays, touched, strict=True)):
            if which is not None:
                n_groups, *of_a_group = self._groups_first(k)
                kind = which.groups, array.dtype, n_groups, *of_a_group
                if k < n_moving or kind in of_kind:
                    of_kind.setdefault(kind, []).append(k)
        self._members = list(of_kind.values())
        in_records = {k for members in self._members for k in members}
        apart = [k for k in range(len(arrays)) if k not in in_records]
        self._moving_apart = [k for k in apart if k < n_moving]
        self._read_apart = [k for k in apart if k >= n_moving]

    def packed(self, arrays: Sequence[TensorVariable]) -> tuple[Tensors, Tensors]:
        """Split arrays into those that updates carry along, records last, and read-only ones."""
        records = []
        for members in self._members:
            each = [pt.moveaxis(arrays[k], self._axes[k], 0) for k in members]
            n_groups, *of_a_group = self._groups_first(members[0])
            records.append(pt.stack(each, axis=1).reshape((n_groups * len(each), *of_a_group)))
        moving = [*(arrays[k] for k in self._moving_apart), *records]
        return moving, [arrays[k] for k in self._read_apart]

    def unpacked(self, moving: Sequence[TensorVariable]) -> Tensors:
        """Recover the moving arrays from what updates carried along."""
        arrays = dict(zip(self._moving_apart, moving, strict=False))
        for members, record in zip(self._members, self._records(moving), strict=True):
            n_groups, *of_a_group = self._groups_first(members[0])
            each = record.reshape((n_groups, len(members), *of_a_group))
            for c, k in enumerate(members):
                # Copied, so that the array is contiguous, as the next call expects it.
                arrays[k] = deep_copy_op(pt.moveaxis(each[:, c], 0, self._axes[k]))
        return [arrays[k] for k in range(self._n_moving)]

    def gathered(
        self, moving: Tensors, read: Tensors, touched: Sequence[Touched | None]
    ) -> Tensors:
        """Take the slots' elements of all arrays; arrays without groups are taken whole."""
        apart = [*self._moving_apart, *self._read_apart]
        whole = [*moving[: len(self._moving_apart)], *read]
        taken = gathered(whole, [touched[k] for k in apart])
        slots = dict(zip(apart, taken, strict=True))
        for members, record in zip(self._members, self._records(moving), strict=True):
            for c, k in enumerate(members):
                [rows] = gathered([record], [self._rows(members, c, touched)])
                slots[k] = pt.moveaxis(rows, 0, self._axes[k])
        return [slots[k] for k in range(self._n_arrays)]

    def scattered(
        self, moving: Tensors, new: Tensors, touched: Sequence[Touched | None]
    ) -> Tensors:
        """Write new elements of the moving arrays from the slots back to the records."""
        apart = self._moving_apart
        of = [touched[k] for k in apart]
        put = scattered(moving[: len(apart)], [new[k] for k in apart], of)
        for members, record in zip(self._members, self._records(moving), strict=True):
            for c, k in enumerate(members):
                if k < self._n_moving:
                    slots = pt.moveaxis(new[k], self._axes[k], 0)
                    [record] = scattered([record], [slots], [self._rows(members, c, touched)])
            put.append(record)
        return put

    def _records(self, moving: Sequence[TensorVariable]) -> Tensors:
        return list(moving[len(self._moving_apart) :])

    def _rows(self, members: list[int], c: int, touched: Sequence[Touched | None]) -> Touched:
        """Return the rows of a record that belong to its member number c."""
        which = touched[members[c]]
        assert which is not None
        return Touched(which.groups * len(members) + c, which.weights, axis=0)

    def _groups_first(self, k: int) -> tuple[int, ...]:
        """Return an array's shape with its axis of groups moved to the front."""
        shape, axis = self._shapes[k], self._axes[k]
        return (shape[axis], *shape[:axis], *shape[axis + 1 :])
