r"""SGRLD: stochastic gradient Riemannian Langevin dynamics on probability simplexes.

Expanded-mean form: a simplex pi of K elements is pi = theta / sum(theta), theta > 0. The model's
posterior of pi is unchanged, and the sum of theta, which starts at A, has the stationary
distribution Gamma(A, 1), independent of pi. For a Dirichlet(alpha) prior and A = sum(alpha),
theta_k ~ Gamma(alpha_k, 1) a priori.

Update (Patterson and Teh 2013; e is the step size, N(0, s) has VARIANCE s, * is
elementwise)::

    theta = | theta + e / 2 (alpha - theta + theta * g_lik(theta)) + N(0, e theta) |

at temperature 1. g_lik is the batch's gradient of the log likelihood with respect to theta. With
the gradient g of the whole log posterior with respect to PyMC's variable y, which is
y_i = log pi_i - mean(log pi), i < K, this is::

    G_K = -sum(g) / K;  G_i = g_i + G_K
    theta = | theta + e / 2 (T (A pi - theta) + G) + N(0, T e theta) |

because G = theta * dlog p / dtheta, to which a Dirichlet prior and the transform's Jacobian
contribute alpha - A pi. So only A has to be known, and the prior may have any other form. T is
the temperature, 1 by default: the draws of pi are from posterior^(1 / T), with the density of the
posterior with respect to pi itself.

y has the shape (..., K - 1), and the state `total`, the sum of theta, the shape (...). An update
takes one gradient. The bias is of order 1 in e for elements whose posterior shape a (prior alpha_k
plus the counts) is at least 1, and of order a for smaller a, because the reflection at 0 keeps rare
elements too large.
"""

from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import SimplexTransform
from pymc.model import Model
from pytensor.graph.traversal import ancestors

from pymc_sgmcmc.algorithm import Algorithm, check_temperature
from pymc_sgmcmc.gradients.arrays import evaluate
from pymc_sgmcmc.number_checks import positive_number
from pymc_sgmcmc.step import SGMCMCStep


def simplex(y):
    """Transform PyMC's y to pi, whose last axis is one element longer."""
    return pt.special.softmax(pt.concatenate([y, -y.sum(axis=-1, keepdims=True)], axis=-1), axis=-1)


def simplex_gradient(g):
    """Turn the gradient with respect to y into theta times that for theta, which sums to 0."""
    last = -g.sum(axis=-1, keepdims=True) / (g.shape[-1] + 1).astype(g.dtype)
    return pt.concatenate([g + last, last], axis=-1)


def unconstrained(theta):
    """Transform positive theta to PyMC's y, whose last axis is one element shorter."""
    log_theta = pt.log(theta)
    return (log_theta - log_theta.mean(axis=-1, keepdims=True))[..., :-1]


@dataclass(frozen=True)
class ExpandedMean(Algorithm):
    """SGRLD's update.

    ``concentration`` is A > 0: one number for all variables, or a number or an array (...) for each
    of them.
    """

    concentration: float | tuple[float | np.ndarray, ...] | None = None
    temperature: float = 1.0

    def __post_init__(self):
        check_temperature(self.temperature)
        if isinstance(self.concentration, tuple) or self.concentration is None:
            return
        positive_number("concentration", self.concentration)

    def _each(self, theta) -> tuple:
        A = self.concentration
        return A if isinstance(A, tuple) else (A,) * len(theta)

    def init(self, theta, rng):
        return {
            "total": [
                np.full(y.shape[:-1], A, dtype=y.dtype)
                for y, A in zip(theta, self._each(theta), strict=True)
            ]
        }

    def update(self, theta, state, gradient, h, noise):
        g = gradient(theta).total
        pi = [simplex(y) for y in theta]
        new_theta, new_total = [], []
        for p, total, gy, z, A in zip(
            pi, state["total"], g, noise(pi), self._each(theta), strict=True
        ):
            mean = pt.constant(np.asarray(A, dtype=p.dtype))[..., None] * p
            expanded = total[..., None] * p
            T = self.temperature
            drift = T * (mean - expanded) + simplex_gradient(gy)
            expanded = abs(expanded + 0.5 * h * drift + pt.sqrt(T * h * expanded) * z)
            # 0 has no logarithm, and 1 / pi squared must not overflow the float type.
            expanded = pt.maximum(expanded, np.sqrt(np.finfo(p.dtype).tiny).astype(p.dtype))
            new_theta.append(unconstrained(expanded))
            new_total.append(expanded.sum(axis=-1))
        return new_theta, {"total": new_total}


