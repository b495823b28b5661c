"""The default call on hierarchies of many forms, compared with NUTS.

    python benchmarks/hierarchy_forms.py                       # an hour and a quarter
    python benchmarks/hierarchy_forms.py --only weibull walk   # replaces these rows

Writes benchmarks/results/hierarchy_forms.txt. Each form has 300 groups with 3 to 11 rows, about
2000 in all, and runs in its own process. Effects have priors of many families, and enter the
likelihood in several places or of several groups at once; some belong to single rows, or rows of
two kinds look them up. NUTS is
PyMC's, with 4 chains of 1000 draws after 1000 of tuning. The column "integrated" names the effects
that are integrated out.
"""

import json
from collections.abc import Callable

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from against_nuts import sample_both
from posterior_table import PosteriorTable

GROUPS = 300
LARGEST_SHARED = 30
"""Elements of variables that count as shared; larger ones are effects."""


class Rows:
    """The groups of rows, a covariate, and what draws the data."""

    def __init__(self):
        self.rng = np.random.default_rng(7)
        self.group = np.repeat(np.arange(GROUPS), self.rng.integers(3, 12, GROUPS))
        self.n = len(self.group)
        self.x = self.rng.normal(size=self.n)


def logistic(eta):
    return 1 / (1 + np.exp(-eta))


def two_places(d: Rows) -> None:
    """In mean and variance of the rows."""
    a = d.rng.normal(0, 0.7, GROUPS)[d.group]
    y = d.rng.normal(1 + a + 0.5 * d.x, np.exp(-0.2 + 0.4 * a))
    e = pm.Normal("a", 0, pm.HalfNormal("tau", 1), shape=GROUPS)[d.group]
    mean = pm.Normal("mu", 0, 2) + e + pm.Normal("b") * d.x
    pm.Normal("y", mean, pm.math.exp(pm.Normal("c0") + pm.Normal("c1") * e), observed=y)


def truncated(d: Rows) -> None:
    y = d.rng.normal(np.abs(d.rng.normal(0.5, 0.7, GROUPS))[d.group], 1)
    mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1)
    e = pm.TruncatedNormal("a", mu, tau, lower=0, shape=GROUPS)
    pm.Normal("y", e[d.group], pm.HalfNormal("s"), observed=y)


def exponential(d: Rows) -> None:
    y = d.rng.poisson(d.rng.exponential(1.5, GROUPS)[d.group])
    e = pm.Exponential("a", pm.HalfNormal("rate", 2), shape=GROUPS)
    pm.Poisson("y", e[d.group], observed=y)


def beta(d: Rows) -> None:
    y = d.rng.binomial(1, d.rng.beta(2, 5, GROUPS)[d.group])
    e = pm.Beta("p", pm.Exponential("al", 0.2), pm.Exponential("be", 0.2), shape=GROUPS)
    pm.Bernoulli("y", e[d.group], observed=y)


def dirichlet(d: Rows) -> None:
    """Shares of three categories, two effects a group with long tails."""
    p = d.rng.dirichlet([2, 1, 0.7], GROUPS)
    y = np.array([d.rng.choice(3, p=p[j]) for j in d.group])
    e = pm.Dirichlet("p", pm.Exponential("al", 0.5, shape=3), shape=(GROUPS, 3))
    pm.Categorical("y", p=e[d.group], observed=y)


def student(d: Rows) -> None:
    y = d.rng.normal(d.rng.standard_t(3, GROUPS)[d.group] * 0.5, 1)
    mu, tau = pm.Normal("mu"), pm.HalfNormal("tau", 1)
    e = pm.StudentT("a", nu=3, mu=mu, sigma=tau, shape=GROUPS)
    pm.Normal("y", e[d.group], pm.HalfNormal("s"), observed=y)


def laplace(d: Rows) -> None:
    eta = 0.3 + d.rng.laplace(0, 0.5, GROUPS)[d.group] + 0.5 * d.x
    y = d.rng.binomial(1, logistic(eta))
    e = pm.Laplace("a", 0, pm.HalfNormal("tau", 1), shape=GROUPS)[d.group]
    pm.Bernoulli("y", logit_p=pm.Normal("mu") + pm.Normal("b") * d.x + e, observed=y)


