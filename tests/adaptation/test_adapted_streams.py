"""Nothing to choose for streamed data and for models written with pm.Minibatch either."""

import json

import numpy as np
import pymc as pm
import pytest
from known_posteriors import Linear, assert_right

import pymc_sgmcmc as sgm
from pymc_sgmcmc.adaptation.local_gradients import LocalGradients
from pymc_sgmcmc.adaptation.rows_warm_up import noise_covariance
from pymc_sgmcmc.diagnosis.coordinates import Coordinates
from pymc_sgmcmc.diagnosis.gradients_at_draws import RowsAtDraws
from pymc_sgmcmc.gradients.all_rows import with_all_rows
from pymc_sgmcmc.gradients.metric import Diagonal
from pymc_sgmcmc.gradients.row_gradients import RowGradients, refuse_infinite

JAX = {"mode": "JAX"}
QUICK = {"progressbar": False, "compute_convergence_checks": True}
RNG = np.random.default_rng(4)
N = 5000
X = RNG.normal(size=(N, 2))
GROUP = RNG.integers(3, size=N)
Y = X @ [1.0, -0.5] + GROUP + RNG.normal(size=N)


class Loader:
    """Batches of rows; it may drop the rows of its last batch."""

    n_rows = N
    batch_size = 384

    def __init__(self, drops):
        self.last = N - N % self.batch_size if drops else N

    def __iter__(self):
        for k in range(0, self.last, self.batch_size):
            part = slice(k, k + self.batch_size)
            yield {"X": X[part], "group": GROUP[part], "y": Y[part]}


SOURCES = {
    "arrays": {"X": X, "group": GROUP, "y": Y},
    "loader": Loader(drops=False),
    "loader that drops": Loader(drops=True),
}


def model_of(rows, total_size=None):
    """A regression on these rows: arrays or batches."""
    with pm.Model() as model:
        a = pm.Normal("a", 0, 5, shape=3)
        w = pm.Normal("w", 0, 3, shape=2)
        s = pm.HalfNormal("s", 2)
        mu = a[rows["group"]] + rows["X"] @ w
        if total_size is not None:
            pm.Deterministic("mu", mu)
        pm.Normal("likelihood", mu, s, observed=rows["y"], total_size=total_size)
    return model


def whole():
    return model_of(SOURCES["arrays"])


def streamed(data):
    """The same model with placeholders."""
    head = data.head()
    with pm.Model() as model:
        rows = {
            "X": pm.Data("X", head["X"], dims=("obs", "column")),
            "group": pm.Data("group", head["group"], dims="obs"),
            "y": pm.Data("y", head["y"], dims="obs"),
        }
        a = pm.Normal("a", 0, 5, shape=3)
        w = pm.Normal("w", 0, 3, shape=2)
        s = pm.HalfNormal("s", 2)
        mu = a[rows["group"]] + rows["X"] @ w
        pm.Normal("likelihood", mu, s, observed=rows["y"], dims="obs")
    return model


THETA = np.array([0.1, 1.2, 1.9, 0.8, -0.4, 0.1])


# ---- gradients of single rows that stay on disk --------------------------------------------


def test_infinite_values_are_named():
    """Where they alone leave rows without a density."""
    x = X.copy()
    x[[7, 4000], 1] = np.inf
    data = sgm.StreamedData({"X": x, "group": GROUP, "y": Y}, window=1024)
    model = streamed(data)
    rows = RowGradients(model, model.value_vars, data=data, compile_kwargs=JAX)
    with pytest.raises(ValueError, match=r"data\['X'\] has infinite values in 2 of the 4096 rows"):
        rows.likelihood(THETA)


