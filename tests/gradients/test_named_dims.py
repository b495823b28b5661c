"""Models of `pymc.dims` in batches: exact, as they follow their data, and drawn from."""

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor
import pytest
from models import CLASS, COUNT, GROUP, REAL, N, X
from test_gradients import PYTHON, assert_unbiased, average_over_batches
from xarray import DataArray

import pymc_sgmcmc as sgm
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.gradients.tempered import tempered

COORDS = {"obs": range(N), "feature": list("abc"), "group": list("pqrs"), "alternative": range(3)}


def by_row(values):
    return DataArray(values, dims=("obs",))


def hierarchical():
    x, group = (
        pmd.Data("x", X, dims=("obs", "feature")),
        pmd.Data("group_index", GROUP, dims=("obs",)),
    )
    w, sigma = pmd.Normal("w", dims=("feature",)), pmd.HalfNormal("sigma")
    effect = pmd.Normal("effect", 0, sigma, dims=("group",))
    mu = pmd.Deterministic("mu", pmd.dot(x, w, dim="feature") + effect.isel(group=group))
    pmd.Normal("y", mu, sigma, observed=pmd.Data("target", REAL, dims=("obs",)))


def constants_centred():
    x = pmd.as_xtensor(DataArray(X, dims=("obs", "feature")))
    rate = pmd.math.exp(((x - x.mean("obs")) * pmd.Normal("w", dims=("feature",))).sum("feature"))
    pmd.Poisson("y", rate, observed=by_row(COUNT))


def softmax():
    x = pmd.Data("x", X, dims=("obs", "feature"))
    w = pmd.Normal("w", dims=("feature", "alternative"))
    p = pmd.math.softmax((x * w).sum("feature"), dim="alternative")
    pmd.Categorical("y", p=p, core_dims="alternative", observed=by_row(CLASS))


def rows_not_first():
    x, w = pmd.Data("x", X, dims=("obs", "feature")), pmd.Normal("w", dims=("feature",))
    mu = (x * w).sum("feature") + pmd.Normal("shift", dims=("group",))
    values = DataArray(np.random.default_rng(9).normal(size=(4, N)), dims=("group", "obs"))
    pmd.Normal("y", mu, 1, observed=values, dims=("group", "obs"))


def multivariate_rows():
    chol = DataArray(np.eye(3), dims=("feature", "other"))
    mu = pmd.Normal("mu", dims=("feature",))
    x = pmd.Data("x", X, dims=("obs", "feature"))
    pmd.MvNormal("y", mu, chol=chol, core_dims=("feature", "other"), observed=x)


def plain_observed():
    """Named dims up to the likelihood, which is of plain tensors."""
    x, w = pmd.Data("x", X, dims=("obs", "feature")), pmd.Normal("w", dims=("feature",))
    pm.Normal("y", (x * w).sum("feature").values, 1, observed=REAL, dims="obs")


def model_of(rows_of):
    with pm.Model(coords=COORDS) as model:
        rows_of()
    return model


@pytest.mark.parametrize(
    "rows_of",
    [
        hierarchical,
        constants_centred,
        softmax,
        rows_not_first,
        multivariate_rows,
        plain_observed,
    ],
)
def test_average_over_batches_is_the_full_gradient(rows_of):
    model = model_of(rows_of)
    source = gradient_source(model, model.value_vars, batch_size=5)
    assert source.rows[0].n_rows == N
    assert_unbiased(model, source)


def test_whole_data_at_each_update():
    model = model_of(hierarchical)
    assert_unbiased(model, gradient_source(model, model.value_vars))


def test_potential_along_the_rows():
    with pm.Model(coords=COORDS) as model:
        x, mu = pmd.Data("x", REAL, dims=("obs",)), pmd.Normal("mu")
        pmd.Potential("fit", -((x - mu) ** 2))
    source = gradient_source(model, model.value_vars, batch_size=5)
    [gradient] = average_over_batches(source, {"mu": np.array(0.3)}, source.likelihood)
    np.testing.assert_allclose(gradient, 2 * (REAL - 0.3).sum())


def test_new_data_with_another_number_of_rows():
    rng = np.random.default_rng(5)
    model = model_of(hierarchical)
    source = gradient_source(model, model.value_vars, batch_size=5)
    new = {"x": rng.normal(size=(31, 3)), "group_index": rng.integers(4, size=31)}
    pm.set_data(new | {"target": rng.normal(size=31)}, model=model, coords={"obs": range(31)})
    assert source.rows[0].n_rows == 31
    assert_unbiased(model, source)


def refused(rows_of, match, **options):
    model = model_of(rows_of)
    with pytest.raises(ValueError, match=match):
        gradient_source(model, model.value_vars, batch_size=5, **options)


def test_rows_centred_by_their_own_mean():
    def rows_of():
        x = pmd.Data("x", REAL, dims=("obs",))
        pmd.Normal("y", pmd.Normal("w") * (x - x.mean()), 1, observed=by_row(REAL))

    refused(rows_of, "'y' is not conditionally independent along dim 'obs'")


