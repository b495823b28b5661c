"""Free variables with an element for each row."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.forms import LOCAL, refused
from gallery.rows import BINARY, CLASSES, COORDS, COUNT, REAL, TABLE, TRIALS, N, X

SD = np.linspace(0.5, 1.5, N)


@refused("theta", cause=LOCAL, remedy="latents=|batch_size=None")
def eight_schools_centred():
    with pm.Model(coords={"school": range(N)}) as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Normal("y", theta, SD, observed=REAL, dims="school")
    return model


@refused("theta", cause=LOCAL, remedy="latents=|batch_size=None")
def eight_schools_centred_without_dims():
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, shape=N)
        pm.Normal("y", theta, SD, observed=REAL)
    return model


@refused("z", cause=LOCAL, remedy="latents=|batch_size=None")
def eight_schools_noncentred():
    with pm.Model(coords={"school": range(N)}) as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        z = pm.Normal("z", 0, 1, dims="school")
        theta = pm.Deterministic("theta", mu + tau * z, dims="school")
        pm.Normal("y", theta, SD, observed=REAL, dims="school")
    return model


@refused("theta", cause=LOCAL, remedy="latents=|batch_size=None")
def rat_tumours():
    """A rate for each row of a binomial."""
    with pm.Model() as model:
        a, b = pm.Gamma("a", 2, 1), pm.Gamma("b", 2, 1)
        theta = pm.Beta("theta", a, b, shape=N)
        pm.Binomial("y", n=TRIALS, p=theta, observed=TRIALS // 2)
    return model


@refused("true_x", cause=LOCAL, remedy="latents=|batch_size=None")
def errors_in_variables():
    with pm.Model(coords=COORDS) as model:
        true_x = pm.Normal("true_x", 0, 1, dims="obs")
        pm.Normal("x", true_x, 0.3, observed=X[:, 0], dims="obs")
        pm.Normal("y", pm.Normal("b") * true_x, 1, observed=REAL, dims="obs")
    return model


@refused("ability", cause=LOCAL, remedy="latents=|batch_size=None")
def item_response_wide():
    """A table of persons x items; each person is a row with an ability of their own."""
    answers = np.random.default_rng(6).integers(2, size=(N, 7))
    with pm.Model(coords={"person": range(N), "item": range(7)}) as model:
        ability = pm.Normal("ability", 0, 1, dims="person")
        difficulty = pm.Normal("difficulty", 0, 1, dims="item")
        logit = ability[:, None] - difficulty
        pm.Bernoulli("y", logit_p=logit, observed=answers, dims=("person", "item"))
    return model


@refused("ability", cause=LOCAL, remedy="latents=|batch_size=None")
def item_response_wide_without_dims():
    answers = np.random.default_rng(6).integers(2, size=(N, 7))
    with pm.Model() as model:
        ability = pm.Normal("ability", 0, 1, shape=(N, 1))
        difficulty = pm.Normal("difficulty", 0, 1, shape=7)
        pm.Bernoulli("y", logit_p=ability - difficulty, observed=answers)
    return model


@refused("scores", cause=LOCAL, remedy="latents=|batch_size=None")
def probabilistic_pca_explicit():
    with pm.Model(coords={**COORDS, "part": range(2)}) as model:
        w = pm.Normal("w", 0, 1, dims=("feature", "part"))
        scores = pm.Normal("scores", 0, 1, dims=("obs", "part"))
        pm.Normal("y", scores @ w.T, 1, observed=X, dims=("obs", "feature"))
    return model


@refused("z", cause="discrete", remedy="latents=")
def mixture_with_assignments():
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(CLASSES))
        mu = pm.Normal("mu", 0, 2, shape=CLASSES)
        z = pm.Categorical("z", p=p, shape=N)
        pm.Normal("y", mu[z], 1, observed=REAL)
    return model


@refused("is_outlier", cause="discrete", remedy="latents=")
def outliers_explicit():
    with pm.Model(coords=COORDS) as model:
        slope, spread = pm.Normal("slope", 0, 2), pm.HalfNormal("spread", 5)
        share = pm.Beta("share", 2, 8)
        is_outlier = pm.Bernoulli("is_outlier", share, dims="obs")
        good = pm.logp(pm.Normal.dist(slope * X[:, 0], 0.5), REAL)
        bad = pm.logp(pm.Normal.dist(0, 0.5 + spread), REAL)
        pm.Potential("y", pt.switch(is_outlier, bad, good), dims="obs")
    return model


@refused("occupied", cause="discrete", remedy="latents=")
def occupancy():
    with pm.Model(coords=COORDS) as model:
        occupied = pm.Bernoulli("occupied", pm.Beta("psi", 1, 1), dims="obs")
        p = pm.Beta("p", 1, 1)
        pm.Binomial("y", n=9, p=occupied * p, observed=COUNT * BINARY, dims="obs")
    return model


@refused("p", cause=LOCAL, remedy="latents=|batch_size=None")
def dirichlet_multinomial_explicit():
    with pm.Model(coords=COORDS) as model:
        frac = pm.Dirichlet("frac", np.ones(CLASSES))
        conc = pm.LogNormal("conc", 1, 1)
        p = pm.Dirichlet("p", frac * conc, dims=("obs", "class"))
        pm.Multinomial("y", n=9, p=p, observed=TABLE, dims=("obs", "class"))
    return model
