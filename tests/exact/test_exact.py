"""Exact draws from biased ones, and the certificate, on posteriors that are known."""

import json

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor
import pytest
from scipy import stats
from xarray import Dataset, DataTree

import pymc_sgmcmc as sgm
from pymc_sgmcmc.diagnosis.verdict import judge, rows
from pymc_sgmcmc.exact import certificate_in_result, log_density
from pymc_sgmcmc.exact.certificate_weights import (
    Student,
    certify,
    moments_of_draws,
    weighted_moments,
)
from pymc_sgmcmc.exact.hamiltonian import Hamiltonian
from pymc_sgmcmc.exact.log_density import LogDensity, NotAllRead
from pymc_sgmcmc.exact.transitions import NothingExact, finish
from pymc_sgmcmc.gradients import flat_model
from pymc_sgmcmc.gradients.metric import Dense
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients
from pymc_sgmcmc.integration.group_terms import group_terms
from pymc_sgmcmc.integration.integrated_model import DIM, integrated_model
from pymc_sgmcmc.integration.quadrature_points import points_of
from pymc_sgmcmc.run import parametrisation

N, D = 3000, 3
JAX = {"mode": "JAX"}


class Gaussian:
    """In the place of `LogDensity`: N(0, S) with a normalising constant of its own."""

    def __init__(self, sds, log_evidence=0.0, interrupt_at=np.inf):
        self.sds, self.log_evidence, self.interrupt_at = np.array(sds), log_evidence, interrupt_at
        self.evaluations = self.calls = 0

    def __call__(self, points):
        return stats.norm.logpdf(points, scale=self.sds).sum(axis=1) + self.log_evidence

    def with_gradients(self, points):
        self.calls += 1
        if self.calls == self.interrupt_at:
            raise KeyboardInterrupt
        self.evaluations += len(points)
        return self(points), -points / self.sds**2


def hamiltonian(density, seed=0):
    return Hamiltonian(density, Dense([(len(density.sds),)]), np.random.default_rng(seed))


def biased_draws(sds, shift=0.5, scale=1.3, n=500, seed=0):
    """Draws of four chains, whose means and standard deviations are off."""
    z = np.random.default_rng(seed).normal(size=(4, n, len(sds)))
    return (scale * z + shift) * sds


