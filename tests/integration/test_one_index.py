"""Effects of two indices as effects of one: the same density, and groups that can be integrated."""

import numpy as np
import pymc as pm
import pytensor
import pytest

from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.integration.group_terms import group_terms
from pymc_sgmcmc.integration.one_index import with_one_index

rng = np.random.default_rng(1)
CATEGORY, WEEK = rng.integers(3, size=20), rng.integers(-4, 4, size=20)
"""Weeks are counted from the end, too."""
Y = rng.normal(size=20)


def centred():
    with pm.Model(coords={"category": range(3), "week": range(4)}) as model:
        mu = pm.Normal("mu", shape=3)
        gamma = pm.Normal("gamma", mu[:, None], pm.HalfNormal("s"), dims=("category", "week"))
        pm.Normal("y", gamma[CATEGORY, WEEK], 1, observed=Y)
    return model


def noncentred():
    with pm.Model() as model:
        gamma = pm.Normal("gamma", shape=(3, 4))
        level = pm.Normal("mu", shape=3)[:, None] + pm.HalfNormal("s") * gamma
        pm.Normal("y", pm.math.exp(level)[CATEGORY, WEEK], 1, observed=Y)
    return model


@pytest.mark.parametrize("form", [centred, noncentred])
def test_density_and_groups(form):
    written = form()
    model = with_one_index(written)
    [name] = {v.name for v in model.free_RVs} - {"mu", "s"}
    point = {
        k: np.random.default_rng(2).normal(0, 0.5, np.shape(v))
        for k, v in model.initial_point().items()
    }
    as_written = point | {"gamma": point[name].reshape(3, 4)}

    def logp(model, point):
        function = pytensor.function(model.value_vars, model.logp(), mode=PYTHON)
        return float(function(*(point[v.name] for v in model.value_vars)))

    assert logp(model, point) == pytest.approx(logp(written, as_written), abs=1e-9)
    terms = group_terms(model, [name])
    assert (terms.n_groups, terms.k) == (12, 1)
    np.testing.assert_array_equal(terms.group_of_row, CATEGORY * 4 + WEEK % 4)
    assert model.named_vars_to_dims == written.named_vars_to_dims


def test_other_models_stay_as_they_are():
    with pm.Model() as model:
        weights = pm.Normal("weights", shape=(3, 4))
        pm.Normal("y", weights[CATEGORY] @ np.ones(4), 1, observed=Y)
    assert with_one_index(model) is model
