"""Effects of groups integrated out: densities and gradients against integrals by brute force."""

import json
import logging

import hierarchies
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from arviz_base import from_dict
from pymc.exceptions import SamplingError
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import pymc_sgmcmc as sgm
import pymc_sgmcmc.step
from pymc_sgmcmc.adaptation import curvature_warm_up, slow_draws_warning
from pymc_sgmcmc.adaptation.change_of_form import OtherForm, form_changeable
from pymc_sgmcmc.adaptation.rows_warm_up import RowsWarmUp, noise_covariance, rows_per_position
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.gradients.differentiate import before_gradients
from pymc_sgmcmc.gradients.metric import Diagonal
from pymc_sgmcmc.integration import centre_scaled_effects
from pymc_sgmcmc.integration.density_ranges import middles_and_factors
from pymc_sgmcmc.integration.effects import EffectDraws
from pymc_sgmcmc.integration.group_gradients import GroupGradients
from pymc_sgmcmc.integration.group_terms import NotIntegrated, group_terms
from pymc_sgmcmc.integration.integrated_model import integrated_model
from pymc_sgmcmc.integration.laplace import modes_and_factors
from pymc_sgmcmc.integration.quadrature_error import quadrature_error
from pymc_sgmcmc.integration.quadrature_points import REFINED, Points, points_of, rule_of
from pymc_sgmcmc.integration.row_effects import with_row_numbers
from pymc_sgmcmc.integration.whether_to_integrate import terms_to_integrate
from pymc_sgmcmc.loop import Loop
from pymc_sgmcmc.run.integrated_effects import _moments
from pymc_sgmcmc.run.parametrisation import Form
from pymc_sgmcmc.run.sample_arguments import Arguments
from pymc_sgmcmc.run.step_of_run import default_step

INTEGRATED = {
    "fixed_scales": ["alpha"],
    "centred": ["alpha"],
    "noncentred": ["z"],
    "group_predictor": ["alpha"],
    "transformed": ["shape", "rate"],
    "lkj_rows": ["ab"],
    "lkj_noncentred": ["z"],
    "nested": ["school"],
    "crossed": ["v", "bias"],
    "hurdle": ["alpha"],
}
"""The index with the most groups, of forms in which a model may be written."""


def density(model, inputs):
    return pytensor.function(
        inputs, model.logp(), mode=PYTHON, on_unused_input="ignore", trust_input=True
    )


def effects_into(terms, point, effects):
    """Add effects, shape (groups, k), to a point."""
    full, first = dict(point), 0
    for effect in terms.effects:
        own = effects[:, first : first + effect.size].reshape(-1, *effect.shape)
        full[effect.value.name] = np.moveaxis(own, 0, effect.axis)
        first += effect.size
    return full


def by_brute_force(model, terms, point):
    """Log of the integral over all effects, by sums over a grid around each group's mode.

    The effects of a group are varied with those of all others held: the integrand is a product.
    """
    logp = density(model, model.value_vars)
    k, zeros = terms.k, np.zeros((terms.n_groups, terms.k))

    def at(effects):
        full = effects_into(terms, point, effects)
        return float(logp(*(np.asarray(full[v.name], dtype="float64") for v in model.value_vars)))

    total = at(zeros)
    for j in range(terms.n_groups):

        def moved(x, j=j):
            effects = zeros.copy()
            effects[j] = x
            return at(effects)

        found = minimize(lambda x, f=moved: -f(x), np.zeros(k), method="Nelder-Mead").x
        e = 1e-3 * np.eye(k)
        hessian = [
            [(moved(found + a + b) - moved(found + a - b) - moved(found - a + b)
              + moved(found - a - b)) / -4e-6 for a in e] for b in e
        ]  # fmt: skip
        factor = np.linalg.inv(np.linalg.cholesky(np.array(hessian))).T
        # The trapezoidal rule: its error falls exponentially; tails of skewed densities are long.
        x = np.linspace(-14, 14, 29) if k < 3 else np.linspace(-8, 8, 17)
        grid = np.stack(np.meshgrid(*[x] * k, indexing="ij"), axis=-1).reshape(-1, k)
        values = [moved(found + factor @ z) for z in grid]
        cell = np.linalg.det(factor) * (x[1] - x[0]) ** k
        total += logsumexp(values) + np.log(cell) - at(zeros)
    return total


@pytest.mark.parametrize("log_scale", [-6.0, -2.0, -0.5, 0.7])
def test_groups_with_one_effect_follow_the_scale(log_scale, python_by_default):
    """Far from where their modes were found the integrals are those of modes found anew there.

    With constant points they would be too large by 500 at a scale of e^-3, and without bound
    below: a mode that the posterior does not have.
    """
    rng = np.random.default_rng(1)
    group, y = np.repeat(np.arange(50), 3), rng.binomial(1, 0.1, 150)
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu"), pm.HalfNormal("scale"), shape=50)
        pm.Bernoulli("y", logit_p=a[group], observed=y)
    terms = group_terms(model, ["a"])
    followed, anew = (integrated_model(terms, points_of(1, refine)) for refine in (1, 4))
    at = {"mu": np.array(-2.2), "scale_log__": np.array(0.0)}
    elsewhere = {**at, "scale_log__": np.array(log_scale)}
    followed.centres.move(at, afresh=True)
    anew.centres.move(elsewhere, afresh=True)
    found, expected = (
        float(density(model, model.value_vars)(*(elsewhere[v.name] for v in model.value_vars)))
        for model in (followed, anew)
    )
    assert found == pytest.approx(expected, abs=1e-3)
    assert quadrature_error(followed.centres, followed.points, [at, elsewhere]) < 1e-3


@pytest.mark.parametrize("k", [2, 3, 4, 6])
@pytest.mark.parametrize("log_scale", [-2.0, -0.3, 0.5])
def test_groups_with_several_effects_follow_the_scale(k, log_scale, python_by_default):
    """Of normal rows the integral is known: constant points would be off by hundreds."""
    rng = np.random.default_rng(1)
    group, X, y = np.repeat(np.arange(20), 8), rng.normal(size=(160, k)), rng.normal(size=160)
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu"), pm.HalfNormal("scale"), shape=(20, k))
        pm.Normal("y", (X * a[group]).sum(axis=1), 0.5, observed=y)
    integrated = integrated_model(group_terms(model, ["a"]), points_of(k), follow=k <= 3)
    at = {"mu": np.array(0.3), "scale_log__": np.array(0.0)}
    integrated.centres.move(at, afresh=True)
    potential = integrated.potentials[0].sum()
    function = integrated.compile_fn(
        potential, inputs=integrated.value_vars, mode=PYTHON, point_fn=False
    )

    def exact(mu, scale_log__):
        own = (X[group == j] for j in range(20))
        return sum(
            multivariate_normal(
                mu * x.sum(axis=1), np.exp(2 * scale_log__) * x @ x.T + 0.25 * np.eye(8)
            ).logpdf(y[group == j])
            for j, x in enumerate(own)
        )

    elsewhere = {"mu": np.array(-0.2), "scale_log__": np.array(log_scale)}
    for point in (at, elsewhere):
        assert float(function(*point.values())) == pytest.approx(exact(**point), abs=1e-6)


def better(gradients, draws, far=()):
    """What the warm-up changes about the integrals, if its draws are these."""
    far = np.reshape(far, (-1, draws.shape[1]))
    return gradients.better_integrals(gradients.other_integrals, draws[0], draws, far, False)


