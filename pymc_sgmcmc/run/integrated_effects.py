"""The integrated-out effects in the result of a run."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pymc.backends.arviz import DataTreeConverter
from pymc.backends.base import MultiTrace
from pymc.backends.ndarray import NDArray
from pymc.blocking import PointType
from pymc.model import Model
from pytensor.graph.traversal import ancestors
from xarray import Dataset, DataTree

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.gradients.model_gradient import shapes_of
from pymc_sgmcmc.gradients.value_draws import value_draws
from pymc_sgmcmc.integration.effects import EffectDraws
from pymc_sgmcmc.integration.group_terms import GroupTerms
from pymc_sgmcmc.integration.integrated_model import IntegratedModel, integrated_model
from pymc_sgmcmc.integration.quadrature_points import rule_of
from pymc_sgmcmc.integration.reparametrised_models import has_stand_in
from pymc_sgmcmc.integration.whether_to_integrate import pads_groups, starts_in
from pymc_sgmcmc.run.log_densities import without_log_densities
from pymc_sgmcmc.run.recorder import Recorder
from pymc_sgmcmc.run.result import DrawsOnly, affordable_data, salvage
from pymc_sgmcmc.run.sample_arguments import Arguments

_log = logging.getLogger("pymc.sgmcmc")

MOST_NUMBERS = 100_000_000
"""Largest number of values, over all draws of the effects and of what depends on them, that a
result contains unless ``var_names`` asks for them."""
MOST_BAD = 0.01
"""Share of groups with untrustworthy draws of effects above which a warning is given."""
MOST_DENSITIES = 10_000_000_000
"""Largest number of densities of single rows that drawing all effects may take, unless
``var_names`` asks for them: some minutes on one core."""
SUMMARISED = 50, 200
"""Fewest and most draws of an effect for its mean and sd, if its draws are left out."""


def of_what_groups_share(
    given: Arguments,
    terms: GroupTerms,
    follow_prior: bool = False,
    refined: bool = False,
    equally_spaced: bool = False,
) -> Arguments:
    """Return the arguments for sampling the shared parameters, in the integrated model.

    Points that follow the prior are for two or three effects with scales that rows say little of,
    refined ones for two or three with skew densities, and equally spaced ones for densities with
    several modes or long tails.
    """
    points = rule_of(terms.k, refined, equally_spaced)
    model = integrated_model(terms, points, follow_prior, pads_groups(given.compile_kwargs))
    recorded = recorded_names(terms, given.var_names)
    # Effects are drawn given all that groups share, whether the result shows it or not.
    recorded += [v.name for v in model.free_RVs]
    return replace(
        given,
        model=model,
        initvals=starts_in(model, given.initvals),
        var_names=[v.name for v in model.unobserved_RVs if v.name in recorded],
        idata_kwargs=without_log_densities(given.idata_kwargs),
        include_data=False,
    )


def with_effects(
    tree: DataTree,
    terms: GroupTerms,
    integrated: IntegratedModel,
    asked: Arguments,
    rng: np.random.Generator,
) -> DataTree:
    """Complete a result ``tree`` of the integrated model with effects and what depends on them.

    ``asked`` are the arguments of `sample`. Without ``var_names`` the posterior has all variables
    of ``terms.model`` except deterministics with one number per row, and effects that would have
    too many draws; the group ``effects`` then has their means and standard deviations. Groups
    ``posterior``, ``observed_data`` and ``constant_data`` are those of ``terms.model``; the rest is
    that of ``tree``.
    """
    var_names = asked.var_names
    idata_kwargs = without_log_densities(asked.idata_kwargs)
    include_data = asked.include_data
    if include_data is None:
        include_data = affordable_data(terms.model)
    names = recorded_names(terms, var_names)
    posterior = tree["posterior"].to_dataset()
    of_effects = _that_depend(terms, names)
    with quick_graphs():
        shapes = terms.model.eval_rv_shapes()
    size = sum(int(np.prod(shapes.get(name, (terms.n_groups,)))) for name in of_effects)
    try:
        if include_data:
            tree = tree.assign(_data_of(terms.model, idata_kwargs))
        if not of_effects:
            return _only(tree, names)
        points = points_of_draws(integrated, posterior)
        effects = _effects(integrated, points, rng)
        affordable = MOST_DENSITIES // max(effects.densities, 1)
        all_of_them = size * len(points) <= MOST_NUMBERS and len(points) <= affordable
        if all_of_them or var_names is not None:
            own = _all_draws(terms, effects, points, posterior, names, idata_kwargs)
            tree["posterior"] = DataTree(own)
        else:
            n = min(int(np.clip(affordable, *SUMMARISED)), len(points))
            some = [points[k] for k in np.linspace(0, len(points) - 1, n).astype(int)]
            _log.info(
                f"{len(points)} draws of {', '.join(map(repr, of_effects))} would take too much "
                f"time or memory: the group 'effects' has means and standard deviations over {n} "
                "draws. Name variables in var_names= for all draws."
            )
            tree["effects"] = DataTree(_moments(terms, effects, some, of_effects))
    except KeyboardInterrupt:
        _log.warning("Interrupted: effects of groups are not drawn; shared parameters are kept.")
        return tree
    except Exception as error:
        salvage(error, lambda: tree)
        raise
    return _only(tree, names)


def _only(tree: DataTree, names: Sequence[str]) -> DataTree:
    """Leave out what groups share, of which effects were drawn, unless it is named."""
    for group in ("posterior", "warmup_posterior"):
        if group in tree.children:
            dataset = tree[group].to_dataset()
            tree[group] = DataTree(dataset[[v for v in dataset if v in names]])
    return tree


def recorded_names(terms: GroupTerms, var_names: Sequence[Any] | None) -> list[str]:
    """Return the names of a result's variables, by default all except deterministics of rows."""
    if var_names is not None:
        return [str(getattr(v, "name", v)) for v in var_names]
    model = terms.model
    computed = [v for v in model.deterministics if not has_stand_in(model, v.name)]
    shapes = {v.name: v.type.shape for v in computed}
    return [
        v.name for v in model.unobserved_RVs if not set(terms.lengths) & {*shapes.get(v.name, ())}
    ]


