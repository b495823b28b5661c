"""When a run of free length ends: at the effective sample size, and when the verdict is clear."""

from types import SimpleNamespace

import numpy as np
import pytest

from pymc_sgmcmc.run.enough_draws import FEWEST, GROWTH, EnoughDraws

MOST = 4000


class Trace:
    """Independent draws of one variable, as many as were made."""

    def __init__(self, seed):
        self.samples = {"x": np.random.default_rng(seed).normal(size=MOST)}
        self.draw_idx = 0

    def __len__(self):
        return self.draw_idx


def ends_at(needs):
    """Draws of each of 4 chains at which a run ends, and those at which the verdict was asked."""
    traces = [Trace(seed) for seed in range(4)]
    run = SimpleNamespace(draws=MOST, model=SimpleNamespace(free_RVs=[SimpleNamespace(name="x")]))
    asked = []

    def times_as_many_draws():
        asked.append([len(trace) for trace in traces])
        return needs(len(traces[0]))

    enough = EnoughDraws(
        run, SimpleNamespace(n_warmup=0, traces=traces), 400, needs and times_as_many_draws
    )
    for made in range(100, MOST + 1, 100):
        for k, trace in enumerate(traces):
            trace.draw_idx = min(made + 10 * k, MOST)  # some chains are ahead
        if enough.reached():
            break
        assert [len(trace) for trace in traces] == [min(made + 10 * k, MOST) for k in range(4)]
    return [len(trace) for trace in traces], asked


def looks(n):
    return [int(np.ceil(FEWEST * GROWTH**k)) for k in range(n)]


@pytest.mark.parametrize("needs", [None, lambda draws: 1.0])
def test_ends_at_the_effective_sample_size(needs):
    ends, asked = ends_at(needs)
    assert ends == 4 * [FEWEST]
    assert asked == ([] if needs is None else [ends])


def test_goes_on_until_the_verdict_is_clear():
    """It needs 1000 draws of each chain, and is asked about as many as all chains have."""
    ends, asked = ends_at(lambda draws: max(1.0, 1000 / draws))
    assert ends == 4 * looks(3)[-1:]
    assert asked == [4 * [n] for n in looks(3)]


def test_ends_where_more_draws_do_not_help():
    """They do not lower the error, or more would be needed than may be made."""
    assert ends_at(lambda draws: 1.4)[0] == 4 * looks(2)[-1:]
    assert ends_at(lambda draws: (MOST + 1) / draws)[0] == 4 * [FEWEST]
