"""A convolutional network of LeNet's type on MNIST (pSGLD paper, table 3; high-order supplement D).

Paper: 32 and 64 channels of 5 x 5, 2 x 2 max-pooling after each, 200-200 ReLU, N(0, 1) prior,
batches of 100, 20 epochs, step size halved after 10: PSGLD 0.45% test error, SGD 0.82%. Its step
size is not given; here 5e-4 for PSGLD and 5e-2 for SGD on the scale of the mean gradient (--rate
and --sgd-rate). Supplement: MSGNHT_S and E with D = 50, h = 5e-4 and 1e-4.

    python examples/mnist_cnn.py
    python examples/mnist_cnn.py --only SGD                    # one row; those made before stay
    python examples/mnist_cnn.py --epochs 2 --images 10000     # smaller: mnist_cnn_small.txt

An update takes 0.04 to 0.06 s on two idle cores, so 20 epochs of one sampler take 10 to 15 minutes.
A killed script goes on when it is started again with the same arguments; --fresh begins anew.
"""

import matplotlib.pyplot as plt
import pytensor
from common import Report, arguments, plain_log
from datasets import load_mnist
from networks import JAX, Rows, convolutional, kinetic_temperature, random_start, run, scores
from pymc.exceptions import SamplingError

import pymc_sgmcmc as sgm

BATCH, THIN = 100, 100
EPOCHS, IMAGES = 20, 60_000
PAPER = {"PSGLD": 0.45, "SGD": 0.82}


def main():
    """Run all samplers and make the table."""
    args = arguments(
        __doc__,
        epochs=(EPOCHS, "passes over the data; the step size is halved after half of them"),
        images=(IMAGES, "training images"),
        rate=(5e-4, "PSGLD's step size on the scale of the mean gradient"),
        sgd_rate=(5e-2, "SGD's"),
        only=("", "one row of the table, such as PSGLD"),
        fresh=(False, "do not go on with an earlier run"),
    )
    n_test, thin = 10_000, THIN
    if args.quick:
        args.epochs, args.images, n_test, thin = 2, 400, 200, 2
    pytensor.config.floatX = "float32"
    digits = load_mnist()
    X, y = digits.X[: args.images], digits.y[: args.images]
    N = len(X)
    cases = {
        "PSGLD": (sgm.PSGLD, 2 * args.rate / N, {}),
        "PSGLD, T = 1/N": (sgm.PSGLD, 2 * args.rate / N, {"temperature": 1 / N}),
        "SGD": (sgm.SGLD, 2 * args.sgd_rate / N, {"temperature": 1e-12}),
    }
    for sampler in (sgm.MSGNHT_S, sgm.MSGNHT_E):
        for h in (5e-4, 1e-4):
            cases[f"{sampler.__name__}, h = {h:.0e}"] = (
                sampler,
                h,
                {"diffusion": 50.0, "replacement": False},
            )
    small = (args.epochs, args.images) != (EPOCHS, IMAGES)
    report = Report("mnist_cnn_small" if small else "mnist_cnn", args.quick, "mnist_cnn")
    settings = {"epochs": args.epochs, "images": N, "rates": [args.rate, args.sgd_rate]}
    rows = Rows(report.folder / f"{report.name}.json", settings, args.fresh or args.quick)
    if args.quick:
        cases = dict(list(cases.items())[:1])
    model = convolutional(X, y)

    def sampled(key: str) -> dict:
        sampler, step_size, options = cases[key]
        with model:
            step = sampler(
                step_size=sgm.BlockDecay(step_size, every=args.epochs / 2),
                batch_size=BATCH,
                thin=thin,
                compile_kwargs=JAX,
                **options,
            )
            test = sgm.Predictions(
                "y", {"X": digits.X_test[:n_test]}, digits.y_test[:n_test], batch_size=500
            )
        label = "".join(c if c.isalnum() else "_" for c in f"mnist_cnn_{args.epochs}_{N}_{key}")
        draws = args.epochs * (N // BATCH) // thin
        try:
            tree = run(
                label, model, step, test, draws=draws - draws // 10, tune=draws // 10,
                seed=args.seed, start=random_start(model, args.seed),
                fresh=args.fresh or args.quick,
            )  # fmt: skip
        except SamplingError as error:
            return {"failed": str(error)[:300]}
        row = scores(tree["test_predictions"])
        # samplers without momentum have no kinetic temperature
        return row | ({"T": kinetic_temperature(tree)} if key.startswith("MSGNHT") else {})

    table, found = [], {}
    for key in cases:
        if args.only not in ("", key) and key not in rows.rows:
            continue
        found[key] = row = rows.get(key, lambda key=key: sampled(key))
        paper = PAPER.get(key.partition(",")[0], "")
        if "failed" in row:
            table.append([key, paper, "failed", "", "", "", "", ""])
            continue
        error = row["last"] if key == "SGD" else row["error"]
        table.append(
            [key, paper, f"{error:.2f}", f"{row['last']:.2f}", f"{row['log_likelihood']:.4f}",
             f"{row['calibration_error']:.4f}", f"{row['disagreement']:.4f}",
             f"{row['T']:.2f}" if "T" in row else ""]
        )  # fmt: skip
    report.print(
        f"{N} images, {args.epochs} epochs; errors in %; SGD by its last update;"
        " T: kinetic temperature.\n"
    )
    header = ["method", "paper", "error", "last draw", "log lik.", "calibration", "disagreement"]
    report.table([*header, "T"], table)
    fig, ax = plt.subplots(figsize=(6, 4))
    for key, row in found.items():
        if "failed" not in row:
            ax.plot(row["last_curve" if key == "SGD" else "curve"], label=key)
    ax.set(xlabel=f"draws of {thin} updates", ylabel="test error, %")
    plain_log(ax)
    ax.legend(fontsize=7)
    fig.tight_layout()
    report.save(fig)


if __name__ == "__main__":
    main()
