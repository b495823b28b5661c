"""Effects of groups integrated out: densities and gradients against integrals by brute force."""

import hierarchies
import numpy as np
import pytensor
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.integration.group_terms import group_terms
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


def effects_into(terms, point, effects):
    """Add effects, shape (groups, k), to a point."""
    full, first = dict(point), 0
    for effect in terms.effects:
        own = effects[:, first : first + effect.size].reshape(-1, *effect.shape)
        full[effect.value.name] = np.moveaxis(own, 0, effect.axis)
        first += effect.size
    return full


def by_brute_force(model, terms, point):
    """Log of the integral over all effects, by sums over a grid around each group's mode.

    The effects of a group are varied with those of all others held: the integrand is a product.
    """
    logp = density(model, model.value_vars)
    k, zeros = terms.k, np.zeros((terms.n_groups, terms.k))

    def at(effects):
        full = effects_into(terms, point, effects)
        return float(logp(*(np.asarray(full[v.name], dtype="float64") for v in model.value_vars)))

    total = at(zeros)
    for j in range(terms.n_groups):

        def moved(x, j=j):
            effects = zeros.copy()
            effects[j] = x
            return at(effects)

        found = minimize(lambda x, f=moved: -f(x), np.zeros(k), method="Nelder-Mead").x
        e = 1e-3 * np.eye(k)
        hessian = [
            [(moved(found + a + b) - moved(found + a - b) - moved(found - a + b)
              + moved(found - a - b)) / -4e-6 for a in e] for b in e
        ]  # fmt: skip
        factor = np.linalg.inv(np.linalg.cholesky(np.array(hessian))).T
        # The trapezoidal rule: its error falls exponentially; tails of skewed densities are long.
        x = np.linspace(-14, 14, 57)
        grid = np.stack(np.meshgrid(*[x] * k, indexing="ij"), axis=-1).reshape(-1, k)
        values = [moved(found + factor @ z) for z in grid]
        cell = np.linalg.det(factor) * (x[1] - x[0]) ** k
        total += logsumexp(values) + np.log(cell) - at(zeros)
    return total


REFINE = {"transformed": 6}
"""Where the conditional density of log rates has long tails the rule converges slowly."""
TOLERANCE = {"transformed": 0.02}


@pytest.mark.parametrize("form", INTEGRATED)
def test_integrated_density_is_that_of_the_model(form):
    model = getattr(hierarchies, form)()
    terms = group_terms(model, INTEGRATED[form])
    assert sorted(terms.names) == sorted(INTEGRATED[form])
    integrated = integrated_model(terms, points_of(terms.k, REFINE.get(form, 2)))
    rng = np.random.default_rng(1)
    start = integrated.initial_point()
    point = {name: value + rng.normal(0, 0.3, np.shape(value)) for name, value in start.items()}
    integrated.centres.move(point)
    values = [np.asarray(point[v.name], dtype="float64") for v in integrated.value_vars]
    ours = float(density(integrated, integrated.value_vars)(*values))
    expected = by_brute_force(model, terms, point)
    assert ours == pytest.approx(expected, abs=TOLERANCE.get(form, 1e-6))
