"""Smooth functions of a column: splines and Hilbert-space approximations of Gaussian processes."""

import numpy as np
import pymc as pm
from scipy.interpolate import BSpline

from gallery.forms import accepted
from gallery.rows import COORDS, N_NEW, NEW_ROWS, REAL, UNIT, N, new_rows

KNOTS = np.concatenate([[0.0] * 4, [0.25, 0.5, 0.75], [1.0] * 4])
BASIS = BSpline.design_matrix(UNIT, KNOTS, 3).toarray()
INPUT = UNIT[:, None]


@accepted()
def spline():
    with pm.Model() as model:
        w = pm.Normal("w", 0, 3, size=BASIS.shape[1])
        mu = pm.Deterministic("mu", pm.math.dot(np.asarray(BASIS, order="F"), w.T))
        pm.Normal("y", pm.Normal("a", 0, 1) + mu, pm.Exponential("sigma", 1), observed=REAL)
    return model


def _gp():
    scale = pm.InverseGamma("scale", 5, 2)
    cov = pm.HalfNormal("amplitude", 1) ** 2 * pm.gp.cov.Matern52(1, ls=scale)
    return pm.gp.HSGP(m=[7], c=2.0, cov_func=cov)


def _new_inputs():
    return {
        "input": NEW_ROWS["unit"][:, None],
        "target": NEW_ROWS["real"],
        "coords": {"obs": range(N_NEW)},
    }


@accepted("obs", new_data=_new_inputs)
def hsgp_on_data():
    with pm.Model(coords={**COORDS, "column": ["u"]}) as model:
        x = pm.Data("input", INPUT, dims=("obs", "column"))
        target = pm.Data("target", REAL, dims="obs")
        f = _gp().prior("f", X=x)
        pm.Normal("y", f, pm.Exponential("sigma", 1), observed=target, dims="obs")
    return model


@accepted("obs")
def hsgp_linearised():
    with pm.Model(coords={**COORDS, "column": ["u"], "basis": range(7)}) as model:
        x = pm.Data("input", INPUT, dims=("obs", "column"))
        phi, sqrt_psd = _gp().prior_linearized(X=x)
        beta = pm.Normal("beta", 0, 1, dims="basis")
        f = pm.Deterministic("f", phi @ (beta * sqrt_psd), dims="obs")
        pm.Normal("y", f, pm.Exponential("sigma", 1), observed=REAL, dims="obs")
    return model


@accepted()
def hsgp_on_numpy():
    with pm.Model() as model:
        f = _gp().prior("f", X=INPUT)
        pm.Normal("y", f, pm.Exponential("sigma", 1), observed=REAL)
    return model


@accepted("obs", new_data=new_rows(x="x", target="real"))
def piecewise_linear():
    """A trend that bends at knots."""
    with pm.Model(coords={**COORDS, "knot": range(5)}) as model:
        x = pm.Data("x", np.zeros((N, 3)) + UNIT[:, None], dims=("obs", "feature"))
        target = pm.Data("target", REAL, dims="obs")
        bends = pm.Laplace("bends", 0, 1, dims="knot")
        hinge = pm.math.maximum(x[:, 0][:, None] - np.linspace(0, 0.8, 5), 0)
        pm.Normal("y", hinge @ bends, 1, observed=target, dims="obs")
    return model
