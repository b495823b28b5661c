"""Does a run on numba survive Ctrl-C, with all its draws?

    python benchmarks/interrupts.py             # about five minutes
    python benchmarks/interrupts.py --times 10

Writes benchmarks/results/interrupts.txt.

Processes that sample get SIGINT at random moments: `sgm.sample` and `pm.sample`, in one process and
in two. Whatever comes back is compared with the draws of a run that nobody stopped: each chain must
be its beginning. Then two workers are stopped in draws of 10^7 updates, and the seconds until they
have ended are counted.
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
from tests import interrupts

RESULTS = Path(__file__).parent / "results" / "interrupts.txt"
CASES = [("sgm", 1), ("pm", 1), ("sgm", 2), ("pm", 2)]
DRAWS = 10**6


def compared(said: dict, expected: np.ndarray) -> str:
    """What became of an interrupted run."""
    if "error" in said:
        return said["error"].partition(":")[0]
    n = said["draws"].shape[1]
    begins_alike = all(
        np.array_equal(draws[: len(expected[chain])], expected[chain][:n])
        for chain, draws in zip(said["chains"], said["draws"], strict=True)
    )
    return "all draws so far" if n and begins_alike else "other draws"


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
    slow = interrupts.small_step(model, thin=10**7)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        for sampler, cores in CASES:
            undisturbed = interrupts.run(model, step, sampler, cores, draws=2000)
            expected = undisturbed.posterior["w"].values

            def work(sampler=sampler, cores=cores):
                return interrupts.run(model, step, sampler, cores, DRAWS)

            said = [
                interrupts.interrupted(step, work, report, after)
                for after in rng.uniform(0.05, 0.8, size=args.times)
            ]
            counts = Counter(compared(one, expected) for one in said)
            seconds = [one["seconds"] for one in said]
            shown = ", ".join(f"{n} {what}" for what, n in counts.most_common())
            write(
                f"{sampler}.sample, cores={cores}: {shown}; "
                f"{np.median(seconds):.2f} s (longest {max(seconds):.2f})"
            )

        def long_draws():
            return interrupts.run(model, slow, "sgm", 2, draws=100)

        said = [
            interrupts.interrupted(slow, long_draws, report, after)
            for after in rng.uniform(0.5, 1.5, size=max(args.times // 5, 1))
        ]
        seconds = [one["seconds"] for one in said]
        write(
            f"sgm.sample, cores=2, thin=10^7, {len(said)} times: {np.median(seconds):.2f} s "
            f"(longest {max(seconds):.2f})"
        )


if __name__ == "__main__":
    main()
