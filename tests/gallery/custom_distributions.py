"""`pm.CustomDist` and potentials."""

import pymc as pm
import pytensor.tensor as pt

from gallery.forms import accepted
from gallery.rows import COORDS, REAL, X, new_rows


@accepted("obs", new_data=new_rows(x="x", target="real"))
def potential_alone():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        target = pm.Data("target", REAL, dims="obs")
        w = pm.Normal("w", 0, 1, dims="feature")
        pm.Potential("fit", -(pt.abs(target - x @ w) ** 1.5), dims="obs")
    return model
