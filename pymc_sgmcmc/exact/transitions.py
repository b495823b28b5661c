"""The number of exact transitions: until starts are forgotten and there are enough draws.

The first transitions set the step size by stochastic approximation (Robbins and Monro); few
suffice, because the acceptance is a mean over all chains.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, log, pi

import numpy as np
from scipy import stats

from pymc_sgmcmc.exact.hamiltonian import Hamiltonian, Positions, Transition
from pymc_sgmcmc.run.convergence import convergence

CHAINS = 32
"""Number of short chains: with more chains each makes fewer transitions, all in larger matrix
products, but each also makes the first ones, whose draws are dropped."""
TARGET, LEAST = 0.8, 0.5
"""Target acceptance for the step size, and the acceptance below which it is set again."""
QUARTER = pi / 2
"""Length of a trajectory after which draws of a normal density are independent."""
JITTER, MOST_JITTER = 0.2, 0.6
"""Share by which trajectories are randomly shortened or lengthened, so that none returns to its
beginning; the second value is used if lengths are for a direction slower than others."""
MOST_SLOWNESS = 10.0
"""Largest standard deviation of such a direction, in z, for which trajectories are lengthened."""
MOST_STEPS = 50
"""Largest number of steps of a trajectory."""
STRETCH = 0.25
"""Share by which steps may be longer than set, if that saves a step."""
FIRST_TRANSITIONS = (3, 12)
"""Smallest and largest number of transitions used to set the step size."""
GAIN = 1.0
"""Change of the step size's logarithm in the first of them, if all or no ends are accepted."""
CLOSE = 0.5
"""Error of the acceptance, relative to that with all or no ends accepted, below which the step size
counts as set."""
FORGOTTEN = 0.05
"""Share of a start's deviation that may remain."""
ROUND = 4
"""Number of transitions between checks of the draws, later a quarter of those made so far."""
MOST_TRANSITIONS = 500
ALARM = 0.001
"""Probability that chance alone makes any mean or variance seem to move."""


class NothingExact(Exception):
    """Raised with the reason why there are no exact draws."""


@dataclass(frozen=True)
class Finished:
    """Exact draws; the first axes of all arrays are superchains, their chains, and transitions."""

    theta: np.ndarray
    """Draws, with elements along the last axis."""
    gradient: np.ndarray
    """Gradients of the log density with respect to z, shaped like ``theta``."""
    log_density: np.ndarray
    acceptance: np.ndarray
    energy: np.ndarray
    diverging: np.ndarray
    step_size: np.ndarray
    """Step size of each transition, shape (transitions,)."""
    n_steps: np.ndarray
    """Number of steps of each transition."""
    transitions: int
    """Number of all transitions, including those that were dropped."""
    evaluations: int
    """Number of gradients of all rows that they took, for all chains together."""
    reason: str
    """The reason why the draws are not enough, or an empty string."""


