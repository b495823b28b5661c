"""Error of what many groups share, against the step size, in batches of whole groups and of rows.

    python benchmarks/step_of_groups.py                  # half an hour
    python benchmarks/step_of_groups.py --only groups    # about nine minutes

The integrator's error is alike in all groups, so that it adds up in the scales that they share.

groups   20,000 rates from Gamma(k, mean m), two Poisson counts each, batches of whole groups. The
         logarithm of a Gamma variable of shape 2 to 10 is not normal, so that the gradient's
         average is off by what the variance is.
rows     20,000 effects from Normal(mu, tau), two rows each, of Normal(effect, sigma), batches of
         rows.

With the effects integrated out two or three parameters are left, and NUTS draws them (2 chains of
2000). MSGNHT_S, everything adapted but the step size; "auto" is the adapted one. "error" is that of
the mean of a parameter (scales: of their logarithm) in posterior sds, "sd" the ratio of the sds,
"passes" over the data with the warm-up's.
Writes benchmarks/results/step_of_groups.txt and step_of_rows.txt.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pymc as pm

import pymc_sgmcmc as sgm

RESULTS = Path(__file__).parent / "results"
GROUPS, COUNTS, ROWS = 20_000, 2, 2


class Case(NamedTuple):
    """A model of groups, with and without its effects, and how it is sampled."""

    effects: str
    names: tuple[str, ...]
    """Shared parameters; all but mu are positive."""
    simulate: Callable[[np.random.Generator], np.ndarray]
    """Data of shape (groups, rows)."""
    marginal: Callable[[np.ndarray], pm.Model]
    model: Callable[[np.ndarray], pm.Model]
    step_sizes: tuple[float | str, ...]
    draws: int | None
    """Per chain; None for as many as the default call takes."""
    results: str


def in_any_order(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shuffle the rows, and return them with their groups."""
    order = np.random.default_rng(0).permutation(rows.size)
    return np.repeat(np.arange(len(rows)), rows.shape[1])[order], rows.ravel()[order]


def shape_and_mean() -> tuple:
    return pm.LogNormal("k", 0, 1), pm.LogNormal("m", 0, 1)


def counts_without_rates(counts: np.ndarray) -> pm.Model:
    """The sum of a group's counts is negative binomial."""
    with pm.Model() as model:
        k, m = shape_and_mean()
        pm.NegativeBinomial("sum", mu=COUNTS * m, alpha=k, observed=counts.sum(axis=1))
    return model


def counts_with_rates(counts: np.ndarray) -> pm.Model:
    group, count = in_any_order(counts)
    with pm.Model() as model:
        k, m = shape_and_mean()
        rate = pm.Gamma("rate", k, k / m, shape=GROUPS)
        pm.Poisson("count", rate[group], observed=count)
    return model


def mean_and_scales() -> tuple:
    return pm.Normal("mu", 0, 10), pm.HalfNormal("tau", 5), pm.HalfNormal("sigma", 5)


def rows_without_effects(y: np.ndarray) -> pm.Model:
    """Means of groups and the squares about them are independent, and sufficient."""
    mean = y.mean(axis=1)
    squares = np.sum((y - mean[:, None]) ** 2)
    with pm.Model() as model:
        mu, tau, sigma = mean_and_scales()
        pm.Normal("mean", mu, pm.math.sqrt(tau**2 + sigma**2 / ROWS), observed=mean)
        pm.Gamma("squares", GROUPS * (ROWS - 1) / 2, 1 / (2 * sigma**2), observed=squares)
    return model


def rows_with_effects(y: np.ndarray) -> pm.Model:
    group, value = in_any_order(y)
    with pm.Model() as model:
        mu, tau, sigma = mean_and_scales()
        effect = pm.Normal("effect", mu, tau, shape=GROUPS)
        pm.Normal("value", effect[group], sigma, observed=value)
    return model


CASES = {
    "groups": Case(
        "rate",
        ("k", "m"),
        lambda rng: rng.poisson(rng.gamma(2, 1.5, GROUPS)[:, None], (GROUPS, COUNTS)),
        counts_without_rates,
        counts_with_rates,
        (0.25, 0.16, "auto"),
        None,
        "step_of_groups.txt",
    ),
    "rows": Case(
        "effect",
        ("mu", "tau", "sigma"),
        lambda rng: rng.normal(rng.normal(0.5, 0.7, GROUPS)[:, None], 1, (GROUPS, ROWS)),
        rows_without_effects,
        rows_with_effects,
        (0.35, 0.25, "auto"),
        1000,
        "step_of_rows.txt",
    ),
}


def moments(case: Case, posterior) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of the shared parameters, scales' on the log scale."""
    draws = [posterior[name].values.ravel() for name in case.names]
    draws = [d if name == "mu" else np.log(d) for d, name in zip(draws, case.names, strict=True)]
    return np.mean(draws, axis=1), np.std(draws, axis=1)


def run(case: Case, batches: str, data: np.ndarray, step_size, truth) -> str:
    began = time.process_time()
    with case.model(data):
        options = {"local": [case.effects], "batches": batches, "rng": 1}
        if step_size != "auto":
            options |= {"step_size": step_size, "adaptation": "diag"}
        step = sgm.MSGNHT_S(**options)
        more = {} if case.draws is None else {"draws": case.draws, "chains": 4}
        tree = sgm.sample(step=step, random_seed=2, progressbar=False, quiet=True, **more)
    seconds = time.process_time() - began
    (mean, sd), (found, found_sd) = truth, moments(case, tree.posterior)
    errors, ratios = (found - mean) / sd, found_sd / sd
    each = "".join(f" {e:>13.2f} {r:>5.2f}" for e, r in zip(errors, ratios, strict=True))
    h = step.adapted.step_size
    passes, verdict = tree.posterior.attrs["data_passes"], tree["diagnosis"].attrs["verdict"]
    return f"{step_size!s:>9} {h:>6.3f}{each} {passes:>8.0f} {seconds:>6.0f} {verdict:>8}"


def measure(batches: str) -> None:
    case = CASES[batches]
    data = case.simulate(np.random.default_rng(1))
    with case.marginal(data):
        exact = pm.sample(2000, tune=500, chains=2, cores=1, random_seed=1, progressbar=False)
    each = "".join(f" {name + ': error':>13} {'sd':>5}" for name in case.names)
    lines = [
        f"python benchmarks/step_of_groups.py --only {batches}   ({time.strftime('%Y-%m-%d')})",
        f"{'step size':>9} {'h':>6}{each} {'passes':>8} {'CPU s':>6} {'verdict':>8}",
    ]
    print("\n".join(lines))
    for step_size in case.step_sizes:
        lines.append(run(case, batches, data, step_size, moments(case, exact.posterior)))
        print(lines[-1], flush=True)
    (RESULTS / case.results).write_text("\n".join(lines) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(CASES))
    chosen = parser.parse_args().only
    for batches in [chosen] if chosen else CASES:
        measure(batches)


if __name__ == "__main__":
    sys.exit(main())
