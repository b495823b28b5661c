"""The statistician's way afterwards: ArviZ, predictions, log likelihood, files, Bambi."""

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytest
import xarray as xr

import pymc_sgmcmc as sgm

pytestmark = pytest.mark.slow(25)  # the fixture's, for whichever test is first


JAX = {"mode": "JAX"}


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """What PyMC compiles by itself is not numba's to compile, where a test does not say so."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(400, 2))
    return X, (rng.random(400) < 1 / (1 + np.exp(-(X @ [1.0, -0.5] + 0.3)))).astype(int)


@pytest.fixture(scope="module")
def fitted(data):
    """A logistic regression and its draws."""
    X, y = data
    coords = {"obs": np.arange(400), "feature": ["a", "b"]}
    with pm.Model(coords=coords) as model:
        features = pm.Data("X", X, dims=("obs", "feature"))
        target = pm.Data("target", y, dims="obs")
        w = pm.Normal("w", 0, 3, dims="feature")
        b = pm.Normal("b", 0, 3)
        pm.Bernoulli("y", logit_p=features @ w + b, observed=target, dims="obs")
        idata = pm.sample(
            400,
            tune=100,
            chains=4,
            cores=1,
            random_seed=1,
            progressbar=False,
            step=sgm.MSGNHT_S(
                step_size=0.01,
                batch_size=40,
                thin=50,
                replacement=True,
                compile_kwargs={"mode": "NUMBA"},
            ),
        )
    return model, idata


@pytest.mark.slow(9)
def test_posterior_is_nuts_posterior(fitted):
    """Means within 0.2 sd, sds within 15% of NUTS': the Monte Carlo error of about 500 draws.

    Both runs have an effective size of at least 500, so a mean has an error of 0.045 sd and an sd
    one of 3%; each bound lies beyond four of their combined standard errors.
    """
    model, idata = fitted
    with model:
        settings = {"chains": 2, "cores": 1, "random_seed": 1, "progressbar": False}
        nuts = pm.sample(500, tune=500, compile_kwargs=JAX, **settings)
    for name in ["w", "b"]:
        assert float(min(az.ess(idata)[name].min(), az.ess(nuts)[name].min())) > 500
        ours, theirs = idata.posterior[name], nuts.posterior[name]
        sd = theirs.std(["chain", "draw"])
        assert (abs(ours.mean(["chain", "draw"]) - theirs.mean(["chain", "draw"])) < 0.2 * sd).all()
        assert (abs(ours.std(["chain", "draw"]) / sd - 1) < 0.15).all()


@pytest.mark.slow(9)
def test_arviz(fitted):
    _, idata = fitted
    assert list(az.summary(idata).index) == ["w[a]", "w[b]", "b"]
    assert (az.rhat(idata)["w"] < 1.05).all()
    az.diagnose(idata)
    for plot in (az.plot_trace_dist, az.plot_rank, az.plot_ess_evolution, az.plot_forest):
        plot(idata, backend="none")
    az.plot_dist(idata, group="sample_stats", var_names=["potential", "thermostat"], backend="none")


@pytest.mark.slow(2)
def test_predictions_and_log_likelihood_are_for_all_rows(fitted):
    model, idata = fitted
    some = idata.copy()  # of 1600 draws: PyMC evaluates them one by one
    some["posterior"] = xr.DataTree(idata.posterior.to_dataset().isel(draw=slice(None, None, 4)))
    with model:
        predictive = pm.sample_posterior_predictive(some, progressbar=False, random_seed=2)
        with_log_likelihood = pm.compute_log_likelihood(
            some, progressbar=False, extend_inferencedata=True
        )
    assert predictive.posterior_predictive["y"].sizes["obs"] == 400
    rate = float(predictive.posterior_predictive["y"].mean())
    assert abs(rate - float(idata.observed_data["y"].mean())) < 0.03
    assert with_log_likelihood.log_likelihood["y"].sizes["obs"] == 400
    loo = az.loo(with_log_likelihood)
    assert 2 < loo.p < 4  # three parameters
    assert (loo.pareto_k < 0.7).all()


@pytest.mark.slow(8)
def test_loo_on_a_subset_of_rows(fitted, data):
    """The recipe of the docs: m random rows estimate the elpd of all N."""
    (X, y), (model, idata) = data, fitted
    rows = np.sort(np.random.default_rng(0).choice(400, size=100, replace=False))
    with model:
        everything = az.loo(pm.compute_log_likelihood(idata.copy(), progressbar=False))
        pm.set_data({"X": X[rows], "target": y[rows]}, coords={"obs": rows})
        subset = az.loo(pm.compute_log_likelihood(idata.copy(), progressbar=False))
        pm.set_data({"X": X, "target": y}, coords={"obs": np.arange(400)})
    estimate = subset.elpd * 400 / 100
    assert abs(estimate - everything.elpd) < 4 * subset_error(subset.elpd_i, 400)


def subset_error(elpd_i, n_rows):
    """Standard error of N / m times a sum over m of N rows drawn without replacement."""
    m = elpd_i.size
    return n_rows * float(elpd_i.std()) * np.sqrt((1 - m / n_rows) / m)


def test_netcdf_round_trip(fitted, tmp_path):
    _, idata = fitted
    path = tmp_path / "draws.nc"
    idata.to_netcdf(path)
    again = xr.open_datatree(path, engine="h5netcdf")
    for group in ("posterior", "sample_stats"):
        xr.testing.assert_equal(idata[group].to_dataset(), again[group].to_dataset().load())


@pytest.mark.slow(42)
def test_bambi(data):
    """Bambi's rows are constants of the graph; its own attributes must survive."""
    bambi = pytest.importorskip("bambi")
    X, y = data
    frame = pd.DataFrame({"y": y, "a": X[:, 0], "b": X[:, 1]})
    model = bambi.Model("y ~ a + b", frame, family="bernoulli")
    model.build()
    with model.backend.model:
        step = sgm.MSGNHT_S(
            step_size=0.01, batch_size=40, thin=50, replacement=True, compile_kwargs=JAX
        )
    idata = model.fit(
        draws=200, tune=50, chains=2, cores=1, step=step, random_seed=1, progressbar=False
    )
    assert abs(float(idata.posterior["a"].mean()) - 1.0) < 0.5
    assert abs(float(idata.posterior["b"].mean()) + 0.5) < 0.5
    predictions = model.predict(idata, data=frame.head(5), inplace=False)
    assert predictions.posterior["p"].shape == (2, 200, 5)
    with pytest.raises(ValueError, match="center_predictors=False"):
        sgm.diagnose(idata, model)


@pytest.mark.long
def test_float32(data):
    """With floatX=float32 everything is computed and recorded in float32."""
    import pytensor

    X, y = data
    with pytensor.config.change_flags(floatX="float32", warn_float64="raise"):
        with pm.Model() as model:
            w = pm.Normal("w", 0, 3, shape=2)
            pm.Bernoulli("y", logit_p=pm.Data("X", X) @ w, observed=y)
            step = sgm.MSGNHT_S(
                step_size=0.01, batch_size=40, thin=20, compile_kwargs={"mode": "NUMBA"}
            )
        point = model.initial_point()
        step.setup_chain(np.random.default_rng(0), 0, 0)
        for _ in range(3):
            point, _ = step.step(point)
    assert point["w"].dtype == np.float32
    assert all(a.dtype == np.float32 for arrays in step.sampler_state.values() for a in arrays)
    assert all(c.dtype != np.float64 for c in step.kernel.constants)
