"""Short runs of a warm-up's chains: each has random streams of its own."""

from itertools import combinations
from typing import NamedTuple

import numpy as np
import pytest
from pytensor.compile.mode import Mode

import pymc_sgmcmc as sgm
from pymc_sgmcmc.adaptation.short_runs import ShortRuns, rounded
from pymc_sgmcmc.adaptation.step_size import Pace

D = 4
"""Number of elements of the regression."""


class Window(NamedTuple):
    pace: Pace = Pace(1e-3, 1.0)
    noise: np.ndarray = np.zeros(D)

    def slower(self, factor):
        return Window(self.pace.slower(factor), self.noise)


@pytest.mark.slow(3)
def test_chains_share_no_stream(regression):
    """Nor do chains of the next run, from the same point, draw again what these drew."""
    with regression:
        step = sgm.MSGNHT_S(
            step_size=1e-3,
            batch_size=20,
            thin=2,
            compile_kwargs={"mode": Mode("py", "fast_compile")},
            rng=1,
        )
    point = {v.name: regression.initial_point()[v.name] for v in step.vars}
    runs = ShortRuns(
        step.kernel,
        np.random.default_rng(1),
        elements=lambda point: np.concatenate([np.ravel(x) for x in point.values()]),
        before_draw=lambda n_updates: None,
    )
    draws, chains = [], []
    for _ in range(2):
        draws += list(runs.run([point] * 3, Window(), thin=2, n=4).draws)
        chains += runs.chains
    values = np.stack(draws)
    assert values.shape == (6, 4, D)
    assert len(np.unique(values)) == values.size
    for one, other in combinations([chain.sampling_state for chain in chains], 2):
        assert one.noise_state != other.noise_state
        assert one.init_rng_state != other.init_rng_state
        assert str(one.batch_states) != str(other.batch_states)


def test_numbers_of_updates_are_rounded_up_to_four_binary_digits():
    """JAX compiles each of them anew."""
    assert [rounded(n) for n in (0.3, 7, 205.4, 209)] == [1, 7, 208, 224]
