"""Models after `pm.do`, `pm.observe`, freezing, and made of named parts."""

import pymc as pm
from pymc.model.transform.optimization import freeze_dims_and_data

from gallery.forms import accepted
from gallery.rows import COORDS, FEATURES, REAL, X


def _causal():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X[:, 0], dims="obs")
        treatment = pm.Normal("treatment", pm.Normal("a") * x, 1, dims="obs")
        mu = pm.Normal("effect") * treatment + pm.Normal("b") * x
        pm.Normal("outcome", mu, pm.HalfNormal("sigma", 1), dims="obs")
    return model


@accepted("obs")
def after_do_and_observe():
    return pm.observe(pm.do(_causal(), {"treatment": X[:, 1]}), {"outcome": REAL})


@accepted("obs")
def frozen_dims_and_data():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        target = pm.Data("target", REAL, dims="obs")
        w = pm.Normal("w", 0, 1, dims="feature")
        pm.Normal("y", x @ w, 1, observed=target, dims="obs")
    return freeze_dims_and_data(model)


@accepted()
def named_submodels():
    """Variables' names carry the part's: 'first::w'."""
    with pm.Model(name="all") as model:
        with pm.Model(name="first"):
            w = pm.Normal("w", 0, 1, shape=FEATURES)
        with pm.Model(name="second"):
            sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", pm.math.dot(X, w), sigma, observed=REAL)
    return model


@accepted("obs")
def named_submodels_with_data():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        with pm.Model(name="part"):
            target = pm.Data("target", REAL, dims="obs")
            w = pm.Normal("w", 0, 1, dims="feature")
            pm.Normal("y", x @ w, 1, observed=target, dims="obs")
    return model
