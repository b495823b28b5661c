"""A model's prior, its gradient and its curvature, as functions of one flat vector."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.blocking import PointType
from pymc.model import Model
from pytensor.compile.mode import get_mode
from pytensor.gradient import DisconnectedInputError, NullTypeGradError
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.utils import MethodNotDefined
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.backend import backend_of
from pymc_sgmcmc.backends.compile_time import compile_lock, without_code
from pymc_sgmcmc.gradients.arrays import PYTHON, array_value
from pymc_sgmcmc.gradients.data_check import IndexCheck, check_shapes, shapes_of_data
from pymc_sgmcmc.gradients.source import GradientSource

type Vector = np.ndarray

STRIDES = (1, 3, 17)
"""Elements of a variable so far apart are probed together for the Hessian's diagonal: all where the
prior's elements are independent, every third in a random walk."""

MANY_GROUPS = 8
"""Elements along a variable's first axis from which its groups are tried together."""


class FlatPrior:
    """The prior of a model, with respect to all sampled variables in one vector, and its data.

    All that has no rows counts: priors, the transforms' Jacobians, potentials and observed
    variables that do not run along the rows. It is small, so nothing is compiled.

    Parameters
    ----------
    model : pymc.Model
    source : GradientSource
        Of this model.
    compile_kwargs : dict, optional
        Arguments of `pytensor.function`, for the likelihood.
    start : dict of arrays, optional
        Values of the variables that are not sampled; default: the model's initial point.

    Attributes
    ----------
    size : int
        d, the number of elements of the sampled value variables together.
    """

    def __init__(
        self,
        model: Model,
        source: GradientSource,
        compile_kwargs: dict[str, Any] | None,
        start: PointType | None,
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
        self.index_check = IndexCheck(source)
        self.load_data()

    def load_data(self) -> None:
        """Put the model's current data on the backend: again after `pm.set_data`.

        Raises
        ------
        ValueError
            If it no longer fits, naming the array.
        """
        self.source.check_data()
        data = [array_value(array) for array, _ in self.source.data]
        self.index_check(data, [rows.n_rows for rows in self.source.rows])
        check_shapes(self.source, self.model, self._shapes)
        self._on_host = [*data, *self._others]
        self.constants = [self.backend.array(c) for c in self._on_host]

    @cached_property
    def names(self) -> list[str]:
        """One label per element, such as ``"beta[3]"``."""
        return [
            f"{v.name}[{','.join(map(str, at))}]" if at else str(v.name)
            for v, shape in zip(self.source.vars, self.source.shapes, strict=True)
            for at in np.ndindex(*shape)
        ]

    # ---- one vector for all variables ------------------------------------------------------

    def flat(self, point: Mapping[str, Any]) -> Vector:
        """Join the sampled variables of a point in one float64 vector, shape (d,)."""
        return self.joined([point[v.name] for v in self.source.vars])

    def point(self, theta: Vector) -> dict[str, np.ndarray]:
        """Split a vector into the sampled variables, each of its own type and shape."""
        return dict(zip((str(v.name) for v in self.source.vars), self.split(theta), strict=True))

    def split(self, theta: Vector) -> list[np.ndarray]:
        """Cut a vector into arrays, one a variable."""
        variables = zip(self.source.vars, self.source.shapes, self.parts, strict=True)
        return [np.asarray(theta[part]).reshape(s).astype(v.dtype) for v, s, part in variables]

    def joined(self, arrays: Sequence[Any]) -> Vector:
        """Join arrays, one a variable, in one vector."""
        parts = [np.ravel(np.asarray(a, dtype="float64")) for a in arrays]
        return np.concatenate([np.empty(0), *parts])

    # ---- the prior -------------------------------------------------------------------------

    def log_prior(self, theta: Vector) -> float:
        """Log density of the prior, up to a constant."""
        return float(self._value_and_gradient(*self.split(theta))[0])

    def prior_gradient(self, theta: Vector) -> Vector:
        """Gradient of the log prior, shape (d,)."""
        return self.joined(self._value_and_gradient(*self.split(theta))[1:])

    def prior_hessian(self, theta: Vector) -> np.ndarray:
        """Hessian of the log prior, shape (d, d).

        Of variables whose groups (the first axis) are independent given all others, all groups are
        tried together: the Hessian times a vector that is zero but for one element of each.
        """
        hessian = np.zeros((self.size, self.size))
        one_by_one = np.ones(self.size, dtype=bool)
        for part, blocks in self._blocks_of_groups(theta):
            one_by_one[part] = False
            for rows, columns, values in blocks:
                hessian[rows, columns] = values
        rest = np.flatnonzero(one_by_one)
        if rest.size:
            products = self._prior_products(theta, np.eye(self.size)[rest])
            hessian[rest], hessian[:, rest] = products, products.T
        return (hessian + hessian.T) / 2

    def _blocks_of_groups(self, theta: Vector) -> list[tuple[slice, list[tuple]]]:
        """Find variables with independent groups: their elements, and blocks of the Hessian.

        A block has row and column numbers and values, of the variable (columns) and one with as
        many groups (rows). Groups are independent if products with two random vectors agree on
        each group's own block. Variables that are coupled to such a variable with another number of
        groups are not among them.
        """
        rng = np.random.default_rng(20243)
        tolerance = np.sqrt(np.finfo(self.dtype).eps)
        grouped = {
            k: np.arange(part.start, part.stop).reshape(shape[0], -1)
            for k, (part, shape) in enumerate(zip(self.parts, self.source.shapes, strict=True))
            if shape and shape[0] >= MANY_GROUPS and np.prod(shape) > 0
        }
        found: dict[int, list[tuple]] = {}
        coupled: dict[int, set[int]] = {}
        for k, own in grouped.items():
            weights = rng.uniform(0.5, 1.5, (2, len(own)))
            vectors = np.zeros((2, own.shape[1], self.size))
            for j, elements in enumerate(own.T):
                vectors[:, j, elements] = weights
            products = self._prior_products(theta, vectors.reshape(-1, self.size))
            products = products.reshape(vectors.shape)
            atol = tolerance * np.abs(products).max(initial=0)
            independent, blocks, coupled[k] = True, [], set()
            for m, others in grouped.items():
                if len(others) != len(own):
                    if np.any(products[:, :, others]):
                        coupled[k].add(m)
                    continue
                one, two = products[:, :, others] / weights[:, None, :, None]
                independent &= np.allclose(one, two, rtol=tolerance, atol=atol)
                rows, columns = np.broadcast_arrays(others[None], own.T[:, :, None])
                blocks.append((rows, columns, one))
            if independent:
                found[k] = blocks
        apart = {k for k in found if not coupled[k] & found.keys()}
        return [(self.parts[k], found[k]) for k in apart]

    def prior_curvature_diagonal(self, theta: Vector) -> Vector:
        """Diagonal of the Hessian of the log prior, shape (d,).

        The Hessian times a vector that is zero but for some elements has their diagonal where they
        do not couple. It is tried for elements far apart (`STRIDES`), with two random vectors:
        where these agree the diagonal is known, for the others unit vectors are used.
        """
        rng = np.random.default_rng(20243)
        diagonal = np.full(self.size, np.nan)
        left = np.ones(self.size, dtype=bool)

        def probe(elements: np.ndarray) -> Vector:
            vector = np.zeros(self.size)
            vector[elements] = rng.uniform(0.5, 1.5, size=elements.size)
            return self._prior_product(theta, vector)[elements] / vector[elements]

        for stride in STRIDES:
            for part in self.parts:
                for first in range(stride):
                    together = np.arange(part.start + first, part.stop, stride)
                    together = together[left[together]]
                    if together.size > 2:
                        one, two = probe(together), probe(together)
                        known = np.isclose(
                            one, two, rtol=np.sqrt(np.finfo(self.dtype).eps), atol=0, equal_nan=True
                        )
                        diagonal[together[known]] = one[known]
                        left[together[known]] = False
        for k in np.flatnonzero(left):
            diagonal[k] = probe(np.array([k]))[0]
        return diagonal

    @cached_property
    def _value_and_gradient(self) -> Callable:
        source = self.source
        return self.in_python(source.vars, [source.log_prior, *source.prior])

    def _prior_product(self, theta: Vector, vector: Vector) -> Vector:
        """The Hessian times a vector."""
        return self._prior_products(theta, vector[None])[0]

    @cached_property
    def _prior_products(self) -> Callable[[Vector, np.ndarray], np.ndarray]:
        """The Hessian times each of some vectors, shape (m, d), and the result in that shape.

        By differences of gradients where there is no second derivative.
        """
        vars = self.source.vars
        v = [var.type() for var in vars]
        along = pt.add(*(pt.sum(g * vi) for g, vi in zip(self.source.prior, v, strict=True)), 0.0)
        try:
            product = pt.grad(along, vars, disconnected_inputs="ignore")
        except (
            NullTypeGradError,
            MethodNotDefined,
            NotImplementedError,
            DisconnectedInputError,
        ):
            return lambda theta, W: np.array([self._difference(theta, w) for w in W])
        many = [TensorType(vi.dtype, (None, *vi.type.shape))() for vi in v]
        # A gradient that does not depend on v has no axis of vectors yet.
        mapped = vectorize_graph(
            [p + pt.zeros_like(vi) for p, vi in zip(product, v, strict=True)],
            dict(zip(v, many, strict=True)),
        )
        function = self.in_python([*vars, *many], mapped)

        def products(theta: Vector, W: np.ndarray) -> np.ndarray:
            n, parts = len(W), zip(self.parts, shapes, strict=True)
            split = [W[:, part].reshape(n, *s) for part, s in parts]
            typed = [a.astype(var.dtype) for a, var in zip(split, vars, strict=True)]
            found = function(*self.split(theta), *typed)
            return np.concatenate([np.reshape(f, (n, -1)) for f in found], axis=1)

        shapes = self.source.shapes
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
        """Return a function that is not compiled; out of a parameter's range it is not finite."""
        fixed = [*(variable for _, variable in self.source.data), *self.source.others]
        mode = PYTHON.including("local_remove_check_parameter")
        with without_code():
            function = pytensor.function(
                [*inputs, *fixed], list(outputs), mode=mode, on_unused_input="ignore"
            )
        function.trust_input = True

        def call(*arrays):
            with without_code(), np.errstate(all="ignore"):
                return function(*arrays, *self._on_host)

        return call