def test_skew_densities_of_three_effects_get_more_nodes(python_by_default):
    """Points that follow the prior would not do, and equally spaced ones cost twice as much."""
    rng = np.random.default_rng(3)
    group, x = np.repeat(np.arange(60), 12), np.tile(np.linspace(-3, 3, 12), 60)
    half, slope, top = (rng.normal(m, s, 60) for m, s in ((0.2, 0.8), (0.1, 0.3), (1.0, 0.2)))
    y = rng.normal(top[group] / (1 + np.exp(-np.exp(slope[group]) * (x - half[group]))), 0.1)
    with pm.Model() as model:
        h = pm.Normal("half", 0.2, pm.HalfNormal("s_half", 1), shape=60)
        s = pm.Normal("slope", 0.1, pm.HalfNormal("s_slope", 1), shape=60)
        t = pm.Normal("top", 1.0, pm.HalfNormal("s_top", 1), shape=60)
        curve = t[group] / (1 + pt.exp(-pt.exp(s[group]) * (x - h[group])))
        pm.Normal("y", curve, 0.1, observed=y)
    terms = group_terms(model)
    draws = np.log([0.8, 0.3, 0.2]) + rng.normal(0, 0.4, (10, 3))

    def made(points, follow=False):
        integrated = integrated_model(terms, points, follow)
        gradients = GroupGradients(integrated, integrated.value_vars)
        gradients.settle_around(draws[0])
        return gradients

    assert better(made(points_of(3)), draws) == "refined"
    refined = made(points_of(3, REFINED))
    assert refined.other_integrals == ("follow_prior", "equally_spaced")
    assert better(refined, draws) is None


def test_two_effects_follow_a_scale_of_which_rows_say_little(python_by_default):
    """Constant points put a mode where the scale of slopes is small: it is seen at draws there."""
    rng = np.random.default_rng(2)
    group, x = np.repeat(np.arange(100), 6), np.tile([-0.5, 0.5], 300)
    eta = rng.normal(0, 0.8, 100)[group] + rng.normal(0.7, 0.6, 100)[group] * x
    y = rng.binomial(1, 1 / (1 + np.exp(-eta)))
    with pm.Model() as model:
        level = pm.Normal("level", 0, 0.8, shape=100)
        slope = pm.Normal("slope", 0.7, pm.HalfNormal("tau", 1), shape=100)
        pm.Bernoulli("y", logit_p=level[group] + slope[group] * x, observed=y)
    terms = group_terms(model, ["level", "slope"])
    draws = np.log([[0.6], [0.5], [0.35], [0.2]])

    def made(follow):
        integrated = integrated_model(terms, points_of(2), follow)
        gradients = GroupGradients(integrated, integrated.value_vars)
        gradients.settle_around(draws[0])
        return gradients

    constant, following = made(False), made(True)
    assert better(constant, draws) == "follow_prior"
    assert better(following, draws) is None
    # Where no draw of a short run may be, there is such a mode too.
    assert better(constant, draws[:2]) is None
    assert better(constant, draws[:2], far=draws[3]) == "follow_prior"
    assert better(following, draws[:2], far=draws[3]) is None
    # Errors of 16 matter nowhere that no draw can be: the densities are 31 and 15 below there.
    assert better(constant, draws[:2], far=np.log([2.0])) is None
    assert better(constant, draws[:2], far=np.log([2.0, 0.2])) == "follow_prior"
    # One density that is far below is not enough: at 1.5 they are 15 and 7 below.
    assert better(constant, draws[:2], far=np.log([1.5])) is not None

    def of_grid(log_tau):
        """The exact change of the log likelihood, by sums over a grid of level and slope."""
        z = np.linspace(-8, 8, 161)
        a, b = 0.8 * z[:, None, None], 0.7 + np.exp(log_tau) * z[:, None]
        of_rows = -np.logaddexp(0, -(2 * y - 1) * (a + b * x))
        of_groups = np.add.reduceat(of_rows, np.arange(0, len(x), 6), axis=2)
        return logsumexp(of_groups - (z[:, None, None] ** 2 + z[:, None] ** 2) / 2, axis=(0, 1))

    expected = np.sum(of_grid(draws[3]) - of_grid(draws[0]))
    for gradients in (constant, following):
        with gradients.points_held():
            change = gradients.likelihood(draws[3], scatter=False).value
            change -= gradients.likelihood(draws[0], scatter=False).value
        is_right = abs(change - expected) < 0.02
        assert is_right == (gradients is following)


class Seen(Exception):
    """Ends a run once a test has what it needs."""


def test_integrals_are_compared_in_both_tails_of_each_scale(monkeypatch):
    """Three standard deviations away, with what the other parameters are there on average."""
    found = {}

    def better_integrals(self, others, anchor, points, far_points, near_anchor):
        found.update(anchor=anchor, points=points, far=far_points)
        raise Seen

    monkeypatch.setattr(GroupGradients, "better_integrals", better_integrals)
    rng = np.random.default_rng(2)
    group, x = np.repeat(np.arange(200), 6), rng.normal(size=1200)
    level, slope = rng.normal(0, 0.8, 200), rng.normal(1, 0.5, 200)
    y = rng.normal(level[group] + slope[group] * x, 0.5)
    with pm.Model():
        a = pm.Normal("level", 0, pm.HalfNormal("s_level"), shape=200)
        b = pm.Normal("slope", pm.Normal("mean"), pm.HalfNormal("s_slope"), shape=200)
        pm.Normal("y", a[group] + b[group] * x, pm.HalfNormal("sigma"), observed=y)
        with pytest.raises(Seen):
            sgm.sample(random_seed=1, progressbar=False)
    assert found["far"].shape == (6, 4)
    below, above = found["far"][:3], found["far"][3:]
    np.testing.assert_allclose(below + above, np.broadcast_to(2 * found["anchor"], (3, 4)))
    sds = np.diag((above - found["anchor"])[:, [0, 2, 3]]) / 3  # s_level, mean, s_slope, sigma
    # Of sds of 200 effects, of which six rows add a variance of .04, and of 1200 - 400 errors.
    expected = [(1 + 0.04 / 0.8**2) / 400**0.5, (1 + 0.04 / 0.5**2) / 400**0.5, 1 / 1600**0.5]
    np.testing.assert_allclose(sds, expected, rtol=0.27)


@pytest.mark.parametrize("k", [2, 3])
def test_equally_spaced_points_of_several_effects(k, python_by_default):
    """Where their covariance was found the sums over a grid are the integrals of normal rows."""
    rng = np.random.default_rng(1)
    group, X, y = np.repeat(np.arange(20), 8), rng.normal(size=(160, k)), rng.normal(size=160)
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("scale"), shape=(20, k))
        pm.Normal("y", (X * a[group]).sum(axis=1), 0.5, observed=y)
    integrated = integrated_model(group_terms(model, ["a"]), points_of(k, equally_spaced=True))
    at = np.array(-0.5)
    integrated.centres.move({"scale_log__": at}, afresh=True)
    found = integrated.compile_fn(integrated.potentials[0].sum(), mode=PYTHON)({"scale_log__": at})
    expected = 0.0
    for j in range(20):
        x = X[group == j]
        covariance = np.exp(2 * at) * x @ x.T + 0.25 * np.eye(8)
        expected += multivariate_normal(np.zeros(8), covariance).logpdf(y[group == j])
    assert float(found) == pytest.approx(expected, abs={2: 1e-5, 3: 2e-3}[k])


