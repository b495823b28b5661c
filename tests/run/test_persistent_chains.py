"""Gibbs chains that start where they ended when their row was last in a batch."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from latent_models import PYTHON
from pytensor.tensor.random.type import random_generator_type

import pymc_sgmcmc as sgm
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.latents.gradient import latent_gradient_source
from pymc_sgmcmc.latents.joint import without_latents
from pymc_sgmcmc.noise import NoiseStream
from pymc_sgmcmc.run import sequential

JAX = {"mode": "JAX"}
Z = 5.0
"""Standard errors allowed."""


class Visits:
    """Evaluations of a source's gradient one after the other, with the state between them."""

    def __init__(self, model, latents, batch_size):
        smaller = without_latents(model, latents.vars)
        self.source = source = latent_gradient_source(
            model, smaller, smaller.value_vars, latents, batch_size=batch_size
        )
        rng = random_generator_type("rng")
        stream = NoiseStream(rng)
        theta = [v.type() for v in source.vars]
        rows = pt.lvector("rows")
        constants = [c.type() for c in source.constants]
        like = source.init(np.random.default_rng(0))
        state = {
            name: [pt.tensor(shape=a.shape, dtype=a.dtype) for a in arrays]
            for name, arrays in like.items()
        }
        evaluation = source.at(theta, [rows], constants, state, stream)
        self.names = list(state)
        flat = [a for arrays in state.values() for a in arrays]
        new = [a for name in state for a in evaluation.state[name]]
        self.function = pytensor.function(
            [pytensor.In(rng, mutable=True, borrow=True), *theta, rows, *flat, *constants],
            [pytensor.Out(stream.rng, borrow=True), *new, *evaluation.likelihood],
            mode=with_cheap_calls(PYTHON),
            on_unused_input="ignore",
        )

    def start(self, seed):
        """Forget all visits."""
        rng = np.random.default_rng(seed)
        self.rng, state = rng, self.source.init(rng)
        self.state = [a for name in self.names for a in state[name]]

    def __call__(self, theta, rows):
        source = self.source
        values = [np.asarray(theta[v.name], v.dtype) for v in source.vars]
        scale = np.asarray(source.rows[0].n_rows / source.rows[0].batch_size)
        data = [array_value(a) for a, _ in source.data]
        k = len(self.state)
        self.rng, *out = self.function(self.rng, *values, rows, *self.state, scale, *data)
        self.state = out[:k]
        return out[k:]


def known_class(n=12, observed=True):
    """A class for each row that the data nearly determine: row i is of class i mod 3."""
    y = np.arange(n) % 3
    with pm.Model(coords={"obs": range(n)}) as model:
        shift = pm.Normal("shift", 0, 1)
        z = pm.Categorical("z", np.ones(3) / 3, dims="obs")
        data = pm.Data("data", y.astype(float), dims="obs")
        pm.Normal("y", z + 0.01 * shift, 0.05, observed=data, dims="obs")
    return model, y


@pytest.mark.parametrize("support", [None, {"z": np.arange(3, dtype="uint8")}])
def test_each_row_keeps_its_own(support):
    model, y = known_class()
    latents = sgm.Gibbs(["z"], n_samples=1, burn_in=1, support=support, persistent=True)
    visits = Visits(model, latents, 4)
    visits.start(1)
    for batch in ([7, 2, 5, 10], [2, 11, 0, 7]):
        visits({"shift": 0.0}, np.array(batch))
    last, visited = visits.state
    seen = [0, 2, 5, 7, 10, 11]
    assert last.dtype == np.int8
    np.testing.assert_array_equal(np.flatnonzero(visited), seen)
    np.testing.assert_array_equal(last, np.where(np.isin(np.arange(12), seen), y, 0))


def test_chains_start_where_they_ended():
    """Two units that always agree are never flipped one at a time: the first draw stays."""
    n = 8
    with pm.Model(coords={"obs": range(n)}) as model:
        b = pm.Normal("b", 0, 1)
        z = pm.Bernoulli("z", logit_p=0 * b, dims="obs")
        twin = pm.Bernoulli("twin", p=pt.switch(z, 1 - 1e-12, 1e-12), dims="obs")
        pm.Normal("y", b, 1, observed=np.zeros(n), dims="obs")
        pm.Potential("tie", 0.0 * twin, dims="obs")
    visits = Visits(model, sgm.Gibbs(["z", "twin"], n_samples=1, burn_in=0, persistent=True), n)
    visits.start(3)
    ends = []
    for _ in range(6):
        visits({"b": 0.0}, np.arange(n))
        ends.append(np.array(visits.state[0]))
    assert 0 < ends[0].sum() < n  # from the prior, both values
    assert all(np.array_equal(end, ends[0]) for end in ends)


Y = np.where(np.random.default_rng(4).random(60) < 0.3, 1.5, -1.5)
Y += np.random.default_rng(5).normal(size=60)


def mixture_with_scores(y=Y):
    """Two components, centres mu and -mu; y is seen through a score of each row.

    z and the score of a row depend strongly on each other: sweeps move z seldom.
    """
    with pm.Model(coords={"obs": range(len(y))}) as model:
        mu = pm.Normal("mu", 0, 2)
        z = pm.Bernoulli("z", 0.3, dims="obs")
        score = pm.Normal("score", mu * (2 * z - 1), 0.7, dims="obs")
        pm.Normal("y", score, np.sqrt(0.51), observed=y, dims="obs")
    return model


def log_likelihood(mu):
    """Up to a constant, of mu alone: y ~ N(+-mu, 1)."""
    ones, zeros = (np.exp(-0.5 * (Y - s * np.atleast_1d(mu)[:, None]) ** 2) for s in (1, -1))
    return np.squeeze(np.log(0.3 * ones + 0.7 * zeros).sum(axis=1))


