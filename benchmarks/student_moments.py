"""Moments of a density of few variables, by importance sampling around its mode."""

from collections.abc import Callable

import numpy as np
from scipy import optimize, special, stats


def mode_and_covariance(
    log_density: Callable[[np.ndarray], float], start: np.ndarray, sizes: np.ndarray | float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mode and the inverse of minus the Hessian there, by finite differences.

    ``sizes`` are of the variables: differences are taken over hundredths of them.
    """
    f = log_density
    mode = optimize.minimize(lambda v: -f(v), start, method="BFGS").x
    steps = 1e-2 * sizes * np.eye(len(mode))
    hessian = np.array([[f(mode + a + b) - f(mode + a - b) - f(mode - a + b) + f(mode - a - b)
                         for b in steps] for a in steps])  # fmt: skip
    widths = 2 * np.diag(steps)
    return mode, np.linalg.inv(-hessian / np.outer(widths, widths))


def student_draws(
    log_density: Callable[[np.ndarray], float],
    mode: np.ndarray,
    covariance: np.ndarray,
    df: float,
    pairs: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return draws of a Student density, in pairs around the mode, and their weights."""
    proposal = stats.multivariate_t(mode, covariance, df=df, seed=1)
    half = proposal.rvs(pairs)
    draws = np.concatenate([half, 2 * mode - half])
    log_p = np.array([log_density(v) for v in draws])
    return draws, special.softmax(log_p - proposal.logpdf(draws))
