r"""How a Gibbs sweep updates latent variables on simplexes: all simplexes of a row at once.

Let f be the logarithm of the full conditional as a function of z, extended off the simplex. The
proposal is Dirichlet with the concentrations 1 + z_k df/dz_k, accepted by the Metropolis-Hastings
rule. For f = sum_k (a_k - 1) log z_k the concentrations are a_k at every point: a Dirichlet
conditional is drawn exactly. If a concentration is not positive, the row does not change.
"""

from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.transforms import SimplexTransform
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.latents.gibbs.conditionals import Conditional, Move, conditional
from pymc_sgmcmc.latents.gibbs.proposals import log_gamma_draws
from pymc_sgmcmc.latents.joint import Joint, LatentVariable
from pymc_sgmcmc.noise import NoiseStream


@dataclass(frozen=True)
class Simplexes(Move):
    """Updates a variable whose last axis is a simplex."""

    terms: Conditional

    @classmethod
    def of(cls, joint: Joint, variable: LatentVariable) -> "Simplexes":
        """Derive the update from the joint log density."""
        return cls(conditional(joint, variable, logistic=False, separable=False, affine=False))

    @staticmethod
    def fits(variable: LatentVariable) -> bool:
        """Return whether a variable lies on simplexes."""
        return isinstance(variable.transform, SimplexTransform)

    @property
    def each_sweep(self) -> list[Variable]:
        return list(self.terms.fixed)

    def sweep(self, z, once, each_sweep, stream: NoiseStream, climbing) -> TensorVariable:
        """Update all simplexes of each row at once."""
        [value] = self.terms.maps
        f = self.terms.of_rows
        template = [f, 1 + value * pt.grad(f.sum(), value)]
        fixed = dict(zip(self.terms.fixed, each_sweep, strict=True))
        axes = tuple(range(1, z.ndim))

        def at(point):
            density, a = substitute(template, {value: point} | fixed)
            return density, (a > 0).all(axis=axes), pt.switch(a > 0, a, 1)

        f0, fits0, a0 = at(z)
        new = pt.special.softmax(log_gamma_draws(a0, stream), axis=-1)
        new = pt.maximum(new, np.finfo(z.dtype).tiny).astype(z.dtype)
        f1, fits1, a1 = at(new)
        ratio = f1 - f0 + _log_dirichlet(a1, z) - _log_dirichlet(a0, new)
        uniforms = stream.draw(pt.random.uniform, size=(z.type.shape[0],), dtype=z.dtype)
        accepted = fits0 & fits1 & (pt.log(uniforms) < ratio)
        return pt.switch(accepted.reshape((-1, *[1] * len(axes))), new, z)


def _log_dirichlet(a: TensorVariable, z: TensorVariable) -> TensorVariable:
    """Return the joint log density of each row's simplexes."""
    log_p = pt.gammaln(a.sum(axis=-1)) + ((a - 1) * pt.log(z) - pt.gammaln(a)).sum(axis=-1)
    return log_p.sum(axis=tuple(range(1, log_p.ndim)))
