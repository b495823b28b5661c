"""Shuffled epochs through a window: every row once per epoch, read in chunks of consecutive rows.

A window of W rows is filled with W / C chunks of C consecutive rows and its rows are shuffled. The
array's chunks are divided into W / C equal strata of consecutive chunks, and each window takes one
chunk of each stratum, in random order and without replacement. This is cluster sampling with one
cluster per stratum (Cochran, Sampling Techniques, 3rd ed., 1977): a quantity that changes slowly
along the array has almost the same mean in all windows.

With the design effect of a window (Kish, Survey Sampling, 1965), deff = W Var(window
mean) / Var(row), which is 1 for uniform sampling, the mean of n rows of a window has the variance
of n uniformly sampled rows times 1 + n (deff - 1) / W. For chunks in random order with the
intraclass correlation rho, deff = 1 + (C - 1) rho.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from scipy.stats import chi2

from pymc_sgmcmc.batches.data_sources import Passage, Pieces, refuse_nan_rows
from pymc_sgmcmc.batches.streamed_data import StreamedData

WINDOWS_COMPARED = 20
"""Number of windows, from the first, whose means are compared; it bounds the cost."""
ROWS_COMPARED, COLUMNS_COMPARED = 2**14, 64
"""Largest numbers of rows per window and of elements per row compared, which bound the cost."""
TOLERATED_DEFF = 10.0
"""Design effect above which the user is warned of the order: up to it, the variance of batches of
at most a hundredth of a window is at most 1.09 times that of uniformly sampled rows."""


type Check = Callable[[dict[str, np.ndarray]], None]


@dataclass(frozen=True)
class Window:
    """Shuffled rows, which are never modified, so that batches can be views of them."""

    rows: dict[str, np.ndarray]
    epoch: int
    """Number of the epoch, counted from 0 at the beginning of the stream."""
    epoch_state: dict[str, Any]
    """State of the stream's generator when the epoch began."""
    start: int
    """Number of rows of the epoch before this window."""

    @property
    def n_rows(self) -> int:
        """Number of rows in the window."""
        return len(next(iter(self.rows.values())))


