r"""Stein identities of degree 2: what holds for the posterior's own draws and no others.

With g the gradient of the log posterior with respect to z, and m the mean of z::

    E[g_i] = 0      E[-(z_i - m_i) g_i] = 1      E[-(z_i - m_i) g_j] = 0  for i != j

Integration by parts; g may be any unbiased estimate whose noise does not depend on how z was drawn.
In coordinates where the posterior's standard deviations are about 1, E[g_i] is about the error
of the mean, in standard deviations, and the square root of the second (the virial) is about the
ratio of the standard deviation to the right one.

Srinivasan et al. (2024), The polynomial Stein discrepancy for assessing moment convergence,
arXiv 2412.05135.
"""

from typing import NamedTuple

import numpy as np

TOP = 5
"""Directions of the off-diagonals: those with the largest gradients,"""
BLOCKS = 10
"""Blocks of each chain, at most: as many as have an effective sample size of 10."""
ESS_PER_BLOCK = 10


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
    """Its mean over all directions, a number: sees what is too small to see along each."""
    cross: Estimate
    """E[-(z_i - m_i) g_j], the mean of both orders, of the pairs."""
    pairs: np.ndarray
    """Numbers i, j of the directions, shape (pairs, 2)."""


def stein_identities(z: np.ndarray, g: np.ndarray, blocks: int) -> SteinIdentities:
    """Estimate the identities' expectations.

    Parameters
    ----------
    z, g : arrays, shape (chains, draws, d)
        Draws less their mean, and gradients there.
    blocks : int
        Of each chain.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_sgmcmc.diagnosis.stein import stein_identities
    >>> z = np.random.default_rng(1).normal(size=(4, 1000, 2))
    >>> right = stein_identities(z, -z, blocks=10)
    >>> right.virial.mean.round(1).tolist()
    [1.0, 1.0]
    >>> too_wide = stein_identities(1.5 * z, -1.5 * z, blocks=10)
    >>> np.sqrt(too_wide.virial.mean).round(1).tolist()
    [1.5, 1.5]
    """
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
    """Mean of draws, shape (chains, draws, ...), with the standard error from blocks' means."""
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
    """Blocks of each chain: the fewer, the more its draws depend on each other."""
    return int(np.clip(np.nan_to_num(ess) / (chains * ESS_PER_BLOCK), 2, BLOCKS))


def chain_correlation(draws: np.ndarray) -> tuple[float, float]:
    """Correlation of different chains' draws of the same number, with its standard error.

    The mean over all pairs of chains and all elements; 0 if chains are independent.

    Parameters
    ----------
    draws : array, shape (chains, draws, d)
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
