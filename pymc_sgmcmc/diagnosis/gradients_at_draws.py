"""Gradients at recorded draws, computed independently of the sampler.

They use neither its batches nor its control variate, row weights or compiled updates, so an error
in any of these is not repeated here; an error in the draws of latent variables is.
"""

from typing import NamedTuple

import numpy as np

from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients
from pymc_sgmcmc.latents.latent_gradients import LatentGradients

ROW_GRADIENTS = 400_000
"""Approximate number of row gradients at all draws together, which bounds the time."""
FEWEST_ROWS = 32
"""Smallest number of random rows for each draw."""
COMPARED = 20
"""Number of draws at which the noise with and without a control variate is compared."""
NOISE = 0.05
"""Standard error of the mean gradient of all draws that latent variables may leave, which is half
of what the verdict tolerates."""
TRIED = 20
"""Number of batches at each of `COMPARED` draws from which this standard error is predicted."""


class GradientsAtDraws(NamedTuple):
    """Estimates of the gradient of the log posterior with respect to z."""

    gradients: np.ndarray
    """Shape (n, d)."""
    noise: np.ndarray
    """Mean variance of an estimate, given the draw, along each direction, shape (d,)."""
    method: str
    """Method, for the report: "exact", or "100 random rows"."""


def with_latents_at_draws(
    gradients: LatentGradients, draws: np.ndarray, matrix: np.ndarray, rng: np.random.Generator
) -> GradientsAtDraws:
    """Estimate gradients L' g at draws, shape (n, d), with latent variables drawn anew.

    ``matrix`` is L. There are so many batches of random rows that their noise hardly matters for
    the mean over the draws.
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
    """Compute gradients L' g at draws, shape (n, d), exactly or from independent random rows.

    ``matrix`` is L. Rows are drawn with replacement, each as often as ``copies`` says (default:
    alike), and scaled by 1 / (B q), with q = 1 / N if all are drawn alike. The same rows' gradients
    at the anchor serve as a control variate if this makes the noise smaller.
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
