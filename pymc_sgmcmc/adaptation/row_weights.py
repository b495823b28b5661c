"""Which rows to draw more often: those whose gradients change most over the posterior."""

import numpy as np

from pymc_sgmcmc.gradients.metric import Metric
from pymc_sgmcmc.gradients.row_gradients import RowGradients

UNEVEN = 8
"""Rows are weighted where the largest change exceeds the mean by this factor."""
SAMPLE = 20_000
"""Rows that are looked at first."""
MOST_LOOKS, FEWEST_POSITIONS = 1_000_000, 4
"""Gradients of rows that all positions together may take, but at least so many positions."""
FORGET = 0.5
"""What was seen before counts by this factor: it may have been where the posterior is not."""
UNIFORM_SHARE = 0.2
"""Of the probability, spread over all rows: no weight exceeds 1 / this."""


class RowWeights:
    """The largest change seen of each row's gradient, from the anchor's, in the metric.

    Parameters
    ----------
    gradients : RowGradients

    Attributes
    ----------
    largest : array, shape (N,), or None
        None where rows are even.
    passes : float
        Passes over the data made so far.
    """

    def __init__(self, gradients: RowGradients):
        self.gradients = gradients
        self.largest: np.ndarray | None = None
        self.passes = 0.0

    def see(
        self, positions: np.ndarray, anchor: np.ndarray, metric: Metric, rng: np.random.Generator
    ) -> None:
        """Look at the rows at some positions, shape (positions, d)."""
        n_rows = self.gradients.n_rows
        if self.largest is None:
            some = np.arange(n_rows)
            if n_rows > SAMPLE:
                some = np.sort(rng.choice(n_rows, SAMPLE, replace=False))
            seen = self._changes(positions[:4], anchor, metric, some)
            if seen.max() < UNEVEN * seen.mean():
                return
            self.largest = np.zeros(n_rows)
        positions = positions[: max(FEWEST_POSITIONS, MOST_LOOKS // n_rows)]
        seen = self._changes(positions, anchor, metric, np.arange(n_rows))
        self.largest = np.maximum(FORGET * self.largest, seen)

    def _changes(self, positions, anchor, metric, rows) -> np.ndarray:
        largest = np.zeros(len(rows))
        block = 20_000
        for begin in range(0, len(rows), block):
            part = rows[begin : begin + block]
            at_anchor = self.gradients.rows(anchor, part)[1]
            for theta in positions:
                change = metric.transposed_times(self.gradients.rows(theta, part)[1] - at_anchor)
                size = np.sqrt(np.einsum("ij,ij->i", change, change))
                largest[begin : begin + block] = np.maximum(largest[begin : begin + block], size)
        self.passes += (len(positions) + 1) * len(rows) / self.gradients.n_rows
        return largest

    @property
    def copies(self) -> np.ndarray | None:
        """How often each row is in the urn, at least once; None where rows are even.

        q = .8 u / sum u + .2 / N, in units of .2 / N.
        """
        if self.largest is None:
            return None
        n = self.gradients.n_rows
        share = self.largest / self.largest.sum()
        return 1 + np.rint((1 - UNIFORM_SHARE) / UNIFORM_SHARE * n * share).astype(np.int64)
