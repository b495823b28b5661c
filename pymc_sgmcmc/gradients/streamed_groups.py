"""The groups of rows that are read from a stream, and what a pass tells of the groups."""

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock

import numpy as np
import pytensor
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.compile_time import without_code
from pymc_sgmcmc.batches.group_places import GroupPlaces
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.batches.windows import consecutive_rows
from pymc_sgmcmc.gradients.arrays import PYTHON, Array, array_value

BLOCK_ROWS = 2**18
"""Rows that are read together to count those of each group."""


class StreamedGroups:
    """Evaluates indices, the group of each row, on rows of a stream.

    ``rows`` and ``arrays`` are what stands for row numbers and data in the indices; arrays with the
    names of a stream's containers get its rows.
    """

    def __init__(
        self,
        rows: TensorVariable,
        arrays: Mapping[Array, TensorVariable],
        indices: Sequence[TensorVariable],
    ):
        self._arrays = dict(arrays)
        with without_code():
            self._function = pytensor.function(
                [rows, *arrays.values()], list(indices), mode=PYTHON, on_unused_input="ignore"
            )
        self._lock = Lock()  # the streams of several chains are read by threads

    def __call__(self, rows: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return each index for some rows, given by container."""
        given = [
            np.asarray(rows.get(array.name, array_value(array)), v.dtype)
            for array, v in self._arrays.items()
        ]
        n_rows = len(next(iter(rows.values())))
        with self._lock:
            return self._function(np.arange(n_rows), *given)

    def places(self, data: StreamedData, n_groups: int) -> GroupPlaces:
        """Find the rows of each group of the first index, by a pass through the stream."""
        return GroupPlaces.counted((each[0] for each in self._blocks(data, [n_groups])), n_groups)

    def around(
        self, data: StreamedData, n_groups: Sequence[int], k: int
    ) -> dict[int, np.ndarray] | None:
        """Find in which group of index k the groups of all others lie, by a pass.

        It is None if a group lies in several.
        """
        found = {i: np.full(n, -1) for i, n in enumerate(n_groups) if i != k}
        for each in self._blocks(data, n_groups):
            for i, around in found.items():
                before = around[each[i]]
                around[each[i]] = each[k]
                same = (before < 0) | (before == each[k])
                if not (same.all() and np.array_equal(around[each[i]], each[k])):
                    return None
        return found

    def _blocks(self, data: StreamedData, n_groups: Sequence[int]) -> Iterator[list[np.ndarray]]:
        """Yield the groups of the first indices, block after block."""
        for rows in consecutive_rows(data, BLOCK_ROWS):
            found = []
            for index, n in zip(self(rows), n_groups, strict=False):
                bad = (index < -n) | (index >= n)
                if bad.any():
                    raise ValueError(
                        f"The rows of data= have the group {index[bad][0]}, but the variable has "
                        f"{n} groups, numbered from 0 to {n - 1}. Correct the data, or make a "
                        "model with more groups."
                    )
                found.append(index % n)
            yield found
