"""`sgm.sample(exact=True)` on the posteriors of default_call.py, against the truth.

    python benchmarks/exact_posteriors.py
    python benchmarks/exact_posteriors.py --only pima --seeds 1    # replaces these rows

Writes benchmarks/results/exact_posteriors.txt. Each posterior is a process of its own.
"""

import argparse
import json
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path

import arviz as az
import numpy as np
import xarray as xr
from posterior_table import PosteriorTable
from posteriordb import WITH_DRAWS, n_rows
from scipy import stats
from truth import A9A, CENTRED, POSTERIORS, Moments, truth
from truth import RESULTS as TRUTHS

import pymc_sgmcmc as sgm

RESULTS = Path(__file__).parent / "results" / "exact_posteriors.txt"
REFERENCE_DRAWS = 10_000
"""Draws of posteriordb, nearly independent."""
RARE = 0.01
"""Probability that chance alone gives a larger z to any mean or sd of a run."""
COLUMNS = {
    "posterior": "<40",
    "seed": ">4.0f",
    "N": ">6.0f",
    "d": ">5.0f",
    "before": ">8",
    "error": ">6.3f",
    "+-": ">6.3f",
    "z": ">5.1f",
    "sd low": ">7.3f",
    "sd high": ">8.3f",
    "z sd": ">5.1f",
    "limit": ">6.1f",
    "ess": ">5.0f",
    "accept": ">7.2f",
    "diverged": ">9.0f",
    "passes": ">8.0f",
    "CPU": ">5.0f",
    "said": "",
}
TABLE = PosteriorTable(COLUMNS, texts=("posterior", "before", "said"))
NOTES = """\
N, d: rows and parameters; before, said: verdicts on the minibatch draws and on the exact ones, and
what else the exact phase says. Of all parameters, or of what groups share: error: largest |mean -
true mean| / true sd; +-: the Monte Carlo standard error of that difference, by the means of the 32
short chains and the effective sample size of the truth; z: largest |mean - true mean| in these; sd
low, sd high: smallest and largest sd / true sd; z sd: largest error of a sd in standard errors;
limit: chance exceeds it once in a hundred runs, in any mean or sd. ess: smallest bulk effective
sample size; accept: mean acceptance; diverged: transitions that diverged. passes: row gradients / N
of both phases; CPU: seconds of the whole call, with compilation."""


def ess_of_truth(name: str) -> float:
    """Independent draws that tell as much as those from which the truth is known."""
    if name in WITH_DRAWS:
        return REFERENCE_DRAWS
    if name == "a9a":
        return float(np.load(A9A)["min_ess_bulk"])
    same = name.replace("_centered", "_noncentered") if name == CENTRED else name
    text = (TRUTHS / f"{same}.txt").read_text()
    found = re.search(r"(?:ESS at least|in effect) (\d+)", text)
    assert found is not None
    return float(found[1])


def compared(idata: xr.DataTree, true: Moments, ess: float) -> dict:
    """Errors of exact draws, in true standard deviations and in Monte Carlo standard errors."""
    posterior = idata["posterior"].to_dataset()[list(true.mean)]
    n_short = int(idata["sample_stats"]["short_chain"].max()) + 1
    columns = [posterior[v].values.reshape(n_short, -1, len(true.mean[v])) for v in true.mean]
    draws = np.concatenate(columns, axis=2)
    mean, sd = (np.concatenate(list(each.values())) for each in (true.mean, true.sd))
    away = (draws - mean) / sd
    off, squares = away.mean(axis=(0, 1)), np.square(away - away.mean(axis=(0, 1)))
    ratio = np.sqrt(squares.mean(axis=(0, 1)))
    error = np.hypot(standard_error(away), 1 / np.sqrt(ess))
    # the variance of a square, in variances squared, is the kurtosis less 1
    of_truth = np.sqrt((np.square(squares).mean(axis=(0, 1)) / ratio**4 - 1) / ess) / 2
    error_of_sd = np.hypot(standard_error(squares) / (2 * ratio), ratio * of_truth)
    worst = np.abs(off).argmax()
    each = az.ess(posterior)
    return {
        "error": np.abs(off[worst]),
        "+-": error[worst],
        "z": np.abs(off / error).max(),
        "sd low": ratio.min(),
        "sd high": ratio.max(),
        "z sd": np.abs((ratio - 1) / error_of_sd).max(),
        "limit": stats.t.isf(RARE / (4 * len(mean)), n_short - 1),
        "ess": min(each[v].values.min() for v in true.mean),
    }


