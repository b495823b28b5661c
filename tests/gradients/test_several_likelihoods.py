"""Likelihoods with rows of their own share the batches, each row counted by its likelihood."""

import json
import logging
import re

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from models import REAL, N, X
from test_gradients import assert_unbiased
from xarray import Dataset

import pymc_sgmcmc as sgm
from pymc_sgmcmc.diagnosis.diagnose import _check_rows
from pymc_sgmcmc.gradients import rows_in_batches
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.gradients.rows_in_batches import find_row_axes

M = 13
"""Rows of the second likelihood."""
LEVEL = np.random.default_rng(1).integers(3, size=N)


def hurdle(container=lambda name, value: value, dims=False):
    """Whether there is an amount, for all rows, and the amount where there is one."""
    first, second = ({"dims": "row"}, {"dims": "some"}) if dims else ({}, {})
    with pm.Model(coords={"row": range(N), "some": range(M)} if dims else None) as model:
        w, v = pm.Normal("w", shape=3), pm.Normal("v", shape=3)
        effect = pm.Normal("effect", 0, pm.HalfNormal("tau"), shape=4)
        logit = pm.math.dot(container("x", X), w) + effect[container("level", LEVEL)]
        pm.Bernoulli("any", logit_p=logit, observed=container("is_any", LEVEL > 0), **first)
        mu = pm.math.dot(container("x_some", X[:M]), v) + effect[container("level_some", LEVEL[:M])]
        amount = container("amount_some", REAL[:M])
        sigma = pm.HalfNormal("sigma")
        pm.StudentT("amount", nu=4, mu=mu, sigma=sigma, observed=amount, **second)
    return model


def with_potentials():
    """Two likelihoods written as potentials."""
    with pm.Model(coords={"row": range(N), "some": range(M)}) as model:
        mu = pm.Normal("mu", shape=2)
        pm.Potential("first", -((mu[0] - REAL) ** 2), dims="row")
        pm.Potential("second", -((mu[1] - pt.as_tensor(X[:M])) ** 2).sum(axis=1), dims="some")
    return model


def of_one_array():
    """Both slice the same container, whose dim has no name; one takes rows of a table whole."""
    with pm.Model(coords={"first": range(N), "second": range(N), "third": range(M)}) as model:
        mu, table = pm.Normal("mu", shape=3), pm.Data("table", REAL)
        pm.Normal("y", mu[0] * table, 1, observed=REAL, dims="first")
        pm.Normal("z", mu[1] + table, 1, observed=REAL[::-1], dims="second")
        picked = table[np.arange(M)[::-1] + 3]
        pm.Normal("u", mu[2] * picked, 1, observed=REAL[:M], dims="third")
    return model


def other_lengths():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=np.zeros(31))
        pm.Normal("z", mu, 1, observed=np.zeros(26))
    return model


MODELS = {
    "plain arrays": (hurdle, [N, M]),
    "containers": (lambda: hurdle(pm.Data), [N, M]),
    "dims": (lambda: hurdle(dims=True), [N, M]),
    "potentials": (with_potentials, [N, M]),
    "one array": (of_one_array, [N, N, M]),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("weighted", [False, True])
def test_average_over_batches_is_the_full_gradient(name, weighted):
    build, lengths = MODELS[name]
    model = build()
    weights = pytensor.shared(np.ones(sum(lengths)), shape=(None,)) if weighted else None
    source = gradient_source(model, model.value_vars, batch_size=5, row_weights=weights)
    [rows] = source.rows
    assert (rows.lengths, rows.n_rows) == (lengths, sum(lengths))
    assert_unbiased(model, source)


def test_other_rows_of_one_likelihood():
    model = hurdle(pm.Data)
    source = gradient_source(model, model.value_vars, batch_size=5)
    new = {"x_some": X[:9], "level_some": LEVEL[:9], "amount_some": REAL[:9]}
    pm.set_data(new, model=model)
    source.check_data()
    assert source.rows[0].lengths == [N, 9]
    assert_unbiased(model, source)
    pm.set_data({"x_some": X[:8]}, model=model)
    with pytest.raises(ValueError, match=r"different numbers of rows: .*'x_some' has 8"):
        source.check_data()


def test_weights_of_other_rows():
    model = hurdle(pm.Data)
    weights = pytensor.shared(np.ones(N + M), shape=(None,))
    source = gradient_source(model, model.value_vars, batch_size=5, row_weights=weights)
    new = {"x_some": X[:9], "level_some": LEVEL[:9], "amount_some": REAL[:9]}
    pm.set_data(new, model=model)
    with pytest.raises(ValueError, match=f"{N + 9} rows now, but weights of {N + M}"):
        source.check_data()


def test_rows_that_depend_on_each_other_are_named():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=REAL)
        pm.Normal("walk", pt.cumsum(mu * X[:M, 0]), 1, observed=REAL[:M])
    with pytest.raises(ValueError, match=rf"'walk' is not.*the dim of length {M}: a cumulative"):
        gradient_source(model, model.value_vars, batch_size=5)


# ---- which likelihoods have batches --------------------------------------------------------


def lengths(model):
    return [axis.length for axis in find_row_axes(model)]


def test_few_rows_beside_many_are_whole():
    """They cost little at each update, and would add much noise in batches."""
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=np.zeros(200))
        pm.Normal("few", mu, 1, observed=np.zeros(19))
    assert lengths(model) == [200]
    source = gradient_source(model, model.value_vars, batch_size=20)
    assert_unbiased(model, source)


