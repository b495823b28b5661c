"""The verdict on draws: right ones pass, each kind of wrong ones fails, errors lose nothing."""

import copy
import json
import logging
import pickle
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor
import pytest
import xarray as xr
from pymc.distributions.transforms import ordered
from scipy import stats

import pymc_sgmcmc as sgm
from pymc_sgmcmc.diagnosis import diagnose
from pymc_sgmcmc.diagnosis.coordinates import Coordinates
from pymc_sgmcmc.diagnosis.diagnosis_table import Diagnosis
from pymc_sgmcmc.diagnosis.gradients_at_draws import AtDraws, GradientsAtDraws, RowsAtDraws
from pymc_sgmcmc.diagnosis.local_identities import means_of_others
from pymc_sgmcmc.diagnosis.measure import measure
from pymc_sgmcmc.diagnosis.stein import block_estimate, chain_correlation, stein_identities
from pymc_sgmcmc.diagnosis.verdict import NOTE, judge, rows, times_as_many_draws
from pymc_sgmcmc.diagnosis.verdict_rows import IDENTITIES, threshold
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.value_draws import value_draws

N, D = 3000, 3


@pytest.fixture(scope="module")
def posterior():
    """A linear regression with known noise: model, mean and covariance of the posterior."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, D)) @ np.array([[1, 0.8, 0], [0, 1, 0], [0, 0, 2.0]])
    y = X @ [1.0, -0.5, 0.2] + rng.normal(size=N)
    with pm.Model() as model:
        target = pm.Data("target", y)
        beta = pm.Normal("beta", 0, 3, shape=D)
        pm.Normal("y", X @ beta, 1, observed=target)
    covariance = np.linalg.inv(X.T @ X + np.eye(D) / 9)
    return model, covariance @ X.T @ y, covariance


@pytest.fixture(scope="module")
def step(posterior):
    with posterior[0]:
        return sgm.MSGNHT_S(rng=1)


@pytest.fixture(scope="module")
def run(posterior, step):
    return sample(step)


def sample(step, draws=300, **kwargs):
    options = {"progressbar": False, "chain_method": "vectorized", "random_seed": 1} | kwargs
    return sgm.sample(draws, step=step, model=step.model, chains=4, **options)


def exact(posterior, seed=1, draws=500):
    _, mean, covariance = posterior
    rng = np.random.default_rng(seed)
    return rng.multivariate_normal(mean, covariance, size=(4, draws))


def tree(**variables):
    dims = {
        k: ("chain", "draw", *(f"{k}_{i}" for i in range(v.ndim - 2))) for k, v in variables.items()
    }
    data = {k: (dims[k], v) for k, v in variables.items()}
    return xr.DataTree.from_dict({"/posterior": xr.Dataset(data)})


# ---- the parts ----------------------------------------------------------------------------------


def test_identities_of_a_gaussian():
    """4000 independent draws: the virial's standard error is sqrt(2 / 4000) = 0.022."""
    rng = np.random.default_rng(2)
    z = rng.normal(size=(4, 1000, 3)) * [1.0, 1.5, 0.7]
    found = stein_identities(z - z.mean(axis=(0, 1)), -z, blocks=10)
    np.testing.assert_allclose(found.virial.mean, [1.0, 2.25, 0.49], rtol=0.1)
    np.testing.assert_allclose(found.virial.error / found.virial.mean, 0.022, rtol=0.5)
    assert abs(found.mean_virial.mean - found.virial.mean.mean()) < 1e-12
    assert np.abs(found.gradient.mean).max() < 4 * 1.5 / np.sqrt(4000)
    assert np.abs(found.cross.mean).max() < 4 * 1.5 / np.sqrt(4000)
    assert found.pairs.tolist() == [[0, 1], [0, 2], [1, 2]]


def test_off_diagonals_see_a_wrong_correlation():
    """Draws of correlation 0.5 where the posterior has none: E[z_0 z_1] = 0.5."""
    rng = np.random.default_rng(2)
    z = rng.multivariate_normal(np.zeros(2), [[1, 0.5], [0.5, 1]], size=(4, 1000))
    found = stein_identities(z, -z, blocks=10)
    assert abs(found.cross.mean[0] - 0.5) < 4 * 1.1 / np.sqrt(4000)  # var z_0 z_1 = 1.25


def test_standard_errors_from_blocks_know_dependence():
    """AR(1) with rho = 0.9: the error is sqrt((1 + rho) / (1 - rho)) = 4.4 times the naive one."""
    rng = np.random.default_rng(3)
    x = np.zeros((4, 5000))
    for t in range(1, 5000):
        x[:, t] = 0.9 * x[:, t - 1] + np.sqrt(1 - 0.81) * rng.normal(size=4)
    error = block_estimate(x, 10).error
    assert 0.7 < error / (4.36 / np.sqrt(20_000)) < 1.3  # 40 blocks: relative error 11%


def test_threshold_is_that_of_the_largest_of_many():
    """Of 5 means of 40 blocks without an error, any exceeds it with probability 0.001."""
    rng = np.random.default_rng(4)
    blocks = rng.normal(size=(40_000, 5, 40))
    t = blocks.mean(axis=2) / (blocks.std(axis=2, ddof=1) / np.sqrt(40))
    share = (np.abs(t).max(axis=1) > threshold(5, 40)).mean()
    assert abs(share - 0.001) < 4 * np.sqrt(0.001 / 40_000)
    assert threshold(250, 40) > threshold(10, 40) > stats.norm.isf(0.00005)


