"""Missing data: prediction of the rest of a row from its known part, with latent variables."""

import dataclasses
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pymc.model import Model, modelcontext
from pymc.util import RandomGenerator, get_random_generator
from pytensor.tensor.random.basic import BernoulliRV
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.evaluation.dependence import Elements, dependence
from pymc_sgmcmc.evaluation.latent_model import (
    ROWS_PER_CALL,
    Batch,
    Compiled,
    Draws,
    LatentModel,
    Thetas,
)
from pymc_sgmcmc.latents.gibbs.gibbs import Gibbs
from pymc_sgmcmc.latents.joint import Latents
from pymc_sgmcmc.latents.scan import strict_scan
from pymc_sgmcmc.noise import NoiseStream
from pymc_sgmcmc.number_checks import whole_number


def complete(
    draws: Draws,
    latents: Latents | Sequence[TensorVariable | str],
    *,
    missing: Mapping[str, np.ndarray],
    data: Mapping[str, np.ndarray] | None = None,
    n_completions: int = 50,
    burn_in: int = 50,
    minibatch_dim: str | None = None,
    model: Model | None = None,
    random_seed: RandomGenerator = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> xr.Dataset:
    """Predict missing binary data from the rest of its row.

    For each draw of theta the latent variables are sampled given only the known elements (Gibbs);
    each sweep then gives a completion of the row. Missing elements that depend on one another, as
    in an autoregressive model, are drawn one after another: P such elements in a row cost P
    evaluations of the likelihood per sweep, instead of one if they are independent.

    Parameters
    ----------
    draws, latents, data, minibatch_dim, model, random_seed, compile_kwargs
        As for `log_marginal_likelihood`. The values of ``data`` at the missing elements are
        ignored.
    missing : dict
        For one array of ``data``, by name: True where an element is missing, in the shape of the
        array or of one row.
    n_completions : int, default 50
        Sweeps for each draw of theta after the burn-in.
    burn_in : int, default 50
        Sweeps before these.

    Returns
    -------
    xarray.Dataset
        ``probability``: the probability of 1, averaged over completions and draws; known elements
        keep their value. ``completed``: the majority vote. Both are shaped like the data.

    Raises
    ------
    ValueError
        If the data are not those of a Bernoulli variable, if known elements depend on missing ones
        other than through the latent variables, or if an argument has the wrong shape, naming it.

    Notes
    -----
    Doubly stochastic paper, section 4.2.2.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> coords = {"obs": range(2), "unit": range(1), "pixel": range(3)}
    >>> with pm.Model(coords=coords) as model:
    ...     w = pm.Normal("w", dims=("unit", "pixel"))
    ...     z = pm.Bernoulli("z", 0.5, dims=("obs", "unit"))
    ...     x = pm.Data("x", [[1, 1, 0], [0, 0, 0]], dims=("obs", "pixel"))
    ...     logit_p = w.sum() * (2 * z - 1)
    ...     image = pm.Bernoulli("image", logit_p=logit_p, observed=x, dims=("obs", "pixel"))
    >>> result = sgm.complete(
    ...     {"w": [[2.0, 2.0, 2.0]]}, [z], missing={"x": [False, False, True]}, model=model
    ... )
    >>> result.completed.values.tolist()
    [[1, 1, 1], [0, 0, 0]]
    """
    model = modelcontext(model)
    n_completions = whole_number("n_completions", n_completions, 1)
    burn_in = whole_number("burn_in", burn_in, 0)
    latent_model = LatentModel.of(model, latents, minibatch_dim)
    gibbs = latent_model.latents
    if not isinstance(gibbs, Gibbs):
        raise ValueError(
            f"complete needs latents=Gibbs([...]) or a list of variables, got {latents!r}."
        )
    if len(missing) != 1:
        raise ValueError(f"missing= must have one array, got {len(missing)}: {list(missing)}.")
    [(name, mask)] = missing.items()
    elements = Elements(latent_model, *_binary_data(latent_model, name))
    thetas = Thetas.of(latent_model, draws)
    values, n_rows = latent_model.data(data)
    known_data, axis = values[1 + elements.at], elements.axis
    mask = np.asarray(mask, dtype=bool)
    try:
        mask = np.broadcast_to(mask, known_data.shape)
    except ValueError:
        raise ValueError(
            f"missing: '{name}' has the shape {mask.shape}, but the data have the shape "
            f"{known_data.shape}. Pass one flag per element of the data or of a row."
        ) from None
    rng = get_random_generator(random_seed)
    depends = dependence(elements, values, thetas.at((0, 0)), rng, compile_kwargs)
    groups = _order(depends, elements.matrix(mask), elements.observed, name)
    hidden = pt.tensor("missing", shape=(None,) * mask.ndim, dtype="bool")
    rows_per_call = min(n_rows, ROWS_PER_CALL)
    sampler = Compiled(
        latent_model,
        _probabilities(elements, gibbs, groups, n_completions, burn_in),
        rows_per_call,
        rng,
        compile_kwargs,
        extra=[hidden],
    )
    sampler.put([*values, mask])
    total = np.zeros(elements.matrix(mask).shape)
    for draw in np.ndindex(thetas.shape):
        for first in range(0, n_rows, rows_per_call):
            index = np.arange(first, first + rows_per_call) % n_rows
            [p] = sampler(thetas.at(draw), index)
            total[first : first + rows_per_call] += p[: n_rows - first]
    mean = (total / np.prod(thetas.shape)).reshape(np.moveaxis(known_data, axis, 0).shape)
    probability = np.where(mask, np.moveaxis(mean, 0, axis), known_data)
    dims = list(
        model.named_vars_to_dims.get(elements.observed) or [f"dim_{a}" for a in range(mask.ndim)]
    )
    dims[axis] = "row"
    return xr.Dataset(
        {
            "probability": (dims, probability),
            "completed": (dims, (probability > 0.5).astype(known_data.dtype)),
        },
        coords={"row": np.arange(n_rows)},
    )


def _binary_data(latent_model: LatentModel, name: str) -> tuple[int, str]:
    """Return the position of an array in the source's data, and its observed variable."""
    for at, (array, _) in enumerate(latent_model.source.data):
        if array in latent_model.axes and latent_model.name_of(array) == name:
            rv = latent_model.observed_with(array)
            if rv is None or not isinstance(rv.owner.op, BernoulliRV):
                raise ValueError(
                    f"missing: '{name}' is not the data of an observed Bernoulli variable."
                )
            return at, rv.name
    known = ", ".join(f"'{latent_model.name_of(array)}'" for array in latent_model.axes)
    raise ValueError(f"missing: the model has no array of rows '{name}'. It has: {known}.")


def _order(depends: np.ndarray, missing: np.ndarray, observed: str, name: str) -> np.ndarray:
    """Return the groups in which to draw missing elements, in order: a row of flags for each."""
    among, on_others = depends[:, :-1], depends[:, -1]
    if np.any(missing & on_others) or np.any((missing @ among) & ~missing):
        raise ValueError(
            f"'{observed}': known elements depend on missing elements of '{name}' (an "
            "autoregressive model?). Only elements on which no known element depends, given the "
            "latent variables, can be completed: in an autoregressive model the last ones."
        )
    ever = np.flatnonzero(missing.any(axis=0))
    sorter = TopologicalSorter({i: ever[among[ever, i]] for i in ever})
    try:
        sorter.prepare()
    except CycleError:
        raise ValueError(
            f"'{observed}': missing elements of '{name}' depend on each other in both directions, "
            "so there is no order in which to draw them. Mark fewer elements as missing."
        ) from None
    groups = []
    while sorter.is_active():
        ready = sorter.get_ready()
        groups.append(np.isin(np.arange(missing.shape[1]), ready))
        sorter.done(*ready)
    return np.array(groups, dtype=bool).reshape(-1, missing.shape[1])


def _probabilities(
    elements: Elements, gibbs: Gibbs, groups: np.ndarray, n_completions: int, burn_in: int
):
    """Return P(x = 1) of each element given the known ones, averaged over sweeps."""
    floatX = pytensor.config.floatX
    sweeps = burn_in + n_completions

    def expression(batch: Batch, stream: NoiseStream, missing):
        own = elements.own_rows(batch)
        x = elements.of_batch(batch)
        missing = elements.matrix(missing)[batch.rest[0]]
        joint = own.joint()
        terms = list(joint.terms)
        term = terms[elements.position]
        known = pt.switch(missing, np.zeros((), floatX), np.ones((), floatX))
        terms[elements.position] = dataclasses.replace(
            term, logp=term.logp * known.reshape(term.logp.shape)
        )
        known_only = dataclasses.replace(joint, terms=terms)
        start = known_only.draw_prior(stream)
        start = [v.astype(var.dtype) for v, var in zip(start, joint.variables, strict=True)]
        path = gibbs.sweeps(known_only, start, sweeps, stream)
        n_latents = len(path)

        def draw_group(group, x, p, rng, missing, *args):
            """Draw the missing elements of a group, given those drawn before."""
            z, inputs = list(args[:n_latents]), args[n_latents:]
            now = pt.and_(missing, group)
            ones = pt.switch(now, np.ones((), x.dtype), x)
            log_p, _ = elements.log_density(own.of(inputs), ones, z)
            p = pt.switch(now, pt.exp(log_p), p).astype(floatX)
            stream = NoiseStream(rng)
            uniforms = stream.draw(pt.random.uniform, size=(own.n_rows, groups.shape[1]))
            return [pt.switch(now, uniforms < p, x).astype(x.dtype), p, stream.rng]

        def complete_rows(*args):
            """Complete the rows, given the latent variables of one sweep."""
            z, (rng, x, missing, *inputs) = args[:n_latents], args[n_latents:]
            *_, p, rng = strict_scan(
                draw_group,
                sequences=[pt.constant(groups)],
                outputs_info=[x, x.astype(floatX), rng],
                non_sequences=[missing, *z, *inputs],
                n_steps=len(groups),
            )
            return [p[-1], rng]

        p, stream.rng = strict_scan(
            complete_rows,
            sequences=[p[burn_in:] for p in path],
            outputs_info=[None, stream.rng],
            non_sequences=[x, missing, *own.inputs],
            n_steps=n_completions,
        )
        return [p.mean(axis=0)]

    return expression
