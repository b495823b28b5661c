"""Integrated effects on JAX, where all groups have as many rows as the largest."""

import hierarchies
import numpy as np
import pymc as pm
import pytensor
import pytest
from known_posteriors import Groups, assert_right

import pymc_sgmcmc as sgm
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.integration.group_gradients import GroupGradients
from pymc_sgmcmc.integration.group_rows import padded, ragged
from pymc_sgmcmc.integration.group_terms import group_terms
from pymc_sgmcmc.integration.integrated_model import integrated_model
from pymc_sgmcmc.integration.quadrature_points import points_of
from pymc_sgmcmc.integration.whether_to_integrate import terms_to_integrate
from pymc_sgmcmc.run import step_of_run
from pymc_sgmcmc.run.parametrisation import Form
from pymc_sgmcmc.run.sample_arguments import Arguments

JAX = {"mode": "JAX"}
LKJ = pytest.param("lkj_rows", True, marks=pytest.mark.long)


def test_padded_rows_are_those_of_groups(python_by_default):
    first, sizes = np.array([7, 0, 3]), np.array([2, 3, 1])
    positions, places, counted = (part.eval() for part in padded(first, sizes, 4))
    assert len(positions) == 12
    for kept, right in zip((positions, places), ragged(first, sizes), strict=True):
        np.testing.assert_array_equal(kept[counted.ravel()], right.eval())
    np.testing.assert_array_equal(positions, [7, 8, 8, 8, 0, 1, 2, 2, 3, 3, 3, 3])


@pytest.mark.parametrize(("form", "follow"), [("noncentred", False), LKJ])
def test_jax_gives_the_gradients_of_groups(form, follow, python_by_default):
    """Also once the points have moved, although JAX has copies of their arrays."""
    terms = group_terms(getattr(hierarchies, form)())

    def gradients(pads, kwargs):
        integrated = integrated_model(terms, points_of(terms.k), follow, pads)
        return GroupGradients(integrated, integrated.value_vars, compile_kwargs=kwargs)

    on_jax, right = gradients(True, JAX), gradients(False, None)
    rng = np.random.default_rng(1)
    for _ in range(2):
        theta = rng.normal(0, 0.5, right.size)
        ours, theirs = on_jax.likelihood(theta), right.likelihood(theta)
        for own, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-8, atol=1e-8)
    some = [3, 0, 1]
    for own, other in zip(on_jax.rows(theta, some), right.rows(theta, some), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-8, atol=1e-8)


@pytest.mark.long
def test_default_call_on_jax_integrates_effects():
    problem = Groups(n_rows=1500, n_groups=60)
    with problem.model() as model:
        tree = sgm.sample(integrate=["a"], random_seed=1, progressbar=False, compile_kwargs=JAX)
    assert '"integrated": ["a"]' in tree["posterior"].attrs["adaptation"]
    assert tree["diagnosis"].attrs["verdict"] == "ok"
    assert_right(tree, problem.truth())
    with pytensor.config.change_flags(mode="JAX"):  # for the compilation of what follows, too
        found = sgm.diagnose(tree, model)
    assert found.attrs["verdict"] == "ok"


def test_what_jax_does_not_integrate(python_by_default):
    group = np.repeat(np.arange(100), 3)
    group[100:] = 99
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("s"), shape=100)
        pm.Normal("y", a[pm.Data("group", group)], 1, observed=np.zeros(300))
    with pytest.raises(ValueError, match=r"largest has 200 rows where the average is 8\.57"):
        terms_to_integrate(model, ["a"], JAX, predicts=False)
    assert terms_to_integrate(model, ["a"], None, predicts=False) is not None
    data = StreamedData.of({"group": group})
    with pytest.raises(ValueError, match="groups of streamed data need numba, not JAX"):
        terms_to_integrate(model, ["a"], JAX, predicts=False, data=data)


def test_groups_run_on_the_given_backend(monkeypatch, python_by_default):
    """Networks are put on JAX, but a network's groups are padded only if JAX was asked for."""
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfNormal("s"), shape=60)
        pm.Normal("y", a[np.arange(120) % 60], 1, observed=np.zeros(120))
    given = Arguments(model=model, idata_kwargs={})
    form = Form.of(given, terms_to_integrate(model, ["a"], None, predicts=False))
    made = {}
    monkeypatch.setattr(step_of_run, "MSGNHT_S", lambda **settings: made.update(settings))
    monkeypatch.setattr(step_of_run, "_compile_kwargs_of", lambda model: JAX)
    step_of_run.default_step(form.sampled.model, None, np.random.default_rng(1), of_groups=True)
    assert made["compile_kwargs"] is None