def test_correlation_of_chains():
    rng = np.random.default_rng(5)
    apart, common = rng.normal(size=(4, 500, 3)), rng.normal(size=(500, 3))
    mean, error = chain_correlation(apart)
    assert abs(mean) < 4 / np.sqrt(6 * 1500)  # 6 pairs of chains
    assert error < 0.05
    assert chain_correlation(apart + common)[0] == pytest.approx(0.5, abs=0.1)


def test_means_of_others_leave_out_the_draw():
    """The other chains, or the other half of a single one."""
    means, part = means_of_others(np.array([[[1.0], [2.0], [4.0], [6.0]]]))
    assert (means.ravel().tolist(), part.tolist()) == ([5.0, 1.5], [0, 0, 1, 1])
    means, part = means_of_others(np.array([[[1.0], [3.0]], [[4.0], [6.0]], [[7.0], [9.0]]]))
    assert (means.ravel().tolist(), part.tolist()) == ([6.5, 5.0, 3.5], [0, 0, 1, 1, 2, 2])


@pytest.mark.slow(15)
def test_gradients_of_random_rows_are_unbiased(posterior):
    """With rows drawn alike or not, with and without the control variate, against exact ones.

    2000 estimates at one point: the mean's standard error is sqrt(noise / 2000).
    """
    model, mean, covariance = posterior
    rows = RowGradients(model, model.value_vars)
    matrix = np.linalg.cholesky(covariance)
    copies = 1 + np.arange(N) % 5
    for away, anchor in ((1.0, mean), (0.0, mean + 50 * matrix @ np.ones(D))):
        draws = np.tile(mean + away * matrix @ np.ones(D), (2000, 1))
        right = RowsAtDraws(rows, Coordinates(matrix, "", anchor))(draws[:1], exact=True)
        for urn in (None, copies):
            found = RowsAtDraws(rows, Coordinates(matrix, "", anchor, row_copies=urn))(draws)
            assert ("control variate" in found.method) == (away == 1.0)
            error = np.sqrt(found.noise / 2000)
            assert (np.abs(found.gradients.mean(axis=0) - right.gradients[0]) < 4 * error).all()
            np.testing.assert_allclose(found.gradients.var(axis=0), found.noise, rtol=0.3)
    estimates = RowsAtDraws(rows, Coordinates(matrix, "", anchor))
    more = estimates.with_rows(3)
    assert more is not None
    assert estimates.with_rows(5) is None
    # Variances of 100 x 20 and 300 x 20 rows' gradients, each with an error of some 3%.
    np.testing.assert_allclose(more(draws).noise, estimates(draws).noise / 3, rtol=0.25)


def test_draws_are_mapped_to_value_variables():
    """All kinds of transforms, one whose bounds are another variable, and one on its own."""
    with pm.Model() as model:
        low = pm.Normal("low")
        pm.Uniform("between", low, low + 2)
        pm.Dirichlet("simplex", np.ones(3))
        pm.Normal("ordered", 0, 1, shape=3, transform=ordered, initval=[-1, 0, 1])
        pm.HalfNormal("scale", shape=(2, 2))
    rng = np.random.default_rng(1)
    values = {
        str(v.name): rng.normal(size=(2, 4, *model.initial_point()[v.name].shape))
        for v in model.value_vars
    }
    back = model.compile_fn(
        model.replace_rvs_by_values(model.free_RVs), inputs=model.value_vars, mode="FAST_COMPILE"
    )
    drawn = {
        rv.name: np.empty((2, 4, *rv.shape.eval(mode="FAST_COMPILE"))) for rv in model.free_RVs
    }
    for at in np.ndindex(2, 4):
        point = {name: value[at] for name, value in values.items()}
        for rv, one in zip(model.free_RVs, back(point), strict=True):
            drawn[rv.name][at] = one
    found = value_draws(model, model.value_vars, tree(**drawn)["posterior"].to_dataset())
    expected = [values[str(v.name)].reshape(2, 4, -1) for v in model.value_vars]
    np.testing.assert_allclose(found, np.concatenate(expected, axis=2), rtol=1e-6, atol=1e-9)
    recorded = tree(**values)["posterior"].to_dataset()
    np.testing.assert_allclose(value_draws(model, model.value_vars, recorded), found, atol=1e-6)


# ---- the verdict --------------------------------------------------------------------------------


CHANCE = threshold(15, 40)
"""Number of standard errors that chance explains in what `measured` returns: 4.5."""


def measured(**changes):
    """What right draws give."""
    d = 4
    numbers = {
        **{"ess": 500.0, "nonfinite": 0.0, "gradients": 2000, "blocks": 40},
        **{"rhat": 1.0, "rhat_by_chance": 1.0},
        **{"mean_virial": 1.0, "mean_virial_error": 0.02, "anchor_error": 0.0},
        **{"thermostat": 1.1, "thermostat_predicted": 1.0},
        **{"chain_correlation": 0.0, "chain_correlation_error": 0.02},
    }
    arrays = {
        **{"gradient": np.zeros(d), "gradient_error": np.full(d, 0.03)},
        **{"virial": np.ones(d), "virial_error": np.full(d, 0.05), "gradient_noise": np.zeros(d)},
        **{"cross": np.zeros(6), "cross_error": np.full(6, 0.04)},
    }
    for name, value in changes.items():
        if name in arrays:
            arrays[name][-1] = value
        else:
            numbers[name] = value
    dims = {name: "pair" if name.startswith("cross") else "direction" for name in arrays}
    data = numbers | {name: (dims[name], a) for name, a in arrays.items()}
    coords = {"direction": range(d), "element": ("direction", list("abcd"))}
    return xr.Dataset(data, coords | {"pair": [f"p{k}" for k in range(6)]})


