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
        """Hessian of the mean log likelihood times a direction.

        Parameters
        ----------
        direction : list of variables
            Shaped like theta.

        Returns
        -------
        list of variables
            Shaped like theta; costs one more backward pass.
        """
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
        """Initial state of a chain.

        Parameters
        ----------
        theta : list of arrays
            The start; the state takes its shapes and float types.
        rng : numpy.random.Generator
            The chain's own.

        Returns
        -------
        dict of lists of arrays
            By name; empty if the sampler has no state.
        """

    @abstractmethod
    def update(
        self,
        theta: Tensors,
        state: State,
        gradient: Callable[[Tensors], Gradient],
        h: TensorVariable,
        noise: Noise,
    ) -> tuple[Tensors, State]:
        """One update: the next theta and state, as symbolic expressions.

        Parameters
        ----------
        theta : list of variables
            One entry a model variable, in its shape.
        state : dict of lists of variables
            Named and shaped as `init` has it.
        gradient : callable
            theta -> `Gradient` of the update's batch; call it as often as the paper evaluates one.
        h : variable
            Step size, of shape `step_size_shape`: a scalar.
        noise : callable
            ``noise()`` gives fresh N(0, I) draws shaped like theta, ``noise(like)`` like those
            tensors.

        Returns
        -------
        theta : list of variables
            Shapes as given.
        state : dict of lists of variables
            The same names and shapes.
        """

    def diagnostics(self, state: State) -> Tensors:
        """Scalars that tell how the sampler fares.

        Parameters
        ----------
        state : dict of lists of variables
            After a draw's last update.

        Returns
        -------
        list of scalar variables
            In the order of `statistics`, which names them.
        """
        return []

    def step_size_of(self, variable: int, h: np.ndarray) -> np.ndarray:
        """The step size with which a variable moves.

        Parameters
        ----------
        variable : int
            Its number; that after the last stands for the log posterior.
        h : array
            Step size of an update, of shape `step_size_shape`.

        Returns
        -------
        array
            A scalar.
        """
        return h

    def caution(self, diagnostics: dict[str, float], n_elements: int, shuffled: bool) -> str | None:
        """What the user should know of a chain that has burnt in, if anything.

        Parameters
        ----------
        diagnostics : dict of float
            Those of one draw, by name.
        n_elements : int
            Elements of theta, all variables together.
        shuffled : bool
            Whether batches are cut from shuffled epochs.

        Returns
        -------
        str or None
            A message, logged once a chain.
        """
        return None
