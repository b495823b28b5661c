"""Models written with `pm.Minibatch`."""

import pymc as pm

from gallery.forms import accepted, refused
from gallery.rows import BATCH, FEATURES, REAL, N, X


def _linear(x, y, **options):
    w = pm.Normal("w", 0, 1, shape=FEATURES)
    pm.Normal("y", pm.math.dot(x, w), pm.HalfNormal("sigma", 1), observed=y, **options)


def _whole():
    with pm.Model() as model:
        _linear(X, REAL)
    return model


@accepted(batch_size=None, whole=_whole)
def joint():
    with pm.Model() as model:
        x, y = pm.Minibatch(X, REAL, batch_size=BATCH)
        _linear(x, y, total_size=N)
    return model


@accepted(batch_size=None, whole=_whole)
def joint_of_data():
    with pm.Model() as model:
        x, y = pm.Minibatch(pm.Data("x", X), pm.Data("target", REAL), batch_size=BATCH)
        _linear(x, y, total_size=N)
    return model


@refused("y", cause="total_size=", remedy="[Rr]emove|one of them|scale once")
def total_size_and_batch_size():
    with pm.Model() as model:
        _linear(X, REAL, total_size=N)
    return model


@refused("y", cause="without total_size", remedy="total_size=", batch_size=None)
def without_total_size():
    with pm.Model() as model:
        x, y = pm.Minibatch(X, REAL, batch_size=BATCH)
        _linear(x, y)
    return model