def test_many_rows_beside_more_are_not(monkeypatch):
    monkeypatch.setattr(rows_in_batches, "FEW_ROWS", 10)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=np.zeros(200))
        pm.Normal("few", mu, 1, observed=np.zeros(19))
    assert lengths(model) == [200, 19]


@pytest.mark.parametrize("named", [True, False])
def test_data_of_groups_are_whole(named):
    """A term with an element for each group needs all of them."""
    coords = {"group": range(M), "row": range(N)}
    of_groups = {"dims": "group"} if named else {}
    with pm.Model(coords=coords) as model:
        effect = pm.Normal("effect", 0, 1, **of_groups or {"shape": M})
        group = pm.Data("group_of_row", np.arange(N) % M)
        pm.Normal("y", effect[group], 1, observed=REAL)
        pm.Normal("measured", effect, 1, observed=REAL[:M], **of_groups)
    assert lengths(model) == [N]
    assert_unbiased(model, gradient_source(model, model.value_vars, batch_size=5))


def test_as_many_rows_without_names():
    """They may be the same rows or others."""
    with pm.Model(coords={"row": range(N)}) as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=REAL, dims="row")
        pm.Normal("z", mu, 1, observed=REAL)
    with pytest.raises(ValueError, match="Several dims of the observed 'y', 'z'"):
        gradient_source(model, model.value_vars, batch_size=5)


def test_streamed_rows_are_of_one_likelihood():
    data = sgm.StreamedData({"y_data": REAL}, window=N)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=pm.Data("y_data", data.head(2)["y_data"]))
        pm.Normal("z", mu, 1, observed=REAL[:M])
    with pytest.raises(ValueError, match="Several dims"):
        gradient_source(model, model.value_vars, batch_size=5, data=data)


@pytest.mark.parametrize("then", [N + M, N])
def test_draws_are_judged_with_the_rows_that_they_are_of(then):
    """Those of both likelihoods, or of one, with minibatch_dim=."""
    draws = Dataset(attrs={"adaptation": json.dumps({"n_rows": then})})
    _check_rows(draws, hurdle())
    with pytest.raises(ValueError, match=rf"draws are of {then} rows, but the model has 57 "):
        _check_rows(draws, other_lengths())


# ---- what every update evaluates whole -----------------------------------------------------


def beside(potential=None, observed=None, **options):
    """What is said of a model with a term of other rows, when its step is made."""
    with pm.Model(coords={"row": range(N), "other": range(M)}) as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=REAL, dims="row")
        if potential is not None:
            pm.Potential("term", potential(mu))
        if observed is not None:
            pm.Normal("term", mu, 1, observed=observed, dims="other")
    options = {"step_size": 0.1, "batch_size": 5, "compile_kwargs": {"mode": "JAX"}} | options
    with model:
        sgm.SGLD(**options)


@pytest.mark.parametrize(
    ("term", "told"),
    [
        (
            {"potential": lambda mu: pt.cumsum(mu - REAL[:M])},
            rf"'term' \({M} rows.*'term' so, or as a pm\.CustomDist",
        ),
        ({"potential": lambda mu: -((mu - REAL[:M]) ** 2)}, None),
        ({"potential": lambda mu: -((mu - REAL) ** 2).sum()}, None),
        ({"observed": REAL[:M], "minibatch_dim": "row"}, rf"'term' \({M} rows"),
        ({"potential": lambda mu: -((mu - REAL[:5]) ** 2)}, None),  # no more than a batch
        ({"potential": lambda mu: -(mu**4)}, None),
        ({"observed": REAL[:M]}, None),
    ],
    ids=["a running sum", "other rows", "a sum", "observed", "few rows", "prior", "has batches"],
)
def test_a_term_outside_of_the_batches_is_told_once(term, told, caplog):
    with caplog.at_level(logging.INFO, logger="pymc.sgmcmc"):
        beside(**term)
    said = [text for text in caplog.messages if "every update evaluates all" in text]
    assert len(said) == (told is not None)
    if told is not None:
        assert re.search(told, said[0])
        assert "passes over the data does not count" in said[0]


# ---- an adapted step -----------------------------------------------------------------------


@pytest.mark.long
def test_nothing_to_choose():
    """Two samples with a common mean and known sds: the posterior is normal.

    4000 effective draws have a mean with the error .016 sd and an sd with that of 1.1 %, and .05 is
    the bias that the adaptation tolerates: 4 errors more.
    """
    rng = np.random.default_rng(3)
    y, z = rng.normal(1.0, 1.0, 3000), rng.normal(1.0, 0.5, 1500)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Normal("y", mu, 1.0, observed=y)
        pm.Normal("z", mu, 0.5, observed=z)
    precision = 0.01 + 3000 + 1500 / 0.25
    mean, sd = (y.sum() + z.sum() / 0.25) / precision, precision**-0.5
    with model:
        step = sgm.MSGNHT_S(rng=1, compile_kwargs={"mode": "JAX"})
        assert step.batch_size is not None
        assert step.adapted.n_rows == 4500
        idata = sgm.sample(4000, step=step, chains=2, random_seed=2, progressbar=False)
    draws = idata.posterior["mu"].to_numpy()
    assert abs(draws.mean() - mean) / sd < 0.05 + 4 * 0.016
    assert abs(draws.std() / sd - 1) < 0.05 + 4 * 0.011
