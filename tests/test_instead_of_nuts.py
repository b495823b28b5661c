"""`sample` in the place of `pm.sample`: which calls, with which arguments, and for how long."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from inspect import signature
from threading import Barrier

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_sgmcmc as sgm
from pymc_sgmcmc.run.pymc_sample import pymc_sample_replaced

JAX = {"mode": "JAX"}


@pytest.fixture
def pymc_sample(monkeypatch):
    """In place of `pm.sample` a function that only says that it was called."""

    def sample(draws=1000, *, tune=None, step=None):
        return "pm.sample"

    monkeypatch.setattr(pm, "sample", sample)
    return sample


def test_is_back_after_an_error(pymc_sample):
    with suppress(ZeroDivisionError), sgm.instead_of_nuts():
        assert pm.sample is not pymc_sample
        raise ZeroDivisionError
    assert pm.sample is pymc_sample


def test_inner_block_first(pymc_sample):
    with pymc_sample_replaced(lambda **_: "outer"):
        with pymc_sample_replaced(lambda **_: "inner"):
            assert pm.sample() == "inner"
        assert pm.sample() == "outer"
    assert pm.sample is pymc_sample


def test_each_thread_for_itself(pymc_sample):
    """Blocks that overlap in time: each thread sees its own, and the last one to leave restores."""
    all_in, first_out = Barrier(3), Barrier(3)

    def one(name):
        if name is None:
            all_in.wait()
            called = pm.sample()
            first_out.wait()
            return called, pm.sample()
        with pymc_sample_replaced(lambda **_: name):
            all_in.wait()
            called = pm.sample()
            if name == "stays":
                first_out.wait()
                return called, pm.sample()
        first_out.wait()
        return called, pm.sample()

    with ThreadPoolExecutor(3) as pool:
        seen = list(pool.map(one, ["leaves", "stays", None]))
    assert seen == [("leaves", "pm.sample"), ("stays", "stays"), ("pm.sample", "pm.sample")]
    assert pm.sample is pymc_sample


def test_what_others_wrapped_meanwhile_stays(pymc_sample):
    with pymc_sample_replaced(lambda **_: "replacement"):
        replaced = pm.sample
        pm.sample = lambda **kwargs: replaced(**kwargs) + ", logged"
        wrapped = pm.sample
        assert pm.sample() == "replacement, logged"
    assert pm.sample is wrapped
    assert pm.sample() == "pm.sample, logged"
    with pymc_sample_replaced(lambda **_: "again"):
        assert pm.sample() == "again"
    assert pm.sample is wrapped


def test_a_step_of_its_own_is_left_to_pymc(pymc_sample):
    with pymc_sample_replaced(lambda **_: "replacement"):
        assert pm.sample(100, step=object()) == "pm.sample"
        assert pm.sample(100, step=None) == "replacement"


def test_unknown_arguments():
    with (
        pytest.raises(TypeError, match="'target_accept': it sets the step size of NUTS"),
        sgm.instead_of_nuts(target_accept=0.9),
    ):
        pass
    with (
        sgm.instead_of_nuts(),
        pytest.raises(TypeError, match=r"return_inferencedata.*leave it out"),
    ):
        pm.sample(return_inferencedata=False)


@pytest.mark.parametrize(
    ("given", "draws"),
    [({}, 1000), ({"ess": 200}, None), ({"draws": 50}, 50), ({"max_seconds": 9}, None)],
)
def test_arguments_of_the_library(given, draws, monkeypatch, caplog):
    """What is meant for NUTS is left out, and said; the rest arrives."""
    arrived = {}

    def record(draws=None, **kwargs):
        arrived.update(kwargs, draws=draws)

    record.__signature__ = signature(sgm.sample)
    monkeypatch.setitem(sgm.instead_of_nuts.__wrapped__.__globals__, "sample", record)
    model = pm.Model()
    with sgm.instead_of_nuts(chains=3, **given), caplog.at_level("INFO", "pymc.sgmcmc"):
        pm.sample(
            1000,
            tune=1000,
            init="auto",
            n_init=50_000,
            nuts={"target_accept": 0.9},
            nuts_sampler="pymc",
            return_inferencedata=True,
            chains=2,
            random_seed=[1, 2],
            var_names=["a"],
            idata_kwargs={"log_likelihood": True},
            backend=None,
            model=model,
        )
    passed = {"random_seed": [1, 2], "var_names": ["a"], "model": model, "chains": 3}
    passed["idata_kwargs"] = {"log_likelihood": True}
    assert arrived == {**passed, "draws": draws, **given}
    (message,) = caplog.messages
    unused = ["draws"] if draws is None else []
    unused += ["init", "n_init", "nuts", "nuts_sampler", "tune"]
    assert message.endswith(f"not used: {', '.join(unused)}.")


@pytest.mark.slow(6)
def test_arguments_fixed_before_the_model_exists():
    """As in CausalPy: a model that builds itself in fit, with arguments of an earlier object."""

    class Regression(pm.Model):
        def __init__(self, sample_kwargs):
            super().__init__()
            self.sample_kwargs = sample_kwargs

        def fit(self, X, y):
            with self:
                beta = pm.Normal("beta", 0, 10, shape=X.shape[1])
                mu = pm.Deterministic("mu", pm.Data("X", X) @ beta)
                pm.Normal("y_hat", mu, 1, observed=pm.Data("y", y))
                idata = pm.sample(**self.sample_kwargs)
                idata.update(pm.sample_posterior_predictive(idata, progressbar=False))
            return idata

    rng = np.random.default_rng(1)
    X = rng.normal(size=(3000, 2))
    y = X @ [1.0, -1.0] + rng.normal(size=3000)
    chosen = {"tune": 1000, "target_accept": 0.95, "random_seed": 1, "progressbar": False}
    model = Regression(chosen | {"chains": 2, "cores": 2, "draws": 100})
    with sgm.instead_of_nuts(compile_kwargs=JAX, ess=100, draws=100):
        idata = model.fit(X, y)
    assert idata.posterior["beta"].shape == (2, 100, 2)
    assert "adaptation" in idata.posterior.attrs
    assert idata.posterior_predictive["y_hat"].sizes["draw"] == 100
    covariance = np.linalg.inv(X.T @ X + np.eye(2) / 100)
    away = (idata.posterior["beta"].mean(["chain", "draw"]) - covariance @ X.T @ y).values
    # 200 draws with an effective sample size of 100 and more
    assert np.all(np.abs(away) < 4 * np.sqrt(np.diag(covariance) / 100))


def test_other_models():
    class Fits:
        def fit(self):
            raise AssertionError

    with pytest.raises(ValueError, match=r"must be a pymc\.Model.*with sgm\.instead_of_nuts\(\)"):
        sgm.sample(model=Fits())
    with pytest.raises(ValueError, match=r"must be a pymc\.Model, or None inside its context\.$"):
        sgm.sample(model=3)


@pytest.mark.slow(30)
@pytest.mark.parametrize("by", [pytest.param("block", marks=pytest.mark.long), "model="])
def test_bambi(by):
    """Predictors far from 0: the intercept is that of the formula only if Bambi's `fit` ran."""
    bambi = pytest.importorskip("bambi")
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"a": rng.normal(10, 1, size=300)})
    frame["y"] = 1.0 + 0.5 * frame["a"] + rng.normal(size=300)
    model = bambi.Model("y ~ a", frame)
    how = {"chains": 2, "draws": 150, "random_seed": 1, "quiet": True, "compile_kwargs": JAX}
    if by == "block":
        with sgm.instead_of_nuts(**how):
            idata = model.fit()
    else:
        idata = sgm.sample(model=model, **how)
    assert idata.posterior.sizes == {"chain": 2, "draw": 150}
    assert idata.posterior.attrs["modeling_interface"] == "bambi"
    assert "data_passes" in idata.posterior.attrs
    assert idata["diagnosis"].attrs["verdict"] in ("ok", "unclear")
    exact = np.polyfit(frame["a"], frame["y"], 1)
    sd = 1 / np.sqrt(300)
    # Errors of means: 150 x 2 draws, nearly independent, are within a fifth of an sd.
    assert abs(float(idata.posterior["a"].mean()) - exact[0]) < 0.3 * sd
    assert abs(float(idata.posterior["Intercept"].mean()) - exact[1]) < 0.3 * 10 * sd
    new = model.predict(idata, data=frame.head(3), inplace=False).posterior["mu"]
    expected = np.polyval(exact, frame["a"][:3])
    np.testing.assert_allclose(new.mean(["chain", "draw"]), expected, atol=0.1)


