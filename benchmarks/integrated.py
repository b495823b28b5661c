"""The default call on hierarchies whose effects it integrates out: cost, errors, coverage.

    python benchmarks/integrated.py
    python benchmarks/integrated.py --only intercepts-20000 slopes --seeds 1 2 3

Each case runs in a process of its own; CPU seconds have compilation in them. "error": the largest
error of the mean of a shared variable in posterior standard deviations, against quadrature where
there is a truth in results/truth and for normal rows; against NUTS on the counts of equal rows for
few groups, and on the model with the effects of rows integrated out by hand; else against the
values that made the data (there about 1 to 2 is what chance gives).
"sd": the ratio to the true sd that is farthest from 1. "coverage": of 90% intervals of the effects.
"""

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt

HERE = Path(__file__).parent
TRUTH = HERE / "results" / "truth"


def normal(n_groups):
    """Normal rows and effects, 1 to 11 rows a group; the posterior of what is shared on a grid."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(n_groups, dtype="int32"), rng.integers(1, 12, n_groups))
    effects = rng.normal(1, 0.5, n_groups)
    y = rng.normal(effects[group], 1)
    n = np.bincount(group)
    means = np.bincount(group, weights=y) / n
    half = 12 / np.sqrt(n_groups)
    grid = np.linspace(-half, half, 201)
    mu, log_tau = means.mean() + grid[:, None], np.log(0.5) + grid[None]
    log_p = -((mu / 5) ** 2) / 2 - np.exp(2 * log_tau) / 2 + log_tau
    for k in range(1, 12):
        own, variance = means[n == k], np.exp(2 * log_tau) + 1 / k
        squares = np.sum(own**2) - 2 * mu * own.sum() + len(own) * mu**2
        log_p = log_p - len(own) * np.log(variance) / 2 - squares / variance / 2
    p = np.exp(log_p - log_p.max())
    p /= p.sum()

    def moments(x):
        mean = np.sum(p * x)
        return mean, np.sqrt(np.sum(p * (x - mean) ** 2))

    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1), shape=n_groups)
        pm.Normal("y", a[group], 1, observed=y)
    return model, {"mu[0]": moments(mu), "tau[0]": moments(np.exp(log_tau))}, {"a": effects}


def intercepts(n_groups):
    """Logistic regression, an intercept for each group of 1 to 39 rows."""
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(n_groups), rng.integers(1, 40, n_groups))
    X, effects = rng.normal(size=(len(group), 3)), rng.normal(-0.5, 0.8, n_groups)
    y = rng.binomial(1, 1 / (1 + np.exp(-(X @ [0.5, -0.3, 0.2] + effects[group]))))
    with pm.Model() as model:
        beta, mu = pm.Normal("beta", 0, 1, shape=3), pm.Normal("mu", 0, 2)
        a = pm.Normal("a", mu, pm.HalfNormal("tau", 2), shape=n_groups)
        pm.Bernoulli("y", logit_p=X @ beta + a[group], observed=y)
    return model, {"beta": [0.5, -0.3, 0.2], "mu": -0.5, "tau": 0.8}, {"a": effects}


def counts(n_groups):
    """Negative binomial counts, non-centred effects, 2 to 20 rows a group."""
    rng = np.random.default_rng(6)
    group = np.repeat(np.arange(n_groups), rng.integers(2, 21, n_groups))
    x, z = rng.normal(size=len(group)), rng.normal(size=n_groups)
    mean = np.exp(1.0 + 0.3 * x + 0.6 * z[group])
    y = rng.poisson(rng.gamma(3.0, mean / 3.0))
    with pm.Model() as model:
        mu, b, tau = pm.Normal("mu", 0, 2), pm.Normal("b", 0, 1), pm.HalfNormal("tau", 1)
        alpha = pm.HalfNormal("alpha", 5)
        effect = pm.Normal("z", shape=n_groups)
        mean = pm.math.exp(mu + b * x + tau * effect[group])
        pm.NegativeBinomial("y", mu=mean, alpha=alpha, observed=y)
    return model, {"mu": 1.0, "b": 0.3, "tau": 0.6, "alpha": 3.0}, {"z": z}


def slopes(n_groups):
    """Intercepts and slopes with an LKJ prior, ten rows a group."""
    rng = np.random.default_rng(7)
    group, x = np.repeat(np.arange(n_groups), 10), rng.normal(size=10 * n_groups)
    covariance = np.array([[0.49, 0.3 * 0.7 * 0.5], [0.3 * 0.7 * 0.5, 0.25]])
    ab = rng.multivariate_normal([1.0, -0.5], covariance, n_groups)
    y = rng.normal(ab[group, 0] + ab[group, 1] * x, 1.0)
    with pm.Model() as model:
        sd = pm.Exponential.dist(1, shape=2)
        chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=sd)
        mu = pm.Normal("mu", 0, 2, shape=2)
        effects = pm.MvNormal("ab", mu=mu, chol=chol, shape=(n_groups, 2))
        mean = effects[group, 0] + effects[group, 1] * x
        pm.Normal("y", mean, pm.HalfNormal("sigma", 2), observed=y)
    return model, {"mu": [1.0, -0.5], "chol_stds": [0.7, 0.5], "sigma": 1.0}, {"ab": ab}


def dose(n_groups):
    """Curves of dose and response, three effects that enter nonlinearly, 40 rows a curve."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(n_groups), 40)
    dose = rng.choice(np.linspace(-3, 3, 11), size=len(group))
    half, top = rng.normal(0.2, 0.8, n_groups), rng.normal(1.0, 0.2, n_groups)
    slope = np.exp(rng.normal(0.1, 0.3, n_groups))
    curve = 0.1 + (top - 0.1)[group] / (1 + np.exp(-slope[group] * (dose - half[group])))
    y = rng.normal(curve, 0.1)
    with pm.Model() as model:
        bottom = pm.Normal("bottom", 0, 1)
        e = pm.Normal("half", pm.Normal("m_half", 0, 2), pm.HalfNormal("s_half", 1), shape=n_groups)
        s = pm.LogNormal(
            "slope", pm.Normal("m_slope", 0, 1), pm.HalfNormal("s_slope", 1), shape=n_groups
        )
        t = pm.Normal("top", pm.Normal("m_top", 1, 1), pm.HalfNormal("s_top", 1), shape=n_groups)
        curve = bottom + (t[group] - bottom) / (1 + pt.exp(-s[group] * (dose - e[group])))
        pm.Normal("y", curve, pm.HalfNormal("sigma", 1), observed=y)
    shared = {"bottom": 0.1, "m_half": 0.2, "s_half": 0.8, "m_slope": 0.1, "s_slope": 0.3}
    shared |= {"m_top": 1.0, "s_top": 0.2, "sigma": 0.1}
    return model, shared, {"half": half, "slope": slope, "top": top}


