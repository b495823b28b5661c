r"""FrozenGradient_S and _E: many updates of MSGNHT on one gradient, as deep models' authors do.

The code that the authors of deep Poisson factor analysis published makes m = 50 updates of mSGNHT
with the gradient of one batch, held fixed, and draws new momenta before them. Per gradient

    p ~ N(0, I), then m times the update of mSGNHT-S or mSGNHT-E with g(theta at the start)

which for small m h moves theta like one update of SGLD of step size (m h)^2, so the gradient's
noise is as large in relation to the injected one as at that step size. One gradient per m updates.
"""

from dataclasses import dataclass

import pytensor.tensor as pt
from pytensor.scan.basic import scan

from pymc_sgmcmc.samplers.msgnht import (
    MultivariateThermostatEuler,
    MultivariateThermostatSymmetric,
)
from pymc_sgmcmc.samplers.splitting import Dynamics, Phase, integrate
from pymc_sgmcmc.step import SGMCMCStep


class ManyUpdates:
    """Mixed into mSGNHT's algorithms."""

    def update(self, theta, state, gradient, h, noise, n_elements=None):
        """All updates on the gradient at their start, in a loop that is compiled once."""
        force = gradient(theta).total
        p = noise() if self.new_momenta else state["p"]
        draws = noise([pt.zeros((self.updates, *t.type.shape), t.dtype) for t in theta])
        n = len(theta)

        def one(*args):
            z, phase, given = args[:n], args[n : 4 * n], args[4 * n :]
            dynamics = Dynamics(
                lambda theta: given[:n],
                lambda: z,
                self.diffusion,
                self.thermostat,
                self.temperature,
            )
            start = Phase(*(list(phase[k * n : (k + 1) * n]) for k in range(3)))
            moved = integrate(self.splitting, start, given[-1], dynamics)
            return [*moved.theta, *moved.p, *moved.xi]

        path = scan(
            one,
            sequences=draws,
            outputs_info=[*theta, *p, *state["xi"]],
            non_sequences=[*force, h],
            strict=True,
            return_updates=False,
        )
        last = [values[-1] for values in path]
        return last[:n], {"p": last[n : 2 * n], "xi": last[2 * n :]}


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
