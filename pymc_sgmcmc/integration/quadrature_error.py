r"""How far the rule that integrates over groups' effects moves the posterior of the other
parameters.

With D(theta) the log likelihood by a finer rule minus that by the rule in use, the draws are from a
density that lacks the factor exp(D). To first order it moves the mean of any standardised function
f of theta by cov(f, D), which is at most the sd of D over the posterior: one number bounds the
error of all means, in standard deviations.
"""

from collections.abc import Sequence

import numpy as np
from pymc.blocking import PointType
from scipy.special import logsumexp

from pymc_sgmcmc.integration.group_centres import Centres
from pymc_sgmcmc.integration.quadrature_points import Points, finer_than

DENSITIES = 100_000_000
"""Largest number of densities of single rows that are evaluated, which takes a second or two."""
LEAST_GROUPS = 20


def quadrature_error(
    centres: Centres, rule: Points, points: Sequence[PointType], densities: int = DENSITIES
) -> float:
    """Estimate the sd of D at draws of the shared parameters, from a random sample of the groups.

    ``densities`` bounds the number of densities of single rows that are evaluated.
    """
    change = _changes(centres, rule, points, densities)
    n_groups, n = len(centres.modes), change.shape[1]
    own = change.var(axis=0, ddof=1).sum()  # of each group alone; below, of all pairs
    pairs = change.sum(axis=1).var(ddof=1) - own
    variance = own * n_groups / n
    if n > 1:
        variance += pairs * n_groups * (n_groups - 1) / (n * (n - 1))
    return float(np.sqrt(max(variance, own * n_groups / n)))


def changes_from_first(
    centres: Centres, rule: Points, points: Sequence[PointType], densities: int
) -> np.ndarray:
    """Estimate the differences of D at the other points and at the first, shape (points - 1,).

    They are not finite at points where groups have no density.
    """
    change = _changes(centres, rule, points, densities)
    differences = change[1:].sum(axis=1) - change[0].sum()
    return differences * len(centres.modes) / change.shape[1]


def _changes(
    centres: Centres, rule: Points, points: Sequence[PointType], densities: int
) -> np.ndarray:
    """Return each group's part of D, of a random sample of the groups, shape (points, groups)."""
    finer = finer_than(rule)
    per_group = centres.rows.sizes.mean() * len(points) * (len(rule.x) + len(finer.x))
    n_groups = len(centres.modes)
    n = int(np.clip(densities // per_group, min(LEAST_GROUPS, n_groups), n_groups))
    index = np.sort(np.random.default_rng(0).choice(n_groups, n, replace=False))

    def change_at(point: PointType) -> np.ndarray:
        by_finer, by_rule = (_integrals(centres, point, index, r) for r in (finer, rule))
        return by_finer - by_rule

    first = change_at(points[0])  # compiled before there are threads
    return np.array([first, *centres.density.map(change_at, points[1:])])


def _integrals(centres: Centres, point: PointType, index: np.ndarray, rule: Points) -> np.ndarray:
    """Return logs of some groups' integrals, up to a constant, around the centres of the run."""
    modes, factors, log_scales = centres.at(point, index)
    a = modes + np.einsum("gij,sj->sgi", factors, rule.x)
    h = centres.density.at_points(point, index, a, centres.rows)
    return logsumexp(h + rule.log_ratios[:, None], axis=0) + log_scales
