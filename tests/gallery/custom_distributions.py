"""`pm.CustomDist` and potentials."""

import pymc as pm
import pytensor.tensor as pt

from gallery.forms import accepted
from gallery.rows import BINARY, COORDS, FEATURES, POSITIVE, REAL, X, new_rows


@accepted()
def random_function():
    """The log probability is derived from how the values are drawn."""

    def dist(mu, sigma, size):
        return pm.math.exp(pm.Normal.dist(mu, sigma, size=size))

    with pm.Model() as model:
        mu = pm.math.dot(X, pm.Normal("w", 0, 1, shape=FEATURES))
        pm.CustomDist("y", mu, pm.HalfNormal("sigma", 1), dist=dist, observed=POSITIVE)
    return model


@accepted("obs", new_data=new_rows(x="x", target="positive"))
def random_function_on_data():
    def dist(mu, sigma, size):
        return pm.math.exp(pm.Normal.dist(mu, sigma, size=size))

    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        target = pm.Data("target", POSITIVE, dims="obs")
        mu, sigma = x @ pm.Normal("w", 0, 1, dims="feature"), pm.HalfNormal("sigma", 1)
        pm.CustomDist("y", mu, sigma, dist=dist, observed=target, dims="obs")
    return model


@accepted()
def closure_over_a_column():
    """The function looks at a column that is none of its arguments."""
    column = pt.as_tensor(X[:, 0])

    def logp(value, slope):
        return pm.logp(pm.Normal.dist(slope * column, 1), value)

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("slope", 0, 1), logp=logp, observed=REAL)
    return model


@accepted()
def closure_over_numpy():
    def logp(value, rate):
        return BINARY * pt.log(rate) - rate * value

    with pm.Model() as model:
        pm.CustomDist("y", pm.Gamma("rate", 2, 1), logp=logp, observed=POSITIVE)
    return model


@accepted("obs", new_data=new_rows(event="binary", target="positive"))
def closure_over_data():
    with pm.Model(coords=COORDS) as model:
        event = pm.Data("event", BINARY, dims="obs")
        target = pm.Data("target", POSITIVE, dims="obs")

        def logp(value, rate):
            return event * pt.log(rate) - rate * value

        pm.CustomDist("y", pm.Gamma("rate", 2, 1), logp=logp, observed=target, dims="obs")
    return model


@accepted("obs", new_data=new_rows(x="x", target="real"))
def potential_alone():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        target = pm.Data("target", REAL, dims="obs")
        w = pm.Normal("w", 0, 1, dims="feature")
        pm.Potential("fit", -(pt.abs(target - x @ w) ** 1.5), dims="obs")
    return model