def test_rows_drawn_together():
    def rows_of():
        chol = DataArray(np.eye(N), dims=("obs", "other"))
        mu = pmd.Normal("mu") + by_row(np.zeros(N))
        pmd.MvNormal("y", mu, chol=chol, core_dims=("obs", "other"), observed=by_row(REAL))

    refused(rows_of, "one draw of its distribution spans it", minibatch_dim="obs")


def test_an_element_for_each_row():
    def rows_of():
        pmd.Normal("y", pmd.Normal("z", dims=("obs",)), 1, observed=by_row(REAL))

    refused(rows_of, "'z' has an element for each row", minibatch_dim="obs")


def test_latents():
    def rows_of():
        pmd.Normal("y", pmd.Normal("z", dims=("obs",)), 1, observed=by_row(REAL))

    with model_of(rows_of), pytest.raises(ValueError, match=r"latents= does not work.*pymc\.dims"):
        sgm.SGLD(step_size=0.1, batch_size=5, latents=sgm.Gibbs(["z"]))


@pytest.mark.slow(7)
def test_draws_of_steps_and_of_chains_together():
    """Values and deterministics are recorded under their dims, by PyMC's loop and by ours."""
    model = model_of(hierarchical)
    with model:
        step = sgm.SGLD(step_size=1e-4, batch_size=5, thin=2, compile_kwargs={"mode": "JAX"})
        options = {"draws": 2, "tune": 1, "chains": 2, "random_seed": 1, "progressbar": False}
        options |= {"compute_convergence_checks": False}
        one = pm.sample(step=step, cores=1, **options).posterior
        idata = sgm.sample(
            step=step, chain_method="vectorized", var_names=["w", "sigma", "mu"], **options
        )
    many = idata.posterior
    assert one["mu"].dims == many["mu"].dims == ("chain", "draw", "obs")
    function = pytensor.function(
        model.value_vars, model.replace_rvs_by_values([model["mu"]])[0], mode=PYTHON,
        on_unused_input="ignore",
    )  # fmt: skip
    last = one.isel(chain=1, draw=1)
    mu = function(last["w"].values, np.log(last["sigma"].values), last["effect"].values)
    np.testing.assert_allclose(last["mu"], mu)
    assert many["w"].dims == ("chain", "draw", "feature")
    assert len(np.unique(many["w"])) == many["w"].size


@pytest.mark.long
def test_adapted():
    """The warm-up, the run and the verdict on it, with a transformed and a plain variable."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 2))
    y = x @ [1.0, -0.5] + 2 * rng.normal(size=400)
    with pm.Model(coords={"obs": range(400), "feature": list("ab")}) as model:
        w, sigma = pmd.Normal("w", 0, 3, dims="feature"), pmd.HalfNormal("sigma", 5)
        mu = (pmd.Data("x", x, dims=("obs", "feature")) * w).sum("feature")
        pmd.Normal("y", mu, sigma, observed=by_row(y))
        idata = sgm.sample(
            draws=200, chains=2, random_seed=1, quiet=True, compile_kwargs={"mode": "JAX"}
        )
    exact = np.linalg.lstsq(x, y)[0]
    # 400 draws, nearly independent: the error of a mean is a twentieth of an sd of 0.1.
    np.testing.assert_allclose(idata.posterior["w"].mean(["chain", "draw"]), exact, atol=0.03)
    assert idata["diagnosis"].attrs["verdict"] != "failed"
    assert "mean_virial" in idata["diagnosis"]
    assert model["sigma"].name in idata.posterior
    assert list(sgm.certificate(idata, model).index) == ["w[0]", "w[1]", "sigma"]
    assert idata["certificate"]["w"].dims == ("sample", "feature")
    assert float(idata["certificate"]["sigma"].min()) > 1
    assert set(sgm.robust(idata, model).posterior) == {"w", "sigma"}


def test_another_temperature_leaves_the_jacobian_of_a_transform_alone():
    """Of sigma = exp(s), whose log Jacobian is s: V has the slope of the log posterior + T - 1."""
    model = model_of(hierarchical)
    at = [np.array([0.3, -0.2, 0.1]), np.array(0.2), np.array([0.1, 0.2, -0.3, 0.4])]
    slopes = []
    for temperature in (1.0, 0.25):
        source = tempered(gradient_source(model, model.value_vars), model, temperature)
        values = dict(zip(source.vars, at, strict=True))
        slopes.append([g.eval(values, mode=PYTHON, on_unused_input="ignore") for g in source.prior])
    by_name = [v.name for v in source.vars]
    for name, warm, cold in zip(by_name, *slopes, strict=True):
        np.testing.assert_allclose(cold - warm, -0.75 if name.startswith("sigma") else 0.0)


def test_no_local_variables():
    with (
        model_of(hierarchical),
        pytest.raises(ValueError, match=r"variables of pymc\.dims move at"),
    ):
        sgm.SGLD(step_size=1e-4, batch_size=5, local=["effect"])