def two_kinds(n_groups):
    """Whether there is an amount, in ten rows a group, and the amount where there is one."""
    rng = np.random.default_rng(9)
    group, x = np.repeat(np.arange(n_groups), 10), rng.normal(size=10 * n_groups)
    effects = rng.normal(0, 0.6, n_groups)
    some = rng.random(len(x)) < 1 / (1 + np.exp(-(effects[group] + 0.5 * x)))
    own = group[some]
    amount = rng.normal(1 + 0.7 * effects[own] + 0.3 * x[some], 0.5)
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("tau", 1), shape=n_groups)
        logit = pm.Normal("m0") + a[group] + pm.Normal("b0") * x
        pm.Bernoulli("any", logit_p=logit, observed=some.astype(int))
        mean = pm.Normal("m1") + pm.HalfNormal("c", 1) * a[own] + pm.Normal("b1") * x[some]
        pm.Normal("amount", mean, pm.HalfNormal("sigma", 1), observed=amount)
    shared = {"tau": 0.6, "m0": 0.0, "b0": 0.5, "m1": 1.0, "c": 0.7, "b1": 0.3, "sigma": 0.5}
    return model, shared, {"a": effects}


def visits(n_groups):
    """Six visits of each person, and one time for each that may be censored."""
    rng = np.random.default_rng(10)
    group, t = np.repeat(np.arange(n_groups), 6), np.tile(np.arange(6) / 5, n_groups)
    effects = rng.normal(0, 0.8, n_groups)
    y = rng.normal(1 + effects[group] - 0.5 * t, 0.4)
    time = rng.exponential(np.exp(1 - 0.6 * effects))
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("tau", 1), shape=n_groups)
        mean = pm.Normal("m") + a[group] + pm.Normal("b") * t
        pm.Normal("y", mean, pm.HalfNormal("sigma", 1), observed=y)
        log_rate = pm.Normal("r") + pm.Normal("c") * a
        log_density = (time < 3) * log_rate - pm.math.exp(log_rate) * np.minimum(time, 3)
        pm.Potential("time", log_density.sum())
    shared = {"tau": 0.8, "m": 1.0, "b": -0.5, "sigma": 0.4, "r": -1.0, "c": 0.6}
    return model, shared, {"a": effects}