def standard_error(values: np.ndarray) -> np.ndarray:
    """Of means of (short chains, draws, d), whose chains are independent."""
    return values.mean(axis=1).std(axis=0, ddof=1) / np.sqrt(len(values))


def measure(name: str, seed: int) -> dict:
    """One row of the table."""
    model = POSTERIORS[name]()
    row = {
        "posterior": name,
        "seed": seed,
        "N": n_rows(model),
        "d": sum(np.size(value) for value in model.initial_point().values()),
    }
    began = time.process_time()
    try:
        with model:
            idata = sgm.sample(exact=True, random_seed=seed, progressbar=False, quiet=True)
    except Exception as error:
        return row | {"said": f"{type(error).__name__}: {error}"}
    row["CPU"] = time.process_time() - began
    if "exact" not in idata["posterior"].attrs:
        return row | {"before": idata["diagnosis"].attrs["verdict"], "said": "no exact draws"}
    exact = json.loads(idata["posterior"].attrs["exact"])
    row["before"] = idata["minibatch_diagnosis"].attrs["verdict"]
    row["accept"], row["passes"] = exact["acceptance"], idata["posterior"].attrs["data_passes"]
    row["diverged"] = int(idata["sample_stats"]["diverging"].sum())
    said = [idata["diagnosis"].attrs["verdict"], exact["reason"]]
    row["said"] = ", ".join(filter(None, said))
    return row | compared(idata, truth(name), ess_of_truth(name))


def measured(name: str, seeds: int, limit: float) -> list[dict]:
    """Rows of a posterior, in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--seeds", str(seeds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        out, why = done.stdout, done.stderr.strip().splitlines()[-1:] if done.returncode else ""
    except subprocess.TimeoutExpired as ended:
        out, why = (ended.stdout or b"").decode(), f"ended after {limit:g} s"
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if why:
        rows.append({"posterior": name, "seed": len(rows) + 1, "said": str(why)})
    return rows


def write(rows: list[dict], out: Path) -> None:
    """The table, by posterior, and how many rows are right."""
    names = list(POSTERIORS)
    rows.sort(key=lambda row: (names.index(row["posterior"]), row["seed"]))
    known = [row for row in rows if row.get("z") is not None]
    chance = sum(max(row["z"], row["z sd"]) <= row["limit"] for row in known)
    close = sum(
        row["error"] <= 0.1 and row["sd low"] >= 0.9 and row["sd high"] <= 1.1 for row in known
    )
    missing = [name for name in names if name not in {row["posterior"] for row in rows}]
    lines = [
        f"python benchmarks/exact_posteriors.py   ({time.strftime('%Y-%m-%d')})",
        NOTES,
        "",
        f"runs with every mean and sd within what chance explains: {chance} of {len(rows)}",
        f"runs with every mean within 0.1 sd and every sd within 10%: {close} of {len(rows)}",
        *([f"not run: {', '.join(missing)}"] if missing else []),
        "",
        TABLE.titles,
        *map(TABLE.line, rows),
    ]
    out.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=POSTERIORS, help="these posteriors")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for a posterior")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        warnings.simplefilter("ignore")
        for seed in range(1, args.seeds + 1):
            print(json.dumps(measure(args.one, seed), default=float), flush=True)
        return
    rows = TABLE.read(args.out, POSTERIORS)
    for name in args.only or POSTERIORS:
        found = measured(name, args.seeds, args.limit)
        new = {row["seed"] for row in found}
        rows = [r for r in rows if r["posterior"] != name or r["seed"] not in new] + found
        print(*map(TABLE.line, found), sep="\n", flush=True)
        write(rows, args.out)


if __name__ == "__main__":
    main()