def posterior_of_mu():
    """Mean and sd, by quadrature."""
    mu = np.linspace(-6, 6, 4001)
    log_p = log_likelihood(mu) - 0.5 * (mu / 2) ** 2
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = np.sum(p * mu)
    return mean, np.sqrt(np.sum(p * (mu - mean) ** 2))


@pytest.mark.slow(4)
def test_chains_forget_the_prior_by_their_visits():
    """Without burn-in a first visit's gradient is biased, that of the twentieth is not."""
    mu, repeats = 0.8, 20
    model = mixture_with_scores(np.tile(Y, repeats))
    latents = sgm.Gibbs(["z", "score"], n_samples=1, burn_in=0, persistent=True)
    visits = Visits(model, latents, 30 * repeats)
    halves = np.arange(60 * repeats).reshape(2, -1)
    first, last = [], []
    for seed in range(12):
        visits.start(seed)
        gradients = [[visits({"mu": mu}, half)[0] for half in halves] for _ in range(20)]
        first.append(np.mean(gradients[0]) / repeats)
        last.append(np.mean(gradients[-1]) / repeats)
    dx = 1e-4
    exact = (log_likelihood(mu + dx) - log_likelihood(mu - dx)) / (2 * dx)
    error = np.std(last, ddof=1) / np.sqrt(len(last))
    assert abs(np.mean(last) - exact) < Z * error
    assert abs(np.mean(first) - exact) > 4 * Z * error  # the comparison can tell


@pytest.mark.long
@pytest.mark.parametrize("mode", ["JAX", "NUMBA"])
def test_posterior_without_burn_in(mode):
    with mixture_with_scores() as model:
        step = sgm.MSGNHT_S(
            step_size=0.02, diffusion=20.0, batch_size=30, thin=20,
            latents=sgm.Gibbs(["z", "score"], n_samples=2, burn_in=0, persistent=True),
            compile_kwargs={"mode": mode},
        )  # fmt: skip
    draws = sgm.sample(
        1500, tune=200, chains=2, cores=1, step=step, model=model, random_seed=3,
        progressbar=False,
    ).posterior["mu"]  # fmt: skip
    mean, sd = posterior_of_mu()
    ess = float(az.ess(draws.values))
    assert ess > 500
    # 4 standard errors; 4 % of an sd and of the sd for step size, batches and theta's changes
    assert abs(float(draws.mean()) - mean) < sd * (4 / np.sqrt(ess) + 0.04)
    assert abs(float(draws.std()) / sd - 1) < 4 / np.sqrt(2 * ess) + 0.04


def step_of(model, **settings):
    options = {"step_size": 0.02, "diffusion": 20.0, "batch_size": 20, "thin": 5}
    options |= {"latents": sgm.Gibbs(["z"], n_samples=1, burn_in=1, persistent=True)}
    with model:
        return sgm.MSGNHT_S(**options | settings)


@pytest.mark.long
def test_vectorised_chains_keep_their_own():
    """All at once and one after the other: the same draws."""
    options = {"draws": 6, "tune": 4, "chains": 2, "random_seed": 5, "progressbar": False}
    model = mixture_with_scores()
    latents = sgm.Gibbs(["score", "z"], n_samples=1, persistent=True)
    found = [
        sgm.sample(
            step=step_of(model, compile_kwargs=JAX, latents=latents), model=model,
            chain_method=method, **options,
        ).posterior["mu"].values
        for method in ("sequential", "vectorized")
    ]  # fmt: skip
    np.testing.assert_allclose(*found, rtol=1e-6)
    assert not np.allclose(found[0][0], found[0][1])


@pytest.mark.slow(4)
def test_a_stopped_run_goes_on_with_its_latents(tmp_path, monkeypatch):
    """The same draws as without a stop."""
    monkeypatch.setattr(sequential, "SECONDS_PER_BLOCK", -1.0)  # a block for each draw

    def stop(trace, draw):
        if draw.draw_idx == 5:
            raise KeyboardInterrupt

    def run(store, **options):
        return sgm.sample(
            8, tune=2, chains=1, step=step, model=model, random_seed=2, progressbar=False,
            trace=tmp_path / store, **options,
        ).posterior["mu"].values  # fmt: skip

    model = mixture_with_scores()
    latents = sgm.Gibbs(["z", "score"], n_samples=1, burn_in=0, persistent=True)
    step = step_of(model, latents=latents, compile_kwargs={"mode": PYTHON})
    whole = run("whole")
    assert run("stopped", callback=stop).shape[1] < 8
    np.testing.assert_array_equal(run("stopped", resume=True), whole)


def test_what_has_no_rows_to_come_back_to_is_refused():
    with pytest.raises(ValueError, match=r"persistent='no'.*True or False"):
        sgm.Gibbs(["z"], persistent="no")
    model, y = known_class(60)
    stream = sgm.StreamedData({"data": y.astype(float)})
    with pytest.raises(
        ValueError, match=r"persistent=True in Gibbs.*fixed numbers.*persistent=False"
    ):
        step_of(model, data=stream)
    with pytest.raises(ValueError, match=r"persistent=True.*automatic step size.*persistent=False"):
        step_of(model, step_size="auto")
    step = step_of(model, compile_kwargs={"mode": PYTHON})
    step.step(step.model.initial_point())
    with model:
        model.set_dim("obs", 61, range(61))
        pm.set_data({"data": np.arange(61) % 3.0})
    with pytest.raises(ValueError, match=r"61 rows now.*persistent=True.*60 rows. Make a new step"):
        step.setup_chain(np.random.default_rng(0), 0, 0)
