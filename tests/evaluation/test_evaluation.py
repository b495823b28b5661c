"""Estimates of log p(x | theta) against exact enumeration and a known marginal."""

import itertools
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm, poisson

import pymc_sgmcmc as sgm
from pymc_sgmcmc.evaluation import latent_model
from pymc_sgmcmc.evaluation.marginal_likelihood import (
    effective_sample_size,
    log_mean,
    log_mean_mcse,
    summary,
)

JAX = {"mode": "JAX"}
METHODS = {
    "importance": {"method": "importance"},
    "ais": {"method": "ais", "n_temperatures": 4},
    "ais, parameters": {"method": "ais", "n_temperatures": 4, "path": "parameters"},
}
"""Few temperatures, so that weights vary: wrong ones are then seen."""


def layers(x):
    """A sigmoid belief network with two hidden layers, 3 and 2 units: 32 states of z."""
    coords = {"obs": range(len(x)), "one": range(3), "two": range(2), "pixel": range(5)}
    with pm.Model(coords=coords) as model:
        data = pm.Data("data", x, dims=("obs", "pixel"))
        w = pm.Normal("w", 0, 1, dims=("one", "pixel"))
        c = pm.Normal("c", 0, 1, dims="pixel")
        v = pm.Normal("v", 0, 1, dims=("two", "one"))
        b = pm.Normal("b", 0, 1, dims="two")
        top = pm.Bernoulli("top", logit_p=b, dims=("obs", "two"))
        z = pm.Bernoulli("z", logit_p=top @ v, dims=("obs", "one"))
        pm.Bernoulli("x", logit_p=z @ w + c, observed=data, dims=("obs", "pixel"))
    return model


rng = np.random.default_rng(11)
THETA = {
    "w": 1.5 * rng.normal(size=(3, 5)),
    "c": rng.normal(size=5),
    "v": 1.5 * rng.normal(size=(2, 3)),
    "b": rng.normal(size=2),
}
X = np.array([[1, 0, 1, 1, 0], [0, 0, 1, 0, 1], [1, 1, 1, 1, 1]])
SMALL = layers(X)


def exact(theta, x):
    """log p(x | theta) of each row."""

    def log_bernoulli(value, logit):
        return (value * logit - np.logaddexp(0, logit)).sum(-1)

    terms = []
    for top in itertools.product([0, 1], repeat=2):
        for z in itertools.product([0, 1], repeat=3):
            prior = log_bernoulli(np.array(top), theta["b"])
            prior += log_bernoulli(np.array(z), top @ theta["v"])
            terms.append(prior + log_bernoulli(x, z @ theta["w"] + theta["c"]))
    return logsumexp(terms, axis=0)


@pytest.mark.slow(6)
@pytest.mark.parametrize("method", METHODS)
def test_weights_are_unbiased_and_their_error_is_known(method):
    """One row many times: the mean of p-hat / p is 1, and log p-hat spreads as its mcse says."""
    copies, n_samples = 300, 40
    data = {"data": np.repeat(X[:1], copies, axis=0)}
    result = sgm.log_marginal_likelihood(
        THETA,
        ["top", "z"],
        data=data,
        n_samples=n_samples,
        model=SMALL,
        random_seed=1,
        compile_kwargs=JAX,
        **METHODS[method],
    )
    truth = exact(THETA, X[0])
    ratio = np.exp(result.log_p.values.ravel() - truth)
    error = ratio.std() / np.sqrt(copies)
    assert error < 0.03  # 12 000 weights: a wrong factor would be seen
    assert abs(ratio.mean() - 1) < 4 * error
    spread = result.log_p.values.std()
    reported = np.sqrt((result.log_p_mcse.values**2).mean())
    # the sd of 300 numbers is known to 1 / sqrt(600) = 4%; the delta method adds some
    assert abs(spread / reported - 1) < 0.2
    assert abs((result.mean_log_p - truth).item()) < 4 * result.mean_log_p_mcse.item() + spread**2
    assert result.mean_log_p_mcse.item() == pytest.approx(reported / np.sqrt(copies))


