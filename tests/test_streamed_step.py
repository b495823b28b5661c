"""Steps on data that stays on disk: the same draws as from resident rows, and what is refused."""

import logging
import os
import pickle
import subprocess
import sys
import textwrap

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytest
from pymc.step_methods.state import equal_dataclass_values
from test_streaming import Loader

import pymc_sgmcmc as sgm
from pymc_sgmcmc import step as step_module
from pymc_sgmcmc.streaming import StreamedBatches

N = 3000
RUN = dict(progressbar=False, compute_convergence_checks=False)


@pytest.fixture(scope="module")
def rows():
    """Rows of a linear regression on bytes, sorted by the target."""
    rng = np.random.default_rng(42)
    X = rng.integers(256, size=(N, 2), dtype="uint8")
    y = (X / 255.0 - 0.5) @ [1.0, -0.5] + rng.normal(size=N)
    order = np.argsort(y)
    return {"X": X[order], "y": y[order]}


@pytest.fixture(scope="module")
def on_disk(rows, tmp_path_factory):
    """The same as memory maps."""
    directory = tmp_path_factory.mktemp("rows")
    for name, array in rows.items():
        np.save(directory / f"{name}.npy", array)
    return {name: np.load(directory / f"{name}.npy", mmap_mode="r") for name in rows}


def regression(rows):
    with pm.Model() as model:
        X = pm.Data("X", rows["X"], dims=("obs", "feature"))
        y = pm.Data("y", rows["y"], dims="obs")
        w = pm.Normal("w", 0, 3, dims="feature")
        pm.Normal("likelihood", (X / 255.0 - 0.5) @ w, 1, observed=y, dims="obs")
    return model


def make_step(model, data=None, **options):
    options = {"step_size": 0.005, "batch_size": 30, "thin": 7} | options
    options["compile_kwargs"] = {"mode": options.pop("mode", "JAX")}
    with model:
        return sgm.MSGNHT_S(data=data, **options)


def sample(model, step, **options):
    options = {"draws": 15, "tune": 5, "chains": 2, "cores": 1, "random_seed": 3} | RUN | options
    with model:
        return pm.sample(step=step, **options)


def draws(step, n=4, start=None, before_each=lambda: None):
    point, kept = start or step.model.initial_point(), []
    for _ in range(n):
        before_each()
        point, [stats] = step.step(point)
        kept.append([*point.values(), stats["potential"]])
    return point, kept


# ---- the same draws ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["JAX", "FAST_COMPILE"])
def test_same_draws_as_resident_rows_in_the_same_order(rows, on_disk, mode):
    """Row for row the same batches, N / n of all rows, bytes that are cast as the model casts."""
    options = dict(window=500, chunk=20)
    data = sgm.StreamedData(on_disk, **options)
    streamed = make_step(regression(data.head()), data, mode=mode)
    resident = make_step(regression(rows), mode=mode)
    for step in (streamed, resident):
        step.setup_chain(np.random.default_rng(1), 0, 0)
    numbers = StreamedBatches(
        sgm.StreamedData({"row": np.arange(N)}, **options), 30, np.random.default_rng(0)
    )
    numbers.state = streamed.batch_states[0]
    [batches] = resident._batches
    batches.take = lambda n: numbers.take(n)["row"].reshape(n, 30)
    tolerance = dict(rtol=1e-12) if mode == "FAST_COMPILE" else dict(rtol=1e-9)
    for a, b in zip(draws(streamed, 20)[1], draws(resident, 20)[1], strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, **tolerance)


def test_bytes_travel_as_bytes(on_disk):
    data = sgm.StreamedData(on_disk)
    step = make_step(regression(data.head()), data)
    [rows], constants = step._batches_of_call(4)
    types = {array.name: constants[k].dtype for k, (array, _) in enumerate(step.source.data, 1)}
    assert types == {"X": np.uint8, "y": np.float64}
    assert rows.shape == (4, 30)
    # a container of floats takes bytes, which become floats where they are used
    model = regression({"X": np.zeros((2, 2)), "y": np.zeros(2)})
    other = make_step(model, {"X": on_disk["X"], "y": on_disk["y"]})
    assert {array.name: v.dtype for array, v in other.source.data} == {"X": "uint8", "y": "float64"}
    for x, y in zip(draws(step)[1], draws(other)[1], strict=True):
        np.testing.assert_allclose(x[0], y[0])


@pytest.mark.parametrize("kind", ["arrays", "iterable"])
def test_posterior_of_sorted_rows(rows, kind):
    """Against the exact posterior: means within 5 standard errors, sds within 5 of theirs.

    The rows are sorted by the target, of arrays; an iterable's are in random order. Chains are
    independent: their means' spread gives the standard errors (16 chains). The integrator's
    and the minibatches' bias is far below: h = 0.02, lambda_max h^2 about 0.1; the thermostat takes
    up the noise, which replacement=True keeps white.
    """
    X, y = rows["X"] / 255.0 - 0.5, rows["y"]
    precision = X.T @ X + np.eye(2) / 9
    mean, sd = np.linalg.solve(precision, X.T @ y), np.sqrt(np.diag(np.linalg.inv(precision)))
    if kind == "arrays":
        data = sgm.StreamedData(rows, window=600, chunk=10)
    else:
        order = np.random.default_rng(5).permutation(N)
        data = sgm.StreamedData(
            Loader(rows["X"][order], y[order], keys=("X", "y")), window=600
        )
    step = make_step(
        regression(data.head()), data, batch_size=100, thin=40, replacement=True,
        step_size=0.01, diffusion=5.0,
    )  # fmt: skip
    idata = sample(step.model, step, draws=300, tune=50, chains=16)
    w = idata.posterior["w"].values
    of_means, of_sds = w.mean(axis=1), w.std(axis=1)
    off = np.abs(of_means.mean(axis=0) - mean)
    assert np.all(off < 5 * of_means.std(axis=0, ddof=1) / 4)
    assert np.all(of_means.std(axis=0, ddof=1) / 4 < 0.05 * sd)
    total = w.reshape(-1, 2).std(axis=0)
    assert np.all(np.abs(total / sd - 1) < 5 * of_sds.std(axis=0, ddof=1) / 4 / sd + 0.03)
