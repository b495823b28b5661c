"""Where the density of a group's effects is not negligible, whatever modes and tails it has."""

import numpy as np
from pymc.blocking import PointType

from pymc_sgmcmc.integration.group_density import GroupDensity
from pymc_sgmcmc.integration.group_rows import GroupRows
from pymc_sgmcmc.integration.moments import DENSITIES_PER_CALL
from pymc_sgmcmc.integration.quadrature_points import EQUALLY_SPACED, scan


def middles_and_factors(
    density: GroupDensity,
    point: PointType,
    index: np.ndarray,
    modes: np.ndarray,
    factors: np.ndarray,
    rows: GroupRows,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the middles of ranges, shape (m, k), and factors with which points cover them.

    The shapes are those of `pymc_sgmcmc.integration.moments.means_and_factors`. Ranges are sought
    along the axes of the factors around the modes, as far as `scan` reaches, and once more within
    what is found where the scan is coarse. What is below the density of a normal distribution at
    the largest node is left out.
    """
    k = modes.shape[1]
    middles, own = np.empty_like(modes), np.empty_like(factors)
    x = scan(k).x
    reach, spacing = x.max(), np.diff(np.unique(x))[0] / x.max()
    _, largest = EQUALLY_SPACED[k]

    def find(block: slice) -> None:
        axes = factors[block]
        middle, half = np.zeros_like(modes[block]), np.full_like(modes[block], reach)
        for _ in range(1 if k == 1 else 2):
            at = middle + half * x[:, None] / reach
            a = modes[block] + np.einsum("gij,sgj->sgi", axes, at)
            h = np.nan_to_num(density.at_points(point, index[block], a, rows), nan=-np.inf)
            matters = (h > h.max(axis=0) - largest**2 / 2)[:, :, None]
            first = np.where(matters, at, np.inf).min(axis=0) - spacing * half
            last = np.where(matters, at, -np.inf).max(axis=0) + spacing * half
            with np.errstate(invalid="ignore"):  # without density anywhere, the range is empty
                middle, half = (first + last) / 2, (last - first) / 2
        middles[block] = modes[block] + np.einsum("gij,gj->gi", axes, middle)
        own[block] = axes * half[:, None] / largest

    find(slice(0, 1))  # compiled before there are threads
    density.map(find, rows.blocks(index, DENSITIES_PER_CALL // len(x)))
    return middles, own
