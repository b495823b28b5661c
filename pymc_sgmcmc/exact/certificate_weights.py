"""A certificate of draws: exact log densities of a few hundred points, weighted.

Points are drawn from a Student distribution q fitted to the draws, in opposite pairs about its
mean. Their weights p / q, with p the exact posterior density times the evidence, are smoothed by a
generalised Pareto distribution (PSIS), whose shape k-hat shows whether they can be used. If so,
weighted moments are those of the exact posterior. The mean of the weights as they are, without
smoothing, is the evidence.

Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling, Journal of
Machine Learning Research 25(72).
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from arviz_stats.base import array_stats
from scipy.special import gammaln, logsumexp

from pymc_sgmcmc.exact.log_density import LogDensity

PAIRS = 200
"""Number of pairs of points with exact densities, because the tail's fit needs 400 points."""
LARGEST = 150
"""Largest number of parameters: with a covariance estimated from n draws, log weights have a
variance of about d^2 / 2 n, and above 1 they cannot be used. A matrix from the warm-up allows
more."""
LARGEST_K_HAT = 0.7
"""Largest k-hat of usable weights."""
MOST_READS = 3
"""Largest number of times that points are drawn, each time about the last weighted mean: with a
larger k-hat the draws may be off, rather than the posterior far from a Student distribution."""
BLOCKS = 10
"""Number of blocks of each chain's draws, for the standard error of their moments."""
DEGREES = np.array([4, 5, 6, 8, 10, 14, 20, 30, 50, 80, 150, 300, 1000, 10_000])
"""Degrees of freedom from which the likelihood chooses; the last is almost normal."""


class Estimate(NamedTuple):
    """Values with their standard errors."""

    value: np.ndarray
    error: np.ndarray
    degrees: np.ndarray | float = np.inf
    """Degrees of freedom of the errors: few if few terms with large weights contribute most."""

    def minus(self, other: "Estimate") -> "Estimate":
        """Subtract an independent estimate, with the degrees of freedom of Welch (1947)."""
        squares = np.square([self.error, other.error])
        total = squares.sum(axis=0)
        parts = np.square(squares[0]) / self.degrees + np.square(squares[1]) / other.degrees
        degrees = np.square(total) / np.maximum(parts, 1e-300)
        return Estimate(self.value - other.value, np.sqrt(total), degrees)

    def over(self, scale: np.ndarray) -> "Estimate":
        """Divide by a scale, as if it were known."""
        return Estimate(self.value / scale, self.error / scale, self.degrees)


