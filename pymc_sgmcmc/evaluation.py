"""How well a model with latent variables local to the rows predicts rows: log p(x | theta).

Both estimators average weights w with E[w] = p(x | theta) (doubly stochastic paper, appendix B).
Importance sampling draws z from a proposal, w = p(x, z | theta) / q(z | x). Annealed importance
sampling (Neal 2001) takes z from a distribution that can be drawn from to its posterior through
many in between, by transitions that leave each of them invariant. The logarithm of an unbiased
estimate is too low on average: by half its squared standard error, when that is small.
"""

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pymc.model import Model, modelcontext
from pymc.model.transform.conditioning import remove_value_transforms
from pymc.util import RandomGenerator, get_random_generator
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.scan.basic import scan
from pytensor.tensor.random.type import random_generator_type
from pytensor.tensor.variable import TensorVariable
from scipy.special import logsumexp

from pymc_sgmcmc.backend import backend_of
from pymc_sgmcmc.gibbs import Gibbs
from pymc_sgmcmc.importance import NeuralImportance
from pymc_sgmcmc.latent_gradient import LatentGradientSource, latent_gradient_source
from pymc_sgmcmc.latents import Joint, Latents, find_latents, whole_number, without_latents
from pymc_sgmcmc.minibatch import _observed_array, array_value, find_row_axis, sliced_axis
from pymc_sgmcmc.stream import Stream

PARTICLES_PER_CALL = 2048
"""Rows times weights a row in one compiled call: bounds its memory."""

