"""Gaussian processes over the rows: their values are drawn together."""

import numpy as np
import pymc as pm

from gallery.forms import LOCAL, SPANS, refused
from gallery.rows import COORDS, REAL, UNIT, N

INPUT = UNIT[:, None]


def _cov():
    return pm.HalfNormal("amplitude", 1) ** 2 * pm.gp.cov.ExpQuad(1, pm.Gamma("scale", 2, 2))


@refused("y", cause=SPANS, remedy="batch_size=None")
def marginal():
    with pm.Model() as model:
        gp = pm.gp.Marginal(cov_func=_cov())
        gp.marginal_likelihood("y", X=INPUT, y=REAL, sigma=pm.HalfNormal("sigma", 1))
    return model


@refused("y", cause=SPANS, remedy="batch_size=None")
def marginal_on_data():
    with pm.Model(coords={**COORDS, "column": ["u"]}) as model:
        x = pm.Data("x", INPUT, dims=("obs", "column"))
        gp = pm.gp.Marginal(cov_func=_cov())
        sigma = pm.HalfNormal("sigma", 1)
        gp.marginal_likelihood("y", X=x, y=REAL, sigma=sigma, dims="obs")
    return model


@refused("f_rotated_", cause=LOCAL, remedy="batch_size=None")
def latent():
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=_cov()).prior("f", X=INPUT)
        pm.Normal("y", f, pm.HalfNormal("sigma", 1), observed=REAL)
    return model


@refused("f", cause=LOCAL, remedy="batch_size=None")
def latent_centred():
    with pm.Model(coords=COORDS) as model:
        f = pm.gp.Latent(cov_func=_cov()).prior("f", X=INPUT, reparameterize=False, dims="obs")
        pm.Poisson("y", pm.math.exp(f), observed=np.ones(N, int), dims="obs")
    return model


@refused("y", cause=SPANS, remedy="batch_size=None")
def correlated_rows():
    """Phylogeny or space: a known covariance of the rows."""
    cov = np.exp(-np.abs(INPUT - INPUT.T)) + 0.1 * np.eye(N)
    with pm.Model() as model:
        mu = pm.Normal("mu") * np.ones(N)
        pm.MvNormal("y", mu, pm.HalfNormal("scale", 1) * cov, observed=REAL)
    return model
