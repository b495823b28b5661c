"""The start of the warm-up: near the posterior's mode, or, with scale parameters, in its bulk."""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from pymc.exceptions import SamplingError

from pymc_sgmcmc.adaptation.curvature import Factor
from pymc_sgmcmc.adaptation.normal_approximation import spread_with_density
from pymc_sgmcmc.adaptation.objective import Evaluated, Objective
from pymc_sgmcmc.gradients.whole_gradients import FAR

MAX_STEPS = 50
MEMORY = 10
"""Number of previous steps whose changes of the gradient correct the curvature."""
SUFFICIENT_DECREASE = 1e-4
SHORTER, MOST_CUTS = (0.1, 0.5), 20
"""Smallest and largest factor by which a step that does not descend is cut, and most cuts."""
CHANGED = 5.0
"""Factor by which the curvature may be off along a step before it is evaluated again; it is also
evaluated again after a step was cut to less than a half."""
FIRST_DAMPING, MORE_DAMPING, LESS_DAMPING = 1e-3, 8.0, 0.1
LARGEST_MOVE = 1.0
"""Largest move of a scale parameter in a step, on its logarithmic scale."""
FOLLOWING = 2.0
"""Largest move of the other parameters along with it, as the root mean square in their standard
deviations: they are found again anyway, and farther away there may be another mode."""
STILL = 0.2
"""Largest move of the scale parameters, in each of two rounds, with which they count as found."""
MAX_ROUNDS, STEPS_OF_OTHERS = 20, 5
SLACK = 0.1
"""Curvature added to that of scale parameters, which a prior may leave without any."""
MOST_CUTS_OF_SCALES, CUT_OF_SCALES = 4, 0.25
"""Largest number of cuts of a step of scales in a round, and the factor of each cut."""
LARGEST_TO_DIFFERENCE = 10
"""Largest number of scale parameters whose curvature is taken from differences of gradients."""
PAIRS = 2
"""Number of antithetic pairs of points over which the gradient of the scales is averaged."""
GROWTH = 8
"""Factor by which the sample of rows grows."""
AGREED = 0.5
"""Move, on their logarithmic scale, below which scale parameters hardly depend on the sample of
rows: its effect on them falls as 1 / n, so a seventh of the last move remains."""
MAX_STARTS, LARGEST_TO_RESTART = 4, 50
"""Largest number of starting points tried until the best mode has been reached twice, and the
number of parameters above which only one is tried."""
SAME = 1.0
"""Largest difference in height of what counts as the same mode."""
ALIKE = 1e-6
"""Largest difference of elements that are alike."""


def newton(
    objective: Objective,
    theta: np.ndarray,
    free: np.ndarray,
    tolerance: float,
    *,
    max_steps: int = MAX_STEPS,
) -> np.ndarray:
    """Minimise by Fisher scoring, corrected by recent changes of the gradient, with a line search.

    The empirical Fisher information is far from the curvature where residuals are far from what the
    model expects. So it is only the first matrix of the quasi-Newton method L-BFGS (Nocedal and
    Wright 2006, Numerical Optimization, algorithm 7.4), which needs no further gradients.

    Only the ``free`` coordinates move. The search ends when twice the decrease per coordinate, both
    that expected, g' H^-1 g / d, and that of the last step, is below ``tolerance``, and never above
    where it began.
    """
    moved = np.flatnonzero(free)
    if not moved.size:
        return theta
    here = objective.at(theta, with_curvature=True)
    if not np.isfinite(here.value):
        return theta
    changes: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=MEMORY)
    damping, factor, gained = FIRST_DAMPING, None, np.inf
    for _ in range(max_steps):
        if factor is None:
            matrix = here.curvature()[np.ix_(moved, moved)]
            if not np.isfinite(matrix).all():
                break
            factor = Factor(matrix, damping)
        whole = np.zeros_like(theta)
        whole[moved] = -_inverse_times(here.gradient[moved], factor, changes)
        decrement = -(here.gradient @ whole)
        # The first matrix alone does not show how much lower the minimum is.
        if max(decrement, 2 * gained) < tolerance * moved.size:
            break
        share = 1.0
        for _ in range(MOST_CUTS):
            step = share * whole
            there = objective.at(theta + step)
            if there.value <= here.value - SUFFICIENT_DECREASE * share * decrement:
                break
            share *= _shorter(there.value - here.value, share * decrement)
        else:
            break
        change = there.gradient - here.gradient
        curvature = step @ change
        if curvature > 0:
            changes.append((step[moved], change[moved]))
        gained = here.value - there.value
        theta, here = theta + step, there
        expected, was_cut = share**2 * decrement, share < max(SHORTER)
        if was_cut or not expected / CHANGED < curvature < CHANGED * expected:
            factor = None
        damping *= MORE_DAMPING if was_cut else LESS_DAMPING
    return theta


