"""What float32 costs: posterior mean and sd of a location against their exact values.

y ~ N(mu, 1) with a flat prior: the posterior is N(mean(y), 1 / N). Where the data lie far from 0
compared with the posterior's sd, the steps theta += h p are lost in the rounding of theta.

    python docs/scripts/float32.py > docs/scripts/float32.txt
"""

import logging
import os
import subprocess
import sys
import warnings

LAYOUT = "{:<9}{:>10}{:>8}{:>12}{:>12}{:>16}{:>10}"
CASES = [  # rows, rows per batch, step size, updates, location of the data
    (100_000, 1000, 3e-5, 5000, 0),
    (100_000, 1000, 3e-5, 5000, 10),
    (100_000, 1000, 3e-5, 5000, 100),
    (100_000, 1000, 3e-5, 5000, 1000),
    (100_000, 1000, 3e-5, 5000, 10_000),
    (1_000_000, None, 1e-4, 600, 0),
]


def run(n_rows, batch_size, step_size, updates, location):
    """Print a line of the table, in this process's float type."""
    import numpy as np
    import pymc as pm
    import pytensor

    import pymc_sgmcmc as sgm

    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    floatX = pytensor.config.floatX
    y = (location + np.random.default_rng(0).normal(size=n_rows)).astype(floatX)
    exact, sd = y.mean(dtype=float), n_rows**-0.5
    with pm.Model():
        mu = pm.Flat("mu")
        pm.Normal("y", mu, 1, observed=y)
        step = sgm.SGHMC_S(
            step_size=step_size,
            friction=1000.0 if batch_size is None else 500.0,
            batch_size=batch_size,
            thin=10,
            replacement=True,
            self_check=False,
            initial_point={"mu": np.asarray(exact, dtype=floatX)},
            compile_kwargs={"mode": "JAX"},
        )
        tree = sgm.sample(
            updates // 10,
            tune=updates // 50,
            chains=8,
            step=step,
            initvals={"mu": exact},
            chain_method="vectorized",
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    draws = tree.posterior["mu"].values.astype(float)
    by_chain = draws.mean(axis=1)
    error = (by_chain.mean() - exact) / sd
    se = by_chain.std(ddof=1) / len(by_chain) ** 0.5 / sd
    print(
        LAYOUT.format(
            floatX,
            n_rows,
            batch_size or "all",
            location,
            f"{abs(np.spacing(y[0]) / sd):.1g}",
            f"{error:.2f} ({se:.2f})",
            f"{draws.std() / sd:.2f}",
        ),
        flush=True,
    )


def main():
    """Run each case in a separate process, because the float type is global."""
    print("SGHMC_S, 8 chains. Errors and sds in units of the exact sd, Monte Carlo error in ().\n")
    print(LAYOUT.format("floatX", "rows", "batch", "location", "spacing/sd", "mean error", "sd"))
    sys.stdout.flush()
    for case in CASES:
        for floatX in ("float64", "float32"):
            flags = os.environ | {"PYTENSOR_FLAGS": f"floatX={floatX}"}
            subprocess.run([sys.executable, __file__, repr(case)], env=flags, check=True)


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else run(*eval(sys.argv[1]))
