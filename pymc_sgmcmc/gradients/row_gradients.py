"""Log likelihood and gradient of single rows, as functions of one flat vector."""

from collections.abc import Callable, Iterator, Sequence
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

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.gradients.flat_prior import FlatPrior, Vector
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.gradients.pm_minibatch import refuse_minibatch
from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.pymc_internals import jitted

BLOCK_ROWS = 4096
"""Rows of one compiled call, at most."""
BLOCK_ELEMENTS = 2**22
"""Elements of the gradients of one compiled call: fewer rows where d is large."""


class Likelihood(NamedTuple):
    """Sums over rows."""

    value: float
    """Log likelihood."""
    gradient: Vector
    """Shape (d,)."""
    scatter: np.ndarray | None
    """Sum of g g' over the rows' gradients g, shape (d, d)."""


class RowLikelihoods(NamedTuple):
    """Some rows' log likelihoods and gradients."""

    place: slice
    """Among the rows that were asked for."""
    log_likelihood: Vector
    """Shape (m,)."""
    gradient: np.ndarray
    """Shape (m, d)."""


class RowGradients(FlatPrior):
    """The likelihood of single rows of a model, and the prior, as functions of one flat vector.

    All functions take and return float64; the model is evaluated in its own float type.

    Parameters
    ----------
    model : pymc.Model
    vars : list of value variables
        Those to differentiate with respect to.
    minibatch_dim : str, optional
        The dim along which rows lie; needed only if several dims qualify.
    compile_kwargs : dict, optional
        Arguments of `pytensor.function`, for example ``{"mode": "JAX"}``.
    start : dict of arrays, optional
        Values of the variables that are not in ``vars``; default: the model's initial point.
    data : StreamedData, optional
        Rows that stay on disk; only `StreamedRowGradients` reads them.

    Attributes
    ----------
    n_rows : int
        N, the current number of rows.
    n_at_hand : int
        Rows that can be looked at by number: all of them, unless they are streamed.

    Raises
    ------
    ValueError
        If the model cannot be cut into rows, or is written with `pm.Minibatch`.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pymc_sgmcmc.gradients.row_gradients import RowGradients
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.array([-1.0, 0.0, 2.0]))
    >>> rows = RowGradients(model, model.value_vars)
    >>> _, gradients = rows.rows(np.array([0.5]), [0, 2])
    >>> gradients
    array([[-1.5],
           [ 1.5]])
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
    def n_rows(self) -> int:
        """N, the current number of rows."""
        return self.source.rows[0].n_rows

    @property
    def n_at_hand(self) -> int:
        """Rows that can be looked at by number."""
        return self.n_rows

    def rows(self, theta: Vector, index: Sequence[int] | np.ndarray) -> tuple[Vector, np.ndarray]:
        """Log likelihood and gradient of single rows, not scaled.

        Parameters
        ----------
        theta : array, shape (d,)
        index : integers, shape (m,)
            Numbers of rows, from 0 to ``n_at_hand`` - 1.

        Returns
        -------
        log_likelihood : array, shape (m,)
            Sum of all observed terms of each row.
        gradient : array, shape (m, d)
        """
        values, gradients = np.empty(len(index)), np.empty((len(index), self.size))
        for block, value, gradient in self._blocks(theta, index):
            values[block], gradients[block] = value, gradient
        return values, gradients

    def rows_at(self, points: np.ndarray, index: Sequence[int] | np.ndarray) -> np.ndarray:
        """Gradient of single rows, each at a point of its own; not scaled.

        Parameters
        ----------
        points : array, shape (m, d)
        index : integers, shape (m,)
            Numbers of rows, from 0 to ``n_at_hand`` - 1.

        Returns
        -------
        array, shape (m, d)
        """
        index, gradients = self._checked(index), np.empty((len(index), self.size))
        for first in range(0, len(index), self.block):
            block = slice(first, first + self.block)
            split = self._split_rows(points[block])
            gradients[block] = self._evaluated(
                split, index[block], self.constants, self._of_rows_at
            )[1]
        return gradients

    def likelihood(
        self,
        theta: Vector,
        index: Sequence[int] | np.ndarray | None = None,
        scatter: bool = True,
    ) -> Likelihood:
        """Sums of the rows' log likelihoods, gradients g and, if asked, of g g'.

        Parameters
        ----------
        theta : array, shape (d,)
        index : integers, shape (m,), optional
            Numbers of rows; default: all of them, each once.
        scatter : bool, default True
            Whether to add up g g'.
        """
        blocks = self._all_blocks(theta) if index is None else self._blocks(theta, index)
        total, gradient = 0.0, np.zeros(self.size)
        products = np.zeros((self.size, self.size)) if scatter else None
        for _, values, gradients in blocks:
            total += float(values.sum())
            gradient += gradients.sum(axis=0)
            if products is not None:
                products += gradients.T @ gradients
        return Likelihood(total, gradient, products)

    def _checked(self, index: Sequence[int] | np.ndarray) -> np.ndarray:
        index = np.asarray(index)
        if index.ndim != 1 or (index.size and not np.issubdtype(index.dtype, np.integer)):
            raise ValueError(
                f"index must be a vector of row numbers, but has the shape {index.shape} and the "
                f"type {index.dtype}."
            )
        bad = index[(index < 0) | (index >= self.n_at_hand)]
        if bad.size:
            raise ValueError(
                f"index has the row {bad[0]}, but the rows are numbered from 0 to "
                f"{self.n_at_hand - 1}."
            )
        return index.astype("int64")

    def _blocks(self, theta: Vector, index: Sequence[int] | np.ndarray) -> Iterator[RowLikelihoods]:
        """Log likelihoods and gradients of some rows, block by block."""
        index = self._checked(index)
        split = self.split(theta)
        for first in range(0, len(index), self.block):
            rows = index[first : first + self.block]
            place = slice(first, first + len(rows))
            evaluated = self._evaluated(split, rows, self.constants, self._of_rows)
            yield RowLikelihoods(place, *evaluated)

    def _all_blocks(self, theta: Vector) -> Iterator[RowLikelihoods]:
        """Log likelihoods and gradients of all rows, each once."""
        return self._blocks(theta, np.arange(self.n_rows))

    def _split_rows(self, points: np.ndarray) -> list[np.ndarray]:
        """Points, one per row, cut into the variables."""
        if self.backend.pads_lengths:  # compiles for each length
            points = np.pad(points, ((0, self.block - len(points)), (0, 0)), mode="edge")
        source = self.source
        return [
            points[:, part].reshape(len(points), *shape).astype(v.dtype)
            for v, part, shape in zip(source.vars, self.parts, source.shapes, strict=True)
        ]

    def _evaluated(
        self,
        split: Sequence[np.ndarray],
        rows: np.ndarray,
        constants: Sequence[Any],
        function: Callable,
    ) -> tuple[Vector, np.ndarray]:
        """Log likelihoods and gradients of at most a block of rows."""
        m = len(rows)
        if self.backend.pads_lengths:  # compiles for each length
            rows = np.pad(rows, (0, self.block - m), mode="edge")
        value, *gradient = function(rows, *split, *constants)
        joined = np.empty((m, self.size))
        for part, g in zip(self.parts, gradient, strict=True):
            joined[:, part] = np.asarray(g)[:m].reshape(m, -1)
        return np.asarray(value, dtype="float64")[:m], joined

    @cached_property
    def _of_rows(self) -> Callable:
        """A function of row numbers, the variables and the data."""
        return self._compiled(n_mapped=1)

    @cached_property
    def _of_rows_at(self) -> Callable:
        """... of the variables' values for each row."""
        return self._compiled(n_mapped=1 + len(self.source.vars))

    @quick_graphs()
    def _compiled(self, n_mapped: int) -> Callable:
        """Compile a function of the row number, the variables and the data.

        Its first inputs are mapped over rows.
        """
        source = self.source
        k = len(source.vars)
        row = pt.lscalar("row")
        theta = [
            TensorType(v.dtype, shape)(v.name)
            for v, shape in zip(source.vars, source.shapes, strict=True)
        ]
        constants = [c.type(c.name) for c in source.constants[1:]]  # without N / n
        not_scaled = pt.constant(1, dtype=source.rows[0].scale.dtype)

        def one_row(row, *inputs):
            replaced = [*inputs[:k], row[None], not_scaled, *inputs[k:]]
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
        mode = with_cheap_calls(self.mode)
        function = pytensor.function([*mapped, *same], outputs, mode=mode, **self.compile_kwargs)
        function.trust_input = True
        return function
