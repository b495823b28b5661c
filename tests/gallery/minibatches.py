"""Models written with `pm.Minibatch`."""

import pymc as pm

from gallery.forms import accepted, refused
from gallery.rows import BATCH, COUNT, FEATURES, REAL, N, X


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


@refused("y", cause="pm.Minibatch", remedy="one of them|[Rr]emove")
def minibatch_and_batch_size():
    with pm.Model() as model:
        x, y = pm.Minibatch(X, REAL, batch_size=BATCH)
        _linear(x, y, total_size=N)
    return model


@refused("y", cause="without total_size", remedy="total_size=", batch_size=None)
def without_total_size():
    with pm.Model() as model:
        x, y = pm.Minibatch(X, REAL, batch_size=BATCH)
        _linear(x, y)
    return model


@refused("y", cause="draws different rows", remedy=r"one call of pm\.Minibatch", batch_size=None)
def separate_draws_that_meet():
    """Predictors of some rows beside outcomes of others."""
    with pm.Model() as model:
        x, y = pm.Minibatch(X, batch_size=BATCH), pm.Minibatch(REAL, batch_size=BATCH)
        _linear(x, y, total_size=N)
    return model


@refused("z", cause="draws different rows", remedy=r"one call of pm\.Minibatch", batch_size=None)
def separate_draws_that_meet_in_the_second_term():
    with pm.Model() as model:
        x, y = pm.Minibatch(X, REAL, batch_size=BATCH)
        counts = pm.Minibatch(COUNT.astype("int32"), batch_size=BATCH)
        _linear(x, y, total_size=N)
        rate = pm.math.exp(pm.math.dot(x, pm.Normal("v", 0, 1, shape=FEATURES)))
        pm.Poisson("z", rate, observed=counts, total_size=N)
    return model
