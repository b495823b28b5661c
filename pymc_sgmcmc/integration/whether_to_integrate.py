"""Whether a run integrates effects out, and what follows for its arguments."""

import logging
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from pymc.initial_point import StartDict
from pymc.model import Model
from pytensor.compile.mode import get_mode

from pymc_sgmcmc.backends.backend import backend_of
from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.gradients.local_variables import LEAST_GROUPS, n_looked_up
from pymc_sgmcmc.integration.group_terms import (
    GroupTerms,
    Integrate,
    NotIntegrated,
    group_terms,
)
from pymc_sgmcmc.integration.one_index import with_one_index
from pymc_sgmcmc.integration.quadrature_points import points_of
from pymc_sgmcmc.integration.reparametrised_models import own_name, without_suffix
from pymc_sgmcmc.integration.row_effects import with_row_numbers

_log = logging.getLogger("pymc.sgmcmc")

FEWEST_LOOKED_UP = 50
"""Smallest number of effects to integrate out; fewer are cheaper to sample, however few rows there
are."""
LARGEST_DENSE = 2000
"""Largest number of elements of theta that may all be sampled with a dense metric."""
MOST_PADDED = 10
"""Largest ratio of the largest group to the average at which all are padded to the largest."""
ELEMENTS_PER_ROW = 4
"""Number of elements of the metric whose cost, in an update and its share of the warm-up, is that
of a row's gradient; based on 176 CPU seconds with 600 effects of 100,000 rows, where integration
took more."""


@quick_graphs()
def terms_to_integrate(
    model: Model,
    wanted: Integrate,
    compile_kwargs: dict[str, Any] | None,
    predicts: bool,
    data: StreamedData | None = None,
) -> GroupTerms | None:
    """Return the model group by group, or None if nothing is integrated out.

    Raises `ValueError` for named effects that cannot be integrated out.
    """
    if wanted is None:
        return None
    model, of_rows = with_row_numbers(model) if data is None else (model, [])
    if wanted == "auto" and not of_rows and n_looked_up(model) < FEWEST_LOOKED_UP:
        return None
    try:
        if predicts:
            raise NotIntegrated("predictions= needs draws of the effects during the run")
        pads = pads_groups(compile_kwargs)
        if pads and data is not None:
            raise NotIntegrated("groups of streamed data need numba, not JAX")
        model = with_one_index(model)
        known = {own_name(rv.name): rv.name for rv in model.free_RVs}
        unknown = [] if wanted == "auto" else [name for name in wanted if name not in known]
        if unknown:
            raise NotIntegrated(f"{unknown[0]!r} is not a free variable: these are {[*known]}")
        named = "auto" if wanted == "auto" else [known[name] for name in wanted]
        terms = group_terms(model, named, data, of_rows)
        if pads:
            _refuse_padding(terms)
        if wanted == "auto" and not of_rows and not _is_cheaper(terms):
            raise NotIntegrated(
                f"sampling the effects of {terms.n_groups} groups of so many rows costs less"
            )
    except NotIntegrated as reason:
        why = without_suffix(str(reason)).removesuffix(".")
        if wanted != "auto":
            raise ValueError(f"integrate={wanted!r}: {why}. Leave integrate='auto'.") from reason
        _log.info(f"No effects are integrated out: {why}.")
        return None
    names = ", ".join(f"'{own_name(name)}'" for name in terms.names)
    one, kind = ("row", "rows") if of_rows else ("group", "groups")
    _log.info(
        f"Integrated out of the likelihood: {names}, of {terms.n_groups} {kind} "
        f"({len(points_of(terms.k).x)} points a {one}; integrate=None samples them instead)."
    )
    return terms


@quick_graphs()
def pads_groups(compile_kwargs: dict[str, Any] | None) -> bool:
    """Whether the backend needs groups of equal size."""
    return backend_of(get_mode((compile_kwargs or {}).get("mode"))).pads_lengths


def _refuse_padding(terms: GroupTerms) -> None:
    sizes = np.bincount(terms.group_of_row, minlength=terms.n_groups)
    average = sizes[sizes > 0].mean()
    if sizes.max() > MOST_PADDED * average:
        raise NotIntegrated(
            f"JAX needs groups of equal size, and the largest has {sizes.max()} rows where the "
            f"average is {average:.3g}: with the mode 'NUMBA' they may differ"
        )


def _is_cheaper(terms: GroupTerms) -> bool:
    """Whether updates without the effects, by whole groups, cost less than those with them.

    Updates with the effects have about 2 rows per parameter. Updates without them have, per shared
    parameter, a quarter of a group and at least 2 rows, and at least 32 groups in all.

    Beyond dense metrics, effects of many groups are integrated out, as they would be local.
    """
    shapes = terms.model.eval_rv_shapes()
    size = sum(prod(shapes[rv.name]) for rv in terms.model.free_RVs)
    if size > LARGEST_DENSE:
        return terms.n_groups >= LEAST_GROUPS
    n_rows, shared = len(terms.group_of_row), size - terms.k * terms.n_groups
    per_group = n_rows / terms.n_groups * len(points_of(terms.k).x)
    groups = min(max(32, shared / 4, 2 * shared * terms.n_groups / n_rows), terms.n_groups)
    integrated = 2 * groups * per_group + shared**2 / ELEMENTS_PER_ROW
    return integrated < 2 * min(max(32, 2 * size), n_rows) + size**2 / ELEMENTS_PER_ROW


def starts_in(
    model: Model, initvals: StartDict | Sequence[StartDict | None] | None
) -> StartDict | Sequence[StartDict | None] | None:
    """Return the initial values of the variables that a model still has."""
    if initvals is None:
        return None
    if isinstance(initvals, dict):
        known = {v.name for v in [*model.free_RVs, *model.value_vars]}
        return {k: v for k, v in initvals.items() if getattr(k, "name", k) in known} or None
    return [starts_in(model, one) for one in initvals]