def few(n_groups, family, noncentred=True):
    """100,000 rows of few groups, as Bambi writes them; covariates with four values each."""
    rng = np.random.default_rng(17 + n_groups)
    group = rng.integers(n_groups, size=100_000)
    x = rng.choice([-1.5, -0.5, 0.5, 1.5], size=(len(group), 2))
    eta = 0.3 + x @ [0.5, -0.2] + rng.normal(0, 0.5, n_groups)[group]
    y = rng.normal(eta, 1.0) if family == "normal" else rng.binomial(1, 1 / (1 + np.exp(-eta)))

    def model_of(group, x, likelihood, form):
        with pm.Model() as model:
            b0, b = pm.Normal("b0", 0, 2.5), pm.Normal("b", 0, 2, shape=2)
            tau = pm.HalfNormal("tau", 2)
            if form == "noncentred":
                effect = pm.Deterministic("effect", tau * pm.Normal("z", shape=n_groups))
            elif form == "centred":
                effect = pm.Normal("effect", 0, tau, shape=n_groups)
            else:  # NUTS has no correlation between intercept and effects so
                effect = pm.Normal("mean", b0, tau, shape=n_groups) - b0
            likelihood(b0 + pm.math.dot(x, b) + effect[group])
        return model

    def of_rows(eta):
        if family == "normal":
            pm.Normal("y", eta, pm.HalfNormal("sigma", 2), observed=y)
        else:
            pm.Bernoulli("y", logit_p=eta, observed=y)

    cells, which = np.unique(np.column_stack([group, x]), axis=0, return_inverse=True)
    n, total, squares = (np.bincount(which, weights=w) for w in (np.ones(len(y)), y, y**2))

    def of_cells(eta):
        if family == "normal":
            sigma = pm.HalfNormal("sigma", 2)
            half_squares = (squares - 2 * eta * total + n * eta**2) / 2
            pm.Potential("y", -n * pm.math.log(sigma) - half_squares / sigma**2)
        else:
            pm.Binomial("y", n.astype(int), logit_p=eta, observed=total.astype(int))

    of_counts = model_of(cells[:, 0].astype(int), cells[:, 1:], of_cells, "around the intercept")
    shared = {"b0", "b", "tau", "sigma"}
    moments = {k: v for k, v in by_nuts(of_counts).items() if k.partition("[")[0] in shared}
    form = "noncentred" if noncentred else "centred"
    return model_of(group, x, of_rows, form), moments, {}


def bambi(formula):
    """100,000 binary rows of 2000 groups, and 200 others, in Bambi's own parametrisation."""
    import bambi as bmb
    import pandas as pd

    rng = np.random.default_rng(5)
    g, h = rng.integers(2000, size=100_000), rng.integers(200, size=100_000)
    x = rng.normal(size=len(g))
    made = {"1|g": (0.7, g, 1), "x|g": (0.4, g, x), "1|h": (0.5, h, 1)}
    terms = ["1|g", "x|g"] if "x|g" in formula else ["1|g", "1|h"]
    eta, shared, effects = 0.2 + 0.5 * x, {"Intercept": 0.2, "x": 0.5}, {}
    for term in terms:
        sd, index, slope = made[term]
        effects[term] = rng.normal(0, sd, index.max() + 1)
        eta, shared[f"{term}_sigma"] = eta + slope * effects[term][index], sd
    y = rng.binomial(1, 1 / (1 + np.exp(-eta)))
    names = {"g": [f"g{k:04}" for k in g], "h": [f"h{k:04}" for k in h]}
    data = pd.DataFrame({"y": y, "x": x, **names})
    model = bmb.Model(formula, data, family="bernoulli")
    model.build()
    return model.backend.model, shared, effects


