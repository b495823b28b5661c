r"""SGLD: stochastic gradient Langevin dynamics.

Update (pSGLD paper eq 2; e is the step size, g the batch's gradient of the log posterior,
N(0, s) has VARIANCE s)::

    theta += e / 2 g(theta) + N(0, T e)

T is the temperature, 1 by default: the stationary distribution is posterior^(1 / T).

The noise is shaped like theta, variable by variable; there is no state. An update takes one
gradient. The bias is of order 1 in e. Welling and Teh (2011), Li et al. (2016a).
"""

from dataclasses import dataclass

import pytensor.tensor as pt

from pymc_sgmcmc.algorithm import Algorithm, check_temperature
from pymc_sgmcmc.step import SGMCMCStep


@dataclass(frozen=True)
class Langevin(Algorithm):
    """SGLD's update."""

    temperature: float = 1.0

    dynamics = "langevin"

    def __post_init__(self):
        check_temperature(self.temperature)

    def init(self, theta, rng):
        return {}

    def update(self, theta, state, gradient, h, noise):
        g = gradient(theta).total
        sd = pt.sqrt(self.temperature * h)
        theta = [t + 0.5 * h * gi + sd * z for t, gi, z in zip(theta, g, noise(), strict=True)]
        return theta, state


class SGLD(SGMCMCStep):
    """Stochastic gradient Langevin dynamics.

    This is the simplest sampler: an update is a gradient step of e / 2 and Gaussian noise of
    variance e. The step size has the units of theta squared: choose it below the smallest posterior
    variance (that of the noisiest direction, divided by N / n if batches are small).

    Parameters
    ----------
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
    M. Welling and Y. W. Teh (2011), Bayesian learning via stochastic gradient Langevin dynamics,
    ICML; as in Li et al. (2016), preconditioned SGLD, AAAI, arXiv:1512.07666, eq 2.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    ...     step = sgm.SGLD(step_size=1e-3, batch_size=10, thin=5)
    >>> step
    SGLD(step_size=0.001, batch_size=10, thin=5) of [mu]
    """

    name = "sgld"
    algorithm_class = Langevin