@pytest.mark.parametrize(
    ("changes", "verdict", "word"),
    [
        # the thresholds of 19 numbers from 40 blocks are 4.5 standard errors
        (
            {},
            "ok",
            "Nothing to do. Errors of 0.13 sd of a mean, 11% of a standard deviation and 0.18",
        ),
        ({"virial": 1.18}, "ok", ""),  # 3.6 errors: chance
        ({"virial": 1.09, "virial_error": 0.001}, "ok", ""),  # tolerated
        ({"virial": 1.3}, "failed", "too large, 1.1 times"),
        ({"virial": 0.7}, "failed", "too small, 0.84 times the right ones (mostly of 'd')"),
        ({"virial": -2.3}, "failed", "missed a part of the posterior (mostly of 'd')"),
        ({"mean_virial": 1.12}, "failed", "too large"),
        ({"gradient": -0.3}, "failed", "Means are off by up to 0.3 sd"),
        ({"cross": 0.4}, "failed", "Correlations"),
        ({"anchor_error": 0.02}, "failed", "anchor"),
        ({"nonfinite": 0.01}, "failed", "1.00%"),
        ({"rhat": 1.06}, "failed", "R-hat"),
        ({"rhat": 1.06, "rhat_by_chance": 1.07}, "ok", ""),
        (
            {"rhat": 1.23, "rhat_by_chance": 2.58},
            "unclear",
            "R-hat 1.23, and chance explains up to",
        ),
        ({"rhat": 1.06, "rhat_by_chance": np.inf}, "unclear", "draw more"),
        ({"rhat": 1.04, "rhat_by_chance": 1.3}, "ok", ""),
        ({"thermostat": 2.1}, "failed", "thermostat"),
        ({"thermostat_drift": 0.5, "thermostat_drift_error": 0.03}, "failed", "a longer tune"),
        ({"thermostat_drift": -0.2, "thermostat_drift_error": 0.03}, "failed", "are too small"),
        ({"thermostat_drift": 0.5, "thermostat_drift_error": 0.2}, "ok", ""),
        ({"thermostat_drift": 0.08, "thermostat_drift_error": 0.001}, "ok", ""),
        ({"held_temperature": 1.2, "held_temperature_error": 0.02}, "failed", "temperature"),
        ({"chain_correlation": 0.3}, "failed", "together"),
        ({"ess": 50.0}, "unclear", "sample size is only 50"),
        ({"ess": np.nan}, "unclear", "sample size"),
        ({"virial_error": 0.2}, "unclear", "draw more"),
        ({"virial_error": 0.2, "gradient_noise": 90.0}, "unclear", "full_data=True"),
        ({"virial_error": np.nan}, "unclear", "few"),
        ({"virial_error": 0.2, "rhat": 1.2}, "failed", "R-hat"),
    ],
)
def test_verdicts(changes, verdict, word):
    found, remedy = judge(measured(**changes))
    assert found == verdict
    assert word in remedy
    assert remedy.endswith(".")


def test_wrong_means_with_batches_of_single_rows_of_groups():
    seen = measured(gradient=-0.3)
    assert "batches='groups'" in judge(seen.assign_attrs(batches="rows"))[1]
    assert "draw more" in judge(seen.assign_attrs(batches="groups"))[1]


@pytest.mark.parametrize(
    ("virial", "error", "groups", "share", "verdict"),
    [
        (1.01, 0.0007, 2000, 0.5, "failed"),
        (0.99, 0.0007, 2000, 0.5, "failed"),
        (0.99, 0.0007, 2000, 0.9, "failed"),
        (1.003, 0.0007, 2000, 0.5, "ok"),  # tolerated: 0.1 sqrt(2 / 2000) = 0.0032
        (1.01, 0.0007, 2000, 0.2, "ok"),  # 4 times as much: rows tell more than the scale does
        (1.01, 0.003, 2000, 0.5, "ok"),  # chance
        (1.01, 0.0007, 100, 0.5, "ok"),  # they know their scale less well
        (1.01, 0.0007, 1, 0.5, "ok"),  # not of groups
    ],
)
def test_groups_are_right_to_what_the_scale_that_they_share_needs(
    virial, error, groups, share, verdict
):
    seen = measured(virial=virial, virial_error=error)
    seen["element"] = "direction", ["a", "b", "c", "d, mean of all"]
    seen["shared_by"] = "direction", [1, 1, 1, groups]
    seen["prior_share"] = "direction", [1, 1, 1, share]
    found, remedy = judge(seen.assign_attrs(batches="rows"))
    assert found == verdict
    if verdict == "failed":
        assert "variances of 'd' move the scale that 2000 groups share by about 0.3 of" in remedy
        assert "its sds: pass step=sgm.MSGNHT_S(batches='groups')" in remedy
        assert "larger batch_size" in judge(seen.assign_attrs(batches="groups"))[1]
        [row] = [s for s in str(Diagnosis.of(seen)).splitlines() if "all 2000 groups of d" in s]
        assert re.split("  +", row)[1:5] == [f"{virial:.4f}", "1", "0.0032", f"{error:.4f}"]
        assert row.endswith("  no")


