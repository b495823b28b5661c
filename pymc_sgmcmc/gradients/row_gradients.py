"""Log likelihood and gradient of single rows, as functions of one flat vector."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.blocking import PointType
from pymc.model import Model
from pytensor.scan.basic import scan
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.blas_threads import blas_threads
from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.backends.cores import n_cores
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.batches.windows import shuffled_windows
from pymc_sgmcmc.gradients.flat_model import FlatModel, RowBlock, Vector
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.gradients.pm_minibatch import refuse_minibatch
from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.pymc_internals import jitted

BLOCK_ROWS = 4096
"""Largest number of rows in one compiled call."""
BLOCK_ELEMENTS = 2**22
"""Largest number of elements of the gradients in one compiled call: fewer rows if d is large."""
MOST_LOOKED_UP = 10_000_000
"""Largest number of elements of all rows' gradients at a point that are stored for reuse."""
THREADS_FROM = 500
"""Number of parameters from which sums of products of gradients are computed in several threads."""


class Likelihood(NamedTuple):
    """Sums over rows."""

    value: float
    """Log likelihood."""
    gradient: Vector
    """Gradient of the log likelihood, shape (d,)."""
    scatter: np.ndarray | None
    """Sum of g g' over the rows' gradients g, shape (d, d)."""


class RowGradients(FlatModel):
    """The likelihood of single rows of a model, and the prior, as functions of one flat vector.

    For data that stay on disk, a sum over all rows takes a pass through the stream, and only the
    rows of a sample in memory, one shuffle window, have numbers.
    """

    def __init__(
        self,
        model: Model,
        vars: list[TensorVariable],
        *,
        minibatch_dim: str | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        start: PointType | None = None,
        data: StreamedData | None = None,
    ):
        refuse_minibatch(model, "single rows")
        source = gradient_source(
            model, vars, batch_size=1, minibatch_dim=minibatch_dim, self_check=False, data=data
        )
        super().__init__(model, source, compile_kwargs, start)
        self.block = int(np.clip(BLOCK_ELEMENTS // max(self.size, 1), 1, BLOCK_ROWS))

    @property
    def _blas_threads(self) -> int:
        """Number of threads for products of gradients."""
        return n_cores() if self.size >= THREADS_FROM else 1

    @cached_property
    def sample(self) -> dict[str, np.ndarray]:
        """The streamed rows that have numbers."""
        assert self.source.streamed is not None
        return next(shuffled_windows(self.source.streamed, np.random.default_rng(0))).rows

    @property
    def n_at_hand(self) -> int:
        """Number of rows that have numbers: all of them, unless they are streamed."""
        return (
            self.n_rows if self.source.streamed is None else len(next(iter(self.sample.values())))
        )

    def rows(self, theta: Vector, index: Sequence[int] | np.ndarray) -> tuple[Vector, np.ndarray]:
        """Return unscaled log likelihoods and gradients of rows, shapes (m,) and (m, d).

        ``index`` has row numbers below ``n_at_hand``.
        """
        values, gradients = np.empty(len(index)), np.empty((len(index), self.size))
        first, split = 0, self.split(theta)
        for block in self._blocks(index):
            place = slice(first, first := first + len(block.numbers))
            values[place], gradients[place] = self._evaluated(self._of_rows, split, block)
        return values, gradients

    def rows_of(
        self, theta: Vector, requests: int
    ) -> Callable[[Sequence[int] | np.ndarray], np.ndarray]:
        """Return a function that gives gradients of rows, shape (m, d), at one point.

        They are looked up if all rows are fewer than the ``requests`` that will follow.
        """
        n = self.n_at_hand
        if n > requests or n * self.size > MOST_LOOKED_UP:
            return lambda index: self.rows(theta, index)[1]
        return self.rows(theta, np.arange(n))[1].__getitem__

    def rows_at(self, points: np.ndarray, index: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return unscaled gradients of rows, shape (m, d), each at its own point, shape (m, d)."""
        gradients, first = np.empty((len(index), self.size)), 0
        for block in self._blocks(index):
            place = slice(first, first := first + len(block.numbers))
            split = self.split(self._padded(points[place]))
            gradients[place] = self._evaluated(self._of_rows_at, split, block)[1]
        return gradients

    def likelihood(
        self,
        theta: Vector,
        index: Sequence[int] | np.ndarray | None = None,
        scatter: bool = True,
    ) -> Likelihood:
        """Return sums of the rows' log likelihoods, gradients g and, with ``scatter``, g g'.

        Without ``index`` the sums are over all rows, each taken once.
        """
        split, n_read = self.split(theta), 0
        total, gradient = 0.0, np.zeros(self.size)
        products = np.zeros((self.size, self.size)) if scatter else None
        for block in self._blocks(index):
            values, gradients = self._evaluated(self._of_rows, split, block)
            n_read += len(values)
            total += float(values.sum())
            gradient += gradients.sum(axis=0)
            if products is not None:
                with blas_threads(self._blas_threads):
                    products += gradients.T @ gradients
        # A loader may drop the rows of its last batch.
        scale = self.n_rows / n_read if index is None and n_read else 1.0
        return Likelihood(
            scale * total, scale * gradient, None if products is None else scale * products
        )

    def _blocks(self, index: Sequence[int] | np.ndarray | None) -> Iterator[RowBlock]:
        """Yield the rows in ``index``, or all rows, each once."""
        streamed = self.source.streamed is not None
        if index is None and streamed:
            yield from self.stream(self.block)
            return
        index = np.arange(self.n_rows) if index is None else np.asarray(index, "int64")
        for first in range(0, len(index), self.block):
            numbers, columns = index[first : first + self.block], {}
            if streamed:
                columns = {name: np.take(c, numbers, axis=0) for name, c in self.sample.items()}
                numbers = np.arange(len(numbers))
            yield RowBlock(numbers, columns)

    def _padded(self, array: np.ndarray) -> np.ndarray:
        """Repeat the last row to fill a whole block on JAX, which compiles for each length."""
        if not self.backend.pads_lengths:
            return array
        padding = [(0, self.block - len(array))] + [(0, 0)] * (array.ndim - 1)
        return np.pad(array, padding, mode="edge")

    def _evaluated(
        self, function: Callable, split: Sequence[np.ndarray], block: RowBlock
    ) -> tuple[Vector, np.ndarray]:
        """Return log likelihoods and gradients of at most a block of rows."""
        m = len(block.numbers)
        columns = {name: self._padded(column) for name, column in block.columns.items()}
        constants = self.with_rows(columns)
        numbers = self._padded(block.numbers).reshape(-1, *self._one_row)
        value, *gradient = function(numbers, *split, *constants)
        value = np.asarray(value, dtype="float64")[:m]
        joined = np.empty((m, self.size))
        for part, g in zip(self.parts, gradient, strict=True):
            joined[:, part] = np.asarray(g)[:m].reshape(m, -1)
        if columns:
            finite = np.isfinite(value) & np.isfinite(joined).all(axis=1)
            refuse_infinite(block.columns, finite)
        return value, joined

    @property
    def _one_row(self) -> tuple[int, ...]:
        """Shape of a row number: costly rows share the code of batches, whose length is unknown."""
        return (1,) if self.source.is_costly else ()

    # There are two functions, because the first evaluates only once what depends on theta alone:
    # the second takes up to twice as long if groups share predictors or rows share a covariance.
    @cached_property
    def _of_rows(self) -> Callable:
        """Function of row numbers, the variables and the data."""
        return self._mapped(n_mapped=1)

    @cached_property
    def _of_rows_at(self) -> Callable:
        """Function of row numbers, the variables' values for each row, and the data."""
        return self._mapped(n_mapped=1 + len(self.source.vars))

    @quick_graphs()
    def _mapped(self, n_mapped: int) -> Callable:
        """Compile a function of the row number, the variables and the data.

        Its first ``n_mapped`` inputs are mapped over rows.
        """
        source = self.source
        k = len(source.vars)
        row = pt.tensor("row", dtype="int64", shape=(None,) * len(self._one_row))
        theta = [
            TensorType(v.dtype, shape)(v.name)
            for v, shape in zip(source.vars, source.shapes, strict=True)
        ]
        constants = [c.type(c.name) for c in source.constants[1:]]  # without N / n
        not_scaled = pt.constant(1, dtype=source.rows[0].scale.dtype)

        def one_row(row, *inputs):
            replaced = [*inputs[:k], pt.atleast_1d(row), not_scaled, *inputs[k:]]
            replace = dict(zip(source.inputs, replaced, strict=True))
            return substitute([source.log_likelihood, *source.likelihood], replace)

        inputs = [row, *theta, *constants]
        if self.backend.maps_functions:
            function = pytensor.function(
                inputs, one_row(*inputs), mode=self.mode, **self.compile_kwargs
            )
            return self.backend.mapped(jitted(function), n_mapped, len(inputs) - n_mapped)
        mapped = [TensorType(v.dtype, (None, *v.type.shape))(v.name) for v in inputs[:n_mapped]]
        same = inputs[n_mapped:]
        outputs = scan(
            one_row, sequences=mapped, non_sequences=same, strict=True, return_updates=False
        )
        return self.compiled([*mapped, *same], outputs)


def refuse_infinite(rows: Mapping[str, np.ndarray], is_finite: np.ndarray) -> None:
    """Raise an error if infinite values are the only cause for rows without a density.

    Some infinite values are valid, such as bounds of a censored variable.
    """
    bad = ~is_finite
    infinite = infinite_rows(rows)
    if not bad.any() or (bad & ~np.any(list(infinite.values()), axis=0)).any():
        return
    names = [f"data['{name}']" for name, of_rows in infinite.items() if (bad & of_rows).any()]
    raise ValueError(
        f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} infinite values in "
        f"{bad.sum()} of the {len(bad)} rows just read, which have no log likelihood: drop or "
        "replace them."
    )


def infinite_rows(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return which rows of each container have infinite values."""
    return {
        name: np.isinf(column).reshape(len(column), -1).any(axis=1) for name, column in rows.items()
    }
