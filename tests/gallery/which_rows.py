"""Models of which it is not clear what a row is, or whose rows look at one another."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.forms import DEPENDENT, accepted, refused
from gallery.rows import COORDS, REAL, N, X


@accepted((None, None), n_rows=N + 24)
def two_groups_of_different_length():
    """Each row of a batch is of one of the groups."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1, shape=2)
        sigma, nu = pm.Uniform("sigma", 0.1, 10, shape=2), pm.Exponential("nu", 1 / 29)
        pm.StudentT("drug", nu=nu + 1, mu=mu[0], sigma=sigma[0], observed=REAL)
        pm.StudentT("placebo", nu=nu + 1, mu=mu[1], sigma=sigma[1], observed=REAL[:24])
    return model


def _two_groups():
    with pm.Model(coords={"drug row": range(N), "placebo row": range(24)}) as model:
        mu, sigma = pm.Normal("mu", 0, 1, shape=2), pm.Uniform("sigma", 0.1, 10, shape=2)
        pm.Normal("drug", mu[0], sigma[0], observed=REAL, dims="drug row")
        pm.Normal("placebo", mu[1], sigma[1], observed=REAL[:24], dims="placebo row")
    return model


@accepted(("drug row", "placebo row"), n_rows=N + 24)
def two_groups_with_dims():
    return _two_groups()


@accepted("drug row", minibatch_dim="drug row")
def two_groups_one_of_them_cut():
    """The other group is whole at each update."""
    return _two_groups()


@accepted("site", minibatch_dim="site")
def table_cut_along_one_of_its_dims():
    counts = np.random.default_rng(8).poisson(3.0, size=(N, 24))
    with pm.Model(coords={"site": range(N), "visit": range(24)}) as model:
        pm.Poisson("y", pm.Gamma("mu", 2, 1), observed=counts, dims=("site", "visit"))
    return model


@refused("y", cause="[Ss]everal dims", remedy="minibatch_dim=")
def table_without_parameters():
    counts = np.random.default_rng(8).poisson(3.0, size=(N, 24))
    with pm.Model(coords={"site": range(N), "visit": range(24)}) as model:
        pm.Poisson("y", pm.Gamma("mu", 2, 1), observed=counts, dims=("site", "visit"))
    return model


@refused("y", cause=DEPENDENT, remedy="batch_size=None")
def centred_in_the_graph():
    """A mean over rows depends on which rows there are."""
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        w = pm.Normal("w", 0, 1, dims="feature")
        pm.Normal("y", (x - x.mean(axis=0)) @ w, 1, observed=REAL, dims="obs")
    return model


@refused("y", cause=DEPENDENT, remedy="batch_size=None")
def standardised_outcome():
    """Ranks over all rows."""
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X[:, 0], dims="obs")
        share = pt.exp(pm.Normal("w") * x)
        pm.Normal("y", share / share.sum(), 1, observed=REAL, dims="obs")
    return model
