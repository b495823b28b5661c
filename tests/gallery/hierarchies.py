"""Groups that share a prior: rows look their group's parameters up by an index."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from gallery.forms import accepted
from gallery.rows import (
    BINARY,
    COORDS,
    COUNT,
    GROUP,
    GROUPS,
    OTHER_GROUP,
    REAL,
    X,
    new_rows,
)

RADON = new_rows(floor="binary", county="group", target="real")
FLOOR = BINARY.astype(float)


def _rows():
    """Data containers of the radon models."""
    floor = pm.Data("floor", FLOOR, dims="obs")
    county = pm.Data("county", GROUP, dims="obs")
    return floor, county, pm.Data("target", REAL, dims="obs")


@accepted("obs", new_data=new_rows(floor="binary", target="real"))
def radon_pooled():
    with pm.Model(coords=COORDS) as model:
        floor = pm.Data("floor", FLOOR, dims="obs")
        target = pm.Data("target", REAL, dims="obs")
        a, b = pm.Normal("a", 0, 10), pm.Normal("b", 0, 10)
        pm.Normal("y", a + b * floor, pm.Exponential("sigma", 5), observed=target, dims="obs")
    return model


@accepted("obs", new_data=RADON)
def radon_unpooled():
    with pm.Model(coords=COORDS) as model:
        floor, county, target = _rows()
        a, b = pm.Normal("a", 0, 10, dims="group"), pm.Normal("b", 0, 10)
        sigma = pm.Exponential("sigma", 5)
        pm.Normal("y", a[county] + b * floor, sigma, observed=target, dims="obs")
    return model


@accepted("obs", new_data=RADON)
def radon_varying_intercept_centred():
    with pm.Model(coords=COORDS) as model:
        floor, county, target = _rows()
        a = pm.Normal("a", pm.Normal("mu_a"), pm.Exponential("sigma_a", 1), dims="group")
        mu, sigma = a[county] + pm.Normal("b") * floor, pm.Exponential("sigma", 1)
        pm.Normal("y", mu, sigma, observed=target, dims="obs")
    return model


@accepted("obs", new_data=RADON)
def radon_slopes_noncentred():
    with pm.Model(coords=COORDS) as model:
        floor, county, target = _rows()
        z = pm.Normal("z", 0, 1, dims="group")
        b = pm.Normal("mu_b") + z * pm.HalfNormal("sigma_b", 1)
        mu = pm.Normal("a") + b[county] * floor
        pm.Normal("y", mu, pm.Exponential("sigma", 1), observed=target, dims="obs")
    return model


@accepted("obs", new_data=RADON)
def radon_slopes_with_lkj():
    coords = {**COORDS, "effect": ["intercept", "slope"]}
    with pm.Model(coords=coords) as model:
        floor, county, target = _rows()
        sd = pm.Exponential.dist(0.5, shape=2)
        chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=sd)
        z = pm.Normal("z", 0, 1, dims=("effect", "group"))
        effects = pm.Deterministic("effects", pt.dot(chol, z).T, dims=("group", "effect"))
        mu = effects[county, 0] + effects[county, 1] * floor
        pm.Normal("y", mu, pm.Exponential("sigma", 1), observed=target, dims="obs")
    return model


@accepted()
def radon_contextual():
    """No dims on the data, a bounded prior of the noise, and each group's own mean as predictor."""
    uranium = np.array([0.2, -0.3, 0.7, 0.1])
    with pm.Model() as model:
        sigma_a = pm.HalfCauchy("sigma_a", 5)
        gamma = pm.Normal("gamma", 0, 5, shape=3)
        a = gamma[0] + gamma[1] * uranium[GROUP] + gamma[2] * X[:, 0]
        eps = pm.Normal("eps", 0, sigma_a, shape=GROUPS)
        mu = a + eps[GROUP] + pm.Normal("b", 0, 5) * FLOOR
        pm.Normal("y", mu, pm.Uniform("sigma", 0, 100), observed=REAL)
    return model


@accepted("obs", new_data=new_rows(by="other_group", item="group", target="binary"))
def item_response_long():
    coords = {**COORDS, "person": range(7)}
    with pm.Model(coords=coords) as model:
        person = pm.Data("by", OTHER_GROUP, dims="obs")
        item = pm.Data("item", GROUP, dims="obs")
        target = pm.Data("target", BINARY, dims="obs")
        ability = pm.Normal("ability", 0, 1, dims="person")
        difficulty = pm.Normal("difficulty", 0, 1, dims="group")
        discrimination = pm.LogNormal("discrimination", 0, 0.3, dims="group")
        logit = discrimination[item] * (ability[person] - difficulty[item])
        pm.Bernoulli("y", logit_p=logit, observed=target, dims="obs")
    return model


@accepted()
def matrix_factorisation_long():
    with pm.Model() as model:
        U = pm.Normal("U", 0, 1, shape=(7, 2))
        V = pm.Normal("V", 0, 1, shape=(GROUPS, 2))
        mu = (U[OTHER_GROUP] * V[GROUP]).sum(axis=-1)
        pm.Normal("R", mu, pm.HalfNormal("sigma", 1), observed=REAL)
    return model


@accepted("obs")
def rugby():
    """Attack and defence with a sum of zero; two counts observed of each match."""
    home, away = OTHER_GROUP, (OTHER_GROUP + 1 + GROUP) % 7
    with pm.Model(coords={**COORDS, "team": range(7)}) as model:
        home_team, away_team = pm.Data("home_team", home, dims="obs"), away
        attack = pm.ZeroSumNormal("attack", pm.HalfNormal("sd_attack", 2), dims="team")
        defence = pm.ZeroSumNormal("defence", pm.HalfNormal("sd_defence", 2), dims="team")
        at_home = pm.Normal("home", 0, 1)
        home_rate = pm.math.exp(at_home + attack[home_team] + defence[away_team])
        away_rate = pm.math.exp(attack[away_team] + defence[home_team])
        pm.Poisson("home_points", home_rate, observed=COUNT, dims="obs")
        pm.Poisson("away_points", away_rate, observed=COUNT[::-1].copy(), dims="obs")
    return model
