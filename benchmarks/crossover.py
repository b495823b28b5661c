"""Where minibatches win: error against seconds and passes over the data, by number of rows.

    python benchmarks/crossover.py            # three quarters of an hour: let nothing else run
    python benchmarks/crossover.py --rows 1000 10000
    python benchmarks/crossover.py --figure   # draws the table again

Writes benchmarks/results/crossover.txt and .png. A logistic regression with 20 correlated columns
and N(0, 2.5^2) priors; `sgm.sample(ess=...)` for several effective sample sizes, nutpie's NUTS for
several numbers of draws, and PyMC's mean-field ADVI for several numbers of updates. Each run is a
process of its own that has compiled the same model once before, so seconds are without
compilation; the column `first` has those of the first call.

Truth: the posterior mean and sds of a long run of nutpie, or, from 100 000 rows on, of the normal
approximation at the mode. Its mean is corrected by the third derivatives, .02 sd at 100 000 rows;
what is left is of the order of 1 / N.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from rivals import ADVI_BATCH, N_DRAWS, nutpie_nuts

import pymc_sgmcmc as sgm

RESULTS = Path(__file__).parent / "results" / "crossover.txt"
ROWS = (1_000, 10_000, 100_000, 1_000_000)
COLUMNS = 20
NORMAL_FROM = 100_000
"""Rows from which on the normal approximation is the truth."""
EFFORTS = {
    "sgm.sample": (100, 400, 1600),
    "nutpie": (50, 250, 1000),
    "ADVI": (3_000, 10_000, 30_000),
}
"""Effective sample size asked for; draws of each of 4 chains; updates."""
LAYOUT = "{:>9}  {:<11}{:>8}{:>9}{:>9}{:>12}{:>9}{:>9}{:>9}"
TITLES = ["rows", "sampler", "effort", "first s", "seconds", "passes", "error", "sd low", "sd high"]


@cache
def data(n_rows: int):
    """Rows with correlated columns, labels from known weights."""
    rng = np.random.default_rng(0)
    X = 0.7 * rng.normal(size=(n_rows, COLUMNS)) + 0.7 * rng.normal(size=(n_rows, 1))
    weights = np.linspace(-1, 1, COLUMNS)
    return X, (rng.random(n_rows) < 1 / (1 + np.exp(-(X @ weights)))).astype("int32")


def build_model(n_rows: int, batch_size: int | None = None) -> pm.Model:
    """The regression, on all rows or written with `pm.Minibatch`."""
    X, y = data(n_rows)
    with pm.Model() as model:
        w = pm.Normal("w", 0, 2.5, shape=COLUMNS)
        if batch_size is None:
            pm.Bernoulli("y", logit_p=pm.Data("X", X) @ w, observed=y)
        else:
            X, y = pm.Minibatch(X, y, batch_size=batch_size)
            pm.Bernoulli("y", logit_p=X @ w, observed=y, total_size=n_rows)
    return model


def normal_approximation(n_rows: int):
    """Mean and sds, from three derivatives at the mode."""
    X, y = data(n_rows)
    w = np.zeros(COLUMNS)
    for _ in range(30):
        p = 1 / (1 + np.exp(-(X @ w)))
        hessian = (X.T * (p * (1 - p))) @ X + np.eye(COLUMNS) / 2.5**2
        w = w + np.linalg.solve(hessian, X.T @ (y - p) - w / 2.5**2)
    covariance = np.linalg.inv(hessian)
    third = p * (1 - p) * (1 - 2 * p) * np.einsum("ij,jk,ik->i", X, covariance, X)
    return w - covariance @ (X.T @ third) / 2, np.sqrt(np.diag(covariance))


def truth(n_rows: int):
    """Mean and sds."""
    if n_rows >= NORMAL_FROM:
        return normal_approximation(n_rows)
    import nutpie

    compiled = nutpie.compile_pymc_model(build_model(n_rows))
    draws = nutpie.sample(compiled, draws=4000, seed=0, progress_bar=False).posterior["w"]
    return draws.mean(("chain", "draw")).values, draws.std(("chain", "draw")).values


def sampled(sampler: str, effort: int, n_rows: int, seed: int):
    """Draws, shape (n, columns), and passes over the data."""
    if sampler == "sgm.sample":
        with build_model(n_rows):
            tree = sgm.sample(ess=effort, random_seed=seed, progressbar=False)
        passes = tree.posterior.attrs["data_passes"]
    elif sampler == "nutpie":
        tree = nutpie_nuts(build_model(n_rows), seed, draws=effort)
        groups = ("warmup_sample_stats", "sample_stats")
        passes = sum(float(tree[group]["n_steps"].sum()) for group in groups)
    else:
        batch_size = min(ADVI_BATCH, n_rows)
        with build_model(n_rows, batch_size):
            fit = pm.fit(effort, method="advi", random_seed=seed, progressbar=False)
        tree = fit.sample(N_DRAWS, random_seed=seed)
        passes = effort * batch_size / n_rows
    return tree["posterior"]["w"].values.reshape(-1, COLUMNS), passes


def run_one(n_rows: int, sampler: str, mean, sd) -> None:
    """All efforts of one sampler, a JSON line each."""
    first = None
    for effort in (EFFORTS[sampler][0], *EFFORTS[sampler]):
        began = time.perf_counter()
        draws, passes = sampled(sampler, effort, n_rows, seed=1)
        seconds = time.perf_counter() - began
        if first is None:  # compiles
            first = seconds
            continue
        ratios = draws.std(axis=0) / sd
        error = np.abs((draws.mean(axis=0) - mean) / sd).max()
        row = [n_rows, sampler, effort, f"{first:.1f}", f"{seconds:.1f}", f"{passes:.5g}"]
        row += [f"{x:.3f}" for x in (error, ratios.min(), ratios.max())]
        print(json.dumps(row), flush=True)


def draw(rows) -> None:
    """Error against seconds, a panel for each number of rows."""
    sizes = sorted({int(r[0]) for r in rows})
    figure, axes = plt.subplots(
        1,
        len(sizes),
        figsize=(3.2 * len(sizes), 3.4),
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for axis, size in zip(np.atleast_1d(axes), sizes, strict=True):
        for k, sampler in enumerate(EFFORTS):
            own = [r for r in rows if int(r[0]) == size and r[1] == sampler]
            worst = [max(float(r[6]), *(abs(float(x) - 1) for x in r[7:9])) for r in own]
            axis.plot([float(r[4]) for r in own], worst, "o-", color=f"C{k}", label=sampler)
        axis.axhline(0.1, color="k", lw=0.5, ls=":")
        axis.set(xscale="log", yscale="log", title=f"{size:,} rows", xlabel="seconds")
        axis.set_xlim(0.5, 1000)
        axis.set_xticks([1, 10, 100, 1000], labels=["1", "10", "100", "1000"])
        axis.minorticks_off()
    np.atleast_1d(axes)[0].set_ylabel("largest error of a mean (sd)\nor relative of a sd")
    np.atleast_1d(axes)[0].legend(frameon=False, fontsize=8)
    figure.savefig(RESULTS.with_suffix(".png"), dpi=110)


def main():
    """Run everything in processes of their own, and write the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--limit", type=int, default=1200, help="seconds for a sampler")
    parser.add_argument("--figure", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.one:
        n_rows, sampler, mean, sd = json.loads(args.one)
        run_one(n_rows, sampler, np.array(mean), np.array(sd))
        return
    if args.figure:
        cells = [line.split() for line in RESULTS.read_text().splitlines()]
        draw([row for row in cells if len(row) == len(TITLES) and row[1] in EFFORTS])
        return
    rows, lines = [], []

    def write(line: str) -> None:
        lines.append(line)
        print(line, flush=True)
        RESULTS.write_text("\n".join(lines) + "\n")

    write(f"python benchmarks/crossover.py   ({time.strftime('%Y-%m-%d')})")
    write("error: largest |mean - true mean| / true sd; sd: smallest and largest sd / true sd.")
    write(LAYOUT.format(*TITLES))
    for n_rows in args.rows:
        mean, sd = truth(n_rows)
        for sampler in EFFORTS:
            task = json.dumps([n_rows, sampler, mean.tolist(), sd.tolist()])
            command = [sys.executable, "-W", "ignore", __file__, "--one", task]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit)
                found, why = done.stdout, done.stderr.splitlines()[-1:] if done.returncode else ""
            except subprocess.TimeoutExpired as error:
                found, why = (error.stdout or b"").decode(), f"ended after {args.limit} s"
            for line in found.splitlines():
                row = json.loads(line)
                rows.append(row)
                write(LAYOUT.format(*row))
            if why:
                write(f"{n_rows:>9}  {sampler:<11}  {why}")
    draw(rows)


if __name__ == "__main__":
    main()
