"""Stein identities of models with local variables.

Shared variables satisfy them along each direction, as in other models. For local variables, means
over their elements are used, because single elements would need gradients of all rows at each draw.
The scale that groups share depends on the width of the posteriors of their effects, which the
virial shows, and on how far apart the means of these are. With m_j the mean of an effect, s_j its
sd, and m the mean over groups::

    outward = -2 mean of s_j^2 (m_j - m) E[g_j] / mean of s_j^2  =  0,

because E[g_j] = 0. If the mean of an effect is e_j too high, E[g_j] = -e_j / s_j^2, so ``outward``
is positive where the means are too far from each other.

Gradients are of batches, and then of the groups that these touch, or of all rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_sgmcmc.adaptation.local_gradients import LocalGradients
from pymc_sgmcmc.diagnosis.stein import Estimate, SteinIdentities, block_estimate, stein_identities
from pymc_sgmcmc.gradients.metric import split_flat
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients

MOST_BATCHES = 40_000
"""Largest number of batches over all draws, which bounds the time; each draw has at least one."""
BATCHES_OF_PRIOR = 40
"""Number of batches from which the prior's share of the information on an effect is estimated."""


class LocalIdentities(NamedTuple):
    """Estimates along the shared directions, then one for each local variable."""

    stein: SteinIdentities
    names: list[str]
    """The element of a shared variable, or the local variable, that dominates each direction."""
    noise: np.ndarray
    """Variance of a gradient's estimate along each shared direction, then zeros."""
    rows: str
    """Rows at each draw, as text for the report."""
    outward: Estimate
    """For each local variable, by how much its means are too far apart, as defined above."""
    prior_share: np.ndarray
    """For each local variable, the prior's share of the precision of an effect with rows."""


class AtDraw(NamedTuple):
    """Contributions of the gradients at one draw."""

    shared: np.ndarray
    """Gradient along the shared directions, shape (s,)."""
    noise: np.ndarray
    """Variance of the estimate of each of its elements, shape (s,)."""
    gradient: np.ndarray
    """For each local variable, the mean over its elements in units of their standard deviations."""
    virial: np.ndarray
    """For each local variable, the mean of -(theta - mean) times the gradient."""
    outward: np.ndarray
    """For each local variable, the mean of the terms of ``outward``."""


