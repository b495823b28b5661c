"""Values that are not there."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.forms import DEPENDENT, refused
from gallery.rows import COORDS, REAL, N, X

GONE = np.arange(N) % 7 == 3


@refused("y", cause="missing", remedy="[Dd]rop|[Ii]mpute")
def masked_outcome():
    with pm.Model() as model:
        mu = pm.Normal("a") + pm.Normal("b") * X[:, 0]
        pm.Normal("y", mu, 1, observed=np.ma.masked_array(REAL, GONE))
    return model


@refused("y", cause="missing", remedy="[Dd]rop|[Ii]mpute")
def nan_outcome():
    with pm.Model(coords=COORDS) as model:
        pm.Normal("y", pm.Normal("a"), 1, observed=np.where(GONE, np.nan, REAL), dims="obs")
    return model


@refused("x", cause="NaN", remedy="[Dd]rop|[Ii]mpute")
def nan_predictor():
    with pm.Model(coords=COORDS) as model:
        x = pt.constant(np.where(GONE, np.nan, REAL), name="x")
        pm.Normal("y", pm.Normal("b") * x, 1, observed=REAL, dims="obs")
    return model


@refused("x", cause="missing", remedy="[Dd]rop|[Ii]mpute|latents=")
def imputed_predictor():
    """Predictors with a distribution of their own, some of them masked."""
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("m"), 1, observed=np.ma.masked_array(X[:, 0], GONE))
        pm.Normal("y", pm.Normal("b") * x, 1, observed=REAL)
    return model


@refused("x_gone", cause=DEPENDENT, remedy="batch_size=None")
def imputed_predictor_by_hand():
    """Free values are written into the column at the rows where it has none."""
    with pm.Model(coords=COORDS) as model:
        gone = pm.Normal("x_gone", 0, 1, shape=int(GONE.sum()))
        x = pt.set_subtensor(pt.as_tensor(X[:, 0])[np.flatnonzero(GONE)], gone)
        pm.Normal("y", pm.Normal("b") * x, 1, observed=REAL, dims="obs")
    return model


@refused("R", cause="missing", remedy="[Dd]rop|[Ii]mpute")
def matrix_factorisation_dense():
    """Users x items, most ratings unknown."""
    ratings = np.where(np.random.default_rng(5).random((N, 7)) < 0.5, np.nan, X[:, :1])
    with pm.Model() as model:
        U = pm.Normal("U", 0, 1, shape=(N, 2))
        V = pm.Normal("V", 0, 1, shape=(7, 2))
        pm.Normal("R", pt.dot(U, V.T), 1, observed=ratings)
    return model