def test_gradients_at_few_draws_are_no_verdict():
    verdict, remedy = judge(measured().assign(gradients=99))
    assert verdict == "unclear"
    assert "only 99 draws" in remedy


def test_prints_as_a_short_table():
    result = Diagnosis.of(measured(virial=1.3))
    lines = str(result).splitlines()
    assert lines[0] == "verdict: failed"
    assert " ".join(lines[1 : lines.index(NOTE)]) == result.remedy
    [row] = [line for line in lines if "variance / right, direction" in line]
    label = "variance / right, direction 3, mostly d"
    assert re.split("  +", row) == [label, "1.3", "1", "0.1", "0.05", "0.22", "no"]
    assert max(map(len, lines)) <= 100
    assert "verdict: failed" in result._repr_html_()
    assert "xarray" in repr(result[["virial"]])  # a part prints as a Dataset


@pytest.mark.parametrize(
    ("changes", "label", "passed"),
    [
        ({"gradient": -0.108}, "error of mean (sd), direction 3", "within error"),  # 3.6 errors
        ({"gradient": -0.09}, "error of mean (sd), direction 3", "yes"),
        ({"gradient": -0.3}, "error of mean (sd), direction 3", "no"),
        ({"virial": 1.3, "virial_error": 0.2}, "variance / right, direction 3", "unclear"),
        ({"virial_error": 0.2}, "largest standard error", "unclear"),
        ({"gradients": 99}, "draws with gradients", "unclear"),
        ({"gradients": 99, "mean_virial": 2.0}, "variance / right, mean of all", "unclear"),
        ({"ess": 50.0}, "smallest effective sample size", "unclear"),
        ({"rhat": 1.23, "rhat_by_chance": 2.58}, "largest R-hat", "unclear"),
        ({"thermostat": 2.1}, "thermostat", "no"),
    ],
)
def test_each_row_says_whether_it_passed(changes, label, passed):
    """As the verdict takes it: "failed" if a row says "no", else "unclear" if one says so."""
    found = measured(**changes)
    [row] = [row for row in rows(found) if row.label.startswith(label)]
    assert row.passed == passed
    assert re.search(rf"{re.escape(row.label)} .*  {passed}\n", str(Diagnosis.of(found)))
    verdict, remedy = judge(found)
    assert verdict == {"no": "failed", "unclear": "unclear"}.get(passed, "ok")
    assert verdict == "ok" or remedy == row.remedy


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ({}, 1.0),
        ({"virial_error": 0.3}, 4.0),
        ({"virial_error": 0.3, "gradient_noise": 180.0}, 1.0),  # sqrt(180 / 2000) is all of it
        ({"virial_error": 0.3, "rhat": 1.2}, 1.0),  # it has failed
        ({"ess": 50.0}, 1.0),  # not for the verdict's errors
        ({"virial": 1.3, "virial_error": 0.05}, (1.5 * CHANCE * 0.05 / 0.3) ** 2),  # may be right
        ({"virial": 1.3, "virial_error": 0.05, "gradient": 0.3}, 1.0),  # it has failed anyway
        ({"virial": 1.4, "virial_error": 0.05}, 1.0),  # more than 1.5 times what chance explains
        ({"virial": 1.3, "virial_error": 0.05, "thermostat": 2.1}, 1.0),
    ],
)
def test_how_many_draws_the_verdict_needs(changes, times):
    assert times_as_many_draws(measured(**changes)) == pytest.approx(times)


@pytest.mark.parametrize(("share", "gradients"), [(1.0, 2000), (0.01, 6000)])
def test_gradients_at_more_draws_where_they_differ_much(share, gradients):
    """As at the edge of separated rows: unless they leave the errors below 0.15."""
    rng = np.random.default_rng(1)

    class Uneven(AtDraws):
        def __call__(self, draws, exact=False):
            few = (rng.random(draws.shape) < share) / share
            return GradientsAtDraws(-few * draws, np.zeros(2), "uneven")

    draws = rng.normal(size=(4, 1500, 2))
    model = SimpleNamespace(free_RVs=[SimpleNamespace(name="x")])
    flat = SimpleNamespace(
        model=model, size=2, names=["x[0]", "x[1]"], further_measurements=lambda draws: {}
    )
    posterior = xr.Dataset({"x": (("chain", "draw", "k"), draws)})
    tree = xr.DataTree.from_dict({"posterior": posterior})
    at = Coordinates(np.eye(2), "dense", anchor=np.zeros(2))
    found = measure(tree, flat, draws, at, False, Uneven)
    assert int(found["gradients"]) == gradients
    # The error falls as 1 / sqrt(n): sqrt((3 / share - 1) / n) of the virial.
    error = np.sqrt((3 / share - 1) / gradients)
    np.testing.assert_allclose(found["virial_error"], error, rtol=0.4)


