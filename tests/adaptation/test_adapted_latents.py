"""Adapted steps with `latents=`: start, metric, noise, posterior, verdict; and what is refused."""

from functools import cache

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from known_posteriors import Truth, assert_right
from xarray import Dataset, DataTree

import pymc_sgmcmc as sgm
from pymc_sgmcmc.adaptation import metric_and_batch_size
from pymc_sgmcmc.adaptation.adapted_settings import Adapted
from pymc_sgmcmc.adaptation.fisher_information import PairedGradients
from pymc_sgmcmc.adaptation.latent_warm_up import LatentWarmUp, _parted
from pymc_sgmcmc.adaptation.short_runs import ShortRun
from pymc_sgmcmc.diagnosis.coordinates import Coordinates
from pymc_sgmcmc.diagnosis.diagnose import diagnose_run
from pymc_sgmcmc.diagnosis.diagnosis_table import Diagnosis
from pymc_sgmcmc.diagnosis.gradients_at_draws import LatentsAtDraws
from pymc_sgmcmc.diagnosis.measure import measure

JAX = {"mode": "JAX"}
N, D = 640, 3
TAU2, S2 = 0.5, 1.0
V = TAU2 + S2
RNG = np.random.default_rng(2)
X = np.column_stack([np.ones(N), RNG.normal(size=(N, 2))])
X[:, 2] = 0.9 * X[:, 1] + 0.3 * X[:, 2]
Y = X @ [3.0, -1.0, 0.5] + np.sqrt(V) * RNG.normal(size=N)
PRIOR_SD = 0.5


def factors():
    """Normal latent variables: without them a linear regression with errors of variance V."""
    with pm.Model(coords={"row": range(N)}) as model:
        beta = pm.Normal("beta", 0, PRIOR_SD, shape=D)
        h = pm.Normal("h", pm.Data("X", X, dims=("row", None)) @ beta, np.sqrt(TAU2), dims="row")
        pm.Normal("y", h, np.sqrt(S2), observed=Y, dims="row")
    return model


PRECISION = X.T @ X / V + np.eye(D) / PRIOR_SD**2
MEAN = np.linalg.solve(PRECISION, X.T @ Y / V)
COVARIANCE = np.linalg.inv(PRECISION)
TRUTH = Truth({"beta": MEAN}, {"beta": np.sqrt(np.diag(COVARIANCE))})


def gibbs():
    """Draws that are exact after one sweep: the full conditional of h is normal."""
    return sgm.Gibbs(["h"], n_samples=1, burn_in=0)


@cache
def posterior_moments():
    """Information of the rows, and covariance of a batch's gradient with one draw of h.

    The scores of the rows are x (y - x beta) / V. Given a row, x (h - x beta) / TAU2 has the
    variance x x' S2 / (TAU2 V) more: twice as much.
    """
    scores = X * (Y - X @ MEAN)[:, None] / V
    information = N * np.cov(scores.T, ddof=0)
    return information, N / 128 * (information + X.T @ X * S2 / (TAU2 * V))


@pytest.mark.slow(30)
def test_default_call():
    """The posterior is right, and the warm-up has seen its curvature and the noise.

    The curvature is that of the rows, a third of that of rows with latent variables.
    """
    with factors():
        step = sgm.MSGNHT_S(latents=gibbs(), compile_kwargs=JAX, rng=1)
        tree = sgm.sample(step=step, random_seed=1, progressbar=False)
    adapted = step.adapted
    assert adapted.metric == "dense"
    assert step.batch_size == adapted.batch_size == 128
    assert_right(tree, TRUTH)
    diagnosis = tree["diagnosis"].to_dataset()
    assert diagnosis.attrs["verdict"] == "ok", diagnosis.attrs["remedy"]
    # 1200 pairs at least: a share of 1/3 has the standard error sqrt((1 + 1/9) / 2400) = .022, and
    # the covariance around it sqrt(2 / 1200) = .04, so that an eigenvalue has .075.
    information, noise = posterior_moments()
    L = step.kernel.metric.times(np.eye(D)).T
    known = information + np.eye(D) / PRIOR_SD**2
    np.testing.assert_allclose(np.linalg.eigvalsh(L.T @ known @ L), 1, atol=4 * 0.075)
    noise = L.T @ noise @ L
    np.testing.assert_allclose(adapted.noise, np.linalg.eigvalsh(noise), rtol=4 * 0.04)
    off_axes = noise - np.diag(np.diag(noise))
    assert np.abs(off_axes).max() < 4 * 0.04 * noise.max()
    # A thermostat has the variance 1: the mean of 3 of them over 400 effective draws has .03.
    stats = tree.sample_stats["thermostat"]
    assert abs(float(stats.mean()) - adapted.friction.mean()) < 4 * 0.03


