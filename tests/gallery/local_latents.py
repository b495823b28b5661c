"""Free variables with an element for each row."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.forms import refused
from gallery.rows import BINARY, CLASSES, COORDS, COUNT, REAL, N, X


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
