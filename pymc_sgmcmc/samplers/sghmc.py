r"""SGHMC_E and SGHMC_S: Langevin dynamics with momentum and a fixed friction D.

Updates (the high-order paper's mSGNHT with xi held at D; h is the step size, g the batch's
gradient of the log posterior, N(0, s) has VARIANCE s):

E, Euler, the splitting ``XbOT`` of `pymc_sgmcmc.samplers.splitting`::

    theta += h p
    p     += h g(theta) - h D p + N(0, 2 D T h)

S, the symmetric splitting ``ABOBA``::

    theta += h/2 p
    p     *= exp(-h/2 D)
    p     += h g(theta) + N(0, 2 D T h)
    p     *= exp(-h/2 D)
    theta += h/2 p

T is the temperature, 1 by default: the stationary distribution is posterior^(1 / T).

p is shaped like theta and starts at a draw from N(0, T I). An update takes one gradient. The bias
is of order 1 in h for E and 2 for S (on a Gaussian, E happens to have order 2 for theta and order 1
for p). There is no correction for minibatch noise, which raises the temperature. Chen, Fox and
Guestrin (2014), Li et al. (2016b).
"""

from dataclasses import dataclass
from typing import ClassVar

import pytensor.tensor as pt

from pymc_sgmcmc.algorithm import Algorithm, check_temperature
from pymc_sgmcmc.samplers.conversions import FromMomentumDecay
from pymc_sgmcmc.samplers.momentum import check_noise, mean_square, momentum
from pymc_sgmcmc.samplers.splitting import (
    EULER,
    SYMMETRIC,
    Dynamics,
    Phase,
    drift_to_gradient,
    fixed_friction,
    integrate,
)
from pymc_sgmcmc.step import SGMCMCStep


@dataclass(frozen=True)
class HamiltonianEuler(Algorithm):
    """SGHMC-E's update."""

    friction: float = 1.0
    temperature: float = 1.0

    splitting: ClassVar[str] = EULER
    statistics = ("kinetic_temperature",)
    dynamics = "friction"

    def __post_init__(self):
        check_noise("friction", self.friction)
        check_temperature(self.temperature)

    @property
    def injected_noise(self) -> float:
        return self.friction

    @property
    def drift_to_gradient(self) -> float:
        return drift_to_gradient(self.splitting)

    def init(self, theta, rng):
        return {"p": momentum(theta, rng, self.temperature)}

    def update(self, theta, state, gradient, h, noise):
        dynamics = Dynamics(
            lambda theta: gradient(theta).total,
            noise,
            self.friction,
            fixed_friction,
            self.temperature,
        )
        start = Phase(theta, state["p"], [pt.constant(self.friction, dtype=h.dtype)])
        theta, p, _ = integrate(self.splitting, start, h, dynamics)
        return theta, {"p": p}

    def diagnostics(self, state):
        return [mean_square(state["p"])]


@dataclass(frozen=True)
class HamiltonianSymmetric(HamiltonianEuler):
    """SGHMC-S's update."""

    splitting = SYMMETRIC


class SGHMC_E(FromMomentumDecay, SGMCMCStep):
    """Stochastic gradient Hamiltonian Monte Carlo, Euler integrator.

    It is kept for comparison with the papers: `SGHMC_S` costs the same and has a bias of order 2.

    Parameters
    ----------
    friction : float, default 1
        D >= 0, per unit of time; the injected noise has variance 2 D T h per update.
    {temperature}
    {common}

    Raises
    ------
    {raises}

    Notes
    -----
    {equations}

    References
    ----------
    T. Chen, E. B. Fox and C. Guestrin (2014), Stochastic gradient Hamiltonian Monte Carlo, ICML,
    arXiv:1402.4102; in the form of:

    C. Li, C. Chen, K. Fan and L. Carin (2016), High-order stochastic gradient thermostats for
    Bayesian learning of deep models, AAAI, arXiv:1512.07662, section 2.2 with xi held at D.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    ...     step = sgm.SGHMC_E(step_size=0.01, friction=5.0, batch_size=10)
    >>> step
    SGHMC_E(step_size=0.01, friction=5.0, batch_size=10, thin=1) of [mu]
    """

    name = "sghmc_e"
    algorithm_class = HamiltonianEuler


class SGHMC_S(FromMomentumDecay, SGMCMCStep):
    """Stochastic gradient Hamiltonian Monte Carlo, symmetric splitting.

    It is suitable when batches are large or friction is strong, because minibatch noise of variance
    s^2 per gradient raises the temperature by about h s^2 / (2 D). The thermostats (`MSGNHT_S`)
    correct for that.

    Parameters
    ----------
    friction : float, default 1
        D >= 0, per unit of time; the injected noise has variance 2 D T h per update.
    {temperature}
    {common}

    Raises
    ------
    {raises}

    Notes
    -----
    {equations}

    References
    ----------
    C. Chen, N. Ding and L. Carin (2015), On the convergence of stochastic gradient MCMC algorithms
    with high-order integrators, NeurIPS, arXiv:1610.06665; in the form of:

    C. Li, C. Chen, K. Fan and L. Carin (2016), High-order stochastic gradient thermostats for
    Bayesian learning of deep models, AAAI, arXiv:1512.07662, eq 3 with xi held at D.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    ...     step = sgm.SGHMC_S.from_momentum_decay(
    ...         learning_rate=0.01, momentum_decay=0.05, per_datum=100, batch_size=10
    ...     )
    >>> step
    SGHMC_S(step_size=0.01, friction=5.0, batch_size=10, thin=1) of [mu]
    """

    name = "sghmc_s"
    algorithm_class = HamiltonianSymmetric