def test_points_where_the_likelihood_is_rounded_to_0_have_no_gradient(python_by_default):
    """The probability of a category far from an effect is 0, and its log's derivative infinite."""
    rng = np.random.default_rng(1)
    group, y = np.repeat(np.arange(12), 5), rng.integers(3, size=60)
    with pm.Model() as model:
        a, u = pm.Normal("a", 0, pm.HalfNormal("scale"), shape=12), pm.Normal("u", shape=12)
        eta = (pm.Normal("b") + a[group]) * pm.math.exp(u[group])
        pm.OrderedLogistic("y", eta, np.array([-1.0, 1.0]), observed=y)
    terms = group_terms(model, ["a", "u"])
    integrated = integrated_model(terms, points_of(2, equally_spaced=True))
    [density] = before_gradients([integrated.potentials[0].sum()])
    gradients = pt.grad(density, integrated.value_vars)
    function = integrated.compile_fn([density, *gradients], mode=PYTHON)
    at = integrated.initial_point()
    integrated.centres.move(at, afresh=True)
    value, *found = function(at)
    for name, derivative in zip(at, found, strict=True):
        move = dict.fromkeys(at, 0.0) | {name: 1e-4}
        above, below = (function({v: at[v] + sign * move[v] for v in at})[0] for sign in (1, -1))
        # by differences, with a relative error of 1e-8
        assert derivative == pytest.approx((above - below) / 2e-4, rel=1e-5)
    everywhere = integrated.centres
    x = integrated.points.x
    effects = everywhere.modes + np.einsum("gij,sj->sgi", everywhere.factors, x)
    h = everywhere.density.at_points(at, np.arange(12), effects, everywhere.rows)
    assert np.isneginf(h).any()
    weighed = logsumexp(h + integrated.points.log_ratios[:, None], axis=0) + everywhere.log_scales
    assert value == pytest.approx(weighed.sum() + 12 * np.log(2 * np.pi), rel=1e-10)


def test_several_effects_of_unlike_priors_stay_where_they_were():
    """One is in the prior of the other, by its exponential."""
    group = np.repeat(np.arange(20), 3)
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("s"), shape=20)
        b = pm.Normal("b", pm.math.exp(a), 1, shape=20)
        pm.Normal("y", a[group] + b[group], 1, observed=np.sin(np.arange(60.0)))
    assert not group_terms(model, ["a", "b"]).are_normal


@pytest.mark.parametrize("k", [4, 9, 20, 30])
def test_points_have_the_moments_of_a_normal_density(k):
    """Up to fourth moments of distances: without these sds with 20 effects were off by a quarter.

    The largest distance is cut off, which takes a percent at most.
    """
    x, log_weights = points_of(k)[:2]
    p, squares = np.exp(log_weights), np.sum(x**2, axis=1)
    np.testing.assert_allclose(p.sum(), 1)
    np.testing.assert_allclose(p @ x, 0, atol=1e-12)
    np.testing.assert_allclose((p[:, None] * x).T @ x, np.eye(k), atol=1e-9)
    assert p @ squares**2 - (p @ squares) ** 2 == pytest.approx(2 * k, rel=0.02)


@pytest.mark.parametrize(
    ("prior", "follows"),
    [(pm.Normal, True), (pm.LogNormal, True), (pm.Logistic, False), (pm.Laplace, False)],
)
def test_points_follow_normal_priors_only(prior, follows, python_by_default):
    """With others one of Newton's steps may lead anywhere: the density would be wrong by 1e4."""
    group = np.repeat(np.arange(50), 3)
    with pm.Model() as model:
        a = prior("a", 0, pm.HalfNormal("scale"), shape=50)
        pm.Normal("y", a[group], 1, observed=np.sin(np.arange(150.0)))
    integrated = integrated_model(group_terms(model, ["a"]), points_of(1))
    assert integrated.centres.follow == follows
    at, every = {"scale_log__": np.array(0.0)}, np.arange(50)
    integrated.centres.move(at, afresh=True)
    there = integrated.centres.at({"scale_log__": np.array(-3.0)}, every)
    if follows:  # the density is narrower than its prior
        assert there.factors.max() < np.exp(-3.0)
    else:
        np.testing.assert_array_equal(there.modes, integrated.centres.modes)


def test_points_lie_around_the_mean_where_they_follow_no_prior(python_by_default):
    """Log rates have densities with a long left tail, and far from it the modes."""
    y = np.array([0, 0, 1, 3, 20])
    with pm.Model() as model:
        a = pm.Logistic("a", 0, pm.HalfNormal("scale"), shape=5)
        pm.Poisson("y", pm.math.exp(a[np.arange(5)]), observed=y)
    centres = integrated_model(group_terms(model, ["a"]), points_of(1)).centres
    centres.move({"scale_log__": np.array(0.0)}, afresh=True)
    x = np.linspace(-25, 5, 60_001)[:, None]
    log_p = y * x - np.exp(x) - x - 2 * np.log1p(np.exp(-x))
    p = np.exp(log_p - log_p.max(axis=0))
    p /= p.sum(axis=0)
    mean = np.sum(p * x, axis=0)
    sd = np.sqrt(np.sum(p * (x - mean) ** 2, axis=0))
    mode = x[np.argmax(log_p, axis=0), 0]
    assert np.abs(mode - mean)[0] > 0.25 * sd[0]
    np.testing.assert_allclose(centres.modes[:, 0], mean, atol=0.02)
    np.testing.assert_allclose(centres.factors[:, 0, 0], sd, rtol=0.03)
    np.testing.assert_allclose(centres.log_scales, np.log(centres.factors[:, 0, 0]))


def test_values_and_gradients_are_of_one_function_where_points_are_held():
    """Values around points that move along were taken for jumps: a truncated prior was refused."""
    y = np.array([0, 0, 1, 3, 20])
    with pm.Model() as model:
        a = pm.Logistic("a", 0, pm.HalfNormal("scale"), shape=5)
        pm.Poisson("y", pm.math.exp(a[np.arange(5)]), observed=y)
    integrated = integrated_model(group_terms(model, ["a"]), points_of(1))
    gradients = GroupGradients(integrated, integrated.value_vars, start={"scale_log__": 0.0})
    t, weights = np.polynomial.legendre.leggauss(8)

    def missing():
        values = [gradients.likelihood(np.array([x])).value for x in (-1.0, 1.0)]
        slopes = [gradients.likelihood(np.array([x])).gradient[0] for x in t]
        return values[1] - values[0] - weights @ slopes

    gradients.settle_around(np.zeros(1))
    with gradients.points_held():
        assert abs(missing()) < 1e-5
    assert abs(missing()) > 1e-3


def with_kinks(**form):
    """A model of medians by group, without its groups' effects."""
    rng = np.random.default_rng(2)
    group = np.repeat(np.arange(20), 5)
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu"), pm.HalfNormal("scale"), shape=20)
        pm.AsymmetricLaplace("y", 1.5, mu=a[group], b=2.0, observed=rng.normal(size=100))
    return integrated_model(
        group_terms(model, ["a"]), rule_of(1, **{"refined": False, "equally_spaced": False} | form)
    )


def test_kinks_between_points_are_no_jumps(python_by_default, monkeypatch):
    """Gradients lack what kinks change if the points move: constant ones are taken."""
    monkeypatch.setattr(GroupGradients, "better_integrals", lambda *args: None)
    with form_changeable({"equally_spaced"}), pytest.raises(OtherForm, match="equally_spaced"):
        default_step(with_kinks(), None, np.random.default_rng(1), of_groups=True)


def error_of_integrals(centres, at):
    """Root mean square of the errors of groups' integrals, against sums over 4001 points."""
    every = np.arange(len(centres.modes))

    def logs(x):
        a = centres.modes + np.einsum("gij,sj->sgi", centres.factors, x)
        return centres.density.at_points(at, every, a, centres.rows)

    x = np.linspace(-7, 7, 4001)[:, None]
    exact = logsumexp(logs(x), axis=0) + np.log(x[1, 0] - x[0, 0])
    rule = centres.rule
    own = logs(rule.x) + rule.log_ratios[:, None] + 0.5 * np.log(2 * np.pi)
    return np.sqrt(np.mean((logsumexp(own, axis=0) - exact) ** 2))