# ---- densities ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def regression():
    """A linear regression with known noise, and its posterior and log evidence."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, D)) @ np.array([[1, 0.8, 0], [0, 1, 0], [0, 0, 2.0]])
    y = X @ [1.0, -0.5, 0.2] + rng.normal(size=N)
    with pm.Model() as model:
        X_rows, target = pm.Data("X", X, dims=("row", "x")), pm.Data("target", y, dims="row")
        beta = pm.Normal("beta", 0, 3, shape=D)
        pm.Normal("y", X_rows @ beta, 1, observed=target, dims="row")
    covariance = np.linalg.inv(X.T @ X + np.eye(D) / 9)
    # log N(y; 0, I + 9 X X') by Sylvester's and Woodbury's identities
    evidence = -0.5 * (
        N * np.log(2 * np.pi)
        + np.linalg.slogdet(np.eye(D) + 9 * X.T @ X)[1]
        + y @ y
        - y @ X @ covariance @ X.T @ y
    )
    return model, covariance @ X.T @ y, covariance, evidence, {"X": X, "target": y}


@pytest.mark.parametrize("kind", ["rows", "whole", "streamed"])
def test_densities_of_all_rows_are_those_of_the_model(regression, kind, monkeypatch):
    model, mean, covariance, *_, data = regression
    options = {"compile_kwargs": JAX}
    if kind == "streamed":
        monkeypatch.setattr(log_density, "STREAMED_ROWS", 1300)
        own = sgm.StreamedData(data)
        gradients = RowGradients(model, model.value_vars, data=own, **options)
    else:
        kinds = {"rows": RowGradients, "whole": WholeGradients}
        gradients = kinds[kind](model, model.value_vars, **options)
    monkeypatch.setattr(log_density, "IN_CACHE", 70 * 700)  # 3000 rows: the last block is short
    points = np.random.default_rng(2).multivariate_normal(mean, covariance, size=70)
    density = LogDensity(gradients)
    value, gradient = density.with_gradients(points)
    residuals = data["target"] - points @ data["X"].T
    likelihood = stats.norm.logpdf(residuals).sum(axis=1)
    right = likelihood + stats.norm.logpdf(points, scale=3).sum(axis=1)
    np.testing.assert_allclose(value, right, rtol=1e-10)
    np.testing.assert_allclose(density(points), right, rtol=1e-10)
    np.testing.assert_allclose(gradient, residuals @ data["X"] - points / 9, atol=1e-6)
    assert density.evaluations == 140
    assert density.numbers() == N * (D + 1)


def test_densities_of_groups_have_their_effects_integrated_out():
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(40), 3)
    y = rng.normal(rng.normal(size=40)[group])
    with pm.Model() as model:
        mu, log_tau = pm.Normal("mu"), pm.Normal("log_tau")
        effect = pm.Normal("effect", mu, pm.math.exp(log_tau), shape=40)
        pm.Normal("y", effect[group], 1, observed=y)
    integrated = integrated_model(group_terms(model, ["effect"]), points_of(1))
    without_code = {"compile_kwargs": {"mode": "FAST_COMPILE"}}
    gradients = RowGradients(integrated, integrated.value_vars, minibatch_dim=DIM, **without_code)
    points = rng.normal(0, 0.3, size=(5, 2))
    value, gradient = LogDensity(gradients).with_gradients(points)
    tables = y.reshape(40, 3)
    for point, found in zip(points, value, strict=True):
        covariance = np.eye(3) + np.exp(2 * point[1])
        right = stats.multivariate_normal([point[0]] * 3, covariance).logpdf(tables).sum()
        # 11 points a group, around its mode at the initial point: to 1e-4 of a standard deviation
        assert found == pytest.approx(right + stats.norm.logpdf(point).sum(), abs=1e-3)
    step = np.array([0.0, 1e-5])
    assert LogDensity(gradients).numbers() > 11 * 120  # of rows, at 11 points each
    change = LogDensity(gradients)(points + step) - LogDensity(gradients)(points - step)
    np.testing.assert_allclose(gradient[:, 1], change / 2e-5, rtol=1e-4, atol=1e-4)


def test_a_stream_that_drops_rows_has_no_density(regression, monkeypatch):
    model, mean, *_, data = regression
    gradients = RowGradients(
        model, model.value_vars, data=sgm.StreamedData(data), compile_kwargs=JAX
    )
    few = [{name: a[:2900] for name, a in data.items()}]
    monkeypatch.setattr(flat_model, "consecutive_rows", lambda data, n: iter(few))
    with pytest.raises(NotAllRead, match="2900 of its 3000 rows"):
        LogDensity(gradients)(mean[None])


# ---- exact draws --------------------------------------------------------------------------------


def test_the_integrator_has_the_order_and_the_error_of_its_paper():
    hmc = hamiltonian(Gaussian(np.ones(1)))
    start = hmc.at(np.random.default_rng(1).normal(size=(200_000, 1)))

    def error(h):
        """Share of rejected ends."""
        hmc.rng = np.random.default_rng(2)
        found = hmc.transition(start, h, 1)
        return 1 - found.acceptance.mean()

    assert error(2.0) < 0.02  # E[dH] < 5e-4: 1 - acceptance is at most about sqrt(E[dH] / pi)
    assert error(0.5) < error(1.0) / 3  # second order: by 4 and more


def test_exact_draws_repair_biased_ones():
    # scales up to 1.6 times the metric's, so that without Metropolis' rule, or with one that leaves
    # out the kinetic energy, standard deviations are off by 10% and more
    sds = np.linspace(0.4, 1.6, 12)
    draws = biased_draws(sds)
    found = finish(hamiltonian(Gaussian(sds)), draws, 3000, lambda: False)
    theta = found.theta.reshape(-1, 12) / sds
    assert found.reason == ""
    assert 0.6 < found.acceptance.mean() < 0.95
    # 12 numbers with an effective sample size of 3000: four standard errors
    assert np.abs(theta.mean(axis=0)).max() < 4 / np.sqrt(3000)
    assert np.abs(theta.std(axis=0) - 1).max() < 4 / np.sqrt(2 * 2000)


def test_all_that_is_returned_belongs_to_its_draw():
    sds = np.array([0.5, 1.0])
    density = Gaussian(sds)
    found = finish(hamiltonian(density), biased_draws(sds), 200, lambda: False)
    flat = found.theta.reshape(-1, 2)
    np.testing.assert_allclose(found.log_density.ravel(), density(flat))
    np.testing.assert_allclose(found.gradient.reshape(-1, 2), -flat / sds**2)
    assert found.theta.shape[:2] == (4, 8)
    assert found.evaluations == density.evaluations


def test_slow_directions_are_given_time():
    # The metric is 30 times too small along one direction: the start's error is forgotten slowly.
    sds = np.array([30.0, 1.0])
    found = finish(hamiltonian(Gaussian(sds)), biased_draws(sds, shift=1.0), 400, lambda: False)
    assert found.reason == ""
    # successive draws have a correlation of cos(10 pi / 2 / 30): 22 transitions leave 5%
    assert found.transitions - found.theta.shape[2] > 12
    theta = found.theta[..., 0].reshape(32, -1) / 30
    error = theta.mean(axis=1).std() / np.sqrt(32)  # of independent chains
    assert abs(theta.mean()) < 4 * error < 0.4


def test_steps_are_shortened_where_the_density_turns_out_to_be_narrow():
    """The starts are far in tails with little curvature, where the longest steps are accepted."""

    class Tails(Gaussian):
        def __call__(self, points):
            return stats.t.logpdf(points, 10, scale=0.1).sum(axis=1)

        def with_gradients(self, points):
            self.evaluations += len(points)
            return self(points), -11 * points / (10 * 0.1**2 + points**2)

    draws = biased_draws(np.full(3, 0.1), shift=150)
    found = finish(hamiltonian(Tails(np.ones(3))), draws, 1000, lambda: False)
    assert found.reason == ""
    assert found.acceptance.mean() > 0.5
    theta = found.theta.reshape(32, -1, 3) / 0.1
    # Student's mean and variance, with the errors of independent chains
    for powers, right in ((theta, 0.0), (theta**2, 10 / 8)):
        error = powers.mean(axis=1).std(axis=0) / np.sqrt(32)
        assert np.all(np.abs(powers.mean(axis=(0, 1)) - right) < 4 * error)
        assert np.median(error) < 0.15


def test_an_interrupt_keeps_the_draws_made():
    sds = np.ones(2)
    whole = finish(hamiltonian(Gaussian(sds)), biased_draws(sds), 2000, lambda: False)
    found = finish(
        hamiltonian(Gaussian(sds, interrupt_at=35)), biased_draws(sds), 2000, lambda: False
    )
    assert found.reason == "interrupted"
    n = found.theta.shape[2]
    assert 4 <= n < whole.theta.shape[2]
    with pytest.raises(KeyboardInterrupt):
        finish(hamiltonian(Gaussian(sds, interrupt_at=3)), biased_draws(sds), 400, lambda: False)
    with pytest.raises(NothingExact, match="time"):
        finish(hamiltonian(Gaussian(sds)), biased_draws(sds), 400, lambda: True)


# ---- the certificate ----------------------------------------------------------------------------


@pytest.mark.parametrize("degrees", [5, np.inf])
def test_a_student_distribution_is_fitted(degrees):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(20_000, 3))
    if np.isfinite(degrees):
        x /= np.sqrt(rng.chisquare(degrees, size=(20_000, 1)) / degrees)
    fitted = Student.of(x * [1, 2, 3.0] + 1, ess=20_000)
    assert fitted.degrees == 5 if np.isfinite(degrees) else fitted.degrees >= 300
    np.testing.assert_allclose(np.diag(fitted.root), [1, 2, 3], rtol=0.05)
    shape = fitted.root @ fitted.root.T
    points = fitted.draw(50, rng)
    right = stats.multivariate_t.logpdf(points, fitted.mean, shape, fitted.degrees)
    np.testing.assert_allclose(fitted.log_density(points), right)


def test_the_certificate_of_right_draws_finds_nothing():
    sds = np.array([0.1, 1.0, 3.0, 10.0])
    found = certify(
        Gaussian(sds, log_evidence=-7.0),
        biased_draws(sds, 0, 1),
        np.diag(2 * sds),
        np.random.default_rng(1),
    )
    assert found.k_hat < 0.5
    value, error, _ = found.log_marginal_likelihood
    assert abs(value + 7) < 4 * error < 0.1
    assert np.all(np.abs(found.mean.value) < 4 * found.mean.error)
    assert np.all(np.abs(found.sd.value - 1) < 4 * found.sd.error)
    assert found.mean.error.max() < 0.1
    # that of the draws alone, 1 / sqrt(2 * 2000): 400 points by themselves would have 0.035
    assert found.sd.error.max() < 0.025


@pytest.mark.parametrize(
    ("shift", "scale", "size"), [(0.5, 1.0, 4), (0.0, 1.3, 4), (0.5, 1.0, 20), (0.0, 0.8, 10)]
)
def test_the_certificate_sees_a_bias_and_its_size(shift, scale, size):
    sds = np.geomspace(0.1, 10, size)
    draws = biased_draws(sds, shift, scale)
    found = certify(Gaussian(sds, -7.0), draws, np.diag(2 * sds), np.random.default_rng(1))
    assert found.k_hat < 0.7
    value, error, _ = found.log_marginal_likelihood
    assert abs(value + 7) < 4 * error < 1
    # all directions are alike: their mean, with the error of one of them
    assert abs(found.mean.value.mean() - shift) < 4 * found.mean.error.mean() / np.sqrt(size) + 0.02
    assert abs(found.sd.value.mean() - scale) < 4 * found.sd.error.mean() / np.sqrt(size) + 0.03


def test_a_posterior_far_from_a_student_distribution_has_a_large_k_hat():
    class Ring(Gaussian):
        def __call__(self, points):
            return stats.norm.logpdf(np.linalg.norm(points, axis=1), 1, 0.01)

    rng = np.random.default_rng(1)
    angles = rng.uniform(0, 2 * np.pi, size=(4, 500))
    draws = np.stack([np.cos(angles), np.sin(angles)], axis=2)
    found = certify(Ring(np.ones(2)), draws, np.eye(2), rng)
    assert found.k_hat > 0.7


def test_long_tails_that_points_miss_make_errors_larger():
    """Right draws of the logarithm of an exponential variable, among others that are normal.

    The points are nearly normal and miss its tail: with their own error alone, the sd of the draws
    would be too large by 3.0 errors in the mean over 20 seeds, and 5.2 in the largest; now by 1.8
    and 3.1.
    """

    class WithTail(Gaussian):
        def __call__(self, points):
            x = points[:, 0]
            return super().__call__(points) + x**2 / 2 + x - np.exp(x)

    off = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        draws = rng.normal(size=(4, 500, 20))
        draws[:, :, 0] = np.log(rng.exponential(size=(4, 500)))
        found = certify(WithTail(np.ones(20)), draws, np.eye(20), rng)
        assert found.k_hat < 0.7
        off.append((found.sd.value - 1)[0] / found.sd.error[0])
    assert np.abs(off).max() < 4


def test_draws_that_are_nowhere_near_have_no_certificate():
    draws = biased_draws(np.ones(3), shift=60.0)
    found = certify(Gaussian(np.ones(3)), draws, np.eye(3), np.random.default_rng(1))
    assert found.k_hat > 0.7


def test_errors_of_moments_are_those_of_repeated_draws():
    rng = np.random.default_rng(1)
    weighted, plain = [], []
    for _ in range(200):
        half = rng.normal(size=(200, 1))
        x = np.stack([half, -half], axis=1).reshape(400, 1)
        weighted.append(weighted_moments(x, 0.5 * x[:, 0]))  # N(0.5, 1)
        plain.append(moments_of_draws(rng.normal(size=(4, 100, 1))))
    for both in (weighted, plain):
        for moment in zip(*both, strict=True):
            values, errors, _ = (np.array(part).ravel() for part in zip(*moment, strict=True))
            # the standard deviation of 200 values has a relative error of 5%
            assert np.median(errors) == pytest.approx(values.std(), rel=0.2)
    assert np.mean([m.value for m, _ in weighted]) == pytest.approx(0.5, abs=0.02)


def test_few_large_weights_have_few_degrees_of_freedom():
    """So that chance explains more: the sd of N(0, 1.3^2) from points of N(0, 1), k-hat about .4.

    Large deviations are too many even so, because few weights' sums are skewed, but half as many as
    the errors alone would give (16% of 500 times, that is 80 +- 8, against 40 +- 6).
    """
    rng, alarms = np.random.default_rng(1), np.zeros(2)
    for _ in range(500):
        half = rng.normal(size=(200, 1))
        x = np.stack([half, -half], axis=1).reshape(400, 1)
        _, sd = weighted_moments(x, x[:, 0] ** 2 / 2 * (1 - 1 / 1.3**2), x**2 - 1.0)
        off = abs(sd.value - 1.3) / sd.error
        alarms += np.ravel([off > each.isf(5e-5) for each in (stats.norm, stats.t(sd.degrees))])
    assert alarms[0] > 50
    assert alarms[1] < 0.7 * alarms[0]


def test_a_large_k_hat_alone_leaves_the_verdict_and_a_bias_does_not():
    def verdict(k_hat, mean=0.0, sd=1.0, degrees=30.0):
        measured = Dataset(
            {
                "ess": 500.0,
                "gradients": 1000,
                "blocks": 40,
                "k_hat": k_hat,
                "certified_mean": ("direction", [0.0, mean]),
                "certified_mean_error": ("direction", [0.02, 0.02]),
                "certified_sd": ("direction", [1.0, sd]),
                "certified_sd_error": ("direction", [0.02, 0.02]),
                "certified_mean_degrees": ("direction", [degrees, degrees]),
                "certified_sd_degrees": ("direction", [degrees, degrees]),
            },
            {"direction": [0, 1], "element": ("direction", ["a", "b"])},
        )
        for name, right in (("gradient", 0.0), ("virial", 1.0)):
            measured[name] = "direction", np.full(2, right)
            measured[f"{name}_error"] = "direction", np.full(2, 0.02)
        measured["cross"], measured["cross_error"] = ("pair", [0.0]), ("pair", [0.02])
        measured["gradient_noise"] = "direction", np.zeros(2)
        table = [row for row in rows(measured) if "exact" in row.label or "k-hat" in row.label]
        return *judge(measured), [row.passed for row in table]

    said, remedy, passed = verdict(0.9, mean=2.0)
    assert (said, passed) == ("ok", [""])
    assert "Exact densities do not tell (k-hat 0.9)" in remedy
    said, remedy, passed = verdict(0.5, mean=0.3, degrees=2.0)
    assert (said, passed) == ("ok", ["yes", "within error", "yes"])
    # the quantile 1 - .001 / 8 of t with 2 degrees is 63
    assert "few draws have most of their weight (chance explains an error of a mean of 1.3 sd)" in (
        remedy
    )
    said, remedy, passed = verdict(0.2, mean=-0.05, sd=0.96)
    assert (said, passed) == ("ok", ["yes", "yes", "yes"])
    chance = 0.02 * stats.t.isf(0.001 / 8, 30)  # for four numbers, on both sides
    found = f"error of a mean is 0.05 sd (chance explains {chance:.2g})"
    assert found in remedy
    assert f"of a standard deviation 4% ({chance:.0%})" in remedy
    assert verdict(0.2, mean=0.5)[::2] == ("failed", ["yes", "no", "yes"])
    said, remedy, passed = verdict(0.2, sd=1.3)
    assert (said, passed) == ("failed", ["yes", "yes", "no"])
    assert "1.3 of the right ones (mostly of 'b'): pass exact=True" in remedy


@pytest.mark.parametrize(
    ("exact", "off", "said"), [(0, 0, "unclear"), (1, 0, "ok"), (1, 3, "failed")]
)
def test_exact_draws_need_no_precise_identities(exact, off, said):
    """Of a density far from normal these have large errors; only chains that differ matter."""
    values = {"ess": 400.0, "gradients": 1000, "blocks": 40, "gradient_noise": 0.0}
    for name, right in (("gradient", off), ("virial", 1.0)):
        values[name], values[f"{name}_error"] = (
            ("direction", [0.0, right]),
            ("direction", [0.3, 0.3]),
        )
    values |= {"cross": ("pair", [0.0]), "cross_error": ("pair", [0.02])}
    measured = Dataset(values, {"direction": [0, 1], "element": ("direction", ["a", "b"])})
    verdict, remedy = judge(measured.assign_attrs(exact_draws=exact))
    assert verdict == said
    if said == "ok":
        assert "their number is their only error, 0.05 sd of a mean" in remedy


# ---- in a run -----------------------------------------------------------------------------------


def sample(model, **kwargs):
    options = {"random_seed": 1, "progressbar": False, "compile_kwargs": JAX, "exact": True}
    with model:
        return sgm.sample(**options | kwargs)


@pytest.fixture(scope="module")
def run(regression, tmp_path_factory):
    certificate_in_result.MOST_NUMBERS, before = np.inf, certificate_in_result.MOST_NUMBERS
    path = tmp_path_factory.mktemp("exact") / "run.zarr"
    yield sample(regression[0], trace=path, draws=150), path
    certificate_in_result.MOST_NUMBERS = before


def check_moments(idata, mean, covariance):
    """Of draws, about as many as effective ones: trajectories are a quarter of a period."""
    theta = idata.posterior["beta"].values.reshape(-1, D)
    z = np.linalg.solve(np.linalg.cholesky(covariance), (theta - mean).T).T
    assert np.abs(z.mean(axis=0)).max() < 4 / np.sqrt(len(z))
    assert np.abs(np.cov(z.T) - np.eye(D)).max() < 4 * np.sqrt(2 / len(z))


@pytest.mark.slow(5)
def test_a_diagonal_metric(regression):
    """The posterior's correlation of 0.6 remains for the trajectories."""
    model, mean, covariance, *_ = regression
    with model:
        step = sgm.MSGNHT_S(adaptation="diag", rng=1, compile_kwargs=JAX)
    idata = sample(model, draws=150, step=step)
    assert json.loads(idata.posterior.attrs["adaptation"])["metric"] == "diag"
    check_moments(idata, mean, covariance)