@pytest.mark.slow(4)
def test_draws_data_and_averages():
    """Several draws of theta, new and old rows: what is averaged over what."""
    draws = {name: np.stack([value, 0.8 * value])[None] for name, value in THETA.items()}
    posterior = xr.Dataset(
        {
            name: (("chain", "draw", *(f"{name}_{a}" for a in range(value.ndim - 2))), value)
            for name, value in draws.items()
        },
        coords={"chain": [3], "draw": [10, 20]},
    )
    idata = xr.DataTree.from_dict({"posterior": posterior})
    settings = {
        "model": SMALL,
        "random_seed": 2,
        "n_samples": 500,
        "method": "importance",
        "compile_kwargs": JAX,
    }
    new = np.random.default_rng(5).integers(2, size=(7, 5))
    result = sgm.log_marginal_likelihood(idata, ["z", "top"], data={"data": new}, **settings)
    truth = np.stack([exact(THETA, new), exact({k: 0.8 * v for k, v in THETA.items()}, new)])
    assert dict(result.sizes) == {"chain": 1, "draw": 2, "row": 7}
    assert result.draw.values.tolist() == [10, 20]
    z = (result.log_p.values[0] - truth) / result.log_p_mcse.values[0]
    assert np.abs(z).max() < 4.5  # one of 14 in 10 000
    expected = {
        "mean_log_p": truth.mean(axis=1)[None],
        "log_predictive": logsumexp(truth, axis=0) - np.log(2),
        "mean_log_predictive": (logsumexp(truth, axis=0) - np.log(2)).mean(),
    }
    for name, value in expected.items():
        error = result[f"{name}_mcse"].values
        assert np.all(np.abs(result[name].values - value) < 4.5 * error), name
        assert np.all(error < 0.1)
    # the model's own rows, and a point in place of draws; the latents in another order
    result = sgm.log_marginal_likelihood(THETA, [SMALL["top"], "z"], **settings)
    z = (result.log_p.values[0, 0] - exact(THETA, X)) / result.log_p_mcse.values[0, 0]
    assert np.abs(z).max() < 4.5


def simulate(theta, n, seed):
    """Rows of the small network, with the latent variables that made them."""
    rng = np.random.default_rng(seed)

    def draw(logit):
        return (rng.random(logit.shape) < 1 / (1 + np.exp(-logit))).astype(int)

    top = draw(np.tile(theta["b"], (n, 1)))
    z = draw(top @ theta["v"])
    return {"top": top, "z": z}, draw(z @ theta["w"] + theta["c"])


@pytest.mark.long
@pytest.mark.slow(8)
@pytest.mark.parametrize("path", ["likelihood", pytest.param("parameters", marks=pytest.mark.long)])
def test_annealing_backwards_gives_an_upper_bound(path):
    """From exact draws of z the mean of p / p-hat is 1; from others it is not."""
    latents, x = simulate(THETA, 4000, seed=7)
    settings = {
        "data": {"data": x}, "model": SMALL, "path": path, "n_samples": 8, "n_temperatures": 4,
        "random_seed": 8, "compile_kwargs": JAX,
    }  # fmt: skip
    truth = exact(THETA, x)
    result = sgm.log_marginal_likelihood(THETA, ["top", "z"], simulated=latents, **settings)
    upper = result.log_p_upper.values.ravel()
    ratio = np.exp(truth - upper)
    error = ratio.std() / np.sqrt(len(x))
    assert error < 0.02
    assert abs(ratio.mean() - 1) < 4 * error
    # too high and too low on average, by more than the errors of the means
    above, below = upper - truth, result.log_p.values.ravel() - truth
    assert above.mean() > 3 * above.std() / np.sqrt(len(x))
    assert below.mean() < -3 * below.std() / np.sqrt(len(x))
    assert result.gap.item() == pytest.approx(above.mean() - below.mean())
    assert result.gap_mcse.item() == pytest.approx((above - below).std(ddof=1) / np.sqrt(len(x)))
    if path == "parameters":
        return
    others = {name: value[::-1] for name, value in latents.items()}  # of other rows
    wrong = sgm.log_marginal_likelihood(THETA, ["top", "z"], simulated=others, **settings)
    ratio = np.exp(truth - wrong.log_p_upper.values.ravel())
    assert abs(ratio.mean() - 1) > 8 * error


