r"""SGNHT and SGNHT_S: one Nose-Hoover thermostat for all of theta.

Updates (h is the step size, g the batch's gradient of the log posterior, d the number of elements
of theta, N(0, s) has VARIANCE s):

SGNHT (SGNHT paper, Algorithm 1 with A written D), the splitting ``bOXT`` of
`pymc_sgmcmc.samplers.splitting`::

    p     += -h xi p + h g(theta) + N(0, 2 D T h)
    theta += h p
    xi    += h (p.p / d - T)

SGNHT_S (high-order paper eq 3 with the single thermostat of the SGNHT paper, eq 6), the splitting
``ABOBA``::

    theta += h/2 p;  xi += h/2 (p.p / d - T)
    p     *= exp(-h/2 xi)
    p     += h g(theta) + N(0, 2 D T h)
    p     *= exp(-h/2 xi)
    theta += h/2 p;  xi += h/2 (p.p / d - T)

p is shaped like theta and starts at a draw from N(0, T I); xi is a scalar for all variables of the
step and starts at D. T is the temperature, 1 by default: the stationary distribution is
posterior^(1 / T). An update takes one gradient. The bias is of order 1 in h for SGNHT and 2 for
SGNHT_S. Ding et al. (2014), Li et al. (2016b).
"""

from dataclasses import dataclass

import numpy as np

from pymc_sgmcmc.samplers.conversions import FromLearningRate
from pymc_sgmcmc.samplers.momentum import ThermostatAlgorithm, momentum
from pymc_sgmcmc.samplers.splitting import MOMENTUM_FIRST, SYMMETRIC, shared
from pymc_sgmcmc.step import SGMCMCStep


@dataclass(frozen=True)
class NoseHooverThermostat(ThermostatAlgorithm):
    """SGNHT's update."""

    splitting = MOMENTUM_FIRST
    thermostat = staticmethod(shared)

    def init(self, theta, rng):
        return {
            "p": momentum(theta, rng, self.temperature),
            "xi": [np.asarray(self.diffusion, theta[0].dtype)],
        }


@dataclass(frozen=True)
class NoseHooverThermostatSymmetric(NoseHooverThermostat):
    """SGNHT-S's update."""

    splitting = SYMMETRIC


class SGNHT(FromLearningRate, SGMCMCStep):
    """Stochastic gradient Nose-Hoover thermostat with a single thermostat variable.

    It is suitable when the minibatch noise is about equally strong in every direction; otherwise
    `MSGNHT_S` is more accurate.

    Parameters
    ----------
    diffusion : float, default 1
        D >= 0 (the paper's A): the injected noise has variance 2 D T h per update.
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
    N. Ding, Y. Fang, R. Babbush, C. Chen, R. D. Skeel and H. Neven (2014), Bayesian sampling using
    stochastic gradient thermostats, NeurIPS, eq 5 and 6, Algorithm 1.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    ...     step = sgm.SGNHT.from_learning_rate(eta=1e-4, a=0.01, batch_size=10)
    >>> step
    SGNHT(step_size=0.01, diffusion=1.0, batch_size=10, thin=1, replacement=True) of [mu]
    """

    name = "sgnht"
    algorithm_class = NoseHooverThermostat


class SGNHT_S(FromLearningRate, SGMCMCStep):
    """Stochastic gradient Nose-Hoover thermostat with a single variable, symmetric splitting.

    This is `SGNHT` with the integrator of `MSGNHT_S`, at the same cost and with a bias of order 2
    in the step size. It is suitable when the minibatch noise is about equally strong in every
    direction.

    Parameters
    ----------
    diffusion : float, default 1
        D >= 0 (the SGNHT paper's A): the injected noise has variance 2 D T h per update.
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
    C. Li, C. Chen, K. Fan and L. Carin (2016), High-order stochastic gradient thermostats for
    Bayesian learning of deep models, AAAI, arXiv:1512.07662, eq 3.

    N. Ding, Y. Fang, R. Babbush, C. Chen, R. D. Skeel and H. Neven (2014), Bayesian sampling using
    stochastic gradient thermostats, NeurIPS, eq 6.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    ...     step = sgm.SGNHT_S(step_size=0.02, batch_size=10)
    >>> step
    SGNHT_S(step_size=0.02, diffusion=1.0, batch_size=10, thin=1, replacement=True) of [mu]
    """

    name = "sgnht_s"
    algorithm_class = NoseHooverThermostatSymmetric
