"""Mixtures with the component summed out, hurdles and too many zeros."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.forms import accepted
from gallery.rows import COORDS, COUNT, FEATURES, REAL, WITH_ZEROS, X, new_rows


@accepted()
def normal_mixture():
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(3))
        mu = pm.Normal("mu", [-2.0, 0.0, 2.0], 2, shape=3)
        pm.NormalMixture("y", w=w, mu=mu, sigma=pm.HalfNormal("sigma", 1, shape=3), observed=REAL)
    return model


@accepted("obs", new_data=new_rows(target="real"))
def mixture_of_components():
    with pm.Model(coords=COORDS) as model:
        target = pm.Data("target", REAL, dims="obs")
        w = pm.Dirichlet("w", np.ones(3))
        mu = pm.Normal("mu", [-2.0, 0.0, 2.0], 2, shape=3)
        components = pm.Normal.dist(mu=mu, sigma=pm.HalfNormal("sigma", 1), shape=3)
        pm.Mixture("y", w=w, comp_dists=components, observed=target, dims="obs")
    return model


@accepted()
def mixture_of_regressions():
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        slopes = pm.Normal("slopes", 0, 1, shape=(FEATURES, 2))
        mu = pm.math.dot(X, slopes)
        pm.NormalMixture("y", w=w, mu=mu, sigma=pm.HalfNormal("sigma", 1), observed=REAL)
    return model


@accepted()
def weights_by_row():
    with pm.Model() as model:
        gate = pm.Normal("gate", 0, 1, shape=(FEATURES, 2))
        w = pm.math.softmax(pt.dot(X, gate), axis=-1)
        mu = pm.Normal("mu", [-1.0, 1.0], 1, shape=2)
        pm.NormalMixture("y", w=w, mu=mu, sigma=1.0, observed=REAL)
    return model


@accepted("obs")
def outliers_marginalised():
    """Good and bad points, weighted in a potential."""
    with pm.Model(coords=COORDS) as model:
        slope, spread = pm.Normal("slope", 0, 2), pm.HalfNormal("spread", 5)
        share = pm.Beta("share", 2, 8)
        good = pm.logp(pm.Normal.dist(slope * X[:, 0], 0.5), REAL)
        bad = pm.logp(pm.Normal.dist(0, 0.5 + spread), REAL)
        logp = pm.math.logaddexp(pm.math.log1p(-share) + good, pm.math.log(share) + bad)
        pm.Potential("y", logp, dims="obs")
    return model


@accepted()
def zero_inflated_poisson():
    with pm.Model() as model:
        mu = pm.math.exp(pm.math.dot(X, pm.Normal("w", 0, 1, shape=FEATURES)))
        pm.ZeroInflatedPoisson("y", psi=pm.Beta("psi", 1, 1), mu=mu, observed=COUNT)
    return model


@accepted()
def zero_inflated_poisson_with_predictors():
    with pm.Model() as model:
        mu = pm.math.exp(pm.math.dot(X, pm.Normal("w", 0, 1, shape=FEATURES)))
        psi = pm.math.sigmoid(pm.math.dot(X, pm.Normal("v", 0, 1, shape=FEATURES)))
        pm.ZeroInflatedPoisson("y", psi=psi, mu=mu, observed=COUNT)
    return model


@accepted()
def hurdle_gamma():
    with pm.Model() as model:
        alpha, beta = pm.Gamma("alpha", 2, 1), pm.Gamma("beta", 2, 1)
        pm.HurdleGamma("y", psi=pm.Beta("psi", 1, 1), alpha=alpha, beta=beta, observed=WITH_ZEROS)
    return model


@accepted()
def hurdle_negative_binomial_with_predictors():
    with pm.Model() as model:
        mu = pm.math.exp(pm.math.dot(X, pm.Normal("w", 0, 1, shape=FEATURES)))
        psi = pm.math.sigmoid(pm.math.dot(X, pm.Normal("v", 0, 1, shape=FEATURES)))
        alpha = pm.Exponential("alpha", 1)
        pm.HurdleNegativeBinomial("y", psi=psi, mu=mu, alpha=alpha, observed=COUNT)
    return model
