"""Data that changes after a step was made: what no longer fits is refused, never read beyond."""

import itertools

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_sgmcmc as sgm
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.gradients.data_check import IndexCheck

N, K = 40, 4
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 2))
Y = X @ [1.0, -1.0] + 0.1 * rng.normal(size=N)
GROUP = rng.integers(K, size=N)
IN_PYTHON = {"mode": PYTHON}


def make(model, **options):
    options = {"step_size": 1e-3, "batch_size": 10, "compile_kwargs": IN_PYTHON} | options
    return sgm.SGLD(model=model, **options)


def regression(minibatch=False, total_size=N):
    with pm.Model() as model:
        x, y = pm.Data("x", X), pm.Data("y_data", Y)
        if minibatch:
            x, y = pm.Minibatch(x, y, batch_size=10)
        mu = x @ pm.Normal("w", shape=2)
        pm.Normal("y", mu, 1, observed=y, total_size=total_size if minibatch else None)
    return model


def grouped(first=0, minibatch=False, as_data=True, groups=GROUP):
    """A group's effect on each row; groups numbered from ``first``."""
    with pm.Model() as model:
        group = pm.Data("group", groups + first) if as_data else groups + first
        y = pm.Data("y_data", Y)
        if minibatch:
            group, y = pm.Minibatch(group, y, batch_size=10)
        mu = pm.Normal("effect", shape=K)[group - first]
        pm.Normal("y", mu, 1, observed=y, total_size=N if minibatch else None)
    return model


def begin(step):
    step.setup_chain(np.random.default_rng(1), tune=0, draws=0)


WAYS = pytest.mark.parametrize(
    ("minibatch", "options"),
    [(False, {}), (False, {"batch_size": None}), (True, {"batch_size": None})],
    ids=["batch_size", "whole", "pm.Minibatch"],
)


# ---- rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"x": X[:15]}, {"y_data": Y[:15]}, {"x": np.r_[X, X]}])
@pytest.mark.parametrize("minibatch", [False, True])
def test_rows_of_one_array_alone(minibatch, change):
    model = regression(minibatch)
    step = make(model, batch_size=None if minibatch else 10)
    pm.set_data(change, model=model)
    [[name, rows]] = change.items()
    told = rf"different numbers of rows: .*'{name}' has {len(rows)}.*pm\.set_data"
    with pytest.raises(ValueError, match=told):
        begin(step)
    pm.set_data({"x": X, "y_data": Y}, model=model)
    begin(step)


def test_rows_of_a_plain_array_stay():
    with pm.Model() as model:
        pm.Normal("y", pm.Data("x", X) @ pm.Normal("w", shape=2), 1, observed=Y)
    step = make(model)
    pm.set_data({"x": X[:15]}, model=model)
    with pytest.raises(ValueError, match=r"'x' has 15.*plain array keeps its rows"):
        begin(step)


def test_rows_are_compared_by_both_ways_to_sample():
    model = regression()
    step = make(model)
    pm.set_data({"x": X[:15]}, model=model)
    options = dict(draws=5, tune=0, chains=1, step=step, progressbar=False, random_seed=1)
    for sample in [lambda: pm.sample(cores=1, **options), lambda: sgm.sample(**options)]:
        with model, pytest.raises(ValueError, match=r"different numbers of rows: 'y_data' has 40"):
            sample()


@pytest.mark.slow(5)
@pytest.mark.parametrize("mode", ["JAX", IN_PYTHON["mode"]], ids=["JAX", "Python"])
def test_new_rows_of_all_arrays(mode):
    """More or fewer of them: the draws are those of a step made for them."""
    model = regression()
    step = make(model, compile_kwargs={"mode": mode}, thin=5)
    for n in [15, 2 * N]:
        new = {"x": np.resize(X, (n, 2)), "y_data": np.resize(Y, n)}
        pm.set_data(new, model=model)
        made = make(model, compile_kwargs={"mode": mode}, thin=5)
        draws = []
        for one in (step, made):
            begin(one)
            draws.append(one.step(model.initial_point())[0]["w"])
        np.testing.assert_array_equal(*draws)


