"""Gradients of a batch for the elements of the groups that it touches, in NumPy."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.blocking import PointType

from pymc_sgmcmc.adaptation.touch_rates import (
    TouchRates,
    of_groups_within,
    of_random_rows,
    of_whole_groups,
)
from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.batches.touched import GroupsOfBatches, TouchedGroups
from pymc_sgmcmc.batches.whole_groups import GroupBatches
from pymc_sgmcmc.chain import Chain
from pymc_sgmcmc.gradients.arrays import element_labels
from pymc_sgmcmc.gradients.local_scales import LocalScales
from pymc_sgmcmc.gradients.local_source import LocalSource
from pymc_sgmcmc.gradients.row_gradients import infinite_rows, refuse_infinite
from pymc_sgmcmc.kernel import Kernel
from pymc_sgmcmc.noise import NoiseStream

READ_TOGETHER = 32
"""Number of batches that are taken from a stream at a time."""


class LocalBatch(NamedTuple):
    """Rows of a batch, and the groups that they touch."""

    rows: np.ndarray
    """Row numbers, shape (n,)."""
    touched: list[GroupsOfBatches]
    """The groups of this batch, for each index column."""
    row_weights: np.ndarray | None
    """Weights of the rows, if batches have whole groups."""
    constants: list[Any] | None = None
    """Constants of a stream's batch, to whose rows the row numbers refer; None: the kernel's."""

    @property
    def arrays(self) -> list[np.ndarray]:
        """Return the arrays that describe the batch, in the form of the source's batches."""
        of_rows = [] if self.row_weights is None else [self.row_weights]
        return [self.rows, *(a[0] for touched in self.touched for a in touched), *of_rows]


class LocalGradient(NamedTuple):
    """Gradients with one entry per variable; those of local variables are in slots."""

    prior: list[np.ndarray]
    likelihood: list[np.ndarray]