def test_infinite_values_are_named_where_effects_are_local():
    """The gradient of a batch has no rows to look at; the first batch is without such a row."""
    group = RNG.integers(600, size=N)
    x = X[:, 0].copy()
    x[[7, 4000]] = np.inf
    data = sgm.StreamedData({"x": x, "group": group, "y": Y}, window=1024)
    head = data.head()
    with pm.Model() as model:
        rows = {name: pm.Data(name, head[name], dims="obs") for name in head}
        a = pm.Normal("a", 0, 1, shape=600)
        pm.Normal("likelihood", a[rows["group"]] + rows["x"], 1, observed=rows["y"], dims="obs")
        options = {"batch_size": 128, "data": data, "local": ["a"], "rng": 1}
        step = sgm.MSGNHT_S(step_size=0.1, compile_kwargs=JAX, **options)
    gradients = LocalGradients(step.kernel, model.initial_point())
    told = r"data\['x'\] has infinite values in 1 of the 128 rows just read"
    at_zero = (
        gradients.at(gradients.gathered([np.zeros(600)], batch), batch)
        for batch in gradients.batches(2 * N // 128, np.random.default_rng(1))
    )
    with pytest.raises(ValueError, match=told):
        list(at_zero)


def test_infinite_values_of_several_containers():
    """Which are named where they leave all bad rows without a density, and only then."""
    rows = {"x": np.array([np.inf, 0, 0, -np.inf]), "y": np.array([0, np.inf, 0, 0])}
    refuse_infinite(rows, np.array([True, True, False, True]))
    with pytest.raises(ValueError, match=r"data\['x'\] has infinite values in 1 of the 4 rows"):
        refuse_infinite(rows, np.array([False, True, True, True]))
    told = r"data\['x'\] and data\['y'\] have infinite values in 2 of the 4 rows"
    with pytest.raises(ValueError, match=told):
        refuse_infinite(rows, np.array([False, False, True, True]))


def test_infinite_bounds_are_no_fault():
    data = sgm.StreamedData({"upper": np.where(Y > 0, np.inf, 5.0), "y": Y}, window=1024)
    head = data.head()
    with pm.Model() as model:
        upper = pm.Data("upper", head["upper"], dims="obs")
        y = pm.Data("y", head["y"], dims="obs")
        mu = pm.Normal("mu")
        pm.Censored("z", pm.Normal.dist(mu, 1), lower=None, upper=upper, observed=y, dims="obs")
    in_python = {"mode": "FAST_COMPILE"}  # JAX has no erfcx, which PyMC before 6.4 makes of it
    rows = RowGradients(model, model.value_vars, data=data, compile_kwargs=in_python)
    assert np.isfinite(rows.likelihood(np.array([0.3])).value)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mode", ["JAX", "NUMBA"])
def test_a_pass_adds_up_all_rows(source, mode):
    kwargs = {"compile_kwargs": {"mode": mode}}
    in_memory = whole()
    expected = RowGradients(in_memory, in_memory.value_vars, **kwargs)
    data = sgm.StreamedData(SOURCES[source], window=1024)
    model = streamed(data)
    rows = RowGradients(model, model.value_vars, data=data, **kwargs)
    assert rows.n_rows == N
    assert 1000 <= rows.n_at_hand <= 1024
    read = SOURCES[source].last if "drops" in source else N
    sums = expected.likelihood(THETA, np.arange(read))
    found = rows.likelihood(THETA)
    np.testing.assert_allclose(found.value, sums.value * N / read, rtol=1e-9)
    np.testing.assert_allclose(found.gradient, sums.gradient * N / read, rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(found.scatter, sums.scatter * N / read, rtol=1e-9, atol=1e-6)


def test_rows_by_number_are_rows_of_the_data():
    in_memory = whole()
    expected = RowGradients(in_memory, in_memory.value_vars, compile_kwargs=JAX)
    data = sgm.StreamedData(SOURCES["arrays"], window=1024, chunk=4)
    model = streamed(data)
    rows = RowGradients(model, model.value_vars, data=data, compile_kwargs=JAX)
    _, found = rows.rows(THETA, np.arange(1000))
    _, every = expected.rows(THETA, np.arange(N))
    # Each sampled row is one of the data, from all parts of the array, and none twice.
    places = [int(np.argmin(np.abs(every - one).sum(axis=1))) for one in found]
    np.testing.assert_allclose(found, every[places], rtol=1e-9, atol=1e-9)
    assert len(set(places)) == 1000
    assert np.bincount(np.array(places) // 1000).min() > 100
    with pytest.raises(IndexError, match="out of bounds"):
        rows.rows(THETA, [rows.n_at_hand])


def test_an_index_out_of_range_is_found_in_a_pass():
    group = GROUP.copy()
    group[-1] = 3
    data = sgm.StreamedData({"X": X, "group": group, "y": Y}, window=1024)
    model = streamed(data)
    rows = RowGradients(model, model.value_vars, data=data, compile_kwargs=JAX)
    with pytest.raises(ValueError, match=r"'group'.*3"):
        rows.likelihood(THETA)


def test_gradients_at_draws_are_those_of_all_rows():
    """A sample's own gradient is off by sqrt(N / 256) = 4.4 sds; its change from an anchor is not.

    Along each direction the mean gradient has the noise of the rows over 200 draws, and the error
    of the sample's curvature, 256^(-1/2) of the draws' mean of 200^(-1/2). The virial, about 1, has
    the sample's relative error of 256^(-1/2) and that of 1200 products.
    """
    data = sgm.StreamedData(SOURCES["arrays"], window=256, chunk=1)
    model = streamed(data)
    rows = RowGradients(model, model.value_vars, data=data, compile_kwargs=JAX)
    anchor = np.array([*(Y - X @ [1.0, -0.5] - GROUP).mean() + np.arange(3), 1.0, -0.5, 0.0])
    sd = np.diag(rows.likelihood(anchor).scatter) ** -0.5
    z = np.random.default_rng(6).normal(size=(200, 6))
    draws, matrix = anchor + sd * z, np.diag(sd)
    at_draws = RowsAtDraws(rows, Coordinates(matrix, "", anchor))
    exact, found = (at_draws(draws, exact) for exact in (True, False))
    off = np.abs(found.gradients.mean(axis=0) - exact.gradients.mean(axis=0))
    assert np.all(off < 4 * (np.sqrt(found.noise / 200) + (256 * 200) ** -0.5))
    virials = [-(z * seen.gradients).mean() for seen in (exact, found)]
    error = 256**-0.5 + np.sqrt(found.noise.mean() / 1200)
    assert abs(virials[1] - virials[0]) < 4 * error


def test_the_noise_of_batches_is_that_of_all_rows():
    """1000 rows of 5000: a variance of gradients is known to some 10%."""
    in_memory = whole()
    every = RowGradients(in_memory, in_memory.value_vars, compile_kwargs=JAX)
    data = sgm.StreamedData(SOURCES["arrays"], window=1024, chunk=4)
    model = streamed(data)
    some = RowGradients(model, model.value_vars, data=data, compile_kwargs=JAX)
    metric = Diagonal([(3,), (2,), ()])
    metric.set(np.diag(every.likelihood(THETA).scatter) ** -0.5)
    positions = THETA + 0.02 * RNG.normal(size=(20, 6))
    noise = [
        noise_covariance(g, metric, positions, THETA, None, None, 32, np.random.default_rng(1))
        for g in (some, every)
    ]
    found, expected = (np.trace(covariance) for covariance, _ in noise)
    assert found == pytest.approx(expected, rel=0.4)


# ---- the default call ----------------------------------------------------------------------


def on_disk(target, n=2):
    """The model of a target with placeholders, and its rows."""
    with pm.Model() as model:
        rows = pm.Data("X", target.X[:n], dims=("obs", "column"))
        y = pm.Data("y", target.y[:n], dims="obs")
        b = pm.Flat("b")
        w = pm.Flat("w", shape=4)
        s = pm.HalfFlat("s")
        pm.Normal("likelihood", b + rows @ w, s, observed=y, dims="obs")
    return model, {"X": target.X, "y": target.y}


@pytest.mark.slow(20)
def test_default_call_on_streamed_data():
    """Rows sorted by the target, so that each window of the stream has others than the whole."""
    target = Linear(n_rows=20_000)
    by_y = np.argsort(target.y)
    target.X, target.y = target.X[by_y], target.y[by_y]
    model, rows = on_disk(target)
    data = sgm.StreamedData(rows, window=4096, chunk=8)
    with model:
        step = sgm.MSGNHT_S(data=data, compile_kwargs=JAX)
        idata = sgm.sample(step=step, random_seed=1, **QUICK)
    assert_right(idata, target.truth())
    assert idata["diagnosis"].attrs["verdict"] == "ok"
    chosen = json.loads(idata.posterior.attrs["adaptation"])
    assert (chosen["n_rows"], chosen["rows"], chosen["metric"]) == (20_000, "all alike", "dense")
    with pytest.raises(ValueError, match="draws are of 20000 rows, but the model has 2 now"):
        sgm.diagnose(idata, model)
    assert sgm.diagnose(idata, model, data=data).verdict == "ok"
    wide = idata.copy()
    centre = idata.posterior["w"].mean(["chain", "draw"])
    wide.posterior["w"] = centre + 1.5 * (idata.posterior["w"] - centre)
    assert sgm.diagnose(wide, model, data=data).verdict == "failed"


def in_batches(target):
    """A target written with pm.Minibatch."""
    rows, y = pm.Minibatch(target.X, target.y, batch_size=50)
    with pm.Model() as model:
        b = pm.Flat("b")
        w = pm.Flat("w", shape=4)
        s = pm.HalfFlat("s")
        mu = pm.Deterministic("mu", b + rows @ w)
        pm.Normal("likelihood", mu, s, observed=y, total_size=len(target.y))
    return model


@pytest.mark.long
@pytest.mark.slow(20)
def test_default_call_on_a_model_with_minibatches():
    target = Linear()
    with in_batches(target) as model:
        idata = sgm.sample(random_seed=1, compile_kwargs=JAX, **QUICK)
        step = sgm.MSGNHT_S(compile_kwargs=JAX, rng=1)
        by_pymc = pm.sample(
            1000, step=step, random_seed=1, chains=2, cores=1, progressbar=False, var_names=["w"]
        )
    truth = target.truth()
    assert_right(idata, truth)
    np.testing.assert_array_equal(idata.observed_data["likelihood"], target.y)
    assert idata["diagnosis"].attrs["verdict"] == "ok"
    assert json.loads(idata.posterior.attrs["adaptation"])["batch_size"] == 50
    assert sgm.diagnose(idata, model).verdict == "ok"
    truth.mean, truth.sd = ({"w": moments["w"]} for moments in (truth.mean, truth.sd))
    assert_right(by_pymc, truth, ess=0)


# ---- the model of all rows behind pm.Minibatch ---------------------------------------------


def test_the_model_of_all_rows():
    table = pm.Data("table", X, model=pm.Model())
    rows = dict(zip(["X", "group", "y"], pm.Minibatch(table, GROUP, Y, batch_size=10), strict=True))
    model = model_of(rows, total_size=N)
    other, batch_size = with_all_rows(model)
    assert batch_size == 10
    assert other.value_vars == model.value_vars
    assert [rv.name for rv in other.free_RVs] == ["a", "w", "s"]
    assert not other.deterministics  # it depends on the batch
    point = model.initial_point()
    point["w"] = np.array([0.3, -0.2])
    logp = other.compile_logp(mode="FAST_COMPILE")
    np.testing.assert_allclose(
        logp(point), whole().compile_logp(mode="FAST_COMPILE")(point), rtol=1e-12
    )
    before = logp(point)
    table.set_value(2 * X)  # the data are shared, not copied
    assert logp(point) != before


def two_calls():
    x = pm.Minibatch(X, batch_size=10)
    group, y = pm.Minibatch(GROUP, Y, batch_size=10)
    return model_of({"X": x, "group": group, "y": y}, total_size=N)


def batch_of(total_size):
    rows = pm.Minibatch(X, GROUP, Y, batch_size=10)
    return model_of(dict(zip(["X", "group", "y"], rows, strict=True)), total_size)


def of_an_expression():
    group, y = pm.Minibatch(GROUP, 2 * pm.Data("y", Y, model=pm.Model()), batch_size=10)
    with pm.Model() as model:
        a = pm.Normal("a", shape=3)
        pm.Normal("likelihood", a[group], 1, observed=y, total_size=N)
    return model


def in_a_potential():
    y = pm.Minibatch(Y, batch_size=10)
    with pm.Model() as model:
        a = pm.Normal("a")
        pm.Potential("term", -((y - a) ** 2).sum() * N / 10)
    return model


REFUSED = {
    "two calls": (two_calls, "'likelihood'.*several calls of pm.Minibatch"),
    "another total size": (lambda: batch_of(100), "total_size=100, but.*draws from 5000 rows"),
    "no total size": (lambda: batch_of(None), "without total_size="),
    "an expression": (of_an_expression, "'likelihood' uses pm.Minibatch of the expression"),
    "a potential": (in_a_potential, "'term' uses pm.Minibatch and has no total_size="),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_whose_rows_are_not_known(name):
    make, message = REFUSED[name]
    with make(), pytest.raises(ValueError, match=f"{message}.*step_size=.*with numbers"):
        sgm.MSGNHT_S(compile_kwargs=JAX)


def test_batch_size_and_minibatch():
    with batch_of(N), pytest.raises(ValueError, match=r"batch_size=20 and pm\.Minibatch"):
        sgm.MSGNHT_S(batch_size=20)


def test_too_many_parameters_of_streamed_data():
    data = sgm.StreamedData({"x": np.ones((50, 2500)), "y": np.ones(50)}, window=40)
    with pm.Model():
        x = pm.Data("x", data.head()["x"], dims=("obs", "column"))
        y = pm.Data("y", data.head()["y"], dims="obs")
        w = pm.Normal("w", shape=2500)
        pm.Normal("likelihood", x @ w, 1, observed=y, dims="obs")
        with pytest.raises(ValueError, match=r"2500 parameters.*data=.*step_size=\.\.\."):
            sgm.MSGNHT_S(data=data)
