"""Latent variables in steps: what is integrated out, what is refused, what a run records."""

import resource

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.stats
from latent_models import PYTHON, many_kinds, random_theta, sigmoid_belief_network
from pytensor.compile.mode import get_mode
from pytensor.tensor.random.type import random_generator_type
from samplers import SAMPLERS

import pymc_sgmcmc as sgm
from pymc_sgmcmc import kernel
from pymc_sgmcmc.backends.backend import backend_of
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.latents.gradient import latent_gradient_source
from pymc_sgmcmc.latents.joint import without_latents
from pymc_sgmcmc.latents.latent_check import _divided
from pymc_sgmcmc.noise import NoiseStream

N = 60
rng = np.random.default_rng(4)
Y = np.where(rng.random(N) < 0.3, 1.5, -1.5) + rng.normal(size=N)
UNCONSTRAINED = [s for s in SAMPLERS if s.kind != "simplex"]
IN_PYTHON = {"mode": PYTHON}


def mixture():
    """Two components of known weights, centres mu and -mu."""
    with pm.Model(coords={"obs": range(N)}) as model:
        mu = pm.Normal("mu", 0, 2)
        z = pm.Bernoulli("z", 0.3, dims="obs")
        y = pm.Data("y_data", Y, dims="obs")
        pm.Normal("y", mu * (2 * z - 1), 1, observed=y, dims="obs")
    return model


def posterior_of_mu():
    """Mean and sd of the marginalised mixture's posterior, by quadrature."""
    mu = np.linspace(-6, 6, 4001)
    ones = np.exp(-0.5 * (Y - mu[:, None]) ** 2)
    zeros = np.exp(-0.5 * (Y + mu[:, None]) ** 2)
    log_p = np.log(0.3 * ones + 0.7 * zeros).sum(axis=1) - 0.5 * (mu / 2) ** 2
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = np.sum(p * mu)
    return mean, np.sqrt(np.sum(p * (mu - mean) ** 2))


# ---- the posterior -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "settings"),
    [(sgm.MSGNHT_S, {"diffusion": 20.0}), (sgm.SGHMC_S, {"friction": 20.0})],
)
@pytest.mark.slow(7)
def test_posterior_is_that_of_the_marginalised_model(sampler, settings):
    model = mixture()
    with model:
        step = sampler(
            step_size=0.02, batch_size=30, thin=20, replacement=True,
            latents=sgm.Gibbs(["z"], n_samples=5, burn_in=1),
            compile_kwargs={"mode": "JAX"}, **settings,
        )  # fmt: skip
    draws = pm.sample(
        3000, tune=200, chains=1, cores=1, step=step, model=step.model, random_seed=3,
        progressbar=False, compute_convergence_checks=False,
    ).posterior["mu"].values  # fmt: skip
    mean, sd = posterior_of_mu()
    ess = float(az.ess(draws))
    assert ess > 500
    # 4 standard errors; 3 % of an sd and of the sd for the bias of step size and batches
    assert abs(draws.mean() - mean) < sd * (4 / np.sqrt(ess) + 0.03)
    assert abs(draws.std() / sd - 1) < 4 / np.sqrt(2 * ess) + 0.03


@pytest.mark.parametrize("sampler", UNCONSTRAINED, ids=[s.name for s in UNCONSTRAINED])
def test_every_sampler_takes_latents(sampler):
    with mixture():
        step = sampler.step(
            step_size=0.001, batch_size=10, thin=2, latents=sgm.Gibbs("z", n_samples=2),
            compile_kwargs=IN_PYTHON, **sampler.settings,
        )  # fmt: skip
    point, [stats] = step.step(step.model.initial_point())
    assert point.keys() == {"mu"}
    assert np.isfinite(point["mu"])
    assert point["mu"] != 0
    assert not stats["nonfinite"]
    assert 0 < stats["latent_moves"] < 1


# ---- the joint density -------------------------------------------------------------------