def _shorter(rise: float, slope: float) -> float:
    """Return the share of a step that did not descend at which a parabola is lowest."""
    lowest = slope / (2 * (rise + slope)) if np.isfinite(rise) else 0.0
    return float(np.clip(lowest, *SHORTER))


def _inverse_times(
    gradient: np.ndarray, factor: Factor, changes: deque[tuple[np.ndarray, np.ndarray]]
) -> np.ndarray:
    """Return the corrected inverse curvature times a gradient."""
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


class Centre:
    """A mode of all parameters except scales, with a normal approximation of these others."""

    def __init__(self, objective: Objective, theta: np.ndarray, is_scale: np.ndarray):
        self.objective, self.theta = objective, theta
        self.scales, self.others = np.flatnonzero(is_scale), np.flatnonzero(~is_scale)
        self.local = objective.at(theta, with_curvature=True)
        self.height = np.inf
        """-log of the marginal posterior of the scales, by Laplace's approximation."""
        self.matrix = self.local.curvature()
        if np.isfinite(self.local.value) and np.isfinite(self.matrix).all():
            self.factor = Factor(self.matrix[np.ix_(self.others, self.others)])
            self.height = self.local.value + self.factor.log_determinant / 2

    def step(self, rng: np.random.Generator, differences: bool) -> np.ndarray:
        """Return Newton's step from gradients averaged over antithetic draws of the others.

        The curvature of scales may be taken from differences of these gradients.
        """
        shifts = np.zeros((PAIRS, len(self.theta)))
        for shift, z in zip(shifts, rng.standard_normal((PAIRS, self.others.size)), strict=True):
            shift[self.others] = self.factor.root_times(z)
        shifts = np.concatenate([shifts, -shifts])
        spread, seen = spread_with_density(self.objective, self.theta, shifts, self.local.value)
        matrix = self.matrix.copy()
        if differences and self.scales.size <= LARGEST_TO_DIFFERENCE:
            pair = slice(None, None, PAIRS)
            for k in self.scales:
                move = FAR / np.sqrt(max(matrix[k, k], 1.0)) * (np.arange(len(self.theta)) == k)
                moved = [self.objective.at(self.theta + spread * s + move) for s in shifts[pair]]
                column = (_mean_gradient(moved) - _mean_gradient(seen[pair])) / move[k]
                if np.isfinite(column).all():
                    matrix[k], matrix[:, k] = column, column
        matrix[self.scales, self.scales] += SLACK
        step = -Factor(matrix).solve(_mean_gradient(seen))
        step /= max(1.0, np.abs(step[self.scales]).max() / LARGEST_MOVE)
        of_others = step[self.others]
        away = of_others @ self.matrix[np.ix_(self.others, self.others)] @ of_others
        step[self.others] /= max(1.0, np.sqrt(max(away, 0.0) / max(1, len(of_others))) / FOLLOWING)
        return step


def _mean_gradient(seen: Sequence[Evaluated]) -> np.ndarray:
    return np.mean([local.gradient for local in seen], axis=0)


