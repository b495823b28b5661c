"""The objective of the warm-up: -log posterior of all rows, of some rows, or of a whole model."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from pymc_sgmcmc.adaptation.curvature import NO_CURVATURE, NO_INFORMATION
from pymc_sgmcmc.gradients.row_gradients import RowGradients


class Evaluated(NamedTuple):
    """The objective near a point, with flat arrays."""

    value: float
    """-log posterior; infinite where there is no density."""
    gradient: np.ndarray
    """Gradient of `value`, shape (d,)."""
    likelihood_gradient: np.ndarray
    """Gradient of the log likelihood of all rows (with its own sign), shape (d,)."""
    curvature: Callable[[], np.ndarray]
    """Returns the second derivatives as far as this evaluation determines them, shape (d, d): the
    empirical Fisher information of the rows plus the prior's Hessian, or the whole Hessian."""


class Objective(ABC):
    """-log posterior of a flat theta; ``before_pass`` is called before each evaluation."""

    n_rows = 1
    """Number of rows N; 1 if rows are inseparable."""
    no_curvature = NO_CURVATURE
    """Largest relative eigenvalue of `Evaluated.curvature` that may be an error."""

    def __init__(self, gradients: Any, before_pass: Callable[[], None] = lambda: None):
        self.gradients, self.before_pass = gradients, before_pass
        self.size = gradients.size
        self._passes = 0.0
        self._samples: list[Objective] = []

    @property
    def passes(self) -> float:
        """Number of passes over the data so far, including those of samples."""
        return self._passes + sum(sample.passes for sample in self._samples)

    def sample(self, n: int, rng: np.random.Generator) -> "Objective":
        """Return the objective of n random rows, if rows are separable."""
        return self

    def some(self, n: int, rng: np.random.Generator) -> "Objective":
        """Return the objective of n random rows, or of all rows if there are hardly more."""
        return self if n > self.n_rows / 2 else self.sample(n, rng)

    def at(self, theta: np.ndarray, with_curvature: bool = False) -> Evaluated:
        """Evaluate the objective and its gradient, and on request the curvature as well."""
        g = self.gradients
        loglik, score, curvature = self._likelihood(theta, with_curvature)
        gradient = -(g.prior_gradient(theta) + score)
        value = -(g.log_prior(theta) + loglik)
        finite = np.isfinite(value) and np.isfinite(gradient).all()
        return Evaluated(float(value) if finite else np.inf, gradient, score, cache(curvature))

    @abstractmethod
    def _likelihood(
        self, theta: np.ndarray, with_curvature: bool
    ) -> tuple[float, np.ndarray, Callable[[], np.ndarray]]:
        """Return the log likelihood, its gradient, and a function that computes the curvature."""

    def _begin_pass(self, passes: float) -> None:
        self.before_pass()
        self._passes += passes


class RowsObjective(Objective):
    """The objective of all rows, or of the rows ``index``, which represent all rows."""

    def __init__(
        self,
        gradients: RowGradients,
        index: np.ndarray | None = None,
        before_pass: Callable[[], None] = lambda: None,
    ):
        super().__init__(gradients, before_pass)
        self.index = index
        self.share = 1.0 if index is None else len(index) / gradients.n_rows
        self.n_rows = gradients.n_rows
        # A sum of products has no error of differences.
        self.no_curvature = NO_INFORMATION if gradients.dtype == np.float64 else NO_CURVATURE

    def sample(self, n, rng):
        at_hand = self.gradients.n_at_hand
        index = np.sort(rng.choice(at_hand, min(n, at_hand), replace=False))
        self._samples.append(RowsObjective(self.gradients, index, self.before_pass))
        return self._samples[-1]

    def _likelihood(self, theta, with_curvature):
        g = self.gradients
        loglik, score, scatter = self._of_rows(theta, with_curvature)
        score = score / self.share

        def curvature():
            products = scatter if with_curvature else self._of_rows(theta, True).scatter
            centred = products / self.share - np.outer(score, score) / g.n_rows
            return centred - g.prior_hessian(theta)

        return loglik / self.share, score, curvature

    def _of_rows(self, theta, scatter):
        self._begin_pass(self.share)
        return self.gradients.likelihood(theta, self.index, scatter)


class WholeObjective(Objective):
    """The objective of a model whose rows are all used at each update.

    ``foresee`` is called with the seconds that a Hessian will take, and with 0 afterwards.
    """

    def __init__(
        self,
        gradients: Any,
        before_pass: Callable[[], None] = lambda: None,
        foresee: Callable[[float], None] = lambda seconds: None,
    ):
        super().__init__(gradients, before_pass)
        self.foresee = foresee

    def _likelihood(self, theta, with_curvature):
        self._begin_pass(1)
        return *self.gradients.log_likelihood(theta), partial(self._hessian, theta)

    def _hessian(self, theta: np.ndarray) -> np.ndarray:
        began = time.perf_counter()
        self.gradients.log_likelihood(theta)  # ensures that it is compiled
        self.foresee(self.gradients.gradients_of_hessian * (time.perf_counter() - began))
        hessian = self.gradients.hessian(theta)
        self._begin_pass(self.gradients.gradients_of_hessian + 1)
        self.foresee(0.0)
        return -hessian