def test_plot():
    mpl = pytest.importorskip("matplotlib")
    with mpl.rc_context({"backend": "agg"}):
        axes = Diagnosis.of(measured(virial=1.4, gradient=-0.108)).plot(figsize=(4, 4))
        for ax, points in zip(axes, ([(3, -0.108)], []), strict=True):
            _, _, within_error, _ = ax.containers  # the first is the band of tolerances
            np.testing.assert_allclose(
                within_error.lines[0].get_xydata(), np.reshape(points, (-1, 2))
            )
        for ax, points in zip(axes, ([], [(3, 1.4)]), strict=True):
            failed = ax.containers[3].lines[0].get_xydata()
            np.testing.assert_allclose(failed, np.reshape(points, (-1, 2)))
        said = [text.get_text() for text in axes[0].figure.legends[0].texts]
        assert said == ["right", "tolerated", "passed", "passed: within error", "failed"]
        mpl.pyplot.close("all")
        with pytest.raises(ValueError, match="diagnose"):
            Diagnosis.of(measured().drop_vars("virial")).plot()


# ---- draws made elsewhere -----------------------------------------------------------------------


@pytest.mark.slow(15)
def test_exact_draws_are_right_and_too_wide_ones_are_not(posterior):
    """The virial of 4 x 500 draws 1.2 times too wide is 1.44, 12 standard errors from 1."""
    model, mean, _ = posterior
    draws = exact(posterior)
    idata = tree(beta=draws)
    result = sgm.diagnose(idata, model)
    assert result.verdict == "ok"
    assert idata["diagnosis"].attrs["verdict"] == "ok"
    assert result["element"].values.tolist() == ["beta[0]", "beta[1]", "beta[2]"]
    wide = sgm.diagnose(tree(beta=mean + 1.2 * (draws - mean)), model)
    assert wide.verdict == "failed"
    assert "too large" in wide.remedy
    sd = draws.std(axis=(0, 1))
    assert "Means" in sgm.diagnose(tree(beta=draws + 0.3 * sd), model).remedy
    full = sgm.diagnose(tree(beta=draws), model, full_data=True)
    assert full.attrs["rows"] == "exact"
    assert int(full["gradients"]) == 100


@pytest.mark.slow(5)
def test_few_draws_of_many_groups():
    """Variances that are 2% too large are seen in 120 draws, and right ones are right.

    The mean virial of 20,000 effects has a standard error of sqrt(2 / 20,000 / 120) = 0.0009, of
    which 4.5 are explained by chance. About the mean of these draws it would be 1 - 1 / 120.
    """
    n_groups = 20_000
    rng = np.random.default_rng(4)
    y = rng.normal(0, np.sqrt(2), n_groups)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        alpha = pm.Normal("alpha", mu, 1, shape=n_groups)
        pm.Normal("y", alpha[np.arange(n_groups)], 1, observed=y)
    precision = 1 + n_groups / 2
    mu = y.sum() / 2 / precision + rng.normal(size=(4, 30)) / np.sqrt(precision)
    centre = (mu[..., None] + y) / 2
    away = rng.normal(size=centre.shape) / np.sqrt(2)
    with pytensor.config.change_flags(mode="JAX"):
        right = sgm.diagnose(tree(mu=mu, alpha=centre + away), model)
        wide = sgm.diagnose(tree(mu=mu, alpha=centre + np.sqrt(1.02) * away), model)
    assert int(right["gradients"]) == 120
    assert abs(float(right["virial"][-1]) - 1) < 4 * 0.0009
    # One row says as much as the prior; the mean square is that of 40 batches' 128 groups.
    assert abs(float(right["prior_share"][-1]) / 0.5 - 1) < 4 * np.sqrt(2 / (40 * 128)) + 0.01
    assert "of 'alpha' move" not in right.remedy
    assert wide.verdict == "failed"
    assert "variances of 'alpha' move" in wide.remedy


@pytest.mark.long
@pytest.mark.slow(5)
def test_means_of_groups_that_are_spread_too_far():
    """What moves their scale by 0.4 of its sds is found, by all rows and by batches.

    Groups of one row that says as much as the prior: r = 1/2, so the tolerance is
    0.1 sqrt(2 / 2000) = 0.0032 and 0.4 sds are 0.0126, which is means 0.63% too far out. The scale
    follows them, as if it were drawn given the effects: its sd is 1 / ((1 - r) sqrt(2 * 2000)) of
    it. A draw's estimate has the sd 2 sqrt((1 - r) / r / 2000) = 0.045: that of 2000 draws 0.001.
    """
    n_groups = 2000
    rng = np.random.default_rng(4)
    y = rng.normal(0, np.sqrt(2), n_groups)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 2)
        alpha = pm.Normal("alpha", 0, tau, shape=n_groups)
        pm.Normal("y", alpha[np.arange(n_groups)], 1, observed=y)
    grid = np.linspace(0.7, 1.3, 4001)
    log_p = (
        -(grid**2) / 8 - n_groups / 2 * np.log1p(grid**2) - np.square(y).sum() / 2 / (1 + grid**2)
    )
    p = np.exp(log_p - log_p.max())
    tau = rng.choice(grid, size=(4, 500), p=p / p.sum())
    noise = rng.normal(size=(4, 500, n_groups))

    def diagnosis(out, tau):
        variance = (1 / (1 + tau**-2))[..., None]
        return sgm.diagnose(
            tree(tau=tau, alpha=out * variance * y + np.sqrt(variance) * noise), model
        )

    with pytensor.config.change_flags(mode="JAX"):
        right = diagnosis(1.0, tau)
        wrong = diagnosis(1.0063, tau * np.exp(0.4 / 31.6))
    assert right.verdict == "ok"
    assert abs(float(right["outward"][-1])) < 4 * 0.001
    assert wrong.verdict == "failed"
    assert "The means of 'alpha' move the scale that 2000 groups share by about 0.4" in wrong.remedy
    assert abs(float(wrong["virial"][-1]) - 1) < 0.0032
    assert "spread of means, all 2000 groups of alpha" in str(wrong)


