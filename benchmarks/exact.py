"""`sgm.sample(exact=True)` and the certificate: seconds, passes and errors beside the default call.

    python benchmarks/exact.py                            # half an hour
    python benchmarks/exact.py --only a9a 100000          # replaces these rows of the table
    python benchmarks/exact.py --nutpie 200               # and nutpie's NUTS, in so many seconds
    python benchmarks/exact.py --backend JAX --only 100000 1000000 --out FILE   # on a GPU

Writes benchmarks/results/exact.txt. The rows of numbers are logistic regressions with 20 correlated
columns (regressions.py); a9a and groups-intercepts, 2000 groups of 1 to 39 rows, are those of
truth.py.
Each case is a process of its own, and each call in it is made twice: the second is without
compilation.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import arviz as az
import regressions
from rivals import nutpie_nuts
from truth import POSTERIORS, Moments, errors, moments_of, truth

import pymc_sgmcmc as sgm
from pymc_sgmcmc.diagnosis import diagnose

RESULTS = Path(__file__).parent / "results" / "exact.txt"
CASES = ("10000", "100000", "1000000", "a9a", "groups-intercepts")
LAYOUT = "{:<18}{:<8}{:<10}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>7}{:>8}{:>8}{:>7}{:>6}{:>12}{:>8}"
TITLES = (
    *("case", "backend", "call", "first", "seconds", "CPU", "passes", "accept", "ess"),
    *("error", "sd low", "sd high", "cert", "k-hat", "evidence", "+-"),
)
NOTES = """\
first: seconds of the first call, with compilation; seconds, CPU: of the second. passes: row
gradients / N, of all chains. accept: acceptance. ess: smallest bulk effective sample size. error:
largest |mean - true mean| / true sd; sd low, sd high: smallest and largest sd / true sd. cert: CPU
seconds of the certificate, a part of CPU; k-hat, evidence: of the certificate; evidence is the log
marginal likelihood, with its standard error."""


def build_model(case: str):
    """The model of a case."""
    return regressions.build_model(int(case)) if case.isdigit() else POSTERIORS[case]()


def true_moments(case: str) -> Moments:
    """Means and sds of its posterior."""
    return regressions.true_moments(int(case)) if case.isdigit() else truth(case)


def timed(call) -> tuple[object, float, float]:
    """Result, seconds and CPU seconds."""
    began, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, time.perf_counter() - began, time.process_time() - cpu


def timed_certificates() -> list[float]:
    """A list to which each certificate that `sample` makes adds its CPU seconds."""
    seconds, made = [], diagnose.with_certificate

    def with_certificate(*args, **kwargs):
        measured, _, cpu = timed(lambda: made(*args, **kwargs))
        seconds.append(cpu)
        return measured

    diagnose.with_certificate = with_certificate
    return seconds


def judged(tree, true: Moments) -> dict:
    """Errors and effective sample size of draws."""
    posterior = tree["posterior"].to_dataset()[list(true.mean)]
    ess = az.ess(posterior)
    return errors(moments_of(posterior), true) | {
        "ess": min(ess[v].values.min() for v in true.mean)
    }


def measure(case: str, backend: str, nutpie: bool) -> list[dict]:
    """The rows of a case."""
    model, true, rows = build_model(case), true_moments(case), []
    compile_kwargs = None if backend == "NUMBA" else {"mode": backend}

    def sample(**kwargs):
        with model:
            return sgm.sample(
                random_seed=1, progressbar=False, compile_kwargs=compile_kwargs, **kwargs
            )

    if nutpie:
        tree, seconds, cpu = timed(lambda: nutpie_nuts(model, 1))
        passes = tree["posterior"].attrs["data_passes"]
        found = {"call": "nutpie", "backend": "", "first": seconds, "CPU": cpu, "passes": passes}
        return [found | judged(tree, true)]
    certificates = timed_certificates()
    for call, kwargs in (("default", {}), ("exact", {"exact": True})):
        _, first, _ = timed(lambda kwargs=kwargs: sample(**kwargs))
        certificates.clear()
        tree, seconds, cpu = timed(lambda kwargs=kwargs: sample(**kwargs))
        attrs = tree["posterior"].attrs
        row = {"call": call, "backend": backend, "first": first, "seconds": seconds, "CPU": cpu}
        row["passes"] = attrs["data_passes"]
        if call == "exact":
            row["accept"] = json.loads(attrs["exact"])["acceptance"]
        row |= judged(tree, true)
        if call == "default":
            if "certificate" not in tree:  # many data
                _, more, _ = timed(lambda tree=tree: sgm.certificate(tree, model))
                row["note"] = f"certificate on request, compiled: {more:.1f} s more"
            group = tree["certificate"].attrs if "certificate" in tree else {}
            if group:
                row["k-hat"], row["evidence"] = group["k_hat"], group["log_marginal_likelihood"]
                row["+-"] = group["log_marginal_likelihood_error"]
                row["cert"] = certificates[0] if certificates else None
        rows.append(row)
    return rows


def shown(case: str, row: dict) -> str:
    """A line of the table."""
    decimals = {"first": 1, "seconds": 1, "CPU": 1, "passes": 0, "ess": 0, "accept": 2}
    decimals |= {
        "error": 3,
        "sd low": 3,
        "sd high": 3,
        "cert": 2,
        "k-hat": 2,
        "evidence": 2,
        "+-": 4,
    }
    cells = [case, row["backend"], row["call"]]
    for title in TITLES[3:]:
        value = row.get(title)
        cells.append("" if value is None else f"{value:.{decimals[title]}f}")
    line = LAYOUT.format(*cells).rstrip()
    return f"{line}  ({row['note']})" if "note" in row else line


def main():
    """Measure the cases, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--backend", choices=["NUMBA", "JAX"], default="NUMBA")
    parser.add_argument("--nutpie", type=float, default=0, help="seconds that it may take")
    parser.add_argument("--limit", type=float, default=1800, help="seconds of a case")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        case, sampler = args.one.split(":")
        for row in measure(case, args.backend, sampler == "nutpie"):
            print("row", shown(case, row), flush=True)
        return
    kept = {}
    if args.out.exists():
        lines = args.out.read_text().splitlines()
        kept = {tuple(line[:36].split()[:3]): line for line in lines if line.split(" ")[0] in CASES}
    for case in args.only:
        for sampler, limit in (("sgm", args.limit), ("nutpie", args.nutpie)):
            if not limit:
                continue
            command = [sys.executable, __file__, "--one", f"{case}:{sampler}"]
            command += ["--backend", args.backend]
            try:
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit)
                lines = [line[4:] for line in done.stdout.splitlines() if line.startswith("row ")]
                if done.returncode:
                    lines.append(LAYOUT.format(case, "", sampler, *[""] * 12).rstrip() + "  failed")
            except subprocess.TimeoutExpired as ended:
                out = (ended.stdout or b"").decode()
                lines = [line[4:] for line in out.splitlines() if line.startswith("row ")]
                start = LAYOUT.format(case, "", sampler, *[""] * 12).rstrip()
                lines.append(f"{start}  ended after {limit:g} s")
            for line in lines:
                print(line, flush=True)
                kept[tuple(line[:36].split()[:3])] = line
            order = sorted(kept.values(), key=lambda line: CASES.index(line.split(" ")[0]))
            head = f"python benchmarks/exact.py   ({time.strftime('%Y-%m-%d')}, two shared cores)"
            table = [head, NOTES, "", LAYOUT.format(*TITLES).rstrip(), *order]
            args.out.write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
