"""Which rows to draw more often: those whose gradients change most over the posterior."""

import numpy as np

from pymc_sgmcmc.gradients.anchor_factors import AnchorFactors
from pymc_sgmcmc.gradients.metric import Metric
from pymc_sgmcmc.gradients.row_gradients import RowGradients

UNEVEN = 8
"""Ratio of the largest change to the mean above which rows are weighted."""
SAMPLE, SAMPLE_POINTS = 20_000, 4
"""Numbers of rows and of points with which this ratio is estimated."""
SPREAD = 0.5
"""Distance of these points from the anchor, relative to the posterior's spread."""
DISTANCE = 2.0
"""Distance from the anchor at which a row's gradient is evaluated, in standard deviations."""
BLOCK_ELEMENTS = 2**22
"""Largest number of elements of the rows' gradients that are held at once."""
FORGET = 0.5
"""Factor that discounts earlier changes, which may have been seen outside the posterior."""
UNIFORM_SHARE = 0.2
"""Share of the probability that is spread over all rows, so that no weight exceeds 1 / this."""


class RowWeights:
    """The largest change seen in each row's gradient in the metric; None if rows are even."""

    def __init__(self, gradients: RowGradients, factors: AnchorFactors):
        self.gradients, self.factors = gradients, factors
        self.largest: np.ndarray | None = None
        self.passes = 0.0

    def see(self, anchor: np.ndarray, metric: Metric, rng: np.random.Generator) -> None:
        """Evaluate the rows' gradients around an anchor."""
        if self.largest is None:
            if not self._uneven(anchor, metric, rng):
                return
            self.largest = np.zeros(self.gradients.n_rows)
        seen = self._changes(anchor, metric)
        self.largest = np.maximum(FORGET * self.largest, seen)

    def _uneven(self, anchor: np.ndarray, metric: Metric, rng: np.random.Generator) -> bool:
        """Whether some rows' gradients change far more than most, judged at a few random points."""
        n_rows = self.gradients.n_rows
        some = np.sort(rng.choice(n_rows, min(n_rows, SAMPLE), replace=False))
        self.passes += (1 + SAMPLE_POINTS) * len(some) / n_rows
        at_anchor = self.gradients.rows(anchor, some)[1]
        largest = np.zeros(len(some))
        for z in rng.standard_normal((SAMPLE_POINTS, len(anchor))):
            point = anchor + SPREAD * metric.times(z)
            there = self.gradients.rows(point, some)[1]
            change = there - self.factors.at(point, anchor) * at_anchor
            largest = np.fmax(largest, _length(metric.transposed_times(change)))
        return bool(largest.max() >= UNEVEN * largest.mean())

    def _changes(self, anchor: np.ndarray, metric: Metric) -> np.ndarray:
        """Return the largest change of each row's gradient, in its own direction from the anchor.

        A few random points that all rows share would miss the rows of rare columns.
        """
        n_rows = self.gradients.n_rows
        self.passes += 3
        largest = np.zeros(n_rows)
        block = max(1, BLOCK_ELEMENTS // len(anchor))
        for begin in range(0, n_rows, block):
            rows = np.arange(begin, min(begin + block, n_rows))
            at_anchor = self.gradients.rows(anchor, rows)[1]
            direction = metric.transposed_times(at_anchor)
            direction /= np.maximum(_length(direction), np.finfo(float).tiny)[:, None]
            away = DISTANCE * metric.times(direction)
            for points in (anchor + away, anchor - away):
                there = self.gradients.rows_at(points, rows)
                change = there - self.factors.at(points, anchor) * at_anchor
                change = _length(metric.transposed_times(change))
                largest[rows] = np.fmax(largest[rows], change)
        finite = np.isfinite(largest)
        largest[~finite] = largest[finite].max(initial=0.0)
        return largest

    @property
    def copies(self) -> np.ndarray | None:
        """Return the number of times each row is in the urn, at least once; None if rows are even.

        q = .8 u / sum u + .2 / N, in units of .2 / N.
        """
        if self.largest is None or not self.largest.any():
            return None
        n = self.gradients.n_rows
        share = self.largest / self.largest.sum()
        return 1 + np.rint((1 - UNIFORM_SHARE) / UNIFORM_SHARE * n * share).astype(np.int64)


def _length(vectors: np.ndarray) -> np.ndarray:
    """Return the length of each row."""
    return np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
