r"""How a Gibbs sweep updates a continuous latent variable.

On the unconstrained scale u, let f be the logarithm of the full conditional of one unit. The
proposal is the member of a family that matches the slope and curvature of f (see
`pymc_sgmcmc.latents.gibbs.proposals`), accepted by the Metropolis-Hastings rule. A full conditional
in the family is drawn exactly: a normal; a Gamma for a positive variable; a Beta for one in the
unit interval. Variables with a transform have tails on the unconstrained scale in which the
curvature vanishes, so a random walk follows, to N(u, s^2) with log s uniform. The first sweeps of a
new chain climb instead, to u + f'(u) / abs(f''(u)), at most `MAX_CLIMB` away, if f is larger there.
"""

from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.latents.gibbs.conditionals import Conditional, Move, boundary, conditional, moved
from pymc_sgmcmc.latents.gibbs.proposals import NormalProposal, Proposal, proposal_for
from pymc_sgmcmc.latents.joint import Joint, LatentVariable
from pymc_sgmcmc.latents.scan import strict_scan
from pymc_sgmcmc.noise import NoiseStream

MAX_CLIMB = 3.0
"""Largest change of a variable with a transform in a climbing sweep, because the curvature vanishes
in the tails of such a variable."""
LOG_SCALES = (-3.0, 1.5)
"""Range of log s, with s the standard deviation of a random-walk proposal."""