def crossed(n_rows):
    """Rare events of people in cities, four rows a person."""
    rng = np.random.default_rng(10)
    people, cities = n_rows // 4, 200
    i, c = rng.integers(people, size=n_rows), rng.integers(cities, size=n_rows)
    x, a, b = rng.normal(size=n_rows), rng.normal(0, 1, people), rng.normal(0, 0.5, cities)
    y = rng.binomial(1, 1 / (1 + np.exp(3 - 0.5 * x - a[i] - b[c])))
    with pm.Model() as model:
        b0, slope = pm.Normal("b0", 0, 5), pm.Normal("slope", 0, 1)
        person = pm.Normal("person", 0, pm.HalfNormal("s_person", 1), shape=people)
        city = pm.Normal("city", 0, pm.HalfNormal("s_city", 1), shape=cities)
        pm.Bernoulli("y", logit_p=b0 + slope * x + person[i] + city[c], observed=y)
    shared = {"b0": -3.0, "slope": 0.5, "s_person": 1.0, "s_city": 0.5}
    return model, shared, {"person": a, "city": b}


def crossed_rare(n_rows):
    """Rarer events, 1.4%, in 1000 cities."""
    rng = np.random.default_rng(10)
    people, cities = n_rows // 4, 1000
    i, c = rng.integers(people, size=n_rows), rng.integers(cities, size=n_rows)
    X = rng.normal(size=(n_rows, 3))
    a, b = rng.normal(0, 1, people), rng.normal(0, 0.5, cities)
    y = rng.binomial(1, 1 / (1 + np.exp(5 - X @ [0.5, -0.3, 0.0] - a[i] - b[c])))
    with pm.Model() as model:
        b0, beta = pm.Normal("b0", 0, 5), pm.Normal("beta", 0, 1, shape=3)
        s_person, s_city = pm.HalfNormal("s_person", 1), pm.HalfNormal("s_city", 1)
        person = pm.Normal("person", 0, s_person, shape=people)
        city = pm.Normal("city", 0, s_city, shape=cities)
        logit_p = b0 + pm.math.dot(X, beta) + person[i] + city[c]
        pm.Bernoulli("y", logit_p=logit_p, observed=y)
    shared = {"b0": -5.0, "beta": [0.5, -0.3, 0.0], "s_person": 1.0, "s_city": 0.5}
    return model, shared, {"person": a, "city": b}


def demand(n_rows):
    """Poisson sales: elasticities of items in 50 categories, and effects of category and week."""
    rng = np.random.default_rng(4)
    items, categories, weeks = n_rows // 100, 50, 100
    item, week = rng.integers(items, size=n_rows), rng.integers(weeks, size=n_rows)
    category_of = rng.integers(categories, size=items)
    log_price = rng.normal(1, 0.5, items)[item] + rng.normal(0, 0.2, n_rows)
    of_category = rng.normal(-1.5, 0.5, categories)
    of_item = rng.normal(of_category[category_of], 0.4)
    season, level = rng.normal(0, 0.3, (categories, weeks)), rng.normal(2.0, 0.8, items)
    eta = of_item[item] * log_price + season[category_of[item], week] + level[item]
    y = rng.poisson(np.exp(np.clip(eta, -20, 8)))
    with pm.Model() as model:
        mean, s_category = pm.Normal("mean", 0, 2), pm.HalfNormal("s_category", 1)
        b = pm.Normal("of_category", mean, s_category, shape=categories)
        b = pm.Normal("of_item", b[category_of], pm.HalfNormal("s_item", 1), shape=items)
        gamma = pm.Normal("season", 0, pm.HalfNormal("s_season", 1), shape=(categories, weeks))
        delta = pm.Normal(
            "level", pm.Normal("m_level", 0, 3), pm.HalfNormal("s_level", 1), shape=items
        )
        eta = b[item] * log_price + gamma[category_of[item], week] + delta[item]
        pm.Poisson("y", pm.math.exp(eta), observed=y)
    shared = {"mean": -1.5, "s_category": 0.5, "s_item": 0.4, "s_season": 0.3}
    effects = {"of_category": of_category, "of_item": of_item, "season": season, "level": level}
    return model, shared | {"m_level": 2.0, "s_level": 0.8}, effects


