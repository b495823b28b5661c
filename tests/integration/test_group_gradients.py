"""Second derivatives of the likelihood of groups whose effects are integrated out."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

from pymc_sgmcmc.adaptation.integrated_warm_up import IntegratedWarmUp
from pymc_sgmcmc.adaptation.rows_warm_up import RowsWarmUp
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.integration import group_gradients
from pymc_sgmcmc.integration.group_gradients import GroupGradients
from pymc_sgmcmc.integration.group_terms import group_terms
from pymc_sgmcmc.integration.integrated_model import integrated_model
from pymc_sgmcmc.integration.points import points_of


@pytest.fixture
def gradients(python_by_default):
    """Of people, integrated out, and 3 cities, at the centres of a point; and that point."""
    rng = np.random.default_rng(1)
    person, city = rng.integers(12, size=60), rng.integers(3, size=60)
    with pm.Model() as model:
        a = pm.Normal("person", 0, pm.HalfNormal("scale", 1), shape=12)
        b = pm.Normal("city", pm.Normal("mean", 0, 1), 0.7, shape=3)
        pm.Poisson("y", pm.math.exp(a[person] + b[city]), observed=rng.poisson(2.0, 60))
    integrated = integrated_model(group_terms(model, ["person"]), points_of(1))
    found = GroupGradients(integrated, integrated.value_vars)
    theta = found.flat(integrated.initial_point()) + rng.normal(0, 0.3, found.size)
    integrated.centres.move(found.point(theta))
    return found, theta


def differences(gradients, theta):
    """The Hessian from gradients, around centres that stay where they are."""

    def gradient(theta):
        likelihood = RowGradients.likelihood(gradients, theta, None, False)
        return gradients.prior_gradient(theta) + likelihood.gradient

    steps = 1e-5 * np.eye(gradients.size)
    return np.array([(gradient(theta + s) - gradient(theta - s)) / 2e-5 for s in steps])


def test_hessian_of_all_groups(gradients):
    gradients, theta = gradients
    found, passes = gradients.hessian(theta, np.random.default_rng(0))
    np.testing.assert_allclose(found, differences(gradients, theta), rtol=1e-6, atol=1e-6)
    assert passes == 2 * gradients.size


def test_hessian_of_samples_of_groups_adds_up(gradients, monkeypatch):
    gradients, theta = gradients
    monkeypatch.setattr(group_gradients, "DENSITIES", 0)
    monkeypatch.setattr(group_gradients, "LEAST_GROUPS", 1)

    def of(groups):
        rng = SimpleNamespace(choice=lambda index, n, replace: np.array(groups))
        return gradients.hessian(theta, rng)

    three = [of([k, k + 3, k + 6, k + 9]) for k in range(3)]
    mean = np.mean([hessian for hessian, _ in three], axis=0)
    np.testing.assert_allclose(mean, differences(gradients, theta), rtol=1e-6, atol=1e-6)
    assert [passes for _, passes in three] == 3 * [2 * gradients.size * 4 / 12]


@pytest.mark.parametrize(
    ("n_groups", "has_past", "expected"), [(60, True, 2.0), (60, False, 1.0), (61, True, 1.0)]
)
def test_second_derivatives_of_few_groups_after_the_first_window(
    n_groups, has_past, expected, monkeypatch
):
    monkeypatch.setattr(RowsWarmUp, "curvatures", lambda self: [np.eye(3)])
    counted = []
    warm_up = object.__new__(IntegratedWarmUp)
    vars(warm_up).update(
        gradients=SimpleNamespace(
            n_rows=n_groups - 1,
            size=3,
            likelihood_products=object(),
            hessian=lambda anchor, rng: (-2 * np.eye(3), 6.0),
        ),
        past=np.zeros((1, 3)) if has_past else None,
        anchor=np.zeros(3),
        rng=None,
        count=counted.append,
    )
    [found] = warm_up.curvatures()
    np.testing.assert_array_equal(found, expected * np.eye(3))
    assert counted == ([6.0] if expected == 2 else [])