class SGRLD(SGMCMCStep):
    """Stochastic gradient Riemannian Langevin dynamics for probability simplexes.

    It samples variables that PyMC keeps on a simplex, of any batch shape. Each element moves on the
    scale of the square root of its own size, which suits both frequent and rare elements. The step
    size has the units of the expanded theta, whose sum is about ``concentration``; it should stay
    well below concentration / N, the time scale of the likelihood.

    Parameters
    ----------
    concentration : float, optional
        A > 0, the mean of the sum of the expanded theta. Any value gives the right posterior; a
        larger one makes the effective step smaller (the simplex depends on ``step_size`` / A) and
        steadier. Default: the sum of each Dirichlet's own alpha, as in the paper.
    {temperature}
    {common}

    Raises
    ------
    {raises}
    ValueError
        For a variable that is not on a simplex; and, if ``concentration`` is not given, for one
        that is not a Dirichlet or whose concentration is not constant.

    Notes
    -----
    {equations}

    Elements that have almost no counts and a prior alpha below 1 come out too large, with a bias of
    order ``step_size ** alpha``.

    The *expanded-natural* form of the paper is a model rather than a sampler:
    ``pm.math.softmax(pm.Normal(...))`` with any of the other samplers.

    References
    ----------
    S. Patterson and Y. W. Teh (2013), Stochastic gradient Riemannian Langevin dynamics on the
    probability simplex, NeurIPS, expanded-mean form. It is eq 3 of Li et al. (2016),
    preconditioned SGLD, AAAI, arXiv:1512.07666, with G = diag(theta).

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> with pm.Model():
    ...     pi = pm.Dirichlet("pi", [1.0, 1.0, 2.0])
    ...     y = pm.Categorical("y", pi, observed=np.repeat([0, 1, 2], [20, 70, 10]))
    ...     step = sgm.SGRLD(step_size=0.001, batch_size=10, thin=20)
    ...     idata = pm.sample(
    ...         200, tune=100, chains=2, cores=1, step=step, random_seed=1, progressbar=False,
    ...         compute_convergence_checks=False,
    ...     )
    >>> step
    SGRLD(step_size=0.001, concentration=(4.0,), batch_size=10, thin=20) of [pi_simplex__]
    >>> idata.posterior["pi"].shape
    (2, 200, 3)
    """

    name = "sgrld"
    algorithm_class = ExpandedMean
    takes_local = False

    @classmethod
    def bind(cls, model, vars, hyperparameters):
        """Take the concentrations from the model's Dirichlets if none is given."""
        for var in vars:
            rv = model.values_to_rvs[var]
            if not isinstance(model.rvs_to_transforms[rv], SimplexTransform):
                raise ValueError(
                    f"SGRLD samples probability simplexes, such as pm.Dirichlet variables, and "
                    f"'{rv.name}' is not one. Name the simplexes, as in SGRLD([pi], ...), and give "
                    "the other variables to another step or group."
                )
        if hyperparameters.get("concentration") is None:
            own = tuple(_concentration(model, model.values_to_rvs[var]) for var in vars)
            hyperparameters = hyperparameters | {"concentration": own}
        return super().bind(model, vars, hyperparameters)


def _concentration(model: Model, rv) -> float | np.ndarray:
    """Return the sum of a Dirichlet's alpha, as an array if simplexes differ."""
    remedy = "Pass concentration= to SGRLD: any positive number gives the right posterior; its "
    remedy += "number of elements times their prior alpha is a natural choice."
    if not isinstance(rv.owner.op, type(pm.Dirichlet.rv_op)):
        raise ValueError(f"'{rv.name}' is not a pm.Dirichlet and has no concentration. {remedy}")
    [alpha] = rv.owner.op.dist_params(rv.owner)
    if set(ancestors([alpha])) & set(model.basic_RVs):
        raise ValueError(f"The concentration of '{rv.name}' is not constant. {remedy}")
    [total] = evaluate(alpha.sum(axis=-1))
    return float(total.flat[0]) if np.all(total == total.flat[0]) else total
