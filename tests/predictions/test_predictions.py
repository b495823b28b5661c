"""Predictions averaged while sampling are those of a stored trace, however the chains are run."""

import os
import re

import numpy as np
import pymc as pm
import pytensor
import pytest
from kills import MODE, ended, in_child, same, write_much
from scipy.special import softmax

import pymc_sgmcmc as sgm
from pymc_sgmcmc.predictions import metrics
from pymc_sgmcmc.predictions.running_average import RunningAverage

DRAWS, TUNE, CHAINS, CLASSES, TESTS = 12, 3, 2, 3, 23
pytestmark = pytest.mark.usefixtures("one_graph_at_a_time")
RNG = np.random.default_rng(4)
X, X_TEST = RNG.normal(size=(60, 2)), RNG.normal(size=(TESTS, 2))
W_TRUE = RNG.normal(size=(2, CLASSES))
Y, Y_TEST = (np.argmax(x @ W_TRUE + RNG.gumbel(size=(len(x), 3)), axis=1) for x in (X, X_TEST))


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


def softmax_model(**data):
    with pm.Model(coords={"class": list("abc")}) as model:
        W = pm.Normal("W", 0, 2, shape=(2, CLASSES))
        x = pm.Data("X", X)
        p = pm.Deterministic("p", pm.math.softmax(x @ W, axis=1), dims=(None, "class"))
        pm.Categorical("y", p, observed=Y)
    return model


@pytest.fixture(scope="module")
def model(quick_compilation):
    return softmax_model()


@pytest.fixture(scope="module")
def step(model):
    with model:
        return sgm.SGLD(
            step_size=sgm.PolynomialDecay(0.1, b=5.0, c=0.5),
            batch_size=20,
            thin=2,
            compile_kwargs={"mode": MODE},
        )


def averages(model, var="p", labels=Y_TEST, **options):
    return sgm.Predictions(
        var, {"X": X_TEST}, labels, **({"batch_size": 10, "model": model} | options)
    )


def run(model, step, predictions=(), **options):
    options = {
        "draws": DRAWS,
        "tune": TUNE,
        "chains": CHAINS,
        "random_seed": 1,
        "chain_method": "sequential",
        "compute_convergence_checks": False,
        "quiet": True,
        "var_names": ["W"],
    } | options
    with model:
        return sgm.sample(step=step, predictions=predictions, **options)


@pytest.fixture(scope="module")
def trace(model, step):
    return run(model, step)


def of_trace(tree):
    """Predictions of each stored draw, shape (chains, draws, rows, classes)."""
    return softmax(X_TEST @ tree.posterior["W"].values, axis=-1)


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), b, rtol=1e-12, atol=1e-14)


def check_against_trace(found, tree):
    """Everything in the group, computed anew from all draws at once."""
    p, n = of_trace(tree), CHAINS * tree.posterior.sizes["draw"]
    mean = p.mean(axis=(0, 1))
    close(found["mean"], mean)
    close(found["sd"], p.std(axis=(0, 1)))
    close(found["chain_mean"], p.mean(axis=1))
    running = np.cumsum(p, axis=1) / np.arange(1, p.shape[1] + 1)[:, None, None]
    for c in range(CHAINS):
        for k in range(p.shape[1]):
            for name, value in metrics.of_classes(p[c, k], Y_TEST).items():
                close(found[f"draw_{name}"][c, k], value)
            for name, value in metrics.of_classes(running[c, k], Y_TEST).items():
                close(found[f"running_{name}"][c, k], value)
    close(found["log_likelihood"], np.log(mean[np.arange(TESTS), Y_TEST]).mean())
    classes = p.argmax(axis=-1).reshape(n, TESTS)
    pairs = [np.mean(classes[i] != classes[j]) for i in range(n) for j in range(i)]
    close(found["disagreement_of_draws"], np.mean(pairs))
    one, two = p.mean(axis=1).argmax(axis=-1)
    close(found["disagreement_of_chains"], np.mean(one != two))
    entropy = -(p * np.log(p)).sum(axis=-1).mean(axis=(0, 1))
    close(found["mutual_information"], -(mean * np.log(mean)).sum(axis=-1) - entropy)
    assert found["mean"].dims == ("test_row", "class")
    assert list(found["class"].values) == list("abc")


