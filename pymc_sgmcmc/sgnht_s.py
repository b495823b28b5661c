r"""SGNHT_S: one Nose-Hoover thermostat for all of theta, symmetric splitting.

Update (high-order paper eq 3 with the single thermostat of the SGNHT paper, eq 6; h is the step
size, g the batch's gradient of the log posterior, n the number of elements of theta, N(0, s) has
VARIANCE s), the word ``ABOBA`` of `pymc_sgmcmc.splitting`:

    theta += h/2 p;  xi += h/2 (p.p / n - 1)
    p     *= exp(-h/2 xi)
    p     += h g(theta) + N(0, 2 D h)
    p     *= exp(-h/2 xi)
    theta += h/2 p;  xi += h/2 (p.p / n - 1)

Shapes: p like theta, xi a scalar over all variables of the step; p starts at N(0, I), xi at D.
One gradient an update. Bias of order 2 in h. Li et al. (2016b), Ding et al. (2014).
"""

from dataclasses import dataclass

from pymc_sgmcmc.sgnht import NoseHooverThermostat
from pymc_sgmcmc.splitting import SYMMETRIC
from pymc_sgmcmc.step import SGMCMCStep
from pymc_sgmcmc.units import FromLearningRate


@dataclass(frozen=True)
class NoseHooverThermostatSymmetric(NoseHooverThermostat):
    """SGNHT-S's update."""

    word = SYMMETRIC


class SGNHT_S(FromLearningRate, SGMCMCStep):
    """Stochastic gradient Nose-Hoover thermostat with a single variable, symmetric splitting.

    `SGNHT` with the integrator of `MSGNHT_S`: the same cost, a bias of order 2 in the step size.
    Right when the minibatch noise is about as strong in every direction.

    Parameters
    ----------
    diffusion : float, default 1
        D >= 0 (the SGNHT paper's A), the injected noise: variance 2 D h an update.
    {common}

    Raises
    ------
    {raises}

    Notes
    -----
    An update, with h the step size, g the batch's gradient of the log posterior, n the number of
    elements of theta and N(0, s) of variance s::

        theta += h/2 p;  xi += h/2 (p.p / n - 1)
        p     *= exp(-h/2 xi)
        p     += h g(theta) + N(0, 2 D h)
        p     *= exp(-h/2 xi)
        theta += h/2 p;  xi += h/2 (p.p / n - 1)

    One xi for all variables of the step. p starts at N(0, I), xi at D. One gradient an update;
    bias of order 2 in h.

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
    SGNHT_S(step_size=0.02, diffusion=1.0, batch_size=10, thin=1) of [mu]
    """

    name = "sgnht_s"
    algorithm_class = NoseHooverThermostatSymmetric
