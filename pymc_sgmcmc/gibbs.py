"""Gibbs sampling of local latent variables: their full conditionals come from the model."""

import numpy as np
import pytensor.tensor as pt
from pytensor.scan.basic import scan

from pymc_sgmcmc.algorithm import State, Tensors
from pymc_sgmcmc.conditionals import (
    Binary,
    Enumerated,
    boundary,
    conditional,
)
from pymc_sgmcmc.latents import Draws, Joint, Latents, LocalVariable, whole_number
from pymc_sgmcmc.stream import Stream
from pymc_sgmcmc.substitute import substitute


class Gibbs(Latents):
    """Gibbs sampling of local latent variables."""

    def __init__(self, vars, n_samples=5, burn_in=5):
        super().__init__(vars, n_samples)
        self.burn_in = whole_number("burn_in", burn_in, 0)

    def draw(self, joint: Joint, state: State, stream: Stream) -> Draws:
        """Draw for a batch: sweeps over all units, from a fresh start."""
        start = joint.draw_prior(stream)
        start = [z.astype(v.dtype) for z, v in zip(start, joint.variables, strict=True)]
        draws = self.sweeps(joint, start, self.burn_in + self.n_samples, stream)
        return Draws([d[self.burn_in :] for d in draws], None, {}, [])

    @staticmethod
    def sweeps(joint: Joint, start: Tensors, n_sweeps: int, stream: Stream) -> Tensors:
        """Sweep so many times from a start; one entry a variable, shape (sweeps, rows, ...)."""
        placeholders = [v.value for v in joint.variables]
        moves = [_move(joint, v, support_of(v)) for v in joint.variables]
        # what does not depend on z is computed once, outside of the sweeps
        each_sweep = [move.each_sweep for move in moves]
        outside = boundary(placeholders, [e for own in each_sweep for e in own])
        copies = list(dict.fromkeys(move.copies for move in moves))
        given = {k: joint.evaluate(outside, copies=k) for k in copies}
        once = [joint.evaluate(move.once) for move in moves]

        def sweep(*args):
            take = iter(args).__next__
            z = [take() for _ in joint.variables]
            inner = Stream(take())
            given = {k: [take() for _ in outside] for k in copies}
            for i, move in enumerate(moves):
                tiled = [pt.concatenate([v] * move.copies) if move.copies > 1 else v for v in z]
                replace = dict(
                    zip([*outside, *placeholders], [*given[move.copies], *tiled], strict=True)
                )
                now = substitute(each_sweep[i], replace)
                z[i] = move.sweep(z[i], [take() for _ in once[i]], now, inner)
            return [*z, inner.rng]

        *draws, stream.rng = scan(
            sweep,
            outputs_info=[*start, stream.rng],
            non_sequences=[
                *(g for values in given.values() for g in values),
                *(c for own in once for c in own),
            ],
            n_steps=n_sweeps,
            strict=True,
            return_updates=False,
        )
        return draws


def _move(joint: Joint, variable: LocalVariable, support: np.ndarray):
    binary = len(support) == 2
    kind = Binary if binary else Enumerated
    return kind(conditional(joint, variable, logistic=binary), support, joint.n_rows)


def support_of(variable: LocalVariable) -> np.ndarray:
    """Values that a discrete variable can take."""
    return np.array([0, 1])
