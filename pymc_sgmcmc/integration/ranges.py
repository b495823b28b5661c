"""Where the density of a group's single effect is not negligible, whatever modes it has."""

import numpy as np
from pymc.blocking import PointType

from pymc_sgmcmc.integration.group_density import GroupDensity
from pymc_sgmcmc.integration.group_rows import GroupRows
from pymc_sgmcmc.integration.moments import DENSITIES_PER_CALL
from pymc_sgmcmc.integration.points import EQUALLY_SPACED, scan

DEPTH = 18.0
"""Distance below its maximum at which a log density is negligible, as a normal one is at 6 sds."""


def middles_and_factors(
    density: GroupDensity,
    point: PointType,
    index: np.ndarray,
    modes: np.ndarray,
    factors: np.ndarray,
    rows: GroupRows,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the middles of ranges, shape (m, 1), and factors with which points cover them.

    The shapes are those of `pymc_sgmcmc.integration.moments.means_and_factors`. Ranges are sought
    around the modes, up to `scan` sds of a mode away.
    """
    middles, own = modes.copy(), factors.copy()
    x = scan().x[:, 0]
    _, largest = EQUALLY_SPACED[1]

    def find(block: slice) -> None:
        a = modes[block] + factors[block][:, :, 0] * x[:, None, None]
        h = np.nan_to_num(density.at_points(point, index[block], a, rows), nan=-np.inf)
        matters = h > h.max(axis=0) - DEPTH
        first, last = x[matters.argmax(axis=0)], x[-1 - matters[::-1].argmax(axis=0)]
        middles[block] += factors[block][:, :, 0] * (first + last)[:, None] / 2
        own[block] *= np.maximum(last - first, 1.0)[:, None, None] / (2 * largest)

    find(slice(0, 1))  # compiled before there are threads
    density.map(find, rows.blocks(index, DENSITIES_PER_CALL // len(x)))
    return middles, own
