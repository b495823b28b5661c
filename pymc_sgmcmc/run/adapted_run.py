"""Runs with an adapted step: where chains start, how long they are, what is told of the warm-up."""

import json
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from pymc.initial_point import PointType, StartDict
from xarray import Dataset, DataTree

from pymc_sgmcmc.adaptation.adapted import Adapted
from pymc_sgmcmc.gradients.arrays import element_labels
from pymc_sgmcmc.integration.integrated_model import names_of_integrated
from pymc_sgmcmc.run.enough_draws import FEWEST, MOST

_log = logging.getLogger("pymc.sgmcmc")

DRAWS_OF_MANY = 100
"""Draws of each chain where there are too many parameters to judge their effective sample size."""
MARGIN = 1.5
"""Draws of a run that cannot be cut afterwards, relative to what the warm-up expects to need."""
LARGEST_BURN_IN_SHARE = 0.25
"""Largest share of the burn-in in the draws for which there are passes."""


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
    """Return the starts asked for, or others inside the posterior where they are far outside.

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
            f"initvals of chains {', '.join(far)} are far outside of the posterior that the "
            "warm-up saw: these chains start inside it. A mode there is not visited; to begin at "
            "initvals, set a step by hand (step_size=)."
        )
    return near


class FreeLength(NamedTuple):
    """A run that ends when its draws are enough."""

    ess: float
    """Effective sample size asked for."""
    most: int
    """Largest number of draws of each chain."""
    expected: int
    """Number of draws that it should need, with a margin."""
    tune: int
    """Burn-in draws before them."""


def free_length(
    adapted: Adapted,
    chains: int,
    ess: float,
    max_passes: float | None,
    tune: int | None,
    default_tune: int,
) -> FreeLength:
    """Return how long a run may be: with ``max_passes``, those of the warm-up included.

    The burn-in then has at most a quarter of the draws for which there are passes, unless ``tune``
    says it.
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
    """Return the draws of each chain of a model with many parameters."""
    if draws is None:
        _log.info(
            f"{DRAWS_OF_MANY} draws per chain, each after a pass over the data: with so many "
            "parameters ess= is not used. Pass draws= for another number."
        )
    return DRAWS_OF_MANY if draws is None else draws


def describe_adaptation(tree: DataTree, step: Any, tune: int, with_arrays: bool) -> None:
    """Add what the warm-up chose, and the passes over the data, to a result."""
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
    # A matrix of many elements would not fit into memory.
    diagonal = adapted.predictions_only or adapted.metric == "local"
    arrays = {
        "metric": (
            ("element" if diagonal else ("element", "z")),
            metric.spread() if diagonal else metric.matrix,
        ),
        "anchor": ("element", adapted.anchor),
        "anchor_gradient": ("element", adapted.anchor_gradient),
        "noise": ("z", adapted.noise),
        "thermostat_predicted": ("z", adapted.friction),
    }
    if adapted.row_copies is not None:
        copies = adapted.row_copies
        arrays["row_probability"] = ("row", copies / copies.sum())
    tree["adaptation"] = DataTree(Dataset(arrays, coords={"element": names}))
