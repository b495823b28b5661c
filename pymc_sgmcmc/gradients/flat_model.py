"""A model as functions of one flat vector: its prior, and the likelihood of all data or a batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.blocking import PointType
from pymc.model import Model
from pytensor.compile.mode import get_mode
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.backend import backend_of
from pymc_sgmcmc.backends.compile_time import compile_lock, quick_graphs, without_code
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.batches.windows import consecutive_rows
from pymc_sgmcmc.gradients.arrays import PYTHON, array_value, element_labels, python_function
from pymc_sgmcmc.gradients.data_check import IndexCheck, check_shapes, shapes_of_data
from pymc_sgmcmc.gradients.differentiate import second_derivatives_times
from pymc_sgmcmc.gradients.matrix_by_products import diagonal_by_products, matrix_by_products
from pymc_sgmcmc.gradients.source import GradientSource

type Vector = np.ndarray


class RowBlock(NamedTuple):
    """Rows that are evaluated together."""

    numbers: np.ndarray
    """Numbers of the rows in the data, shape (m,), or in `columns` if they are streamed."""
    columns: Mapping[str, np.ndarray]
    """The rows themselves, by the name of the array that they replace."""


class FlatModel:
    """A model as functions of all sampled variables in one vector of d elements.

    Everything without rows counts as prior: it is small, so nothing is compiled for it. ``start``
    has the values of the variables that are not sampled, by default the model's initial point.
    """

    rows_worth = 1
    """Number of rows of an ordinary model that are as informative as one of this model."""
    effects_are_integrated = False
    """Whether a gradient is of integrals over effects of groups."""

    def __init__(
        self,
        model: Model,
        source: GradientSource,
        compile_kwargs: dict[str, Any] | None = None,
        start: PointType | None = None,
    ):
        kwargs = dict(compile_kwargs or {})
        with compile_lock:
            mode = get_mode(kwargs.pop("mode", None))
            start = model.initial_point() if start is None else start
        self.mode = mode.including("local_remove_check_parameter")
        self.compile_kwargs = {"on_unused_input": "ignore", **kwargs}
        self.backend = backend_of(self.mode)
        self.model = model
        self.source = source
        self._others = [np.asarray(start[v.name], dtype=v.dtype) for v in source.others]
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in source.shapes)]).tolist()
        self.parts = [slice(*both) for both in pairwise(ends)]
        self.size = ends[-1]
        self.dtype = np.result_type(*(v.dtype for v in source.vars))
        self._shapes = shapes_of_data(source)
        self._index_check = IndexCheck(source)
        self.load_data()

    def load_data(self) -> None:
        """Put the model's checked current data on the backend; needed again after `pm.set_data`."""
        self.source.check_data()
        data = [array_value(array) for array, _ in self.source.data]
        self._index_check(data, [rows.n_rows for rows in self.source.rows])
        check_shapes(self.source, self.model, self._shapes)
        self._on_host = [*data, *self._others]
        self.constants = [self.backend.array(c) for c in self._on_host]

    @cached_property
    def names(self) -> list[str]:
        """One label per element, such as ``"beta[3]"``."""
        return element_labels(self.source.vars, self.source.shapes)

    @property
    def n_rows(self) -> int:
        """Current number of rows N."""
        return self.source.rows[0].n_rows

    @property
    def batch_size(self) -> int:
        """Number of rows per batch."""
        return self.source.rows[0].batch_size

    # ---- one vector for all variables ------------------------------------------------------

    def flat(self, point: Mapping[str, Any]) -> Vector:
        """Join the sampled variables of a point into one float64 vector, shape (d,)."""
        return self.joined([point[v.name] for v in self.source.vars])

    def point(self, theta: Vector) -> dict[str, np.ndarray]:
        """Split a vector into the sampled variables, each with its own type and shape."""
        return dict(zip((str(v.name) for v in self.source.vars), self.split(theta), strict=True))

    def split(self, theta: np.ndarray) -> list[np.ndarray]:
        """Cut vectors, shape (..., d), into one array per variable."""
        variables = zip(self.source.vars, self.source.shapes, self.parts, strict=True)
        theta = np.asarray(theta)
        lead = theta.shape[:-1]
        return [theta[..., p].reshape((*lead, *s)).astype(v.dtype) for v, s, p in variables]

    def joined(self, arrays: Sequence[Any]) -> Vector:
        """Join arrays, one per variable, into one vector."""
        parts = [np.ravel(np.asarray(a, dtype="float64")) for a in arrays]
        return np.concatenate([np.empty(0), *parts])

    def settle_around(self, theta: Vector) -> None:
        """Prepare for evaluations of single rows near a point; nothing to do in this class."""

    @contextmanager
    def points_held(self) -> Iterator[None]:
        """Hold the points of integration over groups, which evaluations would otherwise move."""
        yield

    @property
    def other_integrals(self) -> Sequence[str]:
        """Changes of the form by which integrals over groups' effects may become more accurate.

        They are fields of `pymc_sgmcmc.adaptation.adapted_settings.Adapted`, the cheapest first.
        """
        return ()

    def better_integrals(
        self,
        others: Sequence[str],
        anchor: Vector,
        points: np.ndarray,
        far_points: np.ndarray,
        near_anchor: bool,
    ) -> str | None:
        """Return one of ``others`` if integrals over groups' effects have errors that matter.

        It is the cheapest that is accurate at the points, which are draws, or nearer to the anchor
        than these, and not far off in the tails; or one that halves the error; or else the last.
        """
        return None

    def further_measurements(self, draws: np.ndarray) -> dict[str, float]:
        """Measure, for the verdict at draws of shape (n, d), what only this kind of model has."""
        return {}

    # ---- the likelihood --------------------------------------------------------------------

    def likelihood_gradient(self, theta: Vector, rows: np.ndarray) -> Vector:
        """Return the gradient of a batch's log likelihood times N / n, shape (d,)."""
        scale = self._scale(self.n_rows / self.batch_size)
        return self.joined(self._gradient(*self.split(theta), rows, scale, *self.constants))

    def _scale(self, value: float) -> np.ndarray:
        return np.asarray(value, self.source.rows[0].scale.dtype)

    def with_rows(self, columns: Mapping[str, Any]) -> list[Any]:
        """Return the data, with streamed rows in place of some arrays."""
        arrays = [*(array.name for array, _ in self.source.data), *(None for _ in self._others)]
        return [
            self.backend.array(columns[name]) if name in columns else constant
            for name, constant in zip(arrays, self.constants, strict=True)
        ]

    def stream(self, n: int) -> Iterator[RowBlock]:
        """Yield all rows of a stream, n at a time."""
        arrays = [array_value(array) for array, _ in self.source.data]
        assert self.source.streamed is not None
        for columns in consecutive_rows(self.source.streamed, n):
            self._index_check.of_streamed(arrays, columns)
            yield RowBlock(np.arange(len(next(iter(columns.values())))), columns)

    @cached_property
    def _gradient(self) -> Callable:
        """Gradient of the likelihood, as a function of the source's inputs."""
        return self.compiled(self.source.inputs, self.source.likelihood)

    @quick_graphs()
    def compiled(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable:
        """Compile a function whose arguments are not checked."""
        mode = with_cheap_calls(self.mode)
        function = pytensor.function(list(inputs), list(outputs), mode=mode, **self.compile_kwargs)
        function.trust_input = True
        return function

    # ---- the prior -------------------------------------------------------------------------

    def log_prior(self, theta: Vector) -> float:
        """Return the log density of the prior, up to a constant."""
        return float(self._prior(*self.split(theta))[0])

    def prior_gradient(self, theta: Vector) -> Vector:
        """Return the gradient of the log prior, shape (d,)."""
        return self.joined(self._prior(*self.split(theta))[1:])

    def prior_hessian(self, theta: Vector) -> np.ndarray:
        """Return the Hessian of the log prior, shape (d, d)."""
        times = partial(self._prior_products, theta)
        return matrix_by_products(times, self.parts, self.source.shapes, self._rtol)

    def prior_curvature_diagonal(self, theta: Vector) -> Vector:
        """Return the diagonal of the Hessian of the log prior, shape (d,)."""
        return diagonal_by_products(partial(self._prior_products, theta), self.parts, self._rtol)

    @property
    def _rtol(self) -> float:
        return float(np.sqrt(np.finfo(self.dtype).eps))

    @cached_property
    def _prior(self) -> Callable:
        source = self.source
        return self.in_python(source.vars, [source.log_prior, *source.prior])

    @cached_property
    def _prior_products(self) -> Callable[[Vector, np.ndarray], np.ndarray]:
        """Function that multiplies the Hessian by each of some vectors, all of shape (m, d).

        It uses differences of gradients if there is no second derivative.
        """
        vars = self.source.vars
        derived = second_derivatives_times(self.source.prior, vars)
        if derived is None:
            return lambda theta, W: np.array([self._difference(theta, w) for w in W])
        v, product = derived
        many = [TensorType(vi.dtype, (None, *vi.type.shape))() for vi in v]
        # A gradient that does not depend on v has no axis of vectors yet.
        mapped = vectorize_graph(
            [p + pt.zeros_like(vi) for p, vi in zip(product, v, strict=True)],
            dict(zip(v, many, strict=True)),
        )
        function = self.in_python([*vars, *many], mapped)

        def products(theta: Vector, W: np.ndarray) -> np.ndarray:
            n = len(W)
            found = function(*self.split(theta), *self.split(W))
            return np.concatenate([np.reshape(f, (n, -1)) for f in found], axis=1)

        return products

    def _difference(self, theta: Vector, vector: Vector) -> Vector:
        eps = np.finfo(self.dtype).eps
        length = max(1.0, np.abs(theta).max()) / np.abs(vector).max()
        step = eps ** (1 / 3) * length * vector
        change = self.prior_gradient(theta + step) - self.prior_gradient(theta - step)
        return change / (2 * eps ** (1 / 3) * length)

    def in_python(
        self, inputs: Sequence[TensorVariable], outputs: Sequence[TensorVariable]
    ) -> Callable:
        """Return an uncompiled function, which is not finite if a parameter is out of its range."""
        fixed = [*(variable for _, variable in self.source.data), *self.source.others]
        mode = PYTHON.including("local_remove_check_parameter")
        function = python_function([*inputs, *fixed], list(outputs), mode)
        function.trust_input = True

        def call(*arrays):
            with without_code(), np.errstate(all="ignore"):
                return function(*arrays, *self._on_host)

        return call
