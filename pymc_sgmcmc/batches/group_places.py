"""Where the rows of each group are in a stream, and how many: three numbers per group."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class GroupPlaces(NamedTuple):
    """The number and the places of each group's rows: arrays of int64, shape (n_groups,)."""

    sizes: np.ndarray
    first: np.ndarray
    """First row of each group, or -1 if it has no rows."""
    last: np.ndarray
    """Last row of each group, or -2 if it has no rows."""

    @classmethod
    def counted(cls, blocks: Iterable[np.ndarray], n_groups: int) -> "GroupPlaces":
        """Count the rows of each group, in one pass over blocks of the rows' groups."""
        sizes = np.zeros(n_groups, dtype=np.int64)
        first, last = np.full(n_groups, -1), np.full(n_groups, -2)
        n_rows = 0
        for groups in blocks:
            rows = np.arange(n_rows, n_rows + len(groups))
            sizes += np.bincount(groups, minlength=n_groups)
            new = first[groups] < 0
            first[groups[new][::-1]] = rows[new][::-1]  # of equal places the last one is kept
            last[groups] = rows
            n_rows += len(groups)
        return cls(sizes, first, last)

    @property
    def scattered(self) -> np.ndarray:
        """Numbers of the groups that have rows of other groups between their own."""
        return np.flatnonzero(self.last - self.first + 1 != self.sizes)
