"""The default call on hierarchies of five families, 1 to 20 effects a group, beside exact moments.

    python benchmarks/families.py
    python benchmarks/families.py --only poisson normal-4 --seeds 3

Each seed is another data set and another run. Truth: for one effect a group Gauss-Hermite
quadrature of 15 nodes around modes that are found anew for each value of the parameters, for normal
rows with several effects the closed form; moments of what groups share by importance sampling from
a Student density at the mode, in pairs of opposite points. "scale": the error of the mean of the
effects' scale (the first of several) in posterior sds, mean over seeds with its standard error,
which shows a bias. "largest": of all errors of means of what is shared, in sds. "sds": the ratios
to true sds, smallest and largest. The Monte Carlo error of a mean is .05 sd, of an sd 3% or so.
"coverage": of 90% intervals of the effects. "truth": effective draws of the exact moments, the
fewest. Seconds with compilation.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pymc as pm
from integrated import table
from scipy import special, stats
from student_moments import mode_and_covariance, student_draws

HERE = Path(__file__).parent
NODES = 15
PAIRS = 1000
GROUPS = 500


class Posterior(NamedTuple):
    """A model, and the exact density of what its groups share."""

    model: pm.Model
    log_density: Callable[[np.ndarray], float]
    """Of flat parameters, with the Jacobians of logarithms."""
    start: np.ndarray
    variables: Callable[[np.ndarray], dict[str, np.ndarray]]
    """From draws of the parameters, shape (draws, d), to those of variables."""
    effects: np.ndarray
    """Those that made the data."""


# ---- one effect a group: eta = X beta + a_group -------------------------------------------------


class Family(NamedTuple):
    """A likelihood of rows, with what it has besides the linear predictor."""

    draw: Callable
    """Values of rows, from a generator and their linear predictors."""
    log_p: Callable
    """Of values, linear predictors, shape (rows, nodes), and further parameters."""
    observe: Callable
    """Write it into a model, from the linear predictors and the values."""
    extra: np.ndarray
    """The further parameters that made the data, as they are sampled."""
    log_prior: Callable
    names: Callable
    """The variables that these are, from draws of shape (draws, parameters)."""


def _normal(eta, y):
    pm.Normal("y", eta, pm.HalfNormal("sigma", 2), observed=y)


def _negative_binomial(eta, y):
    pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=pm.HalfNormal("alpha", 5), observed=y)


def _ordinal(eta, y):
    cuts = pm.Normal(
        "cuts", 0, 3, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1, 0, 1.0]
    )
    pm.OrderedLogistic("y", eta, cuts, observed=y)


def _cuts(e):
    return np.cumsum(np.concatenate([e[..., :1], np.exp(e[..., 1:])], axis=-1), axis=-1)


def _ordinal_log_p(y, eta, e):
    upper = np.concatenate([_cuts(e), [np.inf]])[y][:, None] - eta
    lower = np.concatenate([[-np.inf], _cuts(e)])[y][:, None] - eta
    return np.log(special.expit(upper) - special.expit(lower))


def _negative_binomial_log_p(y, eta, e):
    alpha, y = np.exp(e[0]), y[:, None]
    constant = special.gammaln(y + alpha) - special.gammaln(alpha) - special.gammaln(y + 1)
    return (
        constant + alpha * np.log(alpha) + y * eta - (y + alpha) * np.logaddexp(np.log(alpha), eta)
    )


def _half_normal(sd):
    return lambda e: stats.halfnorm.logpdf(np.exp(e[0]), 0, sd) + e[0]


NOTHING = np.zeros(0)
FAMILIES = {
    "normal": Family(
        lambda rng, eta: rng.normal(eta, 1),
        lambda y, eta, e: stats.norm.logpdf(y[:, None], eta, np.exp(e[0])),
        _normal,
        np.zeros(1),
        _half_normal(2),
        lambda e: {"sigma": np.exp(e[:, 0])},
    ),
    "bernoulli": Family(
        lambda rng, eta: rng.binomial(1, special.expit(eta)),
        lambda y, eta, e: y[:, None] * eta - np.logaddexp(0, eta),
        lambda eta, y: pm.Bernoulli("y", logit_p=eta, observed=y),
        NOTHING,
        lambda e: 0.0,
        lambda e: {},
    ),
    "poisson": Family(
        lambda rng, eta: rng.poisson(np.exp(eta)),
        lambda y, eta, e: y[:, None] * eta - np.exp(eta) - special.gammaln(y + 1)[:, None],
        lambda eta, y: pm.Poisson("y", pm.math.exp(eta), observed=y),
        NOTHING,
        lambda e: 0.0,
        lambda e: {},
    ),
    "negative-binomial": Family(
        lambda rng, eta: rng.poisson(rng.gamma(3.0, np.exp(eta) / 3.0)),
        _negative_binomial_log_p,
        _negative_binomial,
        np.log([3.0]),
        _half_normal(5),
        lambda e: {"alpha": np.exp(e[:, 0])},
    ),
    "ordinal": Family(
        lambda rng, eta: np.sum(
            rng.logistic(eta)[:, None] > [-1.0, 0.2, 1.5], axis=1
        ),
        _ordinal_log_p,
        _ordinal,
        np.array([-1.0, np.log(1.2), np.log(1.3)]),
        lambda e: stats.norm.logpdf(_cuts(e), 0, 3).sum() + e[1:].sum(),
        lambda e: {"cuts": _cuts(e)},
    ),
}  # fmt: skip


def one_effect(name: str, seed: int) -> Posterior:
    """Groups of 1 to 40 rows, of which the effects are centred; cuts take the place of a mean."""
    family, rng = FAMILIES[name], np.random.default_rng(seed)
    group = np.repeat(np.arange(GROUPS), rng.integers(1, 41, GROUPS))
    X, has_mean = rng.normal(size=(len(group), 2)), name != "ordinal"
    effects = rng.normal(0.4 * has_mean, 0.6, GROUPS)
    y = family.draw(rng, X @ [0.5, -0.3] + effects[group])
    first = np.concatenate([[0], np.cumsum(np.bincount(group))[:-1]])
    with pm.Model() as model:
        beta, tau = pm.Normal("beta", 0, 1, shape=2), pm.HalfNormal("tau", 1)
        mu = pm.Normal("mu", 0, 2) if has_mean else 0.0
        a = pm.Normal("a", mu, tau, shape=GROUPS)
        family.observe(pm.math.dot(X, beta) + a[group], y)
    x, weights = np.polynomial.hermite_e.hermegauss(NODES)
    log_weights = np.log(weights / weights.sum()) + x**2 / 2
    modes = np.zeros(GROUPS)  # kept from one value of the parameters to the next

    def split(v):
        return v[:2], v[2], v[3] if has_mean else 0.0, v[3 + has_mean :]

    def log_density(v):
        nonlocal modes
        beta, log_tau, mu, extra = split(v)
        tau, fixed = np.exp(log_tau), X @ beta

        def h(a):
            rows = family.log_p(y, fixed[:, None] + a[group], extra)
            return np.add.reduceat(rows, first) - ((a - mu) / tau) ** 2 / 2 - log_tau

        for _ in range(2):
            step = np.array([-1e-3, 0, 1e-3])
            low, at, high = h(modes[:, None] + step).T
            curvature = np.maximum(-(low - 2 * at + high) / 1e-6, tau**-2 / 2)
            modes = modes + np.clip((high - low) / 2e-3 / curvature, -1, 1)
        width = 1 / np.sqrt(curvature)
        log_p = h(modes[:, None] + width[:, None] * x) + log_weights
        prior = stats.norm.logpdf(beta).sum() + stats.halfnorm.logpdf(tau) + log_tau
        prior += has_mean * stats.norm.logpdf(mu, 0, 2) + family.log_prior(extra)
        return (special.logsumexp(log_p, axis=1) + np.log(width)).sum() + prior

    start = np.concatenate([[0.5, -0.3, np.log(0.6)], [0.4] * has_mean, family.extra])

    def variables(v):
        found = {"beta": v[:, :2], "tau": np.exp(v[:, 2])} | family.names(v[:, 3 + has_mean :])
        return found | ({"mu": v[:, 3]} if has_mean else {})

    return Posterior(model, log_density, start, variables, effects)


# ---- normal rows, several effects a group ------------------------------------------------------


def several_effects(k: int, seed: int) -> Posterior:
    """y = Z_j a_j + noise: a_j ~ N(mu, diag(s^2)); with more than 4 effects they share one s."""
    rng = np.random.default_rng(seed)
    n_scales = k if k <= 4 else 1
    group = np.repeat(np.arange(GROUPS), rng.integers(1, 2 * k + 10, GROUPS))
    Z = np.column_stack([np.ones(len(group)), rng.normal(size=(len(group), k - 1))])
    mu, s = rng.normal(0, 0.5, k), np.linspace(0.8, 0.4, n_scales)
    effects = rng.normal(mu, np.broadcast_to(s, k), (GROUPS, k))
    y = rng.normal((Z * effects[group]).sum(axis=1), 1.0)
    first = np.concatenate([[0], np.cumsum(np.bincount(group))[:-1]])
    squares = np.add.reduceat(Z[:, :, None] * Z[:, None, :], first)
    products, totals = np.add.reduceat(Z * y[:, None], first), np.add.reduceat(y**2, first)
    sizes = np.bincount(group)
    with pm.Model() as model:
        means = pm.Normal("mu", 0, 1, shape=k)
        scale = pm.HalfNormal("tau", 1, shape=n_scales)
        a = pm.Normal("a", means, scale, shape=(GROUPS, k))
        pm.Normal("y", (Z * a[group]).sum(axis=1), pm.HalfNormal("sigma", 2), observed=y)

    def log_density(v):
        mu, log_s, log_sigma = v[:k], v[k:-1], v[-1]
        precision, variance = np.broadcast_to(np.exp(-2 * log_s), k), np.exp(2 * log_sigma)
        A = squares / variance + np.diag(precision)
        b = products / variance + precision * mu
        fit = np.einsum("gi,gi->g", b, np.linalg.solve(A, b[:, :, None])[:, :, 0])
        log_p = (fit - np.linalg.slogdet(A)[1] - totals / variance).sum() / 2
        log_p += GROUPS * (np.log(precision).sum() - precision @ mu**2) / 2
        log_p -= sizes.sum() * log_sigma
        prior = stats.norm.logpdf(mu).sum() + stats.halfnorm.logpdf(np.exp(log_s)).sum()
        prior += stats.halfnorm.logpdf(np.exp(log_sigma), 0, 2) + v[k:].sum()
        return log_p + prior

    start = np.concatenate([mu, np.log(s), [0.0]])

    def variables(v):
        return {"mu": v[:, :k], "tau": np.exp(v[:, k:-1]), "sigma": np.exp(v[:, -1])}

    return Posterior(model, log_density, start, variables, effects)


CASES: dict[str, Callable[[int], Posterior]] = {
    **{name: lambda seed, name=name: one_effect(name, seed) for name in FAMILIES},
    **{f"normal-{k}": lambda seed, k=k: several_effects(k, seed) for k in (2, 4, 20)},
}


# ---- moments, runs -----------------------------------------------------------------------------


def exact_moments(posterior: Posterior) -> tuple[dict, dict, float]:
    """Means and sds of the variables, and the effective number of draws that they are of."""
    f = posterior.log_density
    mode, covariance = mode_and_covariance(f, posterior.start)
    draws, weights = student_draws(f, mode, covariance, df=20, pairs=PAIRS)
    means, sds = {}, {}
    for name, values in posterior.variables(draws).items():
        flat = values.reshape(len(values), -1)
        means[name] = weights @ flat
        sds[name] = np.sqrt(weights @ (flat - means[name]) ** 2)
    return means, sds, 1 / np.square(weights).sum()


def run(name: str, seed: int) -> dict:
    import pymc_sgmcmc as sgm

    posterior = CASES[name](seed)
    means, sds, size = exact_moments(posterior)
    began = time.perf_counter()
    with posterior.model:
        tree = sgm.sample(random_seed=seed, progressbar=False)
    seconds = time.perf_counter() - began
    errors, ratios = {}, []
    for variable, mean in means.items():
        draws = tree.posterior[variable].values
        draws = draws.reshape(-1, mean.size)
        errors[variable] = list((draws.mean(axis=0) - mean) / sds[variable])
        ratios += list(draws.std(axis=0) / sds[variable])
    a = tree.posterior["a"].values
    low, high = np.quantile(a.reshape(-1, *a.shape[2:]), [0.05, 0.95], axis=0)
    return {
        "scale": errors["tau"][0],
        "largest": max(abs(e) for each in errors.values() for e in each),
        "ratios": [min(ratios), max(ratios)],
        "coverage": float(np.mean((low < posterior.effects) & (posterior.effects < high))),
        "verdict": tree["diagnosis"].attrs["verdict"],
        "seconds": seconds,
        "passes": float(tree.posterior.attrs["data_passes"]),
        "truth": size,
    }


def row_of(name: str, runs: list[dict]) -> dict:
    """Summarise the runs of a case."""
    scale = np.array([r["scale"] for r in runs])
    error = scale.std(ddof=1) / np.sqrt(len(scale)) if len(scale) > 1 else np.nan
    verdicts = [r["verdict"] for r in runs]
    low, high = min(r["ratios"][0] for r in runs), max(r["ratios"][1] for r in runs)
    return {
        "case": name,
        "seeds": len(runs),
        "ok": verdicts.count("ok"),
        "scale": f"{scale.mean():+.3f} +- {error:.3f}",
        "largest": f"{max(r['largest'] for r in runs):.2f}",
        "sds": f"{low:.2f} to {high:.2f}",
        "coverage": f"{np.mean([r['coverage'] for r in runs]):.3f}",
        "passes": round(np.median([r["passes"] for r in runs])),
        "s": round(np.median([r["seconds"] for r in runs])),
        "truth": round(min(r["truth"] for r in runs)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--one", nargs=2, metavar=("CASE", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "families.txt")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run(args.one[0], int(args.one[1]))))
        return
    lines = [f"{' '.join(['python', 'benchmarks/families.py', *sys.argv[1:]])}   "
             f"({time.strftime('%Y-%m-%d')}, pymc {pm.__version__}, 2 cores)"]  # fmt: skip
    rows = []
    for name in args.only:
        runs = []
        for seed in range(1, args.seeds + 1):
            command = [sys.executable, __file__, "--one", name, str(seed)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
            print(name, seed, runs[-1], flush=True)
        rows.append(row_of(name, runs))
        args.out.write_text("\n".join([*lines, *table(rows)]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
