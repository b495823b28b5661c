"""Batches of whole groups: which rows, how often, and with what weights."""

from collections import Counter

import numpy as np
import pytest

from pymc_sgmcmc.batches.touched import GroupsOfRows, TouchedGroups
from pymc_sgmcmc.batches.whole_groups import GroupBatches, WholeGroups, coarsest, most_groups

SIZES = np.array([3, 1, 0, 25, 4, 4, 2, 1, 1, 7, 10, 0, 5])
"""Of groups with 0 to 25 rows."""
N, BATCH = SIZES.sum(), 10
GROUP = np.random.default_rng(0).permutation(np.repeat(np.arange(len(SIZES)), SIZES))


def whole_groups(slots=13):
    groups = GroupsOfRows.of(GROUP, len(SIZES), slots, "float64")
    return groups, WholeGroups(groups, BATCH)


def used_rows(rows):
    """The rows of a batch without those that fill it up."""
    return rows[: np.argmax(rows[1:] == rows[0]) + 1] if (rows[1:] == rows[0]).any() else rows


def test_epochs_have_each_row_once_and_groups_whole():
    _, whole = whole_groups()
    batches = GroupBatches(whole, np.random.default_rng(1))
    orders, deals = set(), set()
    for _ in range(5):
        epoch = [used_rows(rows) for rows in batches.take(whole.n_batches)]
        assert sorted(np.concatenate(epoch)) == list(range(N))
        for rows in epoch:
            for j in np.unique(GROUP[rows]):
                m = np.sum(GROUP[rows] == j)
                assert m == SIZES[j] or (j == 3 and m >= 8)  # 25 rows in three parts
        orders.add(tuple(GROUP[rows[0]] for rows in epoch))
        deals.add(frozenset(min(rows[GROUP[rows] == 3], default=-1) for rows in epoch))
    assert len(orders) == 5
    assert len(deals) > 1


def test_weights():
    """u for the rows, n_j / (m_j u) for the groups; nothing in places left over."""
    groups, whole = whole_groups()
    u = whole.n_batches * BATCH / N
    assert whole.row_weight == u
    rows = GroupBatches(whole, np.random.default_rng(1)).take(whole.n_batches)
    touched = TouchedGroups(groups, u).of(rows)
    for k, own in enumerate(rows):
        used = used_rows(own)
        m = np.bincount(GROUP[used], minlength=len(SIZES))
        np.testing.assert_allclose(whole.weights(rows)[k], u * (np.arange(BATCH) < len(used)))
        np.testing.assert_array_equal(touched.groups[k][touched.places[k]], GROUP[own])
        there = touched.weights[k] > 0
        found = touched.groups[k][there]
        assert sorted(found) == np.flatnonzero(m).tolist()
        np.testing.assert_allclose(touched.weights[k][there], SIZES[found] / m[found] / u)


def test_no_more_groups_than_slots():
    _, whole = whole_groups(slots=1)
    rows = GroupBatches(whole, np.random.default_rng(1)).take(whole.n_batches)
    assert {len(np.unique(GROUP[own])) for own in rows} == {1}
    assert whole.n_batches > whole_groups()[1].n_batches
    # one giant among many groups of one row: batches end before they are full of small ones
    assert most_groups(np.array([1] * 1000 + [10**5] * 2), batch_size=1000) < 150


@pytest.mark.parametrize("replacement", [False, True])
def test_a_restored_stream_goes_on(replacement):
    _, whole = whole_groups()
    one, other = (GroupBatches(whole, np.random.default_rng(k), replacement) for k in (1, 2))
    taken = one.take(2 * whole.n_batches + 3)
    parts = GroupBatches(whole, np.random.default_rng(1), replacement)
    found = [parts.take(n) for n in (1, whole.n_batches, whole.n_batches + 2)]
    np.testing.assert_array_equal(np.concatenate(found), taken)
    other.state = one.state
    np.testing.assert_array_equal(one.take(20), other.take(20))


def test_replacement_draws_batches_independently():
    _, whole = whole_groups()
    K = whole.n_batches

    def counts(replacement, n):
        rows = GroupBatches(whole, np.random.default_rng(1), replacement).take(n)
        return Counter(frozenset(GROUP[own]) for own in rows)

    once, many = counts(False, K), counts(True, 1000 * K)
    assert many.keys() == once.keys()
    for groups, n in once.items():  # binomial: the sd is below sqrt(1000 n)
        assert abs(many[groups] - 1000 * n) < 5 * np.sqrt(1000 * n)
    assert counts(True, K) != once


def test_which_groups_lie_in_which():
    rng = np.random.default_rng(0)
    school = rng.integers(20, size=300)
    district = (school * 7 % 20) // 4
    assert coarsest([school, district]) == 1
    assert coarsest([district, school, np.arange(300)]) == 0
    assert coarsest([school, rng.integers(5, size=300)]) is None
    assert coarsest([school]) == 0
