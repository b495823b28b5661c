"""What sampling costs beside the bare compiled loop: thin=50, one process, no bar.

    python benchmarks/overhead.py float32 3   # float type, rounds

The bare loop draws its row numbers and calls the compiled function, nothing else.
"""

import logging
import sys
import tempfile
import time
from statistics import median

import numpy as np
import pymc as pm
import pytensor

FLOAT_TYPE = sys.argv[1] if len(sys.argv) > 1 else "float32"
pytensor.config.floatX = FLOAT_TYPE

from loops import data  # noqa: E402

import pymc_sgmcmc as sgm  # noqa: E402

DRAWS, THIN = 10_000, 50


def main():
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    logging.getLogger("pymc").setLevel(logging.ERROR)
    logging.getLogger("pymc_sgmcmc").setLevel(logging.ERROR)
    X, y = data("blr", FLOAT_TYPE, 32_561)
    with pm.Model() as model:
        w = pm.Normal("w", 0, np.sqrt(10).astype(FLOAT_TYPE), shape=123)
        b = pm.Normal("b", 0, np.sqrt(10).astype(FLOAT_TYPE))
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ w + b, observed=y)
        step = sgm.MSGNHT_S(step_size=1e-3, batch_size=50, thin=THIN, self_check=False)
    point = model.initial_point()

    def bare():
        """Row numbers and compiled calls."""
        step.setup_chain(np.random.default_rng(0), 0, 0)
        chain, kernel = step.chain, step.kernel
        chain.begin(point)
        theta, others = kernel.split(point)
        h = np.full(THIN, 1e-3, dtype=FLOAT_TYPE)
        state, noise = chain.state, chain.noise
        began = time.perf_counter()
        for _ in range(DRAWS):
            rows = [b.take(THIN) for b in chain.batches]
            out = kernel.loop(h, rows, theta, state, noise, [*kernel.constants, *others])
            theta, state = out.theta, out.state
        return time.perf_counter() - began

    def whole(sample, **options):
        with model:
            idata = sample(
                draws=DRAWS,
                tune=0,
                chains=1,
                step=step,
                progressbar=False,
                compute_convergence_checks=False,
                random_seed=1,
                **options,
            )
        return float(idata.posterior.attrs["sampling_time"])

    def stored():
        with tempfile.TemporaryDirectory() as folder:
            store = sgm.ZarrStore(f"{folder}/run.zarr", seconds=1.0)
            return whole(sgm.sample, trace=store, chain_method="sequential")

    contenders = {
        "bare compiled loop": bare,
        "pm.sample": lambda: whole(pm.sample, cores=1),
        "sgm.sample": lambda: whole(sgm.sample, chain_method="sequential"),
        "sgm.sample, stored": stored,
    }
    for run in contenders.values():
        run()
    times = [[run() for run in contenders.values()] for _ in range(max(rounds, 3))]
    per_draw = [1e6 / DRAWS * median(values) for values in zip(*times, strict=True)]
    print(f"blr, {FLOAT_TYPE}, numba, thin={THIN}: us per draw of {THIN} updates")
    for name, cost in zip(contenders, per_draw, strict=True):
        print(f"  {name:<20}{cost:>12.1f}{cost / per_draw[0]:>9.2f}x")


if __name__ == "__main__":
    main()