def test_total_size_that_is_no_longer_right():
    model = regression(minibatch=True)
    step = make(model, batch_size=None)
    pm.set_data({"x": X[:15], "y_data": Y[:15]}, model=model)
    with pytest.raises(ValueError, match=r"'x' has 15 rows now.*total_size=40"):
        begin(step)


def test_total_size_that_follows_the_data():
    with pm.Model() as model:
        data = pm.Data("y_data", Y)
        batch = pm.Minibatch(data, batch_size=10)
        pm.Normal("y", pm.Normal("mu"), 1, observed=batch, total_size=[data.shape[0]])
    step = make(model, batch_size=None)
    pm.set_data({"y_data": Y[:15]}, model=model)
    begin(step)


# ---- shapes --------------------------------------------------------------------------------


@WAYS
def test_another_number_of_columns(minibatch, options):
    model = regression(minibatch)
    step = make(model, **options)
    pm.set_data({"x": np.c_[X, X]}, model=model)
    with pytest.raises(ValueError, match=r"'x'.*\(40, 4\).*[Mm]ake a new"):
        begin(step)


@pytest.mark.parametrize("change", [{"x": X[:15]}, {"y_data": Y[:1]}])
def test_rows_of_one_array_alone_without_batches(change):
    model = regression()
    step = make(model, batch_size=None)
    pm.set_data(change, model=model)
    with pytest.raises(ValueError, match=r"no longer fits.*shapes changed \('\w+' from \(40,"):
        begin(step)


def test_changed_data_in_another_process():
    """A step that travels knows what it was made for."""
    model = regression()
    step = make(model, batch_size=None)
    pm.set_data({"y_data": Y[:1]}, model=model)
    with pytest.raises(ValueError, match="no longer fits"):
        cloudpickle.loads(cloudpickle.dumps(step))


# ---- indices -------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("bad", [K, -K - 1, 1000])
def test_index_out_of_range(minibatch, options, first, bad):
    model = grouped(first, minibatch)
    step = make(model, **options)
    groups = GROUP.copy()
    groups[[7, 9]] = bad
    pm.set_data({"group": groups + first}, model=model)
    told = rf"data 'group' has the index {bad} \(at 7\) into 'effect', which has 4 elements"
    with pytest.raises(ValueError, match=told):
        begin(step)
    groups[[7, 9]] = -K  # counts from the end, as NumPy does
    pm.set_data({"group": groups + first}, model=model)
    begin(step)


@pytest.mark.parametrize("as_data", [True, False])
@pytest.mark.parametrize("options", [{}, {"batch_size": None}])
def test_index_out_of_range_from_the_start(as_data, options):
    groups = GROUP.copy()
    groups[3] = K
    told = r"^The (data 'group'|array of shape \(40,\)) has the index 4 \(at 3\) into 'effect'"
    with pytest.raises(ValueError, match=told):
        make(grouped(as_data=as_data, groups=groups), self_check=False, **options)


def test_index_into_data_and_scalar_index():
    with pm.Model() as model:
        centre = pm.Data("centre", np.zeros((2, K)))
        which = pm.Data("which", np.array(2))
        mu = pm.Normal("mu") * centre[1, pm.Data("group", GROUP)]
        scale = pm.math.exp(pm.Normal("log_scale", shape=3))[which]
        pm.Normal("y", mu, scale, observed=Y)
    step = make(model)
    pm.set_data({"centre": np.zeros((2, 3))}, model=model)
    assert GROUP.max() == 3
    with pytest.raises(ValueError, match=r"'group' has the index 3 .* into 'centre', .* 3 el"):
        begin(step)
    pm.set_data({"centre": np.zeros((2, K)), "which": np.array(3)}, model=model)
    with pytest.raises(ValueError, match=r"'which' has the index 3 into 'log_scale'"):
        begin(step)


