"""Effects of groups integrated out: densities and gradients against integrals by brute force."""

import numpy as np
import pymc as pm
import pytensor
import pytest
from hierarchies import LOCAL

import hierarchies
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.integration.group_terms import NotIntegrated, group_terms
from pymc_sgmcmc.integration.integrated_model import integrated_model
from pymc_sgmcmc.integration.points import points_of

INTEGRATED = {
    "fixed_scales": ["alpha"],
    "centred": ["alpha"],
    "noncentred": ["z"],
    "group_predictor": ["alpha"],
    "transformed": ["shape", "rate"],
    "lkj_rows": ["ab"],
    "lkj_noncentred": ["z"],
    "nested": ["school"],
    "crossed": ["v", "bias"],
}
"""The index with the most groups, of forms in which a model may be written."""


def density(model, inputs):
    return pytensor.function(
        inputs, model.logp(), mode=PYTHON, on_unused_input="ignore", trust_input=True
    )


def by_brute_force(model, terms, point, width=6.0, n=25):
    """Log of the integral over all effects, by sums over a grid around each group's mode.

    The effects of a group are varied with those of all others held: the integrand is a product.
    """
    logp = density(model, model.value_vars)
    names = [v.name for v in model.value_vars]

    def at(effects):
        full = dict(point)
        for effect in terms.effects:
            own = effects[:, first[effect.value] : first[effect.value] + effect.size]
            own = own.reshape(-1, *effect.shape)
            full[effect.value.name] = np.moveaxis(own, 0, effect.axis)
        return float(logp(*(np.asarray(full[name], dtype="float64") for name in names)))

    first, k = {}, 0
    for effect in terms.effects:
        first[effect.value] = k
        k += effect.size
    effects = np.zeros((terms.n_groups, k))
    total = at(effects)
    for j in range(terms.n_groups):

        def moved(x, j=j):
            changed = effects.copy()
            changed[j] = x
            return at(changed)

        from scipy.optimize import minimize

        found = minimize(lambda x: -moved(x), np.zeros(k), method="BFGS", options={"gtol": 1e-4})
        chol = np.linalg.cholesky(found.hess_inv)
        x, w = np.polynomial.hermite_e.hermegauss(n)
        grid = np.stack(np.meshgrid(*[x] * k, indexing="ij"), axis=-1).reshape(-1, k)
        weights = np.prod(np.stack(np.meshgrid(*[w] * k, indexing="ij"), axis=-1), axis=-1).ravel()
        keep = weights > weights.max() * 1e-17
        values = [moved(found.x + chol @ z) + z @ z / 2 for z in grid[keep]]
        volume = np.log(np.linalg.det(chol))
        total += np.log(np.sum(weights[keep] * np.exp(np.array(values) + found.fun)))
        total += volume - found.fun - at(effects)
    return total


@pytest.mark.parametrize("form", INTEGRATED)
def test_integrated_density_is_that_of_the_model(form):
    model = getattr(hierarchies, form)()
    terms = group_terms(model, INTEGRATED[form])
    assert sorted(terms.names) == sorted(INTEGRATED[form])
    integrated = integrated_model(terms, points_of(terms.k, refine=2))
    rng = np.random.default_rng(1)
    start = integrated.initial_point()
    point = {name: value + rng.normal(0, 0.3, np.shape(value)) for name, value in start.items()}
    ours = float(
        density(integrated, integrated.value_vars)(
            *(np.asarray(point[v.name]) for v in integrated.value_vars)
        )
    )
    expected = by_brute_force(model, terms, point)
    # Quadrature with 22 or 14 nodes per effect against 25 about another centre.
    assert ours == pytest.approx(expected, abs=2e-4)