def test_kinks_get_more_equally_spaced_points(python_by_default):
    """Half the distance makes a quarter of the error, up to the phases of 20 groups."""
    at = {"mu": np.array(0.1), "scale_log__": np.array(-0.3)}
    errors, others = [], []
    for refined in (False, True):
        integrated = with_kinks(refined=refined, equally_spaced=True)
        integrated.centres.move(at, afresh=True)
        errors.append(error_of_integrals(integrated.centres, at))
        others.append(GroupGradients(integrated, integrated.value_vars).other_integrals)
    # the sd of the log of a root mean square of 20 errors is about 1 / sqrt(40)
    assert 0.25 * np.exp(-0.6) < errors[1] / errors[0] < 0.25 * np.exp(0.6)
    assert others == [("refined",), ()]


def test_ranges_of_groups_do_not_depend_on_their_order(python_by_default):
    """The first group of a call is evaluated twice: once alone, for compilation."""
    centres = with_kinks(equally_spaced=True).centres
    at = {"mu": np.array(0.1), "scale_log__": np.array(-0.3)}
    every, start = np.arange(20), np.zeros((20, 1))

    def found(order):
        modes, factors = modes_and_factors(centres.density, at, order, start, centres.rows)
        return middles_and_factors(centres.density, at, order, modes, factors, centres.rows)

    for one, other in zip(found(every), found(every[::-1]), strict=True):
        np.testing.assert_allclose(one, other[::-1], rtol=1e-9, atol=1e-12)


def test_gradient_at_the_anchor_is_that_of_the_updates(python_by_default, monkeypatch):
    """Where densities have kinks, points found from others differ enough to change gradients."""
    found = {}

    def window(warm_up, k, settings):
        found.update(vars(warm_up))
        raise Seen

    monkeypatch.setattr(RowsWarmUp, "window", window)
    monkeypatch.setattr(curvature_warm_up, "refuse_hidden_jumps", lambda *args: None)
    integrated = with_kinks()
    with pytest.raises(Seen):
        default_step(integrated, None, np.random.default_rng(1), of_groups=True)
    gradients, anchor = found["gradients"], found["anchor"]
    gradients.likelihood(anchor + 0.3)
    integrated.settle(anchor)  # as in a resumed run
    with gradients.points_held():
        same = gradients.likelihood(anchor, scatter=False).gradient
    np.testing.assert_array_equal(found["anchor_gradient"], same)


@pytest.mark.long
def test_updates_have_the_points_of_the_anchor(python_by_default):
    """Points were moved by every evaluation of the warm-up, as of densities far from there."""
    rng = np.random.default_rng(2)
    group = np.repeat(np.arange(60), 3)
    y = rng.poisson(np.exp(rng.logistic(0, 0.5, 60))[group])
    with pm.Model() as model:
        a = pm.Logistic("a", 0, pm.HalfNormal("scale"), shape=60)
        pm.Poisson("y", pm.math.exp(a[group]), observed=y)
    integrated = integrated_model(group_terms(model, ["a"]), points_of(1))
    step = default_step(integrated, None, rng, of_groups=True)
    centres, [anchor] = integrated.centres, step.adapted.anchor
    at_the_end = centres.factors.copy()
    centres.move({"scale_log__": anchor})
    np.testing.assert_allclose(at_the_end, centres.factors, rtol=1e-4)
    centres.move({"scale_log__": anchor + 0.2})
    assert np.abs(at_the_end / centres.factors - 1).max() > 0.01


REFINE = {"transformed": 6}
"""Where the conditional density of log rates has long tails the rule converges slowly."""
TOLERANCE = {"transformed": 0.02}


@pytest.mark.parametrize(
    "form", [pytest.param(f, marks=pytest.mark.long if f == "crossed" else ()) for f in INTEGRATED]
)
def test_integrated_density_is_that_of_the_model(form, python_by_default):
    model = getattr(hierarchies, form)()
    terms = group_terms(model, INTEGRATED[form])
    assert sorted(terms.names) == sorted(INTEGRATED[form])
    integrated = integrated_model(terms, points_of(terms.k, REFINE.get(form, 2)))
    rng = np.random.default_rng(1)
    start = integrated.initial_point()
    point = {name: value + rng.normal(0, 0.3, np.shape(value)) for name, value in start.items()}
    integrated.centres.move(point)
    values = [np.asarray(point[v.name], dtype="float64") for v in integrated.value_vars]
    ours = float(density(integrated, integrated.value_vars)(*values))
    expected = by_brute_force(model, terms, point)
    assert ours == pytest.approx(expected, abs=TOLERANCE.get(form, 1e-6))


def test_density_of_rows_of_two_kinds_one_of_which_has_an_element_for_each(python_by_default):
    """Joint models: visits look up effects of persons, whose survival uses them one by one."""
    model, effects = with_row_numbers(hierarchies.visits_and_survival())
    terms = group_terms(model, of_rows=effects)
    assert terms.lengths == (7, 4)
    integrated = integrated_model(terms, points_of(1, 2))
    point = {name: value + 0.2 for name, value in integrated.initial_point().items()}
    integrated.centres.move(point)
    values = [np.asarray(point[v.name], dtype="float64") for v in integrated.value_vars]
    ours = float(density(integrated, integrated.value_vars)(*values))
    assert ours == pytest.approx(by_brute_force(model, terms, point), abs=1e-6)


def test_effects_looked_up_by_some_rows_and_used_one_by_one_by_others():
    """With more groups than are compared with the model's own densities at a time."""
    group = np.repeat(np.arange(90)[::-1], 3)
    with pm.Model() as model:
        a = pm.Normal("mu") + pm.HalfNormal("tau") * pm.Normal("standard", shape=90)
        pm.Normal("y", a[group], 1, observed=np.sin(np.arange(270.0)))
        pm.Normal("z", pm.Normal("b") * a, 1, observed=np.cos(np.arange(90.0)))
    terms = terms_to_integrate(model, "auto", None, predicts=False)
    assert (terms.n_groups, terms.lengths) == (90, (270, 90))
    np.testing.assert_array_equal(terms.group_of_row, [*group, *range(90)])


def test_rows_without_the_effects_beside_rows_with_them():
    """A few are evaluated at every update; many would need batches of their own."""
    group = np.repeat(np.arange(40), 3)

    def model_with(n_others):
        with pm.Model() as model:
            mu = pm.Normal("mu")
            pm.Normal("y", mu + pm.Normal("a", shape=40)[group], 1, observed=np.zeros(120))
            pm.Normal("z", mu, 1, observed=np.zeros(n_others))
        return model

    terms = group_terms(model_with(11))
    assert [v.name for v in terms.variables] == ["y"]
    with pytest.raises(NotIntegrated, match="'z', which do not look up the effects"):
        group_terms(model_with(90))


def test_refused_by_name():
    """Effects that the rest depends on, and names that are no effects."""
    with pytest.raises(NotIntegrated, match="'scale': no data are an index"):
        group_terms(hierarchies.crossed(), ["scale"])
    with pytest.raises(NotIntegrated, match="'u': its groups are not those of 'v'"):
        group_terms(hierarchies.crossed(), ["u", "v"])
    with pytest.raises(ValueError, match=r"'w' is not a free variable: these are .'scale', 'u'"):
        terms_to_integrate(hierarchies.crossed(), ["u", "w"], None, predicts=False)


ACROSS = {
    "running sum": pt.cumsum,
    "lag": lambda z: z + pt.concatenate([[0.0], z[:-1]]),
    "deviations": lambda z: z - z.mean(),
    "order": pt.sort,
    "shares": pm.math.softmax,
}
"""What makes the effect of a group depend on those of others."""


