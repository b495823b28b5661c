"""The number of exact transitions: until starts are forgotten and the draws are enough.

Chains begin at draws of a minibatch run, whose error they lose by a factor of their autocorrelation
in each transition. The first transitions set the step size, by Robbins and Monro's stochastic
approximation: the acceptance is a mean over all chains, so that few are enough.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, log, pi

import numpy as np
from scipy import stats

from pymc_sgmcmc.exact.hamiltonian import Hamiltonian, Points, Transition
from pymc_sgmcmc.run.convergence import convergence

CHAINS = 32
"""Short chains. With more of them each makes fewer transitions, all in larger products of matrices,
but each also makes the first ones, whose draws are dropped."""
TARGET = 0.8
"""Acceptance."""
QUARTER = pi / 2
"""Length of a trajectory after which a normal density's draws are independent,"""
JITTER, MOST_JITTER = 0.2, 0.6
"""... by how much shorter or longer they are, so that none returns to where it began: more where
lengths are for a direction that is slower than others,"""
MOST_SLOWNESS = 10.0
"""... and by how many times that is, at most;"""
MOST_STEPS = 50
"""... and of how many steps."""
STRETCH = 0.25
"""Of a step by which a trajectory may be longer than its steps, which are longer then: it saves
one."""
FIRST_TRANSITIONS = (3, 12)
"""At least and at most, in which the step size is set,"""
GAIN = 1.0
"""... by changes of its logarithm of so much, where all or none are accepted,"""
CLOSE = 0.5
"""... until the acceptance is off by less than this share of that."""
FORGOTTEN = 0.05
"""Share of a start's deviation that may be left."""
ROUND = 4
"""Transitions between looks at the draws, or a quarter of those that were made."""
MOST_TRANSITIONS = 500
ALARM = 0.001
"""Probability that chance alone makes any mean or variance seem to move."""


class NothingExact(Exception):
    """Why there are no exact draws."""


@dataclass(frozen=True)
class Finished:
    """Exact draws; the first axes of all arrays are superchains, their chains, and transitions."""

    theta: np.ndarray
    """Last axis: elements."""
    gradient: np.ndarray
    """Of the log density with respect to z."""
    log_density: np.ndarray
    acceptance: np.ndarray
    energy: np.ndarray
    diverging: np.ndarray
    step_size: np.ndarray
    """Of each transition,"""
    n_steps: np.ndarray
    """... and how many steps it has."""
    transitions: int
    """All that were made, with those that were dropped,"""
    evaluations: int
    """... and gradients of all rows that they took, of all chains together."""
    reason: str
    """Why the draws are not enough, or empty."""


@dataclass
class Made:
    """Transitions with the final step size."""

    each: list[Transition] = field(default_factory=list)
    step_sizes: list[float] = field(default_factory=list)
    n_steps: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.n_steps)

    def theta(self) -> np.ndarray:
        """Shape (C, transitions, d)."""
        return np.stack([t.points.theta for t in self.each], axis=1)

    def log_density(self) -> np.ndarray:
        """Shape (C, transitions)."""
        return np.stack([t.points.log_density for t in self.each], axis=1)


