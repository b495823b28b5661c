"""An earlier warm-up for new data: what is kept, what is found anew, and what is refused."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_sgmcmc as sgm
from pymc_sgmcmc.adaptation.adapted_settings import UnfitAdaptation

JAX = {"mode": "JAX"}
N, D = 4000, 3


def model_of(seed, n_columns=D, scale=1.0, n_rows=N):
    """A linear regression with known noise, and its posterior's mean and covariance."""
    rng = np.random.default_rng(seed)
    X = scale * rng.normal(size=(n_rows, n_columns))
    y = X @ np.arange(1.0, n_columns + 1) + rng.normal(size=n_rows)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 3, shape=n_columns)
        pm.Normal("y", X @ beta, 1, observed=y)
    covariance = np.linalg.inv(X.T @ X + np.eye(n_columns) / 9)
    return model, covariance @ X.T @ y, covariance


def step_of(model, **kwargs):
    return sgm.MSGNHT_S(model=model, rng=1, compile_kwargs=JAX, **kwargs)


@pytest.fixture(scope="module")
def yesterday():
    return step_of(model_of(1)[0])


@pytest.mark.slow(10)
def test_metric_and_step_size_are_kept_and_the_rest_is_of_the_new_data(yesterday):
    model, mean, covariance = model_of(2)
    today = step_of(model, adaptation=yesterday)
    then, now = yesterday.adapted, today.adapted
    # The noise's axes are those of the new data, but L L' is what it was.
    np.testing.assert_allclose(*(s[0] @ s[0].T for s in (then.scaling, now.scaling)), rtol=1e-5)
    assert (now.step_size, now.thin) == (then.step_size, then.thin)
    assert now.data_passes < then.data_passes / 3
    sd = np.sqrt(np.diag(covariance))
    assert np.abs((now.anchor - mean) / sd).max() < 0.1
    assert np.abs((then.anchor - mean) / sd).max() > 0.3  # or there would be nothing to find
    assert now.data_checksum == today.kernel.checksum() != then.data_checksum
    idata = sgm.sample(step=today, model=model, draws=300, random_seed=1, quiet=True)
    assert idata["diagnosis"].attrs["verdict"] == "ok"
    assert float(idata["diagnosis"]["anchor_error"]) < 1e-6
    assert idata.posterior.attrs["data_passes_warmup"] == now.data_passes
    # 1200 draws, nearly independent: the error of a mean is .03 sd, of an sd 2 percent.
    draws = idata.posterior["beta"]
    assert np.abs((draws.mean(["chain", "draw"]) - mean) / sd).max() < 0.15
    np.testing.assert_allclose(draws.std(["chain", "draw"]), sd, rtol=0.1)


@pytest.mark.slow(10)
def test_of_a_result(yesterday):
    """The group `adaptation` and the draws say what the step would have said."""
    model, *_ = model_of(2)
    options = {"model": yesterday.model, "draws": 50, "quiet": True, "random_seed": 1}
    idata = sgm.sample(step=yesterday, store_adaptation=True, **options)
    by_step = step_of(model, adaptation=yesterday).adapted
    by_result = step_of(model, adaptation=idata).adapted
    for name in ("anchor", "noise", "step_size", "thin"):
        np.testing.assert_allclose(getattr(by_result, name), getattr(by_step, name), rtol=1e-5)
    assert by_result.starts.shape == (16, D)
    away = (by_result.starts - by_result.anchor) @ np.linalg.inv(by_step.scaling[0]).T
    assert 0.5 < away.std() < 2  # posterior standard deviations, as draws are
    del idata["adaptation"]
    with pytest.raises(ValueError, match="sample with store_adaptation=True, or pass the step"):
        step_of(model, adaptation=idata)
    with pytest.raises(ValueError, match="without the group adaptation"):
        step_of(model, adaptation=xr.DataTree())


