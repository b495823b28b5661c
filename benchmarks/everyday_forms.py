"""The default call on everyday models without groups, compared with NUTS.

    python benchmarks/everyday_forms.py                              # half an hour
    python benchmarks/everyday_forms.py --only spline dose_response  # replaces these rows

Writes benchmarks/results/everyday_forms.txt. Each form has 5000 rows (rare_events 50 000), most
with five covariates, and runs in its own process. The models are regressions with outcomes of many
families, with covariates that are not scaled or levels that are rare, with curves and change
points, and with rows that are weighted, censored or truncated. NUTS is PyMC's, with 4 chains of
1000 draws after 1000 of tuning.
"""

import json
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from against_nuts import extremes, sample_both
from posterior_table import PosteriorTable
from pymc.distributions.transforms import ordered
from pytensor.tensor.variable import TensorVariable
from scipy.interpolate import BSpline
from scipy.stats import poisson

SLOPES = np.array([1, -0.5, 0.3, 0, 0.2])


class Rows:
    """Five covariates, what outcomes depend on, and what draws the data."""

    def __init__(self):
        self.rng = np.random.default_rng(11)
        self.n = 5000
        self.X = self.rng.normal(size=(self.n, 5))
        self.eta = self.X @ SLOPES


def logistic(eta):
    return 1 / (1 + np.exp(-eta))


def linear(d: Rows, sd_of_intercept: float = 1, sd_of_slopes: float = 1) -> TensorVariable:
    """An intercept and a coefficient of each covariate, with normal priors."""
    return pm.Normal("a", 0, sd_of_intercept) + d.X @ pm.Normal("b", 0, sd_of_slopes, shape=5)


def quantile(d: Rows) -> None:
    """The 90% quantile of an outcome with long tails."""
    y = d.eta + d.rng.standard_t(4, d.n)
    rate = 1 / pm.HalfNormal("s", 2)
    pm.AsymmetricLaplace("y", mu=linear(d, 5, 2), b=rate, q=0.9, observed=y)


def median(d: Rows) -> None:
    """The median of an outcome with long tails."""
    y = d.eta + d.rng.standard_t(4, d.n)
    pm.Laplace("y", linear(d, 5, 2), pm.HalfNormal("s", 2), observed=y)


def three_outcomes(d: Rows) -> None:
    """Three outcomes of a row, whose errors are correlated."""
    covariance = np.array([[1, 0.5, 0.2], [0.5, 2, 0.3], [0.2, 0.3, 0.7]])
    slopes = d.rng.normal(size=(5, 3))
    y = d.X @ slopes + d.rng.multivariate_normal(np.zeros(3), covariance, d.n)
    chol, _, _ = pm.LKJCholeskyCov("c", n=3, eta=2, sd_dist=pm.HalfNormal.dist(2))
    mean = d.X @ pm.Normal("b", 0, 2, shape=(5, 3))
    pm.MvNormal("y", mu=mean, chol=chol, observed=y)


def skew_normal(d: Rows) -> None:
    """Errors that are skew."""
    half = np.abs(d.rng.normal(size=d.n))
    y = d.eta + 0.9 * half + 0.43 * d.rng.normal(size=d.n)
    sigma, alpha = pm.HalfNormal("s", 2), pm.Normal("alpha", 0, 5)
    pm.SkewNormal("y", mu=linear(d, 5, 2), sigma=sigma, alpha=alpha, observed=y)


def directions(d: Rows) -> None:
    """Angles that depend on the covariates."""
    y = d.rng.vonmises(2 * np.arctan(0.3 + 0.3 * d.eta), 3)
    pm.VonMises("y", mu=2 * pt.arctan(linear(d)), kappa=pm.HalfNormal("k", 5), observed=y)


def multinomial(d: Rows) -> None:
    """Ten choices of a row among four alternatives."""
    utilities = np.c_[d.X @ d.rng.normal(0, 0.5, (5, 3)), np.zeros(d.n)]
    p = np.exp(utilities) / np.exp(utilities).sum(axis=1, keepdims=True)
    y = d.rng.multinomial(10, p)
    others = d.X @ pm.Normal("b", 0, 2, shape=(5, 3))
    eta = pt.concatenate([others, pt.zeros((d.n, 1))], axis=1)
    pm.Multinomial("y", n=10, p=pm.math.softmax(eta, axis=1), observed=y)


