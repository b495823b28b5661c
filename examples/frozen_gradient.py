r"""FrozenGradient_S and _E: many updates of MSGNHT on one gradient, as deep models' authors do.

The code that the authors of deep Poisson factor analysis published makes m = 50 updates of mSGNHT
with the gradient of one batch, held fixed, and draws new momenta before them. Per gradient

    p ~ N(0, I), then m times the update of mSGNHT-S or mSGNHT-E with g(theta at the start)

which for small m h moves theta like one update of SGLD of step size (m h)^2, so the gradient's
noise is as large in relation to the injected one as at that step size. One gradient per m updates.
"""

from dataclasses import dataclass

from pymc_sgmcmc.samplers.msgnht import (
    MultivariateThermostatEuler,
    MultivariateThermostatSymmetric,
)
from pymc_sgmcmc.samplers.splitting import Phase, integrate
from pymc_sgmcmc.step import SGMCMCStep


class ManyUpdates:
    """Mixed into mSGNHT's algorithms."""

    def update(self, theta, state, gradient, h, noise, n_elements=None):
        """All updates on the gradient at their start."""
        force = gradient(theta).total
        p = noise() if self.new_momenta else state["p"]
        phase = Phase(theta, p, state["xi"])
        for _ in range(self.updates):
            phase = integrate(
                self.splitting,
                phase,
                h,
                force=lambda theta: force,
                noise=noise,
                diffusion=self.diffusion,
                thermostat=self.thermostat,
                n_elements=n_elements,
                temperature=self.temperature,
            )
        return phase.theta, {"p": phase.p, "xi": phase.xi}


@dataclass(frozen=True)
class FrozenSymmetric(ManyUpdates, MultivariateThermostatSymmetric):
    """MSGNHT_S with ``updates`` updates on each gradient."""

    updates: int = 50
    new_momenta: bool = True


@dataclass(frozen=True)
class FrozenEuler(ManyUpdates, MultivariateThermostatEuler):
    """MSGNHT_E with ``updates`` updates on each gradient."""

    updates: int = 50
    new_momenta: bool = True


class FrozenGradient_S(SGMCMCStep):
    """The step of `FrozenSymmetric`: see the module.

    Parameters
    ----------
    diffusion : float, default 1
        D >= 0, the injected noise: variance 2 D h per update.
    updates : int, default 50
        Updates on each gradient.
    new_momenta : bool, default True
        Draw momenta before each gradient.
    """

    name = "frozen_gradient_s"
    algorithm_class = FrozenSymmetric


class FrozenGradient_E(SGMCMCStep):
    """The step of `FrozenEuler`: see `FrozenGradient_S`."""

    name = "frozen_gradient_e"
    algorithm_class = FrozenEuler
