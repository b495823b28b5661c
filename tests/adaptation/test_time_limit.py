"""What a long call says while it runs, that it will be slow, and how its time is limited."""

import io
import logging
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
import rich
from pymc.exceptions import SamplingError
from pytensor.compile.mode import Mode
from rich.console import Console

import pymc_sgmcmc as sgm
from pymc_sgmcmc.adaptation.adapted_settings import Adapted
from pymc_sgmcmc.adaptation.slow_draws_warning import warn_of_slow_draws
from pymc_sgmcmc.adaptation.warm_up_progress import WarmUpProgress, warm_ups

PYTHON = {"mode": Mode("py", "fast_compile")}
CHOSEN = Adapted(
    metric="dense", scaling=[], anchor=np.zeros(1), anchor_gradient=np.zeros(1),
    anchor_powers=np.zeros(1), row_copies=None, noise=np.zeros(1),
    friction=np.zeros(1), starts=np.zeros((1, 1)),
    largest_eigval=1.0, smallest_eigval=1.0, step_size=0.2, thin=100, batch_size=10, windows=2,
    ess_per_draw=0.5, passes_per_draw=2.0, data_passes=1.0, n_rows=100,
)  # fmt: skip


@pytest.fixture
def few_rows():
    x = np.linspace(-1, 1, 40)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 3)
        pm.Normal("y", a * x, 1.0, observed=2 * x)
    return model


def by_hand(model):
    with model:
        return sgm.MSGNHT_S(step_size=0.01, batch_size=5, compile_kwargs=PYTHON)


@pytest.mark.slow(3)
def test_a_run_ends_in_time_and_goes_on(few_rows, tmp_path, caplog):
    options = {"tune": 2, "chains": 2, "random_seed": 1, "progressbar": False}
    options |= {"compute_convergence_checks": False, "chain_method": "sequential"}
    options |= {"trace": tmp_path / "run", "max_seconds": 2}
    draws = []
    for resume in (False, True):
        with few_rows:
            tree = sgm.sample(10**6, step=by_hand(few_rows), resume=resume, **options)
        draws.append(tree.posterior["a"].to_numpy())
    first, more = draws
    assert 0 < first.shape[1] < more.shape[1] < 10**6
    np.testing.assert_array_equal(more[:, : first.shape[1]], first)
    assert "max_seconds=2 have passed" in caplog.text
    assert "resume=True" in caplog.text


def test_no_time_for_the_burn_in(few_rows):
    with few_rows, pytest.raises(SamplingError, match=r"No chain got past.*max_seconds=0.001"):
        sgm.sample(5, tune=10**6, step=by_hand(few_rows), max_seconds=1e-3, progressbar=False)


@pytest.mark.slow(3)
def test_no_time_for_the_warm_up(few_rows):
    told = r"max_seconds=0.001 have passed in the warm-up, at its stage 'start'.*sgm.MSGNHT_S\(\)"
    with few_rows, pytest.raises(SamplingError, match=told):
        sgm.sample(max_seconds=1e-3, compile_kwargs={"mode": "JAX"}, progressbar=False)


def test_a_long_warm_up_is_not_silent(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "pymc.sgmcmc")
    with warm_ups(shown=False), WarmUpProgress() as progress:
        progress.report("start", 3.0)
        assert not caplog.text
        monkeypatch.setattr("pymc_sgmcmc.adaptation.warm_up_progress.SECONDS_OF_SILENCE", -1.0)
        progress.report("window 1, about 40 s", 120.0)
    assert "Warm-up: window 1, about 40 s, 120 passes over the data, 0 s so far" in caplog.text


@pytest.mark.parametrize("terminal", [True, False])
def test_only_a_terminal_gets_a_line(terminal, monkeypatch):
    """Elsewhere, as in a file, not even an empty one."""
    screen = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    monkeypatch.setattr(rich, "_console", screen)
    with WarmUpProgress() as progress:
        progress.report_at_once("window 1", 3.0)
    assert ("Warm-up: window 1" in screen.file.getvalue()) == terminal
    assert bool(screen.file.getvalue()) == terminal


def test_slow_draws_are_foreseen(caplog):
    """In one line, beside NUTS; what is quick, in updates or in seconds, is not."""
    measure = (5e-3).__float__
    warn_of_slow_draws(CHOSEN, 1e-2, measure, 31)  # 800 s, but of few updates
    warn_of_slow_draws(replace(CHOSEN, thin=240), 1e-4, measure, 31)  # 19 s
    assert not caplog.text
    warn_of_slow_draws(replace(CHOSEN, thin=240), 1e-3, measure, 31)
    warn_of_slow_draws(replace(CHOSEN, passes_per_draw=6.0), 1e-2, measure, 31)
    warn_of_slow_draws(replace(CHOSEN, thin=240), 1e-3, lambda: pytest.fail("timed"), 31, True)
    one, other, integrated = caplog.messages
    assert "240 updates" in integrated
    assert "NUTS, pm.sample() without step=" in integrated
    assert "240 updates and 2 passes over the data each" in one
    assert "400 effective draws take about 3 min of CPU" in one  # 800 draws, 192 s
    assert "NUTS may take 21 min" in one  # 8000 draws of 31 gradients of 5 ms, 1240 s
    assert "noncentered=False" in one
    assert "100 updates and 6 passes" in other
