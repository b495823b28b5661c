"""Columns and design matrices made in ways that hide that they have a value for each row."""

import numpy as np
import pymc as pm
import pytensor.sparse as ps
import pytensor.tensor as pt
import scipy.sparse

from gallery.forms import accepted
from gallery.rows import FEATURES, GROUP, GROUPS, REAL, N, X


def _regression(design, k):
    w = pm.Normal("w", 0, 1, shape=k)
    pm.Normal("y", pt.dot(design, w), pm.HalfNormal("sigma", 1), observed=REAL)


@accepted()
def column_of_ones():
    with pm.Model() as model:
        _regression(pt.concatenate([pt.ones((N, 1)), X], axis=1), FEATURES + 1)
    return model


@accepted()
def vector_of_ones():
    with pm.Model() as model:
        mu = pm.Normal("a") * pt.ones(N) + pm.Normal("b") * X[:, 0]
        pm.Normal("y", mu, 1, observed=REAL)
    return model


@accepted()
def vector_of_zeros_filled():
    """A sum over columns that starts at zeros."""
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=FEATURES)
        mu = pt.zeros(N)
        for k in range(FEATURES):
            mu = mu + w[k] * X[:, k]
        pm.Normal("y", mu, 1, observed=REAL)
    return model


@accepted()
def utility_of_zeros():
    """The reference class has utility zero in each row."""
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=FEATURES)
        utility = pt.stack([pt.zeros(N), pt.dot(X, w)], axis=1)
        pm.Categorical("y", p=pm.math.softmax(utility, axis=1), observed=(REAL > 0).astype(int))
    return model


@accepted()
def broadcast_to_rows():
    outcomes = np.column_stack([REAL, REAL**2])
    with pm.Model() as model:
        mean = pm.Normal("mean", 0, 1, shape=2)
        mu = (
            pt.broadcast_to(mean, (N, 2)) + pt.dot(X, pm.Normal("w", 0, 1, shape=FEATURES))[:, None]
        )
        pm.Normal("y", mu, 1, observed=outcomes)
    return model


@accepted()
def reshaped_to_rows():
    outcomes = np.column_stack([REAL, REAL**2])
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=(FEATURES, 2))
        mu = pt.dot(X, w).reshape((N, 2))
        pm.Normal("y", mu, 1, observed=outcomes)
    return model


@accepted()
def column_by_reshape():
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=2)
        mu = (pt.as_tensor(X[:, 0]).reshape((N, 1)) * w).sum(axis=1)
        pm.Normal("y", mu, 1, observed=REAL)
    return model


@accepted()
def tiled_scalar():
    with pm.Model() as model:
        sigma = pt.tile(pm.HalfNormal("sigma", 1).reshape((1,)), N)
        pm.Normal("y", pm.Normal("mu") * X[:, 0], sigma, observed=REAL)
    return model


@accepted()
def sparse():
    """Dummies of the groups and the features, stored sparsely."""
    dummies = (GROUP[:, None] == np.arange(GROUPS)).astype(float)
    design = scipy.sparse.csr_matrix(np.hstack([dummies, X * (np.abs(X) > 0.5)]))
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=GROUPS + FEATURES)
        mu = ps.structured_dot(ps.as_sparse_variable(design), w[:, None])[:, 0]
        pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=REAL)
    return model