@pytest.mark.slow(6)
def test_a_stream_is_read_once_for_each_gradient_of_all_chains(regression, monkeypatch):
    model, mean, covariance, _, data = regression
    at_once, n_read = 1300, [0]
    consecutive_rows = flat_model.consecutive_rows

    def counted(data, n):
        for block in consecutive_rows(data, n):
            n_read[0] += len(block["target"]) if n == at_once else 0  # of the exact phase only
            yield block

    monkeypatch.setattr(log_density, "STREAMED_ROWS", at_once)
    monkeypatch.setattr(flat_model, "consecutive_rows", counted)
    monkeypatch.setattr(certificate_in_result, "MOST_NUMBERS", -1)
    idata = sample(model, draws=150, data=sgm.StreamedData(data))
    check_moments(idata, mean, covariance)
    said = json.loads(idata.posterior.attrs["exact"])
    assert n_read[0] == N * said["passes"] / said["chains"]


def test_a_run_has_exact_draws_and_the_evidence(regression, run):
    _, mean, covariance, evidence, _ = regression
    idata, _ = run
    check_moments(idata, mean, covariance)
    table = sgm.certificate(idata)
    found, error = (table.attrs[f"log_marginal_likelihood{end}"] for end in ("", "_error"))
    assert abs(found - evidence) < 4 * error < 0.1
    assert table.attrs["k_hat"] < 0.7
    weights = np.exp(idata.certificate["log_weight"] - idata.certificate["log_weight"].max())
    worth = float(weights.sum() ** 2 / (weights**2).sum())
    assert 100 < worth <= 400
    np.testing.assert_allclose(table.attrs["effective_points"], worth)
    sds = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(table["corrected_mean"] - mean) < 4 * table["bias_error"] * sds)
    assert np.all(np.abs(table["corrected_sd"] / sds - 1) < 0.2)
    assert list(table.index) == ["beta[0]", "beta[1]", "beta[2]"]


