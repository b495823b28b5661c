"""Where minibatches win: errors, CPU seconds and passes of `sgm.sample` and of what else there is.

    python benchmarks/crossover.py                     # an hour and a half of CPU time
    python benchmarks/crossover.py --cases 20x10000 --methods nutpie ADVI   # replaces these rows
    python benchmarks/crossover.py --figure            # draws the table again

Writes benchmarks/results/crossover.txt and .png. The cases are logistic regressions with 8 and 20
correlated columns (regressions.py) and a9a (124 parameters; its truth is a long run of NUTS). The
rivals are those of rivals.py and hmcecs.py, each with its defaults; they need nutpie, numpyro and
pymc-extras. Each method is a process of its own on one core, with empty caches of compiled code,
and each call in it is made twice: the second is without compilation. What exceeds its limit is not
tried with more rows. GPBoost is left out: it is for effects of groups, and there are none here.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import regressions
import rivals
import xarray as xr
from hmcecs import hmcecs
from limited_calls import lines_of, timed
from posterior_table import PosteriorTable
from pymc.model import Model
from truth import POSTERIORS, Moments, errors, moments_of, truth

import pymc_sgmcmc as sgm
from pymc_sgmcmc.exact.certificate_weights import effective_number

RESULTS = Path(__file__).parent / "results" / "crossover.txt"
CASES = (
    *("8x10000", "8x100000", "8x1000000"),
    *("20x1000", "20x10000", "20x100000", "20x1000000", "a9a"),
)
"""Columns and rows."""
CERTIFICATE = "certificate"
METHODS: dict[str, Callable[[Model, int], xr.DataTree]] = {
    "sgm.sample": lambda model, seed: sampled(model, seed),
    "ess=4000": lambda model, seed: sampled(model, seed, ess=4000),
    "exact=True": lambda model, seed: sampled(model, seed, exact=True),
    "exact,ess=4000": lambda model, seed: sampled(model, seed, exact=True, ess=4000),
    "nutpie": rivals.nutpie_nuts,
    "NumPyro-NUTS": rivals.numpyro_nuts,
    "HMCECS": hmcecs,
    "Pathfinder+PSIS": rivals.pathfinder_psis,
    "Laplace+PSIS": rivals.laplace_psis,
    "ADVI": rivals.advi,
}
OURS = ("sgm.sample", CERTIFICATE, "ess=4000", "exact=True", "exact,ess=4000")
ROWS_OF_TABLE = (*OURS, *[method for method in METHODS if method not in OURS])
INDEPENDENT = ("Pathfinder+PSIS", "ADVI")
"""Draws of an approximation: their effective sample size says nothing about errors."""
COLUMNS = {
    "case": "<11",
    "method": "<16",
    "first": ">6.1f",
    "CPU": ">6.1f",
    "passes": ">9.5g",
    "error": ">8.3f",
    "sd low": ">7.3f",
    "sd high": ">8.3f",
    "ess": ">6.0f",
    "ess/s": ">7.1f",
    "k-hat": ">6.2f",
    "said": "",
}
TABLE = PosteriorTable(COLUMNS, texts=("case", "method", "said"))
NOTES = """\
case: columns x rows, or a9a (124 parameters, 32561 rows). Each method on one core of two that
other work shared: CPU seconds, which that lengthens too. first: of the first call in a process,
with compilation and empty caches; CPU: of the second. passes: row gradients / N, of all chains (of
NumPyro without warm-up; densities of weighted points are not counted). error: largest |mean - true
mean| / true sd; sd low, sd high: smallest and largest sd / true sd. ess: smallest bulk effective
sample size, or that of the weights; ess/s: by CPU second of the second call. k-hat: shape of the
tail of importance weights, good below 0.7; of sgm.sample that of its certificate's.
sgm.sample: by default it ends at an effective sample size of 400; ess=4000: the same with 4000;
certificate: means and sds that it has corrected, in the same call as sgm.sample; exact=True,
exact,ess=4000: sgm.sample(exact=True). Laplace+PSIS: 1000 points of the normal approximation at the
mode, which is found by a quasi-Newton method, its Hessian by differences of gradients;
Pathfinder+PSIS: of pymc-extras, 1000 of 4000 points. HMCECS: of NumPyro, batches of 200 rows with
Taylor expansions about the mode; its model is written by hand. All else as by default, 4 chains. A
call is ended after {limit:g} CPU seconds; a method that was is not tried with more rows."""


def sampled(model: Model, seed: int, **options) -> xr.DataTree:
    """`sgm.sample` with its defaults."""
    with model:
        return sgm.sample(random_seed=seed, progressbar=False, quiet=True, **options)


def build_model(case: str) -> Model:
    """The model of a case."""
    if case == "a9a":
        return POSTERIORS[case]()
    columns, n_rows = size_of(case)
    return regressions.build_model(n_rows, columns)


def size_of(case: str) -> tuple[int, int]:
    """Columns and rows."""
    columns, _, n_rows = case.partition("x")
    return int(columns), int(n_rows)


def true_moments(case: str) -> Moments:
    """Means and sds of its posterior."""
    if case == "a9a":
        return truth(case)
    columns, n_rows = size_of(case)
    return regressions.true_moments(n_rows, columns)


def rows_of(method: str, tree: xr.DataTree, true: Moments) -> Iterator[dict]:
    """Rows of the table from a result: errors, effective sample sizes and what is known of it."""
    posterior = tree["posterior"].to_dataset()[list(true.mean)]
    weights = tree["weights"]["log_weight"].values if "weights" in tree else None
    attrs = tree["posterior"].attrs
    row = {"method": method, "passes": attrs.get("data_passes"), "k-hat": attrs.get("k_hat")}
    row |= errors(moments_of(posterior, weights), true)
    if weights is not None:
        row["ess"] = effective_number(weights.ravel())
    elif method not in INDEPENDENT:
        each = az.ess(posterior)
        row["ess"] = min(each[v].values.min() for v in true.mean)
    yield row
    if method == "sgm.sample" and CERTIFICATE in tree:
        yield {"method": CERTIFICATE, "k-hat": attrs["k_hat"]} | certified(tree, true)


def certified(tree: xr.DataTree, true: Moments) -> dict:
    """The certificate's corrected moments against the truth."""
    table = sgm.certificate(tree)
    found = Moments({}, {})
    for v in true.mean:
        own = table[[name.partition("[")[0] == v for name in table.index]]
        found.mean[v] = own["corrected_mean"].to_numpy()
        found.sd[v] = own["corrected_sd"].to_numpy()
    return errors(found, true) | {"ess": table.attrs["effective_points"]}


