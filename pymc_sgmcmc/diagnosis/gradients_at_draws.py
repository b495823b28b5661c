"""Gradients at recorded draws, by a path of their own.

Nothing of the sampler's enters: neither its batches nor its control variate, row weights or
compiled updates. An error in any of those does not repeat itself here; one in the draws of latent
variables does.
"""

from typing import NamedTuple

import numpy as np

from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients
from pymc_sgmcmc.latents.latent_gradients import LatentGradients

ROW_GRADIENTS = 400_000
"""Of all draws together, about: this bounds the time."""
FEWEST_ROWS = 32
"""Per draw."""
COMPARED = 20
"""Draws at which the noise with and without a control variate is compared."""
NOISE = 0.05
"""Standard error of the mean gradient of all draws that is left with latent variables,"""
TRIED = 20
"""... as seen from so many batches at each of `COMPARED` draws."""


class GradientsAtDraws(NamedTuple):
    """Estimates of the gradient of the log posterior with respect to z."""

    gradients: np.ndarray
    """Shape (n, d)."""
    noise: np.ndarray
    """Mean variance of an estimate, given the draw, along each direction, shape (d,)."""
    method: str
    """For a report: "exact", "100 random rows"."""


def with_latents_at_draws(
    gradients: LatentGradients, draws: np.ndarray, matrix: np.ndarray, rng: np.random.Generator
) -> GradientsAtDraws:
    """Estimate gradients at draws, with latent variables drawn anew for random rows.

    There are so many batches that their noise hardly matters for the mean over the draws.

    Parameters
    ----------
    gradients : LatentGradients
    draws : array, shape (n, d)
    matrix : array, shape (d, d)
        L of the metric: gradients are returned as L' g.
    rng : numpy.random.Generator
    """
    gradients.draw_from(rng.spawn(1)[0])

    def of_batches(theta: np.ndarray, count: int) -> np.ndarray:
        rows = rng.integers(gradients.n_rows, size=(count, gradients.batch_size))
        return np.array([gradients.likelihood_gradient(theta, r) for r in rows]) @ matrix

    n = len(draws)
    compared = draws[np.linspace(0, n - 1, min(COMPARED, n)).astype(int)]
    noise = np.mean([of_batches(theta, TRIED).var(axis=0, ddof=1) for theta in compared], axis=0)
    count = max(1, int(np.ceil(noise.max() / (n * NOISE**2))))
    prior = np.reshape([gradients.prior_gradient(theta) for theta in draws], draws.shape)
    likelihood = np.array([of_batches(theta, count).mean(axis=0) for theta in draws])
    method = f"{count * gradients.batch_size} random rows, latent variables drawn anew"
    return GradientsAtDraws(prior @ matrix + likelihood, noise / count, method)


def gradients_at_draws(
    gradients: RowGradients | WholeGradients,
    draws: np.ndarray,
    matrix: np.ndarray,
    anchor: np.ndarray,
    anchor_gradient: np.ndarray,
    rng: np.random.Generator,
    copies: np.ndarray | None = None,
    exact: bool = False,
) -> GradientsAtDraws:
    """Compute gradients at draws, exactly or from independent random rows.

    Rows are drawn with replacement and scaled by 1 / (B q), q = 1 / N if all are drawn alike. The
    same rows' gradients at the anchor serve as a control variate if this makes the noise smaller.

    Parameters
    ----------
    gradients : RowGradients or WholeGradients
    draws : array, shape (n, d)
    matrix : array, shape (d, d)
        L of the metric: gradients are returned as L' g.
    anchor, anchor_gradient : arrays, shape (d,)
        A point and the gradient of the log likelihood of all rows there; not used where gradients
        are exact.
    rng : numpy.random.Generator
    copies : array of int, shape (N,), optional
        How often each row is in the urn that rows are drawn from; default: once. The mean of an
        estimate does not depend on it.
    exact : bool, default False
        Use all rows at each draw.
    """
    n, size = draws.shape
    no_noise = np.zeros(size)
    if isinstance(gradients, WholeGradients):
        each = [gradients.gradient(theta) for theta in draws]
        return GradientsAtDraws(np.reshape(each, (n, size)) @ matrix, no_noise, "exact")
    n_rows = gradients.n_rows
    batch_size = max(FEWEST_ROWS, ROW_GRADIENTS // (2 * n))
    prior = np.reshape([gradients.prior_gradient(theta) for theta in draws], (n, size))
    if exact or batch_size >= n_rows:
        each = [gradients.likelihood(theta, scatter=False).gradient for theta in draws]
        return GradientsAtDraws((prior + np.array(each)) @ matrix, no_noise, "exact")
    if copies is None:
        urn = np.arange(gradients.n_at_hand)
        one_by_probability = np.full(urn.size, float(n_rows))
    else:
        urn = np.repeat(np.arange(n_rows), copies)
        one_by_probability = len(urn) / copies
    plain, change = np.empty((n, size)), np.empty((n, size))
    variances = np.zeros((2, size))
    compared = set(np.linspace(0, n - 1, COMPARED).astype(int).tolist())
    for k, theta in enumerate(draws):
        rows = urn[rng.integers(len(urn), size=batch_size)]
        scale = one_by_probability[rows, None]
        here = scale * gradients.rows(theta, rows)[1]
        moved = here - scale * gradients.rows(anchor, rows)[1]
        plain[k], change[k] = here.mean(axis=0), moved.mean(axis=0)
        if k in compared:
            spread = [np.var(each @ matrix, axis=0, ddof=1) for each in (here, moved)]
            variances += np.array(spread) / (batch_size * len(compared))
    method = f"{batch_size} random rows"
    if variances[1].sum() < variances[0].sum():
        total = prior + anchor_gradient + change
        return GradientsAtDraws(total @ matrix, variances[1], f"{method}, control variate")
    return GradientsAtDraws((prior + plain) @ matrix, variances[0], method)
