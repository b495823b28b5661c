"""How often batches touch each group of rows, and how precisely they then estimate its gradient."""

from typing import NamedTuple

import numpy as np


class TouchRates(NamedTuple):
    """How often each group is touched, and how well its gradient is known; arrays of one shape."""

    touched: np.ndarray
    """Probability that a batch has rows of the group."""
    variance: np.ndarray
    """Variance of the mean of the group's rows in such a batch, if each row has a variance of 1."""


def of_random_rows(sizes: np.ndarray, share: float) -> TouchRates:
    """Return the rates of groups of n_j rows in batches of a share of all rows, drawn uniformly."""
    expected = sizes * share
    variance = mean_of_inverse(expected) * (1 - 1 / np.maximum(sizes, 1))
    return TouchRates(-np.expm1(-expected), variance)


def of_whole_groups(sizes: np.ndarray, parts: np.ndarray, n_batches: int) -> TouchRates:
    """Return the rates of groups of n_j rows in K batches of whole groups."""
    p = np.maximum(parts, 1)
    small, larger = np.maximum(sizes, 1) // p, np.maximum(sizes, 1) % p  # parts with one more row
    mean_of_inverses = ((p - larger) / small + larger / (small + 1)) / p
    return TouchRates(parts / n_batches, mean_of_inverses - 1 / np.maximum(sizes, 1))


def of_groups_within(sizes: np.ndarray, parts: np.ndarray, n_batches: int) -> TouchRates:
    """Return the rates of groups of n_j rows that lie in the whole groups of K batches.

    The variance for groups whose larger group comes in ``parts`` is up to 20% too large.
    """
    p, n = np.maximum(parts, 1), np.maximum(sizes, 1)
    whole = parts <= 1
    touched = np.where(whole, sizes > 0, -p * np.expm1(-sizes / p))
    inverse = np.where(whole, 1 / n, mean_of_inverse(n / p))
    return TouchRates(touched / n_batches, np.maximum(inverse - 1 / n, 0.0))


def mean_of_inverse(expected: np.ndarray) -> np.ndarray:
    """Return E[1 / m] of m >= 1 rows in a batch, with m Poisson with these expectations."""
    expected, which = np.unique(expected, return_inverse=True)
    few = np.clip(expected, 1e-9, 30.0)
    terms = np.arange(1.0, 120.0)
    log_weights = terms * np.log(few)[..., None] - np.cumsum(np.log(terms)) - np.log(terms)
    mean = np.exp(log_weights - few[..., None]).sum(axis=-1) / -np.expm1(-few)
    inverse = 1 / np.maximum(expected, 1.0)
    large = inverse * (1 + inverse + 2 * inverse**2)
    return np.where(expected < 30.0, mean, large)[which]
