"""Stein identities of models with local variables.

Along each direction of the shared variables as everywhere. Of a local variable the mean over its
elements is looked at: each element alone would need gradients of all rows at each draw.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_sgmcmc.adaptation.local_gradients import LocalBatch, LocalGradients
from pymc_sgmcmc.diagnosis.stein import Estimate, SteinIdentities, block_estimate, stein_identities

MOST_BATCHES = 40_000
"""Batches at all draws together, at least one at each."""


class LocalIdentities(NamedTuple):
    """Estimates along the shared directions, then one for each local variable."""

    stein: SteinIdentities
    names: list[str]
    """What each direction mostly is along: an element of a shared variable, a local variable."""
    noise: np.ndarray
    """Variance of a gradient's estimate along each shared direction, then zeros."""
    rows: str
    """For a report: rows at each draw."""


def local_identities(
    gradients: LocalGradients,
    draws: np.ndarray,
    matrix: np.ndarray,
    order: np.ndarray,
    names: Sequence[str],
    blocks: int,
    rng: np.random.Generator,
    all_rows: bool = False,
) -> LocalIdentities:
    """Compute gradients at draws, and estimate the identities' expectations.

    Parameters
    ----------
    gradients : LocalGradients
    draws : array, shape (chains, draws, d)
        Of value variables.
    matrix : array, shape (s, s)
        L of the s shared elements.
    order : array of int, shape (d,)
        The elements of theta, those of shared variables first.
    names : list of str
        Of the shared elements.
    blocks : int
        Of each chain.
    rng : numpy.random.Generator
        Chooses the rows.
    all_rows : bool, default False
        Use all rows at each draw, but for fewer than a batch.
    """
    chains, n, _ = draws.shape
    s = len(matrix)
    mean, scale = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    shared = draws[:, :, order[:s]] - mean[order[:s]]
    z = np.linalg.solve(matrix, shared.reshape(-1, s).T).T.reshape(shared.shape) if s else shared
    local = gradients.local
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in gradients.source.shapes)])
    g = np.empty((chains, n, s))
    first, second = np.empty((2, chains, n, len(local)))
    most = gradients.n_rows // gradients.batch_size
    count = most if all_rows else MOST_BATCHES // (chains * n)
    count = int(np.clip(count, 1, max(1, most)))
    spread = np.zeros(s)
    for at in np.ndindex(chains, n):
        theta = [
            draws[at][a:b].reshape(shape)
            for a, b, shape in zip(ends, ends[1:], gradients.source.shapes, strict=False)
        ]
        each = np.empty((count, s))
        sums = np.zeros((2, len(local)))
        for i, batch in enumerate(_batches(gradients, count, rng)):
            found = gradients.at(gradients.gathered(theta, batch), batch)
            total = [p + lik for p, lik in zip(found.prior, found.likelihood, strict=True)]
            of_shared = [
                np.ravel(t) for t, v in zip(total, gradients.variables, strict=True) if v is None
            ]
            each[i] = np.concatenate([np.empty(0), *of_shared]) @ matrix
            for j, k in enumerate(local):
                part = slice(ends[k], ends[k + 1])
                sums[:, j] += _of_local(gradients, k, batch, theta, total, mean[part], scale[part])
        g[at] = each.mean(axis=0)
        if count > 1:
            spread += each.var(axis=0, ddof=1) / count
        first[at], second[at] = sums / count
    stein = stein_identities(z, g, blocks) if s else _none()
    of_local = block_estimate(first, blocks), block_estimate(second, blocks)
    stein = stein._replace(
        gradient=_joined(stein.gradient, of_local[0]), virial=_joined(stein.virial, of_local[1])
    )
    if not s:
        stein = stein._replace(mean_virial=block_estimate(second.mean(axis=2), blocks))
    share = np.abs(matrix) / np.linalg.norm(matrix, axis=1, keepdims=True)
    mostly = [names[k] for k in share.argmax(axis=0)] if s else []
    mostly += [f"{gradients.source.vars[k].name}, mean of all" for k in local]
    noise = np.concatenate([spread / (chains * n), np.zeros(len(local))])
    rows = "all rows" if count == most else f"{count * gradients.batch_size} random rows"
    return LocalIdentities(stein, mostly, noise, rows)


def _batches(gradients: LocalGradients, count: int, rng: np.random.Generator):
    """Draw batches that have no row twice: all rows, where there are as many batches as can be."""
    shape = count, gradients.batch_size
    for rows in rng.choice(gradients.n_rows, shape, replace=False):
        yield gradients.batch(rows)


def _of_local(gradients, k, batch: LocalBatch, theta, total, mean, scale) -> np.ndarray:
    """Mean gradient, where a scale is 1, and mean virial of the touched elements."""
    groups, used = gradients.slots(k, batch)
    shape = gradients.source.shapes[k]
    scale = scale.reshape(shape)[groups]
    moving = scale > 0
    away = theta[k][groups] - mean.reshape(shape)[groups]
    gradient = total[k][used]
    return np.array([(scale * gradient)[moving].mean(), (-away * gradient)[moving].mean()])


def _joined(shared: Estimate, local: Estimate) -> Estimate:
    return Estimate(*(np.concatenate(both) for both in zip(shared, local, strict=True)))


def _none() -> SteinIdentities:
    """Of no directions."""
    empty = Estimate(np.empty(0), np.empty(0))
    number = Estimate(np.empty(()), np.empty(()))
    return SteinIdentities(empty, empty, number, empty, np.empty((0, 2), dtype=int))
