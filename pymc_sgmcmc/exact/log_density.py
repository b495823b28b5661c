"""The log posterior of all rows at many points, in one pass over the data.

A block of rows is evaluated at all points together, as one matrix product.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import vectorize_graph
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable
from threadpoolctl import ThreadpoolController

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.backends.cores import n_cores
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.gradients.flat_model import FlatModel
from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.integration.integrated_model import IntegratedModel
from pymc_sgmcmc.pymc_internals import jitted, runs_python

IN_CACHE, ON_DEVICE = 2**18, 2**25
"""Number of rows times points in one call, on a CPU and on an accelerator."""
GROUPS = 256
"""Number of groups of rows in one call, if effects are integrated out."""
POINTS = 64
"""Number of points in one call for all data, if these are not cut into rows."""
STREAMED_ROWS = 2**17
"""Number of a stream's rows that are read together."""


class NotAllRead(ValueError):
    """A stream has not yielded all its rows, so a sum over them cannot be determined."""


class LogDensity:
    """Log posterior of all data, and its gradient, at many points, with all constants.

    ``evaluations`` counts the points at which all rows have been evaluated.
    """

    def __init__(self, gradients: FlatModel):
        self.gradients, self.size = gradients, gradients.size
        self.by_point = isinstance(gradients.model, IntegratedModel)
        """Whether points are taken one by one, since those of groups share no matrix product."""
        self._on_numba = isinstance(gradients.mode.linker, NumbaLinker)
        self._runs_python = False  # operations in Python are not safe in threads
        self.evaluations = 0

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Return the log density, shape (C,), at points of shape (C, d)."""
        return self._summed(points, *self._values)[0]

    def with_gradients(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log density, shape (C,), and its gradient, shape (C, d), at C points."""
        value, *parts = self._summed(points, *self._with_gradients)
        return value, np.concatenate([part.reshape(len(points), -1) for part in parts], axis=1)

    def numbers(self) -> int:
        """Count the data values that a point's density reads."""
        own = self.gradients
        if own.source.streamed is None:
            each = sum(constant.size for constant in own.constants)
        else:
            columns = next(own.stream(1)).columns.values()
            each = own.n_rows * sum(np.size(column) for column in columns)
        return each * (len(own.model.points.x) if self.by_point else 1)

    # ---- sums over rows --------------------------------------------------------------------

    def _summed(self, points: np.ndarray, of_rows: Callable, prior: Callable) -> list[np.ndarray]:
        if not self.gradients.source.rows and len(points) > POINTS:
            cut = np.split(points, range(POINTS, len(points), POINTS))
            each = [self._summed(some, of_rows, prior) for some in cut]
            return [np.concatenate(parts) for parts in zip(*each, strict=True)]
        split = self.gradients.split(points)
        with np.errstate(all="ignore"):
            total = [np.array(part, "float64") for part in prior(*split)]
            for parts in self._evaluated(of_rows, split):
                for own, part in zip(total, parts, strict=True):
                    own += np.asarray(part, "float64")
        self.evaluations += len(points)
        return total

    def _evaluated(self, of_rows: Callable, split: list[np.ndarray]) -> Iterator[list]:
        """Yield the contribution of each block of rows, in their order."""
        backend = self.gradients.backend
        if backend.maps_functions:  # calls return before they have ended
            on_device = [backend.array(part) for part in split]
            yield from [of_rows(*on_device, *block) for block in self._blocks(len(split[0]))]
            return
        # BLAS threads would compete with those of the blocks.
        with _blas().limit(limits=1), ThreadPoolExecutor(self._n_threads) as threads:
            blocks = self._blocks(len(split[0]))
            yield from threads.map(lambda block: of_rows(*split, *block), blocks)

    @property
    def _n_threads(self) -> int:
        return n_cores() if self._on_numba and not self._runs_python else 1

    def _blocks(self, n_points: int) -> Iterator[list]:
        """Yield the first row, the numbers of the rows after it and the data of each block."""
        own = self.gradients
        if not own.source.rows:
            yield list(own.constants)
            return
        length = self._block_rows(n_points)
        if own.source.streamed is None:
            yield from self._cut(own.n_rows, length, list(own.constants))
            return
        n_read = 0
        for rows in own.stream(STREAMED_ROWS):
            n_read += len(rows.numbers)
            yield from self._cut(len(rows.numbers), length, own.with_rows(rows.columns))
        if n_read != own.n_rows:
            raise NotAllRead(
                f"data= has yielded {n_read} of its {own.n_rows} rows in a pass, so the posterior "
                "of all of them cannot be evaluated: let it keep the rows of its last batch."
            )

    def _cut(self, n: int, length: int, constants: list) -> Iterator[list]:
        array = self.gradients.backend.array
        numbers = array(np.arange(min(n, length)))
        for first in range(0, n, length):
            yield [np.array(first), numbers[: n - first], *constants]

    def _block_rows(self, n_points: int) -> int:
        if self.by_point:
            return GROUPS
        backend = self.gradients.backend
        at_once = ON_DEVICE if backend.has_accelerator else IN_CACHE
        return max(64, at_once // n_points)

    # ---- compiled functions ----------------------------------------------------------------

    @cached_property
    def _values(self) -> tuple[Callable, Callable]:
        source = self.gradients.source
        return self._compiled([source.log_likelihood]), self._of_prior([source.log_prior])

    @cached_property
    def _with_gradients(self) -> tuple[Callable, Callable]:
        source = self.gradients.source
        of_rows = self._compiled([source.log_likelihood, *source.likelihood])
        return of_rows, self._of_prior([source.log_prior, *source.prior])

    @property
    def _many(self) -> list[TensorVariable]:
        """Inputs for the variables of many points."""
        source = self.gradients.source
        return [
            TensorType(v.dtype, (None, *shape))(v.name)
            for v, shape in zip(source.vars, source.shapes, strict=True)
        ]

    def _mapped(self, outputs: list[TensorVariable], many: list[TensorVariable]) -> list:
        """Turn expressions of one point into those of many."""
        vars = self.gradients.source.vars
        # What does not depend on the point has no axis of points yet.
        zero = pt.add(*(0 * v.sum() for v in vars)).astype(outputs[0].dtype)
        return vectorize_graph([o + zero for o in outputs], dict(zip(vars, many, strict=True)))

    def _of_prior(self, outputs: list[TensorVariable]) -> Callable:
        """Return an uncompiled function, because the prior is small."""
        many = self._many
        return self.gradients.in_python(many, self._mapped(outputs, many))

    @quick_graphs()
    def _compiled(self, outputs: list[TensorVariable]) -> Callable:
        """Compile a function of points, a block of rows and the data."""
        own, source = self.gradients, self.gradients.source
        block: list[TensorVariable] = []
        if source.rows:
            [rows] = source.rows
            first, numbers = pt.lscalar("first"), pt.lvector("numbers")
            block = [first, numbers]
            not_scaled = pt.constant(1, dtype=rows.scale.dtype)
            outputs = substitute(outputs, {rows.index: first + numbers, rows.scale: not_scaled})
        constants = source.constants[len(source.rows) :]
        many = self._many
        inputs: list[TensorVariable] = list(source.vars)
        if not self.by_point:
            inputs, outputs = many, self._mapped(outputs, many)
        function = pytensor.function(
            [*inputs, *block, *constants],
            outputs,
            mode=with_cheap_calls(own.mode),
            **own.compile_kwargs,
        )
        self._runs_python = self._runs_python or (self._on_numba and runs_python(function))
        if self._on_numba or own.backend.maps_functions:
            function = jitted(function)  # PyTensor's wrapper is not safe in threads
        else:
            function.trust_input = True
        return _one_by_one(function, len(many)) if self.by_point else function


def _one_by_one(function: Callable, n_mapped: int) -> Callable:
    """Map a function over its first arguments."""

    def call(*arrays: Any) -> list[np.ndarray]:
        mapped, same = arrays[:n_mapped], arrays[n_mapped:]
        each = [function(*map(np.asarray, point), *same) for point in zip(*mapped, strict=True)]
        return [np.array(column) for column in zip(*each, strict=True)]

    return call


@cache
def _blas() -> ThreadpoolController:
    """The controller of BLAS's threads; finding its libraries takes milliseconds."""
    return ThreadpoolController()
