"""The stream of row numbers."""

import numpy as np
import pytest
from scipy import stats

from pymc_sgmcmc.batches.shuffled import Batches


def stream(n_rows=23, batch_size=5, seed=0, replacement=False):
    return Batches(n_rows, batch_size, np.random.default_rng(seed), replacement)


@pytest.mark.parametrize(("n_rows", "batch_size"), [(24, 6), (23, 5), (7, 7), (5, 1), (10, 9)])
def test_every_row_once_an_epoch(n_rows, batch_size):
    rows = stream(n_rows, batch_size).take(4 * n_rows)
    assert rows.shape == (4 * n_rows, batch_size)
    assert rows.dtype == np.int64
    for epoch in rows.reshape(-1, n_rows):
        assert sorted(epoch) == list(range(n_rows))


def test_epochs_are_shuffled_anew():
    epochs = stream().take(23).reshape(5, 23)
    assert len({tuple(epoch) for epoch in epochs}) == 5


def test_calls_of_any_length_give_one_stream():
    whole, parts = stream(), stream()
    pieces = [parts.take(k) for k in (1, 3, 0, 17, 2)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole.take(23))


def test_no_row_is_starved():
    """Also where N % n != 0: after every batch, counts differ by one at most."""
    counts = np.zeros(23, dtype=int)
    for batch in stream().take(200):
        counts += np.bincount(batch, minlength=23)
        assert np.ptp(counts) <= 1


@pytest.mark.parametrize("replacement", [False, True])
def test_each_position_of_a_batch_is_uniform(replacement):
    """Chi-square test of the rows at the last position of many batches."""
    rows = stream(seed=11, replacement=replacement).take(23 * 2000)[:, -1]
    counts = np.bincount(rows, minlength=23)
    statistic = np.sum((counts - 2000.0) ** 2) / 2000.0
    assert statistic < stats.chi2(22).isf(1e-6)


def test_replacement_draws_rows_independently():
    """Pairs in a batch coincide with probability 1 / N (never without replacement in an epoch)."""
    n_batches = 20_000
    rows = stream(replacement=True).take(n_batches)
    same = np.mean(rows[:, 0] == rows[:, 1])
    p = 1 / 23
    assert abs(same - p) < 5 * np.sqrt(p * (1 - p) / n_batches)
    assert rows.dtype == np.int64


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 4, 23])
def test_saved_state_goes_on_identically(replacement, taken):
    first, second = stream(replacement=replacement), stream(seed=99, replacement=replacement)
    first.take(taken)
    second.take(2)
    second.state = first.state
    np.testing.assert_array_equal(first.take(30), second.take(30))
    assert first.state == second.state


def test_saved_state_does_not_move_with_the_stream():
    batches = stream()
    batches.take(3)
    state = batches.state
    expected = batches.take(40)
    batches.state = state
    np.testing.assert_array_equal(batches.take(40), expected)


@pytest.mark.parametrize("replacement", [False, True])
def test_seeds_make_different_streams(replacement):
    streams = [stream(seed=seed, replacement=replacement).take(10) for seed in range(5)]
    assert len({rows.tobytes() for rows in streams}) == 5
