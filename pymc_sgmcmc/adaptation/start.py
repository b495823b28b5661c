"""Where the warm-up starts: near the posterior's mode, or, with scale parameters, its bulk."""

from collections.abc import Callable

import numpy as np

from pymc_sgmcmc.adaptation.curvature import eigen, positive, root_of_inverse
from pymc_sgmcmc.adaptation.objective import Evaluated, Objective

MAX_STEPS = 50
SUFFICIENT_DECREASE = 1e-4
FIRST_DAMPING = 1e-3
GROWTH = 8
"""Of the sample of rows."""
AGREED = 0.5
"""Scale parameters hardly depend on it if they move by less than this on their logarithmic scale:
what the sample adds to them falls as 1 / n, so a seventh of the last move is left."""


def newton(
    objective: Objective,
    theta: np.ndarray,
    free: np.ndarray,
    tolerance: float,
    scoring: bool = False,
    max_steps: int = MAX_STEPS,
) -> np.ndarray:
    """Minimise by damped Newton steps with a line search; eigenvalues are made positive.

    Parameters
    ----------
    objective : Objective
    theta : array, shape (d,)
        Where to begin.
    free : array of bool, shape (d,)
        The coordinates to move.
    tolerance : float
        Ends where twice the expected decrease per coordinate, g' H^-1 g / d, is smaller.
    scoring : bool, default False
        Use the empirical Fisher information, which the gradient's pass gives, as the Hessian.
    max_steps : int

    Returns
    -------
    array, shape (d,)
    """
    moved = np.flatnonzero(free)
    if not moved.size:
        return theta
    here = objective.at(theta)
    damping = FIRST_DAMPING
    for _ in range(max_steps):
        matrix = here.curvature() if scoring else objective.matrix(theta, here)
        scale, values, vectors = eigen(matrix[np.ix_(moved, moved)])
        g = here.gradient[moved]
        along = vectors.T @ (g / scale)
        if np.sum(along**2 / values) < tolerance * moved.size:
            break
        for _ in range(40):
            step = np.zeros_like(theta)
            step[moved] = -(vectors @ (along / (values + damping))) / scale
            there = objective.at(theta + step)
            if there.value <= here.value + SUFFICIENT_DECREASE * (here.gradient @ step):
                break
            damping = max(8 * damping, 1e-6)
        else:
            break
        theta, here, damping = theta + step, there, damping / 10
    return theta


def start_of_scales(
    objective: Objective,
    theta: np.ndarray,
    is_scale: np.ndarray,
    rng: np.random.Generator,
    scoring: bool = False,
    max_rounds: int = 20,
    draws: int = 4,
) -> np.ndarray:
    """Move scale parameters by gradients averaged over a Gaussian around the others' mode.

    The joint mode of a hierarchy may lie at scale 0, far from the posterior's bulk; the averaged
    gradient is about that of the marginal posterior of the scales.

    Parameters
    ----------
    objective : Objective
    theta : array, shape (d,)
        At a mode of the other parameters.
    is_scale : array of bool, shape (d,)
    rng : numpy.random.Generator
    scoring : bool, default False
        As for `newton`.
    max_rounds : int
    draws : int
        Even: antithetic pairs.
    """
    others = np.flatnonzero(~is_scale)
    calm = 0

    def matrix_of(at: np.ndarray, local: Evaluated) -> np.ndarray:
        return local.curvature() if scoring else objective.matrix(at, local)

    for k in range(max_rounds):
        here = positive(matrix_of(theta, objective.at(theta)))
        here += np.diag(1.0 * is_scale)
        gradient, matrix = np.zeros_like(theta), np.zeros((len(theta), len(theta)))
        root = root_of_inverse(here[np.ix_(others, others)]) if others.size else None
        z = rng.standard_normal((draws // 2, others.size))
        n_used = 0
        for e in [*z, *-z]:
            near = theta.copy()
            if root is not None:
                near[others] += root @ e
            local = objective.at(near)
            hessian = matrix_of(near, local) if np.isfinite(local.value) else None
            if hessian is None or not np.isfinite(hessian).all():
                continue
            gradient += local.gradient
            matrix += positive(hessian)
            n_used += 1
        if not n_used:
            break
        step = -np.linalg.solve(matrix / n_used + np.diag(0.1 * is_scale), gradient / n_used)
        largest = np.abs(step[is_scale]).max()
        theta = theta + min(1.0, 1 / max(largest, 1e-12)) * step
        if k < 8:
            theta = newton(objective, theta, ~is_scale, 0.1, scoring, max_steps=5)
        calm = calm + 1 if largest < 0.2 else 0
        if calm == 2:
            break
    return theta


def find_start(
    objective_of: Callable[[int], Objective],
    n_rows: int,
    n_first: int,
    theta: np.ndarray,
    is_scale: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Find where the warm-up starts.

    The first steps are made on some of the rows, the next ones on more, so that few take all. Where
    rows are few for each group of a hierarchy, the groups seem to differ more than they do: so
    scale parameters are looked at again on more rows until they stay where they are.

    Parameters
    ----------
    objective_of : callable
        Number of rows -> `Objective` of so many of them, or of all.
    n_rows, n_first : int
        N, and the rows to begin with.
    theta : array, shape (d,)
        Any point with a density.
    is_scale : array of bool, shape (d,)
        Parameters under a log or logit transform.
    rng : numpy.random.Generator
    """
    others = ~is_scale
    n = n_first
    objective = objective_of(n)
    if not is_scale.any():
        theta = newton(objective, theta, others, 0.1, scoring=True)
    # Where the residuals are large, the rows' gradients say little about the curvature: scoring may
    # end far from the mode.
    theta = newton(objective, theta, others, 0.1)
    if is_scale.any():
        theta = start_of_scales(objective, theta, is_scale, rng)
    while not is_scale.any() and GROWTH * n < n_rows:
        n *= GROWTH
        theta = newton(objective_of(n), theta, others, 0.2, scoring=True)
    moved = np.inf
    while is_scale.any() and n < n_rows and moved > AGREED:
        n = min(GROWTH * n, n_rows)
        objective, before = objective_of(n), theta
        theta = newton(objective, theta, others, 0.1, scoring=True)
        theta = start_of_scales(objective, theta, is_scale, rng, scoring=True)
        moved = np.abs(theta - before)[is_scale].max()
    if n < n_rows:
        objective = objective_of(n_rows)
    return newton(objective, theta, others, 0.05, scoring=True)
