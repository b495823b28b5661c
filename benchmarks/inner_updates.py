"""Several updates of a batch's groups: with the shared variables moving too, or held meanwhile.

    python benchmarks/inner_updates.py    # about three minutes

The posterior of `hierarchy.py` (2000 groups, exact moments known), each variable scaled to about
unit posterior sd, MSGNHT_S with D = 1 and h = 0.1, batches of 500 rows or of whole groups with
replacement, 1200 draws of 160 updates in all rows. k updates have the same batch
(`updates_per_batch`): "moving", all variables move in each of them; "held", the shared ones only in
the last of the k, by a schedule of their own. "error" is in posterior sds, "sd" the ratio to the
exact sd, for the groups their mean and the root of the mean squared error; "ess" is the bulk
effective sample size, for the groups the mean of 100. Writes benchmarks/results/inner_updates.txt.
"""

import sys
import time
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
from hierarchy import BATCH, GROUPS, data, exact

import pymc_sgmcmc as sgm

RESULTS = Path(__file__).parent / "results" / "inner_updates.txt"
H, THIN = 0.1, 160
RUNS = [
    ("rows", 1, "moving"),
    ("rows", 4, "moving"),
    ("rows", 4, "held"),
    ("groups", 1, "moving"),
    ("groups", 4, "moving"),
    ("groups", 4, "held"),
    ("groups", 16, "moving"),
    ("groups", 16, "held"),
]


def main(n_draws: int = 1200):
    group, size, y = data()
    (mean, mean_mu, mean_t), (sd, sd_mu, sd_t) = exact(group, size, y)
    lines = [
        f"python benchmarks/inner_updates.py   ({time.strftime('%Y-%m-%d')})",
        f"{GROUPS} groups, {len(y)} rows, batches of {BATCH}, {n_draws} draws of {THIN} updates",
        f"{'batches':>8}{'k':>4}{'shared':>8}{'mu: error':>11}{'sd':>6}{'ess':>6}"
        f"{'log tau: error':>16}{'sd':>6}{'ess':>6}{'groups: sd':>12}{'error':>7}{'ess':>6}"
        f"{'CPU s':>7}",
    ]
    print(*lines, sep="\n", flush=True)
    for batches, k, shared in RUNS:

        def schedule(update, k=k, shared=shared):
            # nothing moves by so little; a step size must be positive
            return H if shared == "moving" or update % k == k - 1 else 1e-12

        start = {"mu": np.zeros(()), "t": np.zeros(()), "a": mean / sd}
        with pm.Model():
            mu = mean_mu + sd_mu * pm.Flat("mu")
            t = mean_t + sd_t * pm.Flat("t")
            pm.Potential("priors", -(mu**2) / 50 - t**2 / 2)
            a = pm.Normal("a", mu / sd, pm.math.exp(t) / sd, shape=GROUPS)
            pm.Normal("y", (sd * a)[group], 1, observed=y)
            model = pm.modelcontext(None)
            step = sgm.Groups(
                [
                    sgm.MSGNHT_S.on([model["mu"], model["t"]], step_size=schedule),
                    sgm.MSGNHT_S.on([a], step_size=H),
                ],
                batch_size=BATCH,
                thin=THIN,
                replacement=True,
                local=["a"],
                batches=batches,
                updates_per_batch=k,
                initial_point=start,
            )
            began = time.process_time()
            tree = sgm.sample(
                n_draws, tune=n_draws // 4, chains=1, step=step, random_seed=1, initvals=start,
                init="point", progressbar=False, quiet=True, compute_convergence_checks=False,
            )  # fmt: skip
        cpu = time.process_time() - began
        posterior = tree.posterior
        line = f"{batches:>8}{k:>4}{shared:>8}"
        for name, width in (("mu", 11), ("t", 16)):
            x = posterior[name].values[0]
            line += f"{x.mean():>{width}.2f}{x.std():>6.2f}{float(az.ess(x[None])):>6.0f}"
        x = posterior["a"].values[0]
        error = np.sqrt(((x.mean(0) - mean / sd) ** 2).mean())
        ess = np.mean([float(az.ess(x[None, :, j])) for j in range(0, GROUPS, GROUPS // 100)])
        lines.append(f"{line}{x.std(0).mean():>12.3f}{error:>7.3f}{ess:>6.0f}{cpu:>7.0f}")
        print(lines[-1], flush=True)
        if n_draws == 1200:
            RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
