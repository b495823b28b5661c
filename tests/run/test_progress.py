"""What a user sees of a run: messages from the first second on, and bars that end at the draws."""

import io
import logging
import re
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
import rich

import pymc_sgmcmc as sgm
from pymc_sgmcmc.adaptation.objective import WholeObjective
from pymc_sgmcmc.run.progress import Progress

JAX = {"mode": "JAX"}


@pytest.fixture
def model():
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 10), 1, observed=rng.normal(size=2000))
    return model


@pytest.mark.slow(10)
@pytest.mark.parametrize(("bars", "kept"), [("split", 500), ("combined", 2000)])
def test_messages_and_bars(model, bars, kept, caplog, monkeypatch):
    """Draws are made in blocks: some more than 500 of each of 4 chains, of which 500 are kept."""
    ended = []

    class Watched(Progress):
        def kept(self, draws):
            assert self._done.min() - self._tune > draws
            super().kept(draws)
            ended.extend(task.fields["draw"] for task in self._backend._progress.tasks)
            assert all(task.completed == task.total for task in self._backend._progress.tasks)

    monkeypatch.setattr("pymc_sgmcmc.run_chains.Progress", Watched)
    rich.reconfigure(file=io.StringIO(), force_terminal=True, width=120)
    try:
        with model, caplog.at_level(logging.INFO):
            sgm.sample(random_seed=1, compile_kwargs=JAX, progressbar=bars)
    finally:
        rich.reconfigure()
    assert set(ended) == {kept}
    messages = [record.message for record in caplog.records]
    assert re.fullmatch(r"In all \d+ seconds, with compilation and warm-up\.", messages[-1])


def test_it_is_said_what_is_compiled_before_it_is(model, caplog, monkeypatch):
    def compiling(chain, point):
        assert "Initializing MSGNHT_S" in caplog.text
        raise InterruptedError

    monkeypatch.setattr("pymc_sgmcmc.chain.Chain.try_out", compiling)
    with model, caplog.at_level(logging.INFO), pytest.raises(InterruptedError):
        sgm.sample(random_seed=1, compile_kwargs=JAX, progressbar=False)


def test_a_longer_run_has_longer_bars(model):
    with model:
        bars = Progress(pm.Metropolis(compile_kwargs=JAX), 2, 500, 10, progressbar=False)
    totals = []
    for draws in (400, 750):
        bars.expect(draws)
        totals.append(bars._per_chain)
    assert totals == [510, 760]


def test_the_seconds_of_a_hessian_are_foreseen(monkeypatch):
    """As many gradients as it takes, each as slow as one before; nothing is foreseen after it."""
    clock = iter([10.0, 10.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    gradients = SimpleNamespace(
        size=3,
        gradients_of_hessian=6,
        log_prior=lambda theta: 0.0,
        prior_gradient=np.zeros_like,
        log_likelihood=lambda theta: (0.0, -theta),
        hessian=lambda theta: -np.eye(3),
    )
    told = []
    objective = WholeObjective(gradients, foresee=told.append)
    np.testing.assert_array_equal(objective.at(np.zeros(3)).curvature(), np.eye(3))
    assert told == [6 * 0.5, 0.0]
    assert objective.passes == 8