def proportions(d: Rows) -> None:
    """Beta regression, whose precision also depends on a covariate."""
    x = d.X[:, 0]
    mean, precision = logistic(d.eta), np.exp(2 + 0.5 * x)
    y = d.rng.beta(mean * precision, (1 - mean) * precision)
    nu = pm.math.exp(pm.Normal("c", 0, 2) + x * pm.Normal("d"))
    pm.Beta("y", mu=pm.math.invlogit(linear(d)), nu=nu, observed=np.clip(y, 1e-6, 1 - 1e-6))


def student(d: Rows) -> None:
    """A Student likelihood for normal errors: the degrees of freedom have no upper end."""
    y = d.rng.normal(d.eta, 1)
    nu, sigma = pm.Gamma("nu", 2, 0.1), pm.HalfNormal("s", 2)
    pm.StudentT("y", nu=nu, mu=linear(d), sigma=sigma, observed=y)


def interval(d: Rows) -> None:
    """Times known only in whole units; a potential has an element for each row."""
    time = np.exp(0.5 + 0.5 * d.eta + 0.6 * d.rng.normal(size=d.n))
    start, end = np.log(np.maximum(np.floor(time), 1e-3)), np.log(np.floor(time) + 1)
    log_time = pm.Normal.dist(linear(d), pm.HalfNormal("s", 1))
    pm.Potential("y", pm.math.logdiffexp(pm.logcdf(log_time, end), pm.logcdf(log_time, start)))


def truncated_counts(d: Rows) -> None:
    """Counts of which those that are 0 are not in the data."""
    rate = np.exp(0.3 + 0.5 * d.eta)
    y = poisson.ppf(d.rng.uniform(np.exp(-rate), 1), rate).astype(int)
    pm.Truncated("y", pm.Poisson.dist(pm.math.exp(linear(d))), lower=1, observed=y)


def spline(d: Rows) -> None:
    """A curve through B-splines whose coefficients are a random walk."""
    x = np.sort(d.rng.uniform(0, 1, d.n))
    y = d.rng.normal(np.sin(8 * x), 0.3)
    knots = np.r_[[0] * 3, np.linspace(0, 1, 14), [1] * 3]
    basis = BSpline.design_matrix(x, knots, 3).toarray()
    start, step = pm.Normal.dist(0, 2), pm.HalfNormal("tau", 1)
    w = pm.GaussianRandomWalk("w", mu=0, sigma=step, init_dist=start, shape=basis.shape[1])
    pm.Normal("y", basis @ w, pm.HalfNormal("s", 1), observed=y)


def fixed_effects(d: Rows) -> None:
    """An intercept for each of 400 levels, without a scale to be found."""
    level = d.rng.integers(400, size=d.n)
    y = d.rng.normal(d.rng.normal(size=400)[level] + d.eta, 1)
    mean = pm.Normal("level", 0, 10, shape=400)[level] + d.X @ pm.Normal("b", 0, 10, shape=5)
    pm.Normal("y", mean, pm.HalfNormal("s", 3), observed=y)


def two_lines(d: Rows) -> None:
    """Rows of two unknown kinds, each with its own line and sd."""
    x = d.X[:, 0]
    y = d.rng.normal(np.where(d.rng.random(d.n) < 0.3, -1 + x, 2 - x), 0.7)
    a = pm.Normal("a", 0, 3, shape=2, transform=ordered, initval=[-1.0, 1.0])
    mean = a + x[:, None] * pm.Normal("b", 0, 2, shape=2)
    w, sigma = pm.Dirichlet("w", np.ones(2)), pm.HalfNormal("s", 1, shape=2)
    pm.NormalMixture("y", w=w, mu=mean, sigma=sigma, observed=y)


def zero_inflated(d: Rows) -> None:
    """Overdispersed counts with more zeros, as many as a covariate says."""
    mean, x = np.exp(0.5 + 0.5 * d.eta), d.X[:, 1]
    y = d.rng.negative_binomial(1.5, 1.5 / (1.5 + mean)) * (d.rng.random(d.n) < logistic(1 + x))
    psi = pm.math.invlogit(pm.Normal("p") + pm.Normal("q") * x)
    mu, alpha = pm.math.exp(linear(d)), pm.HalfNormal("alpha", 3)
    pm.ZeroInflatedNegativeBinomial("y", psi=psi, mu=mu, alpha=alpha, observed=y)


