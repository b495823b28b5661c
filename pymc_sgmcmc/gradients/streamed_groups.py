"""The groups of rows that are read from a stream, and the sizes of the groups by one pass."""

from collections.abc import Mapping, Sequence
from threading import Lock

import numpy as np
import pytensor
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.compile_time import without_code
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.batches.windows import consecutive_rows
from pymc_sgmcmc.gradients.arrays import PYTHON, Array, array_value

BLOCK_ROWS = 2**18
"""Rows that are read together to count those of each group."""


class StreamedGroups:
    """Evaluates indices on rows of a stream.

    Parameters
    ----------
    rows : integer vector
        Row numbers, ...
    arrays : mapping of Array to variable
        ... and what stands for data, in the indices. Those with the names of a stream's containers
        get its rows.
    indices : list of integer vectors
        The group of each row.
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

    def sizes(self, data: StreamedData, n_groups: int) -> np.ndarray:
        """Count the rows of each group of the first index, by a pass through the stream.

        Raises
        ------
        ValueError
            For an index out of range.
        """
        sizes = np.zeros(n_groups, dtype=np.int64)
        for rows in consecutive_rows(data, BLOCK_ROWS):
            index = self(rows)[0]
            bad = (index < -n_groups) | (index >= n_groups)
            if bad.any():
                raise ValueError(
                    f"The rows of data= have the group {index[bad][0]}, but the variable has "
                    f"{n_groups} groups, numbered from 0 to {n_groups - 1}. Correct the data, or "
                    "make a model with more groups."
                )
            sizes += np.bincount(index % n_groups, minlength=n_groups)
        return sizes