def by_nuts(model: pm.Model, start: dict | None = None) -> dict:
    """Means and sds of all elements, of a model that NUTS samples in seconds."""
    settings = {"chains": 4, "cores": 1, "random_seed": 1, "progressbar": False}
    with model:
        nuts = pm.sample(1500, tune=1000, initvals=start, **settings)
    moments = {}
    for variable in nuts.posterior.data_vars:
        draws = nuts.posterior[variable].values.reshape(6000, -1)
        for k in range(draws.shape[1]):
            moments[f"{variable}[{k}]"] = draws[:, k].mean(), draws[:, k].std()
    return moments


def normal_rows(V, D, B, covariance) -> pt.TensorVariable:
    """Log likelihood of rows V ~ N(D B, covariance), from their sums of products alone."""
    squares = V.T @ V - V.T @ D @ B - B.T @ (D.T @ V) + B.T @ (D.T @ D) @ B
    log_det = pt.linalg.slogdet(covariance)[1]
    return -len(V) / 2 * log_det - pt.trace(pt.linalg.solve(covariance, squares)) / 2


def measured(n_rows):
    """A covariate that is measured with error: its true value in each row."""
    rng = np.random.default_rng(22)
    x, z = rng.normal(3, 1.5, n_rows), rng.normal(size=n_rows)
    x_obs, y = rng.normal(x, 0.8), rng.normal(1 + 0.7 * x + 0.3 * z, 1.0)

    def shared():
        mu, spread = pm.Normal("mu", 0, 5), pm.HalfNormal("spread", 5)
        a, b = pm.Normal("a", 0, 5), pm.Normal("b", 0, 2, shape=2)
        return mu, spread, a, b, pm.HalfNormal("sigma", 3)

    with pm.Model() as model:
        mu, spread, a, b, sigma = shared()
        true = pm.Normal("x", mu, spread, shape=n_rows)
        pm.Normal("x_obs", true, 0.8, observed=x_obs)
        pm.Normal("y", a + b[0] * true + b[1] * z, sigma, observed=y)
    with pm.Model() as without_x:
        mu, spread, a, b, sigma = shared()
        slope, diagonal = pt.stack([1.0, b[0]]), pt.diag(pt.stack([0.64, sigma**2]))
        covariance = spread**2 * pt.outer(slope, slope) + diagonal
        B = pt.stack([pt.stack([mu, a + b[0] * mu]), pt.stack([0.0, b[1]])])
        D = np.column_stack([np.ones(n_rows), z])
        pm.Potential("rows", normal_rows(np.column_stack([x_obs, y]), D, B, covariance))
    return model, by_nuts(without_x), {"x": x}


def factors(n_rows):
    """Two factors of eight columns, with scores for each row."""
    rng = np.random.default_rng(4)
    made = rng.normal(size=(8, 2)) * np.tri(8, 2)
    made[[0, 1], [0, 1]] = np.abs(made[[0, 1], [0, 1]]) + 0.3
    scores = rng.normal(size=(n_rows, 2))
    Y = rng.normal(scores @ made.T, 0.5)

    def shared():
        below = np.argwhere(np.tri(8, 2, -1))
        diagonal = pm.HalfNormal("diagonal", 2, shape=2)
        W = pt.zeros((8, 2))[[0, 1], [0, 1]].set(diagonal)
        W = W[below[:, 0], below[:, 1]].set(pm.Normal("loadings", 0, 1, shape=len(below)))
        return W, pm.HalfNormal("sigma", 1)

    with pm.Model() as model:
        W, sigma = shared()
        z = pm.Normal("scores", shape=(n_rows, 2))
        pm.Normal("y", z @ W.T, sigma, observed=Y)
    with pm.Model() as without_scores:
        W, sigma = shared()
        none = np.zeros((n_rows, 1)), np.zeros((1, 8))
        pm.Potential("rows", normal_rows(Y, *none, W @ W.T + sigma**2 * pt.eye(8)))
    start = {"diagonal": made[[0, 1], [0, 1]], "loadings": made[np.tri(8, 2, -1) > 0]}
    return model, by_nuts(without_scores, start), {"scores": scores}


