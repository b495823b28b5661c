"""Gradients of batches with fresh draws of latent variables, as functions of one flat vector."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
from pymc.blocking import PointType
from pymc.model import Model
from pytensor.tensor.random.type import random_generator_type

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.gradients.flat_model import FlatModel, Vector
from pymc_sgmcmc.latents.gradient import LatentGradientSource
from pymc_sgmcmc.noise import NoiseStream


class LatentGradients(FlatModel):
    """The scaled gradient of a batch's log likelihood, with newly drawn latent variables.

    Given theta and the rows, the gradients of two calls are independent. ``model`` is without the
    latent variables, and ``source`` has no state that is carried from batch to batch.
    """

    def __init__(
        self,
        model: Model,
        source: LatentGradientSource,
        compile_kwargs: dict[str, Any] | None = None,
        start: PointType | None = None,
    ):
        assert not source.state_names
        super().__init__(model, source, compile_kwargs, start)
        self.draw_from(np.random.default_rng(0))

    def draw_from(self, rng: np.random.Generator) -> None:
        """Draw the latent variables with this generator, which has no other use."""
        self._generator = self.backend.generator(rng)

    def likelihood_gradient(self, theta: Vector, rows: np.ndarray) -> Vector:
        scale = self._scale(self.n_rows / self.batch_size)
        # JAX's compiled calls take NumPy arrays faster than `jax.numpy` converts them.
        arrays = (*self.split(theta), rows, scale)
        *gradient, self._generator = self._gradient(*arrays, *self.constants, self._generator)
        return self.joined(gradient)

    @cached_property
    @quick_graphs()
    def _gradient(self) -> Callable:
        """Function of the variables, the rows, the data and the generator."""
        source = self.source
        k = len(source.vars)
        generator = random_generator_type("rng")
        stream = NoiseStream(generator)
        inputs = [v.type(v.name) for v in source.inputs]
        found = source.at(inputs[:k], inputs[k : k + 1], inputs[k + 1 :], {}, stream)
        return self.compiled(
            [*inputs, pytensor.In(generator, mutable=True, borrow=True)],
            [*found.likelihood, pytensor.Out(stream.rng, borrow=True)],
        )
