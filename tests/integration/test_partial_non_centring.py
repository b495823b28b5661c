"""The non-centred parametrisation: the same density, for effects of which rows say little."""

from functools import cache

import hierarchies
import numpy as np
import pymc as pm
import pytest
from interrupts import whole_and_resumed
from kills import same
from scipy.special import logsumexp

import pymc_sgmcmc as sgm
from pymc_sgmcmc.adaptation.non_centring_rule import of_rows, weak_effects
from pymc_sgmcmc.adaptation.objective import RowsObjective
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.integration import centre_scaled_effects
from pymc_sgmcmc.integration.centre_scaled_effects import with_centred_effects
from pymc_sgmcmc.integration.partial_non_centring import (
    centred_effects,
    scales_of,
    width_of_scale,
    with_non_centred_effects,
)
from pymc_sgmcmc.integration.reparametrised_models import is_own

JAX = {"mode": "JAX"}
GROUP, Y = hierarchies.GROUP, hierarchies.Y
SCHOOLS = np.array([28, 8, -3, 7, -1, 1, 18, 12.0]), np.array([15, 10, 16, 11, 9, 11, 10, 18.0])
"""Rubin (1981): estimated effects of coaching in eight schools, and their standard errors."""


def log_normal_slopes():
    """With a scale for each, and another variable whose mean is one of the effects."""
    with pm.Model() as model:
        s, m = pm.HalfNormal("s", shape=4), pm.Normal("m")
        alpha = pm.LogNormal("alpha", m, s)
        pm.Normal("next", alpha[2])
        pm.Normal("y", alpha[GROUP], observed=Y)
    return model


@pytest.mark.parametrize("form", [hierarchies.centred, log_normal_slopes])
def test_density_is_that_of_the_model(form):
    written = form()
    assert [rv.name for rv in centred_effects(written)] == ["alpha"]
    h, b = np.array([0.0, 0.4, 2, 50]), np.array([0.0, -0.3, 3, 20])
    model = with_non_centred_effects(written, {"alpha": np.stack([h, b])})
    own = [v.name for v in model.unobserved_RVs if is_own(v.name)]
    assert sorted(own) == sorted(v.name for v in written.unobserved_RVs)
    rng = np.random.default_rng(1)
    point = {k: rng.normal(0, 0.5, np.shape(v)) for k, v in model.initial_point().items()}

    [of_values] = model.replace_rvs_by_values([model["alpha"]])
    alpha, ours = hierarchies.evaluated(model, [of_values, model.logp()], point)
    is_log_normal = form is log_normal_slopes
    of_value = {"alpha_log__": np.log(alpha)} if is_log_normal else {"alpha": alpha}
    [expected] = hierarchies.evaluated(written, [written.logp()], point | of_value)
    scales = np.exp(np.broadcast_to(point["s_log__" if is_log_normal else "tau_log__"], 4))
    log_sds = -np.log(scales**-2 + h).sum() / 2
    assert ours == pytest.approx(expected + log_sds, abs=1e-9)  # da = sqrt(v) dz


def test_what_was_centred_first(monkeypatch):
    """Effects tau z of which rows say little are neither a = tau z nor z: the latter follows."""
    monkeypatch.setattr(centre_scaled_effects, "ROWS_PER_EFFECT", 0)
    written = hierarchies.noncentred()
    h, b = np.array([0.0, 0.4, 2, 50]), np.array([0.0, -0.3, 3, 20])
    known = {"z (as sampled)": np.stack([h, b])}
    model = with_non_centred_effects(with_centred_effects(written), known)
    names = {v.name for v in model.unobserved_RVs}
    assert names == {v.name for v in written.unobserved_RVs} | {"z (as sampled)"}
    rng = np.random.default_rng(1)
    point = {k: rng.normal(0, 0.5, np.shape(v)) for k, v in model.initial_point().items()}
    [of_values] = model.replace_rvs_by_values([model["z"]])
    z, ours = hierarchies.evaluated(model, [of_values, model.logp()], point)
    [expected] = hierarchies.evaluated(written, [written.logp()], point | {"z": z})
    tau = np.exp(point["tau_log__"])
    log_sds = -np.log(1 + h * tau**2).sum() / 2  # tau dz = sqrt(v) of what is sampled
    assert ours == pytest.approx(expected + log_sds, abs=1e-9)


