"""The default call against the truth: `sgm.sample(random_seed=seed)` on unchanged models.

    python benchmarks/default_call.py                        # an hour: let nothing else run
    python benchmarks/default_call.py --rivals               # and the other samplers: two hours
    python benchmarks/default_call.py --only pima --seeds 3  # replaces these rows of the table
    python benchmarks/default_call.py --only groups-intercepts groups-rasch --local --seeds 10
    python benchmarks/default_call.py --figure               # writes and draws the table again

Writes benchmarks/results/default_call.txt and .png.

The posteriors are those of posteriordb.py, the logistic regressions of truth.py and the models of
group_posteriors.py, of which only what the groups share is compared; `--local` adds runs with
`integrate=None`. The goal: every posterior mean within 0.1 posterior sd of the truth, every
posterior sd within 10%.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from group_posteriors import COMMON_SCALE
from matplotlib.patches import Rectangle
from posterior_table import PosteriorTable
from posteriordb import n_rows
from rivals import RIVALS
from truth import POSTERIORS, moments, truth

import pymc_sgmcmc as sgm

RESULTS = Path(__file__).parent / "results" / "default_call.txt"
DEFAULT, LOCAL = "default", "integrate=None"
COLUMNS = {
    "posterior": "<40",
    "sampler": "<16",
    "seed": ">4.0f",
    "N": ">5.0f",
    "d": ">4.0f",
    "batch": ">5.0f",
    "error": ">6.3f",
    "sd_min": ">6.3f",
    "sd_max": ">6.3f",
    "scale": ">6.3f",
    "ess": ">6.0f",
    "rhat": ">6.3f",
    "tuning": ">7.0f",
    "kept": ">7.0f",
    "seconds": ">7.0f",
    "sampling": ">8.0f",
    "date": ">10",
    "said": "",
}
TABLE = PosteriorTable(COLUMNS, texts=("posterior", "sampler", "date", "said"))
EXPLAINED = """\
Options choose the rows that are measured anew; each run on one core.

