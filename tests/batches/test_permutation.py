"""Permutations of rows: every row once, in every order alike."""

import itertools

import numpy as np
import pytest
from scipy import stats

from pymc_sgmcmc.batches.permutation import MAX_SHUFFLED, Feistel, Shuffled, permutation

N = 100_000
MANY = 500
"""Permutations that a statistic is summed over."""


def order(kind, n, seed):
    rows = np.empty(n, dtype=np.int64)
    assert kind(np.random.default_rng(seed), n).fill(rows, 0)[0] == n
    return rows


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 2**16, 2**16 + 1, N, 2**20, 2**20 + 1])
def test_every_row_comes_once(n):
    np.testing.assert_array_equal(np.sort(order(permutation, n, 0)), np.arange(n))


@pytest.mark.parametrize("n", [5, 1000, 70_000, 2**17])
def test_pieces_of_any_length_are_one_order(n):
    whole, rng = order(permutation, n, 3), np.random.default_rng(1)
    rows, place, parts = permutation(np.random.default_rng(3), n), 0, []
    while True:
        part = np.full(rng.integers(0, n // 3 + 2), -1)
        count, place = rows.fill(part, place)
        parts.append(part[:count])
        if count < len(part):
            break
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert rows.fill(np.empty(1, dtype=np.int64), place)[0] == 0  # the end is the end


def test_small_permutations_are_equally_likely():
    """Chi-square over the 24 orders of 4 rows."""
    n = 24 * 1000
    _, counts = np.unique(
        [order(Shuffled, 4, seed) @ [64, 16, 4, 1] for seed in range(n)], return_counts=True
    )
    assert len(counts) == 24
    assert np.sum((counts - 1000.0) ** 2) / 1000 < stats.chi2(23).isf(1e-6)


@pytest.mark.parametrize("kind", [Shuffled, Feistel])
@pytest.mark.parametrize("apart", [0, 1, 7, 4096])
def test_neighbours_are_unrelated(kind, apart):
    """How often a row comes ``apart`` places after the row before it in the table.

    In a random permutation it happens about N * 1 / N times: the sum over many is Poisson's.
    With 0 apart, fixed points are counted. Two-sided, 1e-6 in all.
    """
    places = np.arange(N)
    count = 0
    for seed in range(MANY):
        rows = order(kind, N, seed)
        if apart == 0:
            count += np.sum(rows == places)
        else:
            count += np.sum(rows[apart:] == rows[:-apart] + 1)
    expected = stats.poisson(MANY)
    assert expected.ppf(5e-7) <= count <= expected.isf(5e-7)


@pytest.mark.parametrize("kind", [Shuffled, Feistel])
@pytest.mark.parametrize("low", [True, False])
def test_rows_do_not_depend_on_places(kind, low):
    """Chi-square of 16 x 16 classes of place and row, by their lowest bits or by their size.

    Over many permutations: both margins are fixed, so 225 degrees of freedom each.
    """
    n = 2**17
    places = np.arange(n)
    statistic = 0.0
    for seed in range(MANY):
        rows = order(kind, n, seed)
        of_place, of_row = (v % 16 if low else v // (n // 16) for v in (places, rows))
        table = np.bincount(16 * of_place + of_row, minlength=256)
        statistic += np.sum((table - n / 256) ** 2) / (n / 256) * (n - 1) / n
    distribution = stats.chi2(225 * MANY)
    assert distribution.ppf(5e-7) < statistic < distribution.isf(5e-7)


@pytest.mark.parametrize("kind", [Shuffled, Feistel])
def test_sums_of_batches_vary_as_drawn_without_replacement(kind):
    """Variance of the mean row of a batch: (N + 1) (N - n) / (12 n).

    That of the 2000 first batches, over many permutations; its relative standard error is about
    sqrt(2 / 400 000), here times 5.
    """
    n = 50
    means = [order(kind, N, seed)[: 2000 * n].reshape(-1, n).mean(axis=1) for seed in range(MANY)]
    variance = np.mean((np.concatenate(means) - (N - 1) / 2) ** 2)
    expected = (N + 1) * (N - n) / (12 * n)
    assert abs(variance / expected - 1) < 5 * np.sqrt(2 / (2000 * MANY))


def test_different_keys_give_unrelated_orders():
    """Places at which two permutations agree: Poisson's with mean 1 for each pair."""
    orders = [order(Feistel, N, seed) for seed in range(MANY + 1)]
    agreed = sum(int(np.sum(a == b)) for a, b in itertools.pairwise(orders))
    expected = stats.poisson(MANY)
    assert expected.ppf(5e-7) <= agreed <= expected.isf(5e-7)


def test_many_rows_take_no_memory():
    assert isinstance(permutation(np.random.default_rng(0), MAX_SHUFFLED), Shuffled)
    assert isinstance(permutation(np.random.default_rng(0), 10**12), Feistel)
    rows = np.empty(1000, dtype=np.int64)
    permutation(np.random.default_rng(0), 10**12).fill(rows, 10**11)
    assert len(set(rows)) == 1000
    assert 0 <= rows.min() < rows.max() < 10**12
