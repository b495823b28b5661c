"""The warm-up of models with more parameters than a matrix of curvature is made for."""

import logging

import numpy as np
import pymc as pm
import pytensor
import pytest
import xarray as xr

import pymc_sgmcmc as sgm
from pymc_sgmcmc.adaptation import kinds_of_model, metric_and_batch_size
from pymc_sgmcmc.gradients.metric import Diagonal
from pymc_sgmcmc.run import step_of_run
from pymc_sgmcmc.run.adapted_run import draws_of_many

N, D = 4000, 8
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, D)) * np.linspace(0.5, 3, D) + 0.5 * RNG.normal(size=(N, 1))
Y = X @ np.linspace(-1, 1, D) + RNG.normal(size=N)
PRECISION = X.T @ X + np.eye(D) / 4
"""Of the posterior of weights under N(0, 2^2), with unit errors."""


@pytest.fixture
def few_are_many(monkeypatch):
    """A matrix of 6 parameters is the largest."""
    monkeypatch.setattr(metric_and_batch_size, "LARGEST_DENSE", 6)
    monkeypatch.setattr(kinds_of_model, "LARGEST_DENSE", 6)
    monkeypatch.setattr(step_of_run, "LARGEST_DENSE", 6)


def regression():
    with pm.Model() as model:
        w = pm.Normal("w", 0, 2, shape=D)
        pm.Normal("y", pm.Data("X", X) @ w, 1, observed=Y)
    return model


@pytest.mark.slow(15)
def test_scales_and_curvature_are_those_of_the_posterior(few_are_many, caplog):
    with regression(), caplog.at_level(logging.INFO, "pymc.sgmcmc"):
        step = sgm.MSGNHT_S(compile_kwargs={"mode": "JAX"}, rng=1)
        tree = sgm.sample(draws=400, chains=4, step=step, random_seed=1, progressbar=False)
    adapted, metric = step.adapted, step.kernel.metric
    assert adapted.predictions_only
    assert isinstance(metric, Diagonal)
    scales = metric.times(np.ones(D))
    # 400 batches: their variance has a relative error of sqrt(2 / 400), its root of half of that;
    # residuals are independent of X, so that V / R is the diagonal of X'X.
    np.testing.assert_allclose(scales, np.diag(PRECISION) ** -0.5, rtol=0.18)
    # The curvature is that of 10 batches of 128 rows: X'X to some 10%.
    largest = np.linalg.eigvalsh(PRECISION * np.outer(scales, scales))[-1]
    assert adapted.largest_eigval == pytest.approx(largest, rel=0.25)
    # Chains have found the posterior, whose sds are a few thousandths.
    mean = np.linalg.solve(PRECISION, X.T @ Y)
    sd = np.sqrt(np.diag(np.linalg.inv(PRECISION)))
    draws = tree.posterior["w"].values
    assert np.abs((draws.mean((0, 1)) - mean) / sd).max() < 0.3
    assert step.thin == np.ceil(N / 128)
    assert tree.posterior.attrs["data_passes_warmup"] > 80  # Adam's, of four starts
    assert tree["diagnosis"].attrs["verdict"] == "unclear"
    assert "judge predictions" in tree["diagnosis"].attrs["remedy"]
    assert "R-hat" not in caplog.text


@pytest.mark.long
def test_chains_begin_at_starts_and_resume(few_are_many, tmp_path):
    with regression() as model:
        step = sgm.MSGNHT_S(compile_kwargs={"mode": "JAX"}, rng=1)
        run = {"chains": 2, "step": step, "random_seed": 2, "quiet": True, "tune": 0}
        whole = sgm.sample(draws=6, **run).posterior["w"].values
        sgm.sample(draws=3, trace=tmp_path / "run", **run)
        more = sgm.sample(draws=6, trace=tmp_path / "run", resume=True, **run).posterior["w"].values
        np.testing.assert_array_equal(whole, more)
        point, _ = step.step(model.initial_point())
    assert np.abs(point["w"] - step.adapted.starts[0]).max() < 0.5  # w = 0 is 100 sds away


def test_how_many_draws_and_no_diagnosis_of_the_posterior(few_are_many, monkeypatch):
    assert draws_of_many(None) == 100
    assert draws_of_many(7) == 7
    monkeypatch.setattr("pymc_sgmcmc.diagnosis.diagnose.LARGEST_DENSE", 6)
    draws = np.random.default_rng(0).normal(size=(2, 50, D))
    posterior = xr.Dataset({"w": (("chain", "draw", "w_dim"), draws)})
    with pytest.raises(ValueError, match=r"8 parameters.*at most 6 that move together: judge"):
        sgm.diagnose(xr.DataTree.from_dict({"/posterior": posterior}), regression())


# ---- what the default step is compiled with ------------------------------------------------


class Made(Exception):
    """Holds the arguments of a step."""


@pytest.fixture
def compiled_with(monkeypatch):
    """A function that returns the compile_kwargs of the default step of a call."""

    def make(**options):
        raise Made(options["compile_kwargs"])

    def of(model=None, **options):
        with model or regression(), pytest.raises(Made) as raised:
            sgm.sample(progressbar=False, **options)
        return raised.value.args[0]

    monkeypatch.setattr(step_of_run, "MSGNHT_S", make)
    with pytensor.config.change_flags(mode="Mode", linker="auto"):  # as a user has not changed them
        yield of


def test_jax_is_chosen_for_many_parameters(few_are_many, compiled_with, caplog):
    with caplog.at_level(logging.INFO, "pymc.sgmcmc"):
        assert compiled_with() == {"mode": "JAX"}
    assert "With 8 parameters the step is compiled with JAX" in caplog.text


def test_numba_is_kept_for_parameters_of_groups(few_are_many, compiled_with):
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        z = pm.Normal("z", shape=30)
        pm.Normal("y", (mu + tau * z)[np.arange(60) % 30], 1, observed=np.zeros(60))
    assert compiled_with(model) is None


def test_no_other_mode_than_the_users(few_are_many, compiled_with, monkeypatch):
    given = {"mode": "NUMBA"}
    assert compiled_with(compile_kwargs=given) == given
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        assert compiled_with() is None
    monkeypatch.setattr(step_of_run, "find_spec", lambda name: None)
    assert compiled_with() is None


def test_few_parameters_have_pytensors_mode(compiled_with):
    assert compiled_with() is None
