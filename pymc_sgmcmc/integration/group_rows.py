"""The rows of each group, in memory and group by group."""

from copy import copy
from itertools import pairwise

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable


class GroupRows:
    """The positions of groups' rows, once the data are sorted by group.

    ``order``, shape (N,), has the rows' numbers, group by group; ``numbers``, ``first`` and
    ``sizes``, shape (groups,), have each group's number, the place of its first row in ``order``,
    and its number of rows.
    """

    def __init__(self, group_of_row: np.ndarray, n_groups: int):
        self.order = np.argsort(group_of_row, kind="stable")
        self.sorted = bool((np.diff(self.order) > 0).all())
        self.numbers = np.arange(n_groups)
        self.sizes = np.bincount(group_of_row, minlength=n_groups)
        self.first = np.cumsum(self.sizes) - self.sizes

    def without_empty(self) -> "GroupRows":
        """Leave out groups without rows."""
        other, kept = copy(self), self.sizes > 0
        other.numbers, other.first = self.numbers[kept], self.first[kept]
        other.sizes = self.sizes[kept]
        return other

    def blocks(self, index: np.ndarray, most_rows: int) -> list[slice]:
        """Cut some groups into runs of about ``most_rows`` rows."""
        cost = np.cumsum(self.sizes[index] + 1) // most_rows
        starts = [0, *(np.flatnonzero(np.diff(cost)) + 1), len(index)]
        return [slice(a, b) for a, b in pairwise(starts)]


def padded(
    first: TensorVariable, sizes: TensorVariable, largest: int
) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
    """Return ``largest`` positions for each j, their j, and which are among ``sizes[j]``.

    The last has shape (j, largest). Positions after a group's last row repeat it. All shapes are
    known from that of ``sizes``, as JAX needs them to be.
    """
    place = pt.arange(largest)
    positions = first[:, None] + pt.minimum(place, sizes[:, None] - 1)
    groups = pt.cumsum(pt.ones_like(sizes)) - 1
    places = pt.repeat(groups, largest)
    return positions.ravel(), places, place < sizes[:, None]


def ragged(first: TensorVariable, sizes: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Return ``sizes[j]`` positions ``first[j], first[j] + 1, ...`` for each j, and their j."""
    ends = pt.cumsum(sizes)
    places = pt.repeat(pt.arange(sizes.shape[0]), sizes)
    return pt.arange(ends[-1]) + (first - ends + sizes)[places], places
