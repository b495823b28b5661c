"""Which dim is sliced into batches, which arrays are sliced and how, and the self-check."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from models import MODELS, N

import pymc_sgmcmc as sgm
from pymc_sgmcmc.gradients import batch_check
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.gradients.batch_terms import batched_terms
from pymc_sgmcmc.gradients.model_gradient import gradient_source
from pymc_sgmcmc.gradients.rows_in_batches import find_row_axis

REAL = np.random.default_rng(0).normal(size=N)


def sliced_parts(model, minibatch_dim=None):
    """What is sliced: the terms, axis of each data container, and what is left to the prior."""
    row_axis = find_row_axis(model, minibatch_dim)
    terms, sliced, rest, *_ = batched_terms(model, row_axis, pt.lvector())
    return (
        [term.name for term in terms],
        {array.name: s.axis for array, s in sliced.items() if array in model.data_vars},
        [var.name for var in rest],
    )


@pytest.mark.parametrize(
    ("name", "dim", "terms", "arrays", "rest"),
    [
        ("linear", None, ["y"], {"x": 0}, []),
        ("hierarchical", None, ["y"], {"group_index": 0}, []),
        ("poisson_int64_data", None, ["y"], {"counts": 0}, []),
        ("two_terms", None, ["y", "counts"], {"x": 0}, []),
        ("rows_not_first", None, ["y"], {"x": 1}, []),
        ("one_term_elsewhere", "obs", ["y"], {}, ["other"]),
        ("one_term_elsewhere", "survey", ["other"], {}, ["y"]),
        ("potential_along_rows", None, ["z", "robust"], {"y": 0}, ["soft_limit"]),
        ("potential_without_dims", None, ["z", "robust"], {}, ["soft_limit"]),
        ("potential_without_dims_on_data", None, ["z", "robust"], {"x": 0}, ["shrink"]),
    ],
)
def test_what_is_sliced(name, dim, terms, arrays, rest):
    assert sliced_parts(MODELS[name](), dim) == (terms, arrays, rest)


def test_dim_of_the_images_is_not_that_of_the_parameters():
    """channel and pixel belong to free variables: obs is left."""
    assert str(find_row_axis(MODELS["rows_not_first"](), None)) == "dim 'obs'"


def test_dim_named_by_the_data_containers_alone():
    with pm.Model(coords={"obs": range(N)}) as model:
        x = pm.Data("x", REAL, dims="obs")
        pm.Normal("y", pm.Normal("w") * x, 1, observed=REAL)
    assert find_row_axis(model, None).name == "obs"


def test_likelihood_written_as_potential_alone():
    with pm.Model(coords={"obs": range(N)}) as model:
        x = pm.Data("x", REAL, dims="obs")
        pm.Potential("fit", -((pm.Normal("mu") - x) ** 2), dims="obs")
    assert sliced_parts(model) == (["fit"], {"x": 0}, [])


def test_potential_with_the_length_of_the_rows_by_chance():
    """As many groups as rows: the penalty of each group is not a term of the likelihood."""
    with pm.Model(coords={"group": range(N)}) as model:
        a = pm.Normal("a", 0, 1, dims="group")
        pm.Potential("penalty", -(a**4))
        index = pm.Data("index", np.arange(N)[::-1])
        pm.Normal("y", a[index], 1, observed=REAL)
    assert sliced_parts(model) == (["y"], {"index": 0}, ["penalty"])


def test_parameter_with_the_length_of_the_rows_stays_whole():
    with pm.Model(coords={"obs": range(N), "group": range(N)}) as model:
        centre = pm.Data("centre", REAL, dims="group")
        a = pm.Normal("a", centre, 1, dims="group")
        index = pm.Data("index", np.arange(N)[::-1], dims="obs")
        pm.Normal("y", a[index] + centre[index], 1, observed=REAL, dims="obs")
    assert sliced_parts(model)[1] == {"index": 0}
    gradient_source(model, model.value_vars, batch_size=5)  # and the self-check agrees


# ---- the self-check ------------------------------------------------------------------------


def dependent_rows(n_rows=N):
    """Rows that depend on those before them, in an innocent form."""
    x = np.random.default_rng(1).normal(size=n_rows)
    with pm.Model() as model:
        pm.Normal("y", pt.cumsum(pm.Normal("w") * x), 1, observed=x)
    return model


def test_self_check_refuses_dependent_rows():
    model = dependent_rows()
    with pytest.raises(ValueError, match=r"'y' is not conditionally independent.*batch_size=None"):
        gradient_source(model, model.value_vars, batch_size=5)


def test_self_check_refuses_rows_centred_by_their_own_mean():
    with pm.Model(coords={"obs": range(N)}) as model:
        x = pm.Data("x", REAL, dims="obs")
        pm.Normal("y", pm.Normal("w") * (x - x.mean()), 1, observed=REAL, dims="obs")
    with pytest.raises(ValueError, match="'y' is not conditionally independent"):
        gradient_source(model, model.value_vars, batch_size=5)


def test_self_check_refuses_a_potential_that_is_no_sum():
    with pm.Model(coords={"obs": range(N)}) as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=REAL, dims="obs")
        x = pm.Data("x", REAL, dims="obs")
        pm.Potential("spread", mu * x / pt.abs(x).sum(), dims="obs")
    with pytest.raises(ValueError, match="'spread' is not conditionally independent"):
        gradient_source(model, model.value_vars, batch_size=5)


def test_self_check_can_be_turned_off():
    model = dependent_rows()
    gradient_source(model, model.value_vars, batch_size=5, self_check=False)


@pytest.mark.parametrize("dependent", [True, False])
def test_self_check_looks_at_a_bounded_number_of_rows(monkeypatch, dependent):
    """With many rows the whole likelihood is never evaluated; the fault is found all the same."""
    n_rows, seen = 200_000, []
    compiled = batch_check.total_of

    def spy(inputs, term):
        function = compiled(inputs, term)

        def call(*args):
            seen.append([len(a) for v, a in zip(inputs, args, strict=True) if v is index])
            return function(*args)

        return call

    monkeypatch.setattr(batch_check, "total_of", spy)
    x = np.random.default_rng(1).normal(size=n_rows)
    with pm.Model() as model:
        mu = pm.Normal("w") * x
        pm.Normal("y", pt.cumsum(mu) if dependent else mu, 1, observed=x)
    row_axis, index, start = find_row_axis(model, None), pt.lvector(), model.initial_point()
    terms, sliced, *_ = batched_terms(model, row_axis, index)
    arrays = {array: s.full for array, s in sliced.items()}
    if dependent:
        with pytest.raises(ValueError, match="'y' is not conditionally independent"):
            batch_check.check_terms(model, terms, arrays, index, row_axis, start)
    else:
        batch_check.check_terms(model, terms, arrays, index, row_axis, start)
    quarter = batch_check.MAX_ROWS // 4
    assert seen == [[quarter]] * 4 + [[batch_check.MAX_ROWS]]


def far_from_zero(centred_in_graph, w_start=None):
    """Counts on x from 1e5 to 9e5: away from w = 0 the rate overflows."""
    x = np.linspace(1e5, 9e5, N)
    with pm.Model() as model:
        x = pm.Data("x", x)
        w = pm.Normal("w", 0, 1, initval=w_start)
        rate = pt.exp(w * (x - x.mean() if centred_in_graph else x))
        pm.Poisson("y", rate, observed=np.arange(N) % 4)
    return model


def test_self_check_where_only_near_points_are_finite():
    model = far_from_zero(centred_in_graph=True)
    with pytest.raises(ValueError, match="'y' is not conditionally independent"):
        gradient_source(model, model.value_vars, batch_size=5)
    model = far_from_zero(centred_in_graph=False)
    gradient_source(model, model.value_vars, batch_size=5)


def test_self_check_begins_at_the_step_s_own_start():
    """Where the model's is not finite, that of the step counts."""
    model = far_from_zero(centred_in_graph=True, w_start=1.0)
    with pytest.raises(ValueError, match="'y' is not conditionally independent"):
        sgm.SGLD(model=model, step_size=0.1, batch_size=5, initial_point={"w": np.array(0.0)})


