"""Which groups of rows a batch touches, and the weight of its rows."""

from typing import NamedTuple

import numpy as np

from pymc_sgmcmc.backends.numba_cache import cached_njit
from pymc_sgmcmc.backends.software_prefetch import prefetch_rows


class GroupsOfBatches(NamedTuple):
    """The groups that consecutive batches touch; ``slots`` is a batch's number of places for them.

    A batch that touches fewer groups repeats its first one in the unused places, with weight 0.
    """

    groups: np.ndarray
    """Numbers of the touched groups, int64, shape (n_batches, slots)."""
    places: np.ndarray
    """Place of each row's group among them, int64, shape (n_batches, batch_size)."""
    weights: np.ndarray
    """Weight n_j / m_j of each touched group, of whose n_j rows m_j are in the batch, divided by
    the weight that a row already has."""


class GroupsOfRows:
    """The group of each row, from 0 to n_groups - 1, the same for all chains.

    ``group_of_row`` is empty if the rows are streamed, ``sizes`` has the number of rows n_j of each
    group, ``slots`` is the largest number of groups that a batch touches, and ``dtype`` the float
    type of the weights.
    """

    def __init__(self, group_of_row: np.ndarray, sizes: np.ndarray, slots: int, dtype: str):
        self.group_of_row = group_of_row.astype(np.int32)
        self.sizes = sizes.astype(np.int32)
        self.slots, self.dtype = slots, dtype

    @classmethod
    def of(cls, group_of_row: np.ndarray, n_groups: int, slots: int, dtype: str) -> "GroupsOfRows":
        """Count the rows of each group."""
        return cls(group_of_row, np.bincount(group_of_row, minlength=n_groups), slots, dtype)


class TouchedGroups:
    """Finds the groups of batches, with a chain's own scratch memory.

    ``row_weight`` is the weight of each row in batches of whole groups, where a row that repeats a
    batch's first is not counted; without it every row counts 1.
    """

    def __init__(self, of_rows: GroupsOfRows, row_weight: float | None = None):
        self._of_rows, self._row_weight = of_rows, row_weight
        # A group's place in the present batch, or -1, and its size, which are looked up together.
        self._place_and_size = np.stack([np.full_like(of_rows.sizes, -1), of_rows.sizes], axis=1)

    def of(self, rows: np.ndarray, group_of_row: np.ndarray | None = None) -> GroupsOfBatches:
        """Find the groups of batches of row numbers, shape (n_batches, batch_size).

        ``group_of_row`` is the group of each of these rows, if they are streamed.
        """
        known = self._of_rows
        group_of_row = known.group_of_row if group_of_row is None else group_of_row
        shape = (len(rows), known.slots)
        found = GroupsOfBatches(
            np.empty(shape, np.int64), np.empty(rows.shape, np.int64), np.empty(shape, known.dtype)
        )
        whole = self._row_weight is not None
        _find(rows, group_of_row, self._place_and_size, whole, *found)
        if self._row_weight is not None:
            found.weights[:] /= self._row_weight
        return found


@cached_njit(nogil=True)
def _find(rows, group_of_row, place_and_size, whole, groups, places, weights):
    """Fill the last three arrays; all places in ``place_and_size`` are -1 before and after.

    Groups are prefetched two batches ahead, their places and sizes one batch ahead.
    """
    n_batches = len(rows)
    for k in range(-2, n_batches):
        if k + 2 < n_batches:
            prefetch_rows(group_of_row, rows[k + 2])
        if 0 <= k + 1 < n_batches:
            for b in range(rows.shape[1]):
                places[k + 1, b] = group_of_row[rows[k + 1, b]]
            prefetch_rows(place_and_size, places[k + 1])
        if k < 0:
            continue
        count = 0
        for b in range(rows.shape[1]):
            group = places[k, b]
            place = place_and_size[group, 0]
            if place < 0:
                place = count
                place_and_size[group, 0] = place
                groups[k, place] = group
                weights[k, place] = 0
                count += 1
            places[k, b] = place
            if not (whole and b > 0 and rows[k, b] == rows[k, 0]):
                weights[k, place] += 1
        for place in range(count):
            group = groups[k, place]
            place_and_size[group, 0] = -1
            weights[k, place] = place_and_size[group, 1] / weights[k, place]
        for place in range(count, groups.shape[1]):
            groups[k, place] = groups[k, 0]
            weights[k, place] = 0
