"""What a shuffle window does to batches of rows that lie in an order, and to a posterior.

    python benchmarks/shuffle_bias.py    # a quarter of an hour; seeded, so the load does not matter

Writes benchmarks/results/shuffle_bias.txt.
"""

import logging
import time
from pathlib import Path

import numpy as np
import pymc as pm

import pymc_sgmcmc as sgm
from pymc_sgmcmc.batches.streamed_batches import StreamedBatches

RESULTS = Path(__file__).parent / "results" / "shuffle_bias.txt"
N, BATCH = 2**20, 128


class InOrder:
    """An iterable of batches in the order of the arrays."""

    def __init__(self, **arrays):
        self.arrays = arrays
        self.n_rows = len(next(iter(arrays.values())))

    def __iter__(self):
        for k in range(0, self.n_rows, 1000):
            yield {name: a[k : k + 1000] for name, a in self.arrays.items()}


def orders():
    """One number per row: mean 0, variance about 1."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=N)
    return {
        "random": noise,
        "sorted": np.sort(noise),
        "10 labels, sorted": np.sort(rng.integers(10, size=N)) / 2.87,
        "trend, 10% of the variance": 0.1**0.5 * np.linspace(-1.73, 1.73, N) + 0.9**0.5 * noise,
        "runs of 1024 equal rows": np.repeat(rng.normal(size=N // 1024), 1024),
        "runs, 10% of the variance": (
            0.1**0.5 * np.repeat(rng.normal(size=N // 1024), 1024) + 0.9**0.5 * noise
        ),
    }


def effects(values, data):
    """Variance of batch means and window means, over that of uniform sampling, in 2 epochs."""
    batches = StreamedBatches(data, BATCH, np.random.default_rng(1))
    rows = batches.take(2 * N // BATCH)["x"] - values.mean()
    batch_means = rows.reshape(-1, BATCH).mean(axis=1)
    window_means = rows.reshape(-1, data.window).mean(axis=1)
    of_batches = np.mean(batch_means**2) * BATCH / values.var()
    return of_batches, np.mean(window_means**2) * data.window / values.var()


def write_variances(write):
    write(f"variance of the means of batches of {BATCH} and of windows, over that of uniformly")
    write(f"sampled rows; {N:,} rows, two epochs")
    write(f"  {'':28}{'source':>16}{'window':>9}{'chunk':>7}{'batches':>10}{'windows':>11}")
    for order, values in orders().items():
        for window in (2**13, 2**16):
            for chunk in (None, 1024, 128, 16):
                if chunk is None:
                    data = sgm.StreamedData(InOrder(x=values), window=window)
                else:
                    data = sgm.StreamedData({"x": values}, window=window, chunk=chunk)
                of_batches, of_windows = effects(values, data)
                source = "iterable" if chunk is None else "array"
                write(
                    f"  {order:28}{source:>16}{window:>9,}{chunk or '':>7}"
                    f"{of_batches:>10.2f}{of_windows:>11.3g}"
                )


def write_posteriors(write):
    """Linear regression with a known posterior, rows sorted by the target."""
    n, window, batch = 2000, 400, 100
    rng = np.random.default_rng(2)
    X = rng.normal(size=(n, 2))
    y = X @ [1.0, -0.5] + rng.normal(size=n)
    order = np.argsort(y)
    X, y = X[order], y[order]
    precision = X.T @ X + np.eye(2)
    mean, sd = np.linalg.solve(precision, X.T @ y), np.sqrt(np.diag(np.linalg.inv(precision)))
    anew = rng.permutation(n)
    sources = {
        "resident": None,
        "array, chunk 8": sgm.StreamedData({"X": X, "y": y}, window=window, chunk=8),
        "array, chunk 100": sgm.StreamedData({"X": X, "y": y}, window=window, chunk=100),
        "iterable, random order": sgm.StreamedData(InOrder(X=X[anew], y=y[anew]), window=window),
        "iterable, sorted": sgm.StreamedData(InOrder(X=X, y=y), window=window),
    }
    write(f"\nlinear regression, {n:,} rows sorted by the target, window {window}, batch {batch};")
    write("thermostat on, an independent draw takes about an epoch:")
    write("error of the posterior mean in exact sds, sd over the exact one (2 coefficients;")
    write("Monte Carlo error in brackets, from 4 chains)")
    for name, data in sources.items():
        rows = {"X": X, "y": y} if data is None else data.head()
        with pm.Model():
            features = pm.Data("X", rows["X"], dims=("obs", "feature"))
            target = pm.Data("y", rows["y"], dims="obs")
            w = pm.Normal("w", 0, 1, dims="feature")
            pm.Normal("likelihood", features @ w, 1, observed=target, dims="obs")
            step = sgm.MSGNHT_S(
                step_size=2e-3, diffusion=20.0, batch_size=batch, thin=20, data=data,
                replacement=True, compile_kwargs={"mode": "JAX"},
            )  # fmt: skip
            idata = pm.sample(
                500, tune=3000, chains=4, cores=1, step=step, random_seed=3,
                progressbar=False, compute_convergence_checks=False,
            )  # fmt: skip
        draws = idata.posterior["w"].values
        off, ratio = (draws.mean(axis=1) - mean) / sd, draws.std(axis=1) / sd
        write(
            f"  {name:26}"
            + "".join(
                f"{m:8.2f} ({s / 4**0.5:.2f})"
                for m, s in zip(off.mean(0), off.std(0, ddof=1), strict=True)
            )
            + "   "
            + "".join(
                f"{m:8.2f} ({s / 4**0.5:.2f})"
                for m, s in zip(ratio.mean(0), ratio.std(0, ddof=1), strict=True)
            )
        )


def main():
    logging.getLogger("pymc").setLevel(logging.ERROR)
    lines = []

    def write(line):
        print(line, flush=True)
        lines.append(line)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("\n".join(lines) + "\n")

    write(f"python benchmarks/shuffle_bias.py   ({time.strftime('%Y-%m-%d')})")
    write_variances(write)
    write_posteriors(write)


if __name__ == "__main__":
    main()