@pytest.mark.parametrize("across", ACROSS)
def test_groups_that_depend_on_effects_of_others_are_refused(across):
    """As of a random walk over weeks: integrals group by group would be of another model."""
    group = np.repeat(np.arange(40), 3)
    with pm.Model() as model:
        effects = ACROSS[across](pm.Normal("z", shape=40))
        pm.Normal("y", effects[group], pm.HalfNormal("s"), observed=np.sin(np.arange(120.0)))
    with pytest.raises(NotIntegrated, match="'z': rows of 'y' depend on groups other than"):
        group_terms(model, ["z"])


def test_rows_that_depend_on_each_other_are_refused():
    """Autocorrelated errors of rows, beside effects of groups."""
    group, y = np.repeat(np.arange(40), 3), np.sin(np.arange(120.0))
    with pm.Model(coords={"row": range(120)}) as model:
        error = pm.Data("y", y, dims="row") - pm.Normal("a", shape=40)[group]
        before = pt.concatenate([[0.0], error[:-1]])
        pm.Potential("y_logp", pm.logp(pm.Normal.dist(0.5 * before, 1), error), dims="row")
    with pytest.raises(NotIntegrated, match="'y_logp' is not conditionally independent"):
        group_terms(model, ["a"])


def intercepts(n_groups, rows_of_group):
    """Without data that say anything, for what follows from its size alone."""
    group = np.repeat(np.arange(n_groups), rows_of_group)
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("tau"), shape=n_groups)
        pm.Normal("y", a[group], observed=np.zeros(len(group)))
    return model


@pytest.mark.parametrize(
    ("n_groups", "rows_of_group", "expected"),
    [(6, 2, False), (60, 1, True), (300, 10, True), (300, 300, False), (1000, 100, True),
     (500, 400, False), (3000, 20, True)],
)  # fmt: skip
def test_chosen_by_cost(n_groups, rows_of_group, expected):
    """Many groups of few rows are integrated out, few of many rows are not."""
    terms = terms_to_integrate(intercepts(n_groups, rows_of_group), "auto", None, predicts=False)
    assert (terms is not None) == expected


def test_groups_of_thousands_of_rows_and_of_none(python_by_default):
    """The modes are found from afar, also where a step of Newton's would overflow."""
    rng = np.random.default_rng(2)
    group = np.repeat([0, 1, 3], [4000, 1, 30])
    y = rng.poisson(np.exp(np.array([9.0, 0.0, 0.0, -6.0])[group]))
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu", 0, 3), pm.HalfNormal("tau", 3), shape=4)
        pm.Poisson("y", pm.math.exp(a[group]), observed=y)
    integrated = integrated_model(group_terms(model, ["a"]), points_of(1))
    point = {"mu": np.array(0.0), "tau_log__": np.array(1.0)}
    integrated.centres.move(point, afresh=True)
    log_rates = np.log(np.bincount(group, weights=y)[[0, 1]] / np.array([4000, 1]))
    assert integrated.centres.modes.shape == (3, 1)
    assert integrated.centres.modes[0, 0] == pytest.approx(log_rates[0], abs=1e-3)
    assert np.isfinite(density(integrated, integrated.value_vars)(*point.values()))


N_GROUPS = 500


def normal_posterior(y, group):
    """Exact moments of mu and tau, and of each effect, by a grid over mu and log tau.

    A group's mean is N(mu, tau^2 + 1/n).
    """
    n = np.bincount(group)
    means = np.bincount(group, weights=y) / n
    mu, log_tau = np.meshgrid(
        np.linspace(0.7, 1.3, 241), np.linspace(-1.4, -0.2, 241), indexing="ij"
    )
    tau = np.exp(log_tau)
    log_p = -0.5 * (mu / 5) ** 2 - 0.5 * tau**2 + log_tau
    for m, k in zip(means, n, strict=True):
        variance = tau**2 + 1 / k
        log_p = log_p - 0.5 * np.log(variance) - 0.5 * (m - mu) ** 2 / variance
    p = np.exp(log_p - log_p.max())
    p /= p.sum()

    def moments(x, own_variance=0.0):
        mean = np.sum(p * x)
        return mean, np.sqrt(np.sum(p * ((x - mean) ** 2 + own_variance)))

    effects = []
    for m, k in zip(means, n, strict=True):
        precision = k + tau**-2
        effects.append(moments((k * m + mu / tau**2) / precision, 1 / precision))
    return moments(mu), moments(tau), np.array(effects)


def form_with_offsets(asked, monkeypatch):
    """A form with one factor integrated out and one centred, and draws of what it samples."""
    monkeypatch.setattr(centre_scaled_effects, "ROWS_PER_EFFECT", 0)
    group, other = np.repeat(np.arange(6), 5), np.tile(np.arange(5), 6)
    with pm.Model() as model:
        sigma, tau = pm.HalfNormal("sigma"), pm.HalfNormal("tau")
        z, offset = pm.Normal("z", shape=6), pm.Normal("offset", shape=5)
        pm.Deterministic("effect", sigma * z)
        eta = sigma * z[group] + tau * offset[other]
        pm.Normal("y", eta, 1, observed=np.linspace(-2, 2, 30))
    terms = terms_to_integrate(model, ["z"], None, predicts=False)
    form = Form.of(Arguments(model=model, idata_kwargs={}, var_names=asked), terms)
    shapes = {v.name: v.shape.eval() for v in form.sampled.model.unobserved_RVs}
    assert "offset (as sampled)" in shapes
    rng = np.random.default_rng(1)
    recorded = {name: rng.uniform(size=(2, 3, *shapes[name])) for name in form.sampled.var_names}
    return form, from_dict({"posterior": recorded})


@pytest.mark.parametrize("asked", [["sigma", "effect"], ["tau"]], ids=" ".join)
def test_variables_that_are_asked_for(asked, monkeypatch, python_by_default):
    """Effects need what groups share, also as it is sampled, which is not in the result.

    Bambi asks for effects and scales, but not for the offsets that it multiplies.
    """
    form, tree = form_with_offsets(asked, monkeypatch)
    tree = form.complete(tree, form.sampled.model, np.random.default_rng(1))
    assert list(tree.posterior) == asked
    assert list(tree.observed_data) == ["y"]


def test_interrupted_while_effects_are_drawn(monkeypatch, caplog, python_by_default):
    """What was sampled is kept, though it was not asked for."""
    form, tree = form_with_offsets(["effect"], monkeypatch)

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("pymc_sgmcmc.run.integrated_effects._effects", interrupt)
    tree = form.complete(tree, form.sampled.model, np.random.default_rng(1))
    assert set(tree.posterior) == {"sigma", "tau"}
    assert "shared parameters are kept" in caplog.text


@pytest.mark.parametrize("part", ["_data_of", "_effects", "_all_draws"])
def test_an_error_after_sampling_keeps_the_draws(part, monkeypatch, python_by_default):
    form, tree = form_with_offsets(["effect"], monkeypatch)

    def fail(*args):
        raise MemoryError("no room")

    monkeypatch.setattr(f"pymc_sgmcmc.run.integrated_effects.{part}", fail)
    with pytest.raises(MemoryError, match="no room") as caught:
        form.complete(tree, form.sampled.model, np.random.default_rng(1))
    assert {"sigma", "tau"} <= set(caught.value.idata.posterior)
    assert "attribute `idata`" in caught.value.__notes__[-1]


