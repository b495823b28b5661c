"""Everything that needs a GPU, measured by one command in at most nine minutes.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --out FILE --budget 300    # seconds
    python benchmarks/gpu.py --tiny    # a quick trial, on CPUs too: small models, one case per kind
    python benchmarks/gpu.py --out FILE --only device whole "unroll: logistic"    # these cases

README.md beside this says how to bring what it needs to a machine without a network. Cases run in
the order of their importance, in processes of their own where they need other flags of XLA; the
table is written again after each, and names every case that was not measured, with the reason.
Without --out it becomes benchmarks/results/gpu.txt, if JAX runs on a GPU. No data are needed.
"""

import argparse
import json
import os
import platform
import queue
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "gpu.txt"
BUDGET = 520.0
LONGEST = 150.0
"""Seconds for all cases, and for one, compilation included."""
WHILE = "--xla_gpu_enable_command_buffer=+WHILE"
OFF = "--xla_gpu_enable_command_buffer="
NAMES = {
    "mlp": "mlp 784-400-400-10",
    "mlp-1200": "mlp 784-1200-1200-10",
    "blr": "logistic regression, 123 columns",
}
SECTIONS = {
    "device": "The device: copies counted as read and written, matrix products of 8192 x 8192",
    "speed": "Compiled calls: MSGNHT_S, 1000 updates per call (mlp 50, belief network 10)",
    "noise": "Standard normals in float32, so many at once, in a loop that adds them up",
    "precision": "Products of float32 matrices in TF32, and not",
    "bias": "Posterior sd of a normal regression with 64 x 64 weights, relative to the exact one",
    "buffers": "Command buffers (CUDA graphs) of XLA",
    "posteriors": "posteriors (PyTorch): its SGNHT, one Python call per update, one chain",
    "unroll": "Updates in the body of the compiled loop",
    "whole": "All that sgm.sample does but storing: rows from the host, draws fetched",
}
NOTES = """\
Times are medians of calls that are waited for, without the first; contenders take turns. by hand:
the loop that a JAX user would write, under vmap, rows drawn on the device. ratio: its time to ours,
above 1 ours is faster. us per update: of all chains together. Compilation: PyTensor's part (once
for all numbers of chains), XLA's first call, the hand-written loop's. Shares: the least bytes and
operations that the updates need, of what the device was measured or is stated to do.
Data: synthetic, with the shapes of a9a (32,561 x 123, 11% ones), MNIST (60,000 x 784), and 2,000
binary images of 784 pixels for the belief network; batches of 50 and 100."""


@dataclass
class Case:
    """One measurement, and what became of it."""

    section: str
    label: str
    options: dict
    """Of a function in gpu_cases.py."""
    base: str | None = None
    """Label of the case in "speed" that this one varies."""
    row: dict | None = None
    reason: str = "not yet measured"


@dataclass
class Job:
    """Cases that share a process."""

    cases: list[Case]
    flags: str = ""
    python: str = sys.executable


@dataclass
class Table:
    """All cases, written to a file after each."""

    jobs: list[Job]
    command: str
    path: Path | None = None
    device: dict = field(default_factory=dict)

    @property
    def cases(self) -> list[Case]:
        return [case for job in self.jobs for case in job.cases]

    def lines(self) -> list[str]:
        shown = [
            f"{self.command}   ({time.strftime('%Y-%m-%d')})",
            f"{platform.machine()}, {os.cpu_count()} cores, {self.device.get('kind', 'device ?')}, "
            f"Python {platform.python_version()}, {self.device.get('versions', 'versions ?')}",
            "",
            NOTES,
        ]
        for section, title in SECTIONS.items():
            cases = [case for case in self.cases if case.section == section]
            if not cases:
                continue
            rows = [(case.label, self.complete_row(case)) for case in cases if case.row]
            shown += ["", title]
            if rows and section == "device":
                shown += [f"  {name}: {text(value)}" for name, value in rows[0][1].items()]
            elif rows:
                shown += aligned(rows)
            shown += [f"  {case.label}: {case.reason}" for case in cases if not case.row]
        return shown

    def complete_row(self, case: Case) -> dict:
        """A case's row, with its speed relative to the case it varies."""
        row = dict(case.row or {})
        base = next((c.row for c in self.cases if c.label == case.base and c.row), None)
        if base:
            row["ours, x default"] = base["us per update"] / row["us per update"]
            row["by hand, x default"] = base["by hand, us"] / row["by hand, us"]
        return row

    def write(self) -> None:
        if self.path:
            self.path.write_text("\n".join(self.lines()) + "\n", encoding="utf-8")


