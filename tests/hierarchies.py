"""Small hierarchies with local variables, of all forms that a model writes them in.

Each function returns a model of `N` rows; `LOCAL` lists them with the variables that are local.
"""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pymc_sgmcmc.gradients.arrays import PYTHON

N = 7
rng = np.random.default_rng(11)
GROUP = np.array([3, 0, 2, 3, 3, 2, 1])
"""Of 4 groups; 3 has three rows."""
OTHER = np.array([0, 1, 1, 4, 2, 3, 0])
"""Crossed with it, of 5."""
DISTRICT = np.array([0, 1, 1, 0])[GROUP]
"""Of 2, in which the 4 groups lie."""
Y = rng.normal(size=N)
X = rng.normal(size=N)
COUNTS = rng.poisson(2.0, size=N)
COORDS = {"obs": range(N), "group": list("pqrs"), "effect": ["a", "b"]}


def evaluated(model, outputs, point):
    """Expressions of a model's value variables, at a point."""
    function = pytensor.function(model.value_vars, outputs, mode=PYTHON, on_unused_input="ignore")
    return function(*(point[v.name] for v in model.value_vars))


def fixed_scales():
    with pm.Model() as model:
        alpha = pm.Normal("alpha", pm.Normal("mu"), 0.7, shape=4)
        pm.Normal("y", alpha[GROUP], 1, observed=Y)
    return model


def centred():
    with pm.Model(coords=COORDS) as model:
        group = pm.Data("group_of_row", GROUP, dims="obs")
        alpha = pm.Normal("alpha", pm.Normal("mu"), pm.HalfNormal("tau"), dims="group")
        pm.Normal("y", alpha[group], pm.Exponential("sigma", 1), observed=Y, dims="obs")
    return model


def noncentred():
    with pm.Model() as model:
        z = pm.Normal("z", shape=4)
        alpha = pm.Deterministic("alpha", pm.Normal("mu") + pm.HalfNormal("tau") * z)
        pm.Normal("y", alpha[GROUP] + pm.Normal("b") * X, observed=Y)
    return model


def group_predictor():
    """The groups' own data, in the prior and in the likelihood; indices from the end."""
    with pm.Model(coords=COORDS) as model:
        level = pm.Data("level", np.array([0.3, -1.0, 0.5, 2.0]), dims="group")
        group = pm.Data("group_of_row", GROUP - 4, dims="obs")
        alpha = pm.Normal("alpha", pm.Normal("gamma") * level, 0.7, dims="group")
        mu = alpha[group] + pm.Normal("b") * level[group] * X
        pm.Normal("y", mu, observed=Y, dims="obs")
    return model


def transformed():
    """Two variables of the same groups, one in the other's prior."""
    with pm.Model() as model:
        shape = pm.Gamma("shape", 2, 1, shape=4)
        rate = pm.Gamma("rate", shape, pm.HalfNormal("beta"), shape=4)
        pm.Poisson("y", rate[GROUP], observed=COUNTS)
    return model


def lkj_rows():
    with pm.Model() as model:
        sd = pm.Exponential.dist(1, shape=2)
        chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=sd)
        ab = pm.MvNormal("ab", mu=pm.Normal("mu", shape=2), chol=chol, shape=(4, 2))
        pm.Normal("y", ab[GROUP, 0] + ab[GROUP, 1] * X, observed=Y)
    return model


def lkj_noncentred():
    with pm.Model(coords=COORDS) as model:
        group = pm.Data("group_of_row", GROUP, dims="obs")
        sd = pm.Exponential.dist(1, shape=2)
        chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=sd)
        z = pm.Normal("z", dims=("effect", "group"))
        ab = pm.Deterministic("ab", pt.dot(chol, z).T, dims=("group", "effect"))
        pm.Normal("y", ab[group, 0] + ab[group, 1] * X, observed=Y, dims="obs")
    return model


def crossed():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        u = pm.Normal("u", 0, scale, shape=(4, 2))
        v = pm.Normal("v", 0, 1, shape=(5, 2))
        bias = pm.Normal("bias", pm.Normal("mu"), 1, shape=5)
        pm.Normal("y", (u[GROUP] * v[OTHER]).sum(axis=-1) + bias[OTHER], observed=Y)
    return model


def nested():
    """Both levels looked up by rows."""
    with pm.Model() as model:
        school = pm.Normal("school", 0, pm.HalfNormal("tau"), shape=4)
        district = pm.Normal("district", pm.Normal("mu"), pm.HalfNormal("scale"), shape=2)
        pm.Normal("y", school[GROUP] + district[DISTRICT], pm.HalfNormal("sigma"), observed=Y)
    return model


def two_likelihoods():
    """Rows of their own, groups of their own."""
    with pm.Model(coords={"first": range(4), "second": range(3)}) as model:
        alpha = pm.Normal("alpha", pm.Normal("mu"), 0.7, shape=3)
        beta = pm.Normal("beta", 0, pm.HalfNormal("tau"), shape=2)
        pm.Normal("y", alpha[np.array([2, 0, 1, 2])], 1, observed=Y[:4], dims="first")
        rate = pt.exp(beta[np.array([1, 0, 1])])
        pm.Poisson("counts", rate, observed=COUNTS[:3], dims="second")
    return model


def hurdle():
    """Rows of two kinds look up the same effects: whether there is an amount, and the amount."""
    some = COUNTS > 1
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, pm.HalfNormal("tau"), shape=4)
        eta = pm.Normal("mu") + alpha[GROUP] + 0.4 * X
        pm.Bernoulli("any", logit_p=eta, observed=some.astype(int))
        group = pm.Data("group_of_amount", GROUP[some])  # of another integer type
        mean = pm.Normal("b", shape=2)[0] - 0.7 * alpha[group] + X[some]
        pm.Normal("amount", mean, pm.HalfNormal("sigma"), observed=Y[some])
    return model


def visits_and_survival():
    """Visits look up their persons' effects; each person has one time of survival."""
    time, censored = np.array([0.4, 2.0, 1.1, 3.0]), np.array([0, 1, 0, 1])
    with pm.Model() as model:
        alpha = pm.Normal("alpha", pm.Normal("mu"), pm.HalfNormal("tau"), shape=4)
        pm.Normal("y", alpha[GROUP] + pm.Normal("b") * X, 0.8, observed=Y)
        log_rate = pm.Normal("level") + pm.Normal("slope") * alpha
        pm.Potential("survival", ((1 - censored) * log_rate - pt.exp(log_rate) * time).sum())
    return model


LOCAL = {
    "centred": ["alpha"],
    "noncentred": ["z"],
    "group_predictor": ["alpha"],
    "transformed": ["shape", "rate"],
    "lkj_rows": ["ab"],
    "lkj_noncentred": ["z"],
    "crossed": ["u", "v", "bias"],
    "nested": ["school", "district"],
    "two_likelihoods": ["alpha", "beta"],
}
