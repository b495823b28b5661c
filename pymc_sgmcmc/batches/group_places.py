"""Where the rows of each group are in a stream, and how many they are: three numbers a group."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class GroupPlaces(NamedTuple):
    """Of each group; arrays of int64, shape (n_groups,).

    Examples
    --------
    >>> import numpy as np
    >>> GroupPlaces.counted([np.array([1, 1, 3]), np.array([3, 1])], n_groups=4).sizes
    array([0, 3, 0, 2])
    """

    sizes: np.ndarray
    """Number of rows."""
    first: np.ndarray
    """The first row, ..."""
    last: np.ndarray
    """... and the last; of groups without rows -1 and -2."""

    @classmethod
    def counted(cls, blocks: Iterable[np.ndarray], n_groups: int) -> "GroupPlaces":
        """Count the rows of each group, in one pass.

        Parameters
        ----------
        blocks : iterable of arrays of int
            The group of each row, block after block.
        n_groups : int
        """
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
        """Numbers of the groups that have rows of others among theirs."""
        return np.flatnonzero(self.last - self.first + 1 != self.sizes)
