"""Networks on MNIST: PSGLD, SGLD, RMSprop, SGD, distilled PSGLD (pSGLD paper, table 2).

Paper: 400-400, 800-800 and 1200-1200 ReLU, N(0, 1) prior, batches of 100, 100 epochs, step sizes
5e-4 (PSGLD, RMSprop) and 5e-1 (SGLD, SGD), halved every 20 epochs, burn-in 300 updates, thinned by
100. Their step size r multiplies the MEAN gradient; here e / 2 multiplies the sum, so e = 2 r / N.
The code that the authors published injects noise of the temperature 1 / N: both temperatures are
rows here. RMSprop and SGD are PSGLD and SGLD without noise (temperature 1e-12), judged by their
last draw.

    python examples/mnist_fnn.py --size 400
    python examples/mnist_fnn.py --size 400 --epochs 10 --images 10000    # a smaller table
    python examples/mnist_fnn.py --size 400 --thin 600                # fewer draws: half the time

A killed script goes on when it is started again with the same arguments; --fresh begins anew.
"""

import matplotlib.pyplot as plt
import numpy as np
import pytensor
from common import Report, arguments, plain_log
from datasets import load_mnist
from networks import JAX, Rows, classifier, random_start, run, scores

import pymc_sgmcmc as sgm

PAPER = {
    "PSGLD": {400: 1.45, 800: 1.32, 1200: 1.24},
    "PSGLD, prior variance 100": {400: 1.40, 800: 1.26, 1200: 1.14},
    "distilled PSGLD": {400: 1.44, 800: 1.40, 1200: 1.41},
    "SGLD": {400: 1.64, 800: 1.41, 1200: 1.40},
    "RMSprop": {400: 1.59, 800: 1.43, 1200: 1.39},
    "SGD": {400: 1.72, 800: 1.47, 1200: 1.47},
}
"""Test error in percent."""
BATCH, BURN_IN = 100, 300
TAUGHT = 20_000
"""Images, and as many with noise, on which the student learns from the averages."""


