"""A warning, before the draws, that they will be slow, with an estimate for NUTS."""

import logging
from collections.abc import Callable
from math import ceil, log2, pi

import numpy as np

from pymc_sgmcmc.adaptation.adapted_settings import Adapted
from pymc_sgmcmc.adaptation.short_runs import CENTRING

_log = logging.getLogger("pymc.sgmcmc")

MANY_UPDATES, MANY_PASSES = 200, 5.0
"""Numbers of updates and of passes per draw from which draws are slow; with a suitable metric, a
draw takes 5 to 50 updates."""
LEAST_SECONDS = 30.0
"""Shortest run, in seconds, that counts as slow."""
ESS = 400
"""Effective sample size for which the time is estimated."""
DRAWS_OF_NUTS = 8000
"""Number of draws of `pm.sample()`: 4 chains with 1000 tuning draws and 1000 others each."""
LARGEST_TREE = 10
STEP_OF_NUTS = 1.6
"""Step size of NUTS in units of the smallest standard deviation, relative to d^(-1/4)."""


def gradients_of_nuts(curvature: np.ndarray) -> int:
    """Return the gradients per draw of NUTS with a diagonal metric, given the positive curvature.

    A trajectory turns around after half a period of the slowest direction.
    """
    scale = np.sqrt(np.diag(curvature))
    values = np.linalg.eigvalsh(curvature / np.outer(scale, scale))
    slowest = np.sqrt(values[-1] / max(values[0], 1e-12))
    steps = pi * slowest * len(curvature) ** 0.25 / STEP_OF_NUTS
    return 2 ** min(LARGEST_TREE, ceil(log2(steps + 1))) - 1


def warn_of_slow_draws(
    chosen: Adapted,
    seconds_per_update: float,
    seconds_per_gradient: Callable[[], float],
    n_of_nuts: int,
    effects_are_integrated: bool = False,
) -> None:
    """Warn of draws that take many updates or passes over the data.

    NUTS does not integrate effects out, so gradients of integrals say nothing about its time.
    """
    many_passes = chosen.batch_size is not None and chosen.passes_per_draw > MANY_PASSES
    draws = ESS / max(chosen.ess_per_draw, 1e-3)
    seconds = draws * chosen.thin * seconds_per_update
    if (chosen.thin <= MANY_UPDATES and not many_passes) or seconds < LEAST_SECONDS:
        return
    if effects_are_integrated:
        beside = "With a few hundred groups NUTS, pm.sample() without step=, may be faster."
    else:
        each = seconds_per_gradient()
        nuts = DRAWS_OF_NUTS * n_of_nuts * each
        beside = (
            f"NUTS may take {_duration(nuts)} for pm.sample(), if a draw needs {n_of_nuts} "
            f"gradients of {each * 1e3:.2g} ms. {CENTRING} "
            "With a step made by hand, pm.gp.HSGP is better with parametrization='centered'."
        )
    _log.warning(
        f"Draws will be slow: {chosen.thin} updates and {chosen.passes_per_draw:.3g} passes over "
        f"the data each, so that {ESS} effective draws take about {_duration(seconds)} of CPU "
        f"time. {beside}"
    )


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
