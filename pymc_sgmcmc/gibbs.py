"""Gibbs sampling of local latent variables: their full conditionals come from the model."""

from dataclasses import dataclass

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.scan.basic import scan
from pytensor.tensor.random import basic as random_ops

from pymc_sgmcmc.algorithm import State, Tensors
from pymc_sgmcmc.conditionals import (
    Conditional,
    boundary,
    conditional,
    sweep_binary,
    sweep_enumerated,
)
from pymc_sgmcmc.latents import Draws, Joint, Latents, LocalVariable, whole_number
from pymc_sgmcmc.minibatch import evaluate
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
        moves = [EnumeratedMove(joint, v, support_of(v)) for v in joint.variables]
        # what does not depend on z is computed once, outside of the sweeps
        expressions = [e for move in moves for e in move.expressions]
        outside = boundary(placeholders, expressions)
        copies = dict.fromkeys([1, *(move.copies for move in moves)])
        given = {k: joint.evaluate(outside, copies=k) for k in copies}
        columns = [joint.evaluate(move.conditional.columns) for move in moves]

        def sweep(*args):
            args = list(args)
            z = [args.pop(0) for _ in joint.variables]
            inner = Stream(args.pop(0))
            given = {k: [args.pop(0) for _ in outside] for k in copies}
            for i, move in enumerate(moves):
                own_columns = [args.pop(0) for _ in move.conditional.columns]

                def at(expressions, k=1, z=z):
                    tiled = [pt.concatenate([v] * k) if k > 1 else v for v in z]
                    replace = dict(zip([*outside, *placeholders], [*given[k], *tiled], strict=True))
                    return substitute(expressions, replace)

                z[i] = move.sweep(z[i], at, own_columns, inner)
            return [*z, inner.rng]

        *draws, stream.rng = scan(
            sweep,
            outputs_info=[*start, stream.rng],
            non_sequences=[
                *(g for values in given.values() for g in values),
                *(c for own in columns for c in own),
            ],
            n_steps=n_sweeps,
            strict=True,
            return_updates=False,
        )
        return draws


class EnumeratedMove:
    """Draws from the full conditionals of a variable with few values."""

    def __init__(self, joint: Joint, variable: LocalVariable, support: np.ndarray):
        self.support = support
        self.n_rows = joint.n_rows
        self.conditional = conditional(joint, variable)
        self.copies = 1 if len(support) == 2 else len(support)

    @property
    def expressions(self) -> list[Variable]:
        """What a sweep evaluates."""
        c = self.conditional
        return [c.separable, *c.maps, *c.fixed]

    def sweep(self, z, at, columns: Tensors, stream: Stream):
        c = self.conditional
        table = pt.stack(
            [
                substitute(at_value, {})[0]
                for at_value in (
                    self._separable(at, value) for value in self.support
                )
            ]
        )
        evaluated = at([*c.maps, *c.fixed], self.copies)
        maps, fixed = evaluated[: len(c.maps)], evaluated[len(c.maps) :]
        sweep = sweep_binary if self.copies == 1 else sweep_enumerated
        return sweep(c, self.support, z, table, maps, columns, fixed, self.n_rows, stream)

    def _separable(self, at, value):
        c = self.conditional
        v = c.variable
        filled = pt.full((self.n_rows, *v.shape), np.asarray(value, dtype=v.dtype))
        [separable] = substitute([c.separable], {v.value: filled})
        return at([separable])


def support_of(variable: LocalVariable) -> np.ndarray:
    return np.array([0, 1])