def uniform(d: Rows) -> None:
    """Slopes whose prior has a bound to be found."""
    y = d.rng.normal(d.rng.uniform(-1, 2, GROUPS)[d.group] * d.x, 1)
    e = pm.Uniform("a", -1.5, pm.HalfNormal("top", 3), shape=GROUPS)
    pm.Normal("y", e[d.group] * d.x, pm.HalfNormal("s"), observed=y)


def zero_sum(d: Rows) -> None:
    y = d.rng.normal(d.rng.normal(0, 0.7, GROUPS)[d.group], 1)
    e = pm.ZeroSumNormal("a", pm.HalfNormal("tau", 1), shape=GROUPS)
    pm.Normal("y", pm.Normal("mu") + e[d.group], pm.HalfNormal("s"), observed=y)


def classes_of_groups(d: Rows) -> None:
    """Groups of three classes, each with its own mean and sd."""
    c = d.rng.integers(3, size=GROUPS)
    y = d.rng.normal(d.rng.normal(0, np.array([0.3, 0.6, 1.2])[c])[d.group], 1)
    tau, mu = pm.HalfNormal("tau", 1, shape=3), pm.Normal("mu", 0, 1, shape=3)
    e = pm.Normal("a", mu[c], tau[c], shape=GROUPS)
    pm.Normal("y", e[d.group], pm.HalfNormal("s"), observed=y)


def lkj(d: Rows) -> None:
    """Intercepts and slopes, not centred."""
    ab = d.rng.multivariate_normal([0, 0], [[0.5, 0.2], [0.2, 0.3]], GROUPS)[d.group]
    y = d.rng.normal(ab[:, 0] + ab[:, 1] * d.x, 1)
    sd = pm.HalfNormal.dist(1)
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=sd)
    e = pt.dot(pm.Normal("z", shape=(GROUPS, 2)), chol.T)[d.group]
    mean = pm.Normal("mu") + e[:, 0] + e[:, 1] * d.x
    pm.Normal("y", mean, pm.HalfNormal("s"), observed=y)


def zero_inflated(d: Rows) -> None:
    a = d.rng.normal(0, 0.6, GROUPS)[d.group]
    y = d.rng.poisson(np.exp(0.8 + a)) * (d.rng.random(d.n) < 0.7)
    e = pm.Normal("a", 0, pm.HalfNormal("tau", 1), shape=GROUPS)[d.group]
    rate = pm.math.exp(pm.Normal("mu") + e)
    pm.ZeroInflatedPoisson("y", psi=pm.Beta("psi", 1, 1), mu=rate, observed=y)


def censored(d: Rows) -> None:
    a = d.rng.normal(0, 0.7, GROUPS)[d.group]
    y = np.minimum(d.rng.normal(1 + a + 0.5 * d.x, 1), 2.0)
    e = pm.Normal("a", 0, pm.HalfNormal("tau", 1), shape=GROUPS)[d.group]
    mean = pm.Normal("mu", 0, 2) + pm.Normal("b") * d.x + e
    pm.Censored("y", pm.Normal.dist(mean, pm.HalfNormal("s")), None, 2.0, observed=y)


def weibull(d: Rows) -> None:
    a = d.rng.normal(0, 0.5, GROUPS)[d.group]
    y = np.exp(0.5 + a + 0.3 * d.x) * d.rng.weibull(1.5, d.n)
    e = pm.HalfNormal("tau", 1) * pm.Normal("z", shape=GROUPS)[d.group]
    scale = pm.math.exp(pm.Normal("mu") + pm.Normal("b") * d.x + e)
    pm.Weibull("y", pm.HalfNormal("k", 2), scale, observed=y)


def gamma_frailty(d: Rows) -> None:
    f = d.rng.gamma(2, 0.5, GROUPS)[d.group]
    y = d.rng.exponential(1 / (f * np.exp(0.3 * d.x)))
    k = pm.HalfNormal("k", 3)
    e = pm.Gamma("f", k, k, shape=GROUPS)[d.group]
    pm.Exponential("y", e * pm.math.exp(pm.Normal("mu") + pm.Normal("b") * d.x), observed=y)


