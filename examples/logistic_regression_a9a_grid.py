"""Logistic regression on a9a: learning curves over step sizes h and diffusions D.

High-order paper, supplement, section E and Figure 1: mSGNHT-S, mSGNHT-E and SGHMC on batches of 10
with an N(0, 10) prior (variance). The paper prints neither the values of h and D nor numbers, only
that mSGNHT-S is "consistently more stable"; here h and D vary by factors of 10. SGHMC's friction is
D, as the thermostats' initial value is.

Test error of the predictive probabilities averaged over the draws so far, and the training log
likelihood per row of single draws, every 50 updates from the first on.
"""

from itertools import product

import a9a_nuts
import matplotlib.pyplot as plt
import numpy as np
from common import E, Report, S, arguments, chain, percent, progress, with_step_size
from datasets import load_a9a
from logistic_regression_a9a import running_accuracy
from scipy.special import log_expit

import pymc_sgmcmc as sgm

SAMPLERS = {"MSGNHT_S": S, "MSGNHT_E": E, "SGHMC_S": "tab:cyan", "SGHMC_E": "tab:red"}
STEPS, DIFFUSIONS = (3e-5, 3e-4, 3e-3), (1.0, 10.0, 100.0)
COLUMNS = [(3e-4, 1.0), (3e-4, 10.0), (3e-5, 10.0), (3e-3, 10.0)]
"""Of the figure, as in the paper: the first two share h, the last three share D."""
THIN = 50


def log_likelihoods(draws: dict, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Log likelihood per row of each draw."""
    sign = (2 * y - 1).astype(np.float32)
    beta = np.column_stack([draws["w"], draws["b"]]).astype(np.float32)
    blocks = np.array_split(beta, max(1, len(beta) // 50))
    return np.concatenate([log_expit(sign * (b @ X.T)).mean(axis=1) for b in blocks])


def main() -> None:
    args = arguments(__doc__.splitlines()[0], updates=(30_000, "updates of each run"))
    diffusions = (10.0,) if args.quick else DIFFUSIONS
    if args.quick:
        args.updates = 1000
    report = Report("logistic_regression_a9a_grid", args.quick)
    X, y, X_test, y_test = load_a9a()
    model = a9a_nuts.build_model(X, y)
    X, X_test = (np.column_stack([a, np.ones(len(a))]).astype(np.float32) for a in (X, X_test))
    start = {"w": np.zeros(X.shape[1] - 1), "b": np.asarray(0.0)}
    curves, failed = {}, {}
    for name, diffusion in progress(list(product(SAMPLERS, diffusions))):
        noise = "friction" if name.startswith("SGHMC") else "diffusion"
        with model:
            step = getattr(sgm, name)(
                step_size=STEPS[0],
                batch_size=10,
                thin=THIN,
                replacement=False,
                **{noise: diffusion},
            )
        for h in STEPS:
            with_step_size(step, h)
            draws, stats = chain(step, args.seed, args.updates // THIN, start)
            key = name, h, diffusion
            curves[key] = (
                1 - running_accuracy(draws, X_test, y_test),
                log_likelihoods(draws, X, y),
            )
            failed[key] = stats["nonfinite"].mean()
    report.print(
        f"a9a, {args.updates} updates on batches of 10 from zero: test error of the averaged "
        "predictive\nprobabilities / mean log likelihood per training row over the second half of "
        "the draws.\n(n%): so many of the draws repeat the last finite point, after divergences.\n"
    )
    rows = []
    for name, diffusion in product(SAMPLERS, diffusions):
        cells = []
        for h in STEPS:
            error, log_likelihood = curves[name, h, diffusion]
            late = log_likelihood[len(log_likelihood) // 2 :].mean()
            cell = f"{percent(error[-1])} / {late:.3f}"
            lost = failed[name, h, diffusion]
            cells.append(f"{cell} ({100 * lost:.0f}%)" if lost > 0 else cell)
        rows.append([f"{name}, D = {diffusion:g}", *cells])
    report.table(["sampler", *(f"h = {h:g}" for h in STEPS)], rows)
    draw(report, curves)


def draw(report: Report, curves: dict) -> None:
    """Learning curves, a column for each pair of h and D."""
    columns = [c for c in COLUMNS if ("MSGNHT_S", *c) in curves]
    figure, axes = plt.subplots(
        2, len(columns), figsize=(3.4 * len(columns), 6), sharex=True, sharey="row",
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for (h, diffusion), (top, bottom) in zip(columns, axes.T, strict=True):
        for name, colour in SAMPLERS.items():
            error, log_likelihood = curves[name, h, diffusion]
            updates = THIN * np.arange(1, len(error) + 1)
            top.plot(updates, 100 * error, c=colour, lw=1.3, label=name)
            bottom.plot(updates, log_likelihood, c=colour, lw=0.8)
        top.set(title=f"h = {h:g}, D = {diffusion:g}", ylim=(14.5, 20))
        bottom.set(xlabel="updates", xscale="log", ylim=(-0.6, -0.3))
    axes[0, 0].set_ylabel("test error, %")
    axes[1, 0].set_ylabel("training log likelihood per row")
    axes[0, 0].legend(frameon=False, fontsize=8)
    report.save(figure)


if __name__ == "__main__":
    main()
