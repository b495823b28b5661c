"""One of several alternatives chosen in each row."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.forms import accepted
from gallery.rows import CLASS, COORDS, X, new_rows

rng = np.random.default_rng(11)


@accepted("obs", new_data=new_rows(x="x", target="class"))
def softmax_regression_on_data():
    """The first class is the reference."""
    with pm.Model(coords={**COORDS, "free class": list("BCDE")}) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        target = pm.Data("target", CLASS, dims="obs")
        W = pm.Normal("W", 0, 1, dims=("feature", "free class"))
        eta = pt.concatenate([pt.zeros((x.shape[0], 1)), x @ W], axis=1)
        p = pm.math.softmax(eta, axis=1)
        pm.Categorical("y", p=p, observed=target, dims="obs")
    return model
