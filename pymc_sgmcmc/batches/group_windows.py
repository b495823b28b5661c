"""Windows of whole groups: batches of streamed data in which the rows of a group come together.

The rows of each group lie together in the stream. As in `pymc_sgmcmc.batches.whole_groups` the
groups are dealt once into K batches, each of which comes once per epoch, so that K times the sum
over a batch is unbiased. Here the groups of a batch lie in one window. Windows are fixed too: of an
iterable they are runs of consecutive groups; an array is divided into chunks of consecutive groups,
and a window has one of each stratum of chunks, as in `pymc_sgmcmc.batches.windows`. In every epoch
the windows of an array, and the batches of each window, come in a new random order.

A group with more rows than a batch is cut into equal parts, among which its rows are dealt anew in
every epoch; a group with more rows than a window is cut into several runs of such parts.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pymc_sgmcmc.batches.data_sources import Pieces, refuse_nan_rows
from pymc_sgmcmc.batches.group_places import GroupPlaces
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.batches.whole_groups import Deal, dealt, parts_in_order, slots_for
from pymc_sgmcmc.batches.windows import Check, Planned, Window, chunk_order, epochs

FILLER = "pymc_sgmcmc: filler"
"""Name of a column beside the containers that says whether a row only repeats its batch's first
row, to fill the batch up."""
LARGE = 0.25
"""Chunks larger than this share of a window, each of one group, get windows of their own, because a
window that they end early would lack chunks of other strata."""
GroupsOf = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""A function that returns the group of each of some rows, which are given by container."""


class Layout(NamedTuple):
    """Where the rows of a window go."""

    places: np.ndarray
    """Place of each row, in the order of the stream."""
    groups: np.ndarray
    """Group of each row, in the order of the stream."""
    filler: np.ndarray
    """Whether each place only fills a batch up, shape (batches * n,)."""


class GroupWindows(Deal):
    """The groups of a stream, none of them scattered, dealt into windows and those into batches.

    ``slots`` is the largest number of groups in a batch, and ``column`` the number of these groups'
    column; the other arguments are those of `Deal`.
    """

    def __init__(
        self,
        places: GroupPlaces,
        data: StreamedData,
        batch_size: int,
        dtype: str,
        around: Mapping[int, np.ndarray] | None = None,
        column: int = 0,
    ):
        self.column = column
        in_order = np.argsort(places.first)[np.count_nonzero(places.sizes == 0) :]
        sizes = places.sizes[in_order]
        which, begins, ends = parts_in_order(sizes, batch_size)
        window = _window_of_part(which, ends - begins, sizes[which], data, batch_size)
        # The deal is always the same, because chains share it and a resumed run repeats it.
        rng = np.random.default_rng(0)
        order = np.lexsort((rng.permutation(len(which)), window))
        self._size = (ends - begins)[order]
        self._group = in_order[which[order]]
        self._first_row = places.first[self._group] + begins[order]
        of_window = np.flatnonzero(np.diff(window[order], prepend=-1, append=window.max() + 1))
        limit = slots_for(self._size, batch_size)
        firsts = [
            first + dealt(self._size[first:last], batch_size, limit)[:-1]
            for first, last in pairwise(of_window)
        ]
        self._first_part = np.append(np.concatenate(firsts), len(order))
        """Number of the first part of each batch."""
        self._first_batch = np.cumsum([0, *map(len, firsts)])
        """Number of the first batch of each window."""
        self.slots = int(np.diff(self._first_part).max())
        self.n_windows = len(firsts)
        n_batches = len(self._first_part) - 1
        super().__init__(places.sizes, batch_size, n_batches, data.n_rows, dtype, around)

    def _parts(self, window: int) -> slice:
        return slice(*self._first_part[self._first_batch[window : window + 2]])

    def n_places(self, window: int) -> int:
        """Return the number of rows of a window's batches, those that fill batches up included."""
        return self.batch_size * int(np.diff(self._first_batch[window : window + 2])[0])

    def ranges(self, window: int) -> list[tuple[int, int]]:
        """Return the ranges of consecutive rows of a window, ascending."""
        parts = self._parts(window)
        order = np.argsort(self._first_row[parts])
        first = self._first_row[parts][order]
        end = first + self._size[parts][order]
        apart = first[1:] != end[:-1]
        begins, ends = first[np.append(True, apart)], end[np.append(apart, True)]
        return list(zip(begins.tolist(), ends.tolist(), strict=True))

    def layout(self, window: int, rng: np.random.Generator) -> Layout:
        """Lay out the rows of a window, with its batches in random order."""
        n, parts = self.batch_size, self._parts(window)
        b0, b1 = self._first_batch[window : window + 2]
        size, group = self._size[parts], self._group[parts]
        first_part = self._first_part[b0 : b1 + 1] - parts.start
        before = np.cumsum(size) - size
        batch = np.repeat(np.arange(b1 - b0), np.diff(first_part))
        begin = n * rng.permutation(b1 - b0)[batch] + before - before[first_part[:-1]][batch]
        in_stream = np.argsort(self._first_row[parts])
        size, group, begin = size[in_stream], group[in_stream], begin[in_stream]
        before = np.cumsum(size) - size
        places = np.repeat(begin - before, size) + np.arange(size.sum())
        several = np.flatnonzero(group[1:] == group[:-1])
        for j in np.unique(group[several]):  # its parts are next to each other
            own = np.flatnonzero(group == j)
            rows = slice(before[own[0]], before[own[-1]] + size[own[-1]])
            places[rows] = rng.permutation(places[rows])
        filler = np.ones(self.n_places(window), dtype=bool)
        filler[places] = False
        return Layout(places, np.repeat(group, size), filler)


