"""Regressions with one linear predictor and families of all kinds."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.forms import accepted
from gallery.rows import (
    BINARY,
    COORDS,
    COUNT,
    FEATURES,
    POSITIVE,
    REAL,
    TABLE,
    TRIALS,
    N,
    X,
    new_rows,
)


@accepted("obs", new_data=new_rows(x="x", target="real"))
def linear():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        target = pm.Data("target", REAL, dims="obs")
        w = pm.Normal("w", 0, 3, dims="feature")
        b = pm.Normal("b", 0, 3)
        sigma = pm.HalfNormal("sigma", 2)
        mu = pm.Deterministic("mu", x @ w + b, dims="obs")
        pm.Normal("y", mu, sigma, observed=target, dims="obs")
    return model


@accepted("obs", new_data=new_rows(x="x", target="binary"))
def logistic():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        target = pm.Data("target", BINARY, dims="obs")
        w = pm.Normal("w", 0, 3, dims="feature")
        pm.Bernoulli("y", logit_p=x @ w, observed=target, dims="obs")
    return model


@accepted()
def robust_student_t():
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 5)
        nu = pm.Gamma("nu", 2, 0.1)
        scale = pm.HalfCauchy("scale", 2)
        pm.StudentT("y", nu=nu, mu=slope * X[:, 0], sigma=scale, observed=REAL)
    return model


@accepted("obs", new_data=new_rows(x="x", exposure="positive", target="count"))
def negative_binomial_with_offset():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        exposure = pm.Data("exposure", POSITIVE, dims="obs")
        target = pm.Data("target", COUNT, dims="obs")
        w = pm.Normal("w", 0, 1, dims="feature")
        alpha = pm.Exponential("alpha", 1)
        mu = pm.math.exp(x @ w + pm.math.log(exposure))
        pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=target, dims="obs")
    return model


@accepted()
def beta_binomial_with_trials():
    with pm.Model() as model:
        p = pm.math.sigmoid(pm.math.dot(X, pm.Normal("w", 0, 1, shape=FEATURES)))
        kappa = pm.Exponential("kappa", 0.1)
        pm.BetaBinomial("y", n=TRIALS, alpha=p * kappa, beta=(1 - p) * kappa, observed=TRIALS // 2)
    return model


@accepted()
def multinomial():
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=(FEATURES, TABLE.shape[1]))
        p = pm.math.softmax(pt.dot(X, w), axis=-1)
        pm.Multinomial("y", n=TABLE.sum(axis=1), p=p, observed=TABLE)
    return model


@accepted()
def dirichlet_multinomial():
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=(FEATURES, TABLE.shape[1]))
        a = pm.math.exp(pt.dot(X, w))
        pm.DirichletMultinomial("y", n=TABLE.sum(axis=1), a=a, observed=TABLE)
    return model


@accepted()
def several_outcomes_that_correlate():
    """Rows are draws of one multivariate normal."""
    outcomes = np.column_stack([REAL, X[:, 0] + 0.1 * REAL])
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=(FEATURES, 2))
        chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2))
        pm.MvNormal("y", pm.math.dot(X, w), chol=chol, observed=outcomes)
    return model


@accepted()
def thirty_four_scalars():
    """Summed in one expression: a universal function of NumPy takes 32 operands."""
    columns = np.random.default_rng(3).normal(size=(34, N))
    with pm.Model() as model:
        mu = sum(pm.Normal(f"w{k}", 0, 1) * column for k, column in enumerate(columns))
        pm.Normal("y", mu, 1, observed=REAL)
    return model
