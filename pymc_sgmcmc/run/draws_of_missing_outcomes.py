"""Runs without rows' missing outcomes, which are drawn afterwards for the result."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from arviz_base import dict_to_dataset
from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_observations
from pymc.pytensorf import compile
from pytensor.graph.basic import Variable
from xarray import Dataset, DataTree

from pymc_sgmcmc.backends.compile_time import quick_graphs, without_code
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.integration.missing_outcomes import MissingOutcomes, missing_outcomes
from pymc_sgmcmc.integration.whether_to_integrate import starts_in
from pymc_sgmcmc.run.integrated_effects import MOST_NUMBERS
from pymc_sgmcmc.run.log_densities import with_log_densities, without_log_densities
from pymc_sgmcmc.run.result import salvage
from pymc_sgmcmc.run.sample_arguments import Arguments

_log = logging.getLogger("pymc.sgmcmc")


def without_missing_outcomes(given: Arguments) -> tuple[Arguments, MissingOutcomes | None]:
    """Return arguments for the model without missing outcomes on which nothing else depends."""
    if given.data is not None:
        return given, None
    missing = missing_outcomes(given.model, [one.var for one in given.predictions])
    if missing is None:
        return given, None
    names = ", ".join(f"'{outcome.unobserved.name}'" for outcome in missing.outcomes)
    _log.info(f"Rows without an outcome are left out, and {names} drawn afterwards.")
    model, var_names = missing.sampled, given.var_names
    if var_names is not None:
        named = [str(getattr(v, "name", v)) for v in var_names]
        free = [rv.name for rv in model.free_RVs]
        needs_all = any(name not in model.named_vars for name in named)
        chosen = {*named, *(free if needs_all else [])}
        var_names = [v.name for v in model.unobserved_RVs if v.name in chosen]
    return replace(
        given,
        model=model,
        initvals=starts_in(model, given.initvals),
        var_names=var_names,
        idata_kwargs=without_log_densities(given.idata_kwargs),
    ), missing


def with_missing_outcomes(
    tree: DataTree, missing: MissingOutcomes, given: Arguments, rng: np.random.Generator
) -> DataTree:
    """Complete a result with missing outcomes, what depends on them, and log densities.

    Without ``var_names`` it has no deterministics with one number per row.
    """
    try:
        posterior = tree["posterior"].to_dataset()
        drawn = _drawn(posterior, missing, given, rng)
        names = given.var_names
        if names is not None:
            named = {str(getattr(v, "name", v)) for v in names}
            posterior = posterior[[v for v in posterior.data_vars if v in named]]
        both = posterior.merge(drawn)
        order = [v.name for v in missing.written.unobserved_RVs if v.name in both]
        order += [v for v in both.data_vars if v not in order]
        both = both[order]
        both.attrs = posterior.attrs
        tree["posterior"] = DataTree(both)
        if "observed_data" in tree.children:
            own = _dataset(missing, find_observations(missing.written), given, sample_dims=[])
            tree["observed_data"] = DataTree(own)
        return with_log_densities(tree, missing.written, given.idata_kwargs)
    except KeyboardInterrupt:
        _log.warning("Interrupted: missing outcomes are not drawn; everything else is returned.")
    except Exception as error:
        salvage(error, lambda: tree)
        raise
    return tree


def _drawn(
    posterior: Dataset, missing: MissingOutcomes, given: Arguments, rng: np.random.Generator
) -> Dataset:
    """Draw missing outcomes, and compute what depends on them or has one number per row."""
    names = _to_draw(missing, given.var_names)
    n_draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    with quick_graphs():
        shapes = missing.written.eval_rv_shapes()
    size = sum(prod(shapes.get(name, ())) for name in names)
    if given.var_names is None and size * n_draws > MOST_NUMBERS:
        _log.info(
            f"{n_draws} draws of {', '.join(map(repr, names))} would take too much memory. Name "
            "them in var_names= to get them."
        )
        return Dataset()
    if not names:
        return Dataset()
    function, inputs = _function(missing, names, int(rng.integers(2**31)))
    columns = [posterior[v.name].transpose("chain", "draw", ...).astype(v.dtype) for v in inputs]
    flat = [column.values.reshape(n_draws, *column.shape[2:]) for column in columns]
    with without_code():
        draws = [function(*(column[k] for column in flat)) for k in range(n_draws)]
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    values = {
        name: np.reshape([one[k] for one in draws], (*shape, *np.shape(draws[0][k])))
        for k, name in enumerate(names)
    }
    return _dataset(missing, values, given).assign_coords(
        chain=posterior.chain, draw=posterior.draw
    )


def _to_draw(missing: MissingOutcomes, var_names: Sequence[Any] | None) -> list[str]:
    """Return the names of requested variables that are not sampled."""
    if var_names is not None:
        named = [str(getattr(v, "name", v)) for v in var_names]
        return [name for name in named if name not in missing.sampled.named_vars]
    depend = missing.depend()
    of_rows = [v.name for v in missing.written.deterministics if missing.is_of_rows(v.name)]
    if of_rows:
        _log.info(
            f"Not recorded (one number per row): {', '.join(map(repr, of_rows))}. Name it in "
            "var_names to record it."
        )
    return [name for name in depend if name not in of_rows]


def _function(
    missing: MissingOutcomes, names: Sequence[str], seed: int
) -> tuple[Any, list[Variable]]:
    """Compile a function that draws variables, given the values of those that are sampled."""
    model = missing.written
    free = {rv: rv.type(rv.name) for rv in missing.sampled.free_RVs}
    known: dict[Variable, Variable] = {
        **free,
        **{rv: model.rvs_to_values[rv] for rv in model.observed_RVs},
    }
    rows = substitute([outcome.missing for outcome in missing.outcomes], known)
    drawn = dict(zip((outcome.unobserved for outcome in missing.outcomes), rows, strict=True))
    outputs = substitute([model[name] for name in names], {**known, **drawn})
    with without_code():
        function = compile(
            list(free.values()), outputs, random_seed=seed, mode=PYTHON, on_unused_input="ignore"
        )
    return function, list(free)


def _dataset(
    missing: MissingOutcomes, values: dict[str, np.ndarray], given: Arguments, **kwargs: Any
) -> Dataset:
    """Make a group of a result, with the dims and labels that PyMC would give it."""
    coords, dims = coords_and_dims_for_inferencedata(missing.written)
    return dict_to_dataset(
        values,
        coords={**coords, **(given.idata_kwargs.get("coords") or {})},
        dims={**dims, **(given.idata_kwargs.get("dims") or {})},
        **kwargs,
    )
