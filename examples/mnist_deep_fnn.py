"""Deeper networks on MNIST: MSGNHT_S against MSGNHT_E (high-order paper, figure 4, supplement C).

Paper: depth 2, 3 and 4 with 100 ReLU in each layer, N(0, 1) prior, D = 5, h = 1e-4 (for depth 4
also 5e-5), halved at epoch 20 of 40: S is ahead of E, the more so the deeper, and E fails at depth
4 with h = 1e-4. Sigmoid units: depth 1, 2 and 3, D = 10, h = 1e-3, accuracy with 3 layers 97.36%
(S) and 96.86% (E). 400-400 ReLU: D = 60, h = 2e-4, 98.25% (S) and 98.20% (E). Batches of 100.

    python examples/mnist_deep_fnn.py
    python examples/mnist_deep_fnn.py --link sigmoid
    python examples/mnist_deep_fnn.py --link wide
    python examples/mnist_deep_fnn.py --link steps           # depth 2 (supplement C)
    python examples/mnist_deep_fnn.py --link large-steps     # not in the paper: where E fails here
    python examples/mnist_deep_fnn.py --epochs 8 --images 20000     # smaller; the table says so

A killed script goes on when it is started again with the same arguments; --fresh begins anew.
"""

import matplotlib.pyplot as plt
import pytensor
import pytensor.tensor as pt
from common import E, Report, S, arguments
from datasets import load_mnist
from networks import JAX, Rows, classifier, kinetic_temperature, random_start, relu, run, scores
from pymc.exceptions import SamplingError

import pymc_sgmcmc as sgm

BATCH = 100
# (hidden layers, D, h) of each experiment
CASES = {
    "relu": [((100,) * depth, 5.0, h) for depth, h in ((2, 1e-4), (3, 1e-4), (4, 1e-4), (4, 5e-5))],
    "sigmoid": [((100,) * depth, 10.0, 1e-3) for depth in (1, 2, 3)],
    "wide": [((400, 400), 60.0, 2e-4)],
    "steps": [((100, 100), 5.0, h) for h in (2e-4, 1e-4, 5e-5)],
    "large-steps": [((100,) * 4, 5.0, h) for h in (2e-4, 4e-4, 8e-4)],
}
PAPER = {
    ("sigmoid", (100,) * 3): {"MSGNHT_S": 97.36, "MSGNHT_E": 96.86},
    ("wide", (400, 400)): {"MSGNHT_S": 98.25, "MSGNHT_E": 98.20},
}


def main():
    """Run both integrators on each network."""
    args = arguments(
        __doc__,
        link=("relu", f"which experiment: {', '.join(CASES)}"),
        epochs=(40, "passes over the data; the step size is halved after half of them"),
        images=(60000, "training images"),
        fresh=(False, "do not go on with an earlier run"),
    )
    cases, per_epoch = CASES[args.link], 2
    if args.quick:
        args.epochs, args.images, cases = 4, 2000, [((10, 10), 5.0, 5e-4)]
    pytensor.config.floatX = "float32"
    digits = load_mnist()
    X, y = digits.X[: args.images], digits.y[: args.images]
    n_test = 1000 if args.quick else 10_000
    name = f"mnist_deep_fnn_{args.link}"
    report = Report(name, args.quick, "mnist_deep_fnn")
    settings = {"epochs": args.epochs, "images": len(X), "seed": args.seed}
    rows = Rows(report.folder / f"{name}.json", settings, args.fresh or args.quick)
    thin = len(X) // BATCH // per_epoch

    def sampled(sampler: str, hidden: tuple, D: float, h: float) -> dict:
        link = pt.sigmoid if args.link == "sigmoid" else relu
        model = classifier(X, y, hidden, activation=link)
        with model:
            step = getattr(sgm, sampler)(
                step_size=sgm.BlockDecay(h, every=args.epochs / 2),
                diffusion=D,
                batch_size=BATCH,
                thin=thin,
                replacement=True,  # a thermostat takes noise that cancels for noise that does not
                compile_kwargs=JAX,
            )
            test = sgm.Predictions("y", {"X": digits.X_test[:n_test]}, digits.y_test[:n_test])
            train = sgm.Predictions("y", {"X": X[:n_test]}, y[:n_test], name="train")
        label = f"{name}_{args.epochs}_{len(X)}_{sampler}_{'-'.join(map(str, hidden))}_{h:.0e}"
        try:
            tree = run(
                label, model, step, [test, train], draws=per_epoch * args.epochs, tune=0,
                seed=args.seed, start=random_start(model, args.seed),
                fresh=args.fresh or args.quick,
            )  # fmt: skip
        except SamplingError as error:
            return {"failed": str(error)[:300]}
        row = scores(tree["test_predictions"]) | {"T": kinetic_temperature(tree)}
        loss = -tree["train"]["draw_log_likelihood"].values[0]
        return row | {"train": [round(float(v), 5) for v in loss]}

    table, found = [], {}
    for hidden, D, h in cases:
        for sampler in ("MSGNHT_S", "MSGNHT_E"):
            shape = "-".join(map(str, hidden))
            key = f"{shape} h={h:.0e} {sampler}"
            row = rows.get(key, lambda c=(sampler, hidden, D, h): sampled(*c))
            paper = PAPER.get((args.link, hidden), {}).get(sampler, "")
            found[shape, h, sampler] = row
            n = len(row.get("curve", []))
            draws = f"{n} of {per_epoch * args.epochs}"
            if "failed" in row:
                table.append([shape, f"{h:.0e}", sampler, paper, "failed", "", "", "", draws])
                continue
            table.append(
                [shape, f"{h:.0e}", sampler, paper, f"{100 - row['error']:.2f}",
                 f"{100 - row['last']:.2f}", f"{row['train'][-1]:.4f}", f"{row['T']:.2f}", draws]
            )  # fmt: skip
    report.print(
        f"{args.link}: {len(X)} images, {args.epochs} epochs; test accuracy in %;"
        " T: kinetic temperature.\n"
    )
    header = ["network", "h", "sampler", "paper", "average", "last draw", "train loss"]
    report.table([*header, "T", "draws"], table)
    if any(
        "failed" in row or len(row["curve"]) < per_epoch * args.epochs for row in found.values()
    ):
        report.print("\nFewer draws than asked for: the chain became non-finite there.")
    report.save(figure(found, per_epoch))


def figure(rows: dict, per_epoch: int):
    """Learning curves: test accuracy of each draw, training loss."""
    networks = list(dict.fromkeys((shape, h) for shape, h, _ in rows))
    fig, axes = plt.subplots(2, len(networks), figsize=(3.5 * len(networks), 6), squeeze=False)
    for (top, bottom), (shape, h) in zip(axes.T, networks, strict=True):
        for sampler, colour in (("MSGNHT_S", S), ("MSGNHT_E", E)):
            row = rows[shape, h, sampler]
            if "failed" in row:
                continue
            epochs = [(k + 1) / per_epoch for k in range(len(row["train"]))]
            top.plot(epochs, [100 - e for e in row["last_curve"]], color=colour, label=sampler)
            bottom.plot(epochs, row["train"], color=colour)
        top.set(title=f"{shape}, h = {h:.0e}", ylabel="test accuracy, %")
        bottom.set(xlabel="epoch", ylabel="training loss", yscale="log")
        top.legend()
    fig.tight_layout()
    return fig


if __name__ == "__main__":
    main()