def finish(
    hmc: Hamiltonian,
    draws: np.ndarray,
    ess: float,
    has_ended: Callable[[], bool],
) -> Finished:
    """Move chains from draws of a minibatch run, (chains, draws, d), until these are forgotten.

    They end with the effective sample size ``ess`` for each element's mean, and half of it for its
    spread. Chains that start at draws of one chain are a superchain, so that R-hat of superchains
    (nested R-hat, Margossian et al. 2024) shows whether those had converged.
    """
    chains, n, _ = draws.shape
    starts = draws[:, np.linspace(0, n - 1, max(1, CHAINS // chains)).astype(int)]
    superchains = len(starts)
    points = _finite(hmc.at(starts.reshape(-1, starts.shape[2])), hmc)
    inverse = np.linalg.inv(hmc.metric.times(np.eye(draws.shape[2])).T)
    z = (draws - draws.mean(axis=(0, 1))) @ inverse.T
    flat = z.reshape(-1, z.shape[-1])
    slowest = np.linalg.eigh(flat.T @ flat / len(flat))[1][:, -1]
    length, jitter = _lengths(z, slowest)
    made, first, reason, look_at = list[Transition](), 0, "", ROUND

    def advance(h: float) -> Transition:
        nonlocal points
        t = length * hmc.rng.uniform(1 - jitter, 1 + jitter)
        n_steps = min(MOST_STEPS, max(1, ceil(t / h - STRETCH)))
        step_size = min(t / n_steps, h * (1 + STRETCH))
        found = hmc.transition(points, step_size, n_steps)
        points = found.points
        return found

    h, forgotten, before = length * (1 + jitter), 0, 0

    def set_again() -> bool:
        """Whether too few ends were accepted: the transitions so far are dropped, and h is smaller.

        Their energy errors are about normal, with a standard deviation in proportion to h^2.
        """
        nonlocal h, forgotten, before
        acceptance = np.mean([t.acceptance.mean() for t in made])
        if acceptance >= LEAST or has_ended() or before + len(made) >= MOST_TRANSITIONS:
            return False
        h *= np.sqrt(stats.norm.ppf(TARGET / 2) / stats.norm.ppf(max(acceptance, 0.01) / 2))
        forgotten += sum(int(t.acceptance.mean() > TARGET / 2) for t in made)
        before += len(made)
        made.clear()
        return True

    try:
        for before in range(1, 1 + max(FIRST_TRANSITIONS)):
            found = advance(h)
            off = found.acceptance.mean() - TARGET
            share = off / TARGET if off < 0 else off / (1 - TARGET)
            h = (h if off > 0 else found.step_size) * np.exp(GAIN / np.sqrt(before) * share)
            h = min(h, length * (1 + jitter))
            forgotten += int(off > -TARGET / 2)
            is_set = abs(share) < CLOSE or (share > 0 and found.n_steps == 1)
            if (is_set and before >= min(FIRST_TRANSITIONS)) or has_ended():
                break
        # The minibatch draws may be too wide, and trajectories then too long.
        length, jitter = _lengths((points.theta - points.theta.mean(axis=0)) @ inverse.T, slowest)
        while True:
            made.append(advance(h))
            if len(made) < look_at and not has_ended():
                continue
            if set_again():
                look_at = ROUND
                continue
            look_at = len(made) + max(ROUND, len(made) // 4)
            first, reason = _first_kept(made, inverse, forgotten, superchains, ess)
            if not reason or has_ended():
                break
            if before + len(made) >= MOST_TRANSITIONS:
                reason += f" after {MOST_TRANSITIONS} transitions: use NUTS"
                break
    except KeyboardInterrupt:
        if len(made) < ROUND:
            raise
        reason = "interrupted"
    if len(made) < ROUND:
        raise NothingExact("the time was over before any exact draw was made")
    kept = made[min(first, len(made) - ROUND) :]

    def joined(arrays: Iterable[np.ndarray]) -> np.ndarray:
        both = np.stack(list(arrays), axis=1)
        return both.reshape(superchains, -1, *both.shape[1:])

    return Finished(
        theta=joined(t.points.theta for t in kept),
        gradient=joined(t.points.gradient for t in kept),
        log_density=joined(t.points.log_density for t in kept),
        acceptance=joined(t.acceptance for t in kept),
        energy=joined(t.energy for t in kept),
        diverging=joined(t.diverging for t in kept),
        step_size=np.array([t.step_size for t in kept]),
        n_steps=np.array([t.n_steps for t in kept]),
        transitions=before + len(made),
        evaluations=hmc.density.evaluations,
        reason=reason,
    )


def _finite(points: Positions, hmc: Hamiltonian) -> Positions:
    """Replace starts without a density by other starts."""
    good = np.flatnonzero(np.isfinite(points.log_density))
    if not len(good):
        raise NothingExact("the log density is not finite at any draw of the minibatch run")
    chosen = np.arange(len(points.log_density))
    bad = ~np.isfinite(points.log_density)
    chosen[bad] = hmc.rng.choice(good, bad.sum())
    return Positions(*(array[chosen] for array in points))


def _lengths(z: np.ndarray, slowest: np.ndarray) -> tuple[float, float]:
    """Return length and jitter of trajectories, from the points' sd along the slowest direction."""
    sd = float(np.clip((z @ slowest).std(), 1.0, MOST_SLOWNESS))
    return QUARTER * sd, min(JITTER * sd, MOST_JITTER)


def _first_kept(
    made: list[Transition], inverse: np.ndarray, forgotten: int, superchains: int, ess: float
) -> tuple[int, str]:
    """Return the first transition to keep, and why the draws from there on are not enough yet.

    Transitions in which more than `FORGOTTEN` of a start's deviation may remain are dropped,
    judging by the slowest direction's autocorrelation; if the halves of the rest differ, the first
    half is dropped too. Superchains that differ have a small effective sample size: at an R-hat of
    1.05 four of them have about 60.
    """
    theta = np.stack([t.points.theta for t in made], axis=1)
    log_density = np.stack([t.points.log_density for t in made], axis=1)
    centred = theta - theta.mean(axis=(0, 1))
    series = np.concatenate([centred @ inverse.T, log_density[:, :, None]], axis=2)
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
    """Return the largest correlation of successive draws over columns of (C, K, columns)."""
    away = series - series.mean(axis=(0, 1))
    products = (away[:, 1:] * away[:, :-1]).sum(axis=(0, 1))
    squares = np.square(away).sum(axis=(0, 1)) * (series.shape[1] - 1) / series.shape[1]
    return float(np.clip(np.max(products / np.maximum(squares, 1e-300)), 1e-3, 1.0))


def _moves(series: np.ndarray) -> bool:
    """Whether any column's mean or variance differs between the two halves of the draws.

    Chains are independent, so the differences of their own means have a Student distribution.
    """
    C, K, columns = series.shape
    away = series - series.mean(axis=(0, 1))
    both = np.concatenate([away, np.square(away)], axis=2)
    change = both[:, K // 2 :].mean(axis=1) - both[:, : K // 2].mean(axis=1)
    error = np.maximum(change.std(axis=0, ddof=1), 1e-300) / np.sqrt(C)
    limit = stats.t.isf(ALARM / (4 * columns), C - 1)
    return bool(np.any(np.abs(change.mean(axis=0)) > limit * error))
