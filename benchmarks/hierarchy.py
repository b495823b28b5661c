"""Posterior of 2000 groups of 1 to 19 rows, local or not, against the exact one.

    python benchmarks/hierarchy.py    # about three minutes

22,000 rows, mean and scale of the groups unknown; exact moments by quadrature. Each variable is
scaled to about unit posterior sd (MSGNHT_S, D = 1, no metric). The ways: "rows" and "groups", local
variables with batches of rows and of whole groups; "dense", all groups at every update. Batches of
500 rows with replacement, a draw is 4 passes over the data. "error" is in posterior sds, "sd" the
ratio to the exact sd; for the groups their mean, 5 and 95 percent, and the root of the mean squared
error.
The last lines are `sgm.sample(integrate=None)` on the model as one writes it, and the same with
`step=sgm.MSGNHT_S(batches="groups")`: four chains, with the CPU seconds of compiling, of the
warm-up and of the diagnosis.
Writes benchmarks/results/hierarchy.txt.
"""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pymc as pm

import pymc_sgmcmc as sgm

RESULTS = Path(__file__).parent / "results" / "hierarchy.txt"
GROUPS, BATCH, PASSES = 2000, 500, 4
RUNS = [(way, h) for way in ("rows", "groups", "dense") for h in (0.1, 0.05)]


def data():
    rng = np.random.default_rng(0)
    size = rng.integers(1, 20, GROUPS)
    group = np.repeat(np.arange(GROUPS), size)
    y = rng.normal(rng.normal(0.5, 0.7, GROUPS)[group], 1)
    return group, size, y