class LocalGradients:
    """Gradients of batches of a step with local variables, whose kernel has its data loaded.

    ``rows_per_batch`` is n, or its mean for batches of whole groups, and ``share`` is that number /
    N.
    """

    def __init__(self, kernel: Kernel, start: PointType):
        assert isinstance(kernel.source, LocalSource)
        self.kernel, self.source = kernel, kernel.source
        self._others = [np.asarray(start[v.name], v.dtype) for v in kernel.source.others]
        [rows] = kernel.source.rows
        self.n_rows, self.batch_size = rows.n_rows, rows.batch_size
        columns = {column: k for k, column in enumerate(self.source.columns)}
        of = {v.value: v for v in self.source.variables}
        self.variables = [of.get(v) for v in self.source.vars]
        """For each variable, the description that makes it local; None if it is shared."""
        self._column = {k: columns[v.column] for k, v in enumerate(self.variables) if v is not None}
        self._stream: Iterator[LocalBatch] | None = None
        self.load_data()

    def load_data(self) -> None:
        """Read the current groups of rows; needed again after `pm.set_data`."""
        self.kernel.load_data()
        self.forget_rows()
        whole = self.kernel.whole_groups
        self._row_weight = 1.0 if whole is None else whole.row_weight
        row_weight = None if whole is None else whole.row_weight
        self._touched = [TouchedGroups(each, row_weight) for each in self.kernel.groups_of_rows]
        self.rows_per_batch = float(self.batch_size)
        if whole is not None:
            self.rows_per_batch = self.n_rows / whole.n_batches
        self.share = self.rows_per_batch / self.n_rows

    def order(self) -> tuple[np.ndarray, int, list[str]]:
        """The elements of theta, shared ones first, the number of these, and their names."""
        shapes = self.source.shapes
        metric = LocalScales(shapes, [v is not None for v in self.variables])
        shared = [k for k, local in enumerate(self.variables) if local is None]
        names = element_labels([self.source.vars[k] for k in shared], [shapes[k] for k in shared])
        return metric.order, metric.n_shared, names

    @property
    def local(self) -> list[int]:
        """Indices of the local variables."""
        return list(self._column)

    def axis(self, variable: int) -> int:
        """Return the axis of groups of a local variable."""
        local = self.variables[variable]
        assert local is not None
        return local.axis

    def _by_group(self, values: np.ndarray, variable: int) -> np.ndarray:
        """Reshape values of groups to multiply the elements of a local variable."""
        shape = [1] * len(self.source.shapes[variable])
        shape[self.axis(variable)] = len(values)
        return values.reshape(shape)

    def sizes(self, variable: int) -> np.ndarray:
        """Return the number of rows of each group, shaped to multiply a variable's elements."""
        of_rows = self.kernel.groups_of_rows[self._column[variable]]
        return self._by_group(of_rows.sizes.astype(float), variable)

    def touch_rates(self, variable: int) -> TouchRates:
        """Return how often batches touch each group of a local variable, shaped as `sizes`."""
        column, whole = self._column[variable], self.kernel.whole_groups
        sizes = self.kernel.groups_of_rows[column].sizes.astype(float)
        if whole is None:
            rates = of_random_rows(sizes, self.share)
        else:
            of_column = of_groups_within if column in whole.around else of_whole_groups
            rates = of_column(sizes, whole.parts(column), whole.n_batches)
        return TouchRates(*(self._by_group(values, variable) for values in rates))

    def batches(
        self, count: int, rng: np.random.Generator, apart: bool = False
    ) -> Iterator[LocalBatch]:
        """Draw batches as a chain's updates do; batches of a stream continue after the last ones.

        With ``apart``, as long as rows suffice, no two batches of rows in memory share a row.
        """
        if self.source.streamed is not None:
            if self._stream is None:
                self._stream = self._streamed(Chain(self.kernel, rng.spawn(1)[0], tune=0))
            return islice(self._stream, count)
        whole, n = self.kernel.whole_groups, self.batch_size
        if whole is not None:
            taken: Iterable[np.ndarray] = GroupBatches(whole, rng).take(count)
        elif apart:
            taken = rng.choice(self.n_rows, (count, n), replace=False)
        else:
            taken = (rng.integers(self.n_rows, size=n) for _ in range(count))
        return map(self.batch, taken)

    def forget_rows(self) -> None:
        """Release the windows of a stream; the next batches begin from its start."""
        self._stream = None

    def _streamed(self, chain: Chain) -> Iterator[LocalBatch]:
        """Yield a chain's batches, without end."""
        assert self.source.streamed is not None
        together = min(READ_TOGETHER, self.source.streamed.window // self.batch_size)
        while True:
            (rows, *described), constants = chain.batches_of_call(together)
            for k in range(together):
                of_columns = [
                    GroupsOfBatches(*(a[k : k + 1] for a in described[c : c + 3]))
                    for c in range(0, len(described), 3)
                ]
                yield LocalBatch(rows[k], of_columns, None, constants)

    def batch(self, rows: np.ndarray) -> LocalBatch:
        """Find the groups of some rows, shape (n,)."""
        touched = [groups.of(rows[None]) for groups in self._touched]
        whole = self.kernel.whole_groups
        return LocalBatch(rows, touched, None if whole is None else whole.weights(rows[None])[0])

    def slots(self, variable: int, batch: LocalBatch) -> tuple:
        """Return the index of the used slots in a local variable's array, and in one of slots."""
        touched = batch.touched[self._column[variable]]
        used = int(np.count_nonzero(touched.weights[0]))  # unused slots come last
        before = (slice(None),) * self.axis(variable)
        return (*before, touched.groups[0][:used]), (*before, slice(used))

    def rows_per_seen(self, variable: int, batch: LocalBatch) -> np.ndarray:
        """Return n_j / m_j of the used slots, shaped to multiply their elements."""
        weights = batch.touched[self._column[variable]].weights[0] * self._row_weight
        return self._by_group(weights[weights > 0].astype(float), variable)

    def gathered(self, theta: Sequence[np.ndarray], batch: LocalBatch) -> list[np.ndarray]:
        """Take the elements in the slots, even unused ones; shared variables are taken whole."""
        elements = list(theta)
        for k, column in self._column.items():
            groups = batch.touched[column].groups[0]
            elements[k] = np.take(theta[k], groups, axis=self.axis(k))
        return elements

    def at(self, elements: Sequence[np.ndarray], batch: LocalBatch) -> LocalGradient:
        """Evaluate a batch's gradients at `gathered` elements, scaled as for an update."""
        typed = [np.asarray(e, v.dtype) for e, v in zip(elements, self.source.vars, strict=True)]
        constants = self.kernel.constants if batch.constants is None else batch.constants
        inputs = [*typed, *batch.arrays, *constants, *self._others]
        out = [np.asarray(o, float) for o in self._function(*inputs)]
        if batch.constants is not None and not all(np.isfinite(o).all() for o in out):
            self._refuse_infinite(batch)
        k = len(typed)
        return LocalGradient(out[:k], out[k:])

    def _refuse_infinite(self, batch: LocalBatch) -> None:
        """Raise an error for a batch of a stream without a gradient if it has infinite values."""
        assert self.source.streamed is not None
        assert batch.constants is not None
        places = self.kernel.places
        rows = {
            name: np.asarray(batch.constants[places[name]])[batch.rows]
            for name in self.source.streamed.names
        }
        refuse_infinite(rows, ~np.any(list(infinite_rows(rows).values()), axis=0))

    @cached_property
    @quick_graphs()
    def _function(self) -> Callable:
        source = self.source
        batch = [pt.tensor(shape=(n,), dtype=dtype) for n, dtype in source.batch_types]
        theta = source.of_batch.vars
        evaluation = source.at(theta, batch, source.constants, {}, NoiseStream(None))
        kwargs = {k: v for k, v in self.kernel.compile_kwargs.items() if k != "mode"}
        mode = self.kernel.mode.including("local_remove_check_parameter")
        function = pytensor.function(
            [*theta, *batch, *source.constants],
            [*evaluation.prior, *evaluation.likelihood],
            mode=with_cheap_calls(mode),
            on_unused_input="ignore",
            **kwargs,
        )
        function.trust_input = True
        return function
