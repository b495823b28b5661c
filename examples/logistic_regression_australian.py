"""Logistic regression on the Australian credit data: SGLD and PSGLD against the step size.

pSGLD paper, figure 2: N = 690, 14 features (and an intercept), batches of 5, N(0, 100) prior, 5000
updates, step sizes 1e-7 to 1e-4 (of the sum over the data, as in the paper's equation 2), 50 runs.
Each sampler is compiled once; `step.schedule` then takes every step size.
"""

import time

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from common import E, Report, S, arguments, autocorrelation_time, chain, progress, with_step_size
from datasets import load_australian

import pymc_sgmcmc as sgm

STEPS = (1e-7, 1e-6, 1e-5, 1e-4)


def reference(draws: int, seed: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Posterior means and sds of the 15 weights by NUTS."""
    idata = pm.sample(draws, tune=1000, chains=2, cores=2, random_seed=seed, progressbar=False)
    summary = az.summary(idata, round_to="none")
    weights = idata.posterior["w"].values.reshape(-1, 15)
    ess = summary["ess_bulk"].astype(float).min()
    return weights.mean(axis=0), weights.std(axis=0), f"2 chains of {draws}, least ESS {ess:.0f}"


def main() -> None:
    args = arguments(
        __doc__.splitlines()[0],
        runs=(50, "runs for each sampler and step size"),
        updates=(5000, "updates of each run"),
        thin=(5, "record every so many updates"),
        nuts_draws=(4000, "draws of each of the two NUTS chains"),
    )
    if args.quick:
        args.runs, args.nuts_draws = 2, 500
    report = Report("logistic_regression_australian", args.quick)
    report.print("Logistic regression, Australian credit (pSGLD paper, figure 2)\n")
    X, y = load_australian()
    X = np.column_stack([X, np.ones(len(X))])
    start = {"w": np.zeros(15)}
    with pm.Model():
        w = pm.Normal("w", 0, 10, shape=15, initval=start["w"])
        pm.Bernoulli("y", logit_p=X @ w, observed=y)
        mean, sd, how = reference(args.nuts_draws, args.seed)
        options = {"step_size": 1e-5, "batch_size": 5, "thin": args.thin}
        samplers = {"SGLD": sgm.SGLD(**options), "PSGLD": sgm.PSGLD(**options)}
    report.print(f"Reference: NUTS, {how}; posterior sds {sd.min():.2f} to {sd.max():.2f}.")
    n_draws = args.updates // args.thin
    results = {}
    for name, e in progress([(n, e) for e in STEPS for n in samplers]):
        with_step_size(samplers[name], e)
        least, seconds, errors, ratios = [], [], [], []
        for run in range(args.runs):
            began = time.perf_counter()
            draws, _ = chain(samplers[name], args.seed + run, n_draws, start)
            took = time.perf_counter() - began
            x = draws["w"]
            ess = min(n_draws / (2 * autocorrelation_time(x[:, k])) for k in range(15))
            least.append(ess)
            seconds.append(took / ess)
            errors.append(np.linalg.norm(x.mean(axis=0) - mean))
            ratios.append(np.mean(x[n_draws // 2 :].std(axis=0) / sd))
        results[name, e] = [np.array(v) for v in (least, seconds, errors, ratios)]

    def spread(name, e, k, spec):
        values = results[name, e][k]
        return f"{format(values.mean(), spec)} +- {format(values.std(), spec)}"

    report.print(
        f"{args.runs} runs of {args.updates} updates from zero, no burn-in left out; mean +- sd\n"
        "over runs. ESS: of the slowest weight. Error: Euclidean distance of the 15 mean weights\n"
        f"from NUTS's (from the start it is {np.linalg.norm(mean):.2f}). sd ratio: second half of\n"
        "a run against NUTS, mean over weights; below 1 where a run is too short to cover the\n"
        "posterior.\n"
    )
    for title, k, spec in (
        ("least ESS", 0, ".2f"),
        ("s / ESS", 1, ".3f"),
        ("error", 2, ".3f"),
        ("sd ratio", 3, ".2f"),
    ):
        rows = [[f"{e:g}", *[spread(n, e, k, spec) for n in samplers]] for e in STEPS]
        report.table([f"{title}, step", *samplers], rows)
        report.print()
    n = len(STEPS)

    def wins(k, sign):
        score = {key: sign * values[k].mean() for key, values in results.items()}
        return f"{sum(score['PSGLD', e] > score['SGLD', e] for e in STEPS)} of {n}"

    report.table(
        ["claim", "paper", "here"],
        [
            ["ESS of PSGLD above SGLD's", "yes, most at large steps", wins(0, 1)],
            ["time per effective sample below", "yes", wins(1, -1)],
            ["error of the weights below", "yes", wins(2, -1)],
        ],
    )
    report.print(
        "\nESS measures movement only: a run that still drifts away from its start scores about 7\n"
        "with either sampler, whatever its accuracy; only larger values show exploration."
    )
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    labels = ("least ESS", "seconds for each effective sample", "error of the mean weights")
    for axis, k, label in zip(axes, (0, 1, 2), labels, strict=True):
        for name, colour in (("SGLD", E), ("PSGLD", S)):
            values = np.array([results[name, e][k] for e in STEPS])
            axis.fill_between(STEPS, *np.quantile(values, (0.1, 0.9), axis=1), fc=colour, alpha=0.2)
            axis.plot(STEPS, values.mean(axis=1), "o-", c=colour, label=name)
        axis.set(xscale="log", yscale="log", xlabel="step size", title=label)
        axis.legend(frameon=False)
    report.save(figure)


if __name__ == "__main__":
    main()
