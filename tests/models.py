"""Small models of many kinds, for the exactness of their minibatch gradients.

Each function returns a model of `N` rows; `MODELS` lists them with the arguments of the step.
"""

import bambi as bmb
import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

N = 23
"""Prime, so that no batch size divides it."""

rng = np.random.default_rng(7)
X = rng.normal(size=(N, 3))
GROUP = rng.integers(4, size=N)
REAL = rng.normal(size=N)
COUNT = rng.poisson(3.0, size=N)
BINARY = rng.integers(2, size=N)
CLASS = rng.integers(3, size=N)
PAIRS = rng.normal(size=(N, 2))
COORDS = {"obs": np.arange(N), "feature": ["a", "b", "c"], "group": list("pqrs")}


def linear():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        w = pm.Normal("w", 0, 3, dims="feature")
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", x @ w, sigma, observed=REAL, dims="obs")
    return model


def logistic():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        w = pm.Normal("w", 0, 3, dims="feature")
        pm.Bernoulli("y", logit_p=x @ w, observed=BINARY, dims="obs")
    return model


def logistic_without_dims():
    with pm.Model() as model:
        w = pm.Normal("w", 0, 3, shape=3)
        pm.Bernoulli("y", logit_p=pt.dot(X, w), observed=BINARY)
    return model


def poisson_int64_data():
    with pm.Model(coords=COORDS) as model:
        counts = pm.Data("counts", COUNT.astype("int64"), dims="obs")
        w = pm.Normal("w", 0, 0.5, shape=3)
        pm.Poisson("y", pt.exp(pt.dot(X, w)), observed=counts)
    return model


def categorical():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        w = pm.Normal("w", 0, 1, shape=(3, 3))
        pm.Categorical("y", logit_p=x @ w, observed=CLASS, dims="obs")
    return model


def _hierarchical(group):
    mu = pm.Normal("mu", 0, 1)
    tau = pm.HalfNormal("tau", 1)
    alpha = pm.Normal("alpha", mu, tau, dims="group")
    pm.Normal("y", alpha[group], pm.Exponential("sigma", 1), observed=REAL, dims="obs")


def hierarchical():
    with pm.Model(coords=COORDS) as model:
        _hierarchical(pm.Data("group_index", GROUP, dims="obs"))
    return model


def hierarchical_constant_index():
    with pm.Model(coords=COORDS) as model:
        _hierarchical(GROUP)
    return model


def normal_mixture():
    with pm.Model(coords=COORDS) as model:
        weights = pm.Dirichlet("weights", [1, 2])
        mu = pm.Normal("mu", 0, 2, shape=2, transform=pm.distributions.transforms.ordered)
        pm.NormalMixture("y", weights, mu, 0.7, observed=REAL, dims="obs")
    return model


def regression_mixture():
    """The components' parameters differ from row to row."""
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        w = pm.Normal("w", 0, 1, shape=(3, 2))
        parts = [pm.Normal.dist(x @ w[:, 0], 1), pm.StudentT.dist(4, mu=x @ w[:, 1], sigma=2)]
        pm.Mixture("y", pm.Dirichlet("weights", [1, 1]), parts, observed=REAL, dims="obs")
    return model


def zero_inflated():
    with pm.Model(coords=COORDS) as model:
        psi = pm.Beta("psi", 2, 2)
        w = pm.Normal("w", 0, 0.3, shape=3)
        pm.ZeroInflatedPoisson("y", psi, pt.exp(pt.dot(X, w)), observed=COUNT, dims="obs")
    return model


def multivariate_rows():
    with pm.Model(coords=COORDS | {"output": ["u", "v"]}) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        w = pm.Normal("w", 0, 1, shape=(3, 2))
        chol, *_ = pm.LKJCholeskyCov("chol", eta=2, n=2, sd_dist=pm.Exponential.dist(1))
        pm.MvNormal("y", x @ w, chol=chol, observed=PAIRS, dims=("obs", "output"))
    return model


def ordered_logistic():
    with pm.Model(coords=COORDS) as model:
        w = pm.Normal("w", 0, 1, shape=3)
        ordered = pm.distributions.transforms.ordered
        cut = pm.Normal("cut", [-1, 1], 1, transform=ordered, initval=[-1, 1])
        pm.OrderedLogistic("y", eta=pt.dot(X, w), cutpoints=cut, observed=CLASS, dims="obs")
    return model


def simplex():
    with pm.Model(coords=COORDS) as model:
        pm.Categorical("y", p=pm.Dirichlet("p", [1.0, 2, 3]), observed=CLASS, dims="obs")
    return model


def multinomial_rows():
    counts = np.random.default_rng(1).multinomial(9, [0.2, 0.3, 0.5], size=N)
    with pm.Model() as model:
        pm.Multinomial("y", 9, pm.Dirichlet("p", [1.0, 2, 3]), observed=counts)
    return model


def potential_along_rows():
    with pm.Model(coords=COORDS) as model:
        y = pm.Data("y", REAL, dims="obs")
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("z", mu, 1, observed=PAIRS[:, 0], dims="obs")
        pm.Potential("robust", -pt.log1p((y - mu) ** 2), dims="obs")
        pm.Potential("soft_limit", -(mu**4))
    return model


