"""Logistic regression on a9a (income above 50 000 dollars): accuracy and coverage.

Accuracy, high-order paper, section 5.1: batches of 10, N(0, 10) prior (variance), 50 updates per
draw, burn-in 300. The exponent of the total number of iterations is missing in print ("3 x 10^?"):
both 3e3 (a tenth of it burn-in, about one pass over the data) and 3e4 are reported here.

Accuracy, pSGLD paper, table 1: batches of 50, N(0, 10), 50 updates per draw, burn-in 500, 15000
updates, step size 5e-2. If it multiplied the gradient's sum over 32561 rows, whose batch estimate
is of the order of 1e3, SGLD would move by tens per update. So it must multiply the MEAN gradient,
as in the code that the authors published for networks: theta += 5e-2 * mean gradient. Here theta
moves by e/2 times the sum, so e = 2 * 5e-2 / 32561.

Coverage: posterior means and sds of 124 coefficients, and of the log odds of test rows, against
NUTS on all data (a9a_nuts.py; stored in results/a9a_nuts.npz): the default call `sgm.sample()`,
which adapts everything, and a step set by hand, without a metric or a control variate.
"""

import json

import a9a_nuts
import arviz as az
import matplotlib.pyplot as plt
import numpy as np
from common import E, Report, S, arguments, chain, percent, progress, with_step_size
from datasets import load_a9a
from scipy.special import expit

import pymc_sgmcmc as sgm

PAPER = {
    "MSGNHT_S": 0.8495,
    "MSGNHT_E": 0.8472,
    "SGHMC_S": 0.8456,
    "SGHMC_E": 0.8451,
    "PSGLD": 0.8515,
    "SGLD": 0.8515,
}
STEPS = (3e-5, 3e-4, 3e-3)
COLOURS = {"MSGNHT_S": S, "MSGNHT_E": E, "SGHMC_S": "tab:cyan", "SGHMC_E": "tab:red"}
COLOURS |= {"PSGLD": "tab:green", "SGLD": "tab:purple"}
THIN = 50


