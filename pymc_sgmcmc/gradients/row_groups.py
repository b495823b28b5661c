"""What the data say about the groups of an index: how many rows each has, which lie in which."""

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock

import numpy as np
import pytensor
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.batches.group_places import GroupPlaces
from pymc_sgmcmc.batches.group_windows import GroupWindows
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.batches.whole_groups import coarsest, most_groups
from pymc_sgmcmc.batches.windows import consecutive_rows
from pymc_sgmcmc.gradients.arrays import Array, array_value, python_function
from pymc_sgmcmc.gradients.local_model import Column, StreamedWhole

BLOCK_ROWS = 2**18
"""Rows that are read together to count those of each group."""


class GroupsOfData:
    """Evaluates indices, the group of each row, on the current data or on rows of a stream.

    ``rows`` and ``arrays`` are what stands for row numbers and data in the indices.
    """

    def __init__(
        self,
        rows: TensorVariable,
        arrays: Mapping[Array, TensorVariable],
        indices: Sequence[TensorVariable],
    ):
        self._arrays = dict(arrays)
        self._function = python_function([rows, *arrays.values()], list(indices))
        self._lock = Lock()  # the streams of several chains are read by threads

    def __call__(self, n_rows: int, streamed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return each index for so many rows; ``streamed`` has those of containers, by name."""
        given = [
            np.asarray(streamed.get(array.name, array_value(array)), v.dtype)
            for array, v in self._arrays.items()
        ]
        with self._lock:
            return self._function(np.arange(n_rows), *given)

    def of_streamed(self, rows: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return each index for rows of a stream, given by container."""
        return self(len(next(iter(rows.values()))), rows)


class RowGroups:
    """The groups of rows in memory, of a stream of a few.

    ``rows`` and ``arrays`` are what stands for row numbers and data in a batch's indices.
    """

    are_streamed = False

    def __init__(self, rows: TensorVariable, arrays: Mapping[Array, TensorVariable], n_rows: int):
        self._rows, self._arrays, self._n_rows = rows, arrays, n_rows

    def of(self, index: TensorVariable) -> np.ndarray:
        """Return the group of each row, as an index has it."""
        [groups] = GroupsOfData(self._rows, self._arrays, [index])(self._n_rows, {})
        return groups.astype(np.int64)

    def sizes(self, column: Column) -> np.ndarray:
        """Count the rows of each group."""
        return np.bincount(self.of(column.index) % column.n_groups, minlength=column.n_groups)

    def coarsest(self, columns: Sequence[Column]) -> int | None:
        """Return the column in whose groups all groups of the others lie, if there is one."""
        return coarsest([self.of(c.index) % c.n_groups for c in columns])

    def most_groups(self, column: Column, batch_size: int) -> int:
        """Return the slots that batches of whole groups should have."""
        return most_groups(self.sizes(column), batch_size)

    def streamed_whole(self) -> StreamedWhole | None:
        """What batches of whole groups of a stream need."""
        return None


class StreamedRowGroups(RowGroups):
    """The groups of the rows of a stream, by passes through it."""

    are_streamed = True

    def __init__(
        self,
        rows: TensorVariable,
        arrays: Mapping[Array, TensorVariable],
        n_rows: int,
        data: StreamedData,
    ):
        super().__init__(rows, arrays, n_rows)
        self._data = data
        self._places: dict[tuple[TensorVariable, int], GroupPlaces] = {}
        self._whole: StreamedWhole | None = None

    def sizes(self, column: Column) -> np.ndarray:
        """Count the rows of each group."""
        return self._places_of(column).sizes

    def coarsest(self, columns: Sequence[Column]) -> int | None:
        """Return the column in whose groups all groups of the others lie, if there is one.

        If the rows of its groups do not lie together, that is an error.
        """
        k = int(np.argmin([np.count_nonzero(self.sizes(c)) for c in columns]))
        around = self._around(columns, k) if len(columns) > 1 else {}
        if around is None:
            return None
        places = self._places_of(columns[k])
        self._refuse_scattered(columns[k], places)
        self._whole = StreamedWhole(k, places, around)
        return k

    def most_groups(self, column: Column, batch_size: int) -> int:
        """Return the slots that batches of whole groups should have."""
        floatX = pytensor.config.floatX
        return GroupWindows(self._places_of(column), self._data, batch_size, floatX).slots

    def streamed_whole(self) -> StreamedWhole | None:
        """What batches of whole groups of a stream need, once `coarsest` has found it."""
        return self._whole

    def _places_of(self, column: Column) -> GroupPlaces:
        key = column.index, column.n_groups
        if key not in self._places:
            blocks = (each[0] for each in self._blocks([column]))
            self._places[key] = GroupPlaces.counted(blocks, column.n_groups)
        return self._places[key]

    def _around(self, columns: Sequence[Column], k: int) -> dict[int, np.ndarray] | None:
        """Find in which group of column k those of all others lie; None if one is in several."""
        found = {i: np.full(c.n_groups, -1) for i, c in enumerate(columns) if i != k}
        for each in self._blocks(columns):
            for i, around in found.items():
                before = around[each[i]]
                around[each[i]] = each[k]
                same = (before < 0) | (before == each[k])
                if not (same.all() and np.array_equal(around[each[i]], each[k])):
                    return None
        return found

    def _blocks(self, columns: Sequence[Column]) -> Iterator[list[np.ndarray]]:
        """Yield the groups of rows in each column, block after block of a pass."""
        groups_of = GroupsOfData(self._rows, self._arrays, [c.index for c in columns])
        for rows in consecutive_rows(self._data, BLOCK_ROWS):
            found = []
            for index, n in zip(
                groups_of.of_streamed(rows), [c.n_groups for c in columns], strict=True
            ):
                bad = (index < -n) | (index >= n)
                if bad.any():
                    raise ValueError(
                        f"The rows of data= have the group {index[bad][0]}, but the variable has "
                        f"{n} groups, numbered from 0 to {n - 1}. Correct the data, or make a "
                        "model with more groups."
                    )
                found.append(index % n)
            yield found

    def _refuse_scattered(self, column: Column, places: GroupPlaces) -> None:
        scattered = places.scattered
        if not len(scattered):
            return
        j = scattered[0]
        made_of = set(ancestors([column.index]))
        names = [a.name for a, v in self._arrays.items() if v in made_of]
        columns = " and ".join(f"'{n}'" for n in names if n in self._data.names)
        raise ValueError(
            f"batches='groups' needs the rows of a group to lie together in data=, and those of "
            f"{len(scattered)} groups of {columns} do not: group {j} has {places.sizes[j]} rows "
            f"between row {places.first[j]} and row {places.last[j]}. Sort the data by {columns}, "
            "or use batches='rows'."
        )
