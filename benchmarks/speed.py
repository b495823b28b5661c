"""Speed against hand-written and rival loops: the same work, side by side, medians.

    python benchmarks/speed.py            # about half an hour, on an otherwise idle machine
    python benchmarks/speed.py --quick    # one round, logistic regression only, nothing written
    python benchmarks/speed.py --only cnn # one model of loops.py in float32, without the rest
    python benchmarks/speed.py --posteriors PYTHON

Writes benchmarks/results/speed.txt, or speed_<model>.txt. A convolutional network is left out on
numba, which takes minutes to compile it, and has a second hand-written program, without a scan,
within which XLA's convolutions are slow on CPUs. BlackJAX is left out where it is not installed;
posteriors runs in a separate environment with PyTorch: PYTHON is that environment's interpreter.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from loops import MODELS

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CONTENDERS = ["hand-jax", "blackjax", "pymc_sgmcmc-numba", "pymc_sgmcmc-jax"]
if importlib.util.find_spec("blackjax") is None:
    CONTENDERS.remove("blackjax")


def measure(model, who, dtype, *options, env=None):
    """One contender in a separate process; posteriors is named by its interpreter."""
    if Path(who).is_file():
        command = [who, "-W", "ignore", str(HERE / "loop_posteriors.py"), model, dtype]
    else:
        command = [sys.executable, str(HERE / "loops.py"), model, who, dtype, *map(str, options)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def contest(model, dtype, rounds):
    """Median microseconds per update of each contender over interleaved rounds."""
    contenders = CONTENDERS
    if model == "cnn":
        contenders = ["hand-jax-calls", *(who for who in CONTENDERS if who != "pymc_sgmcmc-numba")]
    times = {who: [] for who in contenders}
    for _ in range(rounds):
        for who in contenders:
            times[who].append(measure(model, who, dtype)["us_per_update"])
    return {who: median(values) for who, values in times.items()}


def write_contest(write, model, dtype, rounds):
    result = contest(model, dtype, rounds)
    write(f"\n{model}, {dtype}: us per update, and updates per second relative to hand-jax")
    for who, us in result.items():
        name = "posteriors" if Path(who).is_file() else who
        write(f"  {name:<20}{us:>12.2f}{result['hand-jax'] / us:>9.2f}x")


def write_rows(write, rounds):
    write(
        "\nblr of 20 columns, float32: us per update against the number of rows (means of calls: a"
    )
    write(
        "new epoch's shuffle is in them); rows-alone: row numbers, and a copy of each batch's rows"
    )
    contenders = ("hand-jax", "pymc_sgmcmc-jax", "pymc_sgmcmc-numba", "rows-alone")
    write(f"  {'rows':>12}" + "".join(f"{who:>20}" for who in contenders))
    for rows in (10_000, 100_000, 1_000_000, 10_000_000):
        options = ("float32", "--rows", rows, "--columns", 20, "--seconds", 6)
        times = [[measure("blr", who, *options) for who in contenders] for _ in range(rounds)]
        us = [median(t["mean_us"] for t in of) for of in zip(*times, strict=True)]
        write(f"  {rows:>12,}" + "".join(f"{u:>20.2f}" for u in us))


def write_compilation(write, models):
    write("\nseconds until the first draws: empty cache, then a new process with the cache")
    for model in models:
        for backend in ("numba", "jax"):
            with tempfile.TemporaryDirectory() as cache:
                flags = os.environ.get("PYTENSOR_FLAGS", "")
                env = os.environ | {"PYTENSOR_FLAGS": f"{flags},base_compiledir={cache}".strip(",")}
                first, second = (
                    measure(model, f"pymc_sgmcmc-{backend}", "float32", "--seconds", 0, env=env)
                    for _ in range(2)
                )
            write(
                f"  {model:<6}{backend:<8}{first['first_call_s']:>8.1f}"
                f"{second['first_call_s']:>8.1f}"
            )


def write_pymc_overhead(write, dtype, rounds):
    """pm.sample against the bare compiled loop, thin=50, one process, no bar."""
    result = subprocess.run(
        [sys.executable, str(HERE / "overhead.py"), dtype, str(rounds)],
        capture_output=True,
        text=True,
        check=True,
    )
    write("\n" + result.stdout.strip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=MODELS, help="one model's contest")
    parser.add_argument("--posteriors", metavar="PYTHON", help="interpreter that has posteriors")
    args = parser.parse_args()
    rounds = 1 if args.quick else args.rounds
    if args.posteriors:
        CONTENDERS.append(args.posteriors)
    lines, name = [], f"speed_{args.only}.txt" if args.only else "speed.txt"

    def write(line):
        """Print, and keep what is known so far in the results file."""
        print(line, flush=True)
        lines.append(line)
        if not args.quick:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / name).write_text("\n".join(lines) + "\n")

    def packages():
        for name in ("pymc", "pytensor", "numba", "jax", "blackjax"):
            try:
                yield f"{name} {version(name)}"
            except PackageNotFoundError:
                yield f"{name} missing"

    options = f" --only {args.only}" if args.only else ""
    options += " --posteriors PYTHON" if args.posteriors else ""
    write(f"python benchmarks/speed.py --rounds {rounds}{options}   ({time.strftime('%Y-%m-%d')})")
    write(f"{platform.machine()}, {os.cpu_count()} cores; " + ", ".join(packages()))
    write(f"median of {rounds} interleaved rounds, each the median of repeated calls; pymc_sgmcmc")
    write("draws rows in shuffled epochs, the others independently")
    if args.only:
        write_contest(write, args.only, "float32", rounds)
        return
    for dtype in ("float32", "float64"):
        write_pymc_overhead(write, dtype, rounds)
    for dtype in ("float32", "float64"):
        write_contest(write, "blr", dtype, rounds)
    write_rows(write, rounds)
    write_compilation(write, ["blr"] if args.quick else ["blr", "mlp"])
    if not args.quick:
        for dtype in ("float32", "float64"):
            write_contest(write, "mlp", dtype, rounds)


if __name__ == "__main__":
    main()
