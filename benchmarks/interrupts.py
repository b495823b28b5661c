"""Does a run on numba survive Ctrl-C, with all its draws?

    python benchmarks/interrupts.py             # about five minutes
    python benchmarks/interrupts.py --times 10

Writes benchmarks/results/interrupts.txt.

Processes that sample get SIGINT at random moments after their tenth draw: `sgm.sample` and
`pm.sample`, in one process and in two, all of which get the signal, as from a terminal. The result
is compared with the draws of a run that nobody stopped: each chain must be its beginning. And it is
compared with the draws that were made: `sgm.sample` must return all of them, and PyMC all but those
on their way between its processes, at most four of a chain. In the last case the workers are
stopped in an eleventh draw, of 10^7 updates.
"""

import argparse
import platform
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from pymc_sgmcmc.run.result import longest_cut
from tests import interrupts

RESULTS = Path(__file__).parent / "results" / "interrupts.txt"
ON_THE_WAY = {"sgm": 0, "pm": 4}
"""Draws of a chain that are made, but not yet recorded."""
CASES = [
    ("sgm", 1, False),
    ("pm", 1, False),
    ("sgm", 2, False),
    ("pm", 2, False),
    ("sgm", 2, True),
]
"""Sampler, cores, and whether draws are long after the first ten."""


def compared(said: dict, expected: np.ndarray, on_the_way: int) -> str:
    """What became of an interrupted run."""
    if "error" in said:
        return said["error"].partition(":")[0]
    chains, longest = longest_cut(said["made"])
    n_chains, n = said["draws"].shape[:2]
    if not 0 <= len(chains) * longest - n_chains * n <= on_the_way:
        return "fewer draws than were made"
    begin_alike = all(
        any(np.array_equal(draws[: len(chain)], chain[:n]) for chain in expected)
        for draws in said["draws"]  # PyMC numbers the chains that it keeps anew
    )
    return "all draws so far" if begin_alike else "other draws"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=50, help="interrupts of each kind")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    lines = [
        f"python benchmarks/interrupts.py --times {args.times}   ({time.strftime('%Y-%m-%d')})",
        f"{platform.machine()}, {platform.system()}; numba {version('numba')}, "
        f"pymc {version('pymc')}",
        "",
        "what came back after Ctrl-C, by its number; seconds from the signal to the process's end",
    ]

    def write(line):
        print(line, flush=True)
        lines.append(line)
        args.output.write_text("\n".join(lines) + "\n")

    rng = np.random.default_rng(0)
    model = interrupts.small_model()
    step = interrupts.small_step(model)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        for sampler, cores, long_draws in CASES:

            def run(draws, sampler=sampler, cores=cores):
                return interrupts.run(model, step, sampler, cores, draws)

            expected = run(2000).posterior["w"].values
            said = [
                interrupts.interrupted(step, lambda: run(10**6), report, after, long_draws)
                for after in rng.uniform(0.05, 0.8, size=args.times)
            ]
            counts = Counter(compared(one, expected, ON_THE_WAY[sampler] * cores) for one in said)
            seconds = [one["seconds"] for one in said]
            shown = ", ".join(f"{n} {what}" for what, n in counts.most_common())
            write(
                f"{sampler}.sample, cores={cores}{', long draws' * long_draws}: {shown}; "
                f"{np.median(seconds):.2f} s (longest {max(seconds):.2f})"
            )


if __name__ == "__main__":
    main()