def extra_variation(n_rows):
    """Poisson counts with an effect of each row, non-centred."""
    rng = np.random.default_rng(3)
    X, z = rng.normal(size=(n_rows, 3)), rng.normal(size=n_rows)
    y = rng.poisson(np.exp(0.5 + X @ [0.3, -0.2, 0.1] + 0.6 * z))
    with pm.Model() as model:
        a, b, s = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1, shape=3), pm.HalfNormal("s", 1)
        effect = pm.Normal("z", shape=n_rows)
        pm.Poisson("y", pm.math.exp(a + X @ b + s * effect), observed=y)
    return model, {"a": 0.5, "b": [0.3, -0.2, 0.1], "s": 0.6}, {"z": z}


def latent_classes(n_persons):
    """Three classes of persons with lines of their own, and an intercept of each person."""
    rng = np.random.default_rng(9)
    n, weights = rng.poisson(14, n_persons).clip(3, 25), np.array([0.5, 0.3, 0.2])
    which = rng.choice(3, p=weights, size=n_persons)
    levels, lines = np.array([-1.0, 0.5, 2.0]), np.array([0.8, 0.0, -0.6])
    u = rng.normal(0, 0.4, n_persons)
    time_, seen = rng.uniform(-1, 1, (n_persons, 25)), np.arange(25) < n[:, None]
    mean = (levels[which] + u)[:, None] + lines[which][:, None] * time_
    y = np.where(seen, rng.normal(mean, 1.0), 0.0)

    def shared():
        ordered = pm.distributions.transforms.ordered
        a = pm.Normal("a", 0, 3, shape=3, transform=ordered, initval=[-1.5, 0, 1.5])
        b, w = pm.Normal("b", 0, 2, shape=3), pm.Dirichlet("w", np.ones(3))
        return a, b, w, pm.HalfNormal("sigma", 2), pm.HalfNormal("s", 1)

    with pm.Model(coords={"person": range(n_persons)}) as model:
        a, b, w, sigma, s = shared()
        effect = pm.Normal("u", 0, s, dims="person")
        mu = a + effect[:, None, None] + b * time_[:, :, None]
        log_p = pm.logp(pm.Normal.dist(mu, sigma), y[:, :, None]) * seen[:, :, None]
        pm.Potential("y", pt.logsumexp(pt.log(w) + log_p.sum(axis=1), axis=1), dims="person")
    with pm.Model() as by_hand:
        a, b, w, sigma, s = shared()
        off = (y[:, :, None] - a - b * time_[:, :, None]) * seen[:, :, None]
        count, v = n[:, None].astype(float), sigma**2
        total = v + count * s**2
        q = (off**2).sum(axis=1) / v - s**2 * off.sum(axis=1) ** 2 / (v * total)
        log_p = -(q + (count - 1) * pt.log(v) + pt.log(total)) / 2
        pm.Potential("y", pt.logsumexp(pt.log(w) + log_p, axis=1).sum())
    return model, by_nuts(by_hand), {"u": u}


def with_truth(name):
    """A model of group_posteriors.py, with the moments of its posterior."""
    import group_posteriors

    lines = (TRUTH / f"{name}.txt").read_text().splitlines()[3:]
    moments = {line.split()[0]: tuple(map(float, line.split()[1:])) for line in lines}
    return group_posteriors.POSTERIORS[name].model(), moments, {}


