"""Where the warm-up starts: near the posterior's mode, or, with scale parameters, its bulk."""

from collections import deque
from collections.abc import Callable

import numpy as np
from pymc.exceptions import SamplingError

from pymc_sgmcmc.adaptation.curvature import Factor
from pymc_sgmcmc.adaptation.normal_approximation import spread_with_density
from pymc_sgmcmc.adaptation.objective import Evaluated, Objective

MAX_STEPS = 50
MEMORY = 10
"""Last steps whose changes of the gradient correct the curvature."""
SUFFICIENT_DECREASE = 1e-4
SHORTER, MOST_CUTS = 0.25, 20
"""Factor by which a step that does not descend is cut, and how often."""
CHANGED = 5.0
"""The curvature is evaluated anew where it was off by this factor along a step, or one was cut."""
FIRST_DAMPING, MORE_DAMPING, LESS_DAMPING = 1e-3, 8.0, 0.1
LARGEST_MOVE = 1.0
"""Of a scale parameter in a step, on its logarithmic scale."""
STILL = 0.2
"""Scale parameters are found where they move by less in two rounds."""
MAX_ROUNDS, STEPS_OF_SCALES, STEPS_OF_OTHERS = 20, 3, 5
PAIRS = 2
"""Antithetic pairs of points over which the gradient of the scales is averaged."""
GROWTH = 8
"""Of the sample of rows."""
AGREED = 0.5
"""Scale parameters hardly depend on it if they move by less than this on their logarithmic scale:
what the sample adds to them falls as 1 / n, so a seventh of the last move is left."""
MAX_STARTS, LARGEST_TO_RESTART = 4, 100
"""Points to begin at, until the best has been reached twice; with more parameters only one."""
SAME = 1.0
"""Difference of heights up to which it is the same."""
ALIKE = 1e-6
"""Largest difference of elements that are alike."""


def newton(
    objective: Objective,
    theta: np.ndarray,
    free: np.ndarray,
    tolerance: float,
    *,
    max_steps: int = MAX_STEPS,
    limited: np.ndarray | None = None,
    curvature_of: Objective | None = None,
) -> np.ndarray:
    """Minimise by Fisher scoring that the last changes of the gradient correct, with a line search.

    The empirical Fisher information is far from the curvature where residuals are far from what the
    model expects. So it is only the first matrix of the quasi-Newton method L-BFGS (Nocedal and
    Wright 2006, Numerical Optimization, algorithm 7.4), which needs no further gradients.

    Parameters
    ----------
    objective : Objective
    theta : array, shape (d,)
        Where to begin.
    free : array of bool, shape (d,)
        The coordinates to move.
    tolerance : float
        Ends where twice the expected decrease per coordinate, g' H^-1 g / d, is smaller.
    max_steps : int
    limited : array of bool, shape (d,), optional
        Coordinates that move by `LARGEST_MOVE` in a step at most.
    curvature_of : Objective, optional
        Of fewer rows: its curvature is used as long as it describes the objective's.

    Returns
    -------
    array, shape (d,)
        Never above where it began.
    """
    moved = np.flatnonzero(free)
    if not moved.size:
        return theta
    here = objective.at(theta, with_curvature=curvature_of is None)
    near = here if curvature_of is None else curvature_of.at(theta, with_curvature=True)
    changes: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=MEMORY)
    damping, factor = FIRST_DAMPING, None
    for _ in range(max_steps):
        if factor is None:
            factor = Factor(near.curvature()[np.ix_(moved, moved)], damping)
        whole = np.zeros_like(theta)
        whole[moved] = -_inverse_times(here.gradient[moved], factor, changes)
        decrement = -(here.gradient @ whole)
        # The first matrix alone does not say how much lower the minimum is.
        if changes and decrement < tolerance * moved.size:
            break
        share = 1.0
        if limited is not None:
            share /= max(1.0, np.abs(whole[limited]).max(initial=0.0) / LARGEST_MOVE)
        for cuts in range(MOST_CUTS):
            step = share * whole
            there = objective.at(theta + step)
            if there.value <= here.value - SUFFICIENT_DECREASE * share * decrement:
                break
            share *= SHORTER
        else:
            break
        change = there.gradient - here.gradient
        curvature = step @ change
        if curvature > 0:
            changes.append((step[moved], change[moved]))
        theta, here = theta + step, there
        expected = share**2 * decrement
        if cuts > 1 or not expected / CHANGED < curvature < CHANGED * expected:
            near, factor = here, None
        damping *= MORE_DAMPING if cuts > 1 else LESS_DAMPING
    return theta


def _inverse_times(
    gradient: np.ndarray, factor: Factor, changes: deque[tuple[np.ndarray, np.ndarray]]
) -> np.ndarray:
    """The corrected inverse curvature times a gradient."""
    vector, along = gradient, []
    for step, change in reversed(changes):
        along.append(step @ vector / (step @ change))
        vector = vector - along[-1] * change
    product = factor.solve(vector)
    if changes:
        step, change = changes[-1]
        product = product * (step @ change / (change @ factor.solve(change)))
    for (step, change), a in zip(changes, reversed(along), strict=True):
        product = product + step * (a - change @ product / (step @ change))
    return product