def ordinal(d: Rows) -> None:
    """Seven ordered categories, with a Dirichlet prior for their shares."""
    y = np.digitize(d.rng.normal(d.eta, 1), [-2, -1, 0, 0.5, 1.2, 2.5])
    share = pm.Dirichlet("p", np.full(7, 2.0))
    cuts = pm.Deterministic("c", pm.math.probit(pt.cumsum(share)[:-1]))
    pm.OrderedProbit("y", eta=d.X @ pm.Normal("b", shape=5), cutpoints=cuts, observed=y)


def change_point(d: Rows) -> None:
    """A trend whose slope changes at an unknown time."""
    t = np.linspace(0, 10, d.n)
    y = d.rng.normal(np.where(t < 6, 1 + 0.2 * t, 2.2 - 0.3 * (t - 6)), 0.5)
    change, b = pm.Uniform("c", 0, 10), pm.Normal("b", shape=2)
    mean = pm.Normal("a", 0, 3) + b[0] * t + b[1] * pt.maximum(t - change, 0)
    pm.Normal("y", mean, pm.HalfNormal("s", 1), observed=y)


def raw_scales(d: Rows) -> None:
    """Years, incomes and ages that are neither centred nor scaled."""
    year = d.rng.integers(1990, 2021, d.n).astype(float)
    income = d.rng.lognormal(10.8, 0.5, d.n)
    age = d.rng.integers(18, 90, d.n).astype(float)
    y = d.rng.normal(3 + 0.02 * (year - 2005) + 1e-5 * income - 0.01 * age + 3e-4 * age**2, 1)
    mean = pm.Normal("a", 0, 100) + pm.Normal("of_year", 0, 10) * year
    mean += pm.Normal("of_income", 0, 10) * income
    mean += pm.Normal("of_age", 0, 10) * age + pm.Normal("of_age_squared", 0, 10) * age**2
    pm.Normal("y", mean, pm.HalfNormal("s", 5), observed=y)


def rare_events(d: Rows) -> None:
    """About three events in a thousand of 50 000 rows, with 20 covariates."""
    X = d.rng.normal(size=(50_000, 20))
    y = d.rng.binomial(1, logistic(-6.5 + X[:, :2] @ [1, -0.7]))
    eta = pm.Normal("a", 0, 5) + X @ pm.Normal("b", 0, 1, shape=20)
    pm.Bernoulli("y", logit_p=eta, observed=y)


def separation(d: Rows) -> None:
    """Covariates that separate the outcomes: only the prior bounds the coefficients."""
    y = (d.X[:, 0] + 0.2 * d.X[:, 1] > 0.1).astype(int)
    pm.Bernoulli("y", logit_p=linear(d, 10, 10), observed=y)


def rare_levels(d: Rows) -> None:
    """Eight levels, of which one has 3 rows, whose outcomes are all 1, and one has 5."""
    level = np.r_[[0] * 3, [1] * 5, d.rng.integers(2, 8, d.n - 8)]
    y = d.rng.binomial(1, logistic(d.eta + np.linspace(-1, 1, 8)[level]))
    y[level == 0] = 1
    eta = np.eye(8)[level] @ pm.Normal("level", 0, 5, shape=8) + d.X @ pm.Normal("b", shape=5)
    pm.Bernoulli("y", logit_p=eta, observed=y)


def wald(d: Rows) -> None:
    """Times of which the Wald distribution depends on the covariates."""
    y = d.rng.wald(np.exp(0.5 + 0.3 * d.eta), 4)
    pm.Wald("y", mu=pm.math.exp(linear(d)), lam=pm.HalfNormal("lam", 5), observed=y)


def no_overdispersion(d: Rows) -> None:
    """A negative binomial likelihood for Poisson counts: alpha has no upper end."""
    y = d.rng.poisson(np.exp(0.5 + 0.3 * d.eta))
    alpha = pm.Exponential("alpha", 0.01)
    pm.NegativeBinomial("y", mu=pm.math.exp(linear(d)), alpha=alpha, observed=y)


def unequal_variances(d: Rows) -> None:
    """The mean and the logarithm of the sd depend on all covariates."""
    y = d.rng.normal(d.eta, np.exp(-0.5 + 0.4 * d.X[:, 0] + 0.2 * d.X[:, 2]))
    sigma = pm.math.exp(pm.Normal("g0") + d.X @ pm.Normal("g", shape=5))
    pm.Normal("y", linear(d), sigma, observed=y)