type Draws = xr.DataTree | xr.Dataset | Mapping[str, Any]


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
        Posterior draws of the model's free variables but the latent ones, with dims chain and
        draw; or one point, a value for each name. The cost is proportional to the number of
        draws, and a few are enough: ``idata.isel(draw=slice(None, None, 100))``.
    latents : list of random variables or names, or Gibbs or NeuralImportance
        The latent variables that are local to the rows. `Gibbs` (the default for a list) makes
        the transitions of "ais". `NeuralImportance` with trained weights (see its `trained`) is
        the proposal of "importance"; for a list the proposal is the latent variables' prior.
    data : dict, optional
        New rows, any number: an array for each `pm.Data`, or observed variable written without
        one, that has rows. Default: the model's own.
    method : {"ais", "importance"}, default "ais"
        Annealed importance sampling, or importance sampling.
    n_samples : int, optional
        Independent weights a row and draw. Default: 16 for "ais", 10 000 for "importance".
    n_temperatures : int, default 1000
        K, steps of the annealing: its variance falls as 1 / K.
    path : {"likelihood", "parameters"}, default "likelihood"
        What lies between, k = 0, ..., K: p(z | theta) p(x | z, theta)^(k / K), for any model; or the
        paper's p(x, z | k theta / K), for models in which x does not depend on z at theta = 0.
    minibatch_dim : str, optional
        The observation dim, where more than one can be meant.
    model : pymc.Model, optional
        Default: the model on the context stack.
    random_seed : int or numpy.random.Generator, optional
    compile_kwargs : dict, optional
        For `pytensor.function`, for example ``{"mode": "JAX"}``.

    Returns
    -------
    xarray.Dataset
        In nats. ``log_p`` (chain, draw, row): the estimates; ``mean_log_p`` (chain, draw): their
        mean over the rows; ``log_predictive`` (row): the logarithm of the mean of p(x | theta)
        over the draws; ``mean_log_predictive``: its mean over the rows. Each has its ``..._mcse``,
        the standard error that comes from the sampled latent variables alone: not from the choice
        of the rows, nor from that of the draws.

    Raises
    ------
    ValueError
        If an argument is out of range, or a variable or array is missing or has the wrong shape,
        naming it.

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
    ...     pm.Normal("x", w * z, 1, observed=x, dims="obs")
    >>> sgm.log_marginal_likelihood(
    ...     {"w": 2.0}, [z], data={"x": [0.0, 2.0]}, model=model, random_seed=1, method="importance"
    ... ).log_p.values.round(2)
    """
    model = modelcontext(model)
    if method not in ("ais", "importance"):
        raise ValueError(f"method={method!r} must be 'ais' or 'importance'.")
    if path not in ("likelihood", "parameters"):
        raise ValueError(f"path={path!r} must be 'likelihood' or 'parameters'.")
    n_samples = 16 if n_samples is None and method == "ais" else n_samples or 10_000
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
    else:
        log_weights = _annealed(local.latents, n_temperatures, path)
    weigh = Compiled(local, log_weights, rows_per_call * samples_per_call, rng, compile_kwargs)
    weigh.put(data_values)

    log_p, mcse = np.empty((2, *thetas.shape, n_rows))
    for draw in np.ndindex(thetas.shape):
        for first in range(0, n_rows, rows_per_call):
            # The last piece wraps around: the number of rows in a call is compiled in.
            piece = np.arange(first, first + rows_per_call) % n_rows
            index = np.repeat(piece, samples_per_call)
            calls = [weigh(thetas.at(draw), index) for _ in range(n_calls)]
            log_w = np.concatenate([w.reshape(rows_per_call, -1) for w in calls], axis=1)
            log_w = log_w[: n_rows - first, :n_samples].astype(np.float64)
            here = (*draw, slice(first, first + rows_per_call))
            log_p[here], mcse[here] = log_mean(log_w), log_mean_mcse(log_w)
    settings = {"method": method, "n_samples": n_samples}
    settings |= {"n_temperatures": n_temperatures, "path": path} if method == "ais" else {}
    return _dataset(thetas, log_p, mcse, settings)


# ---- the estimators ------------------------------------------------------------------------


def _likelihood(joint: Joint) -> Joint:
    """log p(x | z, theta) alone."""
    return dataclasses.replace(joint, terms=[t for t in joint.terms if t.name not in joint.names])


def _importance(latents: Latents) -> Callable[["Batch", Stream], TensorVariable]:
    """Log weights of draws from the proposal."""

    def log_weights(batch, stream):
        joint = batch.joint()
        if isinstance(latents, NeuralImportance):
            z, log_q = latents.propose(joint, stream)
            return joint.log_density(z) - log_q
        return _likelihood(joint).log_density(joint.draw_prior(stream))

    return log_weights


def _annealed(
    latents: Gibbs, n_temperatures: int, path: str
) -> Callable[["Batch", Stream], TensorVariable]:
    """Log weights of annealed importance sampling.

    log w = log Z_0 + sum over k = 1, ..., K of log f_k(z_k) - log f_(k-1)(z_k), where z_1 is a draw
    from f_0 / Z_0 and z_(k+1) comes from z_k by a transition that leaves f_k invariant.
    """

    def log_weights(batch, stream):
        floatX = pytensor.config.floatX
        ends = np.linspace(0, 1, n_temperatures + 1).astype(floatX)

        def density(batch, t):
            """log f at a fraction t of the way, as a function of z."""
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
            stream = Stream(rng)
            if path == "likelihood":
                rise = (t - before) * _likelihood(here.joint()).log_density(z)
            else:
                rise = density(here, t).log_density(z) - density(here, before).log_density(z)
            moved = latents.sweeps(density(here, t), z, 1, stream)
            return [*(m[0] for m in moved), log_w + rise, stream.rng]

        start = density(batch, pt.constant(np.zeros((), floatX)))
        z = [
            value.astype(v.dtype)
            for value, v in zip(start.draw_prior(stream), start.variables, strict=True)
        ]
        n_latents = len(z)
        # At theta = 0 the data does not depend on z: Z_0 is its probability given any z.
        log_z0 = _likelihood(start).log_density(z)
        if path == "likelihood":
            log_z0 = pt.zeros_like(log_z0)
        *_, log_w, rng = scan(
            one_temperature,
            sequences=[pt.constant(ends[1:]), pt.constant(ends[:-1])],
            outputs_info=[*z, log_z0.astype(floatX), stream.rng],
            non_sequences=batch.inputs,
            strict=True,
            return_updates=False,
        )
        stream.rng = rng
        return log_w[-1]

    return log_weights


@dataclass(frozen=True)
class Batch:
    """Symbolic rows of the data at one theta."""

    source: LatentGradientSource
    n_rows: int
    theta: list[TensorVariable]
    rest: list[TensorVariable]
    """Row numbers, N / n, data: as in `GradientSource.inputs`."""

    @property
    def inputs(self) -> list[TensorVariable]:
        """Everything it depends on."""
        return [*self.theta, *self.rest]

    def of(self, inputs: Sequence[TensorVariable]) -> "Batch":
        """Return the same with other inputs."""
        k = len(self.theta)
        return dataclasses.replace(self, theta=list(inputs[:k]), rest=list(inputs[k:]))

    def joint(self, theta: list[TensorVariable] | None = None) -> Joint:
        """log p(x, z | theta) of the rows."""
        joint = dataclasses.replace(self.source.joint, n_rows=self.n_rows)
        values = [*(self.theta if theta is None else theta), *self.rest]
        return joint.at(dict(zip(self.source.inputs, values, strict=True)))


class Compiled:
    """A compiled function of theta and row numbers that draws and returns something for rows."""

    def __init__(self, local: "LocalModel", expression, n_rows: int, rng, compile_kwargs):
        kwargs = dict(compile_kwargs or {})
        mode = get_mode(kwargs.pop("mode", None))
        self.backend = backend_of(mode)
        source = local.source
        k = len(source.vars)
        inputs = [v.type(v.name) for v in source.inputs]
        inputs[:k] = [
            pt.tensor(v.name, shape=shape, dtype=v.dtype)
            for v, shape in zip(source.vars, source.shapes, strict=True)
        ]
        inputs[k] = pt.tensor("rows", shape=(n_rows,), dtype="int64")
        generator = random_generator_type("rng")
        stream = Stream(generator)
        output = expression(Batch(source, n_rows, inputs[:k], inputs[k:]), stream)
        self.function = pytensor.function(
            [*inputs, pytensor.In(generator, mutable=True, borrow=True)],
            [output, pytensor.Out(stream.rng, borrow=True)],
            mode=mode,
            on_unused_input="ignore",
            **kwargs,
        )
        self.function.trust_input = True
        self.rng = self.backend.generator(rng)

    def put(self, data: Sequence[np.ndarray]) -> None:
        """Put the data where the function finds it without a copy."""
        self.data = [self.backend.array(value) for value in data]

    def __call__(self, theta: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
        """Evaluate it."""
        array = self.backend.array
        out, self.rng = self.function(*map(array, theta), array(rows), *self.data, self.rng)
        return np.asarray(out)


# ---- what is evaluated ---------------------------------------------------------------------


@dataclass(frozen=True)
class LocalModel:
    """A model's joint density of data and latent variables, its global variables as they are."""

    model: Model
    source: LatentGradientSource
    latents: Latents
    minibatch_dim: str | None

    @classmethod
    def of(cls, model: Model, latents, minibatch_dim: str | None) -> "LocalModel":
        """Derive it from the model."""
        latents = latents if isinstance(latents, Latents) else Gibbs(latents)
        names = [rv.name for rv in find_latents(model, latents.vars)]
        # theta on its own scale, that of the draws
        plain = remove_value_transforms(model, [v for v in model.free_RVs if v.name not in names])
        without = without_latents(plain, names)
        latents = copy.copy(latents)
        latents.vars = names
        source = latent_gradient_source(
            plain, without, without.value_vars, latents, batch_size=1, minibatch_dim=minibatch_dim
        )
        return cls(plain, source, latents, minibatch_dim)

    def data(self, new: Mapping[str, np.ndarray] | None) -> tuple[list[np.ndarray], int]:
        """Values for the source's N / n and data, new rows by name, and the number of rows."""
        axes = self._axes()
        names = {array: self._name(array) for array in axes}
        for name in new or {}:
            if name not in names.values():
                known = ", ".join(f"'{n}'" for n in names.values())
                raise ValueError(f"data: the model has no rows called '{name}', but {known}.")
        values, lengths = [], {}
        for array, variable in self.source.data:
            value = array_value(array)
            if new is not None and array in axes:
                value = self._fitting(names[array], new, value, axes[array])
            if array in axes:
                lengths[names[array]] = value.shape[axes[array]]
            values.append(value.astype(variable.dtype, copy=False))
        if len(set(lengths.values())) > 1 or 0 in lengths.values():
            raise ValueError(f"data: the numbers of rows must be equal and positive: {lengths}.")
        scale = np.asarray(1, dtype=pytensor.config.floatX)
        return [scale, *values], next(iter(lengths.values()))

    @staticmethod
    def _fitting(name, new, own, axis) -> np.ndarray:
        if name not in new:
            raise ValueError(f"data: new rows of '{name}' are needed too.")
        value = np.asarray(new[name])
        if value.ndim != own.ndim or any(
            n != m for a, (n, m) in enumerate(zip(value.shape, own.shape, strict=True)) if a != axis
        ):
            raise ValueError(
                f"data: '{name}' has the shape {value.shape}, and {own.shape} in the model: only "
                f"axis {axis}, the rows, may have another length."
            )
        return value

    def _axes(self) -> dict:
        """Axis of the rows of each array that has rows."""
        latents = find_latents(self.model, self.latents.vars)
        row_axis = find_row_axis(self.model, self.minibatch_dim, latents)
        axes = {array: sliced_axis(self.model, array, row_axis) for array, _ in self.source.data}
        return {array: axis for array, axis in axes.items() if axis is not None}

    def _name(self, array) -> str:
        for rv in self.model.observed_RVs:
            if not isinstance(array, SharedVariable) and _observed_array(self.model, rv) is array:
                return rv.name
        return array.name or f"(the array of shape {array_value(array).shape}: use pm.Data)"


