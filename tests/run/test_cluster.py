"""Chains as tasks of a Dask cluster."""

import os
import signal
import threading
import time

import distributed
import numpy as np
import pytest
from kills import same, small_model, small_run, small_step

import pymc_sgmcmc as sgm
from pymc_sgmcmc.run.cluster import client_of

pytestmark = pytest.mark.slow(30)
LONG = {"draws": 200, "tune": 4, "discard_tuned_samples": True}


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def step(model):
    return small_step(model)


@pytest.fixture(scope="module")
def slow_step(model):
    """The same draws, six seconds for a chain of 200: time to disturb it."""

    def slowly(update):
        time.sleep(0.01)
        return 0.005

    return small_step(model, step_size=slowly)


@pytest.mark.long
def test_chains_are_those_of_one_process(client, model, step):
    expected = small_run(model, step)
    assert same(small_run(model, step, chain_method="dask", client=client), expected)


@pytest.mark.long
def test_predictions_come_from_the_workers(client, model, step):
    rows = np.random.default_rng(1).normal(size=(7, 2))
    results = [
        small_run(model, step, predictions=predictions, var_names=[], **options)
        for options in ({}, {"chain_method": "dask", "client": client})
        for predictions in [sgm.Predictions("y", {"X": rows}, np.ones(7), model=model)]
    ]
    assert same(*results)
    assert results[0].test_predictions.sizes["chain"] == 2


@pytest.mark.long
def test_chains_of_a_killed_worker_go_on_elsewhere(client, model, step, slow_step, tmp_path):
    """The result is that of the undisturbed run, and not all was done again."""
    expected = small_run(model, step, trace=tmp_path / "undisturbed", **LONG)
    store = sgm.ZarrStore(tmp_path / "disturbed", seconds=0.2)
    found = {}

    def kill_a_worker():
        while "n_draws" not in found:
            time.sleep(0.05)
            if store.exists and min(store.n_draws) > 15:
                found["n_draws"] = store.n_draws
                os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

    killer = threading.Thread(target=kill_a_worker, daemon=True)
    killer.start()
    result = small_run(model, slow_step, trace=store, chain_method="dask", client=client, **LONG)
    killer.join(1)
    assert max(found["n_draws"]) < LONG["draws"], "killed too late to show anything"
    assert same(result, expected)


@pytest.mark.long
def test_ctrl_c_ends_the_tasks_and_keeps_their_draws(client, model, step, slow_step):
    def ctrl_c(trace, draw):
        if draw.chain == 1 and draw.draw_idx == 20:
            os.kill(os.getpid(), signal.SIGINT)

    options = LONG | {"callback": ctrl_c, "chain_method": "dask", "client": client}
    expected = small_run(model, step, **LONG).posterior["w"]
    draws = small_run(model, slow_step, **options).posterior["w"]
    assert 10 < draws.sizes["draw"] < LONG["draws"]
    for chain in draws:
        whole = expected.sel(chain=chain.chain)
        np.testing.assert_array_equal(chain, whole[: chain.sizes["draw"]])


def test_an_error_in_a_chain_comes_home(client, model):
    broken = small_step(model, step_size=lambda update: 1 / (100 - update))
    with pytest.raises(ZeroDivisionError):
        small_run(model, broken, draws=60, chain_method="dask", client=client)


def test_a_client_is_needed(model, step, monkeypatch):
    def none_is_current():
        raise ValueError("Client.current() called without an active client")

    monkeypatch.setattr(distributed.Client, "current", none_is_current)
    with pytest.raises(ValueError, match=r"needs a client: create .*or pass client="):
        small_run(model, step, chain_method="dask")
    with pytest.raises(ValueError, match="has no workers"):
        client_of(type("Client", (), {"scheduler_info": lambda self: {"workers": {}}})())