@pytest.mark.slow(40)
@pytest.mark.long
@pytest.mark.parametrize("by", ["block", "model="])
def test_bambi_predicts_the_observed_share(by):
    """With a flat intercept the posterior mean of the predicted share is the observed one.

    The expected gradient of a log posterior is 0, and that of the intercept is the sum over rows of
    what is observed minus what is predicted.
    """
    bambi = pytest.importorskip("bambi")
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"a": rng.normal(2, 1, size=2000), "g": rng.integers(0, 10, size=2000)})
    logit = 0.7 * frame["a"] - 2.5 + rng.normal(0, 0.5, size=10)[frame["g"]]
    frame["y"] = rng.binomial(1, 1 / (1 + np.exp(-logit)))
    flat = {"Intercept": bambi.Prior("Normal", mu=0, sigma=20)}
    model = bambi.Model("y ~ a + (1 | g)", frame, family="bernoulli", priors=flat)
    how = {"ess": 300, "random_seed": 1, "quiet": True, "compile_kwargs": JAX}
    if by == "block":
        with sgm.instead_of_nuts(**how):
            idata = model.fit()
    else:
        idata = sgm.sample(model=model, **how)
    few = idata.isel(draw=slice(None, None, 4))
    predicted = model.predict(few, inplace=False).posterior["p"].mean("__obs__")
    sd = float(predicted.std())
    chance = 4 * float(az.mcse(predicted))
    assert chance < 0.5 * sd  # of a share whose sd is about 0.01
    assert abs(float(predicted.mean()) - frame["y"].mean()) < chance + 0.1 * sd  # and the bias


