r"""SGNHT: one Nose-Hoover thermostat for all of theta.

Update (SGNHT paper, Algorithm 1 with A written D; n is the number of elements of theta,
N(0, s) has VARIANCE s), the word ``bOXT`` of `pymc_sgmcmc.splitting`:

    p     += -h xi p + h g(theta) + N(0, 2 D h)
    theta += h p
    xi    += h (p.p / n - 1)

Shapes: p like theta, xi a scalar over all variables of the step; p starts at N(0, I), xi at D.
One gradient an update. Bias of order 1 in h. Ding et al. (2014).
"""

from dataclasses import dataclass

import numpy as np

from pymc_sgmcmc.momentum import ThermostatAlgorithm, momentum
from pymc_sgmcmc.splitting import MOMENTUM_FIRST, shared
from pymc_sgmcmc.step import SGMCMCStep
from pymc_sgmcmc.units import FromLearningRate


@dataclass(frozen=True)
class NoseHooverThermostat(ThermostatAlgorithm):
    """SGNHT's update."""

    word = MOMENTUM_FIRST
    thermostat = staticmethod(shared)

    def init(self, theta, rng):
        return {"p": momentum(theta, rng), "xi": [np.asarray(self.diffusion, theta[0].dtype)]}


class SGNHT(FromLearningRate, SGMCMCStep):
    """Stochastic gradient Nose-Hoover thermostat with a single thermostat variable.

    Right when the minibatch noise is about as strong in every direction; otherwise
    `MSGNHT_S` is more accurate.

    Parameters
    ----------
    diffusion : float, default 1
        D >= 0 (the paper's A), the injected noise: variance 2 D h an update.
    {common}

    Raises
    ------
    {raises}

    Notes
    -----
    An update, with h the step size, g the batch's gradient of the log posterior, n the number of
    elements of theta and N(0, s) of variance s::

        p     += -h xi p + h g(theta) + N(0, 2 D h)
        theta += h p
        xi    += h (p.p / n - 1)

    One xi for all variables of the step. p starts at N(0, I), xi at D. One gradient an update;
    bias of order 1 in h.

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
    SGNHT(step_size=0.01, diffusion=1.0, batch_size=10, thin=1) of [mu]
    """

    name = "sgnht"
    algorithm_class = NoseHooverThermostat