def test_a_scale_of_which_rows_say_little_is_sampled_on_another_scale():
    written = hierarchies.centred()
    [alpha] = centred_effects(written)
    h = np.array([0.0, 0.4, 2, 50])
    scale, of_effects = scales_of(written, alpha, h.shape)
    assert scale is written["tau"]
    width = width_of_scale(written, scale, of_effects, h)
    # The information about the variance near 0 is half the sum of squares.
    assert width == pytest.approx(0.4 / (np.sum(h**2) / 2) ** 0.25)
    model = with_non_centred_effects(written, {"tau": np.stack([width, 0.07])})
    assert model.rvs_to_values[model["tau"]].name == "tau_softplus__"
    assert set(model.named_vars) == set(written.named_vars)
    start, of_written = model.initial_point(), written.initial_point()
    [tau] = hierarchies.evaluated(model, model.replace_rvs_by_values([model["tau"]]), start)
    assert tau == pytest.approx(0.07)
    for x in (-30.0, -1.0, 0.5, 40.0):
        point = start | {"tau_softplus__": np.asarray(x)}
        values = [*model.replace_rvs_by_values([model["tau"]]), model.logp()]
        tau, ours = hierarchies.evaluated(model, values, point)
        assert tau == pytest.approx(width * np.logaddexp(0, x))
        point = of_written | {"tau_log__": np.log(tau)}
        [of_log] = hierarchies.evaluated(written, [written.logp()], point)
        slope = np.log(width) - np.logaddexp(0, -x)  # log d tau / dx
        assert ours == pytest.approx(of_log - np.log(tau) + slope, abs=1e-9)


def several_scales():
    """Of two effects each, looked up; those of the other variable have their own column's."""
    with pm.Model() as model:
        s, t = pm.HalfNormal("s", shape=2), pm.HalfNormal("t", shape=(2, 1))
        kind = pm.Data("kind", np.array([0, 1, 1, 0]))
        alpha = pm.Normal("alpha", 0, s[kind], shape=4)
        beta = pm.Normal("beta", 0, 1.0 * t.reshape((2,)), shape=(4, 2))
        pm.Normal("y", alpha[GROUP] + beta[GROUP, 0], observed=Y)
    return model


def test_each_scale_has_a_width_from_its_own_effects():
    model = several_scales()
    alpha, beta = centred_effects(model)
    h = np.array([0.5, 1.0, 2.0, 3.0])
    known = {"s": width_of_scale(model, *scales_of(model, alpha, h.shape), h)}
    sums = np.array([0.5**2 + 3**2, 1 + 2**2])
    np.testing.assert_allclose(known["s"], 0.4 / (sums / 2) ** 0.25)
    h = np.stack([h, 2 * h], axis=1)
    known["t"] = width_of_scale(model, *scales_of(model, beta, h.shape), h)
    np.testing.assert_allclose(known["t"], 0.4 / (np.sum(h**2, axis=0)[:, None] / 2) ** 0.25)

    starts = {name: np.stack([width, 0.3 + 0 * width]) for name, width in known.items()}
    rewritten = with_non_centred_effects(model, starts)
    point = {k: np.full(np.shape(v), 0.3) for k, v in rewritten.initial_point().items()}
    scales = [rewritten["s"], rewritten["t"]]
    values = [*rewritten.replace_rvs_by_values(scales), rewritten.logp()]
    s, t, ours = hierarchies.evaluated(rewritten, values, point)
    np.testing.assert_allclose(s, known["s"] * np.logaddexp(0, 0.3))
    own = {"s_log__": np.log(s), "t_log__": np.log(t), "alpha": point["alpha"]}
    [of_log] = hierarchies.evaluated(model, [model.logp()], own | {"beta": point["beta"]})
    slopes = [np.log(known[n] / v) - np.logaddexp(0, -0.3) for n, v in (("s", s), ("t", t))]
    assert ours == pytest.approx(of_log + sum(each.sum() for each in slopes), abs=1e-9)


def scaled_by(scale):
    with pm.Model() as model:
        scale = scale(pm.HalfNormal("s"), pm.HalfNormal("t"))
        pm.Normal("y", pm.Normal("alpha", 0, scale, shape=4)[GROUP], observed=Y)
    return model


@pytest.mark.parametrize(
    ("written", "h"),
    [
        (scaled_by(lambda s, t: s), np.zeros(4)),
        (scaled_by(lambda s, t: s + t), np.ones(4)),
        (scaled_by(lambda s, t: s**2), np.ones(4)),
    ],
    ids=["nothing is known of it", "not a variable", "not unchanged"],
)
def test_scales_that_stay_on_the_logarithmic_scale(written, h):
    [effects] = centred_effects(written)
    found = scales_of(written, effects, h.shape)
    assert found is None or width_of_scale(written, *found, h) is None


