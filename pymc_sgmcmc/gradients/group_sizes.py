"""What the data say about the groups of an index: their sizes, and how they are nested."""

from collections.abc import Mapping, Sequence
from threading import Lock

import numpy as np
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.batches.windows import consecutive_rows
from pymc_sgmcmc.gradients.arrays import Array, array_value, python_function
from pymc_sgmcmc.gradients.local_model import Column

BLOCK_ROWS = 2**18
"""Number of rows that are read together to count those of each group."""


class GroupsOfData:
    """Evaluates indices, the group of each row, on the current data or on rows of a stream.

    ``rows`` and ``arrays`` are the placeholders for row numbers and data in the indices.
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
        """Return each index for ``n_rows`` rows; ``streamed`` has rows by container name."""
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
    """The groups of rows in memory; of a stream, only a few rows are known.

    ``rows`` and ``arrays`` are the placeholders for row numbers and data in a batch's indices.
    """

    are_streamed = False

    def __init__(self, rows: TensorVariable, arrays: Mapping[Array, TensorVariable], n_rows: int):
        self._rows, self._arrays, self._n_rows = rows, arrays, n_rows

    def of(self, index: TensorVariable) -> np.ndarray:
        """Return the group of each row according to an index."""
        [groups] = GroupsOfData(self._rows, self._arrays, [index])(self._n_rows, {})
        return groups.astype(np.int64)

    def sizes(self, column: Column) -> np.ndarray:
        """Count the rows of each group."""
        return np.bincount(self.of(column.index) % column.n_groups, minlength=column.n_groups)


class StreamedRowGroups(RowGroups):
    """The groups of the rows of a stream, found by passes through it."""

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

    def sizes(self, column: Column) -> np.ndarray:
        """Count the rows of each group."""
        groups_of = GroupsOfData(self._rows, self._arrays, [column.index])
        n = column.n_groups
        sizes = np.zeros(n, dtype=np.int64)
        for rows in consecutive_rows(self._data, BLOCK_ROWS):
            [index] = groups_of.of_streamed(rows)
            bad = (index < -n) | (index >= n)
            if bad.any():
                raise ValueError(
                    f"The rows of data= have the group {index[bad][0]}, but the variable has {n} "
                    f"groups, numbered from 0 to {n - 1}. Correct the data, or make a model with "
                    "more groups."
                )
            sizes += np.bincount(index % n, minlength=n)
        return sizes