def _window_of_part(
    which: np.ndarray,
    size: np.ndarray,
    of_group: np.ndarray,
    data: StreamedData,
    batch_size: int,
) -> np.ndarray:
    """Return the window of each part, with all arrays in the order of the stream.

    ``which`` has the number of each part's group, and ``of_group`` the size of that group.
    """
    # A group stays together; of a group larger than a window, as many parts as fit stay together.
    most = np.where(of_group > data.window, data.window // batch_size, len(which))
    number = np.arange(len(which)) - np.searchsorted(which, which)
    first = np.flatnonzero(number % most == 0)
    chunk = np.arange(len(first))
    order = chunk
    if data.by_row:
        chunks = dealt(np.add.reduceat(size, first), data.chunk, len(first) + 1)
        chunk = np.repeat(np.arange(len(chunks) - 1), np.diff(chunks))
        per_window = max(1, data.window * (len(chunks) - 1) // int(size.sum()))
        strata = chunk_order(len(chunks) - 1, per_window, np.random.default_rng(0))
        order = np.concatenate(strata)
    chunk = np.repeat(chunk, np.diff(np.append(first, len(which))))
    rows = np.bincount(chunk, weights=size).astype(np.int64)
    if data.by_row:  # one that did not fit would end a window before it had a chunk of each stratum
        large = rows[order] > data.window * LARGE
        order = np.concatenate([order[~large], order[large]])
    firsts = dealt(rows[order], data.window, len(order) + 1)
    window = np.empty(len(order), dtype=np.int64)
    window[order] = np.repeat(np.arange(len(firsts) - 1), np.diff(firsts))
    return window[chunk]


def group_windows(
    rng: np.random.Generator,
    position: int = 0,
    *,
    data: StreamedData,
    groups: GroupWindows,
    groups_of: GroupsOf,
    replacement: bool = False,
    check: Check = lambda rows: None,
) -> Iterator[Window]:
    """Yield windows of whole groups, from a position on, as `epochs`.

    A window has its batches one after the other, each filled up to n rows, and the column `FILLER`.
    ``position`` counts the rows that fill batches up too.
    """
    n = groups.batch_size

    def filled(
        window: int, ranges: list[tuple[int, int]], pieces: Pieces, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        layout = groups.layout(window, rng)
        rows = _laid_out(pieces, layout, data, n)
        check(rows)
        _check_groups(groups_of(rows), layout, ranges)
        rows[FILLER] = layout.filler
        return _redrawn(rows, n, rng) if replacement else rows

    def planned(rng: np.random.Generator) -> list[Planned]:
        order = rng.permutation(groups.n_windows) if data.by_row else np.arange(groups.n_windows)
        each = [(window, groups.ranges(window)) for window in order.tolist()]
        return [Planned(r, groups.n_places(w), partial(filled, w, r)) for w, r in each]

    return epochs(data, rng, position, planned)


def _laid_out(pieces: Pieces, layout: Layout, data: StreamedData, n: int) -> dict[str, np.ndarray]:
    size = len(layout.filler)
    window = {name: np.empty((size, *f.shape), f.dtype) for name, f in data.formats.items()}
    read = 0
    for piece in pieces:
        for name, rows in piece.items():
            data.formats[name].check(name, rows)
            window[name][layout.places[read : read + len(rows)]] = rows
        read += len(rows)
    if read < len(layout.places):
        raise ValueError(
            f"data= ended {len(layout.places) - read} rows earlier than when the groups' rows were "
            "counted: every pass must have the same rows. Correct the data, or make a new step."
        )
    left_over = np.flatnonzero(layout.filler)
    for name, rows in window.items():
        rows[left_over] = rows[left_over // n * n]
        refuse_nan_rows(name, rows)
    return window


def _check_groups(found: np.ndarray, layout: Layout, ranges: list[tuple[int, int]]) -> None:
    """Raise an error for rows of other groups than expected."""
    wrong = np.flatnonzero(found[layout.places] != layout.groups)
    if len(wrong):
        k = wrong[0]
        row = np.concatenate([np.arange(*both) for both in ranges])[k]
        raise ValueError(
            f"Row {row} of data= has the group {found[layout.places[k]]}, but {layout.groups[k]} "
            "when the groups' rows were counted: every pass must have the same rows in the same "
            "order. Correct the data, or make a new step."
        )


def _redrawn(
    rows: dict[str, np.ndarray], n: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Draw batches with replacement."""
    K = len(rows[FILLER]) // n
    some = rng.integers(K, size=K)
    return {name: a.reshape(K, n, *a.shape[1:])[some].reshape(a.shape) for name, a in rows.items()}