def weights_of(n_samples, scale, rows=20, seed=3):
    """Estimates from log-normal weights whose mean is 1, so log p is 0."""
    rng = np.random.default_rng(seed)
    log_w = scale * rng.normal(size=(1, 1, rows, n_samples)) - scale**2 / 2
    coords = {"chain": np.arange(1), "draw": np.arange(1)}
    estimates = (f(log_w) for f in (log_mean, log_mean_mcse, effective_sample_size))
    return summary(coords, *estimates, {})


def test_effective_sample_size_of_weights():
    assert effective_sample_size(np.full(7, -500.0)) == pytest.approx(7)
    assert effective_sample_size(np.array([0.0, -100, -100])) == pytest.approx(1)
    assert effective_sample_size(np.log([3.0, 1, 1])) == pytest.approx(25 / 11)
    # for log-normal weights it is n exp(-variance of log w)
    ess = weights_of(100_000, 0.7).ess.values.mean()
    assert ess == pytest.approx(100_000 * np.exp(-(0.7**2)), rel=0.02)


@pytest.mark.long
def test_estimates_that_cannot_be_trusted_warn():
    settings = {"model": SMALL, "random_seed": 1, "compile_kwargs": JAX}
    with pytest.warns(UserWarning, match=r"n_samples=2 annealing runs per row .* n_samples=16"):
        sgm.log_marginal_likelihood(THETA, ["top", "z"], n_samples=2, n_temperatures=2, **settings)
    strong = THETA | {"w": 20 * THETA["w"]}  # no draw from the prior fits
    x = np.random.default_rng(2).integers(2, size=(30, 5))
    with pytest.warns(UserWarning, match=r"% of the rows one of the 10 weights dominates"):
        sgm.log_marginal_likelihood(
            strong, ["top", "z"], data={"data": x}, method="importance", n_samples=10, **settings
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "importance"}, "simulated= is for method='ais' and one draw"),
        ({"simulated": {"z": np.ones((3, 3))}}, r"must have the latent variables \['top', 'z'\]"),
        (
            {"simulated": {"z": np.ones((2, 3)), "top": np.ones((3, 2))}},
            r"'z' has the shape \(2, 3\), but the rows need \(3, 3\)",
        ),
    ],
)
def test_simulated_latents_that_do_not_fit(arguments, message):
    arguments = {"simulated": {"z": np.ones((3, 3)), "top": np.ones((3, 2))}} | arguments
    with pytest.raises(ValueError, match=message):
        sgm.log_marginal_likelihood(THETA, ["top", "z"], model=SMALL, **arguments)


@pytest.mark.long
def test_recognition_network_as_proposal():
    """Trained, it is the better proposal; the estimate is unbiased with any."""
    x = np.random.default_rng(6).integers(2, size=(40, 5))
    model = layers(x)
    latents = sgm.NeuralImportance(["z", "top"], n_samples=20, learning_rate=0.02)
    with model:
        step = sgm.SGLD(
            step_size=1e-20, batch_size=40, thin=1000, latents=latents, compile_kwargs=JAX
        )
    step.setup_chain(np.random.default_rng(1), tune=0, draws=1)
    step.step(step.model.initial_point() | THETA)
    settings = {
        "model": model,
        "method": "importance",
        "n_samples": 500,
        "random_seed": 3,
        "compile_kwargs": JAX,
    }
    from_network = sgm.log_marginal_likelihood(THETA, latents.trained(step), **settings)
    from_prior = sgm.log_marginal_likelihood(THETA, ["z", "top"], **settings)
    truth = exact(THETA, x)
    for result in (from_network, from_prior):
        z = (result.log_p.values[0, 0] - truth) / result.log_p_mcse.values[0, 0]
        assert np.abs(z).max() < 5
        assert 0.7 < np.sqrt((z**2).mean()) < 1.4  # 1 +- 1 / sqrt(80), and skewed weights
    assert from_network.mean_log_p_mcse < 0.6 * from_prior.mean_log_p_mcse


