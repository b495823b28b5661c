"""A Student distribution fitted to draws: a proposal from which densities can be weighted."""

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

DEGREES = np.array([4, 5, 6, 8, 10, 14, 20, 30, 50, 80, 150, 300, 1000, 10_000])
"""Degrees of freedom among which the likelihood chooses; the last is a normal distribution."""


@dataclass(frozen=True)
class Student:
    """A multivariate Student distribution."""

    mean: np.ndarray
    root: np.ndarray
    """Lower triangular root of the scale matrix."""
    degrees: float
    """Degrees of freedom."""

    @classmethod
    def of(cls, draws: np.ndarray, ess: float) -> "Student":
        """Fit to draws of shape (n, d), which tell as much as ``ess`` independent ones.

        The covariance is shrunk towards a multiple of the identity (Ledoit and Wolf 2004).
        """
        n, d = draws.shape
        mean = draws.mean(axis=0)
        away = draws - mean
        covariance = away.T @ away / n
        target = np.trace(covariance) / d * np.eye(d)
        distance = np.square(covariance - target).sum()
        noise = np.mean(np.square(np.square(away).sum(axis=1))) - np.square(covariance).sum()
        share = min(1.0, noise / ess / distance) if distance > 0 else 1.0
        covariance = share * target + (1 - share) * covariance
        root = np.linalg.cholesky(covariance)
        squares = np.square(np.linalg.solve(root, away.T)).sum(axis=0)
        each = [_log_density(squares * v / (v - 2), v, d).mean() for v in DEGREES]
        # of the covariance, whose scale matrix is smaller by (v - 2) / v
        each += d / 2 * np.log(DEGREES / (DEGREES - 2))
        degrees = float(DEGREES[np.argmax(each)])
        return cls(mean, root * np.sqrt((degrees - 2) / degrees), degrees)

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw n pairs of points, the two of each opposite about the mean, shape (2 n, d)."""
        x = rng.standard_normal((n, len(self.mean)))
        x /= np.sqrt(rng.chisquare(self.degrees, size=(n, 1)) / self.degrees)
        return self.mean + np.stack([x, -x], axis=1).reshape(2 * n, -1) @ self.root.T

    def squares_less_variance(self, points: np.ndarray) -> np.ndarray:
        """Squared distances from the mean along each axis, less what they are on average."""
        variance = np.square(self.root).sum(axis=1) * self.degrees / (self.degrees - 2)
        return np.square(points - self.mean) - variance

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Log density at points of shape (n, d)."""
        squares = np.square(np.linalg.solve(self.root, (points - self.mean).T)).sum(axis=0)
        log_determinant = np.log(np.diag(self.root)).sum()
        return _log_density(squares, self.degrees, len(self.mean)) - log_determinant


def _log_density(squares: np.ndarray, v: float, d: int) -> np.ndarray:
    """Log density of a standard distribution with v degrees of freedom, by squared norms."""
    constant = gammaln((v + d) / 2) - gammaln(v / 2) - d / 2 * np.log(v * np.pi)
    return constant - (v + d) / 2 * np.log1p(squares / v)