@pytest.fixture(scope="module")
def customers():
    """Purchases of 4000 customers, each of whom may be gone after any of theirs."""
    rng = np.random.default_rng(1)
    n = 4000
    weeks = rng.uniform(20, 40, n)
    rate, dropout = rng.gamma(0.8, 1 / 4.0, n), rng.beta(0.8, 2.5, n)
    purchases, last = np.zeros(n), np.zeros(n)
    time, here = rng.exponential(1 / rate), np.ones(n, bool)
    while (here := here & (time < weeks)).any():
        purchases += here
        last = np.where(here, time, last)
        here &= rng.random(n) > dropout
        time += rng.exponential(1 / rate)
    columns = {"customer_id": range(n), "frequency": purchases, "recency": last, "T": weeks}
    return pd.DataFrame(columns)


@pytest.mark.slow(30)
@pytest.mark.long
def test_pymc_marketing_customers(customers):
    """Its `fit` builds the model; customers are rows, and come in batches."""
    clv = pytest.importorskip("pymc_marketing.clv", reason="needs an environment of its own")
    model = clv.BetaGeoModel()
    with sgm.instead_of_nuts(chains=2, draws=200, quiet=True, compile_kwargs=JAX):
        idata = model.fit(customers, random_seed=1)
    assert model.fit_result.sizes["draw"] == 200
    assert idata["diagnosis"].attrs["verdict"] in ("ok", "unclear")
    assert "batch_size=None" not in idata.posterior.attrs["inference_library_settings"]
    assert "model_config" in model.idata.attrs
    # What made the data is within 4 standard deviations of the posterior.
    for name, true in {"r": 0.8, "alpha": 4.0, "a": 0.8, "b": 2.5}.items():
        draws = model.fit_result[name]
        assert abs(float(draws.mean()) - true) < 4 * float(draws.std())
    again = model.expected_purchases(future_t=10).mean(["chain", "draw"])
    assert again.shape == (4000,)
    assert float(again.min()) > 0


@pytest.mark.slow(60)
@pytest.mark.long
def test_pymc_marketing_media():
    """Last week's advertising acts this week: there are no batches, and all rows are used."""
    mmm = pytest.importorskip("pymc_marketing.mmm", reason="needs an environment of its own")
    rng = np.random.default_rng(1)
    weeks = pd.date_range("2020-01-05", periods=150, freq="W")
    X = pd.DataFrame({"date": weeks, "tv": rng.gamma(2, 1, 150), "price": rng.normal(size=150)})
    seen = np.convolve(X["tv"] / X["tv"].max(), [0.6, 0.3, 0.1])[:150]
    y = pd.Series(5 + 3 * np.tanh(seen) - 0.5 * X["price"] + rng.normal(0, 0.3, 150), name="y")
    model = mmm.MMM(
        date_column="date",
        target_column="y",
        channel_columns=["tv"],
        control_columns=["price"],
        adstock=mmm.GeometricAdstock(l_max=3),
        saturation=mmm.LogisticSaturation(),
    )
    with sgm.instead_of_nuts(chains=2, draws=200, quiet=True):
        idata = model.fit(X, y, random_seed=1, target_accept=0.95)
    assert idata["diagnosis"].attrs["verdict"] in ("ok", "unclear")
    assert idata.posterior["channel_contribution"].sizes["draw"] == 200
    price = idata.posterior["gamma_control"] * y.max()
    assert abs(float(price.mean()) + 0.5) < 4 * float(price.std())
    assert float(price.std()) < 0.06
    predicted = model.sample_posterior_predictive(X, random_seed=1)["y"]
    assert np.corrcoef(predicted.mean("sample"), y)[0, 1] > 0.7
