"""Missing data: what a model with local latent variables makes of the known part of a row."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pymc.model import Model, modelcontext
from pymc.util import RandomGenerator, get_random_generator
from pytensor.scan.basic import scan
from pytensor.tensor.random.basic import BernoulliRV
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.latents import Latents, whole_number
from pymc_sgmcmc.local_model import Batch, Compiled, Draws, LocalModel, Thetas
from pymc_sgmcmc.stream import Stream

ROWS_PER_CALL = 512


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

    For each draw of theta the latent variables are sampled given the known elements alone (Gibbs);
    each sweep then gives a completion of the row.

    Parameters
    ----------
    draws, latents, data, minibatch_dim, model, random_seed, compile_kwargs
        As for `log_marginal_likelihood`. What ``data`` holds at the missing elements is ignored.
    missing : dict
        For one array of ``data``, by name, where it is missing: True or False, of its shape or one
        row's.
    n_completions : int, default 50
        Sweeps for each draw of theta after the burn-in.
    burn_in : int, default 50
        Sweeps before.

    Returns
    -------
    xarray.Dataset
        ``probability``: of 1, averaged over completions and draws; known elements as they are.
        ``completed``: the majority vote. Both are shaped like the data.

    Raises
    ------
    ValueError
        If the data is not that of a Bernoulli variable whose elements are independent given the
        latent variables, or an argument has the wrong shape, naming it.

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
    local = LocalModel.of(model, latents, minibatch_dim)
    if len(missing) != 1:
        raise ValueError(f"missing: give one array, not {len(missing)}.")
    [(name, mask)] = missing.items()
    at, axis, observed = _binary_data(local, name)
    thetas = Thetas.of(local, draws)
    values, n_rows = local.data(data)
    known_data = values[1 + at]
    mask = np.asarray(mask, dtype=bool)
    try:
        mask = np.broadcast_to(mask, known_data.shape)
    except ValueError:
        raise ValueError(
            f"missing: '{name}' has the shape {mask.shape}, and the data {known_data.shape}."
        ) from None
    hidden = pt.tensor("missing", shape=(None,) * mask.ndim, dtype="bool")
    rows_per_call = min(n_rows, ROWS_PER_CALL)
    sampler = Compiled(
        local,
        _probabilities(local, observed, at, axis, n_completions, burn_in),
        rows_per_call,
        get_random_generator(random_seed),
        compile_kwargs,
        extra=[hidden],
    )
    sampler.put([*values, mask])
    total = np.zeros(np.moveaxis(known_data, axis, 0).shape)
    for draw in np.ndindex(thetas.shape):
        for first in range(0, n_rows, rows_per_call):
            index = np.arange(first, first + rows_per_call) % n_rows
            p, discrepancy = sampler(thetas.at(draw), index)
            if discrepancy > 1e-3:
                raise ValueError(
                    f"'{observed}': the probability of an element depends on other elements of "
                    f"'{name}' (an autoregressive model?). Only elements that are independent "
                    "given the latent variables can be completed."
                )
            total[first : first + rows_per_call] += p[: n_rows - first]
    mean = np.moveaxis(total / np.prod(thetas.shape), 0, axis)
    probability = np.where(mask, mean, known_data)
    dims = list(model.named_vars_to_dims.get(observed) or [f"dim_{a}" for a in range(mask.ndim)])
    dims[axis] = "row"
    return xr.Dataset(
        {
            "probability": (dims, probability),
            "completed": (dims, (probability > 0.5).astype(known_data.dtype)),
        },
        coords={"row": np.arange(n_rows)},
    )


def _binary_data(local: LocalModel, name: str) -> tuple[int, int, str]:
    """Position of an array in the source's data, its row axis, and its observed variable."""
    for at, (array, _) in enumerate(local.source.data):
        if array in local.axes and local.name_of(array) == name:
            rv = local.observed_with(array)
            if rv is None or not isinstance(rv.owner.op, BernoulliRV):
                raise ValueError(
                    f"missing: '{name}' is not the data of an observed Bernoulli variable."
                )
            return at, local.axes[array], rv.name
    known = ", ".join(f"'{local.name_of(array)}'" for array in local.axes)
    raise ValueError(f"missing: the model has no rows called '{name}', but {known}.")


def _probabilities(local, observed: str, at: int, axis: int, n_completions: int, burn_in: int):
    """P(x = 1) of each element, averaged over sweeps, and how far elements are from independent."""
    floatX = pytensor.config.floatX
    sweeps = burn_in + n_completions
    [position] = [k for k, t in enumerate(local.source.joint.terms) if t.name == observed]

    def expression(batch: Batch, stream: Stream, hidden):
        data_at = len(batch.theta) + 2 + at  # after the row numbers and N / n
        x = batch.inputs[data_at]
        hidden_rows = pt.moveaxis(hidden, axis, 0)[batch.inputs[len(batch.theta)]]

        def elements(value, z):
            """Log probability of each element with ``value`` in the place of what is missing."""
            filled = pt.switch(hidden, value, x).astype(x.dtype)
            inputs = [*batch.inputs[:data_at], filled, *batch.inputs[data_at + 1 :]]
            joint = batch.of(inputs).joint()
            return joint.evaluate([joint.terms[position].logp], z)[0]

        def known_only():
            joint = batch.joint()
            terms = list(joint.terms)
            known = pt.switch(hidden_rows, np.zeros((), floatX), np.ones((), floatX))
            terms[position] = dataclasses.replace(
                terms[position], logp=terms[position].logp * known
            )
            return dataclasses.replace(joint, terms=terms)

        joint = known_only()
        start = joint.draw_prior(stream)
        start = [v.astype(var.dtype) for v, var in zip(start, joint.variables, strict=True)]
        path = local.latents.sweeps(joint, start, sweeps, stream)
        kept = [p[burn_in:] for p in path]
        inputs = [*batch.inputs, hidden]

        def of_one_sweep(*args):
            z = list(args[: len(kept)])
            return pt.sigmoid(elements(1, z) - elements(0, z)).astype(floatX)

        p = scan(of_one_sweep, sequences=kept, non_sequences=inputs, return_updates=False).mean(
            axis=0
        )
        z = [k[-1] for k in kept]
        chosen = stream.draw(pt.random.uniform, size=hidden.shape) < 0.5
        mixed = elements(chosen, z)
        apart = pt.switch(
            pt.moveaxis(chosen, axis, 0)[batch.inputs[len(batch.theta)]],
            elements(1, z),
            elements(0, z),
        )
        return [p, pt.max(pt.abs(mixed - apart))]

    return expression