@dataclass(frozen=True)
class Continuous(Move):
    """Updates a continuous variable, one unit of its unconstrained value after the other."""

    terms: Conditional
    u: TensorVariable
    """Placeholder: unconstrained values, shape (rows, units)."""
    z: TensorVariable
    """The variable's value as a function of ``u``, shape (rows, ...)."""
    start: TensorVariable
    """The current value of the variable, unconstrained."""
    log_jacobian: TensorVariable
    """One value per row, a function of ``u``."""
    n_rows: int
    proposal: Proposal
    transformed: bool

    @classmethod
    def of(cls, joint: Joint, variable: LatentVariable) -> "Continuous":
        """Derive the moves from the joint log density."""
        transform, inputs = variable.transform, variable.batch_rv.owner.inputs
        n = joint.n_rows
        elementwise = transform is None or transform.ndim_supp == 0
        terms = conditional(joint, variable, logistic=False, separable=False, affine=elementwise)
        if transform is None:
            start, shape = variable.value, variable.shape
        else:
            start = transform.forward(variable.value, *inputs)
            shape = variable.shape if elementwise else start.type.shape[1:]
        if None in shape:
            raise ValueError(
                f"The latent variable '{variable.name}' has an unconstrained value of unknown "
                "shape: give it shape= or dims= of known lengths, or pass conditional= to Gibbs."
            )
        u = pt.tensor("u", shape=(n, int(np.prod(shape, dtype=int))), dtype=variable.dtype)
        unfolded = u.reshape((n, *shape))
        if transform is None:
            z, log_jacobian = unfolded, pt.zeros((n,), dtype=variable.dtype)
        else:
            z = transform.backward(unfolded, *inputs)
            jacobian = transform.log_jac_det(unfolded, *inputs)
            log_jacobian = jacobian.sum(axis=tuple(range(1, jacobian.ndim)))
        start = start.reshape((n, -1))
        own = proposal_for(transform)
        return cls(terms, u, z, start, log_jacobian, n, own, transform is not None)

    @property
    def _fixed(self) -> list[Variable]:
        """Inputs that stay the same while the units of this variable change."""
        own = boundary([self.u], [self.z, self.log_jacobian])
        return list(dict.fromkeys([*self.terms.fixed, *own]))

    @property
    def once(self) -> list[Variable]:
        return list(self.terms.columns)

    @property
    def each_sweep(self) -> list[Variable]:
        return [self.start, *self.terms.maps, *self._fixed]

    def _density(self, t, unit, maps, columns) -> TensorVariable:
        """Return the log of the full conditional with one unit of ``u`` at ``t``, for each row."""
        c = self.terms
        u = self.u + (t - self._of_unit(unit))[:, None] * unit
        [z, log_jacobian] = substitute([self.z, self.log_jacobian], {self.u: u})
        if c.is_affine:
            steps = ((z - self.z).reshape(self.u.shape) * unit).sum(axis=1)
            trial = moved(maps, columns, steps)
        else:
            trial = [z]
        [of_rows] = substitute([c.of_rows], dict(zip(c.maps, trial, strict=True)))
        return of_rows + log_jacobian

    def _of_unit(self, unit) -> TensorVariable:
        return (self.u * unit).sum(axis=1)

    def sweep(self, z, once, each_sweep, stream: NoiseStream, climbing) -> TensorVariable:
        """Update each unit given the others, one after the other."""
        c, n, dtype = self.terms, self.n_rows, self.u.dtype
        n_units = self.u.type.shape[1]
        k = len(c.maps)
        start, maps, fixed = each_sweep[0], each_sweep[1 : k + 1], each_sweep[k + 1 :]
        proposal = self.proposal
        normals = stream.draw(pt.random.normal, size=(n_units, n), dtype=dtype)
        uniforms = stream.draw(pt.random.uniform, size=(n_units, n), dtype=dtype)
        walks = []
        if self.transformed:
            log_scale = stream.draw(pt.random.uniform, *LOG_SCALES, size=(n_units, n), dtype=dtype)
            steps = stream.draw(pt.random.normal, size=(n_units, n), dtype=dtype)
            walk_uniforms = stream.draw(pt.random.uniform, size=(n_units, n), dtype=dtype)
            walks = [pt.exp(log_scale) * steps, walk_uniforms]

        t, unit = pt.tensor("t", shape=(n,), dtype=dtype), pt.vector("unit", dtype=dtype)
        columns = [column[0].type() for column in c.columns]
        f = self._density(t, unit, c.maps, columns)
        slope = pt.grad(f.sum(), t, disconnected_inputs="ignore")
        curvature = pt.grad(slope.sum(), t, disconnected_inputs="ignore")
        limit = MAX_CLIMB if self.transformed else np.inf
        steepest = NormalProposal().matched(t, slope, curvature)[0] - t
        template = [f, t + pt.clip(steepest, -limit, limit)]
        template += proposal.matched(t, slope, curvature)

        def one_unit(now_unit, normal, uniform, *args):
            take = iter(args).__next__
            now_walks = [take() for _ in walks]
            now_columns = [take() for _ in columns]
            now_u, now_maps = take(), [take() for _ in maps]
            inner = NoiseStream(take() if proposal.draws_within else None)
            now_fixed = [take() for _ in fixed]
            climbing = take()
            replace = {self.u: now_u, unit: now_unit}
            if c.is_affine:
                replace |= dict(zip([*c.maps, *columns], [*now_maps, *now_columns], strict=True))
            replace |= dict(zip(self._fixed, now_fixed, strict=True))
            old = substitute([self._of_unit(unit)], replace)[0]
            f0, uphill, *there = substitute(template, replace | {t: old})
            new = pt.switch(climbing, uphill, proposal.draw(there, normal, inner)).astype(dtype)
            f1, _, *back = substitute(template, replace | {t: new})
            correction = proposal.log_density(back, old) - proposal.log_density(there, new)
            ratio = f1 - f0 + pt.switch(climbing, 0, correction)
            accepted = pt.switch(climbing, 0, pt.log(uniform)) < ratio
            new = pt.switch(accepted, new, old)
            if now_walks:
                step, walk_uniform = now_walks
                [f2] = substitute([f], replace | {t: new + step})
                goes = (pt.log(walk_uniform) < f2 - pt.switch(accepted, f1, f0)) & ~climbing
                new = pt.switch(goes, new + step, new)
            u = now_u + (new - old)[:, None] * now_unit
            drawn = [inner.rng] if proposal.draws_within else []
            if not c.is_affine:
                return [u, *drawn]
            z0, z1 = (substitute([self.z], replace | {self.u: v})[0] for v in (now_u, u))
            steps = ((z1 - z0).reshape(now_u.shape) * now_unit).sum(axis=1)
            return [u, *moved(now_maps, now_columns, steps), *drawn]

        if not c.is_affine:
            maps = []
        rng = [stream.rng] if proposal.draws_within else []
        u, *others = strict_scan(
            one_unit,
            sequences=[pt.eye(n_units, dtype=dtype), normals, uniforms, *walks, *once],
            outputs_info=[start, *maps, *rng],
            non_sequences=[*fixed, climbing],
            n_steps=n_units,
        )
        if proposal.draws_within:
            stream.rng = others[-1]
        replace = dict(zip(self._fixed, fixed, strict=True)) | {self.u: u[-1]}
        return substitute([self.z], replace)[0]