def outliers(d: Rows) -> None:
    """A mixture of two normal distributions for the rows."""
    a = d.rng.normal(0, 0.6, GROUPS)[d.group]
    y = d.rng.normal(a, np.where(d.rng.random(d.n) < 0.1, 5, 0.7))
    e = pm.Normal("a", 0, pm.HalfNormal("tau", 1), shape=GROUPS)[d.group]
    w, narrow = pm.Beta("w", 1, 1), pm.HalfNormal("s", 1)
    parts = [pm.Normal.dist(e, narrow), pm.Normal.dist(e, pm.HalfNormal("s2", 6))]
    pm.Mixture("y", pt.stack([1 - w, w]), parts, observed=y)


def home_and_away(d: Rows) -> None:
    """Each row has the effects of two groups."""
    other, q = d.rng.integers(GROUPS, size=d.n), d.rng.normal(0, 0.8, GROUPS)
    y = d.rng.binomial(1, logistic(q[d.group] - q[other]))
    e = pm.Normal("q", 0, pm.HalfNormal("tau", 1), shape=GROUPS)
    pm.Bernoulli("y", logit_p=e[d.group] - e[other] + pm.Normal("home"), observed=y)


def walk(d: Rows) -> None:
    """A random walk: rows depend on the steps before."""
    y = d.rng.normal(np.cumsum(d.rng.normal(0, 0.2, GROUPS))[d.group], 1)
    e = pt.cumsum(pm.Normal("z", shape=GROUPS))[d.group] * pm.HalfNormal("tau", 0.5)
    pm.Normal("y", e, pm.HalfNormal("s"), observed=y)


def scales_of_rows(d: Rows) -> None:
    """A Student likelihood, as normal rows with precisions of their own."""
    y = d.rng.standard_t(4, d.n) * 0.8 + 1
    scale = pm.HalfNormal("s") / pt.sqrt(pm.Gamma("lam", 2, 2, shape=d.n))
    pm.Normal("y", pm.Normal("mu") + pm.Normal("b") * d.x, scale, observed=y)


def beta_binomial_rows(d: Rows) -> None:
    k = d.rng.integers(5, 30, d.n)
    y = d.rng.binomial(k, d.rng.beta(3, 4, d.n))
    e = pm.Beta("p", pm.Exponential("al", 0.2), pm.Exponential("be", 0.2), shape=d.n)
    pm.Binomial("y", k, e, observed=y)


def rows_and_groups(d: Rows) -> None:
    """Overdispersed counts of groups: effects of rows and of groups."""
    a = d.rng.normal(0, 0.5, GROUPS)[d.group]
    y = d.rng.poisson(np.exp(0.5 + a + 0.4 * d.rng.normal(size=d.n)))
    e = pm.Normal("a", 0, pm.HalfNormal("tau", 1), shape=GROUPS)[d.group]
    own = pm.HalfNormal("s", 1) * pm.Normal("z", shape=d.n)
    pm.Poisson("y", pm.math.exp(pm.Normal("mu") + e + own), observed=y)


def two_measurements(d: Rows) -> None:
    """A score of each row, measured with error, that also predicts an outcome."""
    t = d.rng.normal(1, 0.8, d.n)
    u = pm.Normal("u", pm.Normal("mu"), pm.HalfNormal("tau", 1), shape=d.n)
    pm.Normal("m", u, 0.5, observed=d.rng.normal(t, 0.5))
    y = d.rng.binomial(1, logistic(0.3 + t))
    pm.Bernoulli("y", logit_p=pm.Normal("a") + pm.Normal("b") * u, observed=y)


def lognormal_rows(d: Rows) -> None:
    y = d.rng.poisson(4 * d.rng.lognormal(0, 0.5, d.n))
    u = pm.LogNormal("u", 0, pm.HalfNormal("tau", 1), shape=d.n)
    pm.Poisson("y", u * pm.HalfNormal("r", 5), observed=y)


def horseshoe(d: Rows) -> None:
    """A horseshoe prior for 15 coefficients, of which 12 are 0, beside effects of groups."""
    X = d.rng.normal(size=(d.n, 15))
    a = d.rng.normal(0, 0.6, GROUPS)[d.group]
    y = d.rng.normal(X[:, :3] @ [1, -0.7, 0.5] + a, 1)
    local, whole = pm.HalfStudentT("lam", 3, 1, shape=15), pm.HalfStudentT("t", 3, 0.2)
    e = pm.Normal("a", 0, pm.HalfNormal("tau", 1), shape=GROUPS)[d.group]
    mean = X @ (pm.Normal("z", shape=15) * local * whole) + e
    pm.Normal("y", mean, pm.HalfNormal("s"), observed=y)