@pytest.mark.long
@pytest.mark.parametrize("empty", [0, 1000])
def test_gradients_of_groups_are_taken_where_the_sampler_takes_them(empty):
    """At the ends of updates the groups are a little too narrow, but their scale is right.

    Groups without rows are drawn from their prior there. With h = 0.3 the others have 1 - h^2 / 4
    of the variance; the mean gradient of the scale would be h^2 sqrt(2 * 2100) / 8 = 0.7 of its sd,
    and its standard error is 0.03.
    """
    h, n_groups = 0.3, 2100
    n_rows = n_groups - empty
    rng = np.random.default_rng(3)
    y = rng.normal(0, np.sqrt(2), n_rows)
    with pm.Model() as model:
        t = pm.Normal("t", 0, 1)
        if empty:
            effect = pm.Normal("z", 0, pm.math.exp(t), shape=n_groups)
        else:
            effect = pm.math.exp(t) * pm.Normal("z", shape=n_groups)
        pm.Normal("y", effect[np.arange(n_rows)], 1, observed=y)
    grid = np.linspace(-1, 1, 4001)
    log_p = stats.norm.logpdf(grid) - n_rows / 2 * np.log1p(np.exp(2 * grid))
    log_p -= np.square(y).sum() / 2 / (1 + np.exp(2 * grid))
    p = np.exp(log_p - log_p.max())
    t = rng.choice(grid, size=(4, 500), p=p / p.sum())
    scale = np.exp(t)[..., None]
    variance = 1 / (1 + scale**-2)
    away = rng.normal(size=(4, 500, n_rows)) * np.sqrt(variance * (1 - h**2 / 4))
    effects = np.concatenate([variance * y + away, scale * rng.normal(size=(4, 500, empty))], 2)
    idata = tree(t=t, z=effects if empty else effects / scale)
    with pytensor.config.change_flags(mode="JAX"):
        at_the_ends = sgm.diagnose(idata, model)
        idata.posterior.attrs["adaptation"] = json.dumps({"drift_to_gradient": h / 2})
        at_gradients = sgm.diagnose(idata, model)
    assert at_the_ends.verdict == "failed"
    assert "Means" in at_the_ends.remedy
    assert "'t'" in at_the_ends.remedy
    assert at_gradients.verdict == "ok"
    assert abs(float(at_gradients["gradient"][0])) < 0.1


@pytest.mark.slow(4)
def test_noisy_gradients_of_some_rows_give_way_to_exact_ones():
    """Three rows of 3000 tell of w: a sample of rows rarely has one of them."""
    column = np.zeros(3000)
    column[:3] = 1
    with pm.Model() as model:
        w = pm.Normal("w", 0, 3)
        pm.Bernoulli("y", logit_p=column * w, observed=np.zeros(3000, dtype=int))
    rng = np.random.default_rng(1)
    proposed = rng.normal(0, 3, size=10_000)
    w = proposed[rng.random(10_000) < (1 + np.exp(proposed)) ** -3.0][:2000].reshape(4, 500)
    with pytensor.config.change_flags(mode="JAX"):
        result = sgm.diagnose(tree(w=w), model)
    assert result.attrs["rows"] == "exact"
    assert result.verdict == "ok"


@pytest.mark.long
@pytest.mark.slow(4)
def test_exact_gradients_of_many_effects(monkeypatch):
    """By rows they would take too much time, of all data at once they do not."""
    monkeypatch.setattr("pymc_sgmcmc.diagnosis.measure.NOISE", 1e-6)
    monkeypatch.setattr("pymc_sgmcmc.diagnosis.gradients_at_draws.MOST_EXACT", 50_000_000)
    rng = np.random.default_rng(3)
    n_groups, per_group = 100, 30
    y = rng.normal(size=(n_groups, per_group))
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, 1, shape=n_groups)
        pm.Normal("y", effect[np.repeat(np.arange(n_groups), per_group)], 1, observed=y.ravel())
    sd = (1 + per_group) ** -0.5
    draws = y.sum(axis=1) * sd**2 + sd * rng.normal(size=(4, 500, n_groups))
    with pytensor.config.change_flags(mode="JAX"):
        right = sgm.diagnose(tree(effect=draws), model)
        at_draws = "pymc_sgmcmc.diagnosis.gradients_at_draws"
        monkeypatch.setattr(f"{at_draws}.n_looked_up", lambda model: 0)
        by_rows = sgm.diagnose(tree(effect=draws), model)
    assert right.verdict == "ok"
    assert right.attrs["rows"] == "exact"
    assert int(right["gradients"]) == 336  # 84 of each chain: 50,000,000 / (3000 * 50) of all
    # The gradient is linear in the draws: exact ones have no other spread.
    assert float(right["gradient_noise"].max()) == 0
    assert by_rows.attrs["rows"] != "exact"


