"""Rows that depend on those before them, and rows that only look as if they did."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.forms import DEPENDENT, accepted, refused
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


@refused("y", cause=DEPENDENT, remedy="batch_size=None")
def sums_over_earlier_rows():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        mu = pt.cumsum(x @ pm.Normal("w", 0, 1, dims="feature"))
        pm.Normal("y", mu, 1, observed=REAL, dims="obs")
    return model
