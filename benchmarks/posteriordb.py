"""Posteriors of posteriordb as PyMC models, written as a user would, and a check of each.

    python benchmarks/posteriordb.py --check    # two minutes; no sampling
    python benchmarks/posteriordb.py --check --only sblrc-blr

Writes benchmarks/results/posteriordb.txt.

The models are those of posteriordb (Magnusson et al., https://github.com/stan-dev/posteriordb),
which has 10 000 nearly independent draws from nine of them. The check is that the draws come from
the PyMC model: with z the unconstrained parameters, in coordinates where the draws have mean 0 and
covariance I, and g the gradient of the log density at z, E[g_i] = 0 and E[-z_i g_j] = 1 if i = j,
else 0 (Stein's identity). A normal posterior has E[-z_i g_i] = 1 without Monte Carlo error.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.transforms import ordered
from pymc.model import Model

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from datasets import load_posteriordb, load_reference_draws

RESULTS = Path(__file__).parent / "results" / "posteriordb.txt"


def blr() -> Model:
    """Linear regression without an intercept."""
    data = load_posteriordb("sblrc")
    with pm.Model() as model:
        X = pm.Data("X", data["X"], dims=("row", "predictor"))
        beta = pm.Normal("beta", 0, 10, shape=5)
        sigma = pm.HalfNormal("sigma", 10)
        pm.Normal("y", X @ beta, sigma, observed=data["y"], dims="row")
    return model


def kidscore_momiq() -> Model:
    """Test scores of children by their mothers' IQ."""
    data = load_posteriordb("kidiq")
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=2)
        sigma = pm.HalfCauchy("sigma", 2.5)
        mean = beta[0] + beta[1] * data["mom_iq"]
        pm.Normal("kid_score", mean, sigma, observed=data["kid_score"])
    return model


def kidscore_momhsiq() -> Model:
    """... and by whether they finished high school."""
    data = load_posteriordb("kidiq")
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=3)
        sigma = pm.HalfCauchy("sigma", 2.5)
        mean = beta[0] + beta[1] * data["mom_hs"] + beta[2] * data["mom_iq"]
        pm.Normal("kid_score", mean, sigma, observed=data["kid_score"])
    return model


def kidscore_interaction() -> Model:
    """... and the product of both, not centred: very ill conditioned."""
    data = load_posteriordb("kidiq")
    with pm.Model() as model:
        mom_hs = pm.Data("mom_hs", data["mom_hs"], dims="child")
        mom_iq = pm.Data("mom_iq", data["mom_iq"], dims="child")
        beta = pm.Flat("beta", shape=4)
        sigma = pm.HalfCauchy("sigma", 2.5)
        mean = beta[0] + beta[1] * mom_hs + beta[2] * mom_iq + beta[3] * mom_hs * mom_iq
        pm.Normal("kid_score", mean, sigma, observed=data["kid_score"], dims="child")
    return model


def nes() -> Model:
    """Party identification of voters; all priors flat."""
    data = load_posteriordb("nes1980")
    age = data["age_discrete"]
    columns = {
        "intercept": np.ones(len(age)),
        "ideology": data["real_ideo"],
        "race": data["race_adj"],
        **{f"age {group}": age == group for group in (2, 3, 4)},
        **{name: data[name] for name in ("educ1", "gender", "income")},
    }
    with pm.Model(coords={"predictor": list(columns)}) as model:
        X = pm.Data("X", np.column_stack(list(columns.values())), dims=("voter", "predictor"))
        beta = pm.Flat("beta", dims="predictor")
        sigma = pm.HalfFlat("sigma")
        pm.Normal("party", X @ beta, sigma, observed=data["partyid7"], dims="voter")
    return model


def diamonds() -> Model:
    """Prices of diamonds: 24 strongly correlated predictors, centred."""
    data = load_posteriordb("diamonds")
    X = data["X"][:, 1:]
    with pm.Model() as model:
        centred = pm.Data("X", X - X.mean(axis=0), dims=("diamond", "predictor"))
        price = pm.Data("price", data["Y"], dims="diamond")
        b = pm.Normal("b", 0, 1, shape=24)
        intercept = pm.StudentT("Intercept", 3, mu=8, sigma=10)
        sigma = pm.HalfStudentT("sigma", 3, sigma=10)
        pm.Normal("y", intercept + centred @ b, sigma, observed=price, dims="diamond")
    return model