@pytest.mark.long
@pytest.mark.slow(13)
def test_completion_is_the_conditional_probability():
    """P(missing | known) by enumeration; what is known stays, what is hidden is not looked at."""
    missing = np.array([[0, 0, 0, 1, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]], dtype=bool)
    settings = {"missing": {"data": missing}, "model": SMALL, "compile_kwargs": JAX}
    settings |= {"n_completions": 8000, "burn_in": 100, "random_seed": 4}
    result = sgm.complete(THETA, ["z", "top"], **settings)
    patterns = np.array(list(itertools.product([0, 1], repeat=5)))
    p = np.exp(exact(THETA, patterns))
    for row in range(3):
        possible = (patterns[:, ~missing[row]] == X[row, ~missing[row]]).all(axis=1)
        expected = p[possible] @ patterns[possible] / p[possible].sum()
        # 8000 sweeps of autocorrelation time up to about 5, of numbers with sd below 0.5
        np.testing.assert_allclose(result.probability.values[row], expected, atol=0.04)
    np.testing.assert_array_equal(result.completed, result.probability > 0.5)
    flipped = np.where(missing, 1 - X, X)
    again = sgm.complete(THETA, ["z", "top"], data={"data": flipped}, **settings)
    np.testing.assert_array_equal(
        again.probability.values[missing], result.probability.values[missing]
    )


@pytest.mark.slow(3)
def test_completion_of_rows_that_are_matrices():
    """P(missing | known) by enumeration, where the rows lie along the last of three axes."""
    x = np.random.default_rng(3).integers(2, size=(2, 3, 4))
    logit = np.random.default_rng(4).normal(size=(2, 2, 3, 1)) * 2  # [z, height, width]
    with pm.Model(coords={"obs": range(4), "height": range(2), "width": range(3)}) as model:
        data = pm.Data("data", x, dims=("height", "width", "obs"))
        b = pm.Normal("b", shape=(2, 3, 1))
        z = pm.Bernoulli("z", 0.4, dims="obs")
        logit_p = b + z * (logit[1] - logit[0])
        pm.Bernoulli("x", logit_p=logit_p, observed=data, dims=("height", "width", "obs"))
    missing = np.arange(24).reshape(x.shape) % 3 == 0
    result = sgm.complete(
        {"b": logit[0]},
        [z],
        missing={"data": missing},
        model=model,
        n_completions=4000,
        random_seed=1,
        compile_kwargs=JAX,
    )
    p = 1 / (1 + np.exp(-logit))
    known = np.where(missing, 1, np.where(x, p, 1 - p)).prod(axis=(1, 2))  # [z, row]
    given = np.array([[0.6], [0.4]]) * known
    expected = ((given / given.sum(axis=0))[:, None, None] * p).sum(axis=0)
    assert result.probability.dims == ("height", "width", "row")
    # independent sweeps (a single z), of numbers with sd below 0.5: 5 standard errors
    error = 5 * 0.5 / np.sqrt(4000)
    np.testing.assert_allclose(result.probability.values[missing], expected[missing], atol=error)
    np.testing.assert_array_equal(result.probability.values[~missing], x[~missing])


def autoregressive(links):
    """Pixels given a hidden unit and one another, through ``x @ (links * s)``."""
    with pm.Model(coords={"obs": range(3), "pixel": range(5)}) as model:
        data = pm.Data("data", X, dims=("obs", "pixel"))
        s = pm.Normal("s", shape=(5, 5))
        z = pm.Bernoulli("z", 0.5, dims="obs")
        logit_p = data @ (links * s) + np.linspace(-2, 2, 5) * (2 * z[:, None] - 1)
        pm.Bernoulli("x", logit_p=logit_p, observed=data, dims=("obs", "pixel"))
    return model