def main():
    """Make the table of one network size."""
    args = arguments(
        __doc__,
        size=(400, "hidden units of each of the two layers"),
        epochs=(100, "passes over the data; the step size is halved after each fifth of them"),
        images=(60000, "training images"),
        thin=(100, "updates per draw; each is tried on the test images"),
        only=("", "one row of the table, such as PSGLD"),
        fresh=(False, "do not go on with an earlier run"),
    )
    if args.quick:
        args.size, args.epochs, args.images = 20, 5, 1000
    pytensor.config.floatX = "float32"
    digits = load_mnist()
    X, y = digits.X[: args.images], digits.y[: args.images]
    n_test = 500 if args.quick else len(digits.y_test)
    X_test, y_test = digits.X_test[:n_test], digits.y_test[:n_test]
    N = len(X)
    thin = 5 if args.quick else args.thin
    draws, burn_in = args.epochs * (N // BATCH) // thin, 3 if args.quick else -(-BURN_IN // thin)
    cases = {}
    for noise, T in (("", 1.0), (", T = 1/N", 1 / N)):
        cases[f"PSGLD{noise}"] = (sgm.PSGLD, 5e-4, T, 1.0)
        cases[f"PSGLD, prior variance 100{noise}"] = (sgm.PSGLD, 5e-4, T, 10.0)
        cases[f"SGLD{noise}"] = (sgm.SGLD, 5e-1, T, 1.0)
    cases["RMSprop"] = (sgm.PSGLD, 5e-4, 1e-12, 1.0)
    cases["SGD"] = (sgm.SGLD, 5e-1, 1e-12, 1.0)
    name = f"mnist_fnn_{args.size}"
    report = Report(name, args.quick, "mnist_fnn")
    settings = {"size": args.size, "epochs": args.epochs, "images": N, "seed": args.seed}
    settings["thin"] = thin
    rows = Rows(report.folder / f"{name}.json", settings, args.fresh or args.quick)
    weights: dict[str, np.ndarray] = {}

    def sampled(key: str, distilled: bool = False):
        # The student's teacher is the chain of PSGLD, which is stored and not run again.
        sampler, rate, T, prior_sd = cases[key]
        model = classifier(X, y, [args.size] * 2, prior_sd=prior_sd)
        with model:
            step = sampler(
                step_size=sgm.BlockDecay(2 * rate / N, every=args.epochs / 5),
                temperature=T,
                batch_size=BATCH,
                thin=thin,
                compile_kwargs=JAX,
            )
            test = sgm.Predictions("y", {"X": X_test}, y_test, weights="step_size")
            both = [test]
            if key == "PSGLD":
                noise = np.random.default_rng(args.seed).normal(0, 0.05, size=X[:TAUGHT].shape)
                inputs = np.concatenate([X[:TAUGHT], X[:TAUGHT] + noise.astype(np.float32)])
                teacher = sgm.Predictions("y", {"X": inputs}, name="teacher", batch_size=5000)
                both.append(teacher)
        label = f"{name}_{args.epochs}_{N}_{thin}_{key}_{args.seed}"
        label = "".join(c if c.isalnum() else "_" for c in label)
        start = random_start(model, args.seed)
        tree = run(
            label,
            model,
            step,
            both,
            draws=draws - burn_in,
            tune=burn_in,
            seed=args.seed,
            start=start,
            fresh=(args.fresh or args.quick) and not distilled,
        )
        row = scores(tree["test_predictions"])
        weights[key] = test.best["point"]["W2"].ravel()
        row["weights"] = np.histogram(weights[key], bins=61, range=(-0.4, 0.4))[0].tolist()
        if distilled:
            student = sgm.distill(
                teacher,
                model,
                start=start,
                epochs=max(1, args.epochs // 5),
                random_seed=args.seed,
                compile_kwargs=JAX,
            )
            predicted = student.predict({"X": X_test}).argmax(axis=1)
            row["error"] = 100 * float(np.mean(predicted != y_test))
        return row

    chosen = [key for key in cases if args.only in ("", key)]
    table, curves = [], {}
    for key in chosen:
        row = rows.get(key, lambda key=key: sampled(key))
        curves[key] = row
        optimiser = key in ("RMSprop", "SGD")
        error = row["last"] if optimiser else row["error"]
        paper = PAPER[key.removesuffix(", T = 1/N")].get(args.size, "")
        table.append([key, paper, f"{error:.2f}", *_more(row)])
    if args.only in ("", "distilled PSGLD"):
        row = rows.get("distilled PSGLD", lambda: sampled("PSGLD", distilled=True))
        paper = PAPER["distilled PSGLD"].get(args.size, "")
        table.append(["distilled PSGLD", paper, f"{row['error']:.2f}", "", "", "", ""])
    report.print(f"{args.size}-{args.size}, {N} images, {args.epochs} epochs; errors in %.\n")
    header = ["method", "paper", "error", "last draw", "log lik.", "calibration", "disagreement"]
    report.table(header, table)
    report.save(figure(curves, thin))


def _more(row: dict) -> list[str]:
    return [
        f"{row['last']:.2f}",
        f"{row['log_likelihood']:.4f}",
        f"{row['calibration_error']:.4f}",
        f"{row['disagreement']:.4f}",
    ]


def figure(curves: dict, thin: int):
    """Learning curves of the averages, and histograms of the second layer's weights."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    edges = np.linspace(-0.4, 0.4, 62)
    for key, row in curves.items():
        optimiser = key in ("RMSprop", "SGD")
        line = row["last_curve"] if optimiser else row["curve"]
        left.plot(line, label=key, ls="--" if optimiser else "-")
        right.stairs(row["weights"], edges, label=key)
    left.set(xlabel=f"draws of {thin} updates", ylabel="test error, %")
    plain_log(left)
    right.set(xlabel="weights of the second layer, best draw", ylabel="count")
    left.legend(fontsize=7)
    fig.tight_layout()
    return fig


if __name__ == "__main__":
    main()
