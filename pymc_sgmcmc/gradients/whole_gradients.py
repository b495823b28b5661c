"""Log posterior, gradient and Hessian of all data, as functions of one flat vector."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from pymc.blocking import PointType
from pymc.model import Model
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.gradients.differentiate import second_derivatives_times
from pymc_sgmcmc.gradients.flat_model import FlatModel, Vector
from pymc_sgmcmc.gradients.matrix_by_products import matrix_by_products
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.gradients.pm_minibatch import refuse_minibatch

MANY = 100
"""Number of parameters from which second derivatives are worth some seconds' compilation."""
FAR = 0.3
"""Step of differences, in standard deviations, that sees the curvature of kinks."""
MOST_OFF = 0.5
"""Relative error of a Hessian's prediction at that distance that indicates kinks."""
BLOCK_ROWS = 2**17
"""Number of rows of a stream whose gradient is evaluated together."""


class WholeGradients(FlatModel):
    """The log posterior of all data at once, as a function of one flat vector.

    For data that stay on disk, only `pieces` of the gradient are available.
    """

    def __init__(
        self,
        model: Model,
        vars: list[TensorVariable],
        *,
        compile_kwargs: dict[str, Any] | None = None,
        start: PointType | None = None,
        data: StreamedData | None = None,
    ):
        refuse_minibatch(model, "all data")
        rows: dict[str, Any] = {} if data is None else {"batch_size": 1, "data": data}
        source = gradient_source(model, vars, self_check=False, **rows)
        super().__init__(model, source, compile_kwargs, start)
        self.gradients_of_hessian = 2 * self.size
        """Number of gradients that the last Hessian took, or that one of differences will take."""
        self._n_gradients = 0

    def log_likelihood(self, theta: Vector) -> tuple[float, Vector]:
        """Return the log likelihood of all data, and its gradient, shape (d,)."""
        self._n_gradients += 1
        value, *gradient = self._likelihood(*self.split(theta), *self.constants)
        return float(value), self.joined(gradient)

    def gradient(self, theta: Vector) -> Vector:
        """Return the gradient of the log posterior, shape (d,)."""
        return self.prior_gradient(theta) + self.log_likelihood(theta)[1]

    def pieces(self, thetas: Sequence[Vector] | np.ndarray) -> Iterator[tuple[int, Vector]]:
        """Yield the number of a point and a piece of its gradient; pieces add up to gradients."""
        if self.source.streamed is None:
            yield from ((i, self.gradient(theta)) for i, theta in enumerate(thetas))
            return
        for i, theta in enumerate(thetas):
            yield i, self.prior_gradient(theta)
        for block in self.stream(BLOCK_ROWS):
            constants = self.with_rows(block.columns)
            for i, theta in enumerate(thetas):
                inputs = [*self.split(theta), block.numbers, self._scale(1), *constants]
                yield i, self.joined(self._gradient(*inputs))

    def hessian(self, theta: Vector) -> np.ndarray:
        """Return the Hessian of the log posterior, shape (d, d), symmetric.

        With `MANY` parameters the likelihood's part is made of its products with vectors, of which
        few are needed if the effects of groups are independent given everything else; with fewer
        parameters, of central differences: 2 d to 8 d gradients, with steps of eps^(1/4) standard
        deviations, whose error is about sqrt(eps). If the likelihood has kinks, differences with
        steps of `FAR` replace it.
        """
        before, products = self._n_gradients, None
        if self.size >= MANY:
            products = self._products
        if products is None:
            near = self._differences(theta, np.finfo(self.dtype).eps ** 0.25)
        else:
            near = self._by_products(theta, products)
        found = near if self._holds_further_off(theta, near) else self._differences(theta, FAR)
        self.gradients_of_hessian = self._n_gradients - before
        return found

    def _by_products(self, theta: Vector, product: Callable) -> np.ndarray:
        """Return the Hessian from the likelihood's products with vectors."""
        point = self.split(theta)

        def times(vectors: np.ndarray) -> np.ndarray:
            self._n_gradients += 2 * len(vectors)  # a product takes about as long as two gradients
            each = [product(*point, *self.split(v), *self.constants) for v in vectors]
            return np.array([self.joined(parts) for parts in each])

        likelihood = matrix_by_products(times, self.parts, self.source.shapes, self._rtol)
        return self.prior_hessian(theta) + likelihood

    def _differences(self, theta: Vector, share: float) -> np.ndarray:
        """Return the Hessian from steps of this share of a standard deviation."""
        prior = self.prior_hessian(theta)
        columns = [self._column(theta, k, prior[k, k], share) for k in range(self.size)]
        likelihood = np.reshape(columns, (self.size, self.size))
        return prior + (likelihood + likelihood.T) / 2

    def _holds_further_off(self, theta: Vector, hessian: np.ndarray) -> bool:
        """Whether a Hessian predicts the gradient's change over `FAR`, in a random direction."""
        scale = np.sqrt(np.abs(np.diag(hessian)))
        if not np.isfinite(hessian).all() or not scale.all():
            return True
        shift = np.random.default_rng(20251).standard_normal(self.size) / scale
        shift *= FAR / np.sqrt(self.size)
        seen = (self.gradient(theta + shift) - self.gradient(theta - shift)) / scale
        expected = 2 * hessian @ shift / scale
        off = np.linalg.norm(seen - expected)
        return not np.isfinite(off) or bool(off < MOST_OFF * np.linalg.norm(expected))

    def _column(self, theta: Vector, k: int, prior_curvature: float, share: float) -> Vector:
        """Difference the gradient along one element, with a step proportional to its deviation."""
        eps = np.finfo(self.dtype).eps
        step = eps ** (1 / 3) * max(1.0, abs(theta[k]))
        for _ in range(4):
            back, forward = theta.copy(), theta.copy()
            back[k], forward[k] = np.array([theta[k] - step, theta[k] + step], self.dtype)
            change = self.log_likelihood(forward)[1] - self.log_likelihood(back)[1]
            column = change / (forward[k] - back[k])
            curvature = abs(column[k] + prior_curvature)
            if not np.isfinite(column).all():
                better = step / 100
            elif curvature > 0:
                better = float(np.clip(share / np.sqrt(curvature), step / 100, step * 100))
            else:
                break
            if 0.1 < better / step < 10:
                break
            step = better
        return column

    @cached_property
    def _likelihood(self) -> Callable:
        """Function of the variables and the data."""
        source = self.source
        return self.compiled(source.inputs, [source.log_likelihood, *source.likelihood])

    @cached_property
    def _products(self) -> Callable | None:
        """The likelihood's Hessian times a vector, as a function of variables, vector and data.

        None if there is no second derivative.
        """
        source = self.source
        derived = second_derivatives_times(source.likelihood, source.vars)
        if derived is None:
            return None
        along, product = derived
        return self.compiled([*source.vars, *along, *source.constants], product)