@pytest.mark.slow(3)
@pytest.mark.parametrize("order", [1, -1], ids=["forwards", "backwards"])
def test_completion_of_autoregressive_data(order):
    """P(missing | known) by enumeration, where each pixel depends on those before (after) it."""
    s = 2 * np.random.default_rng(2).normal(size=(5, 5))
    links = np.triu(np.ones((5, 5)), 1)[::order, ::order]
    missing = np.array([[0, 0, 1, 1, 1], [0, 0, 0, 1, 1], [1, 1, 1, 1, 1]], dtype=bool)[:, ::order]
    result = sgm.complete(
        {"s": s},
        ["z"],
        missing={"data": missing},
        minibatch_dim="obs",
        model=autoregressive(links),
        n_completions=8000,
        random_seed=5,
        compile_kwargs=JAX,
    )
    patterns = np.array(list(itertools.product([0, 1], repeat=5)))
    p = 0
    for z in (-1, 1):
        logit = patterns @ (links * s) + np.linspace(-2, 2, 5) * z
        p = p + np.exp((patterns * logit - np.logaddexp(0, logit)).sum(axis=1)) / 2
    for row in range(3):
        possible = (patterns[:, ~missing[row]] == X[row, ~missing[row]]).all(axis=1)
        expected = p[possible] @ patterns[possible] / p[possible].sum()
        # as above: 8000 sweeps of autocorrelation time up to about 5, numbers with sd below 0.5
        np.testing.assert_allclose(result.probability.values[row], expected, atol=0.04)


@pytest.mark.parametrize(
    ("links", "message"),
    [
        (
            np.tril(np.ones((5, 5)), -1),
            "'x': known elements depend on missing elements of 'data'",
        ),
        (np.ones((5, 5)) - np.eye(5), "elements of 'data' depend on each other in both directions"),
    ],
    ids=["known", "cycle"],
)
def test_data_that_cannot_be_completed(links, message):
    missing = [False] * 2 + [True] * 3 if "known" in message else [True] * 5
    with pytest.raises(ValueError, match=message):
        sgm.complete(
            {"s": np.ones((5, 5))},
            ["z"],
            missing={"data": missing},
            minibatch_dim="obs",
            model=autoregressive(links),
            compile_kwargs=JAX,
        )


def test_completion_needs_gibbs():
    latents = sgm.NeuralImportance(["z", "top"])
    with pytest.raises(ValueError, match=r"complete needs latents=Gibbs\(\[...\]\) or a list"):
        sgm.complete(THETA, latents, missing={"data": [True] * 5}, model=SMALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"draws": {"w": 0}}, "draws: there is no 'c'"),
        ({"draws": THETA | {"c": np.zeros(4)}}, r"draws: 'c' has the shape \(4,\), but \(5,\)"),
        (
            {"draws": THETA | {"c": np.full(5, np.nan)}},
            "'c' has the value nan in draw 0 of chain 0",
        ),
        ({"data": {"pictures": X}}, "no array of rows 'pictures'. It has: 'data'"),
        ({"data": {}}, "new rows of 'data' are needed"),
        ({"data": {"data": X[:, :3]}}, r"'data' has the shape \(3, 3\), but \(3, 5\)"),
        ({"data": {"data": X[:0]}}, "must be equal and positive"),
        ({"method": "chib"}, "method='chib' must be"),
        ({"path": "straight"}, "path='straight' must be"),
        ({"n_samples": 0}, "n_samples=0 must be a whole number"),
        ({"n_temperatures": 2.5}, "n_temperatures=2.5 must be"),
        ({"latents": ["y"]}, "latents: 'y' is not a free variable"),
        ({"latents": sgm.NeuralImportance(["z", "top"])}, "method='ais' needs"),
        (
            {"latents": sgm.Gibbs(["z", "top"], conditional={"z": lambda values, stream: None})},
            r"path='likelihood': the function in conditional= draws 'z' given all",
        ),
        (
            {"latents": sgm.NeuralImportance(["z", "top"]), "method": "importance"},
            "has no weights",
        ),
    ],
)
def test_errors_name_what_is_wrong(arguments, message):
    arguments = {"draws": THETA, "latents": ["z", "top"], "model": SMALL} | arguments
    with pytest.raises(ValueError, match=message):
        sgm.log_marginal_likelihood(**arguments)