def test_many_data_have_a_certificate_on_request(regression, monkeypatch, caplog):
    model, *_ = regression
    draws = np.random.default_rng(1).normal(size=(2, 100, D))
    gradients = RowGradients(model, model.value_vars, compile_kwargs=JAX)
    options = {"idata": DataTree(), "gradients": gradients, "draws": draws, "matrix": np.eye(D)}
    monkeypatch.setattr(certificate_in_result, "MOST_NUMBERS", N * (D + 1) - 1)
    with caplog.at_level("INFO"):
        certificate_in_result.with_certificate(**options, measured=Dataset(), asked=False)
    assert not options["idata"].children
    assert "No certificate of 1e+04 numbers of data" in caplog.text


def test_a_run_says_that_it_is_exact_and_how(run):
    idata, _ = run
    said = json.loads(idata.posterior.attrs["exact"])
    assert said["chains"] == 32
    assert said["reason"] == ""
    assert idata.posterior.sizes["draw"] == 8 * said["kept"]
    statistics = idata.sample_stats
    assert {"energy", "acceptance_rate", "lp", "diverging"} <= set(statistics.data_vars)
    assert statistics["acceptance_rate"].mean() == pytest.approx(said["acceptance"])
    # energy is -lp and half a chi square of D degrees of freedom
    kinetic = float((statistics["energy"] + statistics["lp"]).mean())
    assert kinetic == pytest.approx(D / 2, abs=4 * np.sqrt(D / 2 / 512))
    az.plot_energy(idata)
    plt.close("all")
    assert idata.diagnosis.attrs["verdict"] == "ok"
    assert idata.diagnosis.attrs["rows"] == "exact"
    assert "k_hat" in idata.minibatch_diagnosis