def low_dim_gauss_mix() -> Model:
    """Mixture of two normals, by ascending means."""
    data = load_posteriordb("low_dim_gauss_mix")
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2, shape=2, transform=ordered, initval=np.array([-1.0, 1.0]))
        sigma = pm.HalfNormal("sigma", 2, shape=2)
        theta = pm.Beta("theta", 5, 5)
        weights = pt.stack([theta, 1 - theta])
        pm.NormalMixture("y", w=weights, mu=mu, sigma=sigma, observed=data["y"])
    return model


def eight_schools_centered() -> Model:
    """Effects of coaching in eight schools: a funnel."""
    data = load_posteriordb("eight_schools")
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Normal("y", theta, data["sigma"], observed=data["y"], dims="school")
    return model


def eight_schools_noncentered() -> Model:
    """The same with standardised effects."""
    data = load_posteriordb("eight_schools")
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        z = pm.Normal("z", 0, 1, dims="school")
        theta = pm.Deterministic("theta", mu + tau * z, dims="school")
        pm.Normal("y", theta, data["sigma"], observed=data["y"], dims="school")
    return model


def gp_regr() -> Model:
    """Gaussian process of 11 points: not a sum over rows; sigma is a variance."""
    data = load_posteriordb("gp_pois_regr")
    x = data["x"]
    with pm.Model() as model:
        rho = pm.Gamma("rho", 25, 4)
        alpha = pm.HalfNormal("alpha", 2)
        sigma = pm.HalfNormal("sigma", 1)
        squares = (x[:, None] - x) ** 2
        covariance = alpha**2 * pt.exp(-squares / (2 * rho**2)) + sigma * np.eye(len(x))
        pm.MvNormal("y", np.zeros(len(x)), cov=covariance, observed=data["y"])
    return model


def wells() -> Model:
    """Logistic regression: who changes to a safer well; flat priors."""
    data = load_posteriordb("wells_data")
    with pm.Model() as model:
        distance = pm.Data("distance", data["dist"] / 100, dims="household")
        arsenic = pm.Data("arsenic", data["arsenic"], dims="household")
        alpha = pm.Flat("alpha")
        beta = pm.Flat("beta", shape=2)
        logit = alpha + beta[0] * distance + beta[1] * arsenic
        pm.Bernoulli("switched", logit_p=logit, observed=data["switched"], dims="household")
    return model


def radon_pooled() -> Model:
    """Radon in houses of Minnesota, all counties alike."""
    data = load_posteriordb("radon_mn")
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 10)
        beta = pm.Normal("beta", 0, 10)
        sigma = pm.HalfNormal("sigma_y", 1)
        mean = alpha + beta * data["floor_measure"]
        pm.Normal("log_radon", mean, sigma, observed=data["log_radon"])
    return model


def radon_hierarchical(centred: bool) -> Model:
    """Radon with an effect of each of the 85 counties."""
    data = load_posteriordb("radon_mn")
    with pm.Model(coords={"county": np.arange(85)}) as model:
        county = pm.Data("county_index", data["county_idx"] - 1, dims="house")
        uranium = pm.Data("log_uranium", data["log_uppm"], dims="house")
        floor = pm.Data("floor", data["floor_measure"], dims="house")
        mu = pm.Normal("mu_alpha", 0, 10)
        sigma_alpha = pm.HalfNormal("sigma_alpha", 1)
        if centred:
            alpha = pm.Normal("alpha", mu, sigma_alpha, dims="county")
        else:
            z = pm.Normal("z", 0, 1, dims="county")
            alpha = pm.Deterministic("alpha", mu + sigma_alpha * z, dims="county")
        beta = pm.Normal("beta", 0, 10, shape=2)
        sigma = pm.HalfNormal("sigma_y", 1)
        mean = alpha[county] + beta[0] * uranium + beta[1] * floor
        pm.Normal("log_radon", mean, sigma, observed=data["log_radon"], dims="house")
    return model


WITH_DRAWS: dict[str, Callable[[], Model]] = {
    "sblrc-blr": blr,
    "kidiq-kidscore_momiq": kidscore_momiq,
    "kidiq-kidscore_momhsiq": kidscore_momhsiq,
    "kidiq-kidscore_interaction": kidscore_interaction,
    "nes1980-nes": nes,
    "diamonds-diamonds": diamonds,
    "low_dim_gauss_mix-low_dim_gauss_mix": low_dim_gauss_mix,
    "eight_schools-eight_schools_centered": eight_schools_centered,
    "eight_schools-eight_schools_noncentered": eight_schools_noncentered,
    "gp_pois_regr-gp_regr": gp_regr,
}
"""By the names that they have in posteriordb."""
WITHOUT_DRAWS: dict[str, Callable[[], Model]] = {
    "wells_data-wells_dist100ars": wells,
    "radon_mn-radon_pooled": radon_pooled,
    "radon_mn-radon_hierarchical_centered": lambda: radon_hierarchical(centred=True),
    "radon_mn-radon_hierarchical_noncentered": lambda: radon_hierarchical(centred=False),
}
"""Of these posteriordb has the data only."""