def item_response(d: Rows) -> None:
    """Two parameters for each of 20 items; the groups are persons."""
    item = d.rng.integers(20, size=d.n)
    a, b = np.exp(d.rng.normal(0, 0.4, 20)), d.rng.normal(size=20)
    y = d.rng.binomial(1, logistic(a[item] * (d.rng.normal(size=GROUPS)[d.group] - b[item])))
    slope = pm.LogNormal("a", 0, 0.5, shape=20)[item]
    level = pm.Normal("b", 0, pm.HalfNormal("sb", 2), shape=20)[item]
    ability = pm.Normal("theta", shape=GROUPS)[d.group]
    pm.Bernoulli("y", logit_p=slope * (ability - level), observed=y)


def groups_and_process(d: Rows) -> None:
    """A Gaussian process of time beside effects of groups."""
    t = d.rng.uniform(0, 10, d.n)
    y = d.rng.normal(np.sin(t) + d.rng.normal(0, 0.6, GROUPS)[d.group], 0.5)
    covariance = pm.gp.cov.Matern52(1, ls=pm.InverseGamma("ell", 3, 3))
    gp = pm.gp.HSGP(m=[20], c=1.5, cov_func=pm.HalfNormal("eta", 1) ** 2 * covariance)
    e = pm.Normal("a", 0, pm.HalfNormal("tau", 1), shape=GROUPS)[d.group]
    pm.Normal("y", gp.prior("f", X=t[:, None]) + e, pm.HalfNormal("s"), observed=y)


def ordered(d: Rows) -> None:
    latent = d.rng.normal(0, 0.8, GROUPS)[d.group] + 0.6 * d.x + d.rng.logistic(size=d.n)
    y = np.digitize(latent, [-1, 0, 1.5])
    e = pm.HalfNormal("tau", 1) * pm.Normal("z", shape=GROUPS)[d.group]
    order = {"transform": pm.distributions.transforms.ordered, "initval": [-1.0, 0.0, 1.0]}
    cuts = pm.Normal("c", 0, 2, shape=3, **order)
    pm.OrderedLogistic("y", eta=e + pm.Normal("b") * d.x, cutpoints=cuts, observed=y)


def softmax(d: Rows) -> None:
    """Two effects of each group on the choice among three alternatives."""
    eta = np.c_[np.zeros(GROUPS), d.rng.normal(0, 0.7, (GROUPS, 2))][d.group]
    y = (eta + np.outer(d.x, [0, 0.5, -0.4]) + d.rng.gumbel(size=(d.n, 3))).argmax(axis=1)
    tau, mu = pm.HalfNormal("tau", 1, shape=2), pm.Normal("mu", shape=2)
    e = pm.Normal("a", mu, tau, shape=(GROUPS, 2))[d.group]
    others = e + d.x[:, None] * pm.Normal("b", shape=2)
    utilities = pt.concatenate([pt.zeros((d.n, 1)), others], axis=1)
    pm.Categorical("y", p=pm.math.softmax(utilities, axis=1), observed=y)


def hurdle(d: Rows) -> None:
    """Correlated effects on whether there is an amount, and on how much."""
    ab = d.rng.multivariate_normal([0, 0], [[0.5, 0.2], [0.2, 0.3]], GROUPS)[d.group]
    some = d.rng.random(d.n) < logistic(0.3 + ab[:, 0])
    y = np.where(some, d.rng.gamma(2, np.exp(0.5 + ab[:, 1]) / 2), 0.0)
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(1))
    e = pt.dot(pm.Normal("z", shape=(GROUPS, 2)), chol.T)[d.group]
    psi, rate = (
        pm.math.invlogit(pm.Normal("p") + e[:, 0]),
        2 / pm.math.exp(pm.Normal("m") + e[:, 1]),
    )
    pm.HurdleGamma("y", psi=psi, alpha=pm.HalfNormal("al", 3), beta=rate, observed=y)