def test_the_phase_is_redone_from_a_store(regression, run):
    idata, path = run
    again = sample(regression[0], trace=path, draws=150, resume=True)
    np.testing.assert_array_equal(again.posterior["beta"], idata.posterior["beta"])
    assert sgm.ZarrStore(path).to_datatree().posterior.sizes["draw"] == 150  # minibatch draws


def test_what_cannot_be_exact_is_refused_before_anything_is_compiled(monkeypatch):
    def compiled(*args, **kwargs):
        raise AssertionError("compiled")

    x = np.linspace(-1, 1, 3000)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=x)
        by_hand = sgm.MSGNHT_S(step_size=1e-3, batch_size=10, thin=1, compile_kwargs=JAX)
    with pm.Model() as discrete:
        k = pm.Poisson("k", 2)
        pm.Normal("y", k, 1, observed=x)
    with pm.Model() as mixture:
        group = pm.Bernoulli("group", 0.5, shape=3000)
        pm.Normal("y", pm.Normal("mu", shape=2)[group], 1, observed=x)
        with_latents = sgm.SGHMC_S(
            step_size=1e-3, batch_size=10, thin=1, latents=sgm.Gibbs(["group"]), compile_kwargs=JAX
        )
    with pm.Model() as many:
        w = pm.Normal("w", shape=3000)
        pm.Normal("y", w.sum(), 1, observed=x)
    monkeypatch.setattr(parametrisation, "default_step", compiled)
    with pytest.raises(ValueError, match="up to 2000 parameters, but there are 3000"):
        sample(many)
    with pytest.raises(ValueError, match="step_size= set by hand: leave it out"):
        sample(model, step=by_hand)
    with pytest.raises(ValueError, match=r"'k' is discrete.*marginalize"):
        sample(discrete)
    with pytest.raises(ValueError, match="single minibatch step"):
        sample(model, step=[by_hand, by_hand])
    with pytest.raises(ValueError, match=r"with latents= there is only an estimate.*marginalize"):
        sample(mixture, step=with_latents)
    with pytest.raises(ValueError, match="exact='yes'"):
        sample(model, exact="yes")


