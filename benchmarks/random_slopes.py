"""Random intercepts and slopes, by rows and by whole groups, against NUTS.

    python benchmarks/random_slopes.py    # about twenty-five minutes

Groups of 6 to 60 rows, each with an intercept and a slope of its own; their means and scales
and the rows' scale are unknown. With the groups' effects integrated out five parameters are left,
and NUTS draws them (2 chains of 1000). Ways: `sgm.sample(integrate=None)` on the model as one
writes it, with the effects around their means or scaled from standard normal ones, or as two
variables ("auto", which has whole groups where a batch has four of them, and otherwise, up to 2000
parameters, one matrix for all); and with `step=sgm.MSGNHT_S(batches=...)`, or with the effects
local ("rows"). "error" is the largest error of a mean in posterior sds, "of" the parameter that has
it, "sd" the smallest and largest ratio of the sds. Passes over the data are those of the warm-up
and of all draws of four chains.
Writes benchmarks/results/random_slopes.txt.
"""

import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_sgmcmc as sgm

RESULTS = Path(__file__).parent / "results" / "random_slopes.txt"
PARAMETERS = ("mu", "tau", "sigma")
RUNS = [
    (2000, 6, "centred", "auto"),
    (2000, 6, "centred", "rows"),
    (2000, 6, "non-centred", "auto"),
    (2000, 6, "non-centred", "rows"),
    (2000, 6, "two variables", "auto"),
    (2000, 6, "two variables", "rows"),
    (1500, 12, "centred", "auto"),
    (1500, 12, "centred", "rows"),
    (1200, 20, "centred", "groups"),
    (1200, 20, "centred", "rows"),
    (1000, 30, "centred", "groups"),
    (1000, 30, "centred", "rows"),
    (600, 60, "two variables", "auto"),
    (600, 60, "non-centred", "auto"),
    (600, 60, "two variables", "rows"),
]


class Data(NamedTuple):
    """Rows in random order."""

    group: np.ndarray
    x: np.ndarray
    y: np.ndarray


def simulated(n_groups: int, n: int) -> Data:
    rng = np.random.default_rng(1)
    group = rng.permutation(np.repeat(np.arange(n_groups), n))
    x = rng.normal(size=len(group))
    intercept, slope = rng.normal(1, 0.7, n_groups), rng.normal(-0.5, 0.4, n_groups)
    return Data(group, x, rng.normal(intercept[group] + slope[group] * x))


def shared() -> tuple:
    mu = pm.Normal("mu", 0, 2, shape=2)
    tau = pm.HalfNormal("tau", 1, shape=2)
    return mu, tau, pm.HalfNormal("sigma", 1)


def without_effects(data: Data, n: int) -> pm.Model:
    """The model with the groups' effects integrated out.

    A group's y are normal around X mu with covariance sigma^2 I + X diag(tau^2) X'; its inverse and
    determinant are those of 2 x 2 matrices.
    """
    order = np.argsort(data.group, kind="stable")
    X = np.stack([np.ones(len(order)), data.x[order]], axis=1).reshape(-1, n, 2)
    y = data.y[order].reshape(-1, n)
    XX, Xy = np.einsum("gni,gnj->gij", X, X), np.einsum("gni,gn->gi", X, y)
    with pm.Model() as model:
        mu, tau, sigma = shared()
        u = (Xy - pt.dot(XX, mu)) / sigma**2
        squares = (y**2).sum(axis=1) - 2 * pt.dot(Xy, mu) + pt.sum(pt.dot(XX, mu) * mu, axis=1)
        a, b = (XX[:, k, k] / sigma**2 + 1 / tau[k] ** 2 for k in (0, 1))
        c = XX[:, 0, 1] / sigma**2
        determinant = a * b - c**2
        explained = (b * u[:, 0] ** 2 - 2 * c * u[:, 0] * u[:, 1] + a * u[:, 1] ** 2) / determinant
        logs = n * pt.log(sigma) + pt.log(determinant) / 2 + pt.sum(pt.log(tau))
        pm.Potential("y", pt.sum((explained - squares / sigma**2) / 2 - logs))
    return model


def with_effects(data: Data, n_groups: int, form: str) -> pm.Model:
    with pm.Model() as model:
        mu, tau, sigma = shared()
        if form == "two variables":
            intercept = pm.Normal("intercept", mu[0], tau[0], shape=n_groups)[data.group]
            slope = pm.Normal("slope", mu[1], tau[1], shape=n_groups)[data.group]
        else:
            if form == "centred":
                effects = pm.Normal("effects", mu, tau, shape=(n_groups, 2))
            else:
                effects = mu + tau * pm.Normal("z", shape=(n_groups, 2))
            intercept, slope = effects[data.group, 0], effects[data.group, 1]
        pm.Normal("y", intercept + slope * data.x, sigma, observed=data.y)
    return model


def moments(posterior) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names, means and sds of the shared parameters; scales by their logarithm."""
    names, draws = [], []
    for name in PARAMETERS:
        values = posterior[name].stack(draws=("chain", "draw")).values
        values = np.atleast_2d(values if name == "mu" else np.log(values))
        draws += list(values)
        suffixes = [f"[{k}]" for k in range(len(values))] if len(values) > 1 else [""]
        names += [name + suffix for suffix in suffixes]
    return names, np.mean(draws, axis=1), np.std(draws, axis=1)


def run(n_groups: int, n: int, form: str, way: str) -> str:
    data = simulated(n_groups, n)
    with without_effects(data, n):
        truth = pm.sample(1000, tune=500, chains=2, cores=1, random_seed=1, progressbar=False)
    _, mean, sd = moments(truth.posterior)
    began = time.process_time()
    with with_effects(data, n_groups, form) as model:
        shapes = model.eval_rv_shapes()
        local = [rv.name for rv in model.free_RVs if n_groups in shapes[rv.name]]
        chosen = {"integrate": None}
        if way != "auto":
            chosen = {"step": sgm.MSGNHT_S(local=local, batches=way, rng=2)}
        tree = sgm.sample(random_seed=2, progressbar=False, quiet=True, **chosen)
    seconds = time.process_time() - began
    names, found, found_sd = moments(tree.posterior)
    errors, ratios = (found - mean) / sd, found_sd / sd
    worst = int(np.argmax(np.abs(errors)))
    adaptation = json.loads(tree.posterior.attrs["adaptation"])
    warm_up = tree.posterior.attrs["data_passes_warmup"]
    passes = tree.posterior.attrs["data_passes"] - warm_up
    verdict = tree["diagnosis"].attrs["verdict"]
    return (
        f"{n_groups:>6} {n:>5} {form:>14} {way:>6} {adaptation['batches']:>7}"
        f" {errors[worst]:>6.2f} {names[worst]:>7} {ratios.min():>6.2f} {ratios.max():>5.2f}"
        f" {warm_up:>8.0f} {passes:>8.0f} {seconds:>6.0f} {verdict:>9}"
    )


def main():
    header = (
        f"{'groups':>6} {'rows':>5} {'effects':>14} {'way':>6} {'batches':>7} {'error':>6}"
        f" {'of':>7} {'sd':>12} {'warm-up':>8} {'passes':>8} {'CPU s':>6} {'verdict':>9}"
    )
    lines = [f"python benchmarks/random_slopes.py   ({time.strftime('%Y-%m-%d')})", header]
    print("\n".join(lines))
    for case in RUNS:
        lines.append(run(*case))
        print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
