"""Log weights, as graphs, whose mean weight is p(x | theta) of rows x.

Importance sampling draws z from a proposal and has the weights w = p(x, z | theta) / q(z | x).
Annealed importance sampling (Neal 2001) takes z from a distribution that is easy to sample through
many intermediate ones to its posterior, by transitions that leave each of them invariant. Run
backwards from a draw of the posterior, it gives a weight whose mean is 1 / p(x | theta) (Grosse,
Ghahramani and Adams 2015).
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV
from pytensor.scan.basic import scan
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.latents.gibbs.gibbs import Gibbs
from pymc_sgmcmc.latents.importance.neural_importance import NeuralImportance
from pymc_sgmcmc.latents.joint import Joint, Latents
from pymc_sgmcmc.noise import NoiseStream

type LogWeights = Callable[..., list[TensorVariable]]
"""(batch, stream, ...) -> log weights of the batch's rows, and whether they are valid."""


def _likelihood(joint: Joint) -> Joint:
    """Return only log p(x | z, theta)."""
    return dataclasses.replace(joint, terms=[t for t in joint.terms if t.name not in joint.names])


def _from_prior(joint: Joint, stream: NoiseStream) -> list[TensorVariable]:
    """Draw the latent variables from their prior, or raise an error if that is impossible."""
    for v in joint.variables:
        op = v.batch_rv.owner.op
        if not isinstance(op, RandomVariable) or isinstance(op, CustomDistRV):
            raise ValueError(
                f"The prior of the latent variable '{v.name}' ({op}) cannot be sampled inside a "
                "graph. Use method='importance' with a trained NeuralImportance."
            )
    return joint.draw_prior(stream)


def importance(latents: Latents) -> LogWeights:
    """Return log weights of draws from the proposal."""

    def log_weights(batch, stream):
        joint = batch.joint()
        if isinstance(latents, NeuralImportance):
            z, log_q = latents.propose(joint, stream)
            log_w = joint.log_density(z) - log_q
        else:
            log_w = _likelihood(joint).log_density(_from_prior(joint, stream))
        return [log_w, pt.constant(True)]

    return log_weights


def annealed(latents: Gibbs, n_temperatures: int, path: str, backwards: bool = False) -> LogWeights:
    """Return log weights of annealed importance sampling.

    log w = log Z_0 + sum over k = 1, ..., K of log f_k(z_k) - log f_(k-1)(z_k), where z_1 is a draw
    from f_0 / Z_0 and z_(k+1) comes from z_k by a transition that leaves f_k invariant.

    With ``backwards`` the path is taken from k = K, where z is an exact draw given x, to k = 0, and
    the result is the logarithm of a weight whose mean is 1 / p(x | theta).
    """

    def log_weights(batch, stream, *exact):
        floatX = pytensor.config.floatX
        ends = np.linspace(0, 1, n_temperatures + 1).astype(floatX)
        if backwards:
            ends = ends[::-1].copy()

        def density(batch, t):
            """Return log f at a fraction t of the path, as a function of z."""
            if path == "parameters":
                return batch.joint([(t * v).astype(v.dtype) for v in batch.theta])
            joint = batch.joint()
            terms = [
                term if term.name in joint.names else dataclasses.replace(term, logp=t * term.logp)
                for term in joint.terms
            ]
            return dataclasses.replace(joint, terms=terms)

        def one_temperature(t, before, *args):
            *z, log_w, rng = args[: n_latents + 2]
            here = batch.of(args[n_latents + 2 :])
            stream = NoiseStream(rng)
            if path == "likelihood":
                rise = (t - before) * _likelihood(here.joint()).log_density(z)
            else:
                rise = density(here, t).log_density(z) - density(here, before).log_density(z)
            moved = latents.sweeps(density(here, t), z, 1, stream)
            return [*(m[0] for m in moved), log_w + rise, stream.rng]

        start = density(batch, pt.constant(np.zeros((), floatX)))
        z = _from_prior(start, stream)
        n_latents = len(z)
        log_z0 = pt.zeros((batch.n_rows,), dtype=floatX)
        valid = pt.constant(True)
        if path == "parameters":
            # Z_0 is the probability of the data given any z, so another z must give the same.
            log_z0, other = (
                _likelihood(start).log_density(z) for z in (z, _from_prior(start, stream))
            )
            valid = pt.all(pt.abs(log_z0 - other) <= 1e-4 * (1 + pt.abs(log_z0)))
        log_w0 = log_z0.astype(floatX)
        if backwards:
            log_w0 = -log_w0
            z = [
                pt.specify_shape(e[batch.rows], own.type.shape).astype(own.dtype)
                for e, own in zip(exact, z, strict=True)
            ]
        *_, log_w, rng = scan(
            one_temperature,
            sequences=[pt.constant(ends[1:]), pt.constant(ends[:-1])],
            outputs_info=[*z, log_w0, stream.rng],
            non_sequences=batch.inputs,
            strict=True,
            return_updates=False,
        )
        stream.rng = rng
        return [log_w[-1], valid]

    return log_weights