def reference_draws(name: str) -> dict[str, np.ndarray]:
    """Draws of posteriordb by variable: shapes (10000,) or (10000, elements)."""
    # both forms of the eight schools are the same posterior
    draws = load_reference_draws(name.replace("_schools_centered", "_schools_noncentered"))
    return {variable: x.reshape(-1, *x.shape[2:]) for variable, x in draws.items()}


def n_rows(model: Model) -> int:
    """Rows of the data."""
    return int(model.rvs_to_values[model.observed_RVs[0]].shape[0].eval())


def unconstrained(model: Model, draws: dict[str, np.ndarray]) -> np.ndarray:
    """Draws of all free parameters on the unconstrained scale: shape (draws, parameters)."""
    columns = []
    for variable in model.free_RVs:
        x = draws[variable.name]
        transform = model.rvs_to_transforms[variable]
        if transform is not None:
            one = variable.type()
            z = transform.forward(one, *variable.owner.inputs)
            forward = pytensor.function([one], z, mode="FAST_COMPILE")
            x = np.array([forward(row) for row in x])
        columns.append(x.reshape(len(x), -1))
    return np.concatenate(columns, axis=1)


def gradients(model: Model, z: np.ndarray) -> np.ndarray:
    """Gradient of the log density at each row of unconstrained parameters."""
    gradient = model.compile_fn(model.dlogp(), inputs=model.value_vars, mode="FAST_COMPILE")
    start = model.initial_point()
    shapes = {value.name: start[value.name].shape for value in model.value_vars}
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes.values()])[:-1]
    found = np.empty_like(z)
    for row, result in zip(z, found, strict=True):
        parts = zip(shapes.items(), np.split(row, ends), strict=True)
        result[:] = gradient({name: part.reshape(shape) for (name, shape), part in parts})
    return found


def check(name: str) -> str:
    """One line: sizes, and the largest deviations from Stein's identity in standard errors."""
    model = WITH_DRAWS[name]()
    draws = reference_draws(name)
    if "z" in model.named_vars:
        draws["z"] = (draws["theta"] - draws["mu"][:, None]) / draws["tau"][:, None]
    theta = unconstrained(model, draws)
    L = np.linalg.cholesky(np.cov(theta.T))
    z = np.linalg.solve(L, (theta - theta.mean(axis=0)).T).T
    g = gradients(model, theta) @ L
    n, d = z.shape
    of_mean = g.mean(axis=0) / (g.std(axis=0) / np.sqrt(n))
    products = -z[:, :, None] * g[:, None, :]
    mean, error = products.mean(axis=0), products.std(axis=0) / np.sqrt(n)
    of_products = (mean - np.eye(d)) / error
    diagonal = np.diag(mean)
    return (
        f"{name:40}{n_rows(model):>6}{d:>4}{np.abs(of_mean).max():>9.1f}"
        f"{diagonal.min():>9.3f}{diagonal.max():>7.3f}{np.abs(of_products).max():>7.1f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare the models with the draws")
    parser.add_argument("--only", choices=WITH_DRAWS, help="this posterior; nothing is written")
    args = parser.parse_args()
    if not args.check:
        parser.error("nothing to do: pass --check")
    lines = [
        f"python benchmarks/posteriordb.py --check   ({time.strftime('%Y-%m-%d')})",
        "10 000 reference draws of each posterior; z: unconstrained parameters, whitened; g:",
        "gradient of the PyMC model's log density there. s.e.: largest deviation over all",
        "parameters or pairs of them, in Monte Carlo standard errors. Of a centred funnel the",
        "products have heavy tails: only the standard errors say something.",
        "",
        f"{'':50}{'E g = 0':>9}{'E[-z_i g_i] = 1':>16}{'all':>7}",
        f"{'posterior':40}{'rows':>6}{'d':>4}{'s.e.':>9}{'min':>9}{'max':>7}{'s.e.':>7}",
    ]
    print(*lines, sep="\n", flush=True)
    for name in [args.only] if args.only else WITH_DRAWS:
        lines.append(check(name))
        print(lines[-1], flush=True)
    if not args.only:
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
