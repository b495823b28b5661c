r"""The Fisher information of a model with latent variables, from gradients of batches.

The gradient of a batch, given one draw of its rows' latent variables, is g = s + e: s is the sum of
the rows' scores times N / n (Fisher's identity), and e has mean 0 given the rows. Two draws for the
same rows have the same s and independent e, so that

    Cov(g1, g2) = Cov(s) = N / n times the empirical Fisher information,
    Cov(g)      = Cov(s) + Cov(e), the noise of an update.

The eigenvalues of Cov(g)^-1 Cov(s), here called shares, are 1 where latent variables add nothing.
"""

from typing import NamedTuple

import numpy as np

from pymc_sgmcmc.adaptation.curvature import positive
from pymc_sgmcmc.gradients.metric import root_of_inverse

SMALLEST_SHARE = 0.02
"""Smallest share of the scores in the gradients that the latent variables' noise does not hide."""


class PairedGradients(NamedTuple):
    """Covariances of batches' gradients, from two draws of the latent variables for each batch."""

    within: np.ndarray
    """Covariance of a gradient, shape (d, d)."""
    between: np.ndarray
    """Covariance between the two gradients of a batch, shape (d, d)."""
    n: int
    """Number of batches, less one for each position."""

    @classmethod
    def of(cls, one: np.ndarray, other: np.ndarray) -> "PairedGradients":
        """Compare two gradients of the same batches at one position, shape (batches, d) each."""
        one, other = one - one.mean(axis=0), other - other.mean(axis=0)
        n = len(one) - 1
        cross = one.T @ other
        within = (one.T @ one + other.T @ other) / (2 * n)
        return cls(within, (cross + cross.T) / (2 * n), n)

    def joined(self, more: "PairedGradients") -> "PairedGradients":
        """Average with those of other positions."""
        n = self.n + more.n
        share = more.n / n
        within = self.within + share * (more.within - self.within)
        return PairedGradients(within, self.between + share * (more.between - self.between), n)

    def covariance_of_scores(self) -> np.ndarray:
        """Return Cov(s), made positive, its shares shrunk to their mean (Ledoit and Wolf 2004)."""
        within = positive(self.within)
        root = root_of_inverse(within)
        shares = root.T @ self.between @ root
        d = len(shares)
        mean = np.trace(shares) / d
        spread = np.square(shares - mean * np.eye(d)).sum() / d
        error = (d + 1) * (1 + mean**2) / (2 * self.n)  # of `spread`, by chance
        values, vectors = np.linalg.eigh(shares)
        values = mean + max(0.0, 1 - error / max(spread, 1e-300)) * (values - mean)
        values = np.clip(values, SMALLEST_SHARE, 1.0)
        back = within @ root @ vectors
        return (back * values) @ back.T