def _that_depend(terms: GroupTerms, names: Sequence[str]) -> list[str]:
    """Return those of the named variables that are effects or are computed from them."""
    effects = {terms.model.values_to_rvs[v] for v in terms.values}
    return [n for n in names if not effects.isdisjoint(ancestors([terms.model[n]]))]


def points_of_draws(integrated: Model, posterior: Dataset) -> list[PointType]:
    """Return the shared parameters at each draw, chain by chain."""
    values = integrated.value_vars
    with quick_graphs():
        flat = value_draws(integrated, values, posterior)
    shapes = shapes_of(integrated, values)
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    each = (np.split(one, ends[:-1]) for one in flat.reshape(-1, flat.shape[-1]))
    return [
        {
            v.name: part.reshape(shape).astype(v.dtype)
            for v, part, shape in zip(values, parts, shapes, strict=True)
        }
        for parts in each
    ]


def _effects(
    integrated: IntegratedModel, points: list[PointType], rng: np.random.Generator
) -> EffectDraws:
    """Return an object that draws effects, prepared at the mean of the shared parameters' draws."""
    centre = {name: np.mean([point[name] for point in points], axis=0) for name in points[0]}
    effects = EffectDraws(integrated.centres, centre, rng)
    if effects.share_of_bad > MOST_BAD:
        _log.warning(
            f"Given everything else, the effects of {effects.share_of_bad:.1%} of the groups are "
            "far from normal: do not trust these draws. The verdict covers the shared parameters; "
            "pass integrate=None to sample the effects themselves."
        )
    return effects


def _all_draws(
    terms: GroupTerms,
    effects: EffectDraws,
    points: list[PointType],
    posterior: Dataset,
    names: Sequence[str],
    idata_kwargs: dict[str, Any],
) -> Dataset:
    model = terms.model
    chosen = [v for v in model.unobserved_RVs if v.name in names]
    with quick_graphs():
        vars = model.replace_rvs_by_values(chosen)
        for v, rv in zip(vars, chosen, strict=True):
            v.name = rv.name
        recorder = Recorder(model, vars, model.initial_point())
    traces: list[NDArray] = []
    for k, (point, drawn) in enumerate(zip(points, effects.of(points), strict=True)):
        chain, draw = divmod(k, posterior.sizes["draw"])
        if draw == 0:
            traces.append(recorder.new_trace())
            traces[-1].setup(posterior.sizes["draw"], int(posterior.chain[chain]))
        traces[-1].record(effects.into(point, drawn), in_warmup=False)
    found = DrawsOnly(trace=MultiTrace(traces), model=model, **idata_kwargs).to_inference_data()
    own = found["posterior"].to_dataset()
    own = own.assign_coords(chain=posterior.chain, draw=posterior.draw)
    own.attrs = posterior.attrs
    return own


def _data_of(model: Model, idata_kwargs: dict[str, Any]) -> dict[str, DataTree]:
    """Return the groups of a result that have a model's data."""
    converter = DataTreeConverter(prior={}, model=model, **idata_kwargs)
    groups = {
        "observed_data": converter.observed_data_to_xarray(),
        "constant_data": converter.constant_data_to_xarray(),
    }
    return {name: DataTree(group) for name, group in groups.items() if group is not None}


def _moments(
    terms: GroupTerms, effects: EffectDraws, points: list[PointType], names: Sequence[str]
) -> Dataset:
    """Return means and standard deviations over some draws."""
    model = terms.model
    chosen = [v for v in model.unobserved_RVs if v.name in names]
    with quick_graphs():
        outputs = model.replace_rvs_by_values(chosen)
        function = model.compile_fn(outputs, inputs=model.value_vars, on_unused_input="ignore")
    means: list[Any] = [0.0] * len(chosen)
    squares: list[Any] = [0.0] * len(chosen)  # of deviations, as Welford's running sums
    for n, (point, drawn) in enumerate(zip(points, effects.of(points), strict=True), 1):
        for k, value in enumerate(function(effects.into(point, drawn))):
            off = value - means[k]
            means[k] = means[k] + off / n
            squares[k] = squares[k] + off * (value - means[k])
    found = {}
    for rv, mean, square in zip(chosen, means, squares, strict=True):
        dims = model.named_vars_to_dims.get(rv.name)
        dims = dims or [f"{rv.name}_dim_{i}" for i in range(np.ndim(mean))]
        found[f"{rv.name}_mean"] = dims, mean
        found[f"{rv.name}_sd"] = dims, np.sqrt(square / (len(points) - 1))
    coords = {
        dim: np.asarray(model.coords[dim])
        for dims, _ in found.values()
        for dim in dims
        if model.coords.get(dim) is not None
    }
    return Dataset(found, coords=coords, attrs={"draws": len(points)})
