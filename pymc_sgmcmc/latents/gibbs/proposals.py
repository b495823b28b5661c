r"""Proposals that match the slope and curvature of a log density at a point.

If the target itself belongs to the family, it is matched from every point: the proposal is the
target, and the Metropolis-Hastings rule accepts every draw. On the unconstrained scale u, with the
slope s and the curvature c of the log density at u,

- a normal density has the precision -c and the mean u - s / c;
- that of u = log z with z ~ Gamma(a, rate b), a u - b e^u, has a = s - c and b = -c / z;
- that of u = logit z with z ~ Beta(a, b) has a + b = -c / (z (1 - z)), a = s + (a + b) z.
"""

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.transforms import log, logodds
from pymc.logprob.transforms import Transform
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.algorithm import Tensors
from pymc_sgmcmc.noise import NoiseStream

HALF_LOG_TWO_PI = 0.5 * np.log(2 * np.pi)


class Proposal(Protocol):
    """A family of distributions of u; all arrays have the shape (rows,)."""

    draws_within: bool
    """Whether `draw` needs more random numbers than a standard normal draw made beforehand."""

    def matched(self, u, slope, curvature) -> Tensors:
        """Return the parameters of the member that matches at ``u``."""
        ...

    def draw(
        self, parameters: Tensors, normal: TensorVariable, stream: NoiseStream
    ) -> TensorVariable: ...

    def log_density(self, parameters: Tensors, u: TensorVariable) -> TensorVariable:
        """Return the log of the member's density."""
        ...


class NormalProposal:
    """The normal family, with the precision abs(curvature) where the log density is convex."""

    draws_within = False

    def matched(self, u, slope, curvature) -> Tensors:
        precision = pt.maximum(pt.abs(curvature), np.finfo(u.dtype).tiny ** 0.5)
        return [u + slope / precision, precision]

    def draw(self, parameters, normal, stream) -> TensorVariable:
        mean, precision = parameters
        return mean + normal / pt.sqrt(precision)

    def log_density(self, parameters, u) -> TensorVariable:
        mean, precision = parameters
        constant = np.asarray(HALF_LOG_TWO_PI, u.dtype)
        return 0.5 * pt.log(precision) - constant - 0.5 * precision * (u - mean) ** 2


class OfTwoShapes(ABC):
    """Base of the two families below; where no member matches, `NormalProposal` is used."""

    draws_within = True
    _fallback = NormalProposal()

    def matched(self, u, slope, curvature) -> Tensors:
        """Return mean and precision of the normal, whether the family matches, and its a and b."""
        a, b = self._shapes(u, slope, curvature)
        matches = (a > 0) & (b > 0)
        a, b = pt.switch(matches, a, 1), pt.switch(matches, b, 1)
        return [*self._fallback.matched(u, slope, curvature), matches, a, b]

    def draw(self, parameters, normal, stream) -> TensorVariable:
        *of_normal, matches, a, b = parameters
        own = self._draw(a, b, stream)
        return pt.switch(matches, own, self._fallback.draw(of_normal, normal, stream))

    def log_density(self, parameters, u) -> TensorVariable:
        *of_normal, matches, a, b = parameters
        own = self._log_density(a, b, u)
        return pt.switch(matches, own, self._fallback.log_density(of_normal, u))

    @abstractmethod
    def _shapes(self, u, slope, curvature) -> tuple[TensorVariable, TensorVariable]:
        """Return the matching parameters, which belong to a member only if they are positive."""

    @abstractmethod
    def _draw(self, a, b, stream) -> TensorVariable:
        """Draw from the member."""

    @abstractmethod
    def _log_density(self, a, b, u) -> TensorVariable:
        """Return the log of the member's density."""


def log_gamma_draws(a: TensorVariable, stream: NoiseStream) -> TensorVariable:
    """Return logarithms of draws from Gamma(a, 1), some of which may underflow."""
    draws = stream.draw(pt.random.gamma, a, scale=1.0, dtype=a.dtype)
    return pt.log(pt.maximum(draws, np.finfo(a.dtype).tiny))


class LogGamma(OfTwoShapes):
    """u = log z with z ~ Gamma(a, rate b)."""

    def _shapes(self, u, slope, curvature):
        return slope - curvature, -curvature * pt.exp(-u)

    def _draw(self, a, b, stream):
        return log_gamma_draws(a, stream) - pt.log(b)

    def _log_density(self, a, b, u):
        return a * pt.log(b) - pt.gammaln(a) + a * u - b * pt.exp(u)


class LogitBeta(OfTwoShapes):
    """u = logit z with z ~ Beta(a, b)."""

    def _shapes(self, u, slope, curvature):
        z = pt.sigmoid(u)
        total = -curvature / (z * (1 - z))
        return slope + total * z, total * (1 - z) - slope

    def _draw(self, a, b, stream):
        return log_gamma_draws(a, stream) - log_gamma_draws(b, stream)

    def _log_density(self, a, b, u):
        normaliser = pt.gammaln(a + b) - pt.gammaln(a) - pt.gammaln(b)
        return normaliser - a * pt.softplus(-u) - b * pt.softplus(u)


def proposal_for(transform: Transform | None) -> Proposal:
    """Return the family for a variable with this transform to the unconstrained scale."""
    if type(transform) is type(log):
        return LogGamma()
    if type(transform) is type(logodds):
        return LogitBeta()
    return NormalProposal()