def potential_without_dims():
    """A row for each datum, told by its length alone."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("z", mu, 1, observed=PAIRS[:, 0])
        pm.Potential("robust", -pt.log1p((REAL - mu) ** 2))
        pm.Potential("soft_limit", -(pt.stack([mu, 2 * mu]) ** 4))
    return model


def potential_without_dims_on_data():
    with pm.Model() as model:
        x = pm.Data("x", REAL)
        mu = pm.Normal("mu", 0, 1, shape=2)
        pm.Normal("z", mu[0] * x, 1, observed=PAIRS[:, 0])
        pm.Potential("robust", -pt.log1p((x - mu[1]) ** 2))
        pm.Potential("shrink", -(x.std() * mu**4))
    return model


def two_terms():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        w = pm.Normal("w", 0, 1, dims="feature")
        pm.Normal("y", x @ w, 1, observed=REAL, dims="obs")
        pm.Poisson("counts", pt.exp(x @ w / 3), observed=COUNT, dims="obs")
    return model


def one_term_elsewhere():
    """The second observed variable has other rows: cut along the first, it belongs to the prior."""
    with pm.Model(coords=COORDS | {"survey": np.arange(6)}) as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=REAL, dims="obs")
        pm.Normal("other", 2 * mu, 1, observed=np.linspace(-1, 1, 6), dims="survey")
    return model


def rows_not_first():
    """Images (channel, obs, pixel), with a scale for each pixel and an offset for each channel."""
    images = np.random.default_rng(3).normal(size=(2, N, 4))
    coords = COORDS | {"channel": [0, 1], "pixel": np.arange(4)}
    with pm.Model(coords=coords) as model:
        x = pm.Data("x", X.T, dims=("feature", "obs"))
        w = pm.Normal("w", 0, 1, dims="feature")
        offset = pm.Normal("offset", 0, 1, dims="channel")
        scale = pm.HalfNormal("scale", 1, dims="pixel")
        mu = offset[:, None, None] + (w @ x)[None, :, None]
        pm.Normal("y", mu, scale, observed=images, dims=("channel", "obs", "pixel"))
    return model


def data_in_a_prior():
    """The prior's scale comes from all rows and must not change from batch to batch."""
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", REAL, dims="obs")
        w = pm.Normal("w", x.mean(), x.std())
        pm.Normal("y", w * x, 1, observed=PAIRS[:, 0], dims="obs")
    return model


def student_t_with_deterministic():
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        w = pm.Normal("w", 0, 1, dims="feature")
        mu = pm.Deterministic("mu", x @ w, dims="obs")
        pm.Deterministic("norm", pt.sqrt((w**2).sum()))
        nu = pm.Gamma("nu", 2, 0.1)
        sigma = pm.HalfCauchy("sigma", 1)
        pm.StudentT("y", nu, mu=mu, sigma=sigma, observed=REAL, dims="obs")
    return model


def bounded_transforms():
    with pm.Model(coords=COORDS) as model:
        a = pm.Uniform("a", -2, 3)
        b = pm.TruncatedNormal("b", 1, 1, lower=0)
        chol = pm.LKJCorr("corr", n=2, eta=2)
        pm.Normal("y", a + chol[0, 1], b, observed=REAL, dims="obs")
    return model


def censored():
    with pm.Model(coords=COORDS) as model:
        normal = pm.Normal.dist(pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1))
        pm.Censored("y", normal, -1, 1, observed=REAL.clip(-1, 1), dims="obs")
    return model


def truncated():
    with pm.Model(coords=COORDS) as model:
        pm.Truncated(
            "y", pm.Normal.dist(pm.Normal("mu", 0, 1), 1), -3, 3, observed=REAL, dims="obs"
        )
    return model


def custom_dist():
    def logp(value, mu):
        return -pt.log1p((value - mu) ** 2)

    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("obs", "feature"))
        w = pm.Normal("w", 0, 1, dims="feature")
        pm.CustomDist("y", x @ w, logp=logp, observed=REAL, dims="obs")
    return model


def scalar_parameters():
    """No array but the observed one."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1), observed=REAL)
    return model


def observed_matrix_named_dim():
    """A square array: only its dims tell the rows from the columns."""
    square = np.random.default_rng(4).normal(size=(N, N))
    with pm.Model(coords=COORDS | {"place": np.arange(N)}) as model:
        at = pm.Normal("at", 0, 1, dims="place")
        pm.Normal("y", at, 1, observed=square, dims=("obs", "place"))
    return model


def bambi():
    """Rows are constants of the graph, the dim is called __obs__."""
    data = pd.DataFrame({"y": BINARY, "x": X[:, 0], "z": X[:, 1], "group": GROUP.astype(str)})
    model = bmb.Model("y ~ x + z + (1|group)", data, family="bernoulli")
    model.build()
    return model.backend.model


def bambi_linear():
    data = pd.DataFrame({"y": REAL, "x": X[:, 0], "kind": CLASS.astype(str)})
    model = bmb.Model("y ~ x + kind", data)
    model.build()
    return model.backend.model


MODELS = {
    model.__name__: model
    for model in [
        linear,
        logistic,
        logistic_without_dims,
        poisson_int64_data,
        categorical,
        hierarchical,
        hierarchical_constant_index,
        normal_mixture,
        regression_mixture,
        zero_inflated,
        multivariate_rows,
        ordered_logistic,
        simplex,
        multinomial_rows,
        potential_along_rows,
        potential_without_dims,
        potential_without_dims_on_data,
        two_terms,
        one_term_elsewhere,
        rows_not_first,
        data_in_a_prior,
        student_t_with_deterministic,
        bounded_transforms,
        censored,
        truncated,
        custom_dist,
        scalar_parameters,
        observed_matrix_named_dim,
        bambi,
        bambi_linear,
    ]
}
OPTIONS = {"one_term_elsewhere": {"minibatch_dim": "obs"}}
"""Arguments that a model needs besides `batch_size`."""