def chunk_order(n_chunks: int, per_window: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the chunk numbers of each window, ascending."""
    n_windows = -(-n_chunks // per_window)
    n_strata = -(-n_chunks // n_windows)
    bounds = np.arange(n_strata + 1) * n_chunks // n_strata
    table = bounds[:-1, None] + np.arange(n_windows)
    table[table >= bounds[1:, None]] = -1  # strata may be one chunk short
    table = rng.permuted(table, axis=1)
    return [column[column >= 0] for column in table.T]


def window_ranges(data: StreamedData, rng: np.random.Generator) -> list[list[tuple[int, int]]]:
    """Return the ranges of consecutive rows that fill each window of one epoch."""
    n, window, chunk = data.n_rows, data.window, data.chunk
    if not data.by_row:
        return [[(k, min(k + window, n))] for k in range(0, n, window)]
    order = chunk_order(-(-n // chunk), window // chunk, rng)
    return [[(c * chunk, min((c + 1) * chunk, n)) for c in chunks.tolist()] for chunks in order]


def shuffled_windows(
    data: StreamedData,
    rng: np.random.Generator,
    position: int = 0,
    replacement: bool = False,
    order_check: "OrderCheck | None" = None,
    check: Check = lambda rows: None,
) -> Iterator[Window]:
    """Yield windows of all rows in random order without end, each epoch with new ones.

    Windows that end within the first ``position`` rows of the first epoch, which were already used,
    are skipped; only this stream uses ``rng``.
    """
    for epoch in count():
        epoch_state = dict(rng.bit_generator.state)
        windows = window_ranges(data, rng)
        seeds = rng.integers(2**63, size=len(windows))
        passage = Passage(data.sources)
        start = n_read = 0
        for ranges, seed in zip(windows, seeds, strict=True):
            n_rows = sum(end - begin for begin, end in ranges)
            pieces = (piece for begin, end in ranges for piece in passage.pieces(begin, end))
            if start + n_rows > position:
                own_rng = np.random.default_rng(seed)
                rows = _shuffled(pieces, n_rows, data, own_rng, replacement)
                check(rows)
                if order_check is not None:
                    order_check.see(rows)
                window = Window(rows, epoch, epoch_state, start)
                if window.n_rows == 0:  # the loader dropped all of its rows
                    break
                n_read += window.n_rows
                yield window
            elif not data.by_row:  # the rows of an iterable can only be skipped by reading them
                for _ in pieces:
                    pass
            start += n_rows
        passage.finish()
        if n_read == 0 and position == 0:
            labels = ", ".join(source.label for source in data.sources)
            raise ValueError(
                f"{labels} yields no rows in this epoch instead of {data.n_rows}: check that every "
                "pass over the iterable yields all rows."
            )
        position = 0


def _shuffled(
    pieces: Pieces, size: int, data: StreamedData, rng: np.random.Generator, replacement: bool
) -> dict[str, np.ndarray]:
    """Return rows in random order: each is written to a random place as it is read."""
    window = {name: np.empty((size, *f.shape), f.dtype) for name, f in data.formats.items()}
    places = rng.permutation(size)
    filled = 0
    for piece in pieces:
        for name, rows in piece.items():
            data.formats[name].check(name, rows)
            window[name][places[filled : filled + len(rows)]] = rows
        filled += len(rows)
    if filled < size:  # the end of an iterable that drops its last rows
        used = np.sort(places[:filled])
        window = {name: rows[used] for name, rows in window.items()}
    for name, rows in window.items():
        refuse_nan_rows(name, rows)
    if replacement:
        draws = rng.integers(filled, size=filled)
        window = {name: np.take(rows, draws, axis=0) for name, rows in window.items()}
    return window


def consecutive_rows(data: StreamedData, n: int) -> Iterator[dict[str, np.ndarray]]:
    """Check and yield all rows once, in their own order, n at a time (the last may be fewer)."""
    passage = Passage(data.sources)
    for first in range(0, data.n_rows, n):
        pieces = list(passage.pieces(first, min(first + n, data.n_rows)))
        if not pieces:
            break  # the end of an iterable that drops its last rows
        rows = {}
        for name, form in data.formats.items():
            joined = np.concatenate([piece[name] for piece in pieces])
            form.check(name, joined)
            refuse_nan_rows(name, joined)
            rows[name] = joined.astype(form.dtype, copy=False)
        yield rows
    passage.finish()


class OrderCheck:
    """Tests whether the first windows look like random samples of the same rows.

    In a one-way analysis of variance of some elements of m rows of each window, the mean square
    between windows over that within, F, is about 1 if windows are random samples; (F - 1) W / m + 1
    estimates the design effect.
    """

    def __init__(self) -> None:
        self.warning: str | None = None
        """Message about the order, if it is far worse than chance can explain."""
        self._n_rows: list[int] = []
        self._moments: dict[str, list[np.ndarray]] = {}

    def see(self, window: dict[str, np.ndarray]) -> None:
        """Include one more window in the comparison, unless it has no rows."""
        n_rows = len(next(iter(window.values())))
        if self.warning is not None or len(self._n_rows) == WINDOWS_COMPARED or n_rows == 0:
            return
        self._n_rows.append(n_rows)
        for name, rows in window.items():
            some = rows[:ROWS_COMPARED].reshape(min(len(rows), ROWS_COMPARED), -1)
            at = np.linspace(0, some.shape[1] - 1, min(some.shape[1], COLUMNS_COMPARED))
            values = some[:, at.astype(int)].astype(np.float64)
            moments = np.stack([values.sum(axis=0), np.square(values).sum(axis=0)])
            self._moments.setdefault(name, []).append(moments)
        if len(self._n_rows) > 1:
            with np.errstate(all="ignore"):  # means of infinite values cannot be compared
                self._judge()

    def design_effects(self) -> dict[str, tuple[float, float]]:
        """Return F and the design effect per container, averaged over the elements that vary."""
        effects = {}
        n_rows = np.array(self._n_rows, dtype=float)[:, None]
        sizes = np.minimum(n_rows, ROWS_COMPARED)
        freedom = len(sizes) - 1
        for name, moments in self._moments.items():
            sums, squares = np.stack(moments, axis=1)
            mean = sums.sum(axis=0) / sizes.sum()
            between = np.sum(sizes * (sums / sizes - mean) ** 2, axis=0)
            total = squares.sum(axis=0) - sizes.sum() * mean**2
            varies = total > 1e-9 * squares.sum(axis=0)
            if varies.any():
                within = np.maximum(total - between, 1e-9 * total) / (sizes.sum() - len(sizes))
                f = float(np.mean(between[varies] / freedom / within[varies]))
                effects[name] = f, 1 + (f - 1) * float(n_rows.mean() / sizes.mean())
        return effects

    def _judge(self) -> None:
        freedom = len(self._n_rows) - 1
        by_chance = chi2.isf(1e-6, freedom) / freedom
        for name, (f, effect) in self.design_effects().items():
            if f > by_chance and effect > TOLERATED_DEFF:
                self.warning = (
                    f"The first {freedom + 1} shuffle windows of data['{name}'] are not random "
                    f"samples of the same rows: the variance of their means is {effect:.3g} times "
                    "that of uniformly sampled rows. The data seem to be sorted (by time, label or "
                    "place), so draws may follow the windows. Shuffle the data on disk once "
                    "(shuffle_on_disk), or use smaller chunks or a larger window."
                )