def text(value) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def aligned(rows: list[tuple[str, dict]]) -> list[str]:
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    cells = [["", *names]]
    cells += [[label, *(text(row.get(name, "")) for name in names)] for label, row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        f"  {first:<{widths[0]}}"
        + "".join(f"  {cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        for first, *others in cells
    ]


def plan(tiny: bool, python_of_posteriors: str) -> list[Job]:
    """All cases, the most important first."""

    def speed(model, chains, section="speed", suffix="", **options):
        label = f"{NAMES[model]}, {chains} chain{'s' * (chains > 1)}"
        options = {"function": "speed", "model": model, "chains": chains} | options
        return Case(section, label + suffix, options, label if suffix else None)

    def networks(*chains):
        for n in chains:
            label = f"belief network 784-200, {n} chain{'s' * (n > 1)}"
            yield Case("speed", label, {"function": "belief_network", "chains": n})

    def noise(n, repeats):
        return Case("noise", f"{n:,}", {"function": "noise", "n": n, "repeats": repeats})

    def precision(name, matmul, *cases):
        for m, n in cases:
            yield speed(m, n, "precision", f", {name}", matmul=matmul)
        yield Case("bias", name, {"function": "bias", "matmul": matmul})

    def buffers(name, flags, *cases):
        return Job([speed(m, n, "buffers", f", {name}") for m, n in cases], flags)

    def unroll(updates, *cases):
        for m, n in cases:
            yield speed(m, n, "unroll", f", {updates} updates", unroll=updates)

    def whole(*cases):
        for m, n in cases:
            yield Case("whole", f"{NAMES[m]}, {n} chain{'s' * (n > 1)}",
                       {"function": "whole", "model": m, "chains": n})  # fmt: skip

    device = Case("device", "device", {"function": "measure_device"})
    torch = Job(
        [
            Case("posteriors", NAMES[model], {"function": "posteriors", "model": model})
            for model in ("mlp", "blr")
        ],
        python=python_of_posteriors,
    )
    if tiny:  # one case of each kind
        return [
            Job(
                [
                    device,
                    speed("blr", 2),
                    *networks(2),
                    noise(10_000, 5),
                    *precision("float32", "highest", ("blr", 2)),
                    *unroll(2, ("blr", 2)),
                    *whole(("blr", 2)),
                ]
            ),
            buffers("off", OFF, ("mlp", 2)),
            torch,
        ]
    return [
        Job(
            [
                device,
                *(speed("mlp", n) for n in (1, 16, 4, 64)),
                *(speed("blr", n) for n in (1, 64, 1024)),
                *networks(1, 8),
                noise(478_410, 50),
                noise(2**26, 4),
                *(speed("mlp-1200", n) for n in (1, 16, 4, 64)),
                *precision("TF32", "tensorfloat32", ("mlp", 1), ("mlp", 16)),
                *precision("float32", "highest", ("mlp", 1), ("mlp", 16)),
            ]
        ),
        buffers("off", OFF, ("mlp", 1), ("mlp", 16), ("blr", 64)),
        torch,
        buffers("loops in them too", WHILE, ("mlp", 1), ("mlp", 16), ("blr", 64)),
        Job(
            [
                *unroll(4, ("mlp", 1), ("blr", 64)),
                *unroll(8, ("mlp", 1), ("blr", 64)),
                *whole(("mlp", 1), ("mlp", 16), ("blr", 64), ("blr", 1024)),
            ]
        ),
    ]


def only(jobs: list[Job], parts: list[str]) -> list[Job]:
    """The cases whose section and label, as printed, have one of these parts, in their order."""
    left = {id(case): case for job in jobs for case in job.cases}
    chosen = []
    for part in parts:
        for job in jobs:
            cases = [c for c in job.cases if id(c) in left and part in f"{c.section}: {c.label}"]
            for case in cases:
                del left[id(case)]
            if cases:
                chosen.append(replace(job, cases=cases))
    return chosen


def run(job: Job, table: Table, deadline: float, tiny: bool) -> None:
    """Measure a job's cases; if one ends the process, continue with the rest in a new one."""
    todo = list(job.cases)

    def settle(**outcome):
        case = todo.pop(0)
        case.row, case.reason = outcome.get("row"), outcome.get("reason", "")
        if case.section == "device" and case.row:
            table.device.update(case.row)
            if table.path is None and not tiny and case.row["platform"] == "gpu":
                table.path = RESULTS
        table.write()
        took = f"   ({time.perf_counter() - began:.0f} s)"
        print(f"{case.section}: {case.label}: {case.reason or shown(case.row)}{took}", flush=True)

    while todo:
        if time.perf_counter() > deadline:
            began = time.perf_counter()
            settle(reason="left out: no time was left")
            continue
        began = time.perf_counter()
        with (
            tempfile.TemporaryFile("w+") as errors,
            child(job, todo, table, tiny, errors) as process,
        ):
            answers: queue.Queue = queue.Queue()
            threading.Thread(target=listen, args=(process, answers), daemon=True).start()
            while todo:
                left = deadline - time.perf_counter()
                try:
                    answer = answers.get(timeout=max(0.0, min(LONGEST, left)))
                except queue.Empty:
                    late = f"failed: took more than {LONGEST:.0f} s"
                    settle(reason=late if left > LONGEST else "left out: no time was left")
                    break
                if answer is None:
                    errors.seek(0)
                    last = (errors.read().strip().splitlines() or ["no message"])[-1][:300]
                    settle(reason=f"failed: the process ended with {process.wait()}: {last}")
                    break
                if "row" in answer:
                    settle(row=answer["row"])
                else:
                    failed = f"failed: {answer.get('failed')}"
                    settle(reason=answer.get("left_out", failed))
                began = time.perf_counter()
            if todo or process.poll() is None:
                process.kill()


def child(job: Job, todo: list[Case], table: Table, tiny: bool, errors) -> subprocess.Popen:
    """A process that measures cases and prints a line for each."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {job.flags}".strip()
    arguments = [[case.options for case in todo], tiny, table.device]
    return subprocess.Popen(
        [job.python, "-W", "ignore", str(HERE / "gpu_cases.py"), *map(json.dumps, arguments)],
        env=os.environ | {"XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


def listen(process: subprocess.Popen, answers: queue.Queue) -> None:
    """Pass on a process's lines, then None."""
    assert process.stdout
    for line in process.stdout:
        if line.startswith('{"case"'):
            answers.put(json.loads(line))
    answers.put(None)


def shown(row: dict) -> str:
    return ", ".join(f"{name} {text(value)}" for name, value in list(row.items())[:4])


def measure(
    tiny: bool, out: Path | None, budget: float, posteriors: str, parts: list[str] | None = None
) -> Table:
    """Measure all cases, or `only` some; the table as it is in the file."""
    deadline = time.perf_counter() + budget
    command = " ".join(["python benchmarks/gpu.py", *sys.argv[1:]])
    jobs = plan(tiny, posteriors)
    table = Table(only(jobs, parts) if parts else jobs, command, out)
    for job in table.jobs:
        run(job, table, deadline, tiny)
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="file for the table")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for all cases")
    parser.add_argument("--tiny", action="store_true", help="small models, one turn of a few cases")
    parser.add_argument(
        "--posteriors", default=sys.executable, metavar="PYTHON", help="interpreter that has it"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="PART", help="only cases whose printed names have one of these"
    )
    args = parser.parse_args()
    if args.only and not args.out:
        parser.error("--only needs --out: the table of all cases stays as it is")
    table = measure(args.tiny, args.out, args.budget, args.posteriors, args.only)
    print("\n".join(table.lines()))
    return 1 if any(case.reason.startswith("failed") for case in table.cases) else 0


if __name__ == "__main__":
    sys.exit(main())
