"""Statistics of a draw: exactly the same however its updates are split into compiled calls."""

import numpy as np
import pymc as pm
import pytest
from pytensor.compile.mode import Mode

import pymc_sgmcmc as sgm

MODE = Mode("py", "fast_compile")
THIN = 12


def exploding(update):
    return 0.002 if update != 2 * THIN + 8 else 1e200


@pytest.fixture(scope="module")
def step():
    """Latent variables, so that a statistic is a mean over updates; its third draw fails."""
    rng = np.random.default_rng(0)
    with pm.Model(coords={"obs": range(40)}):
        centre = pm.Normal("centre", [-1, 1], 3, shape=2)
        z = pm.Bernoulli("z", 0.5, dims="obs")
        pm.Normal("y", centre[z], 1, observed=rng.normal(size=40), dims="obs")
        return sgm.MSGNHT_S(
            step_size=exploding,
            batch_size=8,
            thin=THIN,
            latents=sgm.Gibbs([z], n_samples=2, burn_in=0),
            self_check=False,
            compile_kwargs={"mode": MODE},
        )


def draws_in_calls_of(step, lengths, monkeypatch):
    """Four draws whose calls have these lengths, in turn."""
    step.setup_chain(np.random.default_rng(1), 0, 4)
    turns = iter(lengths * 100)
    monkeypatch.setattr(type(step.chain.call_length), "took", lambda self, n, seconds: shorten())

    def shorten():
        step.chain.call_length.n_updates = next(turns)

    shorten()
    point, found = step.model.initial_point(), []
    for _ in range(4):
        point, [stats] = step.step(point)
        found.append((point, {k: v for k, v in stats.items() if k != "warning"}))
    return found


def test_the_split_into_calls_does_not_show(step, monkeypatch):
    whole = draws_in_calls_of(step, [THIN], monkeypatch)
    assert [stats["nonfinite"] for _, stats in whole] == [False, False, True, False]
    for lengths in ([1], [5], [2, 7, 3]):
        parts = draws_in_calls_of(step, lengths, monkeypatch)
        # Up to the failure: how much noise that draw has used up depends on its calls.
        for (point, stats), (other_point, other_stats) in zip(whole[:3], parts[:3], strict=True):
            for one, other in ((point, other_point), (stats, other_stats)):
                for name in one:
                    np.testing.assert_array_equal(other[name], one[name], err_msg=name)
    # A failed draw is undone, and has no statistics.
    (before, _), (failed, stats) = whole[1:3]
    np.testing.assert_array_equal(failed["centre"], before["centre"])
    for name in ("latent_moves", "potential", "gradient_norm", "kinetic_temperature"):
        assert np.isnan(stats[name])