def running_accuracy(draws: dict, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Test accuracy of the averaged predictive probability after 1, 2, ... draws."""
    beta = np.column_stack([draws["w"], draws["b"]]).astype(np.float32)
    total, accuracy = np.zeros(len(X), dtype=np.float32), []
    for block in np.array_split(beta, max(1, len(beta) // 50)):
        for p in expit(X @ block.T).T:
            total += p
            accuracy.append(np.mean((2 * total > len(accuracy) + 1) == y))
    return np.array(accuracy)


DEFAULT, BY_HAND = "default call", "by hand"


def coverage(report: Report, model, args, X_test, reference) -> dict[str, np.ndarray]:
    """Compare means and sds with NUTS; sd ratios of the coefficients by kind of run."""
    mean, covariance = reference["mean"], reference["covariance"]
    sd = np.sqrt(np.diag(covariance))
    odds_mean = X_test @ mean
    odds_sd = np.sqrt(np.einsum("ij,jk,ik->i", X_test, covariance, X_test))
    tight = sd < 0.5
    rows, ratios = [], {}
    for kind in (DEFAULT, BY_HAND):
        run = by_default if kind == DEFAULT else by_hand
        beta = run(report, model, args, mean)
        odds = beta @ X_test.T
        ratio = beta.std(axis=0) / sd
        groups = [
            (
                f"{tight.sum()} coefficients, sd < 0.5",
                ratio[tight],
                ((beta.mean(0) - mean) / sd)[tight],
            ),
            (
                f"{(~tight).sum()} coefficients, sd > 0.5",
                ratio[~tight],
                ((beta.mean(0) - mean) / sd)[~tight],
            ),
            (
                f"log odds, {len(X_test)} test rows",
                odds.std(0) / odds_sd,
                (odds.mean(0) - odds_mean) / odds_sd,
            ),
        ]
        for what, r, z in groups:
            quantiles = ", ".join(f"{q:.2f}" for q in np.quantile(r, (0.05, 0.5, 0.95)))
            rows.append([f"{kind}: {what}", f"{np.abs(z).mean():.2f}", quantiles])
        ratios[kind] = ratio, odds.std(axis=0) / odds_sd
    report.print()
    report.table(["against NUTS", "mean |error| / sd", "sd ratio: 5%, 50%, 95%"], rows)
    report.print(
        "\nOne-hot groups and the intercept leave directions that only the prior fixes: along\n"
        "them a coefficient's sd is of the order of 1 and the batches' noise is strong. A run\n"
        "without a metric covers only a part of them (sd ratios far below 1); predictions do not\n"
        "depend on them. With the adapted metric all directions are alike."
    )
    return ratios


def by_default(report: Report, model, args, mean) -> np.ndarray:
    """Draws of (w, b) of the default call, shape (draws of all chains, 124)."""
    with model:
        idata = sgm.sample(args.default_draws, random_seed=args.seed, progressbar=False)
    posterior = idata.posterior
    chosen = json.loads(posterior.attrs["adaptation"])
    ess = min(float(v.min()) for v in az.ess(idata, var_names=["w", "b"]).values())
    report.print(
        f"{DEFAULT}, {posterior.sizes['chain']} x {posterior.sizes['draw']} draws: batches of "
        f"{chosen['batch_size']}, step size {chosen['step_size']:.2g}, {chosen['thin']} updates "
        f"per draw;\n{posterior.attrs['data_passes_warmup']:.0f} passes of warm-up, "
        f"{posterior.attrs['data_passes']:.0f} in all; smallest effective sample size {ess:.0f}; "
        f"verdict: {idata['diagnosis'].attrs['verdict']}"
    )
    both = np.concatenate([posterior["w"].values, posterior["b"].values[..., None]], axis=-1)
    return both.reshape(-1, len(mean))


def by_hand(report: Report, model, args, mean) -> np.ndarray:
    """Draws of (w, b) of one chain from the mean, shape (draws, 124)."""
    with model:
        step = sgm.MSGNHT_S(
            step_size=args.coverage_step,
            diffusion=args.diffusion,
            batch_size=args.coverage_batch,
            thin=THIN,
            replacement=False,
        )
    start = {"w": mean[:-1], "b": np.asarray(mean[-1])}
    n_draws = args.coverage_updates // THIN
    draws, stats = chain(step, args.seed, n_draws, start, burn_in=n_draws // 10)
    report.print(
        f"{BY_HAND}, {args.coverage_updates} updates from the mean: D = {args.diffusion:g}, "
        f"h = {args.coverage_step:g}, batches of {args.coverage_batch}; mean xi "
        f"{stats['thermostat'].mean():.1f}"
    )
    return np.column_stack([draws["w"], draws["b"]])


def main() -> None:
    args = arguments(
        __doc__.splitlines()[0],
        nuts=(False, "sample the NUTS reference again (about ten minutes)"),
        diffusion=(10.0, "injected noise D, and friction of SGHMC"),
        updates=(30_000, "updates in the high-order setting"),
        default_draws=(2000, "draws per chain of the default call"),
        coverage_updates=(300_000, "updates of the coverage run by hand"),
        coverage_batch=(500, "its batch size"),
        coverage_step=(3e-4, "its step size"),
    )
    if args.quick:
        args.updates, args.coverage_updates, args.default_draws = 3000, 5000, 200
    report = Report("logistic_regression_a9a", args.quick)
    report.print("Logistic regression on a9a")
    X, y, X_test, y_test = load_a9a()
    with_intercept = np.column_stack([X_test, np.ones(len(X_test))]).astype(np.float32)
    reference = a9a_nuts.run() if args.nuts else dict(np.load(a9a_nuts.FILE))
    start = {"w": np.zeros(X.shape[1]), "b": np.asarray(0.0)}
    model = a9a_nuts.build_model(X, y)
    curves, failed = {}, {}
    e = 2 * 5e-2 / len(X)
    steps = (3e-4,) if args.quick else STEPS
    with model:
        for name in progress(list(PAPER)):
            langevin = name in ("PSGLD", "SGLD")
            noise = "friction" if name.startswith("SGHMC") else "diffusion"
            own = {} if langevin else {noise: args.diffusion}
            step = getattr(sgm, name)(
                step_size=e, batch_size=50 if langevin else 10, thin=THIN, **own
            )
            for h in (e,) if langevin else steps:
                with_step_size(step, h)
                updates, burn = (args.updates // 2, 500) if langevin else (args.updates, 300)
                draws, stats = chain(
                    step, args.seed, (updates - burn) // THIN, start, burn_in=burn // THIN
                )
                curves[name, h] = running_accuracy(draws, with_intercept, y_test)
                failed[name, h] = stats["nonfinite"].mean()
    reference_accuracy = np.mean((with_intercept @ reference["mean"] > 0) == y_test)
    error = percent(np.sqrt(0.85 * 0.15 / len(y_test)))
    report.print(
        f"Test accuracy, predictive probabilities averaged over draws; D = {args.diffusion:g}\n"
        f"(the paper gives neither h nor D). One standard error of an accuracy on\n"
        f"{len(y_test)} rows is {error}; the mean of the full posterior by NUTS has "
        f"{percent(reference_accuracy)}.\n"
    )
    rows = []
    for (name, h), accuracy in curves.items():
        early = accuracy[min(len(accuracy), (3000 - 300) // THIN) - 1]
        rows.append(
            [
                f"{name} step {h:.2g}",
                percent(PAPER[name]),
                percent(early),
                percent(accuracy[-1]),
                f"{100 * failed[name, h]:.2g}%",
            ]
        )
    total = f"{args.updates} (Langevin {args.updates // 2})"
    report.table(["setting", "paper", "here at 3000", f"here at {total}", "failed"], rows)
    report.print("\nCoverage, MSGNHT_S")
    ratios = coverage(report, model, args, with_intercept[:1000].astype(float), reference)
    draw(report, curves, ratios)


def draw(report: Report, curves: dict, ratios: dict) -> None:
    """Learning curves in both settings, and sd ratios."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for (name, h), accuracy in curves.items():
        langevin = name in ("PSGLD", "SGLD")
        updates = (500 if langevin else 300) + THIN * np.arange(1, len(accuracy) + 1)
        axis = axes[1] if langevin else axes[0]
        line = {3e-5: ":", 3e-4: "-", 3e-3: "--"}.get(h, "-")
        label = name if line == "-" else None
        axis.plot(updates, 100 * (1 - accuracy), c=COLOURS[name], ls=line, lw=1.3, label=label)
    for line, h in ((":", "3e-5"), ("-", "3e-4"), ("--", "3e-3")):
        axes[0].plot([], [], c="0.4", ls=line, label=f"h = {h}")
    axes[0].set(title="High-order setting: batches of 10", ylim=(14.5, 18))
    axes[1].set(title="pSGLD setting: batches of 50", ylim=(14.5, 18))
    for axis in axes[:2]:
        axis.set(xlabel="updates", ylabel="test error, %", xscale="log")
        axis.legend(frameon=False, fontsize=8)
    for kind, colour in ((DEFAULT, S), (BY_HAND, E)):
        for k, (what, line) in enumerate((("coefficients", "-"), ("log odds", "--"))):
            ratio = np.sort(ratios[kind][k])
            share = (np.arange(len(ratio)) + 0.5) / len(ratio)
            axes[2].plot(ratio, share, c=colour, ls=line, label=f"{what}, {kind}")
    axes[2].axvspan(0.9, 1.1, color="0.9")
    axes[2].axvline(1, c="k", lw=1)
    axes[2].set(xlabel="posterior sd / sd by NUTS", ylabel="share at most this", xlim=(0, 2))
    axes[2].set_title("Coverage: MSGNHT_S")
    axes[2].legend(frameon=False, fontsize=8, loc="lower right")
    report.save(figure)


if __name__ == "__main__":
    main()