CASES = {
    "groups-intercepts": lambda: with_truth("groups-intercepts"),
    "groups-rasch": lambda: with_truth("groups-rasch"),
    "intercepts-20000": lambda: intercepts(20_000),
    "normal-100000": lambda: normal(100_000),
    "counts-2000": lambda: counts(2000),
    "slopes-2000": lambda: slopes(2000),
    "dose-200": lambda: dose(200),
    "dose-1000": lambda: dose(1000),
    **{
        f"few-{n}-{family}": partial(few, n, family)
        for n in (6, 30, 100, 300)
        for family in ("normal", "binary")
    },
    "few-30-centred": lambda: few(30, "binary", noncentred=False),
    "bambi-slopes": lambda: bambi("y ~ x + (x|g)"),
    "bambi-two": lambda: bambi("y ~ x + (1|g) + (1|h)"),
    "crossed": lambda: crossed(20_000),
    "crossed-rare": lambda: crossed_rare(40_000),
    "demand-50000": lambda: demand(50_000),
    "measured-20000": lambda: measured(20_000),
    "factors-5000": lambda: factors(5000),
    "variation-20000": lambda: extra_variation(20_000),
    "two-kinds-2000": lambda: two_kinds(2000),
    "two-kinds-50000": lambda: two_kinds(50_000),
    "visits-20000": lambda: visits(20_000),
    "classes-1000": lambda: latent_classes(1000),
}


def errors(posterior, shared) -> tuple[float, float]:
    """The largest error in sds, and the ratio of sds that is farthest from 1."""
    worst, ratios = 0.0, [1.0]
    for name, truth in shared.items():
        variable, _, element = name.partition("[")
        draws = posterior[variable].values.reshape(-1, *posterior[variable].shape[2:])
        mean, sd = draws.mean(axis=0), draws.std(axis=0)
        if isinstance(truth, tuple):
            k = int(element.rstrip("]"))
            mean, ratio = np.ravel(mean)[k], np.ravel(sd)[k] / truth[1]
            truth, sd = truth
            ratios.append(float(ratio))
        worst = max(worst, float(np.max(np.abs(mean - truth) / sd)))
    return worst, max(ratios, key=lambda r: abs(np.log(r)))


def run(name: str, seed: int) -> dict:
    import pymc_sgmcmc as sgm

    model, shared, effects = CASES[name]()
    began, cpu = time.perf_counter(), time.process_time()
    with model:
        tree = sgm.sample(random_seed=seed, progressbar=False)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    covered = []
    for variable, truth in effects.items():
        if variable in tree.posterior:
            draws = tree.posterior[variable].values
            low, high = np.quantile(draws.reshape(-1, *draws.shape[2:]), [0.05, 0.95], axis=0)
        else:  # too many draws: there are moments
            mean, sd = (
                tree.effects[f"{variable}_mean"].values,
                tree.effects[f"{variable}_sd"].values,
            )
            low, high = mean - 1.645 * sd, mean + 1.645 * sd
        covered.append(float(np.mean((low < truth) & (truth < high))))
    worst, ratio = errors(tree.posterior, shared)
    attrs = tree.posterior.attrs
    return {
        "case": name,
        "seed": seed,
        "s": round(seconds),
        "CPU s": round(cpu),
        "warm-up": round(attrs["data_passes_warmup"]),
        "passes": round(attrs["data_passes"]),
        "verdict": tree["diagnosis"].attrs["verdict"],
        "error": round(worst, 2),
        "sd": round(ratio, 2),
        "coverage": " ".join(f"{c:.3f}" for c in covered),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--limit", type=int, default=900, help="seconds for a case")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "integrated.txt")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run(args.one[0], int(args.one[1]))))
        return
    lines = [f"{' '.join(['python', 'benchmarks/integrated.py', *sys.argv[1:]])}   "
             f"({time.strftime('%Y-%m-%d')}, pymc {pm.__version__}, 2 cores)"]  # fmt: skip
    rows = []
    for name in args.only:
        for seed in args.seeds:
            command = [sys.executable, __file__, "--one", name, str(seed)]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=args.limit
                )
            except subprocess.TimeoutExpired:
                rows.append({"case": name, "seed": seed, "s": f"no result in {args.limit} s"})
            else:
                if done.returncode:
                    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                    rows.append({"case": name, "seed": seed, "s": f"failed: {last}"})
                else:
                    rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1], flush=True)
            args.out.write_text("\n".join([*lines, *table(rows)]) + "\n", encoding="utf-8")


def table(rows: list[dict]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
            for row in cells]  # fmt: skip


if __name__ == "__main__":
    main()
