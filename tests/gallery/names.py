"""Data and variables with names that mean a number's type to NumPy."""

import numpy as np
import pymc as pm

from gallery.forms import accepted
from gallery.rows import REAL, N

TYPES = ["long", "short", "single", "half", "double", "int", "float", "O", "S1", "i4"]
COLUMNS = np.random.default_rng(9).normal(size=(len(TYPES), N))


@accepted()
def variables():
    with pm.Model() as model:
        slopes = [pm.Normal(t, 0, 1) for t in TYPES]
        mu = sum(slope * column for slope, column in zip(slopes, COLUMNS, strict=True))
        pm.Normal("y", mu, 1, observed=REAL)
    return model


def _whole():
    with pm.Model() as model:
        slopes = [pm.Normal(f"w{t}", 0, 1) for t in TYPES]
        mu = sum(slope * column for slope, column in zip(slopes, COLUMNS, strict=True))
        pm.Normal("y", mu, 1, observed=REAL)
    return model
