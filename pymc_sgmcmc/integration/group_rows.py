"""The rows of each group, in memory: group by group, one after the other."""

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
    empty : bool, default False
        Whether to include groups without rows.

    Attributes
    ----------
    order : integers, shape (N,)
        Numbers of the rows, group by group.
    numbers, first, sizes : integers, shape (groups,)
        Each group's number, the place of its first row in ``order``, and how many it has.
    """

    def __init__(self, group_of_row: np.ndarray, n_groups: int, empty: bool = False):
        sizes = np.bincount(group_of_row, minlength=n_groups)
        self.order = np.argsort(group_of_row, kind="stable")
        self.numbers = np.flatnonzero(sizes >= (not empty))
        self.sizes = sizes[self.numbers]
        self.first = (np.cumsum(sizes) - sizes)[self.numbers]
        self.sorted = bool((np.diff(self.order) > 0).all())

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