def growth(d: Rows) -> None:
    """Logistic curves of groups: three effects that are not linear."""
    t = d.rng.uniform(0, 10, d.n)
    height, speed, middle = (
        d.rng.normal(mean, sd, GROUPS)[d.group] for mean, sd in ((2, 0.2), (0, 0.2), (5, 0.7))
    )
    y = d.rng.normal(np.exp(height) * logistic(np.exp(speed) * (t - middle)), 0.5)
    h = pm.Normal("h", pm.Normal("mh", 2, 1), pm.HalfNormal("sh", 0.5), shape=GROUPS)[d.group]
    k = pm.Normal("k", pm.Normal("mk", 0, 1), pm.HalfNormal("sk", 0.5), shape=GROUPS)[d.group]
    m = pm.Normal("m", pm.Normal("mm", 5, 2), pm.HalfNormal("sm", 1), shape=GROUPS)[d.group]
    curve = pm.math.exp(h) * pm.math.invlogit(pm.math.exp(k) * (t - m))
    pm.Normal("y", curve, pm.HalfNormal("s"), observed=y)


def two_kinds(d: Rows) -> None:
    """Whether there is an amount, for all rows, and the amount where there is one."""
    a = d.rng.normal(0, 0.8, GROUPS)[d.group]
    some = d.rng.random(d.n) < logistic(0.3 + a + 0.5 * d.x)
    y, of_some, x = d.rng.normal(1 + 0.7 * a + 0.3 * d.x, 0.5)[some], d.group[some], d.x[some]
    e = pm.Normal("a", 0, pm.HalfNormal("tau", 1), shape=GROUPS)
    logit = pm.Normal("p") + e[d.group] + pm.Normal("b") * d.x
    pm.Bernoulli("any", logit_p=logit, observed=some.astype(int))
    mean = pm.Normal("m") + pm.HalfNormal("c", 1) * e[of_some] + pm.Normal("b2") * x
    pm.Normal("amount", mean, pm.HalfNormal("s", 1), observed=y)


def visits_and_times(d: Rows) -> None:
    """Values of persons at their visits, and for each person a time that may be censored."""
    a = d.rng.normal(0, 0.8, GROUPS)
    y = d.rng.normal(1 + a[d.group] + 0.5 * d.x, 0.6)
    time = d.rng.exponential(np.exp(0.5 - 0.6 * a))
    e = pm.Normal("a", 0, pm.HalfNormal("tau", 1), shape=GROUPS)
    mean = pm.Normal("m") + e[d.group] + pm.Normal("b") * d.x
    pm.Normal("y", mean, pm.HalfNormal("s", 1), observed=y)
    log_rate = pm.Normal("r") + pm.Normal("c") * e
    log_density = (time < 3) * log_rate - pm.math.exp(log_rate) * np.minimum(time, 3)
    pm.Potential("time", log_density.sum())


def weighted_rows(d: Rows) -> None:
    """Each row stands for several, of which the potential is the sum."""
    y = d.rng.binomial(1, logistic(d.rng.normal(0.3, 0.8, GROUPS)[d.group] + 0.5 * d.x))
    weight = d.rng.integers(1, 4, d.n)
    e = pm.Normal("a", pm.Normal("m"), pm.HalfNormal("tau", 1), shape=GROUPS)
    rows = pm.Bernoulli.dist(logit_p=e[d.group] + pm.Normal("b") * d.x)
    pm.Potential("y", (weight * pm.logp(rows, y)).sum())


def curves(d: Rows) -> None:
    """Smooth curves of groups, of four overlapping bumps each, non-centred."""
    t = d.rng.uniform(size=d.n)
    basis = np.exp(-(((t[:, None] - np.linspace(0, 1, 4)) / 0.3) ** 2))
    heights = d.rng.normal([0, 1, 1, 0.5], 0.5, (GROUPS, 4))
    y = d.rng.normal((basis * heights[d.group]).sum(axis=1), 0.4)
    mean, sd = pm.Normal("mean", shape=4), pm.HalfNormal("sd", 1, shape=4)
    e = mean + sd * pm.Normal("z", shape=(GROUPS, 4))
    pm.Normal("y", (basis * e[d.group]).sum(axis=1), pm.HalfNormal("s"), observed=y)


