"""The number of updates of a compiled call, by the time that calls take."""

import pytest

from pymc_sgmcmc.compiled_call_length import CallLength

CALLS = 40
"""Enough to settle."""


def settled(fixed, per_update, longest=10**6, noise=()):
    """Updates and seconds of the last of many calls."""
    length, noise = CallLength(longest), iter(noise)
    for _ in range(CALLS):
        n = length.n_updates
        seconds = fixed + per_update * n
        length.took(n, seconds * next(noise, 1.0))
    return n, seconds


@pytest.mark.parametrize("per_update", [1e-5, 1e-3, 0.03, 10.0])
def test_calls_take_about_half_a_second(per_update):
    n, seconds = settled(0.0, per_update)
    assert n == 1 or 0.25 <= seconds <= 0.5
    assert n > 1 or per_update > 0.25


def test_calls_are_not_longer_than_the_draw():
    assert settled(0.0, 1e-6, longest=700) == pytest.approx((700, 7e-4))
    assert settled(0.3, 1e-6, longest=700) == pytest.approx((700, 0.3007))


@pytest.mark.parametrize("fixed", [0.02, 0.3, 0.6, 3.0])
@pytest.mark.parametrize("per_update", [1e-5, 1e-3])
def test_most_of_a_call_are_updates(fixed, per_update):
    """Also if copying the state alone takes longer than calls should: at least 60 percent.

    The length is a power of two, so calls may be half as long as they should be.
    """
    n, seconds = settled(fixed, per_update)
    assert per_update * n >= 0.6 * seconds
    assert seconds <= max(0.5, min(10 * fixed, 1.5), 4 * fixed) * 1.01


def test_nearly_all_of_a_call_are_updates_where_it_is_not_long():
    n, seconds = settled(0.15, 2e-5)
    assert 2e-5 * n >= 0.8 * seconds
    assert seconds <= 1.5


def test_a_slow_call_does_not_make_the_others_long():
    """The machine was busy in the first calls: no fixed cost is made of that."""
    for noise in ([1, 8], [1, 1, 1, 8], [1, 8, 1, 4]):
        _, seconds = settled(0.0, 1e-3, noise=noise)
        assert seconds <= 2