@pytest.mark.slow(4)
def test_continuous_latents():
    """A factor model: z is Normal and so is x, with a known covariance."""
    rng = np.random.default_rng(9)
    w, sd = np.array([[1.0, -0.5, 0.3], [0.2, 0.8, 0.0]]), 0.6
    covariance = w.T @ w + sd**2 * np.eye(3)
    x = rng.multivariate_normal(np.zeros(3), covariance, size=30)
    with pm.Model(coords={"obs": range(30), "factor": range(2), "feature": range(3)}) as model:
        w_rv = pm.Normal("w", dims=("factor", "feature"))
        sigma = pm.HalfNormal("sigma")
        z = pm.Normal("z", dims=("obs", "factor"))
        pm.Normal("x", z @ w_rv, sigma, observed=x, dims=("obs", "feature"))
    result = sgm.log_marginal_likelihood(
        {"w": w, "sigma": sd},
        [z],
        n_samples=30,
        n_temperatures=30,
        model=model,
        random_seed=5,
        compile_kwargs=JAX,
    )
    truth = multivariate_normal(np.zeros(3), covariance).logpdf(x)
    z_score = (result.log_p.values[0, 0] - truth) / result.log_p_mcse.values[0, 0]
    assert result.log_p_mcse.max() < 0.3
    assert abs(z_score.mean()) < 0.8  # 4 / sqrt(30)
    assert 0.6 < z_score.std() < 1.6


@pytest.mark.slow(2)
def test_prior_of_endless_support():
    """Draws from a Poisson prior need no list of its values; a sweep of Gibbs does."""
    x = np.array([0.5, 3.2, 6.0])
    with pm.Model(coords={"obs": range(3)}) as model:
        rate = pm.Gamma("rate", 2, 1)
        z = pm.Poisson("z", rate, dims="obs")
        pm.Normal("x", z, 0.8, observed=x, dims="obs")
    arguments = {"model": model, "random_seed": 3, "compile_kwargs": JAX}
    result = sgm.log_marginal_likelihood({"rate": 2.5}, [z], method="importance", **arguments)
    n = np.arange(60)[:, None]
    exact = logsumexp(poisson.logpmf(n, 2.5) + norm.logpdf(x, n, 0.8), axis=0)
    assert result.log_p_mcse.max() < 0.05
    assert (abs(result.log_p[0, 0] - exact) < 4 * result.log_p_mcse[0, 0]).all()
    with pytest.raises(ValueError, match=r"Pass support=\{'z'"):
        sgm.log_marginal_likelihood({"rate": 2.5}, [z], **arguments)


@pytest.mark.slow(2)
def test_path_of_parameters_needs_data_that_do_not_depend_on_z_at_zero():
    with pm.Model(coords={"obs": range(3)}) as model:
        w = pm.Normal("w")
        z = pm.Bernoulli("z", 0.5, dims="obs")
        pm.Normal("x", w + z, 1, observed=np.zeros(3), dims="obs")
    with pytest.raises(ValueError, match="path='parameters': at theta = 0 the data depend on"):
        sgm.log_marginal_likelihood(
            {"w": 0.5}, [z], path="parameters", n_temperatures=2, model=model, compile_kwargs=JAX
        )


@pytest.mark.long
def test_parameters_are_not_stored_for_all_temperatures(monkeypatch):
    """For a network of a million weights and a thousand temperatures that would be gigabytes."""
    made = []

    def function(*args, **kwargs):
        made.append(pytensor.function(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(
        latent_model, "pytensor", SimpleNamespace(**vars(pytensor) | {"function": function})
    )
    sgm.log_marginal_likelihood(
        THETA, ["top", "z"], path="parameters", n_temperatures=37, model=SMALL, compile_kwargs=JAX
    )
    nodes = [node for f in made for node in f.maker.fgraph.toposort()]
    shapes = {v.type.shape for node in nodes for v in node.outputs if hasattr(v.type, "shape")}
    assert len(shapes) > 1
    assert not any(len(shape) > 1 and 37 in shape for shape in shapes)


def test_prior_that_cannot_be_drawn_from():
    def log_p(value, p):
        return pt.switch(value, pt.log(p), pt.log1p(-p))

    with pm.Model(coords={"obs": range(3)}) as model:
        w = pm.Normal("w")
        p = pt.as_tensor(0.3)
        z = pm.CustomDist("z", p, logp=log_p, dtype="int64", dims="obs")
        pm.Normal("x", w * z, 1, observed=np.zeros(3), dims="obs")
    with pytest.raises(
        ValueError, match=r"The prior of the latent variable 'z' .* cannot be sampled"
    ):
        sgm.log_marginal_likelihood(
            {"w": 0.5}, sgm.Gibbs([z], support={"z": [0, 1]}), model=model, compile_kwargs=JAX
        )
