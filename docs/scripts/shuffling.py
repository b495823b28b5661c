"""Shuffled epochs against replacement: posterior sds of a logistic regression, against NUTS.

Prints a table. A row is a sampler, a step size, a number of updates per draw (thin) and a way of
drawing batches. Columns: the ratio of the posterior standard deviations to NUTS' (mean over the
parameters), the largest error of a mean in NUTS' sds, the smallest effective sample size, the mean
thermostat xi, the mean kinetic temperature T, and the kick h |g| / sqrt(d): step size times root
mean square of the gradient's elements. Chains start at NUTS' mean, but in the rows "from 0". In
the row "scaled" the model's free variable is the weight divided by 0.03, about its posterior sd.
Burn-in: 60000 updates, but 10000 in the rows "short".

    python docs/scripts/shuffling.py > docs/scripts/shuffling.txt
"""

import argparse
import logging
import warnings

import arviz as az
import numpy as np
import pymc as pm

import pymc_sgmcmc as sgm

SCALE = 0.03


def logistic_regression(n_rows, n_features, seed, scale=1.0):
    """Make data from known weights, and the PyMC model of it; its free variable is w / scale."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_features))
    w_true = np.linspace(-1, 1, n_features)
    y = rng.random(n_rows) < 1 / (1 + np.exp(-(X @ w_true)))
    with pm.Model() as model:
        w = pm.Normal("w", 0, 3 / scale, shape=n_features)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ (scale * w), observed=y.astype(int))
    return model


def compare(draws, nuts, scale):
    """Mean sd ratio, largest mean error in sds, smallest effective sample size."""
    w, truth = scale * draws.posterior["w"], nuts.posterior["w"]
    over = ["chain", "draw"]
    sd = truth.std(over)
    ratio = float((w.std(over) / sd).mean())
    error = float(abs((w.mean(over) - truth.mean(over)) / sd).max())
    return ratio, error, float(az.ess(draws)["w"].min())


def main():
    """Run all rows and print the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--features", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--draws", type=int, default=1000, help="per chain; 4 chains")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="PyTensor could not link to a BLAS")

    model = logistic_regression(args.rows, args.features, args.seed)
    run = dict(chains=4, cores=1, random_seed=args.seed, progressbar=False)
    with model:
        nuts = pm.sample(args.draws, tune=1000, **run)

    at_mean = {"w": nuts.posterior["w"].mean(["chain", "draw"]).values}
    from_0 = {"w": np.zeros(args.features)}

    # thin grows as the step shrinks, so that each row has a useful number of effective draws; it
    # shares no factor with the 50 updates of an epoch, but in the row with thin=50
    scaled = logistic_regression(args.rows, args.features, args.seed, SCALE)
    thermostat = sgm.MSGNHT_S
    settings = [
        (thermostat, {"step_size": 1e-2}, 47, ""),
        (thermostat, {"step_size": 3e-3}, 47, ""),
        (thermostat, {"step_size": 3e-3}, 47, "short"),
        (thermostat, {"step_size": 3e-3}, 50, ""),
        (thermostat, {"step_size": 1e-3}, 47, ""),
        (thermostat, {"step_size": 3e-4}, 149, ""),
        (thermostat, {"step_size": 1e-4}, 499, ""),
        (thermostat, {"step_size": 1e-4}, 499, "from 0"),
        (thermostat, {"step_size": 0.1}, 47, "scaled from 0 short"),
        (sgm.SGHMC_S, {"step_size": 1e-3, "friction": 100.0}, 149, ""),
        (sgm.SGLD, {"step_size": 1e-4}, 47, ""),
        (sgm.SGLD, {"step_size": 1e-5}, 299, ""),
    ]
    print(
        f"Logistic regression, {args.rows} rows, {args.features} weights, "
        f"batches of {args.batch_size} ({args.rows / args.batch_size:g} updates per epoch).\n"
        f"4 chains of {args.draws} draws; truth: NUTS.\n"
    )
    columns = ["sampler", "step size", "thin", "batches", "sd/NUTS", "mean err", "ESS", "xi", "T"]
    columns.append("kick")
    layout = "{:<30}{:>10}{:>5}{:>13}{:>9}{:>10}{:>6}{:>8}{:>6}{:>6}"
    print(layout.format(*columns))
    for sampler, options, thin, kind in settings:
        for replacement in (False, True):
            scale = SCALE if "scaled" in kind else 1.0
            with scaled if "scaled" in kind else model:
                step = sampler(
                    **options, batch_size=args.batch_size, thin=thin, replacement=replacement
                )
                draws = pm.sample(
                    args.draws,
                    tune=(10_000 if "short" in kind else 60_000) // thin,
                    step=step,
                    initvals=from_0 if "from 0" in kind else at_mean,
                    compute_convergence_checks=False,
                    **run,
                )
            ratio, error, ess = compare(draws, nuts, scale)
            stats = draws.sample_stats
            own = [
                f"{float(stats[name].mean()):.2f}" if name in stats else "-"
                for name in ("thermostat", "kinetic_temperature")
            ]
            name = sampler.__name__
            if "friction" in options:
                name += f" friction={options['friction']:g}"
            name = f"{name} {kind}"
            gradient_norm = float(stats["gradient_norm"].mean())
            kick = f"{options['step_size'] * gradient_norm / args.features**0.5:.2f}"
            batches = "replacement" if replacement else "shuffled"
            step_size = f"{options['step_size']:g}"
            row = [name, step_size, thin, batches, f"{ratio:.2f}", f"{error:.2f}", f"{ess:.0f}"]
            print(layout.format(*row, *own, kick), flush=True)


if __name__ == "__main__":
    main()