@pytest.mark.parametrize("method", ["sequential", "parallel"])
@pytest.mark.parametrize("var", ["p", "y"])
def test_averages_are_those_of_the_trace(model, step, trace, method, var):
    tree = run(model, step, averages(model, var), chain_method=method, cores=2)
    np.testing.assert_array_equal(tree.posterior["W"], trace.posterior["W"])
    if var == "p":
        check_against_trace(tree.test_predictions, tree)
    close(tree.test_predictions["mean"], of_trace(tree).mean(axis=(0, 1)))


@pytest.mark.slow(12)
def test_all_chains_in_one_call():
    model = softmax_model()
    with model:
        step = sgm.SGLD(step_size=0.02, batch_size=20, thin=2, compile_kwargs={"mode": "JAX"})
    tree = run(model, step, averages(model), chain_method="vectorized")
    check_against_trace(tree.test_predictions, tree)


@pytest.mark.parametrize("method", ["sequential", "parallel"])
def test_a_variable_of_the_model_itself(method):
    """A free variable, a transformed one and a scalar, without test data."""
    with softmax_model() as other:
        tau = pm.HalfNormal("tau", dims="class")
        pm.Deterministic("total", tau.sum())
        several = [sgm.Predictions(name) for name in ("W", "tau", "total")]
        two = sgm.SGLD(step_size=0.01, batch_size=20, thin=2, compile_kwargs={"mode": MODE})
    assert repr(several[0]) == "Predictions('W')"
    names = ["W", "tau", "total"]
    tree = run(other, two, several, var_names=names, chain_method=method)
    for name in names:
        found, draws = tree[f"average_{name}"], tree.posterior[name]
        moments = draws.mean(["chain", "draw"]), draws.std(["chain", "draw"])
        for computed, expected in zip((found["mean"], found["sd"]), moments, strict=True):
            np.testing.assert_allclose(computed, expected, rtol=1e-12)
        np.testing.assert_allclose(found["chain_mean"], draws.mean("draw"), rtol=1e-12)
    assert tree["average_tau"]["mean"].dims == ("class",)
    assert tree["average_tau"]["class"].values.tolist() == list("abc")
    assert tree["average_W"]["mean"].dims == ("prediction_dim_0", "prediction_dim_1")
    assert tree["average_total"]["mean"].shape == ()
    nothing = run(other, two, several[:1], var_names=[])
    assert not nothing.posterior.data_vars
    np.testing.assert_array_equal(nothing["average_W"]["mean"], tree["average_W"]["mean"])


def test_as_a_callback_of_pymc(model, step, trace):
    found = averages(model)
    with model:
        start = [{"W": w} for w in np.zeros((CHAINS, 2, CLASSES))]
        tree = pm.sample(
            DRAWS,
            tune=TUNE,
            chains=CHAINS,
            cores=1,
            step=step,
            callback=found,
            random_seed=1,
            initvals=start,
            progressbar=False,
            compute_convergence_checks=False,
            quiet=True,
        )
    check_against_trace(found.to_dataset(), tree)


def test_nothing_else_need_be_recorded(model, step, trace, tmp_path):
    """No weight is kept in memory or on disk, and the averages are the same."""
    expected = run(model, step, averages(model)).test_predictions
    for options in ({}, {"trace": tmp_path / "run"}):
        tree = run(model, step, averages(model), var_names=[], **options)
        assert not tree.posterior.data_vars
        assert tree.posterior.sizes == {"chain": CHAINS, "draw": DRAWS}
        assert tree.test_predictions.to_dataset().identical(expected.to_dataset())
    files = sum(len(names) for _, _, names in os.walk(tmp_path / "run" / "posterior"))
    assert files < 12  # coordinates and a placeholder


def test_weights_by_step_size(model, step):
    tree = run(model, step, averages(model, weights="step_size"))
    p, h = of_trace(tree), tree.sample_stats["step_size"].values
    assert h.min() < 0.6 * h.max()
    mean = np.average(p.reshape(-1, TESTS, CLASSES), axis=0, weights=h.ravel())
    close(tree.test_predictions["mean"], mean)
    variance = np.average((p - mean).reshape(-1, TESTS, CLASSES) ** 2, axis=0, weights=h.ravel())
    close(tree.test_predictions["sd"], variance**0.5)
    close(tree.test_predictions["weight"], h)


def test_regression_and_several_predictions(model, step):
    both = [
        averages(model, labels=None),
        averages(model, labels=np.eye(3)[Y_TEST], task="regression", name="numbers"),
    ]
    tree = run(model, step, both)
    assert "accuracy" not in tree.test_predictions
    error = of_trace(tree).mean(axis=(0, 1)) - np.eye(3)[Y_TEST]
    close(tree["numbers"]["rmse"], np.sqrt(np.mean(error**2)))


