"""Error of what 20,000 groups share, against the step size: Poisson counts with Gamma rates.

    python benchmarks/step_of_groups.py    # about nine minutes

Each group has a rate from Gamma(k, mean m) and two counts. The integrator's error is alike in all
groups, so that it adds up in k and m. On normal groups it would be zero where the gradient is
taken; the logarithm of a Gamma variable of shape 2 to 10 is not normal. With the rates integrated
out two parameters are left, and NUTS draws them (2 chains of 2000). MSGNHT_S in batches of whole
groups, everything adapted but the step size; "auto" is the adapted one. "error" is that of the
mean of log k and log m in posterior sds, "sd" the ratio of the sds, "passes" over the data with
the warm-up's.
Writes benchmarks/results/step_of_groups.txt.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pymc as pm

import pymc_sgmcmc as sgm

RESULTS = Path(__file__).parent / "results" / "step_of_groups.txt"
GROUPS, ROWS = 20_000, 2
STEP_SIZES = (0.25, 0.16, "auto")


def shared() -> tuple:
    return pm.LogNormal("k", 0, 1), pm.LogNormal("m", 0, 1)


def without_rates(counts: np.ndarray) -> pm.Model:
    """The sum of a group's counts is negative binomial."""
    with pm.Model() as model:
        k, m = shared()
        pm.NegativeBinomial("sum", mu=ROWS * m, alpha=k, observed=counts.sum(axis=1))
    return model


def with_rates(counts: np.ndarray) -> pm.Model:
    order = np.random.default_rng(0).permutation(counts.size)
    group = np.repeat(np.arange(GROUPS), ROWS)[order]
    with pm.Model() as model:
        k, m = shared()
        rate = pm.Gamma("rate", k, k / m, shape=GROUPS)
        pm.Poisson("count", rate[group], observed=counts.ravel()[order])
    return model


def moments(posterior) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of log k and log m."""
    draws = np.log([posterior[name].values.ravel() for name in ("k", "m")])
    return draws.mean(axis=1), draws.std(axis=1)


def run(counts: np.ndarray, step_size, mean: np.ndarray, sd: np.ndarray) -> str:
    began = time.process_time()
    with with_rates(counts):
        options = {"local": ["rate"], "batches": "groups", "rng": 1}
        if step_size != "auto":
            options |= {"step_size": step_size, "adaptation": "diag"}
        step = sgm.MSGNHT_S(**options)
        tree = sgm.sample(step=step, random_seed=2, progressbar=False, quiet=True)
    seconds = time.process_time() - began
    found, found_sd = moments(tree.posterior)
    errors, ratios = (found - mean) / sd, found_sd / sd
    each = "".join(f" {e:>7.2f} {r:>5.2f}" for e, r in zip(errors, ratios, strict=True))
    h = step.adapted.step_size
    passes, verdict = tree.posterior.attrs["data_passes"], tree["diagnosis"].attrs["verdict"]
    return f"{step_size!s:>9} {h:>6.3f}{each} {passes:>8.0f} {seconds:>6.0f} {verdict:>8}"


def main():
    rng = np.random.default_rng(1)
    counts = rng.poisson(rng.gamma(2, 1.5, GROUPS)[:, None], (GROUPS, ROWS))
    with without_rates(counts):
        truth = pm.sample(2000, tune=500, chains=2, cores=1, random_seed=1, progressbar=False)
    lines = [
        f"python benchmarks/step_of_groups.py   ({time.strftime('%Y-%m-%d')})",
        f"{'step size':>9} {'h':>6} {'k: error':>7} {'sd':>4} {'m: error':>7} {'sd':>4}"
        f" {'passes':>7} {'CPU s':>6} {'verdict':>8}",
    ]
    print("\n".join(lines))
    for step_size in STEP_SIZES:
        lines.append(run(counts, step_size, *moments(truth.posterior)))
        print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
