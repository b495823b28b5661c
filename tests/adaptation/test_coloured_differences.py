"""Sparse Hessians from a few differences of gradients."""

import numpy as np
import pytest

from pymc_sgmcmc.adaptation.coloured_differences import (
    colours,
    hessian_by_colours,
    spread_of,
)


def blocks_and_shared(n_blocks, size, n_shared):
    """Blocks of parameters that no row has together, and some that all rows share."""
    block = np.repeat(np.arange(n_blocks), size)
    pattern = np.ones((len(block) + n_shared,) * 2, dtype=bool)
    pattern[: len(block), : len(block)] = block[:, None] == block
    return pattern


def band(size, width):
    index = np.arange(size)
    return np.abs(index[:, None] - index) <= width


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        (blocks_and_shared(30, 4, 3), 7),
        (blocks_and_shared(1, 5, 0), 5),
        (blocks_and_shared(40, 1, 1), 2),
        (band(50, 2), 9),
        (np.eye(6, dtype=bool), 1),
        (np.ones((5, 5), dtype=bool), 5),
    ],
    ids=["blocks and shared", "one block", "groups and their mean", "band", "diagonal", "full"],
)
def test_hessian_of_a_pattern(pattern, most):
    rng = np.random.default_rng(1)
    d = len(pattern)
    order = rng.permutation(d)
    pattern = pattern[np.ix_(order, order)]
    quadratic = np.where(pattern, rng.normal(size=(d, d)), 0.0)
    quadratic = quadratic + quadratic.T
    calls = []

    def gradient(theta):  # of theta' Q theta / 2 + sum theta^4 / 12
        calls.append(theta)
        return quadratic @ theta + theta**3 / 3

    theta, steps = rng.normal(size=d), rng.uniform(1e-4, 1e-3, size=d)
    of_column, full = colours(pattern)
    found = hessian_by_colours(gradient, theta, steps, pattern, of_column, full)
    np.testing.assert_allclose(found, quadratic + np.diag(theta**2), atol=1e-6)
    assert len(calls) <= 2 * most
    for c in range(of_column.max() + 1):  # no row has two elements of a colour, but of full rows
        assert pattern[np.ix_(~full, of_column == c)].sum(axis=1).max(initial=0) <= 1


def test_steps_are_finite_where_a_prior_curves_the_other_way():
    np.testing.assert_array_equal(spread_of(np.array([4.0, -0.12, 0.0])), [0.5, 1.0, 1.0])
