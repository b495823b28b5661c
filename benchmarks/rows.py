"""Reading the rows of batches: what prefetching them, and a thread that fetches them, are worth.

    python benchmarks/rows.py            # some ten minutes: let nothing else run
    python benchmarks/rows.py --tiny     # whether it works; nothing written

Logistic regression of 20 columns in float32, batches of 50 rows: microseconds per update on numba
against the number of rows, with and without `backends/software_prefetch.py` and
`batches/prefetched.py`, whatever the kernel would choose. Each measurement is a process of its own;
medians over interleaved rounds of means over calls, so that the shuffle of a new epoch is in them.
Writes benchmarks/results/rows.txt.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from statistics import median

from loops import MODELS, microseconds_per_update, ours

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "rows.txt"
ROWS = (10_000, 1_000_000, 10_000_000)
VARIANTS = {
    "neither": (False, False),
    "software_prefetch": (True, False),
    "thread": (False, True),
    "both": (True, True),
}


def measure(n_rows: int, prefetches: bool, in_thread: bool, seconds: float) -> float:
    """Mean microseconds per update of one variant, in this process."""
    from pymc_sgmcmc import kernel
    from pymc_sgmcmc.backends.software_prefetch import SoftwarePrefetch

    kernel.prefetching_pays = lambda tables: in_thread
    kernel.CACHED = 0
    compiled = kernel.Kernel.compile
    kernel.Kernel.compile = lambda self, state, by_number: compiled(self, state, prefetches)
    settings = MODELS["blr"] | {"n_rows": n_rows, "columns": 20}
    loops = spied(kernel)
    run, _ = ours("blr", "NUMBA", "float32", settings)
    assert any(isinstance(node.op, SoftwarePrefetch) for node in nodes(loops[0])) == prefetches
    return microseconds_per_update(run, settings["updates"], seconds)[1]


def spied(kernel) -> list:
    """The compiled loops that are made from now on."""
    made = []

    class Spied(kernel.Loop):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    kernel.Loop = Spied
    return made


def nodes(loop) -> list:
    """What the scan of a compiled loop computes with."""
    from pytensor.scan.op import Scan

    [scan] = [n.op for n in loop.function.maker.fgraph.toposort() if isinstance(n.op, Scan)]
    return scan.fgraph.toposort()


def measured(*arguments) -> float:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(measure(*args.one))
        return
    all_rows, rounds, seconds = (ROWS, args.rounds, 6.0)
    if args.tiny:
        all_rows, rounds, seconds = (1_000,), 1, 0.1
    us = {case: [] for case in product(all_rows, VARIANTS)}
    for _ in range(rounds):
        for n_rows, name in us:
            us[n_rows, name].append(measured(n_rows, *VARIANTS[name], seconds))
    lines = [
        f"python benchmarks/rows.py --rounds {rounds}   ({time.strftime('%Y-%m-%d')})",
        f"{platform.machine()}, {os.cpu_count()} cores; median us per update over {rounds} rounds,",
        "in brackets the lowest and the highest",
        f"  {'rows':>12}" + "".join(f"{name:>26}" for name in VARIANTS),
    ]
    for n_rows in all_rows:
        cells = (us[n_rows, name] for name in VARIANTS)
        shown = (f"{median(c):.2f} ({min(c):.2f} to {max(c):.2f})" for c in cells)
        lines.append(f"  {n_rows:>12,}" + "".join(f"{cell:>26}" for cell in shown))
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if not args.tiny:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
