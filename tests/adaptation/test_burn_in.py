"""Runs with steps set by hand: thermostats that still drift are told, settled ones are not."""

import logging

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_sgmcmc as sgm
from pymc_sgmcmc.diagnosis.diagnose import warn_of_burn_in
from pymc_sgmcmc.diagnosis.measure import thermostat_drift

N, D = 100, 10


@pytest.fixture(scope="module")
def step():
    """Batches of 10: the thermostat has risen from D = 1 to 8.5 after some N^2 / 10 updates."""
    y = np.random.default_rng(1).normal(size=(N, D))
    with pm.Model():
        mu = pm.Flat("mu", shape=D)
        pm.Normal("y", mu, 1, observed=y)
        return sgm.MSGNHT_S(
            step_size=0.15 / N**0.5, batch_size=10, thin=10, compile_kwargs={"mode": "JAX"}
        )


def sample(step, draws, tune, chains, **kwargs):
    [data] = step.model.observed_RVs
    mean = step.model.rvs_to_values[data].eval(mode="FAST_COMPILE").mean(axis=0)
    options = {"chain_method": "vectorized", "random_seed": 1, "progressbar": False} | kwargs
    with step.model:
        idata = sgm.sample(
            draws, tune=tune, chains=chains, step=step, initvals={"mu": mean}, **options
        )
    z = (idata.posterior["mu"].values - mean) * N**0.5
    return idata, np.sqrt(np.square(z).mean())


@pytest.mark.slow(4)
def test_draws_of_a_thermostat_that_rises_are_told(step, caplog):
    with caplog.at_level(logging.INFO, "pymc"):
        idata, ratio = sample(step, draws=100, tune=0, chains=4)
    assert ratio > 1.15
    [told] = [m for m in caplog.messages if "burnt in" in m]
    assert "the thermostat rose" in told
    assert told.endswith("standard deviations are too large. Pass a longer tune.")
    found = sgm.diagnose(idata)
    assert found.verdict == "failed"
    assert found.remedy == told
    assert abs(np.sqrt(1 + float(found["thermostat_drift"])) / ratio - 1) < 0.05
    caplog.clear()
    sample(step, draws=100, tune=0, chains=4, compute_convergence_checks=False)
    assert not [m for m in caplog.messages if "burnt in" in m]


@pytest.mark.slow(4)
def test_draws_of_settled_thermostats_raise_no_alarm(step, caplog):
    """25 runs of 4 chains, whose chains are made in one call; all of their draws, or 20 of them."""
    idata, ratio = sample(step, draws=150, tune=300, chains=100, compute_convergence_checks=False)
    assert abs(ratio - 1) < 0.03
    stats = idata["sample_stats"].to_dataset()
    caplog.clear()
    for k in range(25):
        for draws in (150, 20):
            of_run = stats.isel(chain=slice(4 * k, 4 * k + 4), draw=slice(draws))
            warn_of_burn_in(xr.DataTree.from_dict({"/sample_stats": of_run}))
    assert not caplog.messages


def statistics(xi, prefix="", temperature=1.0):
    columns = {
        f"{prefix}thermostat": xi,
        f"{prefix}kinetic_temperature": np.full(xi.shape, temperature),
        f"{prefix}step_size": np.full(xi.shape, 0.1),
        "n_updates": np.tile(10 * np.arange(1, xi.shape[1] + 1), (len(xi), 1)),
    }
    return {name: (("chain", "draw"), values) for name, values in columns.items()}


def test_drift_is_the_mean_excess_of_the_temperature():
    """xi rises by h = 0.1 times p * p - T at each update, here by 0.5 times 10 of them a draw."""
    rising = np.tile(0.5 * np.arange(41.0), (2, 1))
    assert thermostat_drift(xr.Dataset(statistics(rising, temperature=1.5))) == pytest.approx(
        {"thermostat_drift": 0.5, "thermostat_drift_error": 0}
    )
    tempered = thermostat_drift(xr.Dataset(statistics(rising, temperature=5.5)))
    assert tempered["thermostat_drift"] == pytest.approx(0.1)
    both = statistics(rising, "sgnht_", 1.5) | statistics(-0.2 * rising, "msgnht_s_", 0.9)
    assert thermostat_drift(xr.Dataset(both))["thermostat_drift"] == pytest.approx(0.5)
    assert thermostat_drift(xr.Dataset(statistics(rising[:, :5], temperature=1.5))) == {}
    assert thermostat_drift(xr.Dataset({"potential": (("chain", "draw"), rising)})) == {}


def test_a_drift_that_falls_with_time_is_not_taken_for_noise():
    """Each chain's xi rises to 5 within the run, as all others, and jitters by 0.1."""
    rng = np.random.default_rng(1)
    xi = 5 * (1 - np.exp(-np.arange(101.0) / 30)) + 0.1 * rng.normal(size=(4, 101))
    measured = thermostat_drift(xr.Dataset(statistics(xi, temperature=1.05)))
    # The mean excess is the rise over all updates, and its error that of the ends.
    error = 0.1 * np.sqrt(2 / 4) / 100
    assert measured["thermostat_drift_error"] < 3 * error
    assert measured["thermostat_drift"] == pytest.approx(np.ptp(xi.mean(axis=0)) / 100, rel=0.05)
