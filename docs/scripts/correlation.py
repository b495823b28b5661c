"""A correlated posterior under minibatch noise: sds and correlation against NUTS.

Logistic regression on two columns with correlation 0.8. Prints, for each setting, the ratio of the
posterior sds to NUTS', the posterior correlation (NUTS' in the first row), and the mean thermostat.

    python docs/scripts/correlation.py > docs/scripts/correlation.txt
"""

import logging
import warnings

import numpy as np
import pymc as pm

import pymc_sgmcmc as sgm


def main():
    """Run all rows and print the table as it grows."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="PyTensor could not link to a BLAS")
    rng = np.random.default_rng(1)
    X = rng.multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], size=5000)
    y = rng.random(5000) < 1 / (1 + np.exp(-(X @ [1.0, -0.5])))
    with pm.Model() as model:
        w = pm.Normal("w", 0, 3, shape=2)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ w, observed=y.astype(int))
    run = dict(chains=4, cores=1, random_seed=1, progressbar=False)
    with model:
        nuts = pm.sample(1000, tune=1000, **run).posterior["w"].values.reshape(-1, 2)
    layout = "{:<46}{:>9}{:>13}{:>8}"
    print("5000 rows, batches of 100, 4 chains of 1000 draws.\n")
    print(layout.format("sampler", "sd/NUTS", "correlation", "xi"))
    print(layout.format("NUTS", "1.00", f"{np.corrcoef(nuts.T)[0, 1]:.2f}", "-"))
    settings = [
        (sgm.MSGNHT_S, dict(step_size=3e-3, replacement=True), 47),
        (sgm.MSGNHT_S, dict(step_size=3e-4, replacement=True), 149),
        (sgm.MSGNHT_S, dict(step_size=1e-4, replacement=True), 499),
        (sgm.MSGNHT_S, dict(step_size=1e-4, replacement=True, diffusion=30.0), 499),
        (sgm.MSGNHT_S, dict(step_size=1e-4, replacement=False), 499),
        (sgm.SGHMC_S, dict(step_size=3e-4, friction=100.0), 499),
        (sgm.SGLD, dict(step_size=1e-5), 299),
    ]
    for sampler, options, thin in settings:
        with model:
            step = sampler(batch_size=100, thin=thin, **options)
            draws = pm.sample(
                1000,
                tune=60_000 // thin,
                step=step,
                initvals={"w": nuts.mean(0)},
                compute_convergence_checks=False,
                **run,
            )
        values = draws.posterior["w"].values.reshape(-1, 2)
        ratio = (values.std(0) / nuts.std(0)).mean()
        correlation = np.corrcoef(values.T)[0, 1]
        stats = draws.sample_stats
        xi = f"{float(stats['thermostat'].mean()):.2f}" if "thermostat" in stats else "-"
        shown = {k: f"{v:g}" for k, v in options.items() if k != "replacement"}
        name = sampler.__name__ + "".join(f" {k}={v}" for k, v in shown.items())
        name += " replacement" if options.get("replacement") else " shuffled"
        name = name.replace("step_size=", "")
        print(layout.format(name, f"{ratio:.2f}", f"{correlation:.2f}", xi), flush=True)


if __name__ == "__main__":
    main()