def measure(case: str, method: str, true: Moments, limit: float) -> None:
    """Both calls; a JSON line for each row, which the second call's replace."""
    first = None
    for _ in range(2):
        model = build_model(case)  # ADVI changes it
        tree, seconds = timed(partial(METHODS[method], model, 1), limit)
        for row in rows_of(method, tree, true):
            row["first"] = first or seconds
            if first:
                row["CPU"] = seconds
                row["ess/s"] = row["ess"] / seconds if "ess" in row else None
            print(json.dumps({"case": case} | row, default=float), flush=True)
        first = seconds


def measured(case: str, method: str, true: Moments, limit: float) -> list[dict]:
    """Rows of a method, from a process of its own on one core, with caches of its own."""
    moments = [{v: x.tolist() for v, x in each.items()} for each in true]
    found, why = lines_of(__file__, [case, method, moments, limit], limit)
    rows = {row["method"]: row for row in found}
    if why:
        row = rows.setdefault(method, {"case": case, "method": method})
        row["said"] = f"second call {why}" if "first" in row else why
    return list(rows.values())


def order(row: dict) -> tuple[int, int]:
    """Place in the table."""
    return CASES.index(row["case"]), ROWS_OF_TABLE.index(row["method"])


def replace(new: list[dict], out: Path, limit: float) -> list[dict]:
    """Put rows into the table's file."""
    keys = {(row["case"], row["method"]) for row in new}
    rows = [r for r in TABLE.read(out, CASES) if (r["case"], r["method"]) not in keys] + new
    head = f"python benchmarks/crossover.py   ({time.strftime('%Y-%m-%d')}, pymc {pm.__version__})"
    rows.sort(key=order)
    lines = [head, NOTES.format(limit=limit), "", TABLE.titles, *map(TABLE.line, rows)]
    lines += ["", *not_run(rows)]
    out.write_text("\n".join(lines).rstrip() + "\n")
    return rows


