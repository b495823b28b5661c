"""Gibbs sampling of local latent variables: their full conditionals come from the model."""

import numpy as np
import pytensor.tensor as pt
from pytensor.scan.basic import scan
from pytensor.tensor.random.type import random_generator_type

from pymc_sgmcmc.latents import Draws, Joint, Latents, whole_number
from pymc_sgmcmc.stream import Stream


class Gibbs(Latents):
    """Gibbs sampling of local latent variables."""

    def __init__(self, vars, n_samples=5, burn_in=5):
        super().__init__(vars, n_samples)
        self.burn_in = whole_number("burn_in", burn_in, 0)

    def draw(self, joint: Joint, state, stream):
        start = joint.draw_prior(stream)
        start = [z.astype(v.dtype) for z, v in zip(start, joint.variables, strict=True)]

        def sweep(*args):
            *z, rng = args
            inner = Stream(rng)
            for i, variable in enumerate(joint.variables):
                z[i] = self._update(joint, z, i, variable, inner)
            return [*z, inner.rng]

        *draws, stream.rng = scan(
            sweep, outputs_info=[*start, stream.rng], n_steps=self.burn_in + self.n_samples,
            return_updates=False,
        )
        
        return Draws([d[self.burn_in:] for d in draws], None, {}, [])

    def _update(self, joint, z, i, variable, stream):
        def unit(j, zi, rng):
            s = Stream(rng)
            logp = []
            for k in (0, 1):
                trial = pt.set_subtensor(zi[:, j], np.asarray(k, variable.dtype))
                logp.append(joint.log_density([*z[:i], trial, *z[i + 1 :]]))
            draw = s.draw(pt.random.bernoulli, pt.sigmoid(logp[1] - logp[0]), size=(joint.n_rows,))
            return [pt.set_subtensor(zi[:, j], draw.astype(variable.dtype)), s.rng]

        zs, rng = scan(unit, sequences=[pt.arange(variable.shape[0])], outputs_info=[z[i], stream.rng], return_updates=False)
        stream.rng = rng
        return zs[-1]
