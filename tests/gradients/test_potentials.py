"""Potentials as likelihoods: vectors of rows, and scalars that are sums over rows."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from models import REAL, N, X
from test_gradients import assert_unbiased

from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.gradients.rows_in_batches import find_row_axes
from pymc_sgmcmc.integration.whether_to_integrate import terms_to_integrate

GROUP = np.arange(N) % 4
COUNT = np.arange(N) % 3


def log_density(mu, scale=1.0):
    """Of each row, with a group's effect and data of several kinds."""
    effect = pm.Normal("effect", shape=4)
    eta = mu + pm.math.dot(pm.Data("x", X), pm.Normal("w", shape=3)) + effect[GROUP]
    return scale * pm.logp(pm.Poisson.dist(pt.exp(eta)), COUNT)


def table(mu):
    return -((pm.Data("x", X) - mu) ** 2)


LIKELIHOODS = {
    "a vector": log_density,
    "a sum": lambda mu: log_density(mu).sum(),
    "minus a sum": lambda mu: -log_density(mu, -1.0).sum(),
    "a product": lambda mu: 0.5 * pt.sum(log_density(mu)),
    "a product with a parameter": lambda mu: mu * log_density(mu).sum() / 2,
    "a quotient": lambda mu: log_density(mu).sum() / pm.HalfNormal("t"),
    "a difference": lambda mu: log_density(mu).sum() - (pt.exp(mu) * pt.as_tensor(REAL) ** 2).sum(),
    "a table": lambda mu: table(mu).sum(),
    "sums of rows of a table": lambda mu: table(mu).sum(axis=1).sum(),
    "pairs of a ranking": lambda mu: pt.log(
        pm.math.invlogit(effects_of_pairs(pm.Normal("skill", shape=4)))
    ).sum(),
}
"""Potentials of which a batch takes some rows."""


def effects_of_pairs(skill):
    """Data that are indices only: who has won against whom."""
    return skill[GROUP] - skill[(GROUP + COUNT + 1) % 4]


def model_with(potential):
    with pm.Model() as model:
        pm.Potential("ll", potential(pm.Normal("mu")))
    return model


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_average_over_batches_is_the_full_gradient(name):
    model = model_with(LIKELIHOODS[name])
    [axis] = find_row_axes(model)
    assert axis.length == N
    source = gradient_source(model, model.value_vars, batch_size=5)
    assert source.rows[0].n_rows == N
    assert_unbiased(model, source)


NOT_SLICED = {
    "a running sum": lambda mu: pt.cumsum(log_density(mu)),
    "a sum of a running sum": lambda mu: pt.cumsum(log_density(mu)).sum(),
    "a mean": lambda mu: table(mu).mean(),
    "a product with a length": lambda mu: table(mu).sum() * pm.Data("z", REAL).shape[0],
    "a logarithm of a sum": lambda mu: pt.log(pt.exp(log_density(mu)).sum()),
    "a product of sums": lambda mu: table(mu).sum() * pt.sum(-((mu - REAL) ** 2)),
    "a sum beside a number": lambda mu: log_density(mu).sum() - mu**2,
    "sums of different lengths": lambda mu: table(mu).sum() + pt.sum(-((mu - REAL[:7]) ** 2)),
    "an element for each row": lambda mu: -((pm.Normal("z", shape=N) - REAL) ** 2),
    "no data": lambda mu: -(pt.stack([mu, 2 * mu]) ** 2),
}


@pytest.mark.parametrize("name", NOT_SLICED)
def test_others_have_no_rows(name):
    model = model_with(NOT_SLICED[name])
    with pytest.raises(ValueError, match=r"No observation dim found.*'ll'"):
        find_row_axes(model)


# ---- beside observed variables -------------------------------------------------------------


def beside(potential, n_rows=100):
    """Outcomes that are observed, and others that are known to be below a limit."""
    limits = np.linspace(0.5, 2, n_rows)
    with pm.Model() as model:
        rate = pm.HalfNormal("rate")
        pm.Exponential("y", rate, observed=np.abs(REAL))
        pm.Potential("censored", potential(rate, limits))
    return model


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("constant", [1.0, -1.0])
def test_rows_of_their_own(summed, constant):
    def censored(rate, limits):
        terms = constant * pm.logcdf(pm.Exponential.dist(rate), limits)
        return terms.sum() if summed else terms

    model = beside(censored)
    assert [axis.length for axis in find_row_axes(model)] == [N, 100]
    source = gradient_source(model, model.value_vars, batch_size=5)
    assert source.rows[0].n_rows == N + 100
    assert_unbiased(model, source)


PRIORS = {
    "neighbours": lambda rate, limits: (
        -((pm.Normal("phi", shape=9)[np.arange(100) % 9] - rate) ** 2)
    ),
    "few rows": lambda rate, limits: pt.sum(-((rate - limits[:2]) ** 2)),
    "a running sum": lambda rate, limits: pt.cumsum(rate * limits),
}


@pytest.mark.parametrize("name", PRIORS)
def test_other_potentials_are_whole(name):
    model = beside(PRIORS[name])
    assert [axis.length for axis in find_row_axes(model)] == [N]
    source = gradient_source(model, model.value_vars, batch_size=5)
    assert_unbiased(model, source)


def test_sum_over_the_rows_of_observed_variables():
    """It shares their batches."""
    with pm.Model() as model:
        mu, x = pm.Normal("mu"), pm.Data("x", REAL)
        pm.Normal("y", mu * x, 1, observed=REAL[::-1])
        pm.Potential("robust", -0.3 * pt.log1p((x - mu) ** 2).sum())
    source = gradient_source(model, model.value_vars, batch_size=5)
    assert not source.full
    assert source.rows[0].n_rows == N
    assert_unbiased(model, source)


# ---- effects of groups ---------------------------------------------------------------------


@pytest.mark.parametrize("summed", [False, True])
def test_effects_of_weighted_rows_are_integrated_out(summed):
    group, y = np.repeat(np.arange(300), 3), np.sin(np.arange(900.0))
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("tau"), shape=300)
        terms = (1 + y**2) * pm.logp(pm.Normal.dist(a[group], 1), y)
        pm.Potential("weighted", terms.sum() if summed else terms)
    terms = terms_to_integrate(model, "auto", None, predicts=False)
    assert terms is not None
    assert terms.names == ["a"]