def not_run(rows: list[dict]) -> Iterator[str]:
    """What is missing, a line for each case."""
    known = {(row["case"], row["method"]) for row in rows}
    for case in CASES:
        missing = [method for method in ROWS_OF_TABLE if (case, method) not in known]
        if missing:
            yield f"not run with {case}: {', '.join(missing)}"


def ended_with_fewer(case: str, method: str, rows: list[dict]) -> bool:
    """Whether the method was ended with as many columns and fewer rows."""
    if case == "a9a":
        return False
    columns, n_rows = size_of(case)
    return any(
        row["method"] == method
        and row["case"] != "a9a"
        and size_of(row["case"])[0] == columns
        and size_of(row["case"])[1] < n_rows
        and "ended" in (row.get("said") or "")
        for row in rows
    )


def draw(rows: list[dict], limit: float, figure_file: Path) -> None:
    """Worst error against CPU seconds, a panel for each case."""
    figure, axes = plt.subplots(
        2, 4, figsize=(13, 6.4), sharex=True, sharey=True, layout="constrained"
    )
    panels = ("8x10000", "8x100000", "8x1000000", "a9a", *CASES[3:7])
    for axis, case in zip(axes.flat, panels, strict=True):
        own = {row["method"]: row for row in rows if row["case"] == case}
        seconds = {CERTIFICATE: own.get("sgm.sample", {}).get("CPU")}
        missing = []
        for k, method in enumerate(ROWS_OF_TABLE):
            row = own.get(method, {})
            x = row.get("CPU") or seconds.get(method)
            if x is None or row.get("error") is None:
                if "ended" in (row.get("said") or ""):
                    missing.append(method)
                continue
            y = max(row["error"], abs(row["sd low"] - 1), abs(row["sd high"] - 1))
            own_marker = "o" if method in OURS else "^"
            axis.plot(x, y, own_marker, color=plt.cm.tab20(2 * (k % 10) + k // 10), label=method)
        axis.axhline(0.1, color="k", lw=0.5, ls=":")
        axis.set(xscale="log", yscale="log", title=title_of(case))
        if missing:
            text = f"no result in {limit:g} s:\n" + "\n".join(missing)
            axis.text(0.98, 0.97, text, transform=axis.transAxes, ha="right", va="top", fontsize=7)
        axis.set_xlim(0.3, 300)
        axis.set_xticks([1, 10, 100], labels=["1", "10", "100"])
        axis.minorticks_off()
    for axis in axes[1]:
        axis.set_xlabel("CPU seconds, compiled")
    for axis in axes[:, 0]:
        axis.set_ylabel("largest error of a mean (sd)\nor relative of a sd")
    known = {}
    for axis in axes.flat:
        handles, labels = axis.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    labels = [method for method in ROWS_OF_TABLE if method in known]
    figure.legend(
        [known[label] for label in labels],
        labels,
        loc="outside lower center",
        ncols=len(labels),
        frameon=False,
        fontsize=8,
    )
    figure.savefig(figure_file, dpi=110)
    plt.close(figure)


def title_of(case: str) -> str:
    """Of a panel."""
    if case == "a9a":
        return "a9a: 124 parameters, 32,561 rows"
    columns, n_rows = size_of(case)
    return f"{columns} columns, {n_rows:,} rows"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--limit", type=float, default=200, help="CPU seconds for a call")
    parser.add_argument("--figure", action="store_true", help="only draw the table again")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        warnings.simplefilter("ignore")
        case, method, moments, limit = json.load(sys.stdin)
        true = Moments(*({v: np.array(x) for v, x in each.items()} for each in moments))
        measure(case, method, true, limit)
        return
    rows = TABLE.read(args.out, CASES)
    if not args.figure:
        for case in args.cases:
            true = true_moments(case)
            for method in args.methods:
                if ended_with_fewer(case, method, rows):
                    found = [{"case": case, "method": method, "said": "ended with fewer rows"}]
                else:
                    found = measured(case, method, true, args.limit)
                print(*map(TABLE.line, found), sep="\n", flush=True)
                rows = replace(found, args.out, args.limit)
    draw(rows, args.limit, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