def test_joint_density_of_rows_is_the_models_own():
    """Rows of a batch, in any order and repeated, with z of each."""
    model = many_kinds()
    names = ["bits", "kind", "factor", "scale"]
    smaller = without_latents(model, names)
    latents = sgm.Gibbs(names)
    source = latent_gradient_source(model, smaller, smaller.value_vars, latents, batch_size=7)
    theta = random_theta(model, names)
    local = [*(model[name] for name in names), *model.observed_RVs]
    terms = model.logp(vars=local, sum=False, jacobian=False)
    full = sum(t.sum(axis=tuple(range(1, t.ndim))) for t in terms)
    whole = pytensor.function(model.value_vars, full, mode=PYTHON, on_unused_input="ignore")
    draws = np.random.default_rng(2)
    n = len(array_value(source.rows[0].sliced[0][0][0]))
    z = {
        "bits": draws.integers(2, size=(n, 4)), "kind": draws.integers(3, size=n),
        "factor": draws.normal(size=(n, 3)), "scale": draws.gamma(3, size=n),
    }  # fmt: skip
    unconstrained = {**theta, **z, "scale_log__": np.log(z["scale"])}
    expected = whole(*(unconstrained[v.name] for v in model.value_vars))
    rows = np.array([3, 199, 3, 0, 50, 51, 120])
    density = source.joint.log_density([v.value for v in source.joint.variables])
    variables = source.joint.variables
    inputs = [*(v.value for v in variables), *source.inputs]
    of_batch = pytensor.function(inputs, density, mode=PYTHON, on_unused_input="ignore")
    data = [array_value(array) for array, _ in source.data]
    point = [theta[v.name] for v in source.vars]
    given = [z[v.name][rows].astype(v.dtype) for v in variables]
    np.testing.assert_allclose(of_batch(*given, *point, rows, np.array(1.0), *data), expected[rows])


