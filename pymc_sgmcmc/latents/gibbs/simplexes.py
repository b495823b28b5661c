r"""A move of latent variables on simplexes within a Gibbs sweep: all of a row's at once.

With f the logarithm of the full conditional as a function of z, also off the simplex, the proposal
is Dirichlet with the concentrations 1 + z_k df/dz_k, accepted by Metropolis and Hastings' rule.
f = sum_k (a_k - 1) log z_k has the concentrations a_k wherever one stands: a Dirichlet conditional
is drawn exactly. Where a concentration is not positive the row stays as it is.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.transforms import SimplexTransform
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.latents.gibbs.conditionals import Conditional, conditional
from pymc_sgmcmc.latents.gibbs.proposals import log_gamma_draws
from pymc_sgmcmc.latents.joint import Joint, LocalVariable
from pymc_sgmcmc.noise import NoiseStream


@dataclass(frozen=True)
class Simplexes:
    """Moves a variable whose last axis is a simplex."""

    terms: Conditional

    copies: ClassVar[int] = 1
    once: ClassVar[list[Variable]] = []

    @classmethod
    def of(cls, joint: Joint, variable: LocalVariable) -> "Simplexes":
        """Derive the move from the joint log density."""
        return cls(conditional(joint, variable, logistic=False, separable=False, affine=False))

    @staticmethod
    def fits(variable: LocalVariable) -> bool:
        """Whether a variable lies on simplexes."""
        return isinstance(variable.transform, SimplexTransform)

    @property
    def each_sweep(self) -> list[Variable]:
        """What a sweep begins with."""
        return list(self.terms.fixed)

    def sweep(self, z, once, each_sweep, stream: NoiseStream, climbing) -> TensorVariable:
        """Move all simplexes of each row at once."""
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
    """Log density of each row's simplexes together."""
    log_p = pt.gammaln(a.sum(axis=-1)) + ((a - 1) * pt.log(z) - pt.gammaln(a)).sum(axis=-1)
    return log_p.sum(axis=tuple(range(1, log_p.ndim)))