class Grid(NamedTuple):
    """The posterior of mu and log tau on a grid."""

    mu: np.ndarray
    t: np.ndarray
    probability: np.ndarray
    """Shape (mu, t)."""

    def draws(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Independent draws of mu and log tau, each of shape (n,)."""
        p = self.probability
        picked = np.random.default_rng(seed).choice(p.size, n, p=p.ravel())
        return self.mu[picked // len(self.t)], self.t[picked % len(self.t)]


def grid(group, size, y) -> Grid:
    mean_y = np.bincount(group, y) / size
    mu, t = np.linspace(0.35, 0.65, 161), np.log(0.7) + np.linspace(-0.15, 0.15, 161)
    variance = np.exp(2 * t)[:, None] + 1 / size
    log_p = np.array(
        [
            -0.5 * (np.log(variance) + (mean_y - m) ** 2 / variance).sum(1) - m**2 / 50 - t**2 / 2
            for m in mu
        ]
    )
    p = np.exp(log_p - log_p.max())
    return Grid(mu, t, p / p.sum())


def effects(group, size, y, mu, t) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of each effect given mu and log tau, shape (len(mu), groups)."""
    precision = np.exp(-2 * t[:, None])
    v = 1 / (precision + size)
    return v * (mu[:, None] * precision + np.bincount(group, y)), v


def exact(group, size, y):
    """Mean and sd of each group's effect, mu and log tau."""
    found = grid(group, size, y)
    c, v = effects(group, size, y, *found.draws(4000, seed=1))
    means, sds = [c.mean(0)], [np.sqrt(v.mean(0) + c.var(0))]
    for values, axis in ((found.mu, 1), (found.t, 0)):
        marginal = found.probability.sum(axis)
        means.append((marginal * values).sum())
        sds.append(np.sqrt((marginal * (values - means[-1]) ** 2).sum()))
    return means, sds


def draws(group, size, y, n: int, seed: int):
    """Independent draws of the effects, shape (n, groups), and of mu and log tau, shape (n,)."""
    mu, t = grid(group, size, y).draws(n, seed)
    c, v = effects(group, size, y, mu, t)
    return c + np.sqrt(v) * np.random.default_rng(seed + 1).normal(size=c.shape), mu, t


def main(n_draws: int = 1200):
    group, size, y = data()
    (mean, mean_mu, mean_t), (sd, sd_mu, sd_t) = exact(group, size, y)
    lines = [
        f"python benchmarks/hierarchy.py   ({time.strftime('%Y-%m-%d')})",
        f"{GROUPS} groups, {len(y)} rows, batches of {BATCH}, {n_draws} draws of {PASSES} passes",
        f"{'':>15}{'h':>6}{'mu: error':>11}{'sd':>6}{'log tau: error':>16}{'sd':>6}"
        f"{'groups: sd':>12}{'5%':>6}{'95%':>6}{'error':>7}{'thermostat':>12}{'CPU s':>9}",
    ]
    print(*lines, sep="\n", flush=True)
    for way, h in RUNS:
        with pm.Model():
            mu = mean_mu + sd_mu * pm.Flat("mu")
            t = mean_t + sd_t * pm.Flat("t")
            pm.Potential("priors", -(mu**2) / 50 - t**2 / 2)
            a = pm.Normal("a", mu / sd, pm.math.exp(t) / sd, shape=GROUPS)
            pm.Normal("y", (sd * a)[group], 1, observed=y)
            step = sgm.MSGNHT_S(
                step_size=h,
                batch_size=BATCH,
                thin=PASSES * len(y) // BATCH,
                replacement=True,
                local=None if way == "dense" else ["a"],
                batches="groups" if way == "groups" else "rows",
                initial_point={"mu": np.zeros(()), "t": np.zeros(()), "a": mean / sd},
            )
            began = time.process_time()
            tree = sgm.sample(
                n_draws,
                tune=n_draws // 4,
                chains=1,
                step=step,
                random_seed=1,
                initvals={"a": mean / sd, "mu": 0.0, "t": 0.0},
                init="point",
                progressbar=False,
                quiet=True,
                compute_convergence_checks=False,
            )
        seconds = time.process_time() - began
        found = {name: tree.posterior[name].values for name in ("mu", "t", "a")}
        found["a"] = found["a"] - mean / sd
        lines.append(line_of(way, h, found, tree, seconds))
        print(lines[-1], flush=True)
    for batches in ("rows", "groups"):
        tree, seconds = adapted(group, y, batches)
        found = {
            "mu": (tree.posterior["mu"].values - mean_mu) / sd_mu,
            "t": (np.log(tree.posterior["tau"].values) - mean_t) / sd_t,
            "a": (tree.posterior["a"].values - mean) / sd,
        }
        way = "adapted" if batches == "rows" else "adapted, groups"
        lines.append(line_of(way, "auto", found, tree, seconds))
        attrs = tree.posterior.attrs
        warm_up, passes = attrs["data_passes_warmup"], attrs["data_passes"]
        lines.append(
            f"{way}: {warm_up:.0f} passes of warm-up, {passes - warm_up:.0f} of sampling, "
            f"{tree.posterior.sizes['draw']} draws of four chains, "
            f"verdict {tree['diagnosis'].attrs['verdict']}"
        )
        print(*lines[-2:], sep="\n", flush=True)
    if n_draws == 1200:
        RESULTS.write_text("\n".join(lines) + "\n")


def adapted(group, y, batches):
    """A run with nothing but the kind of batches chosen, and its CPU seconds."""
    began = time.process_time()
    with pm.Model():
        mu = pm.Normal("mu", 0, 5)
        tau = pm.LogNormal("tau", 0, 1)
        a = pm.Normal("a", mu, tau, shape=GROUPS)
        pm.Normal("y", a[group], 1, observed=y)
        options = {"compile_kwargs": {"mode": "NUMBA"}}
        if batches == "groups":
            options = {"step": sgm.MSGNHT_S(batches=batches, **options)}
        else:
            options["integrate"] = None
        tree = sgm.sample(random_seed=1, progressbar=False, quiet=True, cores=1, **options)
    return tree, time.process_time() - began


def line_of(way, h, draws, tree, seconds):
    """A line of the table, from draws in units of the exact mean and sd."""
    ratio = draws["a"].std(axis=(0, 1))
    error = draws["a"].mean(axis=(0, 1))
    line = f"{way:>15}{h:>6}"
    for name, width in (("mu", 11), ("t", 16)):
        line += f"{draws[name].mean():>{width}.2f}{draws[name].std():>6.2f}"
    low, high = np.quantile(ratio, [0.05, 0.95])
    line += f"{ratio.mean():>12.3f}{low:>6.2f}{high:>6.2f}{np.sqrt((error**2).mean()):>7.3f}"
    xi = float(tree.sample_stats["thermostat"].mean())
    return line + f"{xi:>12.2f}{seconds:>9.0f}"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
