"""What the examples with networks share: runs that can be killed, tables that go on."""

import json
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from kills import MODE

import pymc_sgmcmc as sgm

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def networks():
    sys.path.insert(0, str(EXAMPLES))
    try:
        import networks

        yield networks
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.mark.slow(7)
def test_a_run_goes_on(networks, tmp_path, monkeypatch):
    """A finished run is read, not made again; a longer one begins with the same draws."""
    monkeypatch.setattr(networks, "RESULTS", tmp_path)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)), rng.integers(3, size=60)
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        model = networks.classifier(X, y, [5, 4], activation=pt.tanh, prior_sd=2.0)
        start = networks.random_start(model, 1)
        assert {name: v.shape for name, v in start.items()} == {
            **{"W1": (4, 5), "b1": (5,), "W2": (5, 4)},
            **{"b2": (4,), "W3": (4, 3), "b3": (3,)},
        }
        with model:
            step = sgm.SGHMC_S(step_size=0.02, batch_size=20, compile_kwargs={"mode": MODE})
        rows = []
        for draws in (3, 3, 6):
            test = sgm.Predictions("y", {"X": X[:11]}, y[:11], model=model)
            tree = networks.run(
                "small", model, step, test, draws=draws, tune=2, seed=1, start=start, fresh=False
            )
            rows.append(networks.scores(tree["test_predictions"]))
    first, again, longer = rows
    assert again == first
    assert len(longer["curve"]) == 6
    assert longer["last_curve"][:3] == first["last_curve"]
    assert 0 <= longer["disagreement"] <= 1


def test_rows_of_a_table_are_made_once(networks, tmp_path):
    path, calls = tmp_path / "rows.json", []

    def make():
        calls.append(1)
        return {"error": 2.0}

    for settings, fresh, n_calls in (
        ({"epochs": 1}, False, 1),
        ({"epochs": 1}, False, 1),
        ({"epochs": 2}, False, 2),
        ({"epochs": 2}, True, 3),
    ):
        row = networks.Rows(path, settings, fresh).get("SGD", make)
        assert row["error"] == 2.0
        assert len(calls) == n_calls
    assert json.loads(path.read_text())["settings"] == {"epochs": 2}


def test_a_convolutional_network(networks):
    rng = np.random.default_rng(0)
    model = networks.convolutional(rng.random((6, 784)), np.arange(6))
    shapes = {v.name: v.type.shape for v in model.free_RVs}
    assert shapes["K2"] == (5, 5, 32, 64)
    assert shapes["W1"] == (1024, 200)