def groups(seed, n_groups):
    """Intercepts of groups of 4 to 9 rows."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(n_groups), rng.integers(4, 10, n_groups))
    y = rng.normal(0.5 + rng.normal(0, 0.7, n_groups)[group], 1)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
        pm.Normal("y", pm.Normal("u", mu, tau, shape=n_groups)[group], 1, observed=y)
    return model


@pytest.mark.slow(8)
def test_the_default_step_of_sample(yesterday):
    options = {"draws": 50, "quiet": True, "compile_kwargs": JAX}
    first = sgm.sample(
        model=yesterday.model, random_seed=1, store_adaptation=True, adaptation="auto", **options
    )
    model, mean, covariance = model_of(2)
    second = sgm.sample(model=model, random_seed=2, adaptation=first, **options)
    passes = [t.posterior.attrs["data_passes_warmup"] for t in (first, second)]
    assert passes[1] < passes[0] / 3
    away = (second.posterior["beta"].mean(["chain", "draw"]) - mean) / np.sqrt(np.diag(covariance))
    assert np.abs(away).max() < 4 / np.sqrt(100)  # of 200 draws, nearly independent


@pytest.mark.long
def test_groups_whose_effects_are_integrated_out():
    """Today's groups are other ones, and more; what they share is known from yesterday."""

    def sample(model, **kwargs):
        return sgm.sample(model=model, random_seed=1, quiet=True, **kwargs)

    first = sample(groups(1, 400), draws=50, store_adaptation=True)
    model = groups(2, 500)
    second, anew = sample(model, adaptation=first), sample(model)
    passes = [t.posterior.attrs["data_passes_warmup"] for t in (second, anew)]
    assert passes[0] < passes[1] / 3
    assert second["diagnosis"].attrs["verdict"] == "ok"
    assert float(second["diagnosis"]["anchor_error"]) < 1e-6
    assert second.posterior["u"].sizes["u_dim_0"] == 500
    for name in ("mu", "tau"):
        one, other = (t.posterior[name] for t in (second, anew))
        # Means of at least 400 effective draws: their difference has an error of 0.07 sd.
        assert abs(float(one.mean() - other.mean())) < 0.28 * float(other.std())
        assert float(one.std() / other.std()) == pytest.approx(1, abs=4 * 0.05)
        away = abs(float(first.posterior[name].mean() - other.mean())) / float(other.std())
        assert name != "mu" or away > 0.5  # or there would be nothing to find


def test_what_sample_refuses(yesterday):
    model = yesterday.model
    with pytest.raises(ValueError, match=r"must be 'auto', or the result.*adaptation=\.\.\."):
        sgm.sample(model=model, adaptation="dense")
    with pytest.raises(ValueError, match="sample with store_adaptation=True"):
        sgm.sample(model=model, adaptation=xr.DataTree())
    with pytest.raises(ValueError, match="pass it to the step that you made"):
        sgm.sample(model=model, step=yesterday, adaptation=xr.DataTree())


@pytest.mark.slow(8)
def test_what_does_not_fit_is_refused(yesterday):
    with pytest.raises(UnfitAdaptation, match="chosen for 3 parameters, but MSGNHT_S has 2 here"):
        step_of(model_of(2, n_columns=2)[0], adaptation=yesterday)
    with pytest.raises(UnfitAdaptation, match="does not fit these data: after 10 passes"):
        step_of(model_of(2, scale=5.0)[0], adaptation=yesterday)
    by_hand = step_of(model_of(1)[0], step_size=0.01, batch_size=10)
    with pytest.raises(ValueError, match="is a step that was not adapted"):
        step_of(model_of(1)[0], adaptation=by_hand)


@pytest.mark.slow(4)
def test_more_rows_than_then(yesterday):
    """The metric is too wide for them, and steps to the anchor are shorter."""
    model, mean, covariance = model_of(3, n_rows=4 * N)
    now = step_of(model, adaptation=yesterday).adapted
    assert np.abs((now.anchor - mean) / np.sqrt(np.diag(covariance))).max() < 0.2
    assert now.n_rows == 4 * N