@pytest.mark.slow(50)
def test_default_call_integrates_and_draws_effects(caplog, monkeypatch, one_graph_at_a_time):
    # Any draws are slow now.
    for name in ("MANY_UPDATES", "LEAST_SECONDS"):
        monkeypatch.setattr(slow_draws_warning, name, 0)
    rng = np.random.default_rng(3)
    group = rng.permutation(np.repeat(np.arange(N_GROUPS), rng.integers(1, 12, N_GROUPS)))
    y = rng.normal(rng.normal(1, 0.5, N_GROUPS)[group], 1)
    with pm.Model(coords={"customer": [f"c{j}" for j in range(N_GROUPS)]}) as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1)
        alpha = pm.Normal("alpha", mu, tau, dims="customer")
        pm.Deterministic("twice", 2 * alpha, dims="customer")
        pm.Normal("after", shape=2)  # declared after the effects: they are not the last ones
        pm.Normal("y", alpha[group], 1, observed=y)
        with caplog.at_level(logging.INFO):
            tree = sgm.sample(random_seed=1, progressbar=False)
    assert "Integrated out of the likelihood: 'alpha', of 500 groups" in caplog.text
    assert "pm.sample() without step=, may be faster" in caplog.text
    assert tree["diagnosis"].attrs["verdict"] == "ok"
    assert dict(tree.posterior.sizes)["customer"] == N_GROUPS
    assert set(tree.posterior) == {"mu", "tau", "alpha", "twice", "after"}
    assert tree.observed_data["y"].size == len(y)
    mu, tau, effects = normal_posterior(y, group)
    draws = tree.posterior
    # At least 400 effective draws: a mean's error has sd .05, and that of a ratio of sds .035.
    for name, (mean, sd) in {"mu": mu, "tau": tau, "after": (0, 1)}.items():
        assert abs(float(draws[name].mean()) - mean) < 0.2 * sd
        assert float(draws[name].std()) == pytest.approx(sd, rel=0.12)
    # Given what is shared the draws are independent, so their means' errors are mostly those of
    # 2000 draws, sd .022, of 500 groups; a common part comes from the error of mu.
    flat = draws["alpha"].values.reshape(-1, N_GROUPS)
    errors = (flat.mean(axis=0) - effects[:, 0]) / effects[:, 1]
    assert np.sqrt(np.mean(errors**2)) < 0.06
    # A ratio of sds has an error of .016 a group, .0007 on average, and again a common part.
    assert np.mean(flat.std(axis=0) / effects[:, 1]) == pytest.approx(1, abs=0.01)
    np.testing.assert_allclose(draws["twice"], 2 * draws["alpha"])

    # With the model at hand draws are judged again in the form in which they were sampled.
    own = tree["diagnosis"].to_dataset()
    again = sgm.diagnose(tree, model)
    assert again.verdict == "ok"
    assert list(again.attrs["variables"]) == list(own.attrs["variables"])
    np.testing.assert_allclose(again["mean_virial"], own["mean_virial"], atol=0.005)
    corrected = sgm.certificate(tree, model).loc[["mu", "tau"]]
    # 400 weighted points: their mean has an error of about .05 sd.
    for found, (mean, sd) in zip(corrected["corrected_mean"], (mu, tau), strict=True):
        assert abs(found - mean) < 0.25 * sd
    robust = sgm.robust(tree, model).posterior
    assert set(robust) == {"mu", "tau", "after"}
    # The model is right: 500 groups give the sandwich a relative error of 4% or so.
    assert float(robust["mu"].std() / draws["mu"].std()) == pytest.approx(1, abs=0.15)
    with pm.Model() as other:
        pm.Normal("y", pm.Normal("mu"), 1, observed=y)
    with pytest.raises(ValueError, match=r"'alpha' integrated out .* model that was sampled"):
        sgm.diagnose(tree, other)


def zero_counts():
    """Log rates of groups with few counts, most of them zero, whose densities have long tails."""
    rng = np.random.default_rng(4)
    group = np.repeat(np.arange(40), 2)
    y = rng.poisson(np.exp(rng.normal(-2, 2, 40))[group])
    with pm.Model() as model:
        a = pm.Normal("a", -2, pm.HalfNormal("tau", 3), shape=40)
        pm.Poisson("y", pm.math.exp(a[group]), observed=y)
    return model, np.bincount(group, weights=y)


@pytest.fixture
def rules(python_by_default):
    """A model integrated by two nodes, and by the finer rule, around the same centres."""
    terms = group_terms(zero_counts()[0], ["a"])
    x, w = np.polynomial.hermite_e.hermegauss(2)
    coarse = integrated_model(terms, Points(x[:, None], np.log(w / w.sum())))
    fine = integrated_model(terms, points_of(1, 2))
    for model in (coarse, fine):
        model.centres.move({"tau_log__": np.log(2.0)}, afresh=True)
    return coarse, fine


def error_of(model, points):
    return quadrature_error(model.centres, model.points, points)


def test_error_of_the_quadrature_is_that_of_the_posterior(rules):
    """It is the sd of D, which to first order bounds the shift of the mean of a parameter."""
    grid = np.linspace(-0.5, 2.5, 120)
    each, probabilities = [], []
    for model in rules:
        logp = density(model, model.value_vars)
        each.append(np.array([float(logp(np.asarray(x))) for x in grid]))
        probabilities.append(np.exp(each[-1] - logsumexp(each[-1])))
    (p, q), d = probabilities, each[1] - each[0]
    shift = abs((q - p) @ grid) / np.sqrt(p @ (grid - p @ grid) ** 2)
    quantiles = (np.arange(200) + 0.5) / 200
    draws = np.interp(quantiles, np.cumsum(p) - p / 2, grid)
    found = error_of(rules[0], [{"tau_log__": np.asarray(x)} for x in draws])
    assert shift > 0.2, "the rule is good enough to show nothing"
    # A four hundredth of the posterior is cut off at either end.
    assert found == pytest.approx(np.sqrt(p @ (d - p @ d) ** 2), rel=0.03)
    assert shift < (1 + shift) * found < 2 * shift
    assert error_of(rules[1], [{"tau_log__": np.asarray(x)} for x in draws]) < 0.01


def test_points_found_afresh_are_at_the_highest_mode(python_by_default, monkeypatch):
    """Newton's method from zero ends in the nearest one, for 13 of these groups a lower one."""

    def as_found(density, point, index, modes, factors, rows, rule):
        return modes, factors

    means, n = np.linspace(-0.4, 1.4, 40), 20
    group = np.repeat(np.arange(40), n)
    shares, modes = np.array([0.3, 0.7]), np.array([2.0, -1.0])
    with pm.Model() as model:
        level = pm.Normal("level")
        a = pm.NormalMixture("a", shares, level + modes, 0.3, shape=40)
        pm.Normal("y", a[group], 1, observed=np.repeat(means, n))
    centres = integrated_model(group_terms(model, ["a"]), points_of(1)).centres
    monkeypatch.setattr("pymc_sgmcmc.integration.group_centres.means_and_factors", as_found)
    centres.move({"level": np.zeros(())}, afresh=True)
    x = np.linspace(-4, 4, 8001)
    prior = logsumexp(-0.5 * ((x[:, None] - modes) / 0.3) ** 2, b=shares, axis=1)
    highest = x[(prior[:, None] - 0.5 * n * (x[:, None] - means) ** 2).argmax(axis=0)]
    # Modes of the same group are 1.4 apart.
    np.testing.assert_allclose(centres.modes[:, 0], highest, atol=0.002)


def test_effects_with_long_tails_move_in_more_steps(python_by_default):
    model, counts = zero_counts()
    integrated = integrated_model(group_terms(model, ["a"]), points_of(1))
    point, rng = {"tau_log__": np.log(2.0)}, np.random.default_rng(5)
    effects = EffectDraws(integrated.centres, point, rng)
    drawn = np.array([found[:, 0] for found in effects.of([point] * 800)])
    steps = np.repeat(*zip(*((b.steps, len(b.groups)) for b in effects._moves), strict=True))
    assert len(steps) == 40
    assert steps.min() >= 2
    assert steps.max() >= 4
    x = np.linspace(-14, 4, 3001)
    for count in (0, 1):
        log_p = -0.5 * ((x + 2) / 2) ** 2 + count * x - 2 * np.exp(x)
        p = np.exp(log_p - logsumexp(log_p))
        mean = p @ x
        sd = np.sqrt(p @ (x - mean) ** 2)
        of_groups = drawn[:, counts == count]
        # The standard errors of 800 draws of 6 groups are .015 sd and 1.1%.
        assert abs(of_groups.mean() - mean) < 0.05 * sd
        assert of_groups.std() == pytest.approx(sd, rel=0.04)


