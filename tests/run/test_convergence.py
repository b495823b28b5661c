"""Effective sample size and R-hat of many elements, against what chance gives."""

import numpy as np
import pytest

from pymc_sgmcmc.run.convergence import convergence


@pytest.mark.parametrize(
    "draws", [20, *(pytest.param(n, marks=pytest.mark.long) for n in (40, 80))]
)
def test_chance_does_not_look_like_chains_that_are_apart(draws):
    # The alarm is 0.001 per set; sets of 20 or 40 draws exceed 1.05, most of them.
    found = [
        convergence([np.random.default_rng(seed).normal(size=(4, draws, 300))]) for seed in range(8)
    ]
    assert all(each.rhat < each.rhat_by_chance for each in found)
    assert draws == 80 or np.median([each.rhat for each in found]) > 1.05


@pytest.mark.parametrize("draws", [20, 40, 80])
def test_a_chain_that_is_apart_is_seen(draws):
    each = np.random.default_rng(1).normal(size=(4, draws, 300))
    each[0, :, 7] += 4
    found = convergence([each])
    assert found.rhat > 1.4
    assert found.rhat > found.rhat_by_chance


def test_slow_chains_count_as_few_draws():
    innovations = np.random.default_rng(1).normal(size=(4, 200, 300))
    slow = np.empty_like(innovations)
    slow[:, 0] = innovations[:, 0] / np.sqrt(1 - 0.9**2)
    for k in range(1, 200):
        slow[:, k] = 0.9 * slow[:, k - 1] + innovations[:, k]
    found = convergence([slow])
    assert found.rhat > 1.2
    assert found.rhat < found.rhat_by_chance
    assert found.ess < 50


def test_constants_and_single_chains():
    one = np.random.default_rng(1).normal(size=(1, 100, 3))
    found = convergence([one, np.ones((1, 100))])
    assert found.rhat == found.rhat_by_chance == 1
    assert 50 < found.ess < 200
    assert convergence([]).ess == np.inf
