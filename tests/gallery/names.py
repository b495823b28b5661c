"""Data and variables with names that mean a number's type to NumPy."""

import numpy as np
import pymc as pm

from gallery.forms import accepted
from gallery.rows import BATCH, REAL, N

TYPES = ["long", "short", "single", "half", "double", "int", "float", "O", "S1", "i4"]
COLUMNS = np.random.default_rng(9).normal(size=(len(TYPES), N))


@accepted("obs")
def data_containers():
    with pm.Model(coords={"obs": range(N), "column": TYPES}) as model:
        columns = [pm.Data(t, c, dims="obs") for t, c in zip(TYPES, COLUMNS, strict=True)]
        w = pm.Normal("w", 0, 1, dims="column")
        mu = sum(w[k] * column for k, column in enumerate(columns))
        pm.Normal("y", mu, 1, observed=REAL, dims="obs")
    return model


@accepted()
def variables():
    with pm.Model() as model:
        slopes = [pm.Normal(t, 0, 1) for t in TYPES]
        mu = sum(slope * column for slope, column in zip(slopes, COLUMNS, strict=True))
        pm.Normal("y", mu, 1, observed=REAL)
    return model


@accepted()
def observed_variables():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        for t in ("long", "int", "O", "i4"):
            pm.Normal(t, mu, 1, observed=REAL)
    return model


@accepted()
def scalar_data():
    """Containers that are not cut."""
    with pm.Model() as model:
        scales = [pm.Data(t, k + 1.0) for k, t in enumerate(TYPES)]
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, sum(scales), observed=REAL)
    return model


@accepted("long")
def dim():
    with pm.Model(coords={"long": range(N), "int": ["a", "b"]}) as model:
        x = pm.Data("float", COLUMNS[:2].T, dims=("long", "int"))
        w = pm.Normal("double", 0, 1, dims="int")
        pm.Normal("y", x @ w, 1, observed=REAL, dims="long")
    return model


def _whole():
    with pm.Model() as model:
        slopes = [pm.Normal(f"w{t}", 0, 1) for t in TYPES]
        mu = sum(slope * column for slope, column in zip(slopes, COLUMNS, strict=True))
        pm.Normal("y", mu, 1, observed=REAL)
    return model


@accepted(batch_size=None, whole=_whole)
def data_in_minibatches():
    with pm.Model() as model:
        slopes = [pm.Normal(f"w{t}", 0, 1) for t in TYPES]
        data = [pm.Data(t, column) for t, column in zip(TYPES, COLUMNS, strict=True)]
        *columns, y = pm.Minibatch(*data, REAL, batch_size=BATCH)
        mu = sum(slope * column for slope, column in zip(slopes, columns, strict=True))
        pm.Normal("y", mu, 1, observed=y, total_size=N)
    return model