@pytest.mark.parametrize("method", ["sequential", "parallel"])
def test_a_run_that_is_interrupted_has_them_too(model, step, method):
    def stop(trace, draw):
        if draw.draw_idx == TUNE + 5:
            raise KeyboardInterrupt

    found = averages(model)
    tree = run(model, step, found, chain_method=method, cores=2, callback=stop)
    n = [average.n for average in found.chains.values()]
    assert 6 <= max(n) <= DRAWS
    assert tree.test_predictions.sizes["draw"] == max(n)


# ---- resuming ------------------------------------------------------------------------------


@pytest.mark.slow(3)
@pytest.mark.parametrize("at", [1, 7])
def test_resumed_after_a_kill(model, step, tmp_path, at):
    """As never killed, to the last bit: also the best draw, which is in no trace."""
    whole = averages(model, weights="step_size")
    expected = run(model, step, whole, trace=tmp_path / "whole", var_names=[])
    store = sgm.ZarrStore(tmp_path / "killed", seconds=0)

    class Deadly(sgm.Predictions):
        def add(self, chain, point, stats):
            if chain == 1 and chain in self.chains and self.chains[chain].n == at:
                os._exit(9)
            super().add(chain, point, stats)

    def work():
        write_much()
        deadly = Deadly("p", {"X": X_TEST}, Y_TEST, model=model, weights="step_size")
        run(model, step, deadly, trace=store, var_names=[])

    assert ended(in_child(work)) == 9
    found = averages(model, weights="step_size")
    tree = run(model, step, found, trace=store, resume=True, var_names=[])
    assert same(tree, expected)
    assert found.chains[1].n == DRAWS
    np.testing.assert_array_equal(found.best["point"]["W"], whole.best["point"]["W"])
    # a finished run gives them once more, and a longer one goes on with them
    again = averages(model, weights="step_size")
    assert same(run(model, step, again, trace=store, resume=True, var_names=[]), expected)
    longer = run(model, step, again, trace=store, resume=True, var_names=[], draws=DRAWS + 3)
    close(
        longer.test_predictions["running_brier"][:, :DRAWS],
        expected.test_predictions["running_brier"],
    )
    assert longer.test_predictions.sizes["draw"] == DRAWS + 3


def test_resumed_on_other_data(model, step, tmp_path):
    options = {"trace": tmp_path / "run"}
    run(model, step, averages(model), **options)
    other = sgm.Predictions("p", {"X": X_TEST + 1}, 2 - Y_TEST, model=model)
    with pytest.raises(ValueError, match=r"are of other data\['X'\], labels than now"):
        run(model, step, other, resume=True, **options)
    with pytest.raises(ValueError, match="no predictions 'others': resume it without"):
        run(model, step, averages(model, name="others"), resume=True, **options)
    with pytest.raises(ValueError, match="resume it with the same predictions="):
        run(model, step, resume=True, draws=DRAWS + 1, **options)


def test_the_best_draw(model, step, trace):
    """Wherever chains run."""
    for method in ("sequential", "parallel"):
        found = averages(model, monitor="calibration_error")
        run(model, step, found, chain_method=method, cores=2)
        scores = found.to_dataset()["draw_calibration_error"].values
        c, k = found.best["chain"], found.best["draw"]
        assert found.best["value"] == scores[c, k] == np.nanmin(scores)
        np.testing.assert_array_equal(found.best["point"]["W"], trace.posterior["W"][c, k])


# ---- metrics -------------------------------------------------------------------------------


def test_metrics_by_hand():
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(4) / 2, size=200)
    y = rng.integers(4, size=200)
    found = metrics.of_classes(p, y)
    brier = np.mean([np.sum((row - np.eye(4)[k]) ** 2) for row, k in zip(p, y, strict=True)])
    gap, confidence = 0.0, p.max(axis=1)
    for b in range(15):
        mine = (confidence >= b / 15) & ((confidence < (b + 1) / 15) | (b == 14))
        if mine.any():
            right = (p[mine].argmax(axis=1) == y[mine]).mean()
            gap += mine.mean() * abs(right - confidence[mine].mean())
    close([found["brier"], found["calibration_error"]], [brier, gap])
    certain = metrics.of_classes(np.array([[1.0, 0.0]]), np.array([1]))
    assert -1000 < certain["log_likelihood"] < -700


