"""Leave-one-out cross-validation of many rows: `sgm.loo` beside `pm.compute_log_likelihood`.

    python benchmarks/loo.py    # about five minutes

A logistic regression with 20 columns; 2000 draws from the normal approximation of its posterior.
`sgm.loo` takes 400 rows; the other way is `pm.compute_log_likelihood` and `az.loo`. Each runs in a
process of its own, with its functions in numba's cache on disk from a run on few rows. "CPU s" is
the CPU time with the reading of compiled code, "MB" the most memory beyond what was in use before,
"se" the standard error of elpd as an estimate for new data, and "error" the part that comes from
the choice of rows.
Writes benchmarks/results/loo.txt.
"""

import resource
import subprocess
import sys
import time
from pathlib import Path

import arviz_stats as azs
import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import expit

import pymc_sgmcmc as sgm

RESULTS = Path(__file__).parent / "results" / "loo.txt"
SIZES = (2_000, 20_000, 200_000)
WAYS = ("sgm.loo", "all rows")
COLUMNS = 20


def regression(n: int) -> tuple[pm.Model, xr.DataTree]:
    """The model, and draws: Newton's steps to the mode, and the curvature there."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, COLUMNS))
    y = rng.binomial(1, expit(x @ np.linspace(-1, 1, COLUMNS)))
    mode = np.zeros(COLUMNS)
    for _ in range(20):
        p = expit(x @ mode)
        precision = (x * (p * (1 - p))[:, None]).T @ x + np.eye(COLUMNS) / 9
        mode = mode + np.linalg.solve(precision, x.T @ (y - p) - mode / 9)
    with pm.Model() as model:
        w = pm.Normal("w", 0, 3, shape=COLUMNS)
        pm.Bernoulli("y", logit_p=x @ w, observed=y)
    draws = rng.multivariate_normal(mode, np.linalg.inv(precision), size=(4, 500))
    posterior = xr.Dataset({"w": (("chain", "draw", "w_dim_0"), draws)})
    return model, xr.DataTree.from_dict({"/posterior": posterior})


def measured(way: str, n: int) -> str:
    """A line of the table."""
    model, idata = regression(n)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    if way == "sgm.loo":
        found = sgm.loo(idata, model)
        error = f"{found.subsampling_se:.2f}"
    else:
        pm.compute_log_likelihood(idata, model=model, progressbar=False)
        found, error = azs.loo(idata), ""
    seconds = time.process_time() - began
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    elpd = f"{found.elpd:9.1f}  {found.se:5.1f}  {error:>5}"
    return f"{n:7d}  {way:>8}  {seconds:5.0f}  {more:5.0f}  {elpd}".rstrip()


def main() -> None:
    lines = [
        f"python benchmarks/loo.py   ({time.strftime('%Y-%m-%d')})",
        "   rows       way  CPU s     MB       elpd     se  error",
    ]
    print("\n".join(lines), flush=True)
    for n in (500, *SIZES):  # the first fills the cache
        for way in WAYS:
            command = [sys.executable, __file__, way, str(n)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            if n in SIZES:
                lines.append(done.stdout.rstrip("\n").splitlines()[-1])
                print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(measured(sys.argv[1], int(sys.argv[2])))
    else:
        main()