def weighted(d: Rows) -> None:
    """Rows with weights, of which the potential is the sum."""
    weight = d.rng.gamma(2, 0.5, d.n)
    y = d.rng.binomial(1, logistic(d.eta))
    log_density = pm.logp(pm.Bernoulli.dist(logit_p=linear(d)), y)
    pm.Potential("ll", (weight * log_density).sum())


def positive_coefficients(d: Rows) -> None:
    """A marketing mix: coefficients that cannot be negative, some of which are 0."""
    spending = np.abs(d.X)
    y = d.rng.normal(spending @ [1, 0.5, 0.01, 0, 0], 1)
    mean = pm.Normal("a") + spending @ pm.HalfNormal("b", 1, shape=5)
    pm.Normal("y", mean, pm.HalfNormal("s", 2), observed=y)


def monotonic(d: Rows) -> None:
    """The effect of an ordered covariate, which goes up or down in steps of unknown size."""
    level = d.rng.integers(6, size=d.n)
    y = d.rng.normal(1 + 1.5 * np.cumsum([0, 0.4, 0.1, 0.3, 0.1, 0.1])[level], 1)
    steps = pt.concatenate([[0.0], pt.cumsum(pm.Dirichlet("z", np.ones(5)))])
    mean = pm.Normal("a", 0, 3) + pm.Normal("b", 0, 3) * steps[level]
    pm.Normal("y", mean, pm.HalfNormal("s", 2), observed=y)


def known_errors(d: Rows) -> None:
    """A meta-regression: each row has a known error, and a variance is common to all."""
    error = d.rng.uniform(0.1, 2, d.n)
    y = d.rng.normal(d.rng.normal(d.eta, 0.5), error)
    pm.Normal("y", linear(d), pt.sqrt(error**2 + pm.HalfNormal("tau", 1) ** 2), observed=y)


def dose_response(d: Rows) -> None:
    """A Hill curve with four parameters."""
    dose = d.rng.uniform(0.01, 10, d.n)
    y = d.rng.normal(1 + 3 * dose**1.5 / (dose**1.5 + 2**1.5), 0.3)
    bottom, height = pm.Normal("bottom", 0, 3), pm.HalfNormal("height", 5)
    half, power = pm.LogNormal("half", 0, 1), pm.LogNormal("power", 0, 0.5)
    curve = bottom + height * dose**power / (dose**power + half**power)
    pm.Normal("y", curve, pm.HalfNormal("s", 1), observed=y)


FORMS: dict[str, Callable[[Rows], None]] = {
    form.__name__: form
    for form in (
        *(quantile, median, three_outcomes, skew_normal, directions, multinomial, proportions),
        *(student, interval, truncated_counts, spline, fixed_effects, two_lines, zero_inflated),
        *(ordinal, change_point, raw_scales, rare_events, separation, rare_levels, wald),
        *(no_overdispersion, unequal_variances, weighted, positive_coefficients, monotonic),
        *(known_errors, dose_response),
    )
}
COLUMNS = {
    "form": "<21",
    "error": ">5.2f",
    "sd low": ">7.2f",
    "sd high": ">8.2f",
    "updates": ">8.0f",
    "passes": ">7.0f",
    "NUTS ess": ">9.0f",
    "s": ">4.0f",
    "NUTS s": ">7.0f",
    "verdict": "",
}
TABLE = PosteriorTable(COLUMNS, texts=("form", "verdict"))
NOTES = """\
error: largest difference of the means of an element of a variable, in NUTS's sds, with positive
variables on the logarithmic scale; sd low, sd high: smallest and largest ratio of sds. They are the
extremes of all elements, and contain the Monte Carlo errors of both: about .06 and 5% for one
element. updates: per draw; passes: over the data, in all; NUTS ess: smallest effective sample size
of an element, from the ranks of NUTS's draws; s: seconds with compilation, one seed. The verdict is
that of the diagnosis that comes with the draws."""


def compare(form: str) -> dict:
    """Sample both ways; return a row of the table."""
    with pm.Model() as model:
        FORMS[form](Rows())
    ours, nuts, seconds, seconds_of_nuts = sample_both(model)
    return {
        "form": form,
        **extremes(model, ours, nuts, [rv.name for rv in model.free_RVs]),
        "updates": json.loads(ours.posterior.attrs["adaptation"])["thin"],
        "passes": float(ours.posterior.attrs["data_passes"]),
        "s": seconds,
        "NUTS s": seconds_of_nuts,
        "verdict": ours["diagnosis"].attrs["verdict"],
    }


if __name__ == "__main__":
    TABLE.main(__doc__, compare, list(FORMS), NOTES)