def test_a_binary_label():
    average = RunningAverage(None, True, None)
    average.add(np.array([[0.3, 0.7]]), 1.0, {})
    assert average.votes.tolist() == [[0, 1]]


def test_one_probability_is_two_classes():
    with pm.Model() as model:
        w = pm.Normal("w", shape=2)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ w, observed=Y > 0)
        step = sgm.SGLD(step_size=0.02, batch_size=20, compile_kwargs={"mode": MODE})
    tree = run(model, step, averages(model, "y", Y_TEST > 0), var_names=["w"])
    p = 1 / (1 + np.exp(-tree.posterior["w"].values @ X_TEST.T))
    close(tree.test_predictions["mean"][:, 1], p.mean(axis=(0, 1)))
    share = np.mean((p.mean(axis=(0, 1)) > 0.5) == (Y_TEST > 0))
    close(tree.test_predictions["accuracy"], share)


def test_the_mean_of_an_observed_variable():
    """On other numbers of rows than were observed, by index too."""
    group = RNG.integers(4, size=60)
    with pm.Model() as model:
        w, shift = pm.Normal("w", shape=2), pm.Normal("shift", shape=4)
        mean = pm.Data("X", X) @ w + shift[pm.Data("group", group)]
        pm.Normal("number", mean, 1.0, observed=np.ones(60))
        pm.Poisson("count", pm.math.exp(mean), observed=np.ones(60, dtype=int))
        pm.StudentT("tail", nu=5, mu=mean, sigma=1.0, observed=np.ones(60))
    data = {"X": X_TEST, "group": np.arange(TESTS) % 4}
    point = {"w": np.array([0.3, -0.2]), "shift": np.arange(4.0)}
    expected = X_TEST @ point["w"] + point["shift"][data["group"]]
    for var, value in (("number", expected), ("count", np.exp(expected)), ("tail", expected)):
        found = sgm.Predictions(var, data, model=model, compile_kwargs={"mode": MODE})
        close(found.predictor(point), value)


def test_several_labels_in_each_row():
    """They are not the classes of one choice: each probability is judged by itself."""
    labels = np.stack([k == Y_TEST for k in range(2)], axis=1).astype(int)
    with pm.Model() as model:
        w = pm.Normal("w", shape=(2, 2))
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ w, observed=np.ones((60, 2), dtype=int))
    found = sgm.Predictions("y", {"X": X_TEST}, labels, model=model)
    point = {"w": np.eye(2)}
    found.begin_chain(0)
    found.add(0, point, [])
    p = 1 / (1 + np.exp(-X_TEST))
    table = found.to_dataset()
    close(table["mean"], p)
    close(table["rmse"], np.sqrt(np.mean((p - labels) ** 2)))
    assert "disagreement_of_draws" not in table
    with pytest.raises(ValueError, match="do not sum to 1 in each row: pass task='regression'"):
        sgm.Predictions("y", {"X": X_TEST}, task="classification", model=model).check(point)


def test_test_data_that_do_not_fit():
    """Neither a number that wraps around, nor an index for which JAX takes the last element."""
    with pm.Model() as model:
        alpha = pm.Normal("alpha", shape=5)
        small = pm.Data("small", np.arange(60, dtype="uint8"))
        group = pm.Data("group", np.arange(60) % 5)
        pm.Normal("y", alpha[group] + small, observed=np.ones(60))
    data = {"small": np.array([3, 4]), "group": np.array([0, 4])}

    def check(**change):
        found = sgm.Predictions("y", data | change, model=model, compile_kwargs={"mode": MODE})
        found.check(model.initial_point())

    check()
    with pytest.raises(ValueError, match=r"data\['small'\] has the value 300 in row 1.*uint8"):
        check(small=np.array([3, 300]))
    with pytest.raises(ValueError, match=r"'group' has the index 5 \(at 1\) into 'alpha'.*has 5"):
        check(group=np.array([0, 5]))


# ---- bad input -----------------------------------------------------------------------------