def starts_of(draws: np.ndarray) -> np.ndarray:
    """Choose starts, evenly spaced over the draws of each chain, shape (chains, M, d)."""
    chains, n, _ = draws.shape
    each = max(1, CHAINS // chains)
    return draws[:, np.linspace(0, n - 1, each).astype(int)]


def finish(
    hmc: Hamiltonian,
    draws: np.ndarray,
    ess: float,
    has_ended: Callable[[], bool],
) -> Finished:
    """Move chains from draws of a minibatch run until they have forgotten these.

    Parameters
    ----------
    hmc : Hamiltonian
    draws : array, shape (chains, draws, d)
        Of the minibatch run. The chains that start at draws of one of its chains are a superchain.
    ess : float
        Effective sample size, of all chains together and for the mean of each element, to end with;
        half of it for its spread.
    has_ended : callable
        Whether time is up.

    Raises
    ------
    NothingExact
        If the run ended before there were draws enough to keep.

    Notes
    -----
    Of K transitions with the final step size those are dropped in which a start's deviation may be
    more than 5% of what it was, by the slowest direction's autocorrelation. The rest is kept if its
    halves have the same means and variances, within what chance explains, and otherwise its second
    half is. Chains of one superchain began in one chain of the minibatch run, so that R-hat of
    superchains (nested R-hat, Margossian et al. 2024) sees whether those had come together.
    """
    starts = starts_of(draws)
    superchains = len(starts)
    points = _finite(hmc.at(starts.reshape(-1, starts.shape[2])), hmc)
    inverse = np.linalg.inv(hmc.metric.times(np.eye(draws.shape[2])).T)
    z = (draws - draws.mean(axis=(0, 1))) @ inverse.T
    slowest = _slowest(z)
    length, jitter = _lengths(z, slowest)
    made, first, reason, look_at = Made(), 0, "", ROUND

    def advance(h: float) -> tuple[Transition, float, int]:
        nonlocal points
        t = length * hmc.rng.uniform(1 - jitter, 1 + jitter)
        n_steps = min(MOST_STEPS, max(1, ceil(t / h - STRETCH)))
        step_size = min(t / n_steps, h * (1 + STRETCH))
        found = hmc.transition(points, step_size, n_steps)
        points = found.points
        return found, step_size, n_steps

    h, forgotten, before = length * (1 + jitter), 0, 0
    try:
        for before in range(1, 1 + max(FIRST_TRANSITIONS)):
            found, step_size, n_steps = advance(h)
            off = found.acceptance.mean() - TARGET
            share = off / TARGET if off < 0 else off / (1 - TARGET)
            h = (h if off > 0 else step_size) * np.exp(GAIN / np.sqrt(before) * share)
            h = min(h, length * (1 + jitter))
            forgotten += int(off > -TARGET / 2)
            is_set = abs(share) < CLOSE or (share > 0 and n_steps == 1)
            if (is_set and before >= min(FIRST_TRANSITIONS)) or has_ended():
                break
        # The minibatch draws may be too wide, and trajectories too long then.
        length, jitter = _lengths((points.theta - points.theta.mean(axis=0)) @ inverse.T, slowest)
        while True:
            found, step_size, n_steps = advance(h)
            made.each.append(found)
            made.step_sizes.append(step_size)
            made.n_steps.append(n_steps)
            if len(made) < look_at and not has_ended():
                continue
            look_at = len(made) + max(ROUND, len(made) // 4)
            first, reason = _first_kept(made, inverse, forgotten, superchains, ess)
            if not reason or has_ended():
                break
            if len(made) >= MOST_TRANSITIONS:
                reason += f" after {MOST_TRANSITIONS} transitions: use NUTS"
                break
    except KeyboardInterrupt:
        if len(made) < ROUND:
            raise
        reason = "interrupted"
    if len(made) < ROUND:
        raise NothingExact("the time was over before any exact draw was made")
    kept = made.each[min(first, len(made) - ROUND) :]
    K = len(kept)

    def joined(arrays: list[np.ndarray]) -> np.ndarray:
        both = np.stack(arrays, axis=1)
        return both.reshape(superchains, -1, *both.shape[1:])

    return Finished(
        theta=joined([t.points.theta for t in kept]),
        gradient=joined([t.points.gradient for t in kept]),
        log_density=joined([t.points.log_density for t in kept]),
        acceptance=joined([t.acceptance for t in kept]),
        energy=joined([t.energy for t in kept]),
        diverging=joined([t.diverging for t in kept]),
        step_size=np.array(made.step_sizes[-K:]),
        n_steps=np.array(made.n_steps[-K:]),
        transitions=before + len(made),
        evaluations=hmc.density.evaluations,
        reason=reason,
    )


def _finite(points: Points, hmc: Hamiltonian) -> Points:
    """Replace starts without a density by others."""
    good = np.flatnonzero(np.isfinite(points.log_density))
    if not len(good):
        raise NothingExact("the log density is not finite at any draw of the minibatch run")
    chosen = np.arange(len(points.log_density))
    bad = ~np.isfinite(points.log_density)
    chosen[bad] = hmc.rng.choice(good, bad.sum())
    return Points(*(array[chosen] for array in points))


def _slowest(z: np.ndarray) -> np.ndarray:
    """Direction along which draws have the largest variance, a unit vector, shape (d,)."""
    flat = z.reshape(-1, z.shape[-1])
    return np.linalg.eigh(flat.T @ flat / len(flat))[1][:, -1]


def _lengths(z: np.ndarray, slowest: np.ndarray) -> tuple[float, float]:
    """Length and jitter of trajectories, by points' standard deviation along a direction of z."""
    sd = float(np.clip((z @ slowest).std(), 1.0, MOST_SLOWNESS))
    return QUARTER * sd, min(JITTER * sd, MOST_JITTER)


def _first_kept(
    made: Made, inverse: np.ndarray, forgotten: int, superchains: int, ess: float
) -> tuple[int, str]:
    """Return the first transition to keep, and why those from there are not enough yet."""
    theta = made.theta()
    centred = theta - theta.mean(axis=(0, 1))
    series = np.concatenate([centred @ inverse.T, made.log_density()[:, :, None]], axis=2)
    slowest = _autocorrelation(series)
    needed = ceil(log(FORGOTTEN) / log(slowest)) if slowest < 1 else MOST_TRANSITIONS
    first = max(0, needed - forgotten)
    if len(made) - first < ROUND:
        return first, "the chains have not forgotten their starts"
    if _moves(series[:, first:]):
        return first + (len(made) - first) // 2, "means or variances still move"
    kept = theta[:, first:]
    if kept.shape[0] * kept.shape[1] < ess:
        return first, "the effective sample size is too small"
    kept = kept.reshape(superchains, -1, kept.shape[2])
    of_means = convergence([kept]).ess
    of_variances = convergence([np.abs(kept - kept.mean(axis=(0, 1)))]).ess
    enough = min(of_means, 2 * of_variances) >= ess
    return first, "" if enough else "the effective sample size is too small"


def _autocorrelation(series: np.ndarray) -> float:
    """Largest correlation of successive draws, over columns; series of shape (C, K, columns)."""
    away = series - series.mean(axis=(0, 1))
    products = (away[:, 1:] * away[:, :-1]).sum(axis=(0, 1))
    squares = np.square(away).sum(axis=(0, 1)) * (series.shape[1] - 1) / series.shape[1]
    return float(np.clip(np.max(products / np.maximum(squares, 1e-300)), 1e-3, 1.0))


def _moves(series: np.ndarray) -> bool:
    """Whether any column's mean or variance changes from the first half of the draws to the second.

    Chains are independent, so the differences of their own means have a Student distribution.
    """
    C, K, columns = series.shape
    away = series - series.mean(axis=(0, 1))
    both = np.concatenate([away, np.square(away)], axis=2)
    change = both[:, K // 2 :].mean(axis=1) - both[:, : K // 2].mean(axis=1)
    error = np.maximum(change.std(axis=0, ddof=1), 1e-300) / np.sqrt(C)
    limit = stats.t.isf(ALARM / (4 * columns), C - 1)
    return bool(np.any(np.abs(change.mean(axis=0)) > limit * error))
