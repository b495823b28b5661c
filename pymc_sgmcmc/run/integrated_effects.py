"""The effects that were integrated out, in the result of a run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pymc.backends.arviz import DataTreeConverter
from pymc.backends.base import MultiTrace
from pymc.backends.ndarray import NDArray
from pymc.model import Model
from xarray import Dataset, DataTree

from pymc_sgmcmc.gradients.model_gradient import shapes_of
from pymc_sgmcmc.gradients.value_draws import value_draws
from pymc_sgmcmc.integration.effects import EffectDraws
from pymc_sgmcmc.integration.group_terms import GroupTerms
from pymc_sgmcmc.run.result import DrawsOnly

MOST_NUMBERS = 150_000_000
"""Of all draws of the effects, and what is computed from them, that a result holds."""


def with_effects(
    tree: DataTree,
    terms: GroupTerms,
    integrated: Model,
    names: Sequence[str],
    rng: np.random.Generator,
    idata_kwargs: dict[str, Any],
    include_data: bool,
) -> DataTree:
    """Complete a result of the integrated model: effects, and what depends on them.

    Parameters
    ----------
    tree : DataTree
        Of the integrated model.
    terms : GroupTerms
    integrated : pymc.Model
        Made from them.
    names : list of str
        Variables of ``terms.model`` that the posterior should have.
    rng : numpy.random.Generator
    idata_kwargs : dict
        For `pymc.to_inference_data`.
    include_data : bool
        Whether to copy the model's data into the result.

    Returns
    -------
    DataTree
        ``posterior``, ``observed_data`` and ``constant_data`` are those of ``terms.model``; the
        rest is that of ``tree``.
    """
    model = terms.model
    posterior = tree["posterior"].to_dataset()
    shared = _points(integrated, posterior)
    chosen = [v for v in model.unobserved_RVs if v.name in names]
    effects = EffectDraws(terms, rng)
    traces = []
    for chain in range(posterior.sizes["chain"]):
        trace = NDArray(model=model, vars=model.replace_rvs_by_values(chosen))
        trace.setup(posterior.sizes["draw"], int(posterior.chain[chain]))
        for draw in range(posterior.sizes["draw"]):
            point = {name: array[chain, draw] for name, array in shared.items()}
            trace.record(effects.into(point, effects.at(point)))
        traces.append(trace)
    converter = DataTreeConverter if include_data else DrawsOnly
    own = converter(trace=MultiTrace(traces), model=model, **idata_kwargs).to_inference_data()
    for name, group in own.children.items():
        found = group.to_dataset()
        if name == "posterior":
            found = found.assign_coords(chain=posterior.chain, draw=posterior.draw)
            found.attrs = posterior.attrs
        tree[name] = DataTree(found)
    return tree


def _points(model: Model, posterior: Dataset) -> dict[str, np.ndarray]:
    """Map draws to the unconstrained scale: arrays of shape (chains, draws, ...) by name."""
    values = model.value_vars
    flat = value_draws(model, values, posterior)
    points, first = {}, 0
    for v, shape in zip(values, shapes_of(model, values), strict=True):
        size = int(np.prod(shape))
        part = flat[:, :, first : first + size]
        points[v.name] = part.reshape(*flat.shape[:2], *shape).astype(v.dtype)
        first += size
    return points
