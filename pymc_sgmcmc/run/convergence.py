"""Whether the chains of a run have converged, judged by effective sample size and R-hat."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from arviz_stats.base import array_stats
from scipy import stats

MOST_ELEMENTS = 500
"""Largest number of elements that are examined, evenly spaced over those of each variable."""
ALARM = 0.001
"""Probability that chance alone makes the largest R-hat exceed `rhat_by_chance`."""


class Convergence(NamedTuple):
    """The convergence of all the elements that were examined."""

    ess: float
    """The smallest bulk effective sample size, over all chains together."""
    rhat: float
    """The largest R-hat; 1 for a single chain."""
    rhat_by_chance: float
    """The largest R-hat that chance explains."""


def convergence(each: Iterable[np.ndarray]) -> Convergence:
    """Return the smallest effective sample size and largest R-hat of draws (chains, draws, ...).

    Only evenly spaced elements of large variables are examined.
    """
    arrays = [draws.reshape(*draws.shape[:2], -1) for draws in each]
    ess, rhat, slowest, looked_at = np.inf, 1.0, None, 0
    for draws in arrays:
        size = draws.shape[2]
        count = min(size, max(1, MOST_ELEMENTS // len(arrays)))
        for k in np.unique(np.linspace(0, size - 1, count).astype(int)):
            one = draws[:, :, k]
            if np.ptp(one) == 0:  # a constant
                continue
            looked_at += 1
            # np.minimum and np.maximum propagate NaN.
            ess = np.minimum(ess, array_stats.ess(one, chain_axis=0, draw_axis=1))
            if len(one) > 1:
                its_own = array_stats.rhat(one, chain_axis=0, draw_axis=1)
                if not its_own <= rhat:
                    slowest = one
                rhat = np.maximum(rhat, its_own)
    chance = 1.0 if slowest is None else rhat_by_chance(slowest, looked_at)
    return Convergence(float(ess), float(rhat), chance)


def rhat_by_chance(draws: np.ndarray, n_elements: int) -> float:
    """Return the largest R-hat that chance explains, from the draws of the worst element.

    For m half chains of n independent draws R-hat^2 = (n - 1 + F) / n, where F has m - 1 and m (n -
    1) degrees of freedom, once for the centre and once for the spread; n is the effective sample
    size within chains.
    """
    halves, most = 2 * len(draws), draws.shape[1] / 2
    within = [array_stats.ess(chain[None], chain_axis=0, draw_axis=1) for chain in draws]
    n = float(np.clip(np.nan_to_num(np.sum(within) / halves, nan=most), min(2.0, most), most))
    if n < 2:
        return np.inf
    f = stats.f.isf(ALARM / (2 * n_elements), halves - 1, halves * (n - 1))
    return float(np.sqrt((n - 1 + f) / n))
