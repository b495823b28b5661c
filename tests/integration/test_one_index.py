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


ACROSS = {
    "a condition of each row": lambda a: a[WEEK, np.where(Y > 0, CATEGORY - 3, CATEGORY)],
    "groups along the second axis": lambda a: a.T[CATEGORY, WEEK],
    "intercepts and slopes by row": lambda a: a.T[0, WEEK] + a.T[2, WEEK] * Y[::-1],
    "all of a group": lambda a: (a.T[:, WEEK] * Y[::-1]).sum(axis=0),
}


@pytest.mark.parametrize("standard", [True, False])
@pytest.mark.parametrize("name", ACROSS)
def test_correlated_effects_of_groups(name, standard):
    """Four groups with three effects each, from which rows pick some."""
    factor = np.linalg.cholesky(0.3 + 0.7 * np.eye(3))
    with pm.Model() as written:
        if standard:
            effects = pm.Normal("a", shape=(4, 3)) @ factor.T * pm.HalfNormal("s")
        else:
            effects = pm.MvNormal("a", pm.Normal("mu", shape=3), chol=factor, shape=(4, 3))
        pm.Normal("y", ACROSS[name](effects), 1, observed=Y)
    model = with_one_index(written)
    assert model is not written
    point = {
        k: np.random.default_rng(2).normal(0, 0.5, np.shape(v))
        for k, v in model.initial_point().items()
    }
    of_both = [
        float(
            pytensor.function(m.value_vars, m.logp(), mode=PYTHON)(
                *(point[v.name] for v in m.value_vars)
            )
        )
        for m in (model, written)
    ]
    assert of_both[0] == pytest.approx(of_both[1], abs=1e-9)
    terms = group_terms(model, ["a"])
    assert (terms.n_groups, terms.k) == (4, 3)
    np.testing.assert_array_equal(terms.group_of_row, WEEK % 4)


def test_other_models_stay_as_they_are():
    with pm.Model() as model:
        weights = pm.Normal("weights", shape=(3, 4))
        pm.Normal("y", weights[CATEGORY] @ np.ones(4), 1, observed=Y)
    assert with_one_index(model) is model


def test_rows_that_pick_among_many_effects_stay_as_they_are():
    """Rows would compute all effects of their group to use one."""
    with pm.Model() as model:
        table = pm.Normal("a", shape=(40, 50)) @ pm.Normal("b", shape=(50, 50))
        pm.Normal("y", table[CATEGORY, WEEK], 1, observed=Y)
    assert with_one_index(model) is model