def test_self_check_finds_no_finite_point():
    """At the start alone there is one: nothing can be said of the batches."""
    with pm.Model() as model:
        w = pm.Normal("w")
        wall = pt.switch(pt.eq(w, 0), 0.0, -np.inf)
        pm.Normal("x", w, 1, observed=REAL)
        pm.CustomDist("y", wall, logp=lambda y, wall: wall + 0 * y, observed=REAL)
    with pytest.raises(ValueError, match=r"'y' has no finite .*near the initial one.*initval="):
        gradient_source(model, model.value_vars, batch_size=5)
    gradient_source(model, model.value_vars, batch_size=5, self_check=False)


@pytest.mark.parametrize("centred_in_graph", [True, False])
def test_self_check_with_latents_where_only_near_points_are_finite(centred_in_graph):
    with pm.Model(coords={"obs": range(N)}) as model:
        x = pm.Data("x", np.linspace(1e5, 9e5, N), dims="obs")
        z = pm.Bernoulli("z", 0.5, dims="obs")
        rate = pt.exp(pm.Normal("w") * (x - x.mean() if centred_in_graph else x) + z)
        pm.Poisson("y", rate, observed=np.arange(N) % 4, dims="obs")

    def make():
        mode = {"mode": PYTHON}
        latents = sgm.Gibbs([z], n_samples=1, burn_in=0)
        sgm.SGLD(model=model, step_size=1e-20, batch_size=5, latents=latents, compile_kwargs=mode)

    if not centred_in_graph:
        make()
        return
    with pytest.raises(ValueError, match="'y' is not conditionally independent"):
        make()
