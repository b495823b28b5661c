"""Simulation-based calibration of the default call: are ranks of true parameters uniform?

    python benchmarks/sbc.py                 # 200 data sets of each model: an hour
    python benchmarks/sbc.py --only logistic --sets 20
    python benchmarks/sbc.py --figure        # draws the ranks again

Parameters are drawn from the prior, data from the model, and `sgm.sample(random_seed=k)` is called
on the data. If its draws come from the posterior, the rank of a true parameter among them is
uniform (Talts et al. 2018). Writes the ranks to benchmarks/results/sbc_ranks.csv, and
benchmarks/results/sbc.txt and .png: for each parameter the largest distance of the ranks'
distribution from the uniform one, in units of the distance that a right sampler exceeds once in
twenty (Kolmogorov), and the verdicts.
"""

import argparse
import logging
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
from scipy.stats import kstwo

import pymc_sgmcmc as sgm

RESULTS = Path(__file__).parent / "results"
RANKS = RESULTS / "sbc_ranks.csv"
N_RANKS = 100
"""Possible ranks: a true value among 99 draws, evenly spaced over those of all chains."""


def logistic(y=None) -> pm.Model:
    """3000 rows, 5 weights and an intercept: minibatches with a control variate."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 5)) @ np.linalg.cholesky(0.5 + 0.5 * np.eye(5)).T
    with pm.Model() as model:
        b = pm.Normal("b", -1, 1)
        w = pm.Normal("w", 0, 0.5, shape=5)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ w + b, observed=y)
    return model


def hierarchy(y=None) -> pm.Model:
    """3000 rows in 20 groups: two standard deviations on a log scale, groups centred."""
    group = np.random.default_rng(0).integers(20, size=3000)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        tau = pm.HalfNormal("tau", 1)
        alpha = pm.Normal("alpha", mu, tau, shape=20)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", alpha[pm.Data("group", group)], sigma, observed=y)
    return model


MODELS = {"logistic": logistic, "hierarchy": hierarchy}


def one_set(name: str, k: int) -> dict:
    """Ranks of the true parameters of the k-th data set."""
    *parameters, y = MODELS[name]().free_RVs
    *values, rows = pm.draw([*parameters, y], random_seed=k)
    with MODELS[name](rows):
        tree = sgm.sample(random_seed=k, progressbar=False)
    row = {"model": name, "set": k, "verdict": tree["diagnosis"].attrs["verdict"]}
    for rv, value in zip(parameters, values, strict=True):
        draws = tree.posterior[rv.name].stack(sample=("chain", "draw")).values
        draws = draws.reshape(-1, draws.shape[-1])
        kept = np.linspace(0, draws.shape[1] - 1, N_RANKS - 1).astype(int)
        for j, true in enumerate(np.ravel(value)):
            label = rv.name if np.ndim(value) == 0 else f"{rv.name}[{j}]"
            row[label] = int((draws[j, kept] < true).sum())
    return row


def write(table: pd.DataFrame) -> None:
    """Distances of the ranks from uniform ones, and a figure of their distributions."""
    lines = [f"python benchmarks/sbc.py   ({time.strftime('%Y-%m-%d')})"]
    lines.append("distance: Kolmogorov's of the ranks, / that exceeded by chance once in twenty")
    figure, axes = plt.subplots(1, len(MODELS), figsize=(9, 3.6), layout="constrained")
    for axis, name in zip(axes, MODELS, strict=True):
        rows = table[table["model"] == name].dropna(axis=1, how="all")
        if rows.empty:
            continue
        n = len(rows)
        limit = kstwo.isf(0.05, n)
        verdicts = rows["verdict"].value_counts().to_dict()
        lines += ["", f"{name}: {n} data sets, verdicts {verdicts}"]
        steps = np.arange(N_RANKS + 1) / N_RANKS
        for label in rows.columns.drop(["model", "set", "verdict"]):
            ranks = rows[label].to_numpy(int)
            share = np.searchsorted(np.sort(ranks), np.arange(N_RANKS + 1)) / n
            lines.append(f"  {label:<12}{np.abs(share - steps).max() / limit:6.2f}")
            axis.plot(steps, share - steps, lw=0.8, color="C0", alpha=0.6)
        axis.axhspan(-limit, limit, color="0.9", zorder=0)
        axis.set(title=f"{name}: {n} data sets", xlabel="rank / 100")
        axis.set_ylim(-2.5 * limit, 2.5 * limit)
    axes[0].set_ylabel("share of ranks below - rank / 100")
    figure.savefig(RESULTS / "sbc.png", dpi=110)
    (RESULTS / "sbc.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main():
    """Add data sets to those in the file, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=MODELS)
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--figure", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    table = pd.read_csv(RANKS) if RANKS.exists() else pd.DataFrame(columns=["model", "set"])
    for k in range(args.sets if not args.figure else 0):
        for name in [args.only] if args.only else MODELS:
            if not ((table["model"] == name) & (table["set"] == k)).any():
                table = pd.concat([table, pd.DataFrame([one_set(name, k)])])
                table.to_csv(RANKS, index=False)
    write(table)


if __name__ == "__main__":
    main()
