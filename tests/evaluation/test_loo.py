"""Leave-one-out estimates from some rows, against those from all of them."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytest
import xarray as xr

import pymc_sgmcmc as sgm

JAX = {"mode": "JAX"}
N, D = 600, 3


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, D))
    return X, X @ [1.0, -0.5, 0.0] + rng.standard_t(4, size=N)


def fitted(data, columns):
    """A linear regression on some columns, with exact draws of it for known noise."""
    X, y = data[0][:, :columns], data[1]
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 3, shape=columns)
        sigma = pm.HalfNormal("sigma", 3)
        pm.Normal("y", X @ beta, sigma, observed=y)
    covariance = 2 * np.linalg.inv(X.T @ X + np.eye(columns) / 9)
    rng = np.random.default_rng(2)
    draws = rng.multivariate_normal(covariance @ X.T @ y / 2, covariance, size=(4, 250))
    sds = rng.normal(1.4, 0.04, size=(4, 250))
    posterior = xr.Dataset(
        {"beta": (("chain", "draw", "column"), draws), "sigma": (("chain", "draw"), sds)}
    )
    return model, xr.DataTree.from_dict({"/posterior": posterior})


@pytest.fixture(scope="module")
def right(data):
    return fitted(data, D)


@pytest.fixture(scope="module")
def smaller(data):
    return fitted(data, 1)


@pytest.fixture(scope="module")
def of_all(right, smaller):
    """What ArviZ finds with the log likelihood of all rows."""
    found = []
    for model, idata in (right, smaller):
        whole = idata.copy()
        with pytensor.config.change_flags(mode="JAX"):
            pm.compute_log_likelihood(whole, model=model, progressbar=False)
        found.append(az.loo(whole, pointwise=True))
    return found


@pytest.mark.slow(4)
def test_all_rows_left_out(right, of_all):
    model, idata = right
    result = sgm.loo(idata, model, rows=np.arange(N), compile_kwargs=JAX)
    expected = of_all[0]
    for name in ("elpd", "p"):
        assert getattr(result, name) == pytest.approx(getattr(expected, name), rel=1e-6), name
    assert result.se == pytest.approx(expected.se, rel=0.01)  # divided by N - 1
    assert result.subsampling_se == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(result.elpd_i, expected.elpd_i, rtol=1e-6)
    np.testing.assert_allclose(result.pareto_k, expected.pareto_k, atol=1e-6)


@pytest.mark.slow(6)
def test_some_rows_left_out(right, of_all):
    """The error is that of the rows' choice, and far smaller than without the other rows."""
    model, idata = right
    expected, errors = of_all[0].elpd, []
    for seed in range(6):
        with model:
            result = sgm.loo(idata, rows=60, random_seed=seed, compile_kwargs=JAX)
        errors.append((result.elpd - expected) / result.subsampling_se)
        assert result.subsampling_se < 0.1 * N * float(result.elpd_i.std()) / np.sqrt(60)
    # Six standard errors of nearly normal estimates: their root mean square is 1 +- 0.29.
    assert 0.2 < np.sqrt(np.mean(np.square(errors))) < 2.2
    assert result.subsample_size == int(np.isfinite(result.elpd_i).sum()) == 60


@pytest.mark.slow(4)
def test_models_are_compared_on_the_same_rows(right, smaller, of_all):
    def difference(results):
        table = az.compare(dict(zip(("right", "smaller"), results, strict=True)))
        assert list(table.index) == ["right", "smaller"]
        return table.loc["smaller"]

    some = [sgm.loo(idata, m, rows=100, compile_kwargs=JAX) for m, idata in (right, smaller)]
    estimate, expected = difference(some), difference(of_all)
    # az.compare rounds what it shows.
    assert abs(float(estimate["elpd_diff"]) - float(expected["elpd_diff"])) < 4 * max(
        some[0].subsampling_se, some[1].subsampling_se
    )
    assert float(estimate["dse"]) == pytest.approx(float(expected["dse"]), rel=0.2)


@pytest.mark.slow(2)
def test_bad_input(right):
    model, idata = right
    for rows in (1, N + 1, 2.5):
        with pytest.raises(ValueError, match="rows="):
            sgm.loo(idata, model, rows=rows)
    for rows in ([1, 1, 2], [0.5, 1.5], [3]):
        with pytest.raises(ValueError, match="different numbers of at least two"):
            sgm.loo(idata, model, rows=rows)
    with pytest.raises(ValueError, match=r"from 0 to 599, but one is not"):
        sgm.loo(idata, model, rows=[0, N])
    with pytest.raises(TypeError, match="No model on context stack"):
        sgm.loo(idata)
    nothing = xr.DataTree.from_dict({"/posterior": idata["posterior"].to_dataset()[["sigma"]]})
    with pytest.raises(ValueError, match=r"no variable 'beta'"):
        sgm.loo(nothing, model)
