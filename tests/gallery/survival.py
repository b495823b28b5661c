"""Times until an event, censored, truncated, or counted by interval."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.forms import accepted
from gallery.rows import (
    BINARY,
    COORDS,
    COUNT,
    FEATURES,
    N_NEW,
    NEW_ROWS,
    POSITIVE,
    REAL,
    N,
    X,
    new_rows,
)

LIMIT = POSITIVE + (BINARY == 1)
"""When each row's observation ends: at its value where it is censored."""
INTERVALS = 4
EDGES = np.array([0.0, 0.6, 1.2, 1.8])


def _exposure(time):
    """Time that each individual spends in each interval."""
    return np.clip(time[:, None] - EDGES, 0, 0.6)


def _deaths(time, event):
    """Whether an individual's event happens in an interval."""
    last = (time[:, None] > EDGES).sum(axis=1) - 1
    return (np.arange(INTERVALS) == last[:, None]) * event[:, None]


@accepted("obs")
def weibull_potential():
    """Observed events have a density, the others survive."""
    with pm.Model(coords=COORDS) as model:
        event, time = pm.Data("event", BINARY, dims="obs"), pm.Data("time", POSITIVE, dims="obs")
        alpha, beta = pm.Gamma("alpha", 2, 1), pm.Normal("beta", 0, 1, shape=FEATURES)
        scale = pm.math.exp(pm.math.dot(X, beta))
        log_hazard = pt.log(alpha / scale) + (alpha - 1) * pt.log(time / scale)
        pm.Potential("fit", event * log_hazard - (time / scale) ** alpha, dims="obs")
    return model


@accepted()
def weibull_custom_distribution():
    def logp(value, alpha, scale, event):
        log_hazard = pt.log(alpha / scale) + (alpha - 1) * pt.log(value / scale)
        return event * log_hazard - (value / scale) ** alpha

    with pm.Model() as model:
        alpha, beta = pm.Gamma("alpha", 2, 1), pm.Normal("beta", 0, 1, shape=FEATURES)
        scale = pm.math.exp(pm.math.dot(X, beta))
        pm.CustomDist("time", alpha, scale, BINARY, logp=logp, observed=POSITIVE)
    return model


@accepted()
def censored_constant_bounds():
    with pm.Model() as model:
        mu = pm.math.dot(X, pm.Normal("w", 0, 1, shape=FEATURES))
        latent = pm.Normal.dist(mu, pm.HalfNormal("sigma", 1))
        pm.Censored("y", latent, lower=-1.0, upper=1.0, observed=np.clip(REAL, -1, 1))
    return model


@accepted()
def censored_upper_by_row():
    with pm.Model() as model:
        scale = pm.math.exp(pm.math.dot(X, pm.Normal("w", 0, 1, shape=FEATURES)))
        latent = pm.Weibull.dist(pm.Gamma("alpha", 2, 1), scale)
        upper = np.where(BINARY == 1, np.inf, POSITIVE)
        pm.Censored("y", latent, lower=None, upper=upper, observed=POSITIVE)
    return model


@accepted("obs", new_data=new_rows(upper="positive", target="positive"))
def censored_upper_on_data():
    with pm.Model(coords=COORDS) as model:
        upper = pm.Data("upper", LIMIT, dims="obs")
        target = pm.Data("target", POSITIVE, dims="obs")
        latent = pm.Exponential.dist(pm.Gamma("rate", 2, 1))
        pm.Censored("y", latent, lower=None, upper=upper, observed=target, dims="obs")
    return model


@accepted()
def truncated_constant_bounds():
    with pm.Model() as model:
        mu = pm.math.dot(X, pm.Normal("w", 0, 1, shape=FEATURES))
        parent = pm.Normal.dist(mu, pm.HalfNormal("sigma", 1))
        pm.Truncated("y", parent, lower=-1.5, upper=1.5, observed=np.clip(REAL, -1.4, 1.4))
    return model


@accepted()
def truncated_normal():
    """One of its bounds is infinite."""
    with pm.Model() as model:
        mu = pm.math.dot(X, pm.Normal("w", 0, 1, shape=FEATURES))
        sigma = pm.HalfNormal("sigma", 1)
        pm.TruncatedNormal("y", mu, sigma, lower=0, observed=POSITIVE)
    return model


@accepted()
def truncated_from_above():
    with pm.Model() as model:
        mu = pm.math.dot(X, pm.Normal("w", 0, 1, shape=FEATURES))
        parent = pm.Normal.dist(mu, pm.HalfNormal("sigma", 1))
        pm.Truncated("y", parent, upper=3.0, observed=np.minimum(REAL, 2.9))
    return model


@accepted()
def truncated_gamma():
    with pm.Model() as model:
        mu, alpha = pm.math.exp(pm.math.dot(X, pm.Normal("w", shape=FEATURES))), 2.0
        parent = pm.Gamma.dist(alpha=alpha, beta=alpha / mu)
        pm.Truncated("y", parent, upper=6.0, observed=np.minimum(POSITIVE, 5.5))
    return model


@accepted()
def truncated_poisson():
    """Zeros are never seen."""
    with pm.Model() as model:
        mu = pm.math.exp(pm.math.dot(X, pm.Normal("w", 0, 1, shape=FEATURES)))
        pm.Truncated("y", pm.Poisson.dist(mu), lower=1, observed=COUNT + 1)
    return model


@accepted("individual")
def cox_as_poisson():
    """Individuals x intervals; the intervals have a free hazard each."""
    coords = {"individual": range(N), "interval": range(INTERVALS)}
    exposure, deaths = _exposure(POSITIVE) + 1e-3, _deaths(POSITIVE, BINARY)
    with pm.Model(coords=coords) as model:
        hazard = pm.Gamma("hazard", 1, 1, dims="interval")
        beta = pm.Normal("beta", 0, 1)
        risk = pt.outer(pt.exp(beta * X[:, 0]), hazard)
        pm.Poisson("deaths", exposure * risk, observed=deaths, dims=("individual", "interval"))
    return model


def _new_individuals():
    time, event = NEW_ROWS["positive"], NEW_ROWS["binary"]
    return {
        "treated": NEW_ROWS["unit"],
        "exposure": _exposure(time) + 1e-3,
        "events": _deaths(time, event),
        "coords": {"individual": range(N_NEW)},
    }


@accepted("individual", new_data=_new_individuals)
def cox_as_poisson_on_data():
    coords = {"individual": range(N), "interval": range(INTERVALS)}
    dims = ("individual", "interval")
    with pm.Model(coords=coords) as model:
        treated = pm.Data("treated", X[:, 0], dims="individual")
        exposure = pm.Data("exposure", _exposure(POSITIVE) + 1e-3, dims=dims)
        events = pm.Data("events", _deaths(POSITIVE, BINARY), dims=dims)
        hazard = pm.Gamma("hazard", 1, 1, dims="interval")
        beta = pm.Normal("beta", 0, pm.HalfNormal("sd", 1), dims="interval")
        risk = pt.exp(treated[:, None] * beta) * hazard
        pm.Poisson("deaths", exposure * risk, observed=events, dims=dims)
    return model