class Certificate(NamedTuple):
    """The results of the exact densities."""

    points: np.ndarray
    """Points theta, shape (n, d)."""
    log_weights: np.ndarray
    """Smoothed and normalised log weights, shape (n,)."""
    k_hat: float
    log_marginal_likelihood: Estimate
    mean: Estimate
    """Mean of the draws minus that of the posterior, in the posterior's standard deviations, along
    each direction of z, shape (d,)."""
    sd: Estimate
    """Standard deviation of the draws relative to that of the posterior."""
    degrees: float
    """Degrees of freedom of the fitted distribution."""


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
        """Fit to draws of shape (n, d), which are worth ``ess`` independent ones.

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
        # For the covariance, whose scale matrix is smaller by (v - 2) / v.
        each += d / 2 * np.log(DEGREES / (DEGREES - 2))
        degrees = float(DEGREES[np.argmax(each)])
        return cls(mean, root * np.sqrt((degrees - 2) / degrees), degrees)

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw n pairs of points, the two of each opposite about the mean, shape (2 n, d)."""
        x = rng.standard_normal((n, len(self.mean)))
        x /= np.sqrt(rng.chisquare(self.degrees, size=(n, 1)) / self.degrees)
        return self.mean + np.stack([x, -x], axis=1).reshape(2 * n, -1) @ self.root.T

    def squares_less_variance(self, points: np.ndarray) -> np.ndarray:
        """Return squared distances from the mean along each axis, minus their expectation."""
        variance = np.square(self.root).sum(axis=1) * self.degrees / (self.degrees - 2)
        return np.square(points - self.mean) - variance

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return the log density at points of shape (n, d)."""
        squares = np.square(np.linalg.solve(self.root, (points - self.mean).T)).sum(axis=0)
        log_determinant = np.log(np.diag(self.root)).sum()
        return _log_density(squares, self.degrees, len(self.mean)) - log_determinant


def _log_density(squares: np.ndarray, v: float, d: int) -> np.ndarray:
    """Return the log density of a standard distribution with v degrees of freedom, from squares."""
    constant = gammaln((v + d) / 2) - gammaln(v / 2) - d / 2 * np.log(v * np.pi)
    return constant - (v + d) / 2 * np.log1p(squares / v)


def certify(
    density: LogDensity,
    draws: np.ndarray,
    matrix: np.ndarray,
    rng: np.random.Generator,
) -> Certificate:
    """Weight points distributed like the draws, (chains, draws, d), by their exact densities.

    ``matrix`` is L of coordinates z, theta = c + L z, with standard deviations of about 1.
    """
    centre, d = draws.mean(axis=(0, 1)), draws.shape[2]
    z = np.linalg.solve(matrix, (draws - centre).reshape(-1, d).T).T
    plain_mean, plain_sd = moments_of_draws(z.reshape(draws.shape))
    ess = 1 / np.mean(np.square(plain_mean.error / plain_sd.value))
    # Variances of long tails have larger errors than points that miss these tails can show.
    fourth = np.mean((z - plain_mean.value) ** 4, axis=0)
    excess = np.maximum(fourth / plain_sd.value**4 - 3, 0.0)
    student, log_determinant = Student.of(z, ess), np.linalg.slogdet(matrix)[1]
    tried: list[Certificate] = []
    while len(tried) < MOST_READS and not (tried and tried[-1].k_hat < LARGEST_K_HAT):
        drawn = student.draw(PAIRS, rng)
        points = centre + drawn @ matrix.T
        log_q = student.log_density(drawn) - log_determinant
        log_ratio = density(points) - log_q
        finite = np.isfinite(log_ratio)
        if not finite.any():
            raise ValueError("no point near the draws has a finite density")
        log_ratio[~finite] = log_ratio[finite].min() - 700  # practically no weight
        log_weights, k_hat = array_stats.psislw(-log_ratio)  # takes log(q / p)
        mean, sd = weighted_moments(drawn, log_weights, student.squares_less_variance(drawn))
        unseen = sd.value * np.sqrt(excess / effective_number(log_weights)) / 2
        sd = sd._replace(error=np.hypot(sd.error, unseen))
        longer = plain_sd.minus(sd).over(sd.value)
        tried.append(
            Certificate(
                points,
                log_weights,
                float(k_hat) if np.isfinite(k_hat) else np.inf,  # one weight dominates
                _log_mean(log_ratio),
                plain_mean.minus(mean).over(sd.value),
                longer._replace(value=1 + longer.value),
                student.degrees,
            )
        )
        student = replace(student, mean=mean.value)
    return min(tried, key=lambda one: one.k_hat)


def weighted_moments(
    values: np.ndarray, log_weights: np.ndarray, control: np.ndarray | float = 0.0
) -> tuple[Estimate, Estimate]:
    """Return mean and standard deviation of weighted values in pairs, shape (n, k), with errors.

    ``control`` is a variate of mean 0 for each value, whose use reduces the noise of variances.
    """
    w = np.exp(log_weights - logsumexp(log_weights))[:, None]
    mean = (w * values).sum(axis=0)
    squares = np.square(values - mean)
    variance = (w * squares).sum(axis=0) / max(1 - np.square(w).sum(), 1e-12)
    terms, control = w * (squares - variance), np.broadcast_to(control, values.shape) / len(w)
    slope = (terms * control).sum(axis=0) / np.maximum(np.square(control).sum(axis=0), 1e-300)
    terms, variance = terms - slope * control, variance - slope * control.sum(axis=0)
    sd = np.sqrt(np.maximum(variance, 1e-300))
    return Estimate(mean, *_error(w * (values - mean))), Estimate(sd, *_error(terms / (2 * sd)))


def effective_number(log_weights: np.ndarray) -> float:
    """Return the number of equally weighted points to which these are equivalent."""
    return float(np.exp(2 * logsumexp(log_weights) - logsumexp(2 * log_weights)))


def _error(terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the standard error of a sum of paired terms with mean about 0, shape (n, k).

    Its degrees of freedom are those of a variance with the same relative error.
    """
    squares = np.square(terms.reshape(-1, 2, terms.shape[1]).sum(axis=1))
    total = np.maximum(squares.sum(axis=0), 1e-300)
    spread = np.square(squares / total).sum(axis=0) - 1 / len(squares)
    return np.sqrt(total), 2 / np.maximum(spread, 2 / len(squares))


def _log_mean(log_ratio: np.ndarray) -> Estimate:
    """Return the log of the mean weight, and its error by the delta method."""
    log_mean = logsumexp(log_ratio) - np.log(len(log_ratio))
    relative = np.exp(log_ratio - log_mean).reshape(-1, 2).mean(axis=1)
    error = relative.std(ddof=1) / np.sqrt(len(relative))
    return Estimate(np.asarray(log_mean), error)


def moments_of_draws(draws: np.ndarray) -> tuple[Estimate, Estimate]:
    """Return mean and standard deviation of draws, with errors from blocks of each chain."""
    mean = draws.mean(axis=(0, 1))
    squares = np.square(draws - mean)
    sd = np.sqrt(squares.mean(axis=(0, 1)))

    def error(values: np.ndarray) -> tuple[np.ndarray, int]:
        blocks = np.array_split(values, min(BLOCKS, values.shape[1]), axis=1)
        means = np.concatenate([block.mean(axis=1) for block in blocks])
        return means.std(axis=0, ddof=1) / np.sqrt(len(means)), len(means) - 1

    error_of_squares, degrees = error(squares)
    return Estimate(mean, *error(draws)), Estimate(sd, error_of_squares / (2 * sd), degrees)
