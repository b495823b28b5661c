"""The random numbers inside the compiled updates."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.algorithm import Tensors
from pymc_sgmcmc.backends.random_operations import GeneratorCopy, Normals

ELEMENTS_OF_OWN_DRAW = 2**13
"""Number of elements above which a variable's noise is drawn separately."""


class NoiseStream:
    """A chain's random generator in a graph; each draw advances ``rng``."""

    def __init__(self, rng):
        self.rng = rng

    def copy(self) -> "NoiseStream":
        """Return a stream whose draws do not advance this one."""
        return NoiseStream(GeneratorCopy()(self.rng))

    def draw(self, distribution: Callable, *parameters, **kwargs) -> TensorVariable:
        """Draw from one of `pytensor.tensor.random`'s distributions."""
        self.rng, draws = distribution(*parameters, rng=self.rng, return_next_rng=True, **kwargs)
        return draws

    def fine_uniforms(self, shape: Sequence[int], dtype: str) -> TensorVariable:
        """Uniform draws to be compared with probabilities that may be tiny.

        JAX's 32-bit draws are multiples of 2^-23, and the draw 0 is below any probability, so a
        second draw adds bits.
        """
        if dtype == "float64":
            return self.draw(pt.random.uniform, size=shape, dtype=dtype)
        both = self.draw(pt.random.uniform, size=(2, *shape), dtype=dtype)
        return both[0] + both[1] * np.asarray(2**-23, dtype)

    def normals_like(self, theta: Sequence[TensorVariable]) -> Tensors:
        """Draw fresh N(0, I) noise shaped like theta, in its float types (a wider costs double)."""
        draws: dict[int, TensorVariable] = {}
        groups: dict[Any, list[int]] = {}
        for k, t in enumerate(theta):
            # All small variables share one call, because each call has a fixed cost. The draws of a
            # large variable are used at once, while they are in the cache.
            alone = k if math.prod(t.type.shape) > ELEMENTS_OF_OWN_DRAW else None
            groups.setdefault((t.dtype, alone), []).append(k)
        for (dtype, _), alike in groups.items():
            sizes = [math.prod(theta[k].type.shape) for k in alike]
            z = self.draw(Normals(), sum(sizes), dtype=dtype)
            ends = np.cumsum(sizes)
            for k, size, end in zip(alike, sizes, ends, strict=True):
                draws[k] = z[end - size : end].reshape(theta[k].type.shape)
        return [draws[k] for k in range(len(theta))]
