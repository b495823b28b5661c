r"""MSGNHT_E and MSGNHT_S: one Nose-Hoover thermostat for each element of theta.

Updates (high-order paper; h is the step size, g the batch's gradient of the log posterior,
N(0, s) has VARIANCE s, * is elementwise):

E, Euler (section 2.2), the splitting ``XbOT`` of `pymc_sgmcmc.samplers.splitting`::

    theta += h p
    p     += h g(theta) - h xi * p + N(0, 2 D T h)
    xi    += h (p * p - T)

S, the symmetric splitting ``ABOBA`` (eq 3)::

    theta += h/2 p;  xi += h/2 (p * p - T)
    p     *= exp(-h/2 xi)
    p     += h g(theta) + N(0, 2 D T h)
    p     *= exp(-h/2 xi)
    theta += h/2 p;  xi += h/2 (p * p - T)

In models whose groups' effects are local variables with adapted scales, S has thermostats of mass
m = 30 and the friction is integrated by the implicit midpoint rule, ``AbOiA``::

    theta += h/2 p;  xi += h/2 (p * p - T) / m
    p     *= 1 - h/2 xi
    p     += h g(theta) + N(0, 2 D T h)
    p     /= 1 + h/2 xi
    theta += h/2 p;  xi += h/2 (p * p - T) / m

p and xi are shaped like theta; p starts at a draw from N(0, T I), xi at D. T is the temperature, 1
by default: the stationary distribution is posterior^(1 / T). An update takes one gradient. The bias
is of order 1 in h for E and 2 for S. Li et al. (2016b), Ding et al. (2014), Gan et al. (2015).
"""

from dataclasses import dataclass

import numpy as np

from pymc_sgmcmc.samplers.conversions import FromLearningRate
from pymc_sgmcmc.samplers.momentum import ThermostatAlgorithm, momentum
from pymc_sgmcmc.samplers.splitting import EULER, MIDPOINT, SYMMETRIC, elementwise
from pymc_sgmcmc.step import SGMCMCStep


@dataclass(frozen=True)
class MultivariateThermostatEuler(ThermostatAlgorithm):
    """mSGNHT-E's update."""

    splitting = EULER
    thermostat = staticmethod(elementwise)

    def init(self, theta, rng):
        return {
            "p": momentum(theta, rng, self.temperature),
            "xi": [np.full_like(t, self.diffusion) for t in theta],
        }


@dataclass(frozen=True)
class MultivariateThermostatSymmetric(MultivariateThermostatEuler):
    """mSGNHT-S's update."""

    splitting = SYMMETRIC

    def for_groups(self):
        return MultivariateThermostatHeavy(self.diffusion, self.temperature)


@dataclass(frozen=True)
class MultivariateThermostatHeavy(MultivariateThermostatSymmetric):
    """mSGNHT-S with thermostats that react slowly, for effects of groups.

    A batch of rows has a single row of most groups that it touches, and the noise of that row is
    skewed, as y - p is for binary y. A thermostat of mass 1 is high after large kicks, which all
    have the same sign, so E[xi p] is not 0, and E[g] = E[xi p] is the error of an effect's mean:
    about h^2 / m times the third moment of the noise. Where the skewness changes with the effect,
    these errors add up in the scale that all groups share.

    A friction that hardly varies needs the midpoint rule, because only the fluctuations of a
    friction of mass 1 cancel the variance h^2 xi^2 / 8 that `SYMMETRIC` adds.
    """

    splitting = MIDPOINT
    mass = 30.0
    """Mass m: with it the scale that the effects of binary rows share is off by 0.00 ± 0.02 and
    -0.01 ± 0.02 posterior sds in the two models of docs/hierarchies.md."""


class MSGNHT_E(FromLearningRate, SGMCMCStep):
    """Multivariate stochastic gradient Nose-Hoover thermostat, Euler integrator.

    It is kept for comparison with the papers: `MSGNHT_S` costs the same and has a bias of order 2.

    Parameters
    ----------
    diffusion : float, default 1
        D >= 0: the injected noise has variance 2 D T h per update. Larger values damp the motion
        more.
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
    Bayesian learning of deep models, AAAI, arXiv:1512.07662, section 2.2.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    ...     step = sgm.MSGNHT_E(step_size=0.01, diffusion=2.0, batch_size=10)
    >>> step.algorithm
    MultivariateThermostatEuler(diffusion=2.0, temperature=1.0)
    """

    name = "msgnht_e"
    algorithm_class = MultivariateThermostatEuler


class MSGNHT_S(FromLearningRate, SGMCMCStep):
    """Multivariate stochastic gradient Nose-Hoover thermostat, symmetric splitting.

    Each element's thermostat balances the minibatch noise of that element; the integrator's bias is
    of order 2 in the step size. A thermostat cannot balance noise that is correlated between
    elements or that cancels over a shuffled epoch: where sds and correlations must be right, keep
    the mean of the statistic ``thermostat`` near ``diffusion`` (by a smaller step size, larger
    batches or a larger ``diffusion``).

    Parameters
    ----------
    diffusion : float, default 1
        D >= 0: the injected noise has variance 2 D T h per update. Larger values damp the motion
        more.
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

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    ...     step = sgm.MSGNHT_S(step_size=0.02, batch_size=10, thin=20)
    ...     idata = pm.sample(
    ...         200, tune=100, chains=2, cores=1, step=step, random_seed=1, progressbar=False,
    ...         compute_convergence_checks=False,
    ...     )
    >>> idata.posterior["mu"].shape
    (2, 200)
    """

    name = "msgnht_s"
    algorithm_class = MultivariateThermostatSymmetric
