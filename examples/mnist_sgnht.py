"""100 hidden units on MNIST: SGNHT against SGHMC under strong noise (SGNHT paper, 5.2).

Paper: batches of 20, 50,000 updates, the first 10,000 burn-in, a in {0.001, 0.01}, eta in {2, 4, 6,
8} e-7, both chosen on 10,000 validation images of the 60,000; SGHMC 2.25% and SGNHT 2.15% test
error, and SGHMC fails for large eta and small a. Their network is that of Chen et al. (2014):
sigmoid units and N(0, 1 / precision) weights, whose precisions are sampled too; here the prior is
N(0, prior_sd^2).

    python examples/mnist_sgnht.py
    python examples/mnist_sgnht.py --updates 5000     # a tenth: marked so in the table

A killed script goes on when it is started again with the same arguments; --fresh begins anew.
"""

import matplotlib.pyplot as plt
import pytensor
import pytensor.tensor as pt
from common import E, Report, S, arguments, plain_log
from datasets import load_mnist
from networks import JAX, Rows, classifier, kinetic_temperature, random_start, run, scores
from pymc.exceptions import SamplingError

import pymc_sgmcmc as sgm

BATCH, THIN = 20, 100
PAPER = {"SGHMC": 2.25, "SGNHT": 2.15}


def main():
    """Run the grid, choose on validation images, and make the table."""
    args = arguments(
        __doc__,
        updates=(50_000, "updates per chain, a fifth of them burn-in"),
        hidden=(100, "hidden units"),
        prior_sd=(1.0, "of weights and biases"),
        fresh=(False, "do not go on with an earlier run"),
    )
    grid = [(a, 1e-7 * k) for a in (0.001, 0.01) for k in (2, 4, 6, 8)]
    n_valid = 10_000
    if args.quick:
        args.updates, args.hidden, grid, n_valid = 1000, 10, grid[::7], 500
    pytensor.config.floatX = "float32"
    digits = load_mnist()
    X, y = digits.X[:50_000], digits.y[:50_000]
    if args.quick:
        X, y = X[:2000], y[:2000]
    report = Report("mnist_sgnht", args.quick)
    settings = {"updates": args.updates, "hidden": args.hidden, "prior_sd": args.prior_sd}
    rows = Rows(report.folder / "mnist_sgnht.json", settings, args.fresh or args.quick)
    model = classifier(X, y, [args.hidden], activation=pt.sigmoid, prior_sd=args.prior_sd)
    start = random_start(model, args.seed)

    def sampled(sampler: str, a: float, eta: float) -> dict:
        options = {"batch_size": BATCH, "thin": THIN, "compile_kwargs": JAX}
        # a thermostat takes noise that cancels over an epoch for noise that does not
        options["replacement"] = True
        with model:
            if sampler == "SGNHT":
                step = sgm.SGNHT.from_learning_rate(eta=eta, a=a, **options)
            else:
                step = sgm.SGHMC_E.from_momentum_decay(
                    learning_rate=eta, momentum_decay=a, **options
                )
            valid = digits.X[50_000 : 50_000 + n_valid], digits.y[50_000 : 50_000 + n_valid]
            both = [
                sgm.Predictions("y", {"X": images}, labels, name=name)
                for name, images, labels in (
                    ("validation", *valid),
                    ("test", digits.X_test[:n_valid], digits.y_test[:n_valid]),
                )
            ]
        draws = args.updates // THIN
        label = (
            f"mnist_sgnht_{args.updates}_{args.hidden}_{args.prior_sd:g}_{sampler}_{a}_{eta:.0e}"
        )
        try:
            tree = run(
                label,
                model,
                step,
                both,
                draws=draws - draws // 5,
                tune=draws // 5,
                start=start,
                seed=args.seed,
                fresh=args.fresh or args.quick,
            )
        except SamplingError as error:
            return {"failed": str(error)[:200]}
        if "test" not in tree.children:
            return {"failed": "no draw after burn-in"}
        row = {
            "valid": 100 * (1 - float(tree["validation"]["accuracy"])),
            "T": kinetic_temperature(tree),
        }
        return row | scores(tree["test"]) | {"draws": int(tree.posterior.sizes["draw"])}

    table, all_rows = [], {}
    for a, eta in grid:
        for sampler in ("SGHMC", "SGNHT"):
            key = f"{sampler} a={a} eta={eta:.0e}"
            row = rows.get(key, lambda s=sampler, a=a, eta=eta: sampled(s, a, eta))
            all_rows[sampler, a, eta] = row
            if "failed" in row:
                table.append([sampler, a, f"{eta:.0e}", "failed", "failed", "", "", ""])
                continue
            table.append(
                [sampler, a, f"{eta:.0e}", f"{row['valid']:.2f}", f"{row['error']:.2f}",
                 f"{row['last']:.2f}", f"{row['log_likelihood']:.4f}", f"{row['T']:.2f}"]
            )  # fmt: skip
    report.print(
        f"{args.hidden} hidden units, {args.updates} updates of {BATCH} rows; errors in %;"
        " T: kinetic temperature."
        + (" The paper's 50000 updates are cut." if args.updates < 50_000 else "")
        + "\n"
    )
    header = ["sampler", "a", "eta", "validation", "test", "last draw", "test log lik.", "T"]
    report.table(header, table)
    report.print()
    best = []
    for sampler, paper in PAPER.items():
        own = {k: r for k, r in all_rows.items() if k[0] == sampler and "failed" not in r}
        if own:
            (_, a, eta), row = min(own.items(), key=lambda item: item[1]["valid"])
            best.append([sampler, paper, f"{row['error']:.2f}", a, f"{eta:.0e}"])
    report.table(["chosen on validation images", "paper", "here", "a", "eta"], best)
    report.save(figure(all_rows))


def figure(rows: dict):
    """Test error over eta, for both a."""
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True)
    for ax, a in zip(axes, (0.001, 0.01), strict=True):
        for sampler, colour in (("SGHMC", E), ("SGNHT", S)):
            points = [
                (eta, row["error"])
                for (name, own, eta), row in rows.items()
                if (name, own) == (sampler, a) and "failed" not in row
            ]
            if points:
                ax.plot(*zip(*points, strict=True), "o-", color=colour, label=sampler)
        ax.set(xlabel="eta", title=f"a = {a}")
        plain_log(ax)
        ax.legend()
    axes[0].set_ylabel("test error, %")
    fig.tight_layout()
    return fig


if __name__ == "__main__":
    main()