def dispersions(d: Rows) -> None:
    """Counts of groups that differ in mean and in dispersion."""
    mean = np.exp(d.rng.normal(1, 0.5, GROUPS))[d.group]
    size = np.exp(d.rng.normal(0.7, 0.5, GROUPS))[d.group]
    y = d.rng.negative_binomial(size, size / (size + mean))
    m = pm.Normal("m", pm.Normal("mm", 0, 2), pm.HalfNormal("sm", 1), shape=GROUPS)
    a = pm.Normal("a", pm.Normal("ma", 0, 2), pm.HalfNormal("sa", 1), shape=GROUPS)
    mu, alpha = pm.math.exp(m[d.group]), pm.math.exp(a[d.group])
    pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=y)


FORMS: dict[str, Callable[[Rows], None]] = {
    form.__name__: form
    for form in (
        *(two_places, truncated, exponential, beta, dirichlet, student, laplace, uniform, zero_sum),
        *(classes_of_groups, lkj, zero_inflated, censored, weibull, gamma_frailty, outliers),
        *(home_and_away, walk, scales_of_rows, beta_binomial_rows, rows_and_groups),
        *(two_measurements, lognormal_rows),
        *(horseshoe, item_response, groups_and_process, ordered, softmax, hurdle, growth),
        *(two_kinds, visits_and_times, weighted_rows, curves, dispersions),
    )
}
COLUMNS = {
    "form": "<19",
    "verdict": "<8",
    "error": ">5.2f",
    "sd low": ">7.2f",
    "sd high": ">8.2f",
    "NUTS ess": ">9.0f",
    "rms": ">6.3f",
    "sds": ">6.3f",
    "s": ">4.0f",
    "NUTS s": ">7.0f",
    "integrated": "",
}
TABLE = PosteriorTable(COLUMNS, texts=("form", "verdict", "integrated"))
NOTES = """\
error: largest difference of the means of a shared variable, in NUTS's sds; sd low, sd high: the
smallest and largest ratio of sds. Ours have effective sample sizes of 400 or more, and "NUTS ess"
is the smallest of NUTS, so that a difference of means has a Monte Carlo error of about .05. rms:
root mean square of the differences of the means of effects, which have an error of about .025 each;
sds: mean ratio of their sds. s: seconds with compilation. The largest ratio under a horseshoe is
that of a scale with a Student prior of 3 degrees of freedom, whose sd is uncertain."""


def flat(draws: np.ndarray) -> np.ndarray:
    """Draws of all chains, shape (draws, elements)."""
    return draws.reshape(draws.shape[0] * draws.shape[1], -1)


def compare(form: str) -> dict:
    """Sample both ways; return a row of the table."""
    with pm.Model() as model:
        FORMS[form](Rows())
    ours, nuts, seconds, seconds_of_nuts = sample_both(model)
    errors, ratios, sizes, of_effects = [], [], [], []
    for name in (rv.name for rv in model.free_RVs):
        own, other = (flat(tree.posterior[name].values) for tree in (ours, nuts))
        z = (own.mean(axis=0) - other.mean(axis=0)) / other.std(axis=0)
        ratio = own.std(axis=0) / other.std(axis=0)
        if own.shape[1] > LARGEST_SHARED:
            of_effects.append((np.sqrt(np.mean(z**2)), ratio.mean()))
            continue
        errors += list(np.abs(z))
        ratios += list(ratio)
        sizes.append(float(az.ess(nuts.posterior.to_dataset()[[name]])[name].min()))
    adaptation = json.loads(ours.posterior.attrs["adaptation"])
    return {
        "form": form,
        "verdict": ours["diagnosis"].attrs["verdict"],
        "error": max(errors),
        "sd low": min(ratios),
        "sd high": max(ratios),
        "NUTS ess": min(sizes),
        "rms": max(rms for rms, _ in of_effects),
        "sds": of_effects[0][1],
        "s": seconds,
        "NUTS s": seconds_of_nuts,
        "integrated": ", ".join(adaptation["integrated"]) or "nothing",
    }


if __name__ == "__main__":
    TABLE.main(__doc__, compare, list(FORMS), NOTES)
