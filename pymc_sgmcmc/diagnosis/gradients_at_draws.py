"""Gradients at recorded draws, computed independently of the sampler.

They do not use its batches, control variate, row weights or compiled updates, so an error in any of
these is not repeated here; an error in the draws of latent variables is.
"""

from collections.abc import Callable
from copy import copy
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.diagnosis.coordinates import Coordinates
from pymc_sgmcmc.gradients.anchor_factors import AnchorFactors
from pymc_sgmcmc.gradients.local_variables import n_looked_up
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients

MOST_DRAWS = 2000
"""Largest number of evenly spaced draws, of all chains, at which gradients are computed."""
MOST_UNEVEN_DRAWS = 8000
"""The same if gradients differ so much between draws that the verdict needs more."""
EXACT_DRAWS = 100
"""Number of draws at which gradients are computed if each takes all rows."""
FEWEST_DRAWS = 200
"""Smallest number of draws at which all rows are used if random rows are too noisy."""
WHOLE_ROWS = 20_000_000
"""Largest number of rows, over all draws, for models with gradients of all data at once; it bounds
the time, so that with few rows there are more draws."""
MOST_EXACT = 3_000_000_000
"""Largest number of rows, over all draws, times (parameters + `ROW_COST`), for which all rows are
used: about ten seconds."""
ROW_COST = 50
"""Cost of a row, expressed in parameters of its gradient. Parameters that rows look up by number
cost nothing in a gradient of all data at once."""
ROW_GRADIENTS, MOST_ROW_GRADIENTS = 400_000, 1_600_000
"""Approximate number of row gradients over all draws, which bounds the time, and the number to
which it is raised if these are too noisy."""
FEWEST_ROWS = 32
"""Smallest number of random rows for each draw."""
COMPARED = 20
"""Number of draws at which the noise with and without a control variate is compared."""
NOISE = 0.05
"""Standard error that latent variables may leave in the mean gradient of all draws, half of what
the verdict tolerates."""
TRIED = 20
"""Number of batches, at each of `COMPARED` draws, from which this standard error is predicted."""


class GradientsAtDraws(NamedTuple):
    """Estimates of the gradient of the log posterior with respect to z, shape (n, d)."""

    gradients: np.ndarray
    """Shape (n, d)."""
    noise: np.ndarray
    """Mean variance of an estimate, given the draw, along each direction, shape (d,)."""
    method: str
    """Method, for the report, such as "exact" or "100 random rows"."""


class AtDraws:
    """Estimates gradients at draws, in coordinates with an anchor.

    ``anchor_error`` is the error of the sampler's gradient at its anchor, if it has one.
    """

    anchor_error: float | None = None

    def __init__(self, gradients: Any, at: Coordinates):
        self.gradients, self.at = gradients, at

    @property
    def most(self) -> int:
        """Largest number of draws, of all chains together, that are worth their time."""
        return MOST_DRAWS

    def __call__(self, draws: np.ndarray, exact: bool = False) -> GradientsAtDraws:
        """Estimate the gradients at draws, shape (n, d), from all rows if they must be exact."""
        raise NotImplementedError

    def with_rows(self, times: float) -> "AtDraws | None":
        """Return an estimator from so many times as many rows at each draw; None: not worth it."""
        return None

    def with_all_rows(self) -> "tuple[Callable[[], AtDraws], int] | None":
        """Return a maker of an exact estimator, and its most draws; None: too slow."""
        return None