def test_errors_name_what_is_missing(posterior):
    model = posterior[0]
    with pytest.raises(ValueError, match=r"no variable 'beta'.*var_names"):
        sgm.diagnose(tree(other=np.zeros((2, 10))), model)
    for nothing in (None, "run.nc", xr.DataTree()):
        with pytest.raises(ValueError, match="without a group posterior: pass the DataTree"):
            sgm.diagnose(nothing, model)
    with pytest.raises(ValueError, match="full_data=True needs model="):
        sgm.diagnose(tree(beta=exact(posterior)), full_data=True)
    with pm.Model() as counts:
        k = pm.Poisson("k", 3)
        pm.Normal("y", k, 1, observed=np.zeros(3))
    with pytest.raises(ValueError, match=r"discrete variables \(k\)"):
        sgm.diagnose(tree(k=np.zeros((2, 10))), counts)
    with pm.Model() as unobserved:
        pm.Normal("beta")
    with pytest.raises(ValueError, match=r"no observed variable.*latents=, call diagnose\(idata\)"):
        sgm.diagnose(tree(beta=np.zeros((2, 10))), unobserved)


def test_without_gradients_nothing_is_promised(posterior):
    result = sgm.diagnose(tree(beta=exact(posterior)))
    assert result.verdict == "unclear"
    assert "sgm.diagnose(idata, model)" in result.remedy
    apart = exact(posterior) + np.arange(4)[:, None, None]
    assert "R-hat" in sgm.diagnose(tree(beta=apart)).remedy


# ---- runs of sgm.sample -------------------------------------------------------------------------


@pytest.mark.slow(30)
def test_a_run_is_judged(run, caplog, tmp_path):
    stored = run["diagnosis"]
    assert stored.attrs["verdict"] == "ok"
    assert run.posterior.attrs["pymc_sgmcmc_version"] == sgm.__version__
    assert float(stored["anchor_error"]) < 1e-6
    assert 0.5 < float(stored["thermostat"] / stored["thermostat_predicted"]) < 2
    assert "held_temperature" not in stored
    chosen = json.loads(run.posterior.attrs["adaptation"])
    assert chosen["drift_to_gradient"] == chosen["step_size"] / 2  # of a symmetric splitting
    assert str(sgm.diagnose(run)).startswith("verdict: ok")
    run.to_netcdf(tmp_path / "run.nc")
    with xr.open_datatree(tmp_path / "run.nc") as again:
        assert sgm.diagnose(again.load()).verdict == "ok"
    cut = run.isel(draw=slice(15))
    assert sgm.diagnose(cut).verdict != "ok"


@pytest.mark.slow(30)
def test_a_run_goes_on_until_the_verdict_is_clear(step, monkeypatch):
    """With standard errors asked for that the effective sample size does not give."""
    measured_of_run, looks = diagnose._measured_of_run, []

    def looked_at(idata, *args):
        looks.append(idata["posterior"].sizes["draw"])
        return measured_of_run(idata, *args)

    monkeypatch.setattr(diagnose, "_measured_of_run", looked_at)

    def largest_error(idata):
        return max(float(idata["diagnosis"][f"{name}_error"].max()) for name in IDENTITIES)

    short = sample(step, draws=None)
    assert looks == [short.posterior.sizes["draw"]]  # what was measured then is the verdict's
    smaller = 0.9 * largest_error(short)
    for module in ("verdict_rows", "verdict"):
        monkeypatch.setattr(f"pymc_sgmcmc.diagnosis.{module}.LARGEST_ERROR", smaller)
    longer = sample(step, draws=None)
    assert longer.posterior.sizes["draw"] == looks[-1] > looks[0]
    assert largest_error(longer) <= smaller
    assert longer["diagnosis"].attrs["verdict"] == "ok"
    assert sample(step, None, compute_convergence_checks=False).posterior.sizes["draw"] == looks[0]


@pytest.mark.parametrize("draws", [1, 2, 3, 5])
def test_a_handful_of_draws_is_unclear(posterior, draws):
    few = tree(beta=exact(posterior, draws=draws))
    result = sgm.diagnose(few, posterior[0])
    assert result.verdict in ("unclear", "failed")
    assert "effective sample size" in result.remedy or "R-hat" in result.remedy
    assert "nan" not in str(result.remedy)


@pytest.mark.slow(30)
def test_the_verdict_is_logged_and_can_be_switched_off(step, caplog):
    with caplog.at_level(logging.INFO, "pymc"):
        sample(step, draws=20, tune=0)
    assert "number of samples is too small" not in caplog.text  # two judges would contradict
    [line] = [m for m in caplog.messages if m.startswith("Verdict:")]
    assert line.startswith(("Verdict: unclear. ", "Verdict: failed. "))
    assert "diagnosis" not in sample(step, 10, compute_convergence_checks=False).children


@pytest.mark.slow(30)
def test_an_error_loses_nothing(step, caplog, monkeypatch):
    monkeypatch.setattr(RowGradients, "load_data", lambda self: 1 / 0)
    monkeypatch.setattr(type(step.gradients), "load_data", lambda self: 1 / 0)
    idata = sample(step, draws=20)
    assert idata["posterior"].sizes["draw"] == 20
    assert "diagnosis" not in idata.children
    assert any("could not be diagnosed: ZeroDivisionError" in m for m in caplog.messages)