def start_of_scales(
    objective: Objective,
    theta: np.ndarray,
    is_scale: np.ndarray,
    rng: np.random.Generator,
    differences: bool = False,
) -> np.ndarray:
    """Move scale parameters by gradients averaged over a Gaussian around the others' mode.

    The joint mode of a hierarchy may lie at scale 0, far from the posterior's bulk; the averaged
    gradient is about that of the marginal posterior of the scales. In terms of the latter, the
    result is never above where it began, a mode of the other parameters. With ``differences``, if
    that may be far, the curvature of few scales is taken from differences of gradients.
    """
    best = centre = Centre(objective, theta, is_scale)
    if not np.isfinite(centre.height):
        return theta
    calm = 0
    for _ in range(MAX_ROUNDS):
        step = centre.step(rng, differences)
        for _ in range(MOST_CUTS_OF_SCALES):
            there = centre.theta + step
            there = newton(objective, there, ~is_scale, 0.1, max_steps=STEPS_OF_OTHERS)
            found = Centre(objective, there, is_scale)
            if found.height < best.height + SAME:
                break
            step = step * CUT_OF_SCALES
        else:
            break
        moved = np.abs(found.theta - centre.theta)[is_scale].max()
        centre = found
        if centre.height < best.height:
            best = centre
        calm = calm + 1 if moved < STILL else 0
        if calm == 2:
            break
    return best.theta


def find_start(
    objective_of: Callable[[int], Objective],
    n_rows: int,
    n_first: int,
    theta: np.ndarray,
    is_scale: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Find where the warm-up starts, from any point with a density.

    The first steps use ``n_first`` of the rows, the next ones use more, so that few steps take all.
    If a hierarchy has few rows for each group, the groups seem to differ more than they do, so
    scale parameters are found again on more rows until they stay the same. ``objective_of`` returns
    the objective of so many rows, or of all.
    """
    others = ~is_scale
    n = n_first
    objective = objective_of(n)
    theta = _best_of_starts(objective, theta, is_scale, rng)
    while not is_scale.any() and GROWTH * n < n_rows:
        n *= GROWTH
        theta = newton(objective_of(n), theta, others, 0.2)
    moved = np.inf
    while is_scale.any() and n < n_rows and moved > AGREED:
        n = min(GROWTH * n, n_rows)
        objective, before = objective_of(n), theta
        theta = newton(objective, theta, others, 0.1)
        theta = start_of_scales(objective, theta, is_scale, rng)
        moved = np.abs(theta - before)[is_scale].max()
    if n < n_rows:
        objective = objective_of(n_rows)
    return newton(objective, theta, others, 0.05)


def _best_of_starts(
    objective: Objective, theta: np.ndarray, is_scale: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Climb from the given point and from some around it, because there may be several modes."""
    modes, ends, heights = [], [], []
    for k in range(MAX_STARTS if len(theta) <= LARGEST_TO_RESTART else 1):
        begin = theta + (k > 0) * rng.uniform(-1, 1, len(theta))
        if k > 0 and not np.isfinite(objective.at(begin).value):
            continue
        end = newton(objective, begin, ~is_scale, 0.1)
        modes.append(end)
        if is_scale.any():
            end = start_of_scales(objective, end, is_scale, rng, differences=True)
        ends.append(end)
        heights.append(Centre(objective, end, is_scale).height)
        if np.count_nonzero(np.array(heights) < min(heights) + SAME) > 1:
            break
    best = ends[int(np.argmax(np.array(heights) < min(heights) + SAME))]
    _refuse_alike(objective, theta, modes[0], best, is_scale)
    return best


def _refuse_alike(
    objective: Objective,
    begin: np.ndarray,
    mode: np.ndarray,
    best: np.ndarray,
    held: np.ndarray,
) -> None:
    """Raise an error for elements that begin alike and stay so by their gradients, but differ.

    Which element is which would be decided by chance.
    """
    g = objective.gradients
    for v, part in zip(g.source.vars, g.parts, strict=True):
        if part.stop - part.start < 2 or held[part].any():
            continue
        apart = [np.ptp(theta[part]) for theta in (begin, mode, best)]
        if max(apart[:2]) < ALIKE < apart[2]:
            raise SamplingError(
                f"The warm-up found no start: the elements of '{v.name}' begin alike, and their "
                "gradients keep them so, but the log posterior is higher where they differ. Give "
                "them different values of initval=, such as random ones for loadings of factors; "
                "the components of a mixture also need an order "
                "(transform=pm.distributions.transforms.ordered)."
            )
