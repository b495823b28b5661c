"""Small models with local latent variables, and their exact likelihood gradients.

Each distinct row of data occurs `COPIES` times, so that one evaluation runs as many independent
Gibbs chains on it.
"""

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from scipy.special import logsumexp

from pymc_sgmcmc.latents.joint import without_latents

PYTHON = Mode(linker="py", optimizer="fast_compile")
COPIES = 40
rng = np.random.default_rng(11)


def repeated(rows):
    """Rows dealt out so that each half of the data is different from the other."""
    return np.tile(rows, (COPIES, *[1] * (np.ndim(rows) - 1)))


BINARY = repeated(rng.integers(2, size=(5, 6)))
REAL = repeated(rng.normal(size=(5, 3)) * 1.5)
COUNT = repeated(rng.poisson(4.0, size=5))
N = len(BINARY)
COORDS = {"obs": range(N), "pixel": range(6), "hidden": range(4), "top": range(2)}
COORDS |= {"out": range(3), "one": range(1)}


def categorical_mixture():
    with pm.Model(coords=COORDS) as model:
        weights = pm.Dirichlet("weights", [1.0, 2, 3])
        centre = pm.Normal("centre", 0, 2, shape=(3, 3))
        z = pm.Categorical("z", weights, dims="obs")
        pm.Normal("y", centre[z], 0.9, observed=REAL, dims=("obs", "out"))
    return model


def sigmoid_belief_network():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("X", BINARY, dims=("obs", "pixel"))
        b = pm.Normal("b", 0, 1, dims="hidden")
        c = pm.Normal("c", 0, 1, dims="pixel")
        W = pm.Normal("W", 0, 1, dims=("hidden", "pixel"))
        z = pm.Bernoulli("z", logit_p=b, dims=("obs", "hidden"))
        pm.Bernoulli("x", logit_p=z @ W + c, observed=x, dims=("obs", "pixel"))
    return model


def two_layers():
    with pm.Model(coords=COORDS) as model:
        b = pm.Normal("b", 0, 1, dims="top")
        V = pm.Normal("V", 0, 1, dims=("top", "hidden"))
        W = pm.Normal("W", 0, 1, dims=("pixel", "hidden"))
        c = pm.Normal("c", 0, 1, dims="hidden")
        z2 = pm.Bernoulli("z2", logit_p=b, dims=("obs", "top"))
        z1 = pm.Bernoulli("z1", logit_p=c - pt.dot(z2, V), dims=("obs", "hidden"))
        pm.Bernoulli("x", logit_p=pt.dot(z1, W.T), observed=BINARY, dims=("obs", "pixel"))
    return model


def autoregressive():
    """Units of a layer depend on those before them, pixels on the pixels before them."""
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("X", BINARY, dims=("obs", "pixel"))
        b = pm.Normal("b", 0, 1, dims="hidden")
        U = pm.Normal("U", 0, 1, shape=(4, 4))
        S = pm.Normal("S", 0, 1, shape=(6, 6))
        W = pm.Normal("W", 0, 1, dims=("hidden", "pixel"))
        z = pm.Bernoulli("z", 0.5, dims=("obs", "hidden"))
        prior = pm.Bernoulli.dist(logit_p=b + z @ pt.tril(U, -1).T)
        pm.Potential("prior", pm.logp(prior, z), dims=("obs", "hidden"))
        logits = z @ W + x @ pt.tril(S, -1).T
        pm.Bernoulli("x", logit_p=logits, observed=x, dims=("obs", "pixel"))
    return model


def coupled_by_a_potential():
    """Two variables that are dependent in the prior, one of unknown support, and a log link."""
    with pm.Model(coords=COORDS) as model:
        w = pm.Normal("w", 0, 1, shape=3)
        level = pm.DiscreteUniform("level", -1, 2, dims="obs")
        on = pm.CustomDist("on", w[2], logp=lambda on, w: 2 * w * on, dtype="int64", dims="obs")
        pm.Potential("together", w[0] * level * on - w[1] ** 2 * level**2, dims="obs")
        mu = pt.exp(0.3 * level + w[1] * on + w[2])
        pm.Poisson("y", mu, observed=COUNT, dims="obs")
    return model


def mixed_binomial():
    """A unit's effect differs from row to row."""
    covariate = repeated(np.array([0.5, -1.0, 2.0, 0.0, 1.0]))
    with pm.Model(coords=COORDS) as model:
        t = pm.Data("t", covariate, dims="obs")
        p = pm.Beta("p", 2, 2)
        slope = pm.Normal("slope", 0, 1)
        z = pm.Binomial("z", 3, p, dims="obs")
        pm.Normal("y", z * slope * t + z, 1.2, observed=REAL[:, 0], dims="obs")
    return model