@pytest.mark.long
def test_data_that_change_without_a_control_variate(caplog):
    """All rows at each update: warned of once a run, also by pm.sample, and named as the cause."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 2))
    with pm.Model() as model:
        target = pm.Data("target", X @ [1.0, -1.0] + rng.normal(size=200))
        pm.Normal("y", X @ pm.Normal("beta", 0, 3, shape=2), 1, observed=target)
        step = sgm.MSGNHT_S(rng=1, compile_kwargs={"mode": "JAX"})
    right = sample(step, 60)
    assert "data have changed" not in caplog.text + right["diagnosis"].attrs["remedy"]
    model.set_data("target", X @ [5.0, 5.0] + rng.normal(size=200))
    wrong = sample(step, 60)
    said = "The data have changed since MSGNHT_S was adapted to them: its metric, step size and"
    assert caplog.text.count(said) == 1
    assert wrong["diagnosis"].attrs["verdict"] == "failed"
    told = "The data have changed since the step was adapted to them: make a new step. "
    assert wrong["diagnosis"].attrs["remedy"].startswith(told)
    assert sgm.diagnose(wrong).remedy.startswith(told)
    pm.sample(
        5, tune=0, chains=2, cores=1, step=copy.deepcopy(step), model=model, progressbar=False
    )
    assert caplog.text.count(said) == 2


@pytest.mark.slow(30)
def test_a_wrong_gradient_at_the_anchor_is_found(step):
    right = step.adapted
    shift = np.linalg.solve(step.kernel.metric.times(np.eye(D)), 0.5 * np.ones(D))
    try:
        replace(right, anchor_gradient=right.anchor_gradient + shift).apply(step.kernel)
        idata = sample(step)
    finally:
        right.apply(step.kernel)
    assert float(idata["diagnosis"]["anchor_error"]) == pytest.approx(0.5, rel=1e-3)
    assert "anchor" in idata["diagnosis"].attrs["remedy"]


@pytest.mark.slow(30)
def test_data_that_change_are_found(posterior, step):
    model = posterior[0]
    old = model["target"].get_value()
    try:
        model.set_data("target", old + 0.1 * np.random.default_rng(1).normal(size=N))
        with pytest.raises(ValueError, match="data have changed since MSGNHT_S was adapted"):
            sample(step)
        step.kernel.data_checksum = None  # as if they changed unnoticed
        idata = sample(step)
    finally:
        model.set_data("target", old)
        step.adapted.apply(step.kernel)
    assert idata["diagnosis"].attrs["verdict"] == "failed"
    assert "the data have changed" in idata["diagnosis"].attrs["remedy"]


@pytest.mark.slow(30)
def test_stored_adaptation_serves_a_later_diagnosis(posterior, step):
    idata = sample(step, store_adaptation=True)
    result = sgm.diagnose(idata, posterior[0])
    assert result.verdict == "ok"
    assert result.attrs["metric"] == "that of the warm-up"
    assert float(result["anchor_error"]) < 1e-6
    np.testing.assert_allclose(result["virial"], idata["diagnosis"]["virial"], atol=1e-6)


@pytest.mark.slow(30)
def test_draws_of_pymc_get_what_those_of_sample_have(step, run):
    """Of the same draws, all of it; and `pm.sample` says what is needed for it."""
    bare = run.copy()
    del bare["diagnosis"]
    told = ("data_passes", "data_passes_warmup", "adaptation")
    bare["posterior"].attrs = {k: v for k, v in run.posterior.attrs.items() if k not in told}
    result = sgm.diagnose(bare, step=step)
    xr.testing.assert_identical(bare["diagnosis"].to_dataset(), run["diagnosis"].to_dataset())
    assert bare.posterior.attrs == run.posterior.attrs
    assert result.verdict == "ok"
    with step.model:
        options = {"chains": 2, "cores": 1, "random_seed": 1, "progressbar": False}
        by_pymc = pm.sample(60, tune=20, step=step, **options)
    sgm.diagnose(by_pymc, step=step)
    attrs = by_pymc.posterior.attrs
    passes = attrs["data_passes"] - attrs["data_passes_warmup"]
    assert passes == pytest.approx(2 * 80 * step.adapted.passes_per_draw)
    assert "anchor_error" in by_pymc["diagnosis"]
    with pytest.raises(ValueError, match="step= brings its model and data"):
        sgm.diagnose(bare, step.model, step=step)
    with pytest.raises(ValueError, match=r"step=.*is not adapted"):
        sgm.diagnose(bare, step=pm.Metropolis(model=step.model))


@pytest.mark.slow(5)
def test_the_model_of_the_context(posterior, run):
    """Where nothing is stored; what `sample` has stored is judged without compiling anything."""
    draws = tree(beta=exact(posterior))
    with posterior[0]:
        assert sgm.diagnose(draws).verdict == "ok"
        stored = sgm.diagnose(run)
    np.testing.assert_array_equal(stored["virial"], run["diagnosis"]["virial"])
    assert sgm.diagnose(tree(beta=exact(posterior))).verdict == "unclear"


@pytest.mark.slow(2)
def test_gradients_are_not_pickled(step):
    assert step.__getstate__()["_gradients"] is None
    assert step.gradients is not None
    assert pickle.loads(pickle.dumps(step.adapted)).metric == "dense"
