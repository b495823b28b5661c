"""Two-dimensional Gaussian as the pSGLD paper's authors ran it: noisy gradients, long memory.

pSGLD paper, figure 1: N(0, diag(0.16, 1)). The paper says what is sampled and how it is judged; the
code that its authors published has the rest: N(0, 0.1^2) noise in each element of the gradient, an
alpha of 0.9999, lambda 1e-4, five step sizes 0.6 * 0.8^i (in our units, drift e / 2), chains of
20,000 updates from (0, 0), and autocorrelation times averaged over the two elements. There
independent chains are one; here ten run side by side, as one vector.

`gaussian_2d.py` has exact gradients and a short memory instead.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from common import (
    E,
    Report,
    S,
    arguments,
    autocorrelation_time,
    autocovariance,
    progress,
    with_step_size,
)

import pymc_sgmcmc as sgm

STEPS = [0.6 * 0.8**i for i in range(5)]
VARIANCES = np.array([0.16, 1.0])
NOISE, ALPHA, LAM = 0.1, 0.9999, 1e-4
N_ROWS = 10_000
"""Rows of noise, of which each update draws one."""


def model(n_chains: int, seed: int) -> pm.Model:
    """A model whose minibatch gradient is the exact one plus noise.

    Each row's term is the log density plus noise * theta, over N: times N / 1, the gradient of a
    batch of one row is the whole gradient plus the row's noise.
    """
    noise = NOISE * np.random.default_rng(seed).normal(size=(N_ROWS, n_chains, 2))
    noise -= noise.mean(axis=0)
    with pm.Model(coords={"row": range(N_ROWS)}) as made:
        theta = pm.Flat("theta", shape=(n_chains, 2), initval=np.zeros((n_chains, 2)))
        rows = pm.Data("noise", noise, dims=("row", "chains", "element"))
        log_density = -0.5 * (theta**2 / VARIANCES).sum()
        term = ((rows * theta).sum(axis=(1, 2)) + log_density) / N_ROWS
        pm.Potential("noisy", term, dims="row")
    return made


def samplers(n_chains: int, seed: int) -> dict[str, tuple]:
    """Steps, and the factor of their step size.

    PSGLD's V is of the MEAN gradient, 1 / N of the one that the authors take: with lambda / N and
    e / N the updates are theirs.
    """
    options = {"batch_size": 1, "replacement": True, "thin": 1}
    with model(n_chains, seed):
        return {
            "SGLD": (sgm.SGLD(step_size=0.1, **options), 1),
            "PSGLD": (
                sgm.PSGLD(step_size=0.1 / N_ROWS, alpha=ALPHA, lam=LAM / N_ROWS, **options),
                1 / N_ROWS,
            ),
        }


def draws_of(step, seed: int, updates: int, burn_in: int) -> np.ndarray:
    """Every update after a burn-in, shape (updates, chains, 2)."""
    step.setup_chain(np.random.default_rng(seed), tune=0, draws=updates)
    point = step.model.initial_point()
    step.thin = burn_in
    point, _ = step.step(point)
    step.thin = 1
    draws = []
    for _ in range(updates):
        point, _ = step.step(point)
        draws.append(point["theta"])
    return np.array(draws)


def lags_above(x: np.ndarray) -> float:
    """The authors' time: 1 + 2 for each lag until the autocovariance, not scaled, is below 0.1."""
    covariance = autocovariance(x)
    below = np.flatnonzero(covariance[1:] < 0.1)
    return 1 + 2 * float(below[0] if len(below) else len(covariance))


def main() -> None:
    args = arguments(
        __doc__.splitlines()[0],
        updates=(20_000, "updates of each chain"),
        burn_in=(50_000, "updates before them: V forgets its start in 10,000"),
        chains=(10, "chains side by side"),
    )
    if args.quick:
        args.updates, args.burn_in = 2_000, 5_000
    report = Report("gaussian_2d_noisy", args.quick)
    report.print("2-D Gaussian with noisy gradients (pSGLD paper, figure 1)\n")
    error, spread, variances, ours, theirs, first = {}, {}, {}, {}, {}, {}
    steps = samplers(args.chains, args.seed)
    for name, e in progress([(n, e) for e in STEPS for n in steps]):
        step, factor = steps[name]
        with_step_size(step, e * factor)
        x = draws_of(step, args.seed, args.updates, args.burn_in)
        covariance = np.einsum("tci,tcj->cij", x, x) / len(x)
        each = np.abs(covariance - np.diag(VARIANCES)).mean(axis=(1, 2))
        error[name, e], spread[name, e] = each.mean(), each.std() / np.sqrt(args.chains)
        variances[name, e] = np.diagonal(covariance, axis1=1, axis2=2).mean(axis=0)
        ours[name, e] = np.mean(
            [autocorrelation_time(one) for c in x.swapaxes(0, 1) for one in c.T]
        )
        theirs[name, e] = np.mean([lags_above(one) for c in x.swapaxes(0, 1) for one in c.T])
        first[name, e] = x[:600, 0]
    report.print(
        f"{args.chains} chains of {args.updates} updates after a burn-in of {args.burn_in}, which\n"
        "the authors do not make: their V starts at the square of the first gradient.\n"
        "Error: mean absolute error of the four elements of a chain's covariance, mean over\n"
        "chains +- its standard error. Time: the integrated autocorrelation time in updates, mean\n"
        "of the two elements. Lags: the authors' measure of it, 1 + 2 for each lag at which the\n"
        "autocovariance is at least 0.1, whatever the variance.\n"
    )
    names = list(steps)
    report.table(
        ["step size"]
        + [f"{what} {n}" for what in ("error", "variances", "time", "lags") for n in names],
        [
            [f"{e:.3f}"]
            + [f"{error[n, e]:.4f} +- {spread[n, e]:.4f}" for n in names]
            + ["{:.3f}, {:.3f}".format(*variances[n, e]) for n in names]
            + [f"{ours[n, e]:.1f}" for n in names]
            + [f"{theirs[n, e]:.1f}" for n in names]
            for e in STEPS
        ],
    )

    def count(table: dict) -> str:
        return f"{sum(table['PSGLD', e] < table['SGLD', e] for e in STEPS)} of {len(STEPS)}"

    report.print()
    everywhere = "at every step size"
    report.table(
        ["claim", "paper", "here"],
        [
            ["error of PSGLD below SGLD's", everywhere, count(error)],
            ["time of PSGLD below SGLD's", everywhere, count(ours)],
            ["lags of PSGLD below SGLD's", everywhere, count(theirs)],
        ],
    )
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    for name, colour in zip(names, (E, S), strict=True):
        axes[0].errorbar(
            [ours[name, e] for e in STEPS],
            [error[name, e] for e in STEPS],
            yerr=[2 * spread[name, e] for e in STEPS],
            fmt="o-",
            c=colour,
            label=name,
        )
        x = first[name, STEPS[0]]
        axes[1].plot(x[:, 0], x[:, 1], ".", ms=4, alpha=0.5, c=colour, label=name)
    axes[0].set(yscale="log", xlabel="autocorrelation time (updates)")
    axes[0].set(ylabel="mean absolute error of the covariance")
    turn = np.linspace(0, 2 * np.pi, 200)
    axes[1].plot(0.8 * np.cos(turn), 2 * np.sin(turn), "k--", lw=1, label="two sds")
    axes[1].set(xlabel="x1", ylabel="x2", title=f"600 draws at step size {STEPS[0]:g}")
    for axis in axes:
        axis.legend(frameon=False)
    report.save(figure)


if __name__ == "__main__":
    main()
