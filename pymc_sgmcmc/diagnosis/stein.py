r"""Stein identities of degree 2, which hold for draws from the posterior and for no others.

With g the gradient of the log posterior with respect to z, and m the mean of z::

    E[g_i] = 0      E[-(z_i - m_i) g_i] = 1      E[-(z_i - m_i) g_j] = 0  for i != j

They follow by integration by parts; g may be any unbiased estimate whose noise does not depend on
how z was drawn. In coordinates where the posterior's standard deviations are about 1, E[g_i] is
about the error of the mean, in standard deviations, and the square root of the second (the virial)
is about the ratio of the standard deviation to the right one.

Srinivasan et al. (2024), The polynomial Stein discrepancy for assessing moment convergence,
arXiv 2412.05135.
"""

from typing import NamedTuple

import numpy as np

TOP = 5
"""Number of directions, those with the largest gradients, whose off-diagonals are estimated."""
BLOCKS = 10
"""Largest number of blocks of each chain, from whose means standard errors are computed."""
ESS_PER_BLOCK = 10
"""Effective sample size of a block for which the means of blocks are nearly independent."""


class Estimate(NamedTuple):
    """Means and their standard errors."""

    mean: np.ndarray
    error: np.ndarray


class SteinIdentities(NamedTuple):
    """Estimates of the three expectations, along d directions."""

    gradient: Estimate
    """E[g_i], shape (d,)."""
    virial: Estimate
    """E[-(z_i - m_i) g_i], shape (d,)."""
    mean_virial: Estimate
    """Mean virial over all directions, which shows errors too small to be seen along each."""
    cross: Estimate
    """E[-(z_i - m_i) g_j] of the pairs, averaged over both orders."""
    pairs: np.ndarray
    """Numbers i, j of the directions, shape (pairs, 2)."""


def stein_identities(z: np.ndarray, g: np.ndarray, blocks: int) -> SteinIdentities:
    """Estimate the expectations from centred draws and their gradients, each (chains, draws, d)."""
    products = -z * g
    top = np.sort(np.argsort(-np.square(g).mean(axis=(0, 1)))[:TOP])
    pairs = np.array([(i, j) for i in top for j in top if i < j], dtype=int).reshape(-1, 2)
    i, j = pairs.T
    cross = -(z[:, :, i] * g[:, :, j] + z[:, :, j] * g[:, :, i]) / 2
    return SteinIdentities(
        block_estimate(g, blocks),
        block_estimate(products, blocks),
        block_estimate(products.mean(axis=2), blocks),
        block_estimate(cross, blocks),
        pairs,
    )


def block_estimate(values: np.ndarray, blocks: int) -> Estimate:
    """Return the mean of draws, shape (chains, draws, ...), with its standard error from blocks."""
    chains, draws = values.shape[:2]
    blocks = min(blocks, draws)
    length = draws // blocks
    cut = values[:, : blocks * length].reshape(chains * blocks, length, *values.shape[2:])
    means = cut.mean(axis=1)
    if len(means) == 1:
        return Estimate(values.mean(axis=(0, 1)), np.full(values.shape[2:], np.inf))
    error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    return Estimate(values.mean(axis=(0, 1)), error)


def blocks_for(ess: float, chains: int) -> int:
    """Return the number of blocks of each chain, smaller the more its draws are correlated."""
    return int(np.clip(np.nan_to_num(ess) / (chains * ESS_PER_BLOCK), 2, BLOCKS))


def chain_correlation(draws: np.ndarray) -> tuple[float, float]:
    """Return the correlation of different chains' draws of the same number, and its standard error.

    It is the mean over all pairs of chains and all elements of draws, shape (chains, draws, d), and
    is 0 if chains are independent.
    """
    chains = len(draws)
    away = draws - draws.mean(axis=1, keepdims=True)
    variance = np.square(away).mean(axis=(0, 1))
    moving = variance > 0
    away = away[:, :, moving] / np.sqrt(variance[moving])
    products = np.square(away.sum(axis=0)) - np.square(away).sum(axis=0)
    each = products.mean(axis=1) / (chains * (chains - 1))
    mean, error = block_estimate(each[None], BLOCKS)
    return float(mean), float(error)