def test_effects_follow_what_is_shared(python_by_default):
    """Their mean given each draw is that of the closed form, whatever the draw before it was."""
    rng = np.random.default_rng(6)
    group = np.repeat(np.arange(4000), rng.integers(1, 4, 4000))
    y = rng.normal(rng.normal(0, 1, 4000)[group], 1)
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu", 0, 1), 1, shape=4000)
        pm.Normal("y", a[group], 1, observed=y)
    centres = integrated_model(group_terms(model, ["a"]), points_of(1)).centres
    effects = EffectDraws(centres, {"mu": np.asarray(0.0)}, rng)
    n, total = np.bincount(group), np.bincount(group, weights=y)
    points = [{"mu": np.asarray(mu)} for mu in 60 * [-0.2, 0.2]]
    drawn = np.array([found[:, 0] for found in effects.of(points)])
    for k, mu in enumerate((-0.2, 0.2)):
        expected = np.mean((total + mu) / (n + 1))
        # The mean of 60 draws of 4000 groups has a standard error of .0012. With one step a draw
        # 8% of the groups stay where the other value of mu has put them, .14 away from there.
        assert drawn[k::2].mean() == pytest.approx(expected, abs=0.005)
    # Deviations of 120 draws of 4000 groups from their own means: the error is .2%.
    expected = np.mean(1 / (n + 1))
    off = drawn - (total + np.array([p["mu"] for p in points])[:, None]) / (n + 1)
    assert off.var() == pytest.approx(expected, rel=0.012)


def test_effects_follow_the_scale(python_by_default):
    """Their spread is that of the closed form at each draw, of a scale that changes thirtyfold."""
    rng = np.random.default_rng(7)
    group = np.repeat(np.arange(4000), rng.integers(1, 4, 4000))
    y = rng.normal(rng.normal(0, 1, 4000)[group], 1)
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("scale"), shape=4000)
        pm.Normal("y", a[group], 1, observed=y)
    centres = integrated_model(group_terms(model, ["a"]), points_of(1)).centres
    effects = EffectDraws(centres, {"scale_log__": np.asarray(0.0)}, rng)
    scales = 30 * [0.05, 1.5]
    drawn = effects.of({"scale_log__": np.log(scale)} for scale in scales)
    n, total = np.bincount(group), np.bincount(group, weights=y)
    squares = []
    for scale, found in zip(scales, drawn, strict=True):
        precision = n + scale**-2.0
        squares.append(np.mean((found[:, 0] - total / precision) ** 2 * precision))
    # Means of 30 draws of 4000 groups, nearly independent, have a standard error of .004.
    np.testing.assert_allclose(np.reshape(squares, (30, 2)).mean(axis=0), 1, atol=0.015)


@pytest.mark.long
def test_intercepts_and_slopes_have_the_tails_of_their_conditional_density(python_by_default):
    """Binary rows, against quadrature on a grid for each group."""
    rng = np.random.default_rng(9)
    group, sds = np.repeat(np.arange(30), rng.integers(1, 25, 30)), np.array([1.5, 1.0])
    x = rng.normal(size=len(group))
    truth = sds * rng.normal(size=(30, 2))
    y = rng.binomial(1, 1 / (1 + np.exp(-0.3 - truth[group, 0] - truth[group, 1] * x)))
    with pm.Model() as model:
        a, b = (pm.Normal(n, 0, sd, shape=30) for n, sd in zip("ab", sds, strict=True))
        logit = pm.Normal("mean") + a[group] + b[group] * x
        pm.Bernoulli("y", logit_p=logit, observed=y)
    terms, point = group_terms(model, ["a", "b"]), {"mean": np.asarray(0.3)}
    centres = integrated_model(terms, points_of(2)).centres
    effects = EffectDraws(centres, point, rng)
    places = [terms.names.index("a"), terms.names.index("b")]
    drawn = np.array([found[:, places] for found in effects.of([point] * 800)])
    grid = sds[:, None] * np.linspace(-5, 5, 201)
    outside = []
    for j in range(30):
        logits = 0.3 + grid[0][:, None, None] + grid[1][:, None] * x[group == j]
        log_p = np.sum(y[group == j] * logits - np.logaddexp(0, logits), axis=-1)
        log_p -= ((grid[0] / sds[0]) ** 2)[:, None] / 2 + (grid[1] / sds[1]) ** 2 / 2
        p = np.exp(log_p - logsumexp(log_p))
        for k in range(2):
            of_one = p.sum(axis=1 - k)
            below = np.interp(drawn[:, j, k], grid[k], np.cumsum(of_one) - of_one / 2)
            outside.append([np.mean(below < 0.05), np.mean(below > 0.95)])
    # Of 48,000 nearly independent draws the standard error of a share is .001.
    np.testing.assert_allclose(np.mean(outside, axis=0), 0.05, atol=0.006)


@pytest.mark.parametrize("dtype", ["uint32", "int64"])
def test_rows_on_disk_have_the_density_of_rows_in_memory(tmp_path, dtype, python_by_default):
    """Also where the model's containers are narrower: `pm.Data` makes int32 of int64."""
    rng = np.random.default_rng(7)
    group = rng.permutation(np.repeat(np.arange(30), rng.integers(1, 6, 30)).astype(dtype))
    rows = {"customer": group, "x": rng.normal(size=len(group)).astype("float32")}
    rows["y"] = rng.integers(2, size=len(group)).astype("int8")
    for name, column in rows.items():
        np.save(tmp_path / f"{name}.npy", column)
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in rows}
    data = sgm.StreamedData(mapped)

    def written(held):
        with pm.Model() as model:
            column = {name: pm.Data(name, held[name], dims="row") for name in rows}
            a = pm.Normal("a", 0, pm.HalfNormal("tau", 1), shape=30)
            logit = a[column["customer"]] + pm.Normal("b") * column["x"]
            pm.Bernoulli("purchase", logit_p=logit, observed=column["y"], dims="row")
        return model

    models = []
    for model, of_rows in ((written(rows), None), (written(data.head()), data)):
        terms = group_terms(model, ["a"], of_rows)
        models.append(integrated_model(terms, points_of(1)))
    for name, column in mapped.items():
        [own] = [v for n, v in models[1].named_vars.items() if n.startswith(f"{name} ")]
        assert np.shares_memory(own.get_value(borrow=True), column)
    point = np.asarray(-0.5), np.asarray(0.3)
    values = [float(density(m, m.value_vars)(*point)) for m in models]
    assert values[0] == pytest.approx(values[1], abs=1e-9)


def _for_rows_of(data):
    with pm.Model() as model:
        group = pm.Data("group", data.head(600)["group"].astype("int64"), dims="row")
        y = pm.Data("y", data.head(600)["y"], dims="row")
        a = pm.Normal("a", shape=600)
        pm.Poisson("obs", pm.math.exp(a[group]), observed=y, dims="row")
    return model


@pytest.mark.parametrize("stored", ["batches", ">i8"])
def test_streams_that_cannot_be_read_by_row_are_named(stored):
    group, y = np.repeat(np.arange(600), 2), np.zeros(1200, int)
    if stored == "batches":
        data = sgm.StreamedData({("group", "y"): [(group, y)]}, n_rows=1200)
    else:
        data = sgm.StreamedData({"group": group.astype(stored), "y": y})
    with pytest.raises(NotIntegrated, match=r"data\['group'\] is not an array in memory or mapped"):
        group_terms(_for_rows_of(data), "auto", data)


