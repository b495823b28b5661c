"""What a sampler is, apart from any model: hyperparameters, initial state, symbolic update."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.argument_checks import positive_number

Tensors = list[TensorVariable]
State = dict[str, Tensors]
"""A sampler's own variables by name, one list entry per model variable or one in total."""


class Gradient(Protocol):
    """A batch's estimate of grad log posterior at one theta; lists have one entry per variable."""

    @property
    def prior(self) -> Tensors:
        """Gradient of the log prior (with transforms' Jacobians)."""
        ...

    @property
    def likelihood(self) -> Tensors:
        """Gradient of the log likelihood, scaled by N / n: unbiased for that of all the data."""
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
        """Hessian of the mean log likelihood times a direction.

        Parameters
        ----------
        direction : list of variables
            Shaped like theta.

        Returns
        -------
        list of variables
            Shaped like theta. It costs one more backward pass.
        """
        ...


@dataclass(frozen=True)
class MappedGradient:
    """A gradient with respect to other variables, by a linear map of each of its parts."""

    whole: Gradient
    to_own: Callable[[Tensors], Tensors]
    to_whole: Callable[[Tensors], Tensors]
    """Maps a direction of the other variables to one of the gradient's own."""

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
    """Raise an error unless a temperature is a positive finite number."""
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
    """How it reacts to a gradient's noise, from which its step size can be chosen: "langevin"
    heats up, "friction" too, but for its fixed friction, a "thermostat" absorbs it. None: there is
    no automatic step size."""
    thermostats: ClassVar[str | None] = None
    """Name of the thermostats in the state, if it has any."""
    counts_elements: ClassVar[bool] = False
    """Whether `update` takes ``n_elements`` too."""

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
            How many elements of each variable move; None: all of theta. The others have momentum,
            gradient and noise 0, and what becomes of them is not used.

        Returns
        -------
        theta : list of variables
            Shapes as given.
        state : dict of lists of variables
            The same names and shapes.
        """

    def for_groups(self) -> "Algorithm":
        """Return the algorithm for groups' effects with adapted scales, which share a scale.

        An error that is small in each effect, but alike in all, is a large one of what they share.
        """
        return self

    def positions(self, name: str, n_vars: int) -> Sequence[int]:
        """Indices of the variables to which a state's arrays belong, if there is one for each.

        Parameters
        ----------
        name : str
            A name of the state.
        n_vars : int
            Number of variables.

        Returns
        -------
        sequence of int
            In the order of the arrays.
        """
        return range(n_vars)

    def diagnostics(self, state: State) -> Tensors:
        """Scalars that show how well the sampler works.

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
        """Share of a drift between an update's end and the nearest point with a gradient."""
        return 0.0

    @property
    def absorbs_noise(self) -> bool:
        """Whether it answers the noise of each update with friction, as a thermostat does.

        Such a sampler needs independent batches: over a shuffled epoch the noise cancels but the
        friction stays, and the draws are too narrow. For any other sampler, noise that cancels is
        less noise.
        """
        return self.dynamics == "thermostat"

    def step_size_of(self, variable: int, h: np.ndarray) -> np.ndarray:
        """Return the step size with which a variable is updated.

        Parameters
        ----------
        variable : int
            Its index; the number of variables stands for the log posterior.
        h : array
            Step size of an update, of shape `step_size_shape`.

        Returns
        -------
        array
            A scalar.
        """
        return h

    def burn_in_warning(
        self, diagnostics: dict[str, float], n_elements: int, shuffled: bool
    ) -> str | None:
        """Return a warning about a chain that has finished its burn-in, if there is one.

        Parameters
        ----------
        diagnostics : dict of float
            The diagnostics of one draw, by name.
        n_elements : int
            Elements of theta, all variables together.
        shuffled : bool
            Whether batches come from shuffled epochs.

        Returns
        -------
        str or None
            A message, logged once per chain.
        """
        return None