def test_indices_that_data_does_not_determine():
    """Shapes, random numbers and classes that are clipped: nothing is said of these."""
    with pm.Model() as model:
        classes = pm.Data("classes", GROUP)
        pm.Categorical("y", logit_p=X @ pm.Normal("w", shape=(2, K)), observed=classes)
    step = make(model)
    check = IndexCheck(step.source)
    check([np.full(a.get_value().shape, 7) if a.name else X for a, _ in step.source.data], [N])


def test_index_of_latent_rows():
    with pm.Model(coords={"obs": range(N)}) as model:
        group = pm.Data("group", GROUP, dims="obs")
        effect = pm.Normal("effect", shape=K)
        z = pm.Bernoulli("z", 0.5, dims="obs")
        pm.Normal("y", effect[group] * z, 1, observed=Y, dims="obs")
    step = make(model, latents=sgm.Gibbs([z], n_samples=1, burn_in=0))
    groups = np.where(np.arange(N) == 5, K, GROUP)
    new = {"group": groups, "y": Y}
    with pytest.raises(ValueError, match=r"index 4 \(at 5\) into 'effect'"):
        sgm.log_marginal_likelihood(
            {"effect": np.zeros(K)}, [z], data=new, model=model, compile_kwargs=IN_PYTHON
        )
    pm.set_data({"group": groups}, model=model)
    with pytest.raises(ValueError, match=r"index 4 \(at 5\) into 'effect'"):
        begin(step)


class Loader:
    """Batches of two containers, whose groups go wrong in the third epoch."""

    total_size = N

    def __init__(self):
        self.passes = itertools.count()

    def __iter__(self):
        groups = np.where(np.arange(N) == 31, K + (next(self.passes) > 8), GROUP + 1)
        for k in range(0, N, 10):
            yield {"group": groups[k : k + 10], "y_data": Y[k : k + 10]}


def streamed_model():
    with pm.Model() as model:
        group = pm.Data("group", np.ones(3, dtype=int))
        mu = pm.Normal("effect", shape=K)[group - 1]
        pm.Normal("y", mu, 1, observed=pm.Data("y_data", np.zeros(3)))
    return model


def test_index_out_of_range_in_a_stream():
    groups = GROUP + 1
    groups[31] = K + 1
    data = {"group": groups, "y_data": Y}
    with pytest.raises(ValueError, match=r"'group' has the index 4 .* into 'effect'"):
        make(streamed_model(), data=data, self_check=False)


def test_index_that_goes_wrong_while_streaming():
    """Draws made until then are kept."""
    step = make(streamed_model(), data=Loader(), thin=4)
    with pytest.raises(ValueError, match=r"'group' has the index 4 ") as caught:
        sgm.sample(
            100, tune=0, chains=1, step=step, model=step.model, quiet=True,
            compute_convergence_checks=False,
        )  # fmt: skip
    assert 0 < caught.value.idata.posterior.sizes["draw"] < 100


# ---- separate calls of pm.Minibatch --------------------------------------------------------


def separate(potential=False, meet=True):
    with pm.Model() as model:
        x = pm.Minibatch(pm.Data("x", X), batch_size=10)
        y = pm.Minibatch(Y, batch_size=10)
        w, b = pm.Normal("w", shape=2), pm.Normal("b")
        if potential:
            pm.Potential("penalty", -((x @ w - y) ** 2))
        pm.Normal("y", x @ w if meet else b, 1, observed=y, total_size=N)
        if not meet:
            pm.Normal("x_too", w, 1, observed=x, total_size=(N, None))
    return model


@pytest.mark.parametrize(("potential", "name"), [(False, "variable 'y'"), (True, "'penalty'")])
def test_separate_draws_of_rows_that_belong_together(potential, name):
    told = (
        rf"{name} mixes rows of 2 pm.Minibatch calls, of (the array of shape \(40,\)|'x')"
        r" and of .* to one call of pm\.Minibatch"
    )
    with pytest.raises(ValueError, match=told):
        make(separate(potential, meet=not potential), batch_size=None)


def test_separate_draws_that_never_meet():
    step = make(separate(meet=False), batch_size=None)
    assert len(step.source.rows) == 2