def counted_factors():
    """Three units of three values, each of which explains away the others."""
    with pm.Model(coords=COORDS) as model:
        p = pm.Beta("p", 2, 2)
        W = pm.Normal("W", 1, 0.5, shape=(3, 3))
        z = pm.Binomial("z", 2, p, dims=("obs", "out"))
        pm.Normal("y", z @ W, 0.8, observed=REAL, dims=("obs", "out"))
    return model


def linear_factor():
    with pm.Model(coords=COORDS) as model:
        W = pm.Normal("W", 0, 1, dims=("top", "out"))
        sigma = pm.HalfNormal("sigma", 1)
        f = pm.Normal("f", 0, 1, dims=("obs", "top"))
        pm.Normal("y", f @ W, sigma, observed=REAL, dims=("obs", "out"))
    return model


def linear_factor_marginal():
    with pm.Model(coords=COORDS) as model:
        W = pm.Normal("W", 0, 1, dims=("top", "out"))
        sigma = pm.HalfNormal("sigma", 1)
        cov = W.T @ W + sigma**2 * pt.eye(3)
        pm.MvNormal("y", np.zeros(3), cov=cov, observed=REAL, dims=("obs", "out"))
    return model


def gamma_poisson():
    with pm.Model(coords=COORDS) as model:
        alpha = pm.HalfNormal("alpha", 3)
        mu = pm.HalfNormal("mu", 5)
        rate = pm.Gamma("rate", alpha=alpha, beta=alpha / mu, dims="obs")
        pm.Poisson("y", rate, observed=COUNT, dims="obs")
    return model


def gamma_poisson_marginal():
    with pm.Model(coords=COORDS) as model:
        alpha = pm.HalfNormal("alpha", 3)
        mu = pm.HalfNormal("mu", 5)
        pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=COUNT, dims="obs")
    return model


def gamma_precision():
    """Student's t as a normal distribution of unknown precision."""
    with pm.Model(coords=COORDS) as model:
        nu, sigma = pm.HalfNormal("nu", 5), pm.HalfNormal("sigma", 1)
        precision = pm.Gamma("precision", alpha=nu / 2, beta=nu / 2 * sigma**2, dims="obs")
        pm.Normal("y", 0.3, tau=precision[:, None], observed=REAL[:, :1], dims=("obs", "one"))
    return model


def gamma_precision_marginal():
    with pm.Model(coords=COORDS) as model:
        nu, sigma = pm.HalfNormal("nu", 5), pm.HalfNormal("sigma", 1)
        pm.StudentT("y", nu, mu=0.3, sigma=sigma, observed=REAL[:, :1], dims=("obs", "one"))
    return model


def beta_binomial():
    with pm.Model(coords=COORDS) as model:
        a, b = pm.HalfNormal("a", 3), pm.HalfNormal("b", 3)
        p = pm.Beta("p", a, b, dims="obs")
        pm.Binomial("y", 12, p, observed=COUNT, dims="obs")
    return model


def beta_binomial_marginal():
    with pm.Model(coords=COORDS) as model:
        a, b = pm.HalfNormal("a", 3), pm.HalfNormal("b", 3)
        pm.BetaBinomial("y", n=12, alpha=a, beta=b, observed=COUNT, dims="obs")
    return model


def dirichlet_multinomial():
    counts = repeated(np.array([[3, 1, 0], [0, 2, 2], [1, 1, 2], [4, 0, 0], [0, 0, 4]]))
    with pm.Model(coords=COORDS) as model:
        a = pm.HalfNormal("a", 3, shape=3)
        p = pm.Dirichlet("p", a, shape=(N, 3), dims=("obs", "out"))
        pm.Multinomial("y", 4, p, observed=counts, dims=("obs", "out"))
    return model


def dirichlet_multinomial_marginal():
    counts = repeated(np.array([[3, 1, 0], [0, 2, 2], [1, 1, 2], [4, 0, 0], [0, 0, 4]]))
    with pm.Model(coords=COORDS) as model:
        a = pm.HalfNormal("a", 3, shape=3)
        pm.DirichletMultinomial("y", n=4, a=a, observed=counts, dims=("obs", "out"))
    return model


class Case(NamedTuple):
    model: Callable[[], pm.Model]
    latents: list[str]
    exact: Callable[[], pm.Model] | dict[str, list]
    """The model with its latent variables integrated out, or the values they can take."""
    settings: dict

    @property
    def name(self):
        return self.model.__name__


