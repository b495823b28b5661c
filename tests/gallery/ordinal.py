"""Ordered outcomes."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.forms import accepted
from gallery.rows import CLASS, CLASSES, COORDS, FEATURES, X, new_rows

START = np.linspace(-1.5, 1.5, CLASSES - 1)


def _cut_points():
    return pm.Normal(
        "cuts",
        0,
        2,
        shape=CLASSES - 1,
        transform=pm.distributions.transforms.ordered,
        initval=START,
    )


@accepted("obs", new_data=new_rows(x="x", target="class"))
def ordered_logistic_raw_predictor():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        target = pm.Data("target", CLASS, dims="obs")
        eta = x @ pm.Normal("w", 0, 1, dims="feature")
        pm.OrderedLogistic(
            "y", eta=eta, cutpoints=_cut_points(), compute_p=False, observed=target, dims="obs"
        )
    return model


@accepted()
def ordered_probit():
    with pm.Model() as model:
        eta = pm.math.dot(X, pm.Normal("w", 0, 1, shape=FEATURES))
        pm.OrderedProbit("y", eta=eta, cutpoints=_cut_points(), compute_p=False, observed=CLASS)
    return model


@accepted()
def constrained_cut_points():
    """Differences of the cut points are a Dirichlet, the first is fixed; PyMC keeps `y_probs`."""
    with pm.Model() as model:
        steps = pm.Dirichlet("steps", np.ones(CLASSES - 2))
        cuts = pt.concatenate([[0.0], pt.cumsum(steps)]) * 3 - 1.5
        eta = pm.math.dot(X, pm.Normal("w", 0, 1, shape=FEATURES))
        pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, observed=CLASS)
    return model