def test_what_rows_say_is_not_lost_in_rounding():
    """Scales of a Gaussian process are tiny, and their prior's curvature is 1e26 times that of the
    rows; effects without rows stay as they are.
    """
    of_prior = 10.0 ** np.arange(0, 30, 2)
    expected = np.where(of_prior == 100, 0.0, 1000.0)
    found = of_rows(of_prior + expected, of_prior)
    np.testing.assert_allclose(found, expected, rtol=0.05)


@pytest.mark.parametrize("form", [hierarchies.fixed_scales, hierarchies.noncentred])
def test_effects_without_a_sampled_scale_are_not_centred(form):
    assert not centred_effects(form())


def schools(prior_sd=5.0):
    y, sigma = SCHOOLS
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu, tau = pm.Normal("mu", 0, prior_sd), pm.HalfCauchy("tau", prior_sd)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Normal("y", theta, sigma, observed=y, dims="school")
    return model


@cache
def exact_moments():
    """Means and sds of log tau, mu and theta, by quadrature."""
    y, sigma = SCHOOLS
    log_tau = np.linspace(-12, 7, 2001)[:, None]
    mu = np.linspace(-25, 30, 551)
    tau = np.exp(log_tau)
    log_p = log_tau - np.log1p((tau / 5) ** 2) - (mu / 5) ** 2 / 2
    for y_j, s_j in zip(y, sigma, strict=True):
        variance = s_j**2 + tau**2
        log_p = log_p - ((y_j - mu) ** 2 / variance + np.log(variance)) / 2
    p = np.exp(log_p - log_p.max())
    p /= p.sum()

    def moments(mean, variance=0.0):
        expected = np.sum(p * mean)
        return expected, np.sqrt(np.sum(p * (variance + mean**2)) - expected**2)

    theta = []
    for y_j, s_j in zip(y, sigma, strict=True):
        total = s_j**2 + tau**2
        theta.append(moments((tau**2 * y_j + s_j**2 * mu) / total, tau**2 * s_j**2 / total))
    return moments(log_tau + 0 * mu), moments(mu + 0 * tau), theta


@pytest.mark.slow(20)
def test_eight_schools():
    """The funnel of the centred parametrisation would leave the draws of log tau .5 sd off."""
    with schools():
        tree = sgm.sample(ess=1000, random_seed=1, progressbar=False, compile_kwargs=JAX)
    assert tree["diagnosis"].attrs["verdict"] == "ok"
    draws = tree.posterior
    assert list(draws) == ["mu", "tau", "theta"]
    assert draws["theta"].dims == ("chain", "draw", "school")
    log_tau, mu, theta = exact_moments()
    # 1000 effective draws: means have errors of .03 sd (four of them allowed), and sds of 2.2%,
    # 4% for the long left tail of log tau.
    for values, (mean, sd), of_sd in [
        (np.log(draws["tau"]), log_tau, 0.16),
        (draws["mu"], mu, 0.1),
        *((draws["theta"][..., j], theta[j], 0.1) for j in range(8)),
    ]:
        assert abs(float(values.mean()) - mean) < 0.13 * sd
        assert float(values.std()) == pytest.approx(sd, rel=of_sd)


@pytest.mark.long
def test_interrupted_and_resumed(tmp_path, caplog):
    """The store knows that effects are non-centred: the warm-up is not made again."""
    whole, resumed = whole_and_resumed(schools(), tmp_path, caplog)
    assert same(resumed, whole)
    assert "Warm-up" not in caplog.text


@pytest.mark.long
def test_one_of_several_scales_is_near_zero(caplog):
    """Against NUTS: each has at least 400 effective draws, so two means differ by .07 sd."""
    rng = np.random.default_rng(4)
    group, kind, n = rng.integers(0, 60, 3000), np.eye(3)[rng.integers(0, 3, 3000), 1:], 60
    y = rng.normal(rng.normal(0.3, 0.8, n)[group], 1)
    with pm.Model():
        s, t = pm.HalfNormal("s", 2.5), pm.HalfNormal("t", 2.5, shape=2)
        z, u = pm.Normal("z", shape=n), pm.Normal("u", shape=(2, n))
        of_kind = ((t[:, None] * u)[:, group] * kind.T).sum(axis=0)
        eta = pm.Normal("b", 0, 2) + (s * z)[group] + of_kind
        pm.Normal("y", eta, pm.HalfNormal("sigma", 2), observed=y)
        tree = sgm.sample(random_seed=1, progressbar=False, integrate=None)
        nuts = pm.sample(cores=1, target_accept=0.95, random_seed=1, progressbar=False).posterior
    assert "they are partially non-centred: 'z', 'u'" in caplog.text
    assert tree["diagnosis"].attrs["verdict"] == "ok"
    for name in ("b", "s", "t", "sigma"):
        over = ("chain", "draw")
        off = (tree.posterior[name].mean(over) - nuts[name].mean(over)) / nuts[name].std(over)
        assert abs(off).max() < 0.28