BAD = [
    ({"data": {"X": X_TEST[:, :1]}}, ValueError, r"data\['X'\] has the shape \(23, 1\), but"),
    ({"data": {"Z": X_TEST}}, ValueError, r"no pm.Data of this name. It has: X"),
    ({"data": {}}, ValueError, "has no test data"),
    ({"data": {"X": X_TEST * np.nan}}, ValueError, r"data\['X'\] has 46 NaN values"),
    ({"data": {"X": X_TEST.astype(str)}}, ValueError, "has the type <U"),
    ({"labels": Y_TEST[:-1]}, ValueError, "labels has 22 rows, but the test data 23"),
    ({"labels": Y_TEST + 1}, ValueError, r"labels has the class 3 in row \d+, but 'p' has 3"),
    ({"labels": -Y_TEST}, ValueError, r"labels has the class -\d in row"),
    ({"labels": Y_TEST + 0.5}, ValueError, r"labels has the shape \(23,\), but 'p' has \(23, 3\)"),
    ({"labels": Y_TEST * 1.0, "task": "classification"}, ValueError, "must be whole numbers"),
    ({"labels": None, "monitor": "rmse"}, ValueError, "needs labels="),
    ({"monitor": "loss"}, ValueError, "monitor='loss' must be one of 'accuracy'"),
    ({"monitor": "rmse"}, ValueError, "monitor='rmse' must be one of 'accuracy'"),
    ({"weights": "none"}, ValueError, "weights='none' must be one of"),
    ({"batch_size": 0}, ValueError, "batch_size=0 must be"),
    ({"var": "q"}, KeyError, "no variable 'q'"),
    ({"var": "W", "labels": None}, ValueError, "'W' does not depend on the data 'X'"),
    ({"name": 5}, ValueError, "name=5 must be a string"),
    *(
        ({"name": name}, ValueError, f"name={re.escape(repr(name))} cannot be the name of a group")
        for name in ("../x", "posterior/w", ".", "..", "", "a\0b")
    ),
    *(
        ({"name": name}, ValueError, f"name='{name}' is the name of another group")
        for name in ("posterior", "warmup_posterior", "log_likelihood", "posterior_predictive")
    ),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_bad_input(model, step, change, error, message):
    """Before sampling: the step's one compiled call is never made."""
    options = {"var": "p", "data": {"X": X_TEST}, "labels": Y_TEST} | change
    with pytest.raises(error, match=message):
        run(model, step, sgm.Predictions(model=model, **options))


def test_bad_predictions(model, step):
    with pytest.raises(TypeError, match=r"must be made by sgm\.Predictions"):
        run(model, step, [3])
    for none in (None, 3):
        with pytest.raises(
            TypeError, match=f"predictions={none} must be .* leave predictions= out"
        ):
            run(model, step, none)
    with pytest.raises(ValueError, match="Two of predictions have the name 'test_predictions'"):
        run(model, step, [averages(model), averages(model)])
    with pm.Model() as other:
        pm.Normal("z", pm.Data("X", X[:, 0]))
    with pytest.raises(ValueError, match="was made for another model"):
        run(model, step, sgm.Predictions("z", {"X": X_TEST[:, 0]}, model=other))
    with pytest.raises(ValueError, match=r"var_names=\[\] would record nothing"):
        run(model, step, var_names=[])
    with pytest.raises(ValueError, match="has no draws yet"):
        averages(model).to_dataset()
    with pytest.raises(ValueError, match="There is no best draw"):
        averages(model).best  # noqa: B018


def test_arrays_left_as_they_are():
    """An offset of the training rows has no value for test rows."""
    with pm.Model() as model:
        w = pm.Normal("w", shape=2)
        offset = pm.Data("offset", np.ones(60))
        pm.Normal("y", pm.Data("X", X) @ w + offset[:, None][:, 0], observed=Y)
        pm.Deterministic("shift", offset.sum() + pm.Data("Z", X) @ w)
        pm.Deterministic("total", pm.math.sum(model["X"] @ w))
    with pytest.raises(ValueError, match="first axis must be that of the rows"):
        sgm.Predictions("total", {"X": X_TEST}, model=model).check(model.initial_point())


def test_a_restored_average_goes_on_as_if_it_had_not_stopped():
    """After every draw it is saved and restored."""
    rng = np.random.default_rng(3)
    draws = rng.dirichlet(np.ones(3), size=(12, 40))
    labels = rng.integers(3, size=40)

    def new():
        return RunningAverage(lambda p: metrics.of_classes(p, labels), True, "accuracy")

    one, other = new(), new()
    for p in draws:
        one.add(p, 0.5, {"w": p[0]})
        other.add(p, 0.5, {"w": p[0]})
        state, other = other.state(), new()
        other.restore(state)
        assert other.best["draw"] == one.best["draw"]
    np.testing.assert_array_equal(one.squares, other.squares)