class WholeAtDraws(AtDraws):
    """Estimates gradients from all data."""

    @property
    def most(self):
        model = self.gradients.model
        with quick_graphs():
            rows = sum(int(np.prod(shape)) for shape in model.eval_rv_shapes().values())
            observed = sum(model.rvs_to_values[rv].size.eval() for rv in model.observed_RVs)
        return int(np.clip(WHOLE_ROWS // max(1, rows + observed), EXACT_DRAWS, MOST_DRAWS))

    def __call__(self, draws, exact=False):
        each = np.reshape([self.gradients.gradient(theta) for theta in draws], draws.shape)
        return GradientsAtDraws(each @ self.at.matrix, np.zeros(draws.shape[1]), "exact")


class RowsAtDraws(AtDraws):
    """Estimates gradients from random rows, with a control variate if this reduces the noise.

    Rows are drawn with replacement and scaled by 1 / (B q), where q = 1 / N if all rows are equally
    likely. The control variate consists of the same rows' gradients at the anchor.
    """

    def __init__(self, gradients: RowGradients, at: Coordinates):
        super().__init__(gradients, at)
        assert at.anchor is not None
        self.factors = AnchorFactors(gradients)
        with gradients.points_held():  # as in the updates
            self.anchor_gradient = gradients.likelihood(at.anchor, scatter=False).gradient
        if at.anchor_gradient is not None:
            off = (at.anchor_gradient - self.anchor_gradient) @ at.matrix
            self.anchor_error = float(np.abs(off).max())
        self.copies = at.row_copies
        if self.copies is not None and len(self.copies) != gradients.n_rows:
            self.copies = None
        fewest = 2 * FEWEST_ROWS * MOST_DRAWS
        self.row_gradients = max(fewest, ROW_GRADIENTS // gradients.rows_worth)

    def __call__(self, draws, exact=False):
        gradients, matrix, anchor = self.gradients, self.at.matrix, self.at.anchor
        assert anchor is not None
        n_rows, (n, size) = gradients.n_rows, draws.shape
        rng = np.random.default_rng(0)
        batch_size = max(FEWEST_ROWS, self.row_gradients // (2 * n))
        prior = np.reshape([gradients.prior_gradient(theta) for theta in draws], (n, size))
        if exact or batch_size >= n_rows:
            each = [gradients.likelihood(theta, scatter=False).gradient for theta in draws]
            return GradientsAtDraws((prior + np.array(each)) @ matrix, np.zeros(size), "exact")
        if self.copies is None:
            urn = np.arange(gradients.n_at_hand)
            one_by_probability = np.full(urn.size, float(n_rows))
        else:
            urn = np.repeat(np.arange(n_rows), self.copies)
            one_by_probability = len(urn) / self.copies
        plain, change = np.empty((n, size)), np.empty((n, size))
        variances = np.zeros((2, size))
        at_anchor = gradients.rows_of(anchor, n * batch_size)
        compared = set(np.linspace(0, n - 1, COMPARED).astype(int).tolist())
        self.factors.choose(anchor, draws[sorted(compared)], rng)
        for k, theta in enumerate(draws):
            rows = urn[rng.integers(len(urn), size=batch_size)]
            scale = one_by_probability[rows, None]
            here = scale * gradients.rows(theta, rows)[1]
            factor = self.factors.at(theta, anchor)
            moved = here - factor * scale * at_anchor(rows)
            plain[k] = here.mean(axis=0)
            change[k] = moved.mean(axis=0) + factor * self.anchor_gradient
            if k in compared:
                spread = [np.var(each @ matrix, axis=0, ddof=1) for each in (here, moved)]
                variances += np.array(spread) / (batch_size * len(compared))
        method = f"{batch_size} random rows"
        if variances[1].sum() < variances[0].sum():
            return GradientsAtDraws(
                (prior + change) @ matrix, variances[1], f"{method}, control variate"
            )
        return GradientsAtDraws((prior + plain) @ matrix, variances[0], method)

    def with_rows(self, times):
        more = copy(self)
        more.row_gradients = ceil(times * self.row_gradients)
        return more if more.row_gradients <= MOST_ROW_GRADIENTS else None

    def with_all_rows(self):
        g = self.gradients
        if g.source.streamed is not None:
            return None
        of_a_row = max(0, g.size - n_looked_up(g.model))
        by_rows, at_once = (
            MOST_EXACT // (g.n_rows * (size + ROW_COST)) for size in (g.size, of_a_row)
        )
        if by_rows >= FEWEST_DRAWS:
            return lambda: self, by_rows
        if at_once < FEWEST_DRAWS:
            return None
        options = {"mode": g.mode, **g.compile_kwargs}

        def at_all_rows_at_once() -> AtDraws:
            whole = WholeGradients(g.model, g.source.vars, compile_kwargs=options)
            return WholeAtDraws(whole, self.at)

        return at_all_rows_at_once, at_once


class LatentsAtDraws(AtDraws):
    """Estimates gradients from random rows, with newly drawn latent variables.

    There are so many batches that their noise hardly matters for the mean over the draws.
    """

    def __call__(self, draws, exact=False):
        gradients, matrix, rng = self.gradients, self.at.matrix, np.random.default_rng(0)
        gradients.draw_from(rng.spawn(1)[0])

        def of_batches(theta: np.ndarray, count: int) -> np.ndarray:
            rows = rng.integers(gradients.n_rows, size=(count, gradients.batch_size))
            return np.array([gradients.likelihood_gradient(theta, r) for r in rows]) @ matrix

        n = len(draws)
        compared = draws[np.linspace(0, n - 1, min(COMPARED, n)).astype(int)]
        variances = [of_batches(theta, TRIED).var(axis=0, ddof=1) for theta in compared]
        noise = np.mean(variances, axis=0)
        count = max(1, int(np.ceil(noise.max() / (n * NOISE**2))))
        prior = np.reshape([gradients.prior_gradient(theta) for theta in draws], draws.shape)
        likelihood = np.array([of_batches(theta, count).mean(axis=0) for theta in draws])
        method = f"{count * gradients.batch_size} random rows, latent variables drawn anew"
        return GradientsAtDraws(prior @ matrix + likelihood, noise / count, method)
