"""Runs with an adapted step: the chains' starts, their length, and the report of the warm-up."""

import json
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from pymc.initial_point import PointType, StartDict
from xarray import Dataset, DataTree

from pymc_sgmcmc.adaptation.adapted_settings import Adapted
from pymc_sgmcmc.gradients.arrays import element_labels
from pymc_sgmcmc.integration.integrated_model import names_of_integrated
from pymc_sgmcmc.run.enough_draws import FEWEST, MOST

_log = logging.getLogger("pymc.sgmcmc")

DRAWS_OF_MANY = 100
"""Draws of each chain if there are too many parameters to judge their effective sample size."""
MARGIN = 1.5
"""Draws of a run that cannot be cut afterwards, relative to what the warm-up expects to need."""
LARGEST_BURN_IN_SHARE = 0.25
"""Largest share of the draws that ``max_passes`` allows to be spent on burn-in."""


def adapted_starts(
    step: Any, starts: Sequence[PointType], generators: Sequence[np.random.Generator]
) -> list[PointType]:
    """Return a start for each chain, over-dispersed in the posterior as the warm-up saw it."""
    return [
        {
            **start,
            **step.adapted.jittered_start(
                step.kernel, np.random.default_rng(int(rng.integers(2**30)))
            ),
        }
        for start, rng in zip(starts, generators, strict=True)
    ]


def starts_near_the_posterior(
    step: Any,
    starts: Sequence[PointType],
    initvals: StartDict | Sequence[StartDict | None] | None,
    generators: Sequence[np.random.Generator],
) -> list[PointType]:
    """Return the requested starts, replacing those far outside the posterior by others inside it.

    A warning names the chains whose initial values are not used.
    """
    adapted, kernel = step.adapted, step.kernel
    inside = adapted_starts(step, starts, generators)
    each = [initvals] * len(starts) if isinstance(initvals, dict | None) else initvals
    near, far = [], []
    for i, (start, given, other) in enumerate(zip(starts, each, inside, strict=True)):
        if given:
            names = {getattr(name, "name", name) for name in given}
            values = step.model.values_to_rvs.items()
            of_values = {v.name for v, rv in values if names & {v.name, rv.name}}
            start = {name: (start if name in of_values else other)[name] for name in start}
        if adapted.predictions_only or adapted.is_far(kernel, start):
            near.append(other)
            if given and not adapted.predictions_only:
                far.append(str(i))
        else:
            near.append(start)
    if far:
        _log.warning(
            f"initvals of chains {', '.join(far)} are far outside the posterior that the warm-up "
            "saw, so these chains start inside it. A mode near these values is not visited; to "
            "start there, make a step with a number as step_size=."
        )
    return near


class FreeLength(NamedTuple):
    """The permitted length of a run that ends when it has enough draws."""

    ess: float
    """Requested effective sample size."""
    most: int
    """Largest number of draws of each chain."""
    expected: int
    """Number of draws of each chain that the run should need, with a margin."""
    tune: int
    """Number of burn-in draws of each chain before them."""


def free_length(
    adapted: Adapted,
    chains: int,
    ess: float,
    max_passes: float | None,
    tune: int | None,
    default_tune: int,
) -> FreeLength:
    """Return how long a run may be; ``max_passes`` includes the passes of the warm-up.

    With ``max_passes``, burn-in takes at most a quarter of the draws that it allows, unless
    ``tune`` is given.
    """
    most, burn_in = MOST, default_tune if tune is None else tune
    if max_passes is not None:
        left = (max_passes - adapted.data_passes) / (chains * adapted.passes_per_draw)
        if tune is None:
            burn_in = int(np.clip(left * LARGEST_BURN_IN_SHARE, 0, default_tune))
        most = int(np.clip(left - burn_in, 1, MOST))
    needed = MARGIN * ess / (chains * adapted.ess_per_draw)
    expected = int(np.clip(np.ceil(needed), min(FEWEST, most), most))
    return FreeLength(ess, most, expected, burn_in)


def draws_of_many(draws: int | None) -> int:
    """Return the number of draws of each chain for a model with many parameters."""
    if draws is None:
        _log.info(
            f"{DRAWS_OF_MANY} draws per chain, each after a pass over the data: with so many "
            "parameters ess= is not used. Pass draws= for another number."
        )
    return DRAWS_OF_MANY if draws is None else draws


def describe_adaptation(tree: DataTree, step: Any, tune: int, with_arrays: bool) -> None:
    """Add what the warm-up chose, and the number of passes over the data, to a result."""
    adapted, posterior = step.adapted, tree["posterior"]
    chosen = adapted.summary() | {"integrated": names_of_integrated(step.model)}
    chosen["drift_to_gradient"] = step.algorithm.drift_to_gradient * adapted.step_size
    draws = posterior.sizes["chain"] * (posterior.sizes["draw"] + tune)
    posterior.attrs |= {
        "data_passes": adapted.data_passes + draws * adapted.passes_per_draw,
        "data_passes_warmup": adapted.data_passes,
        "adaptation": json.dumps(chosen),
    }
    if not with_arrays:
        return
    names = np.array(element_labels(step.vars, step.kernel.source.shapes))
    metric = step.kernel.metric
    # With many elements, a full matrix would not fit into memory.
    diagonal = adapted.predictions_only or adapted.metric == "local"
    arrays = {
        "metric": (
            ("element" if diagonal else ("element", "z")),
            metric.spread() if diagonal else metric.matrix,
        ),
        "anchor": ("element", adapted.anchor),
        "anchor_gradient": ("element", adapted.anchor_gradient),
        "anchor_powers": ("element", adapted.anchor_powers),
        "noise": ("z", adapted.noise),
        "thermostat_predicted": ("z", adapted.friction),
    }
    if adapted.row_copies is not None:
        copies = adapted.row_copies
        arrays["row_probability"] = ("row", copies / copies.sum())
    tree["adaptation"] = DataTree(Dataset(arrays, coords={"element": names}))
