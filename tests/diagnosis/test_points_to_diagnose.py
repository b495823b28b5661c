"""Draws that are kept for the verdict alone."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_sgmcmc as sgm
from pymc_sgmcmc.diagnosis.diagnose import diagnose_run
from pymc_sgmcmc.run.points_to_diagnose import PointsToDiagnose

pytestmark = pytest.mark.usefixtures("one_graph_at_a_time")
JAX = {"mode": "JAX"}
QUICK = {"chains": 2, "tune": 5, "random_seed": 3, "progressbar": False}


@pytest.fixture(scope="module")
def step():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4000, 2))
    y = rng.normal(X @ [1.0, -1.0], 2.0)
    with pm.Model():
        w = pm.Normal("w", 0, 3, shape=2)
        sigma = pm.HalfNormal("sigma", 3)
        pm.Deterministic("snr", w[0] / sigma)
        pm.Normal("y", X @ w, sigma, observed=y)
        return sgm.MSGNHT_S(compile_kwargs=JAX, rng=1)


def verdict(tree):
    return tree["diagnosis"].to_dataset()


def test_evenly_spaced_of_each_chain():
    """From 5 to 9 of 100, 50 and 7 draws; of each chain as many as of the shortest."""
    points = PointsToDiagnose(most=15, n_chains=3)
    for chain, n in enumerate([100, 50, 7]):
        points.begin_chain(chain)
        for k in range(n):
            points.add(chain, {"a": np.array(k), "b": np.full(2, k + 0.5)})
    kept = [[int(p["a"]) for p in points.chains[k].points] for k in range(3)]
    assert kept == [[*range(0, 100, 16)], [*range(0, 50, 8)], [*range(7)]]
    draws = points.draws([pt.vector("b"), pt.scalar("a")])
    assert draws.shape == (3, 5, 3)
    np.testing.assert_array_equal(draws[..., 0], draws[..., 2] + 0.5)
    assert draws[0, :, 2].tolist() == [0, 16, 48, 64, 96]
    assert PointsToDiagnose(15, 3).draws([pt.scalar("a")]) is None


def test_a_point_may_change_afterwards():
    """Some loops write the next draw into the same memory."""
    points, value = PointsToDiagnose(4, 1), np.zeros(1)
    points.begin_chain(0)
    for k in range(3):
        value[:] = k
        points.add(0, {"a": value})
    assert points.draws([pt.vector("a")]).ravel().tolist() == [0, 1, 2]


@pytest.mark.long
def test_saved_and_resumed(step, tmp_path):
    """The verdict on a run that was stopped, and on a finished one, is that on the whole run."""
    settings = {**QUICK, "step": step, "model": step.model, "var_names": ["snr", "sigma"]}
    whole = sgm.sample(120, **settings)
    assert set(whole.posterior) == {"snr", "sigma"}
    assert verdict(whole).attrs["verdict"] == "ok"
    assert int(verdict(whole)["gradients"]) == 240
    store = sgm.ZarrStore(tmp_path / "run.zarr")
    sgm.sample(50, **settings, trace=store)
    for _ in range(2):
        resumed = sgm.sample(120, **settings, trace=store, resume=True)
        for name in ("gradient", "virial"):
            np.testing.assert_array_equal(verdict(resumed)[name], verdict(whole)[name])


def interrupted_at_once(trace, draw):
    raise KeyboardInterrupt


@pytest.mark.long
def test_resumed_and_interrupted_at_once(step, tmp_path):
    """Chains that have not been gone on with count with what they had: draws and averages."""
    with step.model:
        averages = sgm.Predictions("w")
    settings = {**QUICK, "step": step, "model": step.model, "var_names": ["sigma"]}
    settings |= {"predictions": averages, "chain_method": "sequential"}
    settings |= {"trace": sgm.ZarrStore(tmp_path / "run.zarr")}
    first = sgm.sample(60, **settings)
    # One draw more, of the first chain.
    again = sgm.sample(100, **settings, resume=True, callback=interrupted_at_once)
    np.testing.assert_array_equal(again.posterior.sigma[:, :60], first.posterior.sigma)
    assert int(verdict(again)["gradients"]) == 120
    one, other = again["average_w"]["chain_mean"].values
    before = first["average_w"]["chain_mean"].values
    np.testing.assert_allclose(one, before[0], atol=0.02)
    np.testing.assert_array_equal(other, before[1])


@pytest.mark.slow(8)
def test_chains_that_have_not_come_together(step):
    """Seen in what is not recorded: w is told apart by two chains, sigma is not."""
    settings = {**QUICK, "step": step, "model": step.model, "var_names": ["sigma"]}
    kept = sgm.sample(300, **settings)
    assert verdict(kept).attrs["verdict"] == "ok"
    assert float(verdict(kept)["ess"]) < 600
    points = PointsToDiagnose(most=600, n_chains=2)
    rng = np.random.default_rng(1)
    for chain in range(2):
        points.begin_chain(chain)
        for _ in range(300):
            w = np.array([1.0, -1.0]) + 0.03 * rng.normal(size=2) + 0.1 * chain
            points.add(chain, {"w": w, "sigma_log__": np.log(2.0) + 0.01 * rng.normal()})
    diagnose_run(kept, step, points)
    assert float(verdict(kept)["rhat"]) > 1.5


@pytest.mark.slow(8)
def test_begun_with_points_and_resumed_without(step, tmp_path):
    """A run that is resumed without checks, or that began without them, goes on all the same."""
    settings = {**QUICK, "step": step, "model": step.model, "var_names": ["sigma"]}
    whole = sgm.sample(60, **settings, compute_convergence_checks=False)
    for checks in ((True, False), (False, True)):
        store = sgm.ZarrStore(tmp_path / f"{checks[0]}.zarr")
        sgm.sample(20, **settings, trace=store, compute_convergence_checks=checks[0])
        resumed = sgm.sample(
            60, **settings, trace=store, resume=True, compute_convergence_checks=checks[1]
        )
        np.testing.assert_array_equal(resumed.posterior["sigma"], whole.posterior["sigma"])
        if checks[1]:
            assert int(verdict(resumed)["gradients"]) == 80  # those made since


def test_too_large_to_be_kept(monkeypatch, step):
    monkeypatch.setattr("pymc_sgmcmc.diagnosis.diagnose.LARGEST_POINT", 2)
    tree = sgm.sample(40, **QUICK, step=step, model=step.model, var_names=["sigma"])
    assert "diagnosis" not in tree.children


@pytest.mark.slow(5)
def test_nothing_recorded(step):
    """Chains are compared by the draws that are kept, if these are many."""
    with step.model:
        averages = sgm.Predictions("snr")
    settings = {**QUICK, "step": step, "model": step.model, "var_names": []}
    few = verdict(sgm.sample(60, **settings, predictions=averages))
    assert few.attrs["verdict"] == "unclear"
    assert "is unknown: draw more, and record" in few.attrs["remedy"]
    many = verdict(sgm.sample(300, **settings, predictions=averages))
    assert many.attrs["verdict"] == "ok"
    assert 100 < float(many["ess"]) < 1000