class AveragedObjective:
    """Mean of an objective over some shifts, with its curvature at the centre.

    Parameters
    ----------
    objective : Objective
    centre : Evaluated
    shifts : array, shape (points, d)
    """

    def __init__(self, objective: Objective, centre: Evaluated, shifts: np.ndarray):
        self.objective, self.centre, self.shifts = objective, centre, shifts
        self.size, self.gradients = objective.size, objective.gradients

    @property
    def passes(self) -> float:
        return self.objective.passes

    def at(self, theta, with_curvature=False):
        seen = [self.objective.at(theta + shift) for shift in self.shifts]
        return Evaluated(
            float(np.mean([local.value for local in seen])),
            np.mean([local.gradient for local in seen], axis=0),
            np.mean([local.likelihood_gradient for local in seen], axis=0),
            self.centre.curvature,
        )


def start_of_scales(
    objective: Objective, theta: np.ndarray, is_scale: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Move scale parameters by gradients averaged over a Gaussian around the others' mode.

    The joint mode of a hierarchy may lie at scale 0, far from the posterior's bulk; the averaged
    gradient is about that of the marginal posterior of the scales. A round is one of the EM
    algorithm, with a normal approximation in place of the others' posterior.

    Parameters
    ----------
    objective : Objective
    theta : array, shape (d,)
        At a mode of the other parameters.
    is_scale : array of bool, shape (d,)
    rng : numpy.random.Generator

    Returns
    -------
    array, shape (d,)
        Of all rounds' ends that of the smallest `height`.
    """
    others = np.flatnonzero(~is_scale)
    best, lowest, calm = theta, np.inf, 0
    for _ in range(MAX_ROUNDS):
        centre = objective.at(theta, with_curvature=True)
        factor = Factor(centre.curvature()[np.ix_(others, others)])
        if (height := _height(centre, factor)) < lowest:
            best, lowest = theta, height
        if calm == 2:
            break
        shifts = np.zeros((PAIRS, len(theta)))
        for shift, z in zip(shifts, rng.standard_normal((PAIRS, others.size)), strict=True):
            shift[others] = factor.root_times(z)
        shifts = np.concatenate([shifts, -shifts])
        shifts *= spread_with_density(objective, theta, shifts, centre.value)
        before, everything = theta, np.ones(len(theta), dtype=bool)
        theta = newton(
            AveragedObjective(objective, centre, np.unique(shifts, axis=0)),
            theta,
            everything,
            0.1,
            max_steps=STEPS_OF_SCALES,
            limited=is_scale,
        )
        theta = newton(objective, theta, ~is_scale, 0.1, max_steps=STEPS_OF_OTHERS)
        calm = calm + 1 if np.abs(theta - before)[is_scale].max() < STILL else 0
    return best


def _height(local: Evaluated, factor: Factor) -> float:
    """-log of the marginal posterior of the scales, by Laplace's approximation.

    Parameters
    ----------
    local : Evaluated
        At a mode of the other parameters,
    factor : Factor
        ... whose curvature this is of.
    """
    return local.value + factor.log_determinant / 2


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
    scale parameters are found anew on more rows until they stay where they are.

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
    theta = _best_of_starts(objective, theta, is_scale, rng)
    while not is_scale.any() and GROWTH * n < n_rows:
        n *= GROWTH
        fewer, objective = objective, objective_of(n)
        theta = newton(objective, theta, others, 0.2, curvature_of=fewer)
    moved = np.inf
    while is_scale.any() and n < n_rows and moved > AGREED:
        n = min(GROWTH * n, n_rows)
        objective, before = objective_of(n), theta
        theta = newton(objective, theta, others, 0.1)
        theta = start_of_scales(objective, theta, is_scale, rng)
        moved = np.abs(theta - before)[is_scale].max()
    fewer = objective
    if n < n_rows:
        objective = objective_of(n_rows)
    return newton(objective, theta, others, 0.05, curvature_of=fewer)


def _best_of_starts(
    objective: Objective, theta: np.ndarray, is_scale: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Climb from the given point and from some around it, for there may be several modes."""
    modes, ends, heights = [], [], []
    for k in range(MAX_STARTS if len(theta) <= LARGEST_TO_RESTART else 1):
        begin = theta + (k > 0) * rng.uniform(-1, 1, len(theta))
        if k > 0 and not np.isfinite(objective.at(begin).value):
            continue
        end = newton(objective, begin, ~is_scale, 0.1)
        modes.append(end)
        if is_scale.any():
            end = start_of_scales(objective, end, is_scale, rng)
        local = objective.at(end, with_curvature=True)
        factor = Factor(local.curvature()[np.ix_(~is_scale, ~is_scale)])
        ends.append(end)
        heights.append(_height(local, factor))
        if np.count_nonzero(np.array(heights) < min(heights) + SAME) > 1:
            break
    best = ends[int(np.argmax(np.array(heights) < min(heights) + SAME))]
    _refuse_alike(objective, theta, modes[0], best)
    return best


def _refuse_alike(
    objective: Objective, begin: np.ndarray, mode: np.ndarray, best: np.ndarray
) -> None:
    """Raise an error for elements that begin alike, and stay so by their gradients, but differ.

    Which of them is which would be chance.
    """
    g = objective.gradients
    for v, part in zip(g.source.vars, g.parts, strict=True):
        if part.stop - part.start < 2:
            continue
        apart = [np.ptp(theta[part]) for theta in (begin, mode, best)]
        if max(apart[:2]) < ALIKE < apart[2]:
            raise SamplingError(
                f"The warm-up found no start: the elements of '{v.name}' begin alike, and by their "
                "gradients stay so, but the log posterior is higher where they differ. The "
                "components of a mixture need an order "
                "(transform=pm.distributions.transforms.ordered) and different values of initval=."
            )
