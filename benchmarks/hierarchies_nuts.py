"""Hierarchies with local variables against NUTS: radon, centred and not, and a two-level logistic.

    python benchmarks/hierarchies_nuts.py    # about ten minutes

Radon in 85 counties of 1 to 116 houses (posteriordb; `benchmarks/truth.py` has NUTS's moments), and
a logistic regression with 500 groups of 1 to 39 rows, mean and scale unknown (NUTS: 4 chains of
1500 draws, here). MSGNHT_S by `Groups`, batches of 100 rows with replacement, 4 chains. The step
size of the groups is a tenth of their sd, that of a shared variable less: the noise of its gradient
is larger, with whole groups above all. "mean" is the error of the mean in posterior sds, "sd" the
ratio to NUTS's; for the groups the root of the mean square and the mean. The Monte Carlo error of
"mean" is 1 / sqrt(ess), with the smallest bulk effective sample size of the shared variables.
Writes benchmarks/results/hierarchies_nuts.txt.
"""

import sys
import time
from pathlib import Path

import arviz as az
import numpy as np
import posteriordb
import pymc as pm
import truth

import pymc_sgmcmc as sgm

RESULTS = Path(__file__).parent / "results" / "hierarchies_nuts.txt"
RADON = "radon_mn-radon_hierarchical_"


def logistic() -> pm.Model:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(500), rng.integers(1, 40, 500))
    x = rng.normal(size=len(group))
    logit = rng.normal(-0.5, 0.8, 500)[group] + 0.7 * x
    y = rng.random(len(group)) < 1 / (1 + np.exp(-logit))
    with pm.Model() as model:
        mu, slope = pm.Normal("mu", 0, 2), pm.Normal("slope", 0, 2)
        alpha = pm.Normal("alpha", mu, pm.HalfNormal("tau", 1), shape=500)
        pm.Bernoulli("y", logit_p=alpha[group] + slope * x, observed=y)
    return model


def logistic_truth() -> truth.Moments:
    with logistic():
        tree = pm.sample(1500, chains=4, cores=1, random_seed=1, progressbar=False)
    posterior = tree.posterior.to_dataset()
    return truth.moments({v: x.values.reshape(6000, -1) for v, x in posterior.items()})


CASES = {
    "radon centred": (lambda: posteriordb.radon_hierarchical(True), f"{RADON}centered", "alpha"),
    "radon not": (lambda: posteriordb.radon_hierarchical(False), f"{RADON}noncentered", "z"),
    "logistic": (logistic, None, "alpha"),
}
POSITIVE = {"sigma_alpha", "sigma_y", "tau"}
"""Sampled by their logarithm."""


def step_sizes(moments: truth.Moments, local: str, batches: str) -> dict[str, float]:
    """A part of the sd of each variable as it is sampled."""
    sizes = {}
    for name, sd in moments.sd.items():
        on_its_scale = sd / moments.mean[name] if name in POSITIVE else sd
        part = 0.1 if name == "alpha" else {"rows": 0.05, "groups": 0.02}[batches]
        sizes[name] = part * float(np.median(on_its_scale))
    if local == "z":
        del sizes["alpha"]
        sizes["z"] = 0.1
    return sizes


def run(name: str, batches: str, expected: truth.Moments, n_draws: int) -> list[str]:
    build, _, local = CASES[name]
    model = build()
    groups = [
        sgm.MSGNHT_S.on([model[v]], step_size=h, diffusion=0.1 / h)
        for v, h in step_sizes(expected, local, batches).items()
    ]
    began = time.process_time()
    with model:
        step = sgm.Groups(
            groups,
            batch_size=100,
            thin=1000,
            local=[local],
            batches=batches,
            replacement=True,
            compile_kwargs={"mode": "JAX"},
        )
        tree = sgm.sample(
            n_draws, tune=n_draws // 5, chains=4, step=step, random_seed=1, progressbar=False,
            quiet=True, compute_convergence_checks=False,
        )  # fmt: skip
    cpu = time.process_time() - began
    posterior = tree.posterior.to_dataset()
    found = truth.moments({v: x.values.reshape(4 * n_draws, -1) for v, x in posterior.items()})
    shared = [v for v in expected.mean if v != "alpha"]
    ess = min(float(az.ess(posterior[[v]])[v].min()) for v in shared)
    line = f"{name:>14}{batches:>8}{ess:>6.0f}{cpu:>7.0f}"
    lines = []
    for v in [*shared, "alpha"]:
        error = (found.mean[v] - expected.mean[v]) / expected.sd[v]
        ratio = found.sd[v] / expected.sd[v]
        of_groups = v == "alpha"
        errors = [np.sqrt((error**2).mean())] if of_groups else error
        ratios = [ratio.mean()] if of_groups else ratio
        for k, (e, r) in enumerate(zip(errors, ratios, strict=True)):
            label = v if len(errors) == 1 else f"{v}[{k}]"
            lines.append(f"{line if not lines else '':>35}{label:>14}{e:>8.2f}{r:>7.2f}")
    return lines


def main(n_draws: int = 300):
    lines = [
        f"python benchmarks/hierarchies_nuts.py   ({time.strftime('%Y-%m-%d')})",
        f"4 chains x {n_draws} draws of 1000 updates, batches of 100 rows",
        f"{'posterior':>14}{'batches':>8}{'ess':>6}{'CPU s':>7}{'variable':>14}"
        f"{'mean':>8}{'sd':>7}",
    ]
    print(*lines, sep="\n", flush=True)
    for name, (_, known, _) in CASES.items():
        expected = logistic_truth() if known is None else truth.truth(known)
        for batches in ("rows", "groups"):
            found = run(name, batches, expected, n_draws)
            print(*found, sep="\n", flush=True)
            lines += found
            if n_draws == 300:
                RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