@pytest.mark.slow(4)
def test_nothing_of_rows_times_units_is_made():
    """4e9 latent values in all; a run needs those of a batch alone."""
    n_rows, n_units = 2_000_000, 2_000
    x = np.zeros((n_rows, 1), dtype="int8")
    with pm.Model() as model:
        model.add_coord("obs", length=n_rows)
        model.add_coord("unit", length=n_units)
        model.add_coord("one", length=1)
        x = pm.Data("X", x, dims=("obs", "one"))
        b = pm.Normal("b", 0, 1)
        z = pm.Bernoulli("z", logit_p=b, dims=("obs", "unit"))
        pm.Bernoulli("x", logit_p=z.mean(axis=1, keepdims=True), observed=x, dims=("obs", "one"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with model:
        step = sgm.SGLD(
            step_size=1e-6, batch_size=2, latents=sgm.Gibbs([z], n_samples=1, burn_in=0),
            compile_kwargs=IN_PYTHON, self_check=False,
        )  # fmt: skip
    trace = pm.sample(
        2, tune=0, chains=1, cores=1, step=step, model=step.model, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert list(trace.posterior) == ["b"]
    assert after - before < 1_000_000  # kB; one byte for each latent value were 4 GB


# ---- a step and its model ----------------------------------------------------------------


def with_latents(model=None, **settings):
    """A step that runs in Python."""
    options = {"step_size": 0.01, "batch_size": 10, "latents": sgm.Gibbs(["z"], n_samples=2)}
    with model or mixture():
        return sgm.MSGNHT_S(**{"compile_kwargs": IN_PYTHON} | options | settings)


def run(step, **settings):
    options = {"draws": 4, "tune": 1, "chains": 2, "cores": 1, "random_seed": 1, "step": step}
    options |= {"progressbar": False, "compute_convergence_checks": False, "model": step.model}
    return pm.sample(**options | settings)


@pytest.mark.slow(3)
def test_a_run_records_the_parameters_alone():
    model = mixture()
    with model:
        pm.Deterministic("square", model["mu"] ** 2)
        pm.Deterministic("mean_z", model["z"].mean())
    step = with_latents(model)
    assert "latents=Gibbs([z], n_samples=2, burn_in=5)" in repr(step)
    trace = run(step)
    assert set(trace.posterior) == {"mu", "square"}
    np.testing.assert_allclose(trace.posterior["square"], trace.posterior["mu"] ** 2)
    assert "latent_moves" in trace.sample_stats
    with model:  # the whole model still predicts, with new latents
        predictions = pm.sample_posterior_predictive(trace, progressbar=False, random_seed=1)
    assert predictions.posterior_predictive["y"].shape == (2, 4, N)


def test_without_the_steps_model_pm_sample_says_so_at_once():
    model = mixture()
    step = with_latents(model)
    with pytest.raises(ValueError, match=r"in its own step\.model, without the latents"):
        run(step, model=model)


def test_same_seed_same_draws_and_saved_state_goes_on():
    # a mode by name, for one made of a linker cannot be pickled
    step = with_latents(thin=3, compile_kwargs={"mode": "FAST_COMPILE"})
    first, again = run(step), run(step)
    np.testing.assert_array_equal(first.posterior["mu"], again.posterior["mu"])
    step.setup_chain(np.random.default_rng(2), 0, 0)
    point, _ = step.step(step.model.initial_point())
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    np.testing.assert_array_equal(step.step(point)[0]["mu"], copy.step(point)[0]["mu"])


def test_new_data_is_used():
    model = mixture()
    step = with_latents(model)
    model.set_data("y_data", Y + 100)
    step.setup_chain(np.random.default_rng(2), 0, 0)
    _, [stats] = step.step(step.model.initial_point())
    assert stats["potential"] > 1e5


# ---- refusals ----------------------------------------------------------------------------


def refused(model, *matches, **settings):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        with_latents(model, **settings)
    for match in matches:
        caught.match(match)


@pytest.fixture
def no_loop(monkeypatch):
    """Compiling fails the test."""
    monkeypatch.setattr(kernel, "Loop", lambda *args: pytest.fail("compiled"))


before_compiling = pytest.mark.usefixtures("no_loop")


@before_compiling
@pytest.mark.parametrize("n_samples", [0, -1, 2.5, True])
def test_n_samples(n_samples):
    with pytest.raises(ValueError, match=f"n_samples={n_samples}.*at least 1"):
        sgm.Gibbs(["z"], n_samples=n_samples)
    with pytest.raises(ValueError, match=r"burn_in=-1.*at least 0"):
        sgm.Gibbs(["z"], burn_in=-1)


@before_compiling
def test_unknown_names():
    refused(mixture(), "'q' is not a free variable", "'mu', 'z'", latents=sgm.Gibbs(["q"]))
    refused(mixture(), "empty", latents=sgm.Gibbs([]))
    with pytest.raises(ValueError, match=r"support= has the key 'q'.*\['z'\]"):
        sgm.Gibbs(["z"], support={"q": [0, 1]})


@before_compiling
def test_a_batch_size_is_needed():
    refused(mixture(), "'z'", "batch_size=", batch_size=None)


@before_compiling
def test_discrete_variable_that_is_not_among_the_latents():
    refused(mixture(), "'z' is discrete", r"latents=sgm.Gibbs\(\['z'\]\)", latents=None)
    refused(many_kinds(), "'kind' is discrete", latents=sgm.Gibbs(["bits", "factor", "scale"]))


@before_compiling
def test_continuous_local_variable_that_is_not_among_the_latents():
    model = many_kinds()
    latents = sgm.Gibbs(["bits", "kind", "scale"])
    refused(model, "'factor' has an element for each row", "latents=", latents=latents)
    hint = r"latents=sgm.Gibbs\(\['factor'\]\)"
    refused(model, "'factor'", hint, latents=latents, minibatch_dim="obs")


@before_compiling
def test_latent_that_is_sampled_too():
    model = mixture()
    refused(model, "'z' is in latents=", vars=[model["z"], model["mu"]])


@before_compiling
def test_global_variable_as_latent():
    model = sigmoid_belief_network()
    refused(model, "'b'", "not local to the rows", latents=sgm.Gibbs(["b", "z"]))


@before_compiling
def test_latent_with_a_global_child():
    with pm.Model(coords={"obs": range(N)}) as model:
        z = pm.Bernoulli("z", 0.3, dims="obs")
        mu = pm.Normal("mu", z.sum(), 1)
        pm.Normal("y", mu, 1, observed=Y, dims="obs")
    refused(model, "'mu' depends on the latent variable 'z'", "latents=")


@before_compiling
def test_latent_that_enters_a_term_without_rows():
    model = mixture()
    with model:
        pm.Normal("other", model["z"].sum(), 1, observed=np.zeros(3))
    refused(model, "'z' is not local", "'other'", minibatch_dim="obs")


@before_compiling
def test_potential_of_a_latent_needs_dims():
    model = mixture()
    with model:
        pm.Potential("pot", -model["z"])
    refused(model, "potential 'pot'", "dims=")


@before_compiling
def test_latents_that_depend_on_those_of_other_rows():
    with pm.Model(coords={"obs": range(N)}) as model:
        mu = pm.Normal("mu", 0, 1)
        z = pm.Bernoulli("z", 0.3, dims="obs")
        pm.Normal("y", mu * z.mean() + z, 1, observed=Y, dims="obs")
    refused(model, "'y' is not conditionally independent along dim 'obs'")


@before_compiling
@pytest.mark.parametrize("n_rows", [40, 60, 61, 500])
@pytest.mark.parametrize("of_rows", ["chain", "rolled", "any"])
def test_latents_in_chains_and_all_together(of_rows, n_rows):
    """Where few values of z are possible, a wrong sum of batches is often right by chance."""
    y = np.arange(n_rows) % 3 - 1.0
    with pm.Model(coords={"obs": range(n_rows)}) as model:
        p = pm.Beta("p", 1, 1)
        z = pm.Bernoulli("z", 0.5, dims="obs")
        mean = pt.roll(z, 1) if of_rows == "rolled" else z
        if of_rows == "chain":
            before = pt.concatenate([[0], z[:-1]])
            pm.Potential("link", pt.log(pt.switch(pt.eq(z, before), p, 1 - p)), dims="obs")
        elif of_rows == "any":
            mean = z + (z.sum() > 3)
        pm.Normal("y", p * mean, 1, observed=y, dims="obs")
    refused(model, "is not conditionally independent along dim 'obs'", "cannot integrate out")


@pytest.mark.parametrize("n_rows", range(8))
def test_rows_are_divided_without_repeats(n_rows):
    rows = np.arange(n_rows)
    np.testing.assert_array_equal(np.concatenate([rows[:0], *_divided(rows)]), rows)


@before_compiling
@pytest.mark.parametrize(
    "latent",
    [
        lambda b: pm.Uniform("z", 0, b, dims="obs"),
        lambda b: pm.TruncatedNormal("z", 0, 1, lower=-b, dims="obs"),
    ],
)
def test_a_support_that_depends_on_a_parameter(latent):
    with pm.Model(coords={"obs": range(N)}) as model:
        z = latent(pm.HalfNormal("b"))
        pm.Normal("y", z, 1, observed=Y, dims="obs")
    refused(model, "The support of 'z' depends on 'b'", "fixed support")


@before_compiling
@pytest.mark.filterwarnings("ignore:.*missing values:pymc.exceptions.ImputationWarning")
def test_missing_rows_beside_latents():
    with pm.Model(coords={"obs": range(N)}) as model:
        z = pm.Bernoulli("z", 0.3, dims="obs")
        pm.Normal("y", z, 1, observed=np.where(Y > 2, np.nan, Y), dims="obs")
    refused(model, "'y' has masked", "Drop those rows")


@before_compiling
def test_unknown_support():
    with pm.Model(coords={"obs": range(N)}) as model:
        rate = pm.HalfNormal("rate")
        z = pm.Poisson("z", rate, dims="obs")
        pm.Normal("y", z, 1, observed=Y, dims="obs")
    refused(model, "'z' does not show which values", r"support=\{'z'", r"conditional=\{'z'")


@before_compiling
def test_parameters_of_the_local_terms_cannot_be_left_to_another_step():
    model = sigmoid_belief_network()
    refused(model, "'b' is in terms", "vars", vars=[model["W"], model["c"]])


@before_compiling
def test_models_written_with_minibatch():
    with pm.Model() as model:
        z = pm.Bernoulli("z", 0.3, shape=10)
        batch = pm.Minibatch(Y, batch_size=10)
        pm.Normal("y", z, pm.HalfNormal("s"), observed=batch, total_size=N)
    refused(model, "'z'", "pm.Minibatch", "batch_size=", batch_size=None)


@pytest.mark.slow(2)
def test_a_prior_that_jax_cannot_draw_from():
    with pm.Model(coords={"obs": range(6)}) as model:
        b = pm.Normal("b")
        z = pm.TruncatedNormal("z", 0, 1, lower=0, dims="obs")
        pm.Normal("y", b * z, 1, observed=np.zeros(6), dims="obs")
    told = r"truncated_normal\. Numba has it: pass compile_kwargs=\{'mode': 'NUMBA'\}"
    options = {"model": model, "compile_kwargs": {"mode": "JAX"}}
    with pytest.raises(NotImplementedError, match=told):
        sgm.MSGNHT_S(step_size=0.01, batch_size=3, latents=sgm.Gibbs([z]), **options)
    with pytest.raises(NotImplementedError, match=told):
        sgm.log_marginal_likelihood({"b": 1.0}, [z], method="importance", **options)


@pytest.mark.slow(2)
def test_hyperparameters_may_be_left_to_another_step():
    """A variable that only enters priors: its step sees the model without the local terms."""
    with pm.Model(coords={"obs": range(N)}) as model:
        tau = pm.HalfNormal("tau")
        mu = pm.Normal("mu", 0, tau)
        z = pm.Bernoulli("z", 0.3, dims="obs")
        pm.Normal("y", mu * (2 * z - 1), 1, observed=Y, dims="obs")
    step = with_latents(model, vars=[mu])
    with step.model:
        both = [step, pm.Metropolis([tau])]
    trace = pm.sample(
        3, tune=0, chains=1, cores=1, step=both, model=step.model, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
    assert set(trace.posterior) == {"tau", "mu"}


def test_a_prior_of_latents_that_depends_on_rows_of_data():
    """Its data are sliced where latent variables are drawn, too."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=2)
        h = pm.Normal("h", X @ beta, 0.01, shape=50)
        pm.Normal("y", h, 1, observed=X[:, 0])
    smaller = without_latents(model, ["h"])
    latents = sgm.Gibbs(["h"])
    source = latent_gradient_source(model, smaller, smaller.value_vars, latents, batch_size=3)
    [X_of, y_of] = [v for _, v in source.data]
    if X_of.ndim == 1:
        X_of, y_of = y_of, X_of
    [drawn] = source.joint.draw_prior(NoiseStream(pytensor.shared(rng)))
    inputs = [*source.vars, source.joint.rows, X_of]
    draw = pytensor.function(inputs, drawn, mode=PYTHON)
    beta, rows = np.array([1.0, -2.0]), np.array([30, 4, 4])
    np.testing.assert_allclose(draw(beta, rows, X), X[rows] @ beta, atol=0.05)


@pytest.mark.parametrize("mode", [PYTHON, "JAX"], ids=["Python", "JAX"])
def test_values_of_a_known_support_are_drawn_with_their_probabilities(mode):
    """Of distributions that JAX does not draw from, and of one cut to a given support."""
    n, p = 20_000, 0.3
    with pm.Model(coords={"obs": range(n)}) as model:
        probability = pm.Beta("p", 1, 1)
        counted = pm.Binomial("counted", 3, probability, dims="obs")
        level = pm.DiscreteUniform("level", -1, 2, dims="obs")
        events = pm.Poisson("events", 10 * probability, dims="obs")
        pm.Normal("y", counted + level + events, 1, observed=np.zeros(n), dims="obs")
    names = ["counted", "level", "events"]
    smaller = without_latents(model, names)
    latents = sgm.Gibbs(names, support={"events": [0, 1, 2]})
    source = latent_gradient_source(
        model, smaller, smaller.value_vars, latents, batch_size=n, self_check=False
    )
    generator = random_generator_type("rng")
    stream = NoiseStream(generator)
    drawn = source.joint.draw_prior(stream)
    draw = pytensor.function(
        [pytensor.In(generator, mutable=True, borrow=True), *source.vars, source.joint.rows],
        [*drawn, pytensor.Out(stream.rng, borrow=True)],
        mode=with_cheap_calls(get_mode(mode)),
        on_unused_input="ignore",
    )
    rng = backend_of(draw.maker.mode).generator(np.random.default_rng(3))
    *values, _ = draw(rng, np.array(np.log(p / (1 - p))), np.arange(n))
    poisson = scipy.stats.poisson(10 * p).pmf([0, 1, 2])
    expected = [
        (range(4), scipy.stats.binom(3, p).pmf(range(4))),
        (range(-1, 3), np.full(4, 1 / 4)),
        (range(3), poisson / poisson.sum()),
    ]
    for drawn, (support, probabilities) in zip(values, expected, strict=True):
        counts = [np.count_nonzero(np.asarray(drawn) == v) for v in support]
        assert sum(counts) == n
        assert scipy.stats.chisquare(counts, n * probabilities).pvalue > 1e-3


@pytest.mark.slow(4)
@pytest.mark.parametrize(
    ("prior", "most", "cut", "chain_method"),
    [
        pytest.param(
            lambda: pm.Poisson("z", 3, dims="obs"), 12, False, "vectorized", marks=pytest.mark.long
        ),
        pytest.param(
            lambda: pm.Poisson("z", 3, dims="obs"), 5, True, "vectorized", marks=pytest.mark.long
        ),
        (lambda: pm.Geometric("z", 0.3, dims="obs"), 5, True, "sequential"),
        (lambda: pm.Categorical("z", np.full(6, 1 / 6), dims="obs"), 5, False, "sequential"),
    ],
    ids=["all of a Poisson", "a part of a Poisson", "a part of a Geometric", "all there is"],
)
def test_a_support_that_cuts_the_posterior(prior, most, cut, chain_method, caplog):
    """Half the rows have values of about 5, half of about 1, beyond which Geometric ends."""
    with pm.Model(coords={"obs": range(40)}) as model:
        scale = pm.LogNormal("scale", initval=1.0)
        z = prior()
        observed = np.repeat([5.2, 1.1], 20)
        pm.Normal("x", scale * z, 0.5, observed=observed, dims="obs")
    least = 1 if model["z"].owner.op.name == "geometric" else 0
    support = {"z": range(least, most + 1)}
    step = sgm.MSGNHT_S(
        step_size=1e-3,
        batch_size=20,
        latents=sgm.Gibbs([z], support=support),
        model=model,
        compile_kwargs={"mode": "JAX"},
    )
    options = {"tune": 50, "chains": 2, "step": step, "model": step.model, "random_seed": 1}
    options |= {"progressbar": False, "compute_convergence_checks": False}
    with caplog.at_level("WARNING", logger="pymc"):
        idata = sgm.sample(3, chain_method=chain_method, init="point", **options)
    share = float(idata.sample_stats["latent_cut"].mean())
    assert (share > 0.1) if cut else (share < 0.005)
    assert ("'z' are at an end of support=" in caplog.text) == cut


def test_a_log_probability_is_asked_for_the_values_of_its_support_alone():
    """Beyond them its table ends."""

    def log_p(value, weights):
        return pt.log(weights)[value]

    with pm.Model(coords={"obs": range(6)}) as model:
        scale = pm.LogNormal("scale")
        z = pm.CustomDist("z", np.full(3, 1 / 3), logp=log_p, dtype="int64", dims="obs",
                          signature="(k)->()")  # fmt: skip
        pm.Normal("x", scale * z, 0.5, observed=np.arange(6) % 3, dims="obs")
    latents = sgm.Gibbs([z], support={"z": [0, 1, 2]})
    step = sgm.MSGNHT_S(
        step_size=1e-3, batch_size=3, latents=latents, model=model, compile_kwargs={"mode": PYTHON}
    )
    _, [stats] = step.step(step.model.initial_point())
    assert stats["latent_cut"] == 0