def local_identities(
    gradients: LocalGradients,
    draws: np.ndarray,
    matrix: np.ndarray,
    order: np.ndarray,
    names: Sequence[str],
    blocks: int,
    rng: np.random.Generator,
    whole: WholeGradients | None = None,
) -> LocalIdentities:
    """Estimate the identities from gradients at draws of value variables, shape (chains, draws, d).

    ``matrix`` is L of the s shared elements, which come first in ``order`` and have the ``names``;
    ``blocks`` is the number of blocks of each chain. With ``whole`` all rows are used at each draw.
    """
    s = len(matrix)
    shared = draws[:, :, order[:s]] - draws[:, :, order[:s]].mean(axis=(0, 1))
    z = np.linalg.solve(matrix, shared.reshape(-1, s).T).T.reshape(shared.shape) if s else shared
    sd = draws.std(axis=(0, 1))
    flat = draws.reshape(-1, draws.shape[2])
    centres, part = means_of_others(draws)
    away = np.array([_from_each_other(gradients, centre, sd) for centre in centres])
    rows = "all rows"
    if whole is None:
        most_batches = max(1, int(1 / gradients.share))
        count = int(np.clip(MOST_BATCHES // len(flat), 1, most_batches))
        rows = f"{count * gradients.rows_per_batch:.0f} random rows"
        each = [
            _of_batches(gradients, theta, matrix, centres[k], sd, away[k], count, rng)
            for theta, k in zip(flat, part, strict=True)
        ]
    else:
        each = [AtDraw(*np.zeros(len(AtDraw._fields))) for _ in flat]
        for i, piece in whole.pieces(flat):  # everything needed is linear in the gradient
            k = part[i]
            of_piece = _of_gradient(
                gradients, piece, flat[i] - centres[k], away[k], matrix, order, sd
            )
            each[i] = AtDraw(*(a + b for a, b in zip(each[i], of_piece, strict=True)))
    found = AtDraw(*map(np.array, zip(*each, strict=True)))
    g, first, second, third = (
        values.reshape(*draws.shape[:2], -1)
        for values in (found.shared, found.gradient, found.virial, found.outward)
    )
    stein = stein_identities(z, g, blocks) if s else _none()
    of_local = block_estimate(first, blocks), block_estimate(second, blocks)
    stein = stein._replace(
        gradient=_joined(stein.gradient, of_local[0]), virial=_joined(stein.virial, of_local[1])
    )
    if not s:
        stein = stein._replace(mean_virial=block_estimate(second.mean(axis=2), blocks))
    share = np.abs(matrix) / np.linalg.norm(matrix, axis=1, keepdims=True)
    mostly = [names[k] for k in share.argmax(axis=0)] if s else []
    mostly += [f"{gradients.source.vars[k].name}, mean of all" for k in gradients.local]
    noise = np.concatenate([found.noise.mean(axis=0), np.zeros(len(gradients.local))])
    share_of_prior = _prior_share(gradients, flat, sd, rng)
    outward = block_estimate(third, blocks)
    return LocalIdentities(stein, mostly, noise, rows, outward, share_of_prior)


def means_of_others(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means of other draws, and the index of the one that each draw is compared with.

    About the mean of all n independent draws the virial would be 1 - 1 / n, a deviation that uses
    up much of the tolerance for many groups. The means, shape (parts, d), are therefore those of
    the other chains or, for a single chain, of its other half.
    """
    chains, n, _ = draws.shape
    if chains > 1:
        of_parts = draws.mean(axis=1)
        part = np.repeat(np.arange(chains), n)
    elif n > 1:
        of_parts = np.array([draws[0, : n // 2].mean(axis=0), draws[0, n // 2 :].mean(axis=0)])
        part = (np.arange(n) >= n // 2).astype(int)
    else:
        return draws[0], np.zeros(1, int)
    parts = len(of_parts)
    return (of_parts.sum(axis=0) - of_parts) / (parts - 1), part


def _of_batches(
    gradients: LocalGradients,
    theta: np.ndarray,
    matrix: np.ndarray,
    centre: np.ndarray,
    sd: np.ndarray,
    outward: np.ndarray,
    count: int,
    rng: np.random.Generator,
) -> AtDraw:
    """Return averages over batches that contain no row twice."""
    values, aways, sds, outwards = (
        _of_variables(gradients, flat) for flat in (theta, theta - centre, sd, outward)
    )
    each = np.empty((count, len(matrix)))
    sums = np.zeros((3, len(gradients.local)))
    for i, batch in enumerate(gradients.batches(count, rng, apart=True)):
        found = gradients.at(gradients.gathered(values, batch), batch)
        total = [p + lik for p, lik in zip(found.prior, found.likelihood, strict=True)]
        of_shared = [
            np.ravel(t) for t, v in zip(total, gradients.variables, strict=True) if v is None
        ]
        each[i] = np.concatenate([np.empty(0), *of_shared]) @ matrix
        for j, k in enumerate(gradients.local):
            groups, used = gradients.slots(k, batch)
            away, own_sd, out = (a[k][groups] for a in (aways, sds, outwards))
            sums[:, j] += _means(away, own_sd, out, total[k][used])
    variance = each.var(axis=0, ddof=1) / count if count > 1 else np.zeros(len(matrix))
    return AtDraw(each.mean(axis=0), variance, *(sums / count))


def _from_each_other(gradients: LocalGradients, centre: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return 2 s_j^2 / mean(s^2) (m_j - m) for elements of groups with rows, and 0 for others."""
    means, variances = (_of_variables(gradients, flat) for flat in (centre, sd**2))
    found = [np.zeros_like(mean) for mean in means]
    for k in gradients.local:
        axis, with_rows = gradients.axis(k), gradients.sizes(k) > 0
        n = np.count_nonzero(with_rows)
        weights = with_rows * variances[k]
        weights = weights / (weights.sum(axis=axis, keepdims=True) / n + np.finfo(float).tiny)
        common = (with_rows * means[k]).sum(axis=axis, keepdims=True) / n
        found[k] = 2 * weights * (means[k] - common)
    return np.concatenate([f.ravel() for f in found])


def _prior_share(
    gradients: LocalGradients, flat: np.ndarray, sd: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the prior's precision (mean square of its gradient) times the effects' variance."""
    sds = _of_variables(gradients, sd)
    squares: dict[int, list[np.ndarray]] = {k: [] for k in gradients.local}
    places = np.linspace(0, len(flat) - 1, BATCHES_OF_PRIOR).astype(int)
    batches = gradients.batches(len(places), rng, apart=False)
    for i, batch in zip(places, batches, strict=True):
        values = _of_variables(gradients, flat[i])
        prior = gradients.at(gradients.gathered(values, batch), batch).prior
        for k in gradients.local:
            squares[k].append(np.square(prior[k][gradients.slots(k, batch)[1]]).ravel())
    shares = []
    for k in gradients.local:
        moving = np.broadcast_to(gradients.sizes(k) > 0, sds[k].shape) & (sds[k] > 0)
        shares.append(np.square(sds[k][moving]).mean() * np.concatenate(squares[k]).mean())
    return np.array(shares)


def _of_gradient(
    gradients: LocalGradients,
    gradient: np.ndarray,
    away: np.ndarray,
    outward: np.ndarray,
    matrix: np.ndarray,
    order: np.ndarray,
    sd: np.ndarray,
) -> AtDraw:
    """Return what a gradient of all rows, or a part of it, contributes at ``away`` from the
    mean.
    """
    shared = gradient[order[: len(matrix)]] @ matrix
    aways, sds, outwards, total = (
        _of_variables(gradients, flat) for flat in (away, sd, outward, gradient)
    )
    sums = np.array(
        [
            _means(aways[k], (gradients.sizes(k) > 0) * sds[k], outwards[k], total[k])
            for k in gradients.local
        ]
    )
    return AtDraw(shared, np.zeros(len(matrix)), *sums.T)


def _of_variables(gradients: LocalGradients, flat: np.ndarray) -> list[np.ndarray]:
    """Cut a flat vector into arrays of the variables' shapes."""
    return split_flat(flat, gradients.source.shapes)


def _means(
    away: np.ndarray, sd: np.ndarray, outward: np.ndarray, gradient: np.ndarray
) -> list[float]:
    """Return the means over elements that move, as in `AtDraw`."""
    moving = sd > 0
    return [(factor * gradient)[moving].mean() for factor in (sd, -away, -outward)]


def _joined(shared: Estimate, local: Estimate) -> Estimate:
    return Estimate(*(np.concatenate(both) for both in zip(shared, local, strict=True)))


def _none() -> SteinIdentities:
    """Return the identities of no directions."""
    empty = Estimate(np.empty(0), np.empty(0))
    number = Estimate(np.empty(()), np.empty(()))
    return SteinIdentities(empty, empty, number, empty, np.empty((0, 2), dtype=int))
