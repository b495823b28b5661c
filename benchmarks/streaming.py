"""Updates from rows on disk against the same updates from resident rows, and the memory used.

    python benchmarks/streaming.py          # ten minutes and 3.2 GB of disk, freed at the end
    python benchmarks/streaming.py --quick  # small files and short runs, nothing written

Writes benchmarks/results/streaming.txt. The step that streams and the resident one run in one
process and take turns, so that other load on the machine affects both; the ratio is that of the
medians of their draws. Before each run the files are dropped from the page cache, so that they are
read from the disk. Memory is that of a process that only streams: anonymous memory (RssAnon). The
pages of the mapped file are left out, because they are page cache, which the kernel frees when
memory is needed, and would also fill if the file were read without a map.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "streaming.txt"
LAYERS = [784, 400, 400, 10]
CHAINS = 4
WINDOWS = 4
"""Shuffle windows that each run reads at least."""
CASES = {
    "mlp": dict(rows=4_000_000, columns=784, dtype="uint8", resident=60_000, batch=100, thin=50),
    "blr": dict(rows=4_000_000, columns=123, dtype="uint8", resident=32_561, batch=50, thin=1000),
    "blr-float32": dict(
        rows=1_000_000, columns=123, dtype="float32", resident=32_561, batch=50, thin=1000
    ),
}


def write_files(directory, case):
    """Random rows, written piece by piece."""
    rng = np.random.default_rng(0)
    shape = (case["rows"], case["columns"])
    X = np.lib.format.open_memmap(directory / "X.npy", "w+", case["dtype"], shape)
    y = np.lib.format.open_memmap(directory / "y.npy", "w+", "uint8", shape[:1])
    n_classes = 10 if case["columns"] == 784 else 2
    for k in range(0, shape[0], 50_000):
        size = (min(50_000, shape[0] - k), shape[1])
        X[k : k + 50_000] = rng.integers(256 if n_classes == 10 else 2, size=size, dtype="uint8")
        y[k : k + 50_000] = rng.integers(n_classes, size=size[0], dtype="uint8")
    X.flush()
    y.flush()


def drop_from_page_cache(directory):
    for path in directory.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def make_step(name, case, backend, rows, data=None):
    """MSGNHT_S on a model that holds ``rows``, or placeholders for ``data``."""
    import pymc as pm
    import pytensor

    pytensor.config.floatX = "float32"
    import pytensor.tensor as pt

    import pymc_sgmcmc as sgm

    with pm.Model() as model:
        X = pm.Data("X", rows["X"], dims=("obs", "column"))
        y = pm.Data("y", rows["y"], dims="obs")
        a = X.astype("float32")
        if name == "mlp":
            a = a / np.float32(255)
            for k, shape in enumerate(itertools.pairwise(LAYERS)):
                W = pm.Normal(f"W{k}", 0, 1, shape=shape)
                a = a @ W + pm.Normal(f"b{k}", 0, 1, shape=shape[1])
                a = pt.maximum(a, 0) if k < 2 else a
            pm.Categorical("label", logit_p=a, observed=y, dims="obs")
        else:
            w = pm.Normal("w", 0, 3, dims="column")
            pm.Bernoulli("label", logit_p=a @ w, observed=y, dims="obs")
        start = model.initial_point()
        rng = np.random.default_rng(1)
        start = {v: 0.05 * rng.normal(size=a.shape).astype("float32") for v, a in start.items()}
        step = sgm.MSGNHT_S(
            step_size=1e-5,
            batch_size=case["batch"],
            thin=case["thin"],
            self_check=False,
            initial_point=start,
            data=data,
            compile_kwargs={"mode": backend},
        )
    step.setup_chain(np.random.default_rng(2), 0, 0)
    return step, start


def open_rows(directory):
    return {name: np.load(directory / f"{name}.npy", mmap_mode="r") for name in ("X", "y")}


def both_steps(directory, name, case, backend):
    """The streamed data, and steps on it and on a subset in memory."""
    import pymc_sgmcmc as sgm

    rows = open_rows(directory)
    data = sgm.StreamedData(rows)
    resident = {k: np.array(a[: case["resident"]]) for k, a in rows.items()}
    steps = {
        "streamed": make_step(name, case, backend, data.head(), data),
        "resident": make_step(name, case, backend, resident),
    }
    return data, steps


def timed(directory, name, case, backend, seconds):
    """Microseconds per update of both, taking turns."""
    data, steps = both_steps(directory, name, case, backend)
    points = {who: start for who, (_, start) in steps.items()}
    times = {who: [] for who in steps}
    drop_from_page_cache(directory)
    stop = None
    for turn in itertools.count():
        for who, (step, _) in steps.items():
            began = time.perf_counter()
            points[who], [stats] = step.step(points[who])
            times[who].append(time.perf_counter() - began)
            assert not stats["nonfinite"]
        if turn == 4:  # calls have their full length by now
            stop = time.perf_counter() + seconds
            times = {who: [] for who in steps}
        rows_read = len(times["streamed"]) * case["thin"] * case["batch"]
        if stop and time.perf_counter() > stop and rows_read > WINDOWS * data.window:
            break
    result = {who: float(np.median(t)) / case["thin"] * 1e6 for who, t in times.items()}
    result["total_ratio"] = sum(times["resident"]) / sum(times["streamed"])
    result["rows_read"] = rows_read
    result["data"] = repr(data)
    return result


def together(directory, name, case, backend, seconds):
    """Microseconds per update of `CHAINS` vectorized chains together."""
    import pymc_sgmcmc as sgm

    _, steps = both_steps(directory, name, case, backend)
    drop_from_page_cache(directory)
    draws = max(20, 4 * int(seconds))
    times = {who: [] for who in steps}
    for _ in range(4):  # the first compiles
        for who, (step, start) in steps.items():
            tree = sgm.sample(
                draws, tune=0, chains=CHAINS, step=step, model=step.model, initvals=start,
                chain_method="vectorized", random_seed=1, quiet=True,
                compute_convergence_checks=False,
            )  # fmt: skip
            assert not tree.sample_stats["nonfinite"].any()
            times[who].append(float(tree.posterior.attrs["sampling_time"]))
    updates = draws * case["thin"] * CHAINS
    result = {who: float(np.median(t[1:])) / updates * 1e6 for who, t in times.items()}
    return result | {"rows_read": updates * case["batch"]}


def memory_kb(kind):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(kind):
            return int(line.split()[1])
    raise KeyError(kind)


def memory(directory, name, case, backend, seconds):
    """Anonymous memory in MB: before the step is made, and at most from then on."""
    import jax  # noqa: F401  (part of the baseline)

    import pymc_sgmcmc as sgm

    baseline = memory_kb("RssAnon")
    peaks = {"RssAnon": 0, "RssFile": 0}
    stopped = threading.Event()

    def watch():
        while not stopped.wait(0.02):
            for kind in peaks:
                peaks[kind] = max(peaks[kind], memory_kb(kind))

    watcher = threading.Thread(target=watch)
    watcher.start()
    data = sgm.StreamedData(open_rows(directory))
    step, point = make_step(name, case, backend, data.head(), data)
    compiled = memory_kb("RssAnon")
    began, draws = time.perf_counter(), 0
    rows_a_draw = case["thin"] * case["batch"]
    while time.perf_counter() < began + seconds or draws * rows_a_draw < WINDOWS * data.window:
        point, _ = step.step(point)
        draws += 1
    stopped.set()
    watcher.join()
    return {
        "baseline": baseline / 1024,
        "compiled": compiled / 1024,
        "peak": peaks["RssAnon"] / 1024,
        "page_cache_mapped": peaks["RssFile"] / 1024,
        "rows_read": draws * rows_a_draw,
    }


def in_a_process(what, directory, name, backend, seconds, quick):
    command = [sys.executable, __file__, "--do", what, str(directory), name, backend, str(seconds)]
    command += ["--quick"] * quick
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr[-3000:]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def case_of(name, quick):
    case = dict(CASES[name])
    return case | ({"rows": case["rows"] // 40} if quick else {})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--directory", help="where to write the files; default: the temporary one")
    parser.add_argument("--do", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.do:
        what, directory, name, backend, seconds = args.do
        measure = {"timed": timed, "together": together, "memory": memory}[what]
        case = case_of(name, args.quick)
        print(json.dumps(measure(Path(directory), name, case, backend, float(seconds))))
        return
    seconds = 5 if args.quick else 60
    lines = []

    def write(line):
        print(line, flush=True)
        lines.append(line)
        if not args.quick:
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text("\n".join(lines) + "\n")

    packages = ("pymc", "pytensor", "numba", "jax", "numpy")
    write(f"python benchmarks/streaming.py   ({time.strftime('%Y-%m-%d')})")
    write(f"{os.cpu_count()} cores; " + ", ".join(f"{p} {version(p)}" for p in packages))
    write("us per update, median over draws; both take turns in one process; files start cold")
    write(f"load average at the start: {os.getloadavg()[0]:.1f}")
    for name in CASES:
        case = case_of(name, args.quick)
        with tempfile.TemporaryDirectory(dir=args.directory) as directory:
            needed = case["rows"] * (case["columns"] * np.dtype(case["dtype"]).itemsize + 1)
            free = shutil.disk_usage(directory).free
            if free < 1.2 * needed:
                raise SystemExit(f"{needed / 1e9:.1f} GB needed in {directory}: {free / 1e9:.1f}.")
            write_files(Path(directory), case)
            write(f"\n{name}: {case['rows']:,} x {case['columns']} {case['dtype']} on disk, "
                  f"{needed / 1e9:.2f} GB; resident: {case['resident']:,} rows; "
                  f"batch {case['batch']}, thin {case['thin']}")  # fmt: skip
            backends = ["JAX"] if name == "mlp" else ["JAX", "NUMBA"]
            for backend in backends:
                r = in_a_process("timed", directory, name, backend, seconds, args.quick)
                if backend == "JAX":
                    write(f"  {r['data']}")
                write(
                    f"  {backend:<6} streamed {r['streamed']:9.1f}   resident {r['resident']:9.1f}"
                    f"   updates per second {r['resident'] / r['streamed']:.2f}x "
                    f"(over the whole run {r['total_ratio']:.2f}x; {r['rows_read']:,} rows read)"
                )
            if name != "mlp":
                r = in_a_process("together", directory, name, "JAX", seconds, args.quick)
                write(
                    f"  JAX, {CHAINS} chains in one call: streamed {r['streamed']:.1f}   resident "
                    f"{r['resident']:.1f}   updates per second "
                    f"{r['resident'] / r['streamed']:.2f}x ({r['rows_read']:,} rows per run)"
                )
            if name == "mlp":
                drop_from_page_cache(Path(directory))
                m = in_a_process("memory", directory, name, "JAX", seconds, args.quick)
                write(
                    f"  memory (RssAnon), MB: {m['baseline']:.0f} after the imports, "
                    f"{m['compiled']:.0f} when compiled, at most {m['peak']:.0f} in a run of "
                    f"{m['rows_read']:,} rows: {m['peak'] - m['baseline']:.0f} above the "
                    f"imports (mapped page cache at most {m['page_cache_mapped']:.0f})"
                )


if __name__ == "__main__":
    main()