# ---- with a step whose adaptation is known -------------------------------------------------


@cache
def known_step():
    """A step without a warm-up."""
    L = np.linalg.cholesky(COVARIANCE)
    noise = np.diag(L.T @ posterior_moments()[1] @ L)
    known = Adapted(
        metric="dense", scaling=[L], anchor=MEAN, anchor_gradient=np.zeros(D),
        anchor_powers=np.zeros(D), row_copies=None,
        noise=noise, friction=1 + 0.02 * noise / 2, starts=MEAN[None], largest_eigval=1.0,
        smallest_eigval=1.0, step_size=0.02, thin=5, batch_size=128, windows=1, ess_per_draw=0.1,
        passes_per_draw=1.0, data_passes=0.0, n_rows=N,
    )  # fmt: skip
    with factors():
        return sgm.MSGNHT_S(latents=gibbs(), adaptation=known, compile_kwargs=JAX, rng=1)


def warm_up(seed=0):
    step = known_step()
    return LatentWarmUp(step.kernel, step.gradients, np.random.default_rng(seed), 0.05)


def exact_draws(factor):
    rng = np.random.default_rng(0)
    away = rng.multivariate_normal(np.zeros(D), COVARIANCE, size=(4, 500))
    return DataTree.from_dict(
        {"/posterior": Dataset({"beta": (("chain", "draw", "k"), MEAN + factor * away)})}
    )


@pytest.mark.long
def test_diagnosis_of_exact_draws():
    """The mean of the virials is 1.32 or .76 where sds are wrong; its standard error is .04."""
    step = known_step()
    for factor, verdict, remedy in (
        (1.0, "ok", "Nothing"),
        (1.15, "failed", "too large"),
        (1 / 1.15, "failed", "too small"),
    ):
        tree = exact_draws(factor)
        draws = tree["posterior"]["beta"].values
        at = Coordinates(np.linalg.cholesky(COVARIANCE), "known")
        diagnosis = Diagnosis.of(measure(tree, step.gradients, draws, at, False, LatentsAtDraws))
        assert diagnosis.verdict == verdict, diagnosis
        assert remedy in diagnosis.remedy
        assert diagnosis["gradient_error"].max() < 0.1
    assert "latent variables drawn anew" in diagnosis.attrs["rows"]


@pytest.mark.long
def test_a_start_that_is_far_away_is_left():
    """Steps grow: 1000 updates of Adam's first rate go no farther than 5."""
    run = warm_up()
    with run.progress:
        theta = run._start(MEAN + np.array([400.0, 0.0, 0.0]))
    assert np.abs(theta - MEAN).max() < 5


@pytest.mark.slow(8)
def test_chains_that_have_parted_go_on_from_one(monkeypatch):
    """Three chains stay where they are, one leaves for another place: there all begin again."""
    run = warm_up()
    began = []

    def short_run(points, window, thin, n, fresh=True):
        at = np.array([run.gradients.flat(point) for point in points])
        began.append(at)
        L = run.metric.times(np.eye(D)).T
        ends = at + [[0.0], [0.0], [50.0 * (len(began) == 1)], [0.0]] * L[:, 0]
        away = np.random.default_rng(len(began)).normal(size=(len(at), n, D)) @ L.T
        draws = ends[:, None] + away
        return ShortRun(
            [{**p, **run.gradients.point(d)} for p, d in zip(points, draws[:, -1], strict=True)],
            draws,
            thermostats=None,
            friction=np.ones(D),
        )

    monkeypatch.setattr(run, "_start", lambda begin: MEAN)
    monkeypatch.setattr(run.runs, "run", short_run)
    monkeypatch.setattr(run, "finish", lambda settings, last, thin, windows, **found: windows)
    windows = run.run(known_step().model.initial_point())
    root = np.linalg.cholesky(PRECISION)
    first, second = (np.linalg.norm((at - MEAN) @ root, axis=1) for at in began[:2])
    assert first.max() < 5
    assert second.min() > 20
    assert windows == 3  # in the last two they stayed together