def test_a_certificate_of_any_draws(regression):
    model, mean, covariance, evidence, _ = regression
    draws = np.random.default_rng(1).multivariate_normal(mean, covariance, size=(4, 500))
    posterior = Dataset({"beta": (("chain", "draw", "beta_dim_0"), draws)})
    with pytensor.config.change_flags(mode="JAX"):
        table = sgm.certificate(DataTree.from_dict({"/posterior": posterior}), model)
    assert abs(table.attrs["log_marginal_likelihood"] - evidence) < 0.1
    assert np.all(np.abs(table["bias"]) < 4 * table["bias_error"])


def test_a_result_without_a_certificate_says_how_to_get_one():
    with pytest.raises(ValueError, match=r"sgm\.certificate\(idata, model\)"):
        sgm.certificate(DataTree.from_dict({"/posterior": Dataset()}))


@pytest.mark.slow(6)
@pytest.mark.parametrize("in_python", [True, False])
def test_operations_in_python_never_run_twice_at_a_time(in_python, monkeypatch):
    monkeypatch.setattr("pymc_sgmcmc.exact.log_density.n_cores", lambda: 4)
    monkeypatch.setattr("pymc_sgmcmc.exact.log_density.runs_python", lambda function: in_python)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 600))
    density = LogDensity(RowGradients(model, model.value_vars, compile_kwargs={"mode": "NUMBA"}))
    density(np.zeros((2, 1)))
    assert density._n_threads == (1 if in_python else 4)