@pytest.mark.parametrize("fault", ["too large", "masked"])
def test_faulty_rows_on_disk_are_named(fault):
    """No stream reads them, which would name them, where effects are integrated out."""
    y = np.ma.zeros(1200, int)
    y[1100] = 2**31 if fault == "too large" else np.ma.masked
    data = sgm.StreamedData({"group": np.repeat(np.arange(600), 2), "y": y})
    named = {"too large": r"data\['y'\] holds 2147483648", "masked": "'y' have masked values"}
    with pytest.raises(ValueError, match=named[fault]):
        group_terms(_for_rows_of(data), "auto", data)


def test_moments_of_effects_and_of_what_depends_on_them(python_by_default):
    rng = np.random.default_rng(9)
    group = np.repeat(np.arange(300), rng.integers(1, 4, 300))
    y = rng.normal(rng.normal(0, 1, 300)[group], 1)
    with pm.Model(coords={"customer": [f"c{j}" for j in range(300)]}) as model:
        a = pm.Normal("a", pm.Normal("mu", 0, 1), 1, dims="customer")
        pm.Deterministic("twice", 2 * a)
        pm.Normal("y", a[group], 1, observed=y)
    terms = group_terms(model, ["a"])
    centres = integrated_model(terms, points_of(1)).centres
    point = {"mu": np.asarray(0.1)}
    found = _moments(terms, EffectDraws(centres, point, rng), 200 * [point], ["a", "twice"])
    assert found.attrs["draws"] == 200
    assert found.customer.values[0] == "c0"
    n, total = np.bincount(group), np.bincount(group, weights=y)
    errors = (found.a_mean - (total + 0.1) / (n + 1)) * np.sqrt(n + 1)
    # The error of a mean of 200 draws has a standard deviation of .071, of .003 over the groups;
    # that of their standard deviations .05 and .003.
    assert np.sqrt((errors**2).mean()) == pytest.approx(0.071, rel=0.2)
    assert float((found.a_sd * np.sqrt(n + 1)).mean()) == pytest.approx(1, abs=0.012)
    np.testing.assert_allclose(found.twice_sd, 2 * found.a_sd)


@pytest.mark.long
def test_default_call_from_disk_draws_what_it_draws_in_memory(tmp_path, one_graph_at_a_time):
    rng = np.random.default_rng(8)
    group = rng.permutation(np.repeat(np.arange(600), rng.integers(1, 12, 600)))
    rows = {"customer": group, "y": rng.normal(rng.normal(1, 0.5, 600)[group], 1)}
    for name, column in rows.items():
        np.save(tmp_path / f"{name}.npy", column)
    data = sgm.StreamedData(
        {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in rows}
    )
    draws = []
    for held, of_rows in ((rows, None), (data.head(), data)):
        with pm.Model():
            customer, y = (pm.Data(name, held[name], dims="row") for name in rows)
            a = pm.Normal("a", pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1), shape=600)
            pm.Normal("obs", a[customer], 1, observed=y, dims="row")
            draws.append(sgm.sample(data=of_rows, random_seed=1, progressbar=False).posterior)
    for name in ("mu", "tau", "a"):
        np.testing.assert_array_equal(draws[0][name], draws[1][name])


@pytest.mark.long
def test_effects_beside_those_integrated_are_not_local(monkeypatch, caplog):
    """Two crossed factors of many levels: a message about the second would be of no use."""
    rng = np.random.default_rng(1)
    person, item = np.repeat(np.arange(5000), 4), rng.integers(1200, size=20_000)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(pymc_sgmcmc.step, "adapted", stop)
    with pm.Model():
        a = pm.Normal("a", 0, pm.HalfNormal("s_a"), shape=5000)
        b = pm.Normal("b", 0, pm.HalfNormal("s_b"), shape=1200)
        pm.Normal("y", a[person] + b[item], 1, observed=rng.normal(size=20_000))
        with caplog.at_level(logging.INFO), pytest.raises(KeyboardInterrupt):
            sgm.sample(random_seed=1, progressbar=False)
    assert "Integrated out of the likelihood: 'a'" in caplog.text
    assert "'b' moves at every update" not in caplog.text


def noisy_intercepts(with_edge=False):
    """600 groups of two rows, whose effects are integrated by default."""
    rng = np.random.default_rng(4)
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("s"), shape=600)
        eta = a[np.repeat(np.arange(600), 2)]
        if with_edge:
            eta += pt.sqrt(pm.Flat("shift", initval=0.0))
        pm.Normal("y", eta, 1, observed=rng.normal(0, 1.4, size=1200))
    return model


def test_start_without_a_gradient(one_graph_at_a_time):
    """It is refused before a start is sought, with its variable and a remedy."""
    with pytest.raises(SamplingError, match=r"gradient of 'shift' is not finite.*initval="):
        sgm.sample(model=noisy_intercepts(with_edge=True), random_seed=1, progressbar=False)


def test_noise_of_groups_is_seen_with_fewer_rows(python_by_default):
    """Its largest eigenvalue for batches, against all groups at each of the points.

    20 times 102 groups give a variance of a normal gradient within 4 sqrt(2 / 2040) = 13%.
    """
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(200), 4)
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu"), pm.HalfNormal("tau"), shape=200)
        pm.Normal("y", a[group], 1, observed=rng.normal(0, 1.4, size=800))
    integrated = integrated_model(group_terms(model), points_of(1))
    gradients = GroupGradients(integrated, integrated.value_vars)
    assert rows_per_position(gradients) == 102
    points = rng.normal(0, 0.1, (20, gradients.size))
    metric = Diagonal([(), ()])
    metric.set(np.ones(2))
    covariance, _ = noise_covariance(gradients, metric, points, points[0], None, None, 32, rng)
    every = [gradients.rows(point, np.arange(200))[1] for point in points]
    exact = 200**2 / 32 * np.mean([np.cov(each.T) for each in every], axis=0)
    assert np.linalg.eigvalsh(covariance)[-1] == pytest.approx(
        np.linalg.eigvalsh(exact)[-1], rel=0.13
    )


@pytest.mark.long
def test_updates_are_compiled_in_the_form_that_suits(one_graph_at_a_time, monkeypatch):
    """Not in a form that the warm-up leaves before its first window."""
    compiled, make = [], Loop.__init__

    def counted(loop, *args):
        compiled.append(loop)
        make(loop, *args)

    monkeypatch.setattr(Loop, "__init__", counted)
    monkeypatch.setattr(GroupGradients, "better_integrals", lambda *args: "equally_spaced")
    idata = sgm.sample(
        3, tune=2, chains=1, model=noisy_intercepts(), random_seed=1, progressbar=False
    )
    assert json.loads(idata.posterior.attrs["adaptation"])["equally_spaced"]
    assert len(compiled) == 1


@pytest.mark.slow(8)
def test_density_in_single_precision(one_graph_at_a_time):
    """On numba, whose products of matrices need factors of one type: within rounding."""
    values = []
    for precision in ("float64", "float32"):
        with pytensor.config.change_flags(floatX=precision):
            model = hierarchies.lkj_noncentred()
            centres = integrated_model(group_terms(model, ["z"]), points_of(2)).centres
            start = model.initial_point()
            at = {name: np.full_like(start[name], 0.3) for name in start.keys() - {"z"}}
            index = np.arange(len(centres.modes))
            effects = np.full((3, len(index), 2), 0.5)
            values.append(centres.density.at_points(at, index, effects, centres.rows))
            centres.move(at)
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5)
