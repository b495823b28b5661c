"""The rows of each group, in memory: group by group, one after the other."""

from copy import copy
from itertools import pairwise

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable


class GroupRows:
    """Where the rows of groups lie, once the data are sorted by group.

    Parameters
    ----------
    group_of_row : integers, shape (N,)
    n_groups : int

    Attributes
    ----------
    order : integers, shape (N,)
        Numbers of the rows, group by group.
    numbers, first, sizes : integers, shape (groups,)
        Each group's number, the place of its first row in ``order``, and how many it has.
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
        """Cut some groups into runs of about so many rows."""
        cost = np.cumsum(self.sizes[index] + 1) // most_rows
        starts = [0, *(np.flatnonzero(np.diff(cost)) + 1), len(index)]
        return [slice(a, b) for a, b in pairwise(starts)]


def ragged(first: TensorVariable, sizes: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Positions ``first[j], first[j] + 1, ...``, so many for each j, and the j of each."""
    ends = pt.cumsum(sizes)
    places = pt.repeat(pt.arange(sizes.shape[0]), sizes)
    return pt.arange(ends[-1]) + (first - ends + sizes)[places], places
