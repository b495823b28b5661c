"""Averages of predictions: of one chain's draws, one by one, and of all chains."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pymc.blocking import PointType
from xarray import Dataset

from pymc_sgmcmc.predictions.metrics import HIGHER_IS_BETTER, entropy

Metrics = Callable[[np.ndarray], dict[str, float]]


class RunningAverage:
    """Weighted mean and variance of a chain's predictions, with metrics of draws and mean.

    ``metrics`` (None without labels) turns predictions into metrics by name, of which ``monitor``
    names the one that chooses the ``best`` draw.
    """

    def __init__(self, metrics: Metrics | None, classes: bool, monitor: str | None):
        self.metrics, self.classes, self.monitor = metrics, classes, monitor
        self._sign = 1.0 if monitor in HIGHER_IS_BETTER else -1.0
        self.n, self.total_weight = 0, 0.0
        self.mean: Any = None
        self.squares: Any = None
        """Weighted sum of squared differences from the mean (West 1979), shape (rows, ...)."""
        self.votes: Any = None
        """Number of draws for which this class is the most probable one, shape (rows, classes)."""
        self.entropy: Any = None
        """Weighted mean of the draws' entropies, shape (rows,)."""
        self.weights: list[float] = []
        self.of_draws: dict[str, list[float]] = {}
        self.of_mean: dict[str, list[float]] = {}
        """Metrics of the average up to each draw."""
        self.best: dict[str, Any] | None = None

    def add(self, predictions: np.ndarray, weight: float, point: PointType) -> None:
        """Take one draw's predictions, and keep ``point`` if it is the best draw so far."""
        x = np.asarray(predictions, dtype=np.float64)
        if self.mean is None:
            self.mean, self.squares = np.zeros_like(x), np.zeros_like(x)
            if self.classes:
                self.votes, self.entropy = np.zeros(x.shape, dtype=np.int64), np.zeros(len(x))
        total = self.total_weight + weight
        share = weight / total
        change = x - self.mean
        mean = self.mean + share * change
        squares = self.squares + weight * change * (x - mean)
        if self.classes:
            self.entropy = self.entropy + share * (entropy(x) - self.entropy)
            votes = self.votes.copy()
            votes[np.arange(len(x)), x.argmax(axis=1)] += 1
            self.votes = votes
        self.n, self.total_weight, self.mean, self.squares = self.n + 1, total, mean, squares
        self.weights.append(weight)
        if self.metrics is not None:
            self._compare(self.metrics(x), self.metrics(mean), point)

    def rank(self, value: float) -> float:
        """Return a value of the monitored metric with the sign for which more is better."""
        return self._sign * value

    def _compare(self, now: dict[str, float], so_far: dict[str, float], point: PointType) -> None:
        for kept, new in ((self.of_draws, now), (self.of_mean, so_far)):
            for name, value in new.items():
                kept.setdefault(name, []).append(value)
        assert self.monitor is not None
        value = now[self.monitor]
        if self.best is None or self.rank(value) > self.rank(self.best["value"]):
            copies = {name: np.array(array) for name, array in point.items()}
            self.best = {"value": value, "draw": self.n - 1, "point": copies}

    # ---- saved state -----------------------------------------------------------------------

    _SAVED = ("n", "total_weight", "mean", "squares", "votes", "entropy", "best")

    def state(self) -> dict[str, Any]:
        """Return everything to which the next draws are added, as plain values."""
        return {name: getattr(self, name) for name in self._SAVED} | {
            "weights": np.array(self.weights),
            "of_draws": {name: np.array(values) for name, values in self.of_draws.items()},
            "of_mean": {name: np.array(values) for name, values in self.of_mean.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        for name in self._SAVED:
            setattr(self, name, state[name])
        self.weights = state["weights"].tolist()
        self.of_draws = {name: values.tolist() for name, values in state["of_draws"].items()}
        self.of_mean = {name: values.tolist() for name, values in state["of_mean"].items()}


def summarised(
    averages: Mapping[int, RunningAverage],
    metrics: Metrics | None,
    classes: bool,
    dims: Sequence[str],
    coords: Mapping[str, Any],
) -> Dataset:
    """Summarise the averages of chains that have draws, as `Predictions.to_dataset` describes."""
    each = list(averages.values())
    total = np.array([a.total_weight for a in each])
    means = np.stack([a.mean for a in each])
    mean = np.tensordot(total, means, 1) / total.sum()
    between = np.tensordot(total, (means - mean) ** 2, 1)
    within = np.sum([a.squares for a in each], axis=0)
    names = [*dims[:1], *(f"prediction_dim_{k}" for k in range(mean.ndim - 1))]
    if len(dims) == mean.ndim:
        names = list(dims)
    elif classes:
        names = [dims[0], "class"]
    elif not dims:
        names = [f"prediction_dim_{k}" for k in range(mean.ndim)]
    row = tuple(names)
    labels = {d: coords[d] for d in names if d in coords}
    table = Dataset(coords={"chain": list(averages), **labels})
    table["mean"] = row, mean
    table["sd"] = row, np.sqrt((within + between) / total.sum())
    table["chain_mean"] = ("chain", *row), means
    table["weight"] = ("chain", "draw"), _padded([a.weights for a in each])
    if classes:
        table["disagreement_of_draws"] = _disagreement_of_draws(each)
        table["disagreement_of_chains"] = _disagreement_of_chains(means)
        mean_entropy = np.tensordot(total, np.stack([a.entropy for a in each]), 1) / total.sum()
        table["mutual_information"] = ("test_row",), entropy(mean) - mean_entropy
    if metrics is not None:
        for name, value in metrics(mean).items():
            table[name] = value
            table[f"draw_{name}"] = ("chain", "draw"), _padded([a.of_draws[name] for a in each])
            table[f"running_{name}"] = ("chain", "draw"), _padded([a.of_mean[name] for a in each])
    return table


def _padded(series: Sequence[Sequence[float]]) -> np.ndarray:
    """Combine series side by side, with NaN after the end of shorter ones."""
    longest = max(map(len, series))
    table = np.full((len(series), longest), np.nan)
    for filled, values in zip(table, series, strict=True):
        filled[: len(values)] = values
    return table


def _disagreement_of_draws(averages: Sequence[RunningAverage]) -> float:
    """Return the share of pairs of draws, also across chains, that predict different classes."""
    votes = np.sum([a.votes for a in averages], axis=0)
    n = int(votes[0].sum())
    if n < 2:
        return np.nan
    same = np.sum(votes * (votes - 1), axis=1) / (n * (n - 1))
    return float(1 - same.mean())


def _disagreement_of_chains(means: np.ndarray) -> float:
    """Return the share of pairs of chains whose averages predict different classes."""
    if len(means) < 2:
        return np.nan
    predicted = means.argmax(axis=2)
    pairs = [np.mean(predicted[i] != predicted[j]) for i in range(len(means)) for j in range(i)]
    return float(np.mean(pairs))