BITS = [0, 1]
CASES = [
    Case(categorical_mixture, ["z"], {"z": [0, 1, 2]}, {}),
    Case(sigmoid_belief_network, ["z"], {"z": BITS}, {}),
    Case(two_layers, ["z1", "z2"], {"z1": BITS, "z2": BITS}, {}),
    Case(autoregressive, ["z"], {"z": BITS}, {}),
    Case(
        coupled_by_a_potential,
        ["level", "on"],
        {"level": [-1, 0, 1, 2], "on": BITS},
        {"support": {"on": BITS}},
    ),
    Case(mixed_binomial, ["z"], {"z": [0, 1, 2, 3]}, {}),
    Case(counted_factors, ["z"], {"z": [0, 1, 2]}, {}),
    Case(linear_factor, ["f"], linear_factor_marginal, {}),
    Case(gamma_poisson, ["rate"], gamma_poisson_marginal, {}),
    Case(gamma_precision, ["precision"], gamma_precision_marginal, {}),
    Case(beta_binomial, ["p"], beta_binomial_marginal, {}),
    Case(dirichlet_multinomial, ["p"], dirichlet_multinomial_marginal, {}),
]


def random_theta(model, latents, seed=3):
    """A point of the parameters, off the initial one."""
    rng = np.random.default_rng(seed)
    point = without_latents(model, latents).initial_point()
    return {
        name: value + rng.normal(scale=0.4, size=np.shape(value)) for name, value in point.items()
    }


def exact_gradient(case: Case, theta: dict) -> dict[str, np.ndarray]:
    """Gradient of log p(x | theta), from PyMC's own densities of the whole model."""
    if callable(case.exact):
        marginal = case.exact()
        vars = marginal.value_vars
        log_p = marginal.logp(vars=marginal.observed_RVs)
        function = pytensor.function(vars, pytensor.grad(log_p, vars), mode=PYTHON)
        return dict(
            zip([v.name for v in vars], function(*(theta[v.name] for v in vars)), strict=True)
        )
    model = case.model()
    latents = [model[name] for name in case.latents]
    values = [model.rvs_to_values[rv] for rv in latents]
    vars = [v for v in model.value_vars if v not in values]
    terms = model.logp(vars=[*latents, *model.observed_RVs, *model.potentials], sum=False)
    of_rows = sum(t.sum(axis=tuple(range(1, t.ndim))) for t in terms)
    weights = pt.vector("weights")
    gradients = pytensor.grad((weights * of_rows).sum(), vars, disconnected_inputs="ignore")
    function = pytensor.function(
        [*vars, *values, weights], [of_rows, *gradients], mode=PYTHON, on_unused_input="ignore"
    )
    dims = [model.named_vars_to_dims[name] for name in case.latents]
    shapes = [tuple(int(model.dim_lengths[dim].eval(mode=PYTHON)) for dim in own) for own in dims]
    supports = [case.exact[name] for name in case.latents]
    units = [int(np.prod(shape[1:], dtype=int)) for shape in shapes]
    configurations = product(*(s for s, n in zip(supports, units, strict=True) for _ in range(n)))
    point = [theta[v.name] for v in vars]

    def evaluate(configuration, weights):
        z = np.split(np.array(configuration), np.cumsum(units)[:-1])
        z = [
            np.broadcast_to(part.reshape(shape[1:]), shape).astype(v.dtype)
            for part, shape, v in zip(z, shapes, values, strict=True)
        ]
        return function(*point, *z, weights)

    configurations = list(configurations)
    log_p = np.stack([evaluate(c, np.zeros(N))[0] for c in configurations])
    posterior = np.exp(log_p - logsumexp(log_p, axis=0))
    parts = [evaluate(c, w)[1:] for c, w in zip(configurations, posterior, strict=True)]
    total = [sum(part) for part in zip(*parts, strict=True)]
    return dict(zip([v.name for v in vars], total, strict=True))


def many_kinds():
    """Latent variables that move in every way there is."""
    with pm.Model(coords=COORDS) as model:
        W = pm.Normal("W", 0, 1, dims=("hidden", "pixel"))
        centre = pm.Normal("centre", 0, 1, shape=3)
        bits = pm.Bernoulli("bits", 0.4, dims=("obs", "hidden"))
        kind = pm.Categorical("kind", [0.2, 0.3, 0.5], dims="obs")
        factor = pm.Normal("factor", 0, 1, dims=("obs", "out"))
        scale = pm.Gamma("scale", 3, 3, dims="obs")
        pm.Bernoulli("x", logit_p=bits @ W, observed=BINARY, dims=("obs", "pixel"))
        mu = centre[kind][:, None] + factor
        pm.Normal("y", mu, scale[:, None], observed=REAL, dims=("obs", "out"))
    return model
