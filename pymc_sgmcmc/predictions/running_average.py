"""The predictions of one chain's draws, averaged one by one."""

from collections.abc import Callable
from typing import Any

import numpy as np
from pymc.blocking import PointType

from pymc_sgmcmc.predictions.metrics import HIGHER_IS_BETTER, entropy

Metrics = Callable[[np.ndarray], dict[str, float]]


class RunningAverage:
    """Weighted mean and variance of a chain's predictions, with metrics of draws and mean.

    ``metrics`` (None without labels) turns predictions into metrics by name, of which ``monitor``
    chooses the ``best`` draw.
    """

    def __init__(self, metrics: Metrics | None, classes: bool, monitor: str | None):
        self.metrics, self.classes, self.monitor = metrics, classes, monitor
        self._sign = 1.0 if monitor in HIGHER_IS_BETTER else -1.0
        self.n, self.total_weight = 0, 0.0
        self.mean: Any = None
        self.squares: Any = None
        """Weighted sum of squared differences from the mean (West 1979), shape (rows, ...)."""
        self.votes: Any = None
        """Number of draws whose most probable class this is, shape (rows, classes)."""
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
        """Return a value of the monitored metric with the sign by which more is better."""
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
