"""What the warm-up minimises: -log posterior, of all rows, of some of them, or of a whole model."""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple, Protocol

import numpy as np

from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients


class Evaluated(NamedTuple):
    """The objective near a point: flat arrays."""

    value: float
    """-log posterior; infinite where it has no density."""
    gradient: np.ndarray
    """Of `value`, shape (d,)."""
    likelihood_gradient: np.ndarray
    """The part of the log likelihood of all rows (with its own sign), shape (d,)."""
    curvature: Callable[[], np.ndarray]
    """Returns what this evaluation tells of the second derivatives, shape (d, d): the empirical
    Fisher information of the rows plus the prior's Hessian, or the whole Hessian."""


class Objective(Protocol):
    """-log posterior as a function of a flat theta; it counts its passes over the data."""

    size: int
    passes: float

    @property
    def gradients(self) -> RowGradients | WholeGradients:
        """What it evaluates."""
        ...

    def at(self, theta: np.ndarray, with_curvature: bool = False) -> Evaluated:
        """Evaluate it with its gradient; in the same pass with its curvature, if so."""
        ...


class RowsObjective:
    """Of all rows, or of some that stand for all of them.

    Parameters
    ----------
    gradients : RowGradients
    index : array of int, optional
        The rows; default: all.
    before_pass : callable, optional
        Called before each evaluation.
    """

    def __init__(
        self,
        gradients: RowGradients,
        index: np.ndarray | None = None,
        before_pass: Callable[[], None] = lambda: None,
    ):
        self.gradients, self.before_pass = gradients, before_pass
        self.index = index
        self.size = gradients.size
        self.passes = 0.0

    @property
    def share(self) -> float:
        """Rows that are used / N."""
        return 1.0 if self.index is None else len(self.index) / self.gradients.n_rows

    def at(self, theta, with_curvature=False):
        g = self.gradients
        loglik, score, scatter = self._likelihood(theta, with_curvature)
        value = -(g.log_prior(theta) + loglik / self.share)
        score = score / self.share
        gradient = -(g.prior_gradient(theta) + score)

        @cache
        def curvature():
            products = scatter if with_curvature else self._likelihood(theta, True).scatter
            centred = products / self.share - np.outer(score, score) / g.n_rows
            return centred - g.prior_hessian(theta)

        return Evaluated(_or_infinite(value, gradient), gradient, score, curvature)

    def _likelihood(self, theta, scatter):
        self.before_pass()
        self.passes += self.share
        return self.gradients.likelihood(theta, self.index, scatter)


class WholeObjective:
    """Of a model whose rows are all used at each update.

    Parameters
    ----------
    gradients : WholeGradients
    before_pass : callable, optional
        Called before each evaluation.
    """

    def __init__(self, gradients: WholeGradients, before_pass: Callable[[], None] = lambda: None):
        self.gradients, self.before_pass = gradients, before_pass
        self.size = gradients.size
        self.passes = 0.0

    def at(self, theta, with_curvature=False):
        g = self.gradients
        self.before_pass()
        loglik, score = g.log_likelihood(theta)
        self.passes += 1
        gradient = -(g.prior_gradient(theta) + score)
        value = _or_infinite(-(g.log_prior(theta) + loglik), gradient)
        return Evaluated(value, gradient, score, cache(partial(self.hessian, theta)))

    def hessian(self, theta: np.ndarray) -> np.ndarray:
        """Matrix of second derivatives, shape (d, d)."""
        self.before_pass()
        self.passes += 2 * self.size
        return -self.gradients.hessian(theta)


def _or_infinite(value: float, gradient: np.ndarray) -> float:
    return float(value) if np.isfinite(value) and np.isfinite(gradient).all() else np.inf
