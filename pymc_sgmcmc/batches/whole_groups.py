"""Batches of whole groups: the rows of a group come together, as many groups as fit.

The groups with rows are dealt once, in random order, into K batches of at most n rows: a batch ends
where the next group would not fit, or has the largest number of groups. A group of n_j > n rows is
first cut into equal parts, to which every epoch deals its rows again. Each batch is drawn with
probability 1 / K (in shuffled epochs each comes once), and each row is in one of them. For any
values f_i of rows, then::

    E[K sum_{i in batch} f_i] = 1/K sum_batches K sum_{i in batch} f_i = sum_i f_i

however many groups and rows the batches have. G / g with a batch's own number g of groups would be
a ratio estimator, biased because g depends on the groups' sizes. Terms f_j of groups (log p(alpha_j
| shared)) are spread over their rows, f_j / n_j each: K m_j / n_j f_j for m_j rows in the batch.

Given that m_j rows of group j are in the batch, they are drawn at random from its n_j (all of them,
if m_j = n_j), so n_j / m_j sum_{i in batch, of j} f_i is unbiased for the group's own sum.

In terms of N / n, by which batches of random rows are scaled, a row has the weight u = K n / N, and
an unused place 0. A group's weight is n_j / (m_j u), because its rows in the sum already have u.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_sgmcmc.backends.numba_cache import cached_njit
from pymc_sgmcmc.batches.batch_stream import BatchStream
from pymc_sgmcmc.batches.touched import GroupsOfRows

EXTRA_SLOTS = 1.5
"""Largest number of groups in a batch as a multiple of the mean, because many small groups may
happen to meet."""


class WholeGroups:
    """Groups dealt into K batches of at most n rows and ``groups.slots`` groups, for all chains.

    ``around`` has, for each column of smaller groups that lie in these, the group around each.
    """

    def __init__(
        self, groups: GroupsOfRows, batch_size: int, around: Mapping[int, np.ndarray] | None = None
    ):
        sizes = groups.sizes.astype(np.int64)
        n_rows = int(sizes.sum())
        first = np.concatenate([[0], np.cumsum(sizes)])
        self._order = np.empty(n_rows, np.int32 if n_rows < 2**31 else np.int64)
        _sort(groups.group_of_row, first.copy(), self._order)
        of_part, begins, ends = _parts(sizes, batch_size)
        self._begins, self._ends = first[of_part] + begins, first[of_part] + ends
        self._first_of_batch = dealt(ends - begins, batch_size, groups.slots)
        large = np.flatnonzero(sizes > batch_size)
        self._large = [slice(first[j], first[j + 1]) for j in large]
        self.batch_size, self.dtype = batch_size, groups.dtype
        self.n_batches = len(self._first_of_batch) - 1
        self.row_weight = self.n_batches * batch_size / n_rows
        self.around = around or {}
        self._n_parts = parts_of(sizes, batch_size)

    def parts(self, column: int) -> np.ndarray:
        """Return the number of parts into which each group, or the group around it, is cut.

        The number is meaningless for a group without rows.
        """
        around = self.around.get(column)
        return self._n_parts if around is None else self._n_parts[around]

    def weights(self, rows: np.ndarray) -> np.ndarray:
        """Return the weights of the rows of batches: u, and 0 in unused places."""
        weights = np.where(rows == rows[:, :1], 0, self.row_weight).astype(self.dtype)
        weights[:, 0] = self.row_weight
        return weights

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """Return the rows by group; rows of groups cut into parts come in a new random order."""
        if not self._large:
            return self._order
        order = self._order.copy()
        for rows in self._large:
            order[rows] = rng.permutation(order[rows])
        return order

    def fill(self, rows: np.ndarray, batches: np.ndarray, order: np.ndarray) -> None:
        """Write the rows of batches, shape (batches, n); unused places repeat the first row."""
        _fill(rows, batches, order, self._first_of_batch, self._begins, self._ends)


@dataclass
class GroupBatches(BatchStream):
    """A chain's stream of batches of whole groups; ``rng`` is used by this stream alone.

    Each batch comes once per epoch, or with ``replacement`` is drawn independently.
    """

    groups: WholeGroups
    rng: np.random.Generator
    replacement: bool = False
    _batches: np.ndarray = field(init=False, repr=False)
    _order: np.ndarray = field(init=False, repr=False)
    _epoch_rng: dict[str, Any] = field(init=False, repr=False)
    _position: int = field(init=False, repr=False)

    by_number = True

    def __post_init__(self):
        self.batch_size = self.groups.batch_size
        self._new_epoch()

    def _new_epoch(self) -> None:
        # The generator's state at the start of the epoch is saved instead of the epoch's order.
        self._epoch_rng = dict(self.rng.bit_generator.state)
        K = self.groups.n_batches
        self._batches = (
            self.rng.integers(K, size=K) if self.replacement else self.rng.permutation(K)
        )
        self._order = self.groups.order(self.rng)
        self._position = 0

    def take(self, n_batches: int) -> np.ndarray:
        """Return the row numbers of the next batches, int64, shape (n_batches, batch_size).

        Unused places repeat a batch's first row.
        """
        rows = np.empty((n_batches, self.batch_size), dtype=np.int64)
        filled = 0
        while filled < n_batches:
            if self._position == len(self._batches):
                self._new_epoch()
            some = self._batches[self._position :][: n_batches - filled]
            self.groups.fill(rows[filled : filled + len(some)], some, self._order)
            filled += len(some)
            self._position += len(some)
        return rows

    @property
    def state(self) -> dict[str, Any]:
        return {"rng": self._epoch_rng, "position": self._position}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        self._new_epoch()
        self._position = int(state["position"])


def coarsest(group_of_row: Sequence[np.ndarray]) -> int | None:
    """Return the index of the grouping whose groups contain the groups of all others, or None."""
    k = int(np.argmin([len(np.unique(groups)) for groups in group_of_row]))
    around = group_of_row[k]
    for groups in group_of_row:
        if not np.array_equal(groups_around(groups, around)[groups], around):
            return None
    return k


def groups_around(group_of_row: np.ndarray, around: np.ndarray, n_groups: int = 0) -> np.ndarray:
    """Return the larger group that contains the last row of each group; 0 without rows.

    ``around`` has the larger group of each row, and ``n_groups`` is needed if there may be more
    groups than ``group_of_row`` shows.
    """
    of_group = np.zeros(max(n_groups, group_of_row.max() + 1), dtype=around.dtype)
    of_group[group_of_row] = around
    return of_group


def most_groups(sizes: np.ndarray, batch_size: int) -> int:
    """Return the largest number of groups in a batch of whole groups."""
    _, begins, ends = _parts(sizes, batch_size)
    slots = int(EXTRA_SLOTS * batch_size / np.mean(ends - begins)) + 1
    return int(np.diff(dealt(ends - begins, batch_size, slots)).max())


def parts_of(sizes: np.ndarray, batch_size: int) -> np.ndarray:
    """Return the number of parts in which each group comes, 0 for a group without rows."""
    return -(-sizes // batch_size)


def _parts(sizes: np.ndarray, batch_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut groups into parts that fit, in random order: their groups, first and last rows.

    The same sizes always give the same order, which chains and resumed runs therefore share.
    """
    n_parts = parts_of(sizes, batch_size)
    group = np.repeat(np.arange(len(sizes)), n_parts)
    part = np.arange(len(group)) - np.repeat(np.cumsum(n_parts) - n_parts, n_parts)
    begins, ends = ((part + k) * sizes[group] // n_parts[group] for k in (0, 1))
    shuffled = np.random.default_rng(0).permutation(len(group))
    return group[shuffled], begins[shuffled], ends[shuffled]


@cached_njit(nogil=True)
def _sort(group_of_row, place, order):
    """Fill ``order`` with the rows by group; ``place``, each group's first, is modified."""
    for row in range(len(group_of_row)):
        order[place[group_of_row[row]]] = row
        place[group_of_row[row]] += 1


@cached_njit(nogil=True)
def dealt(sizes, batch_size, slots):
    """Return the first part of each batch, followed by the number of parts.

    A batch ends where the next part would not fit or all ``slots`` are used; a part larger than a
    batch is a batch by itself.
    """
    first = [0]
    n_rows = 0
    for k in range(len(sizes)):
        if k > first[-1] and (n_rows + sizes[k] > batch_size or k - first[-1] == slots):
            first.append(k)
            n_rows = 0
        n_rows += sizes[k]
    first.append(len(sizes))
    return np.array(first)


@cached_njit(nogil=True)
def _fill(rows, batches, order, first_of_batch, begins, ends):
    for k in range(len(batches)):
        count = 0
        for part in range(first_of_batch[batches[k]], first_of_batch[batches[k] + 1]):
            for i in range(begins[part], ends[part]):
                rows[k, count] = order[i]
                count += 1
        for i in range(count, rows.shape[1]):
            rows[k, i] = rows[k, 0]
