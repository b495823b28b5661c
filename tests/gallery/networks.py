"""Neural networks and latent linear models with the latent part integrated out."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.forms import accepted
from gallery.rows import BATCH, BINARY, CLASS, CLASSES, COORDS, FEATURES, REAL, N, X, new_rows

HIDDEN = 2


def _network(x):
    w1 = pm.Normal("w1", 0, 1, shape=(FEATURES, HIDDEN))
    w2 = pm.Normal("w2", 0, 1, shape=HIDDEN)
    return pm.math.sigmoid(pm.math.dot(pm.math.tanh(pm.math.dot(x, w1)), w2))


@accepted("obs", new_data=new_rows(x="x", target="binary"))
def network():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        target = pm.Data("target", BINARY, dims="obs")
        pm.Bernoulli("y", _network(x), observed=target, dims="obs")
    return model


def _whole_network():
    with pm.Model() as model:
        pm.Bernoulli("y", _network(X), observed=BINARY)
    return model


@accepted(batch_size=None, whole=_whole_network)
def network_with_joint_minibatch():
    with pm.Model() as model:
        x, y = pm.Minibatch(X, BINARY.astype("int32"), batch_size=BATCH)
        pm.Bernoulli("y", _network(x), observed=y, total_size=N)
    return model


@accepted()
def network_of_classes():
    with pm.Model() as model:
        w1 = pm.Normal("w1", 0, 1, shape=(FEATURES, HIDDEN))
        w2 = pm.Normal("w2", 0, 1, shape=(HIDDEN, CLASSES))
        scores = pt.dot(pt.maximum(pt.dot(X, w1), 0), w2)
        pm.Categorical("y", logit_p=scores, observed=CLASS)
    return model


@accepted()
def probabilistic_pca_integrated():
    outcomes = np.column_stack([X, REAL])
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=(4, 2))
        cov = w @ w.T + pm.HalfNormal("sigma", 1) ** 2 * pt.eye(4)
        pm.MvNormal("y", np.zeros(4), cov, observed=outcomes)
    return model