@pytest.mark.long
def test_runs_resume_and_copies_are_judged(tmp_path):
    step = known_step()
    run = {"chains": 2, "step": step, "random_seed": 2, "quiet": True, "tune": 0}
    with factors():
        whole = sgm.sample(draws=8, **run).posterior["beta"].values
        sgm.sample(draws=3, trace=tmp_path / "run", **run)
        more = sgm.sample(draws=8, trace=tmp_path / "run", resume=True, **run)
    np.testing.assert_array_equal(whole, more.posterior["beta"].values)
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    assert copy._gradients is None
    diagnose_run(more, copy)
    assert "virial" in more["diagnosis"]


@pytest.mark.slow(6)
def test_in_pymcs_loop():
    """A chain whose start is far away begins in the posterior."""
    step = known_step()
    idata = pm.sample(
        10, tune=0, chains=1, cores=1, step=step, model=step.model, random_seed=1,
        progressbar=False, compute_convergence_checks=False,
    )  # fmt: skip
    away = (idata.posterior["beta"].values[0] - MEAN) / TRUTH.sd["beta"]
    assert np.abs(away).max() < 6


# ---- parts of the warm-up ------------------------------------------------------------------


def test_information_where_pairs_are_few():
    """40 shares of 1/2 each, from 120 pairs: not shrunk, the smallest seems to be negative."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(121, 40))
    pairs = [scores + rng.normal(size=scores.shape) for _ in range(2)]
    seen = PairedGradients.of(*pairs)
    assert seen.n == 120
    half = np.linalg.eigvalsh(seen.between)
    assert half[0] < -0.1
    shares = np.linalg.eigvals(np.linalg.solve(seen.within, seen.covariance_of_scores())).real
    np.testing.assert_allclose(shares, 0.5, atol=0.1)


def test_covariances_are_averaged_by_pairs():
    rng = np.random.default_rng(0)
    parts = [PairedGradients.of(*rng.normal(size=(2, n, 2))) for n in (11, 31)]
    both = parts[0].joined(parts[1])
    assert both.n == 40
    np.testing.assert_allclose(both.within, 0.25 * parts[0].within + 0.75 * parts[1].within)
    np.testing.assert_allclose(both.between, 0.25 * parts[0].between + 0.75 * parts[1].between)


def test_chains_that_have_parted():
    draws = np.random.default_rng(0).normal(size=(4, 6, 20))
    assert not _parted(draws)
    draws[2, :, 3] += 30
    assert _parted(draws)


# ---- what is refused -----------------------------------------------------------------------


def refused(match, **options):
    with factors(), pytest.raises(ValueError, match=match):
        sgm.MSGNHT_S(**({"latents": gibbs()} | options))


def test_what_does_not_go_together(monkeypatch):
    neural = sgm.NeuralImportance(["h"])
    refused(r"latents=NeuralImportance.*carries.*step_size=.*Or use latents=Gibbs", latents=neural)
    refused("latents=, data= and an automatic", data={"X": X, "y": Y})
    refused("needs batch_size=", batch_size=None)
    refused("gradient='control_variate' and latents=", gradient="control_variate")
    monkeypatch.setattr(metric_and_batch_size, "LARGEST_DENSE_WITH_LATENTS", 2)
    refused(r"adaptation='dense' and latents= .*up to 2 param.*has 3.*'diag'", adaptation="dense")
    monkeypatch.setattr(metric_and_batch_size, "LARGEST_DENSE", 2)
    refused("With 3 parameters, more than 2, latents=")
