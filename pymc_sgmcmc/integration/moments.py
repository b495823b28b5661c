r"""The mean and covariance of each group's effects, around which its points integrate best.

Points around the mode, with its curvature, miss the longer tail of a skewed density. The rule
itself gives mean and covariance (Naylor and Smith 1982), from the weights of its points x_s::

    p_s ~ w_s exp(h(a_s)) / N(a_s; a*, L L'),   a_s = a* + L x_s
"""

import numpy as np
from pymc.blocking import PointType

from pymc_sgmcmc.integration.group_density import GroupDensity
from pymc_sgmcmc.integration.group_rows import GroupRows
from pymc_sgmcmc.integration.quadrature_points import Points

NARROWEST = 0.05
"""Smallest variance, relative to that of the curvature, that is accepted: below it the weights are
those of hardly more than one point."""
DENSITIES_PER_CALL = 500_000
"""Approximate number of densities of single rows per call, which bounds memory."""


def means_and_factors(
    density: GroupDensity,
    point: PointType,
    index: np.ndarray,
    modes: np.ndarray,
    factors: np.ndarray,
    rows: GroupRows,
    rule: Points,
) -> tuple[np.ndarray, np.ndarray]:
    """Return means, shape (m, k), and factors of covariances, shape (m, k, k), of some groups.

    ``modes`` and ``factors`` have the same shapes, and are kept where the rule says too little.
    ``point`` has values of the shared parameters.
    """
    means, roots = modes.copy(), factors.copy()

    def find(block: slice) -> None:
        a = modes[block] + np.einsum("gij,sj->sgi", factors[block], rule.x)
        h = density.at_points(point, index[block], a, rows)
        log_p = np.nan_to_num(h + rule.log_ratios[:, None], nan=-np.inf, posinf=-np.inf)
        with np.errstate(all="ignore"):
            p = np.exp(log_p - log_p.max(axis=0))
            p /= p.sum(axis=0)
        mean = np.einsum("sg,si->gi", p, rule.x)
        off = rule.x[:, None] - mean
        covariance = np.einsum("sg,sgi,sgj->gij", p, off, off)
        good = np.isfinite(covariance).all(axis=(1, 2))
        good[good] = np.linalg.eigvalsh(covariance[good])[:, 0] > NARROWEST
        own = factors[block][good]
        means[block][good] = modes[block][good] + np.einsum("gij,gj->gi", own, mean[good])
        roots[block][good] = np.linalg.cholesky(own @ covariance[good] @ own.swapaxes(1, 2))

    find(slice(0, 1))  # compiled before there are threads
    density.map(find, rows.blocks(index, DENSITIES_PER_CALL // len(rule.x)))
    return means, roots