@pytest.mark.long
def test_rare_events(caplog):
    """40 rows of each group, but of 1000 events: the rows do not say what they usually do."""
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(60), 40)
    y = rng.binomial(1, 1 / (1 + np.exp(4.5 - rng.normal(0, 0.4, 60)[group])))
    with pm.Model():
        z, tau = pm.Normal("z", shape=60), pm.HalfNormal("tau")
        pm.Bernoulli("y", logit_p=pm.Normal("b", 0, 5) + tau * z[group], observed=y)
        tree = sgm.sample(random_seed=1, progressbar=False)
    assert "they are partially non-centred: 'z'" in caplog.text
    assert set(tree.posterior) == {"b", "tau", "z"}
    assert tree["diagnosis"].attrs["verdict"] == "ok"


@pytest.mark.slow(10)
def test_effects_that_rows_determine_stay_centred(caplog):
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(8), 50)
    with pm.Model():
        a = pm.Normal("a", pm.Normal("mu"), pm.HalfNormal("tau"), shape=8)
        pm.Normal("y", a[group], 1, observed=rng.normal(group / 4, 1))
        sgm.sample(20, tune=5, chains=1, random_seed=1, progressbar=False, compile_kwargs=JAX)
    assert "non-centred" not in caplog.text


def horseshoe(y, m):
    """The mean of each group has a scale of its own, times one for all."""
    with pm.Model() as model:
        local, tau = pm.HalfCauchy("local", 1, shape=len(y)), pm.HalfCauchy("tau", 0.5)
        beta = pm.Normal("beta", 0, local * tau, shape=len(y))
        group = np.repeat(np.arange(len(y)), m)
        rows = np.random.default_rng(3).normal(size=(len(y), m))
        rows += (y - rows.mean(axis=1))[:, None]
        pm.Normal("y", beta[group], 1, observed=rows.ravel())
    return model


def test_effects_with_scales_of_their_own_are_never_left_centred():
    """At any one point the rows may say more than the prior, but some scales may be far smaller."""
    model = horseshoe(np.linspace(1, 2, 6), 50)
    gradients = RowGradients(model, model.value_vars, compile_kwargs=JAX)
    objective = RowsObjective(gradients)
    theta = gradients.flat(model.initial_point())
    curvature = np.diag(objective.at(theta).curvature())
    assert set(weak_effects(model, objective, theta, curvature)) == {"beta"}


def test_scales_of_one_effect_each_are_sampled_on_the_logarithmic_scale():
    """No effect is far from 0 at this point, and the upper tail of such a scale is long."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, pm.HalfCauchy("local", 0.5, shape=6), shape=6)
        group = np.repeat(np.arange(6), 50)
        y = np.random.default_rng(3).normal(1 + group, 1)
        pm.Normal("y", beta[group], 1, observed=y)
    gradients = RowGradients(model, model.value_vars, compile_kwargs=JAX)
    objective = RowsObjective(gradients)
    theta = gradients.flat(model.initial_point())
    curvature = np.diag(objective.at(theta).curvature())
    assert set(weak_effects(model, objective, theta, curvature)) == {"beta"}


@pytest.mark.long
def test_posterior_under_a_horseshoe():
    """Against quadrature over log local, for each value of log tau."""
    means, m = np.array([1.0, -0.7, 0.4, 0.05, -0.1, 0.02, 0.12, -0.04]), 100
    log_tau, log_local = np.linspace(-9, 3, 400), np.linspace(-9, 9, 1500)[:, None]
    log_p = log_tau - np.log1p(np.exp(2 * log_tau) / 0.25)
    for mean in means:
        variance = np.exp(2 * (log_tau + log_local)) + 1 / m
        of_scales = log_local - np.log1p(np.exp(2 * log_local)) - np.log(variance) / 2
        log_p = log_p + logsumexp(of_scales - mean**2 / 2 / variance, axis=0)
    p = np.exp(log_p - log_p.max()) / np.exp(log_p - log_p.max()).sum()
    expected = p @ log_tau
    sd = np.sqrt(p @ (log_tau - expected) ** 2)
    with horseshoe(means, m):
        tree = sgm.sample(random_seed=1, progressbar=False)
    assert tree["diagnosis"].attrs["verdict"] == "ok"
    found = np.log(tree.posterior["tau"].values)
    # 400 effective draws: five standard errors of the mean, and of the sd of a normal variable.
    assert abs(found.mean() - expected) < 5 * sd / np.sqrt(400)
    assert found.std() == pytest.approx(sd, rel=5 / np.sqrt(800))
