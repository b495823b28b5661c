r"""Hamiltonian Monte Carlo of many chains together, with Metropolis' correction.

The log density of all chains is one call, so that a step costs one pass over the data. A trajectory
of n steps of size h begins with momentum p ~ N(0, I) and has two gradients per step (Blanes, Casas
and Sanz-Serna 2014, equation 6.4)::

    p += b h g(z)    z += h/2 p    p += (1 - 2 b) h g(z)    z += h/2 p    p += b h g(z)

with g the gradient of the log density. On a normal density whose covariance is the identity a
step of h = 2 changes the energy by less than 5e-4 an element on average, where leapfrog is
unstable. The end is accepted with probability min(1, exp(H(start) - H(end))), H = -log density +
p'p / 2, which leaves the density invariant whatever h, b and the metric are.

Blanes, Casas and Sanz-Serna (2014), Numerical integrators for the hybrid Monte Carlo method, SIAM
Journal on Scientific Computing 36(4), A1556-A1580.
"""

from typing import NamedTuple

import numpy as np

from pymc_sgmcmc.exact.log_density import LogDensity
from pymc_sgmcmc.gradients.metric import Metric

B = 0.21178
"""Coefficient b of the integrator, the share of a step in its first and last kick."""
LARGEST_ENERGY_ERROR = 1000.0
"""Rise of a trajectory's energy above which it has diverged."""


class Positions(NamedTuple):
    """Positions of chains."""

    theta: np.ndarray
    """Shape (C, d)."""
    log_density: np.ndarray
    """Log density, shape (C,)."""
    gradient: np.ndarray
    """Gradient of the log density with respect to z, shape (C, d)."""


class Transition(NamedTuple):
    """Chains after a transition, with its statistics; arrays of shape (C,)."""

    points: Positions
    acceptance: np.ndarray
    """Acceptance probability of each trajectory's end."""
    energy: np.ndarray
    """Energy H at the chain's position."""
    diverging: np.ndarray
    step_size: float
    n_steps: int


class Hamiltonian:
    """Transitions of all chains, in the coordinates z of a metric."""

    def __init__(self, density: LogDensity, metric: Metric, rng: np.random.Generator):
        self.density, self.metric, self.rng = density, metric, rng

    def at(self, theta: np.ndarray) -> Positions:
        """Evaluate points of shape (C, d)."""
        log_density, gradient = self.density.with_gradients(theta)
        return Positions(theta, log_density, self.metric.transposed_times(gradient))

    def transition(self, start: Positions, step_size: float, n_steps: int) -> Transition:
        """Follow a trajectory of each chain, and accept or reject its end."""
        momentum = self.rng.standard_normal(start.theta.shape)
        with np.errstate(all="ignore"):
            before = _energy(start, momentum)
            end, momentum = self._trajectory(start, momentum, step_size, n_steps)
            after = _energy(end, momentum)
            rise = np.where(np.isfinite(after), after - before, np.inf)
            acceptance = np.exp(-np.maximum(rise, 0.0))
        accepted = self.rng.random(len(rise)) < acceptance
        points = Positions(
            np.where(accepted[:, None], end.theta, start.theta),
            np.where(accepted, end.log_density, start.log_density),
            np.where(accepted[:, None], end.gradient, start.gradient),
        )
        energy, diverging = np.where(accepted, after, before), rise > LARGEST_ENERGY_ERROR
        return Transition(points, acceptance, energy, diverging, step_size, n_steps)

    def _trajectory(
        self, points: Positions, momentum: np.ndarray, h: float, n_steps: int
    ) -> tuple[Positions, np.ndarray]:
        for _ in range(n_steps):
            momentum = momentum + B * h * points.gradient
            points = self.at(points.theta + self.metric.times(h / 2 * momentum))
            momentum = momentum + (1 - 2 * B) * h * points.gradient
            points = self.at(points.theta + self.metric.times(h / 2 * momentum))
            momentum = momentum + B * h * points.gradient
        return points, momentum


def _energy(points: Positions, momentum: np.ndarray) -> np.ndarray:
    return np.square(momentum).sum(axis=1) / 2 - points.log_density
