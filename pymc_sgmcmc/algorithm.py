"""What a sampler is, apart from any model: hyperparameters, initial state, symbolic update."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from pytensor.tensor.variable import TensorVariable

Tensors = list[TensorVariable]
State = dict[str, Tensors]
"""A sampler's own variables by name; a list holds one entry a model variable, or a single one."""


class Gradient(Protocol):
    """A batch's estimate of grad log posterior at one theta; each list has one entry a variable."""

    prior: Tensors
    """Gradient of the log prior (with transforms' Jacobians)."""
    likelihood: Tensors
    """Gradient of the log likelihood, scaled by N / n: unbiased for all the data."""
    total: Tensors
    """prior + likelihood."""
    mean_likelihood: Tensors
    """likelihood / N: the mean over the batch, gbar in the pSGLD paper."""

    def mean_curvature(self, direction: Sequence[TensorVariable]) -> Tensors:
        """Hessian of the mean log likelihood times a direction."""
        ...


class Noise(Protocol):
    """Fresh N(0, I) draws at each call, shaped like theta or like other tensors."""

    def __call__(self, like: Sequence[TensorVariable] | None = None) -> Tensors: ...


@dataclass(frozen=True)
class Algorithm(ABC):
    """A sampler: a frozen dataclass of hyperparameters that knows neither model nor data."""

    statistics: ClassVar[tuple[str, ...]] = ()
    """Names of the scalars that `diagnostics` gives, in order."""
    step_size_shape: ClassVar[tuple[int, ...]] = ()
    """Shape of the ``h`` of an update: a scalar, unless groups have a step size each."""

    @abstractmethod
    def init(self, theta: Sequence[np.ndarray], rng: np.random.Generator) -> dict[str, list]:
        """Initial state, as arrays in theta's float types; ``rng`` is the chain's own."""

    @abstractmethod
    def update(
        self,
        theta: Tensors,
        state: State,
        gradient: Callable[[Tensors], Gradient],
        h: TensorVariable,
        noise: Noise,
    ) -> tuple[Tensors, State]:
        """One update: the next theta and state (same keys), as symbolic expressions.

        ``gradient(theta)`` evaluates the batch's gradient; ``h`` is the step size; ``noise()``
        gives fresh N(0, I) draws shaped like theta, ``noise(like)`` like those tensors.
        """

    def diagnostics(self, state: State) -> Tensors:
        """Scalars that tell how the sampler fares, named by `statistics`."""
        return []

    def caution(self, diagnostics: dict[str, float], n_elements: int, shuffled: bool) -> str | None:
        """What the user should know of a chain that has burnt in, if anything.

        ``diagnostics`` are those of one draw, ``n_elements`` the size of theta, ``shuffled``
        tells whether batches are cut from shuffled epochs.
        """
        return None
