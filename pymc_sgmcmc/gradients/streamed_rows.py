"""Log likelihood and gradient of single rows of streamed data."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_sgmcmc.backends.backend import Jax
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.batches.windows import consecutive_rows, shuffled_windows
from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.gradients.flat_prior import Vector
from pymc_sgmcmc.gradients.row_gradients import Likelihood, RowGradients, RowLikelihoods


class StreamedRowGradients(RowGradients):
    """Gradients of single rows of data that stay on disk.

    A sum over all rows takes a pass through the stream. Rows that are looked at by number are those
    of a sample in memory: the rows of one shuffle window.

    Parameters
    ----------
    model : pymc.Model
        With placeholders.
    vars : list of value variables
    data : StreamedData
    **options
        As for `RowGradients`.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> from pymc_sgmcmc.gradients.streamed_rows import StreamedRowGradients
    >>> data = sgm.StreamedData({"y": np.arange(10_000.0)}, window=1000, chunk=10)
    >>> with pm.Model() as model:
    ...     y = pm.Data("y", data.head()["y"], dims="obs")
    ...     mu = pm.Normal("mu", 0, 10)
    ...     likelihood = pm.Normal("likelihood", mu, 1, observed=y, dims="obs")
    >>> rows = StreamedRowGradients(model, model.value_vars, data=data)
    >>> rows.n_at_hand, rows.likelihood(np.array([0.0])).gradient
    (1000, array([49995000.]))
    """

    def __init__(self, model: Model, vars: list, *, data: StreamedData, **options: Any):
        super().__init__(model, vars, data=data, **options)
        assert self.source.streamed is not None
        self.data = self.source.streamed
        self.sample = next(shuffled_windows(self.data, np.random.default_rng(0))).rows
        names = [array.name for array, _ in self.source.data]
        self._places = {name: names.index(name) for name in self.data.names}

    @property
    def n_at_hand(self) -> int:
        return len(next(iter(self.sample.values())))

    def likelihood(self, theta, index=None, scatter=True):
        found = super().likelihood(theta, index, scatter)
        if index is not None or self._n_read == self.n_rows:
            return found
        scale = self.n_rows / self._n_read  # a loader may drop the rows of its last batch
        products = None if found.scatter is None else scale * found.scatter
        return Likelihood(scale * found.value, scale * found.gradient, products)

    def _blocks(self, theta, index):
        index = self._checked(index)
        split = self.split(theta)
        for first in range(0, len(index), self.block):
            some = index[first : first + self.block]
            rows = {name: np.take(column, some, axis=0) for name, column in self.sample.items()}
            yield self._block(first, split, rows)

    def _all_blocks(self, theta: Vector) -> Iterator[RowLikelihoods]:
        split = self.split(theta)
        arrays = [array_value(array) for array, _ in self.source.data]
        first = 0
        for rows in consecutive_rows(self.data, self.block):
            self.index_check.of_streamed(arrays, rows)
            block = self._block(first, split, rows)
            self._n_read = first = block.place.stop
            yield block

    def _block(
        self, first: int, split: list[np.ndarray], rows: Mapping[str, np.ndarray]
    ) -> RowLikelihoods:
        m = len(next(iter(rows.values())))
        constants = list(self.constants)
        for name, column in rows.items():
            if isinstance(self.backend, Jax):  # compiles for each length
                padding = [(0, self.block - m)] + [(0, 0)] * (column.ndim - 1)
                column = np.pad(column, padding, mode="edge")
            constants[self._places[name]] = self.backend.array(column)
        value, gradient = self._evaluated(split, np.arange(m), constants, self._of_rows)
        _refuse_infinite(rows, np.isfinite(value) & np.isfinite(gradient).all(axis=1))
        return RowLikelihoods(slice(first, first + m), value, gradient)


def _refuse_infinite(rows: Mapping[str, np.ndarray], is_finite: np.ndarray) -> None:
    """Raise an error where infinite values, and nothing else, leave rows without a density.

    Some are fine, as bounds of a censored variable.
    """
    if is_finite.all():
        return
    for name, column in rows.items():
        infinite = np.isinf(column).reshape(len(column), -1).any(axis=1)
        if (infinite | is_finite).all():
            raise ValueError(
                f"data['{name}'] has infinite values in {int((infinite & ~is_finite).sum())} of "
                f"the {len(column)} rows just read, which have no log likelihood: drop or replace "
                "them."
            )
