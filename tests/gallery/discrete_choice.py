"""One of several alternatives chosen in each row."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.forms import accepted
from gallery.rows import (
    CLASS,
    CLASSES,
    COORDS,
    FEATURES,
    GROUP,
    GROUPS,
    N_NEW,
    NEW_ROWS,
    N,
    X,
    new_rows,
)

rng = np.random.default_rng(11)
COST, TIME = rng.gamma(2.0, 1.0, size=(2, N, 3))
"""Of three alternatives."""
CHOICE = CLASS % 3
OPTIONS = rng.normal(size=(N, 3, 2))
"""Two attributes of each alternative in each row."""


def new_options():
    return {
        "options": rng.normal(size=(N_NEW, 3, 2)),
        "target": NEW_ROWS["class"] % 3,
        "coords": {"obs": range(N_NEW)},
    }


@accepted()
def utilities_stacked():
    """One expression an alternative, no data container."""
    with pm.Model() as model:
        cost, time = pm.Normal("cost", -1, 1), pm.Normal("time", -1, 1)
        gas, oil = pm.Normal("gas", 0, 1), pm.Normal("oil", 0, 1)
        u0 = gas + cost * COST[:, 0] + time * TIME[:, 0]
        u1 = oil + cost * COST[:, 1] + time * TIME[:, 1]
        u2 = cost * COST[:, 2] + time * TIME[:, 2]
        s = pm.math.stack([u0, u1, u2]).T
        pm.Categorical("choice", p=pm.math.softmax(s, axis=1), observed=CHOICE)
    return model


@accepted("obs")
def utilities_with_named_rows():
    """The choice and the probabilities have dims, the attributes are plain columns."""
    coords = {"obs": range(N), "alternative": ["gas", "oil", "heat pump"]}
    with pm.Model(coords=coords) as model:
        cost, time = pm.Normal("cost", -1, 1), pm.Normal("time", -1, 1)
        utilities = [cost * COST[:, k] + time * TIME[:, k] for k in range(3)]
        s = pm.math.stack(utilities).T
        p = pm.Deterministic("p", pm.math.softmax(s, axis=1), dims=("obs", "alternative"))
        pm.Categorical("choice", p=p, observed=CHOICE, dims="obs")
    return model


@accepted()
def attributes_of_alternatives():
    """Rows x alternatives x attributes in one array."""
    with pm.Model() as model:
        s = pt.dot(OPTIONS, pm.Normal("beta", 0, 1, shape=2))
        pm.Categorical("choice", logit_p=s, observed=CHOICE)
    return model


@accepted()
def attributes_as_a_long_table():
    """The same with the lengths as numbers."""
    with pm.Model() as model:
        table = pt.as_tensor(OPTIONS).reshape((3 * N, 2))
        s = pt.dot(table, pm.Normal("beta", 0, 1, shape=2)).reshape((N, 3))
        pm.Categorical("choice", logit_p=s, observed=CHOICE)
    return model


@accepted("obs", new_data=new_options)
def attributes_of_alternatives_on_data():
    coords = {"obs": range(N), "alternative": range(3), "attribute": range(2)}
    with pm.Model(coords=coords) as model:
        options = pm.Data("options", OPTIONS, dims=("obs", "alternative", "attribute"))
        target = pm.Data("target", CHOICE, dims="obs")
        s = pt.dot(options, pm.Normal("beta", 0, 1, dims="attribute"))
        pm.Categorical("choice", logit_p=s, observed=target, dims="obs")
    return model


@accepted()
def tastes_by_person():
    """Mixed logit: each person has tastes of their own."""
    with pm.Model() as model:
        mean, sd = pm.Normal("mean", 0, 1, shape=2), pm.HalfNormal("sd", 1, shape=2)
        z = pm.Normal("z", 0, 1, shape=(GROUPS, 2))
        taste = mean + z * sd
        s = (OPTIONS * taste[GROUP][:, None, :]).sum(axis=-1)
        pm.Categorical("choice", p=pm.math.softmax(s, axis=1), observed=CHOICE)
    return model


@accepted()
def softmax_regression():
    """Plain NumPy."""
    with pm.Model() as model:
        W = pm.Normal("W", 0, 1, shape=(FEATURES, CLASSES))
        b = pm.Normal("b", 0, 1, shape=CLASSES)
        p = pm.math.softmax(pm.math.dot(X, W) + b, axis=1)
        pm.Categorical("y", p=p, observed=CLASS)
    return model


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
