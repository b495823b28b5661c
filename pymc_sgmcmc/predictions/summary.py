"""The averages of all chains together, as a Dataset."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from xarray import Dataset

from pymc_sgmcmc.predictions.metrics import entropy
from pymc_sgmcmc.predictions.running_average import Metrics, RunningAverage


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
    """Put series side by side, with NaN after the end of shorter ones."""
    longest = max(map(len, series))
    table = np.full((len(series), longest), np.nan)
    for filled, values in zip(table, series, strict=True):
        filled[: len(values)] = values
    return table


def _disagreement_of_draws(averages: Sequence[RunningAverage]) -> float:
    """Return the share of pairs of draws, across chains too, that predict different classes."""
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
