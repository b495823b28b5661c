"""Rows that depend on those before them, and rows that only look as if they did."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.forms import DEPENDENT, LOCAL, SPANS, accepted, refused
from gallery.rows import COORDS, REAL, N, X

LAGGED = np.column_stack([np.roll(REAL, 1), np.roll(REAL, 2)])
DATES = {"date": np.arange(N)}


@accepted()
def autoregression_by_hand():
    """The values before are columns of predictors."""
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 0.5, shape=2)
        mu = pm.Normal("c") + pm.math.dot(LAGGED, rho)
        pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=REAL)
    return model


@accepted("date")
def trend_and_seasons():
    """Fourier columns of the date."""
    t = np.arange(N) / N
    waves = np.column_stack([np.sin(6 * t), np.cos(6 * t)])
    with pm.Model(coords={**DATES, "wave": ["sin", "cos"]}) as model:
        day, fourier = (
            pm.Data("day", t, dims="date"),
            pm.Data("fourier", waves, dims=("date", "wave")),
        )
        mu = pm.Normal("a") + pm.Normal("b") * day + fourier @ pm.Normal("w", 0, 1, dims="wave")
        pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=REAL, dims="date")
    return model


@refused("y", cause=SPANS, remedy="batch_size=None")
def autoregression():
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 0.5, shape=2)
        start = pm.Normal.dist(0, 1, shape=2)
        pm.AR("y", rho=rho, sigma=pm.HalfNormal("sigma", 1), init_dist=start, observed=REAL)
    return model


@refused("y", cause=SPANS, remedy="batch_size=None")
def autoregression_with_dims():
    with pm.Model(coords=DATES) as model:
        rho = pm.Normal("rho", 0, 0.5, shape=2)
        start = pm.Normal.dist(0, 1, shape=2)
        sigma = pm.HalfNormal("sigma", 1)
        pm.AR("y", rho=rho, sigma=sigma, init_dist=start, observed=REAL, dims="date")
    return model


@refused("y", cause=SPANS, remedy="batch_size=None")
def random_walk_observed():
    with pm.Model(coords=DATES) as model:
        sigma = pm.HalfNormal("sigma", 1)
        start = pm.Normal.dist(0, 1)
        pm.GaussianRandomWalk("y", sigma=sigma, init_dist=start, observed=REAL, dims="date")
    return model


@refused("level", cause=LOCAL, remedy="batch_size=None|latents=")
def local_level():
    with pm.Model() as model:
        start = pm.Normal.dist(0, 1)
        level = pm.GaussianRandomWalk(
            "level", sigma=pm.HalfNormal("drift", 1), init_dist=start, shape=N
        )
        pm.Normal("y", level, pm.HalfNormal("sigma", 1), observed=REAL)
    return model


@refused("level", cause=LOCAL, remedy="batch_size=None|latents=")
def local_level_with_dims():
    with pm.Model(coords=DATES) as model:
        start = pm.Normal.dist(0, 1)
        level = pm.GaussianRandomWalk(
            "level", sigma=pm.HalfNormal("drift", 1), init_dist=start, dims="date"
        )
        pm.Normal("y", level, pm.HalfNormal("sigma", 1), observed=REAL, dims="date")
    return model


@refused("step", cause=LOCAL, remedy="batch_size=None|latents=")
def local_level_by_cumulative_sum():
    with pm.Model(coords=DATES) as model:
        step = pm.Normal("step", 0, 1, dims="date")
        pm.Normal("y", step.cumsum(), pm.HalfNormal("sigma", 1), observed=REAL, dims="date")
    return model


@refused("volatility", cause=LOCAL, remedy="batch_size=None|latents=")
def stochastic_volatility():
    with pm.Model(coords=DATES) as model:
        start = pm.Normal.dist(0, 1)
        volatility = pm.GaussianRandomWalk(
            "volatility", sigma=pm.Exponential("step", 10), init_dist=start, dims="date"
        )
        nu = pm.Exponential("nu", 0.1)
        scale = pm.math.exp(volatility)
        pm.StudentT("returns", nu=nu, sigma=scale, observed=REAL, dims="date")
    return model


@refused("sales", cause=DEPENDENT, remedy="batch_size=None")
def adstock():
    """Advertising works on in the weeks after."""
    with pm.Model(coords={**DATES, "channel": ["tv", "web", "radio"]}) as model:
        spend = pm.Data("spend", np.abs(X), dims=("date", "channel"))
        decay = pm.Beta("decay", 2, 2, dims="channel")
        lagged = [pt.concatenate([pt.zeros((k, 3)), spend[: N - k]]) for k in range(4)]
        carried = sum(decay**k * part for k, part in enumerate(lagged))
        mu = carried @ pm.HalfNormal("beta", 1, dims="channel")
        pm.Normal("sales", mu, pm.HalfNormal("sigma", 1), observed=REAL, dims="date")
    return model


@refused("sales", cause=DEPENDENT, remedy="batch_size=None")
def adstock_without_dims():
    """The same by a matrix of weights of N x N."""
    lag = np.arange(N)[:, None] - np.arange(N)
    with pm.Model() as model:
        decay = pm.Beta("decay", 2, 2)
        weights = pt.switch(lag >= 0, decay ** np.abs(lag), 0.0)
        mu = pm.HalfNormal("beta", 1) * pt.dot(weights, np.abs(X[:, 0]))
        pm.Normal("sales", mu, pm.HalfNormal("sigma", 1), observed=REAL)
    return model


@refused("y", cause=DEPENDENT, remedy="batch_size=None")
def sums_over_earlier_rows():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        mu = pt.cumsum(x @ pm.Normal("w", 0, 1, dims="feature"))
        pm.Normal("y", mu, 1, observed=REAL, dims="obs")
    return model
