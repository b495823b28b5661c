"""log p(x | theta) of rows under a model with latent variables local to the rows.

Both estimators average weights w with E[w] = p(x | theta) (doubly stochastic paper, appendix B).
Importance sampling draws z from a proposal, w = p(x, z | theta) / q(z | x). Annealed importance
sampling (Neal 2001) takes z from a distribution that is easy to sample through many intermediate
ones to its posterior, by transitions that leave each of them invariant. The logarithm of an
unbiased estimate is too low on average, by half its squared standard error if that is small.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pymc.distributions.custom import CustomDistRV
from pymc.model import Model, modelcontext
from pymc.util import RandomGenerator, get_random_generator
from pytensor.scan.basic import scan
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable
from scipy.special import logsumexp

from pymc_sgmcmc.argument_checks import whole_number
from pymc_sgmcmc.evaluation.local_model import Batch, Compiled, Draws, LocalModel, Thetas
from pymc_sgmcmc.latents.gibbs.gibbs import Gibbs
from pymc_sgmcmc.latents.importance.neural_importance import NeuralImportance
from pymc_sgmcmc.latents.joint import Joint, Latents
from pymc_sgmcmc.noise import NoiseStream

PARTICLES_PER_CALL = 2048
"""Rows times weights per row in one compiled call; bounds its memory."""

type LogWeights = Callable[[Batch, NoiseStream], list[TensorVariable]]


def log_marginal_likelihood(
    draws: Draws,
    latents: Latents | Sequence[TensorVariable | str],
    *,
    data: Mapping[str, np.ndarray] | None = None,
    method: Literal["ais", "importance"] = "ais",
    n_samples: int | None = None,
    n_temperatures: int = 1000,
    path: Literal["likelihood", "parameters"] = "likelihood",
    minibatch_dim: str | None = None,
    model: Model | None = None,
    random_seed: RandomGenerator = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> xr.Dataset:
    """Estimate log p(x | theta) of each row x for each posterior draw theta.

    Parameters
    ----------
    draws : DataTree, Dataset or dict
        Posterior draws of the model's free variables except the latent ones, with dims chain and
        draw; or one point, a value for each name. The cost is proportional to the number of draws,
        and a few are enough: ``idata.isel(draw=slice(None, None, 100))``.
    latents : list of random variables or names, or Gibbs or NeuralImportance
        The latent variables that are local to the rows. `Gibbs` (the default for a list) makes the
        transitions of "ais". `NeuralImportance` with trained weights (see its `trained`) is the
        proposal of "importance"; for a list the proposal is the prior of the latent variables.
    data : dict, optional
        New rows, any number of them: an array for each `pm.Data` that has rows, or observed
        variable without a `pm.Data`. Default: the model's own rows.
    method : {"ais", "importance"}, default "ais"
        Annealed importance sampling, or importance sampling.
    n_samples : int, optional
        Independent weights per row and draw. Default: 16 for "ais", 10 000 for "importance".
    n_temperatures : int, default 1000
        K, steps of the annealing: its variance falls as 1 / K.
    path : {"likelihood", "parameters"}, default "likelihood"
        The intermediate distributions, for k = 0, ..., K: "likelihood" is p(z | theta) p(x | z,
        theta)^(k/K), for any model; "parameters" is the paper's p(x, z | k theta / K), for models
        in which x does not depend on z at theta = 0, such as a sigmoid belief network. For those
        its sweeps are much faster.
    minibatch_dim : str, optional
        The observation dim; needed only if several dims qualify.
    model : pymc.Model, optional
        Default: the model on the context stack.
    random_seed : int or numpy.random.Generator, optional
    compile_kwargs : dict, optional
        For `pytensor.function`, for example ``{"mode": "JAX"}``.

    Returns
    -------
    xarray.Dataset
        In nats. ``log_p`` (chain, draw, row): the estimates; ``mean_log_p`` (chain, draw): their
        mean over the rows; ``log_predictive`` (row): the logarithm of the mean of p(x | theta) over
        the draws; ``mean_log_predictive``: its mean over the rows. Each has a companion
        ``..._mcse``, the standard error due to sampling the latent variables. It does not include
        the error from the choice of rows or draws.

    Raises
    ------
    ValueError
        If an argument is out of range, or a variable or array is missing or has the wrong shape,
        naming it. For "ais" along the path "likelihood" with a `Gibbs` that has ``conditional``:
        a function of one's own does not know how much of the likelihood counts.

    Notes
    -----
    Doubly stochastic paper, appendix B, eq 16 and 17.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> x = np.random.default_rng(0).normal(size=5)
    >>> with pm.Model(coords={"obs": range(5)}) as model:
    ...     w = pm.Normal("w")
    ...     z = pm.Bernoulli("z", 0.3, dims="obs")
    ...     x = pm.Normal("x", w * z, 1, observed=x, dims="obs")
    >>> sgm.log_marginal_likelihood(
    ...     {"w": 2.0}, [z], data={"x": [0.0, 2.0]}, model=model, random_seed=1, method="importance"
    ... ).log_p.values.round(1).tolist()
    [[[-1.2, -1.8]]]
    """
    model = modelcontext(model)
    if method not in ("ais", "importance"):
        raise ValueError(f"method={method!r} must be 'ais' or 'importance'.")
    if path not in ("likelihood", "parameters"):
        raise ValueError(f"path={path!r} must be 'likelihood' or 'parameters'.")
    if n_samples is None:
        n_samples = {"ais": 16, "importance": 10_000}[method]
    n_samples = whole_number("n_samples", n_samples, 1)
    n_temperatures = whole_number("n_temperatures", n_temperatures, 1)
    local = LocalModel.of(model, latents, minibatch_dim)
    thetas = Thetas.of(local, draws)
    data_values, n_rows = local.data(data)
    rng = get_random_generator(random_seed)

    rows_per_call = min(n_rows, max(1, PARTICLES_PER_CALL // n_samples))
    n_calls = math.ceil(rows_per_call * n_samples / PARTICLES_PER_CALL)
    samples_per_call = math.ceil(n_samples / n_calls)
    if method == "importance":
        log_weights = _importance(local.latents)
    elif isinstance(local.latents, Gibbs):
        if local.latents.conditional and path == "likelihood":
            names = ", ".join(f"'{name}'" for name in local.latents.conditional)
            raise ValueError(
                f"path='likelihood': the function in conditional= draws {names} given all of the "
                "likelihood, but between prior and posterior only a part of it counts. Leave out "
                "conditional=, or use path='parameters' or method='importance'."
            )
        log_weights = _annealed(local.latents, n_temperatures, path)
    else:
        raise ValueError(
            "method='ais' needs latents=Gibbs([...]) or a list of variables, "
            f"got {latents!r}. Pass one of these, or method='importance'."
        )
    weigh = Compiled(local, log_weights, rows_per_call * samples_per_call, rng, compile_kwargs)
    weigh.put(data_values)

    log_p, mcse = np.empty((2, *thetas.shape, n_rows))
    for draw in np.ndindex(thetas.shape):
        for first in range(0, n_rows, rows_per_call):
            # The last piece wraps around, because the number of rows per call is compiled in.
            piece = np.arange(first, first + rows_per_call) % n_rows
            index = np.repeat(piece, samples_per_call)
            calls = [weigh(thetas.at(draw), index) for _ in range(n_calls)]
            if not all(valid for _, valid in calls):
                raise ValueError(
                    "path='parameters': at theta = 0 the data depend on the latent variables, or "
                    "have no density. Use path='likelihood'."
                )
            log_w = np.concatenate([w.reshape(rows_per_call, -1) for w, _ in calls], axis=1)
            log_w = log_w[: n_rows - first, :n_samples].astype(np.float64)
            here = (*draw, slice(first, first + rows_per_call))
            log_p[here], mcse[here] = log_mean(log_w), log_mean_mcse(log_w)
    settings: dict[str, Any] = {"method": method, "n_samples": n_samples}
    settings |= {"n_temperatures": n_temperatures, "path": path} if method == "ais" else {}
    return _dataset(thetas, log_p, mcse, settings)


# ---- the estimators ------------------------------------------------------------------------


def _likelihood(joint: Joint) -> Joint:
    """log p(x | z, theta) alone."""
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


def _importance(latents: Latents) -> LogWeights:
    """Log weights of draws from the proposal."""

    def log_weights(batch, stream):
        joint = batch.joint()
        if isinstance(latents, NeuralImportance):
            z, log_q = latents.propose(joint, stream)
            log_w = joint.log_density(z) - log_q
        else:
            log_w = _likelihood(joint).log_density(_from_prior(joint, stream))
        return [log_w, pt.constant(True)]

    return log_weights


def _annealed(latents: Gibbs, n_temperatures: int, path: str) -> LogWeights:
    """Log weights of annealed importance sampling.

    log w = log Z_0 + sum over k = 1, ..., K of log f_k(z_k) - log f_(k-1)(z_k), where z_1 is a draw
    from f_0 / Z_0 and z_(k+1) comes from z_k by a transition that leaves f_k invariant.
    """

    def log_weights(batch, stream):
        floatX = pytensor.config.floatX
        ends = np.linspace(0, 1, n_temperatures + 1).astype(floatX)

        def density(batch, t):
            """log f at a fraction t of the path, as a function of z."""
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
            # Z_0 is the probability of the data given any z, so another z must give the same
            log_z0, other = (
                _likelihood(start).log_density(z) for z in (z, _from_prior(start, stream))
            )
            valid = pt.all(pt.abs(log_z0 - other) <= 1e-4 * (1 + pt.abs(log_z0)))
        *_, log_w, rng = scan(
            one_temperature,
            sequences=[pt.constant(ends[1:]), pt.constant(ends[:-1])],
            outputs_info=[*z, log_z0.astype(floatX), stream.rng],
            non_sequences=batch.inputs,
            strict=True,
            return_updates=False,
        )
        stream.rng = rng
        return [log_w[-1], valid]

    return log_weights


# ---- results -------------------------------------------------------------------------------


def log_mean(log_w: np.ndarray) -> np.ndarray:
    """Logarithm of the mean of weights over the last axis."""
    return logsumexp(log_w, axis=-1) - np.log(log_w.shape[-1])


def log_mean_mcse(log_w: np.ndarray) -> np.ndarray:
    """Standard error of `log_mean`: that of the mean, relative to it (delta method)."""
    n = log_w.shape[-1]
    if n == 1:
        return np.full(log_w.shape[:-1], np.nan)
    share = np.exp(log_w - logsumexp(log_w, axis=-1, keepdims=True))
    return np.sqrt(np.maximum((share**2).sum(axis=-1) - 1 / n, 0) * n / (n - 1))


def _dataset(thetas: Thetas, log_p: np.ndarray, mcse: np.ndarray, settings: dict) -> xr.Dataset:
    n_rows = log_p.shape[-1]
    total = logsumexp(log_p, axis=(0, 1))
    log_predictive = total - np.log(math.prod(thetas.shape))
    predictive_mcse = np.sqrt(((np.exp(log_p - total) * mcse) ** 2).sum(axis=(0, 1)))
    return xr.Dataset(
        {
            "log_p": (("chain", "draw", "row"), log_p),
            "log_p_mcse": (("chain", "draw", "row"), mcse),
            "mean_log_p": (("chain", "draw"), log_p.mean(axis=-1)),
            "mean_log_p_mcse": (("chain", "draw"), np.sqrt((mcse**2).sum(axis=-1)) / n_rows),
            "log_predictive": ("row", log_predictive),
            "log_predictive_mcse": ("row", predictive_mcse),
            "mean_log_predictive": log_predictive.mean(),
            "mean_log_predictive_mcse": np.sqrt((predictive_mcse**2).sum()) / n_rows,
        },
        coords=thetas.coords | {"row": np.arange(n_rows)},
        attrs=settings,
    )