@dataclass(frozen=True)
class Thetas:
    """Posterior draws of the global variables."""

    values: list[np.ndarray]
    """One array a variable, with leading axes chain and draw."""
    coords: dict[str, np.ndarray]

    @classmethod
    def of(cls, local: LocalModel, draws: Draws) -> "Thetas":
        """Take them from a DataTree, its posterior, or one point."""
        if isinstance(draws, xr.DataTree):
            draws = draws["posterior"].to_dataset()
        names = [v.name for v in local.source.vars]
        for name in names:
            if name not in draws:
                raise ValueError(
                    f"draws: there is no '{name}'. All free variables but the latent ones are "
                    f"needed: {', '.join(names)}."
                )
        if isinstance(draws, xr.Dataset):
            arrays = [draws[name].transpose("chain", "draw", ...).to_numpy() for name in names]
            coords = {dim: draws[dim].to_numpy() for dim in ("chain", "draw")}
        else:
            arrays = [np.asarray(draws[name])[None, None] for name in names]
            coords = {"chain": np.arange(1), "draw": np.arange(1)}
        for name, array, shape in zip(names, arrays, local.source.shapes, strict=True):
            if array.shape[2:] != shape:
                raise ValueError(
                    f"draws: '{name}' has the shape {array.shape[2:]}, and {shape} in the model."
                )
        dtypes = [v.dtype for v in local.source.vars]
        return cls([a.astype(d) for a, d in zip(arrays, dtypes, strict=True)], coords)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of chains and draws."""
        return len(self.coords["chain"]), len(self.coords["draw"])

    def at(self, draw: tuple[int, ...]) -> list[np.ndarray]:
        """One value a variable."""
        return [array[draw] for array in self.values]


# ---- what comes out ------------------------------------------------------------------------


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
