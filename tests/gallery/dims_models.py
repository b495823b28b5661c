"""Models of `pymc.dims`: axes are known by name alone."""

import numpy as np
import pymc as pm
import pymc.dims as pmd

from gallery.forms import accepted
from gallery.rows import BINARY, COORDS, GROUP, REAL, X, new_rows


@accepted("obs", new_data=new_rows(x="x", target="real"))
def linear():
    with pm.Model(coords=COORDS) as model:
        x = pmd.Data("x", X, dims=("obs", "feature"))
        target = pmd.Data("target", REAL, dims="obs")
        w = pmd.Normal("w", mu=0, sigma=1, dims="feature")
        sigma = pmd.HalfNormal("sigma", sigma=1)
        pmd.Normal("y", mu=(x * w).sum("feature"), sigma=sigma, observed=target)
    return model


def hierarchy():
    with pm.Model(coords=COORDS) as model:
        group = pmd.Data("group_index", GROUP, dims="obs")
        target = pmd.Data("target", BINARY, dims="obs")
        spread = pmd.HalfNormal("spread", sigma=1)
        a = pmd.Normal("a", mu=0, sigma=spread, dims="group")
        p = pmd.math.sigmoid(a.isel(group=group))
        pmd.Bernoulli("y", p=p, observed=target)
    return model


if hasattr(pmd, "Bernoulli"):  # since PyMC 6.4
    accepted("obs")(hierarchy)


@accepted("obs")
def rows_of_several_outcomes():
    with pm.Model(coords=COORDS) as model:
        values = pmd.Data("values", X + REAL[:, None], dims=("obs", "feature"))
        mu = pmd.Normal("mu", mu=0, sigma=1, dims="feature")
        pmd.Normal("y", mu=mu, sigma=np.array(0.5), observed=values, dims=("obs", "feature"))
    return model