N, d: rows and parameters; batch: rows in a batch, or groups where effects are integrated out. Of
all parameters, or of what groups share: error: largest |mean - true mean| / true sd; sd_min,
sd_max: smallest and largest sd / true sd; scale: (mean - true mean) / true sd of the scale that
groups share; ess: smallest bulk effective sample size; rhat: largest R-hat. tuning, kept: passes
over the data of all chains. seconds: with compilation; sampling: as the sampler says. said: its
own verdict, or why there is no result."""


def default(model, seed: int) -> xr.DataTree:
    """The call that this benchmark is about."""
    with model:
        return sgm.sample(random_seed=seed, progressbar=False)


def local(model, seed: int) -> xr.DataTree:
    """The same with effects that move with their rows."""
    with model:
        return sgm.sample(random_seed=seed, progressbar=False, integrate=None)


SAMPLERS = {DEFAULT: default, LOCAL: local, **RIVALS}


def passes(tree: xr.DataTree) -> tuple[float | None, float | None]:
    """Passes over the data in tuning and afterwards; of NUTS, all gradients are over all rows."""
    attrs = tree["posterior"].attrs
    if "data_passes_warmup" in attrs:
        tuning = attrs["data_passes_warmup"]
        return tuning, attrs["data_passes"] - tuning
    if "sample_stats" in tree and "n_steps" in tree["sample_stats"]:
        groups = ("warmup_sample_stats", "sample_stats")
        tuning, kept = (float(tree[group]["n_steps"].sum()) for group in groups)
        return tuning, kept
    return None, None


def measure(name: str, sampler: str, seed: int) -> dict:
    """One row of the table."""
    model = POSTERIORS[name]()
    row = {
        "posterior": name,
        "sampler": sampler,
        "seed": seed,
        "N": n_rows(model),
        "d": sum(np.size(value) for value in model.initial_point().values()),
        "date": time.strftime("%Y-%m-%d"),
    }
    true = truth(name)
    began = time.perf_counter()
    try:
        tree = SAMPLERS[sampler](model, seed)
    except Exception as error:
        return row | {"said": f"{type(error).__name__}: {error}"}
    row["seconds"] = time.perf_counter() - began
    posterior = tree["posterior"].to_dataset()[list(true.mean)]
    draws = posterior.stack(sample=("chain", "draw"), create_index=False)
    found = moments({v: draws[v].transpose("sample", ...).values for v in true.mean})
    errors = {v: (found.mean[v] - true.mean[v]) / true.sd[v] for v in true.mean}
    ratios = np.concatenate([found.sd[v] / true.sd[v] for v in true.mean])
    ess, rhat = az.ess(posterior), az.rhat(posterior)
    attrs = tree["posterior"].attrs
    chosen = json.loads(attrs.get("adaptation", "{}"))
    tuning, kept = passes(tree)
    return row | {
        "batch": (chosen.get("batch_size") or row["N"]) if chosen else None,
        "error": np.abs(np.concatenate(list(errors.values()))).max(),
        "scale": errors[COMMON_SCALE[name]].item() if name in COMMON_SCALE else None,
        "sd_min": ratios.min(),
        "sd_max": ratios.max(),
        "ess": min(ess[v].values.min() for v in true.mean),
        "rhat": max(rhat[v].values.max() for v in true.mean),
        "tuning": tuning,
        "kept": kept,
        "sampling": attrs.get("sampling_time"),
        "said": tree["diagnosis"].attrs["verdict"] if "diagnosis" in tree else "",
    }


def measured(name: str, sampler: str, seed: int, limit: int) -> dict:
    """`measure` in a process of its own, so that no sampler finds what another has compiled."""
    command = [sys.executable, __file__, "--one", name, sampler, str(seed)]
    row = {
        "posterior": name,
        "sampler": sampler,
        "seed": seed,
        "date": time.strftime("%Y-%m-%d"),
    }
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return row | {"said": f"no result in {limit} s"}
    if done.returncode:
        return row | {"said": f"ended with {done.returncode}: {done.stderr.splitlines()[-1:]}"}
    return json.loads(done.stdout.splitlines()[-1])


def reaches_goal(row: dict) -> bool:
    """Whether every mean and sd is as close to the truth as it should be."""
    return row.get("error") is not None and (
        row["error"] <= 0.1 and row["sd_min"] >= 0.9 and row["sd_max"] <= 1.1
    )


def common_scales(rows: list[dict]) -> Iterator[str]:
    """Lines with the mean error of a common scale, its standard error, the largest, verdicts."""
    for name in COMMON_SCALE:
        for sampler in SAMPLERS:
            own = [r for r in rows if (r["posterior"], r["sampler"]) == (name, sampler)]
            errors = np.array([r["scale"] for r in own if r.get("scale") is not None])
            said_ok = sum(r["said"] == "ok" for r in own)
            if len(errors) > 1:
                yield (
                    f"  {name:18}{sampler:16}{len(errors)} seeds: {errors.mean():.3f} +- "
                    f"{errors.std(ddof=1) / np.sqrt(len(errors)):.3f}, largest "
                    f"{errors[np.abs(errors).argmax()]:.2f}, verdict ok: {said_ok}"
                )


def write(rows: list[dict]) -> None:
    """The table, by posterior, and how often each sampler reaches the goal."""
    names, samplers = list(POSTERIORS), list(SAMPLERS)
    rows.sort(key=lambda r: (names.index(r["posterior"]), samplers.index(r["sampler"]), r["seed"]))
    lines = ["python benchmarks/default_call.py", EXPLAINED, ""]
    lines.append("runs with every mean within 0.1 sd and every sd within 10%:")
    for sampler in samplers:
        reached = [reaches_goal(row) for row in rows if row["sampler"] == sampler]
        if reached:
            lines.append(f"  {sampler:16}{sum(reached)} of {len(reached)}")
    lines += ["", "scale, over the seeds:", *common_scales(rows)]
    lines += ["", TABLE.titles, *map(TABLE.line, rows)]
    RESULTS.write_text("\n".join(lines) + "\n")


def draw(rows: list[dict]) -> None:
    """Error of the means against that of the sds, a dot for each run, and the goal as a box."""
    figure, (whole, close_up) = plt.subplots(1, 2, figsize=(10, 5), layout="constrained")
    for axis in (whole, close_up):
        axis.add_patch(Rectangle((0.9, 1e-4), 0.2, 0.1 - 1e-4, color="tab:green", alpha=0.15, lw=0))
        axis.set(xscale="log", yscale="log", xlabel="sd / true sd, where it is furthest from 1")
    for colour_number, sampler in enumerate(SAMPLERS):
        known = [r for r in rows if r["sampler"] == sampler and r.get("error") is not None]
        worst = [max(r["sd_min"], r["sd_max"], key=lambda x: abs(np.log(x))) for r in known]
        error = [row["error"] for row in known]
        own = sampler == DEFAULT
        colour, size = ("k", 20) if own else (f"C{colour_number}", 14)
        if known:
            for axis in (whole, close_up):
                axis.scatter(
                    worst, error, s=size, color=colour, label=sampler, zorder=3 if own else 2
                )
        beyond = [k for k, row in enumerate(known) if own and not reaches_goal(row)]
        # to the left and right in turn: they are at the same edge of the goal
        for rank, k in enumerate(sorted(beyond, key=lambda k: worst[k])):
            name = known[k]["posterior"].partition("-")[2] or known[k]["posterior"]
            close_up.annotate(
                f"{name}, seed {known[k]['seed']:.0f}",
                (worst[k], error[k]),
                xytext=(5, 0) if rank % 2 else (-5, 0),
                ha="left" if rank % 2 else "right",
                va="center",
                textcoords="offset points",
                fontsize=7,
            )
    for axis, ticks in ((whole, [0.02, 0.1, 0.5, 1, 2]), (close_up, [0.8, 0.9, 1, 1.1, 1.25])):
        axis.set_xlim(0.8 * ticks[0] if axis is whole else ticks[0], ticks[-1])
        axis.set_xticks(ticks, labels=map(str, ticks))
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    whole.set(ylim=(0.005, None), ylabel="largest |mean - true mean| / true sd", title="all runs")
    close_up.set(ylim=(0.005, 0.2), title="close-up; names: default calls beyond the goal")
    whole.legend(frameon=False, fontsize=8, loc="lower left")
    figure.suptitle("Posteriors with known means and sds (green: the goal)")
    figure.savefig(RESULTS.with_suffix(".png"), dpi=110)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=POSTERIORS, help="these posteriors")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each")
    parser.add_argument("--local", action="store_true", help="with integrate=None, too")
    parser.add_argument("--rivals", action="store_true", help="the other samplers, too")
    parser.add_argument("--limit", type=int, default=1800, help="seconds for a run")
    parser.add_argument("--figure", action="store_true", help="only write and draw the table again")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        warnings.simplefilter("ignore")
        name, sampler, seed = args.one
        print(json.dumps(measure(name, sampler, int(seed)), default=float))
        return
    samplers = [DEFAULT, *([LOCAL] if args.local else []), *(RIVALS if args.rivals else [])]
    rows = TABLE.read(RESULTS, POSTERIORS)
    if not args.figure:
        print(TABLE.titles)
        for name in args.only or POSTERIORS:
            for sampler in samplers:
                for seed in range(1, args.seeds + 1):
                    row = measured(name, sampler, seed, args.limit)
                    key = (name, sampler, seed)
                    rows = [r for r in rows if (r["posterior"], r["sampler"], r["seed"]) != key]
                    rows.append(row)
                    print(TABLE.line(row), flush=True)
                    write(rows)
    write(rows)
    draw(rows)


if __name__ == "__main__":
    main()
