r"""PSGLD: SGLD preconditioned by the running size of the gradient.

Update (pSGLD paper eq 4-5 and Algorithm 1; gbar is the MEAN over the batch of the likelihood's
gradient, without prior and without N; N(0, s) has VARIANCE s, * is elementwise)::

    V      = alpha V + (1 - alpha) gbar * gbar
    G      = 1 / (lam + sqrt(V))
    theta += e / 2 (G g + T Gamma) + N(0, T e G)
    Gamma_i = dG_i / dtheta_i
            = -(1 - alpha) gbar_i / sqrt(V_i) / (lam + sqrt(V_i))^2  d gbar_i / d theta_i

T is the temperature, 1 by default: for small steps the draws are from posterior^(1 / T).

V starts at 0, so the first steps are the longest. Gamma needs the diagonal of the Hessian H of the
mean log likelihood; it is estimated without bias by z * (H z) with a fresh vector z of random signs
(Bekas et al. 2007), which costs one more backward pass per update. With signs instead of normals
the error of the estimate of H_ii comes only from the other elements of its row.

V is shaped like theta. An update takes one gradient. The bias is of order 1 in e. Li et al.
(2016a).
"""

from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt

from pymc_sgmcmc.algorithm import Algorithm, check_temperature
from pymc_sgmcmc.number_checks import positive_number, real_number, true_or_false
from pymc_sgmcmc.step import SGMCMCStep


@dataclass(frozen=True)
class PreconditionedLangevin(Algorithm):
    """pSGLD's update."""

    alpha: float = 0.99
    lam: float = 1e-5
    gamma: bool = False
    temperature: float = 1.0

    def __post_init__(self):
        remedy = "V is the mean of about 1 / (1 - alpha) squared gradients (default 0.99)."
        real_number("alpha", self.alpha, "a number in [0, 1)", lambda x: 0 <= x < 1, remedy)
        remedy = "The preconditioner is at most 1 / lam (default 1e-5)."
        positive_number("lam", self.lam, remedy)
        true_or_false("gamma", self.gamma)
        check_temperature(self.temperature)

    def init(self, theta, rng):
        return {"V": [np.zeros_like(t) for t in theta]}

    def update(self, theta, state, gradient, h, noise):
        at_theta = gradient(theta)
        g_bar = at_theta.mean_likelihood
        V = [
            self.alpha * v + (1 - self.alpha) * gb * gb
            for v, gb in zip(state["V"], g_bar, strict=True)
        ]
        root = [pt.sqrt(v) for v in V]
        G = [1 / (self.lam + r) for r in root]
        drift = [Gi * gi for Gi, gi in zip(G, at_theta.total, strict=True)]
        if self.gamma:
            z = [pt.sign(zi) for zi in noise()]
            diagonal = [zi * Hz for zi, Hz in zip(z, at_theta.mean_curvature(z), strict=True)]
            drift = [
                d - self.temperature * self._dG(gb, r, Gi) * dg
                for d, gb, r, Gi, dg in zip(drift, g_bar, root, G, diagonal, strict=True)
            ]
        theta = [
            t + 0.5 * h * d + pt.sqrt(self.temperature * h * Gi) * z
            for t, d, Gi, z in zip(theta, drift, G, noise(), strict=True)
        ]
        return theta, {"V": V}

    def _dG(self, g_bar, root, G):
        """Return -dG / d gbar, elementwise."""
        return (1 - self.alpha) * g_bar / pt.switch(pt.eq(root, 0), 1, root) * G * G


class PSGLD(SGMCMCStep):
    """Preconditioned SGLD: each element moves on the scale of its own gradients.

    Parameters
    ----------
    alpha : float, default 0.99
        Weight of the past in the running mean of squared gradients, per update, in [0, 1).
    lam : float, default 1e-5
        lambda > 0, on the scale of the MEAN gradient per row; the preconditioner is at most
        1 / lambda.
    gamma : bool, default False
        Add the correction Gamma, at the cost of one more backward pass per update. The paper drops
        it because it is small for alpha near 1.
    {temperature}
    {common}

    Raises
    ------
    {raises}

    Notes
    -----
    {equations}

    Gamma is added only with ``gamma=True``.

    Where the gradient's size depends on theta more than on the batch, the stationary distribution
    is biased even for tiny steps: V then follows theta immediately, and the draws have the density
    posterior / G without ``gamma``, posterior / G^alpha with it (the paper's Gamma includes only
    the newest term of V). The bias vanishes where G hardly varies: when minibatch noise dominates
    V, when alpha is so near 1 that V averages over the posterior, or when ``lam`` is large. With
    ``gamma`` it also vanishes for alpha = 0.

    References
    ----------
    C. Li, C. Chen, D. Carlson and L. Carin (2016), Preconditioned stochastic gradient Langevin
    dynamics for deep neural networks, AAAI, arXiv:1512.07666, eq 4 and 5, Algorithm 1.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    ...     step = sgm.PSGLD(step_size=1e-3, alpha=0.95, batch_size=10)
    >>> step.algorithm
    PreconditionedLangevin(alpha=0.95, lam=1e-05, gamma=False, temperature=1.0)
    """

    name = "psgld"
    algorithm_class = PreconditionedLangevin
