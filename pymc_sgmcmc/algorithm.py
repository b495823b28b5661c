"""What a sampler is, apart from any model: hyperparameters, initial state, symbolic update."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.number_checks import positive_number

Tensors = list[TensorVariable]
State = dict[str, Tensors]
"""A sampler's own variables by name, with one list entry per model variable or a single entry."""


class Gradient(Protocol):
    """A batch's estimate of grad log posterior at one theta, in lists of one entry per variable."""

    @property
    def prior(self) -> Tensors:
        """Gradient of the log prior (with the transforms' Jacobians)."""
        ...

    @property
    def likelihood(self) -> Tensors:
        """Gradient of the log likelihood, scaled by N / n: an unbiased estimate for all data."""
        ...

    @property
    def total(self) -> Tensors:
        """prior + likelihood."""
        ...

    @property
    def mean_likelihood(self) -> Tensors:
        """likelihood / N: the mean over the batch, gbar in the pSGLD paper."""
        ...

    def mean_curvature(self, direction: Sequence[TensorVariable]) -> Tensors:
        """Hessian of the mean log likelihood times a direction, both shaped like theta; it costs
        one more backward pass.
        """
        ...


@dataclass(frozen=True)
class MappedGradient:
    """A gradient with respect to other variables, obtained by a linear map of each of its parts."""

    whole: Gradient
    to_own: Callable[[Tensors], Tensors]
    to_whole: Callable[[Tensors], Tensors]
    """Maps a direction in the other variables to one in the gradient's own variables."""

    @property
    def prior(self) -> Tensors:
        return self.to_own(self.whole.prior)

    @property
    def likelihood(self) -> Tensors:
        return self.to_own(self.whole.likelihood)

    @property
    def total(self) -> Tensors:
        return self.to_own(self.whole.total)

    @property
    def mean_likelihood(self) -> Tensors:
        return self.to_own(self.whole.mean_likelihood)

    def mean_curvature(self, direction: Sequence[TensorVariable]) -> Tensors:
        return self.to_own(self.whole.mean_curvature(self.to_whole(list(direction))))


class Noise(Protocol):
    """Fresh N(0, I) draws at each call, shaped like theta or like other tensors."""

    def __call__(self, like: Sequence[TensorVariable] | None = None) -> Tensors: ...


def check_temperature(temperature: float) -> None:
    """Raise an error unless the temperature is a positive finite number."""
    remedy = "The draws are from the posterior to the power 1 / temperature (default 1)."
    positive_number("temperature", temperature, remedy)


@dataclass(frozen=True)
class Algorithm(ABC):
    """A sampler: a frozen dataclass of hyperparameters that knows neither model nor data."""

    statistics: ClassVar[tuple[str, ...]] = ()
    """Names of the scalars that `diagnostics` returns, in order."""
    step_size_shape: ClassVar[tuple[int, ...]] = ()
    """Shape of the ``h`` of an update: a scalar, unless each group has its own step size."""
    dynamics: ClassVar[Literal["langevin", "friction", "thermostat"] | None] = None
    """How the sampler reacts to the gradient's noise, from which its step size can be chosen:
    "langevin" heats up, "friction" heats up apart from its fixed friction, and a "thermostat"
    absorbs the noise. With None there is no automatic step size."""
    thermostats: ClassVar[str | None] = None
    """Name of the thermostats in the state, or None if the sampler has none."""
    counts_elements: ClassVar[bool] = False
    """Whether `update` also takes ``n_elements``."""

    @abstractmethod
    def init(self, theta: Sequence[np.ndarray], rng: np.random.Generator) -> dict[str, list]:
        """Initial state of a chain.

        Parameters
        ----------
        theta : list of arrays
            The starting point; the state has its shapes and float types.
        rng : numpy.random.Generator
            The chain's own generator.

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
            One entry per model variable, in its shape.
        state : dict of lists of variables
            Named and shaped as `init` returns it.
        gradient : callable
            theta -> `Gradient` of the update's batch; call it as often as the paper does.
        h : variable
            Step size, of shape `step_size_shape`: a scalar.
        noise : callable
            ``noise()`` returns new N(0, I) draws shaped like theta, ``noise(like)`` shaped like
            those tensors.

        If `counts_elements`, there is one more argument:

        n_elements : list of integer scalars, optional
            How many elements of each variable move; None: all of theta. The others have zero
            momentum, gradient and noise, and their new values are not used.

        Returns
        -------
        theta : list of variables
            Shapes as given.
        state : dict of lists of variables
            The same names and shapes.
        """

    def for_groups(self) -> "Algorithm":
        """Return the algorithm for group effects whose adapted scales share one scale.

        An error that is small in each effect but has the same sign in all of them is a large error
        of what they share.
        """
        return self

    def positions(self, name: str, n_vars: int) -> Sequence[int]:
        """Return the indices of the variables to which the arrays of a state belong, in the order
        of the arrays.
        """
        return range(n_vars)

    def diagnostics(self, state: State) -> Tensors:
        """Return scalars that show how well the sampler works, in the order of `statistics`, from
        the state after a draw's last update.
        """
        return []

    @property
    def temperature(self) -> float:
        """T: draws are from the posterior to the power 1 / T; a field where it can be chosen."""
        return 1.0

    @property
    def injected_noise(self) -> float:
        """D: an update adds noise of variance 2 D T h to the momentum; 0 without momentum."""
        return 0.0

    @property
    def drift_to_gradient(self) -> float:
        """Share of a drift step between an update's end and the nearest point with a gradient."""
        return 0.0

    @property
    def absorbs_noise(self) -> bool:
        """Whether it answers the noise of each update with friction, as a thermostat does.

        Such a sampler needs independent batches: over a shuffled epoch the noise cancels but the
        friction stays, and the draws are too narrow. Any other sampler only benefits when the noise
        cancels.
        """
        return self.dynamics == "thermostat"

    def step_size_of(self, variable: int, h: np.ndarray) -> np.ndarray:
        """Return the scalar step size with which a variable is updated.

        ``variable`` is its index, where the number of variables stands for the log posterior; ``h``
        is an update's step size, of shape `step_size_shape`.
        """
        return h

    def burn_in_warning(
        self, diagnostics: dict[str, float], n_elements: int, shuffled: bool
    ) -> str | None:
        """Return a warning, logged once per chain, about a chain that has finished its burn-in, if
        there is a reason.

        ``diagnostics`` are those of one draw, and ``n_elements`` counts the elements of all
        variables.
        """
        return None
