"""What an update costs against the number of parameters: one effect for each group of rows.

    python benchmarks/parameters.py             # about five minutes, on an otherwise idle machine
    python benchmarks/parameters.py JAX 1000    # one backend, one number; nothing written

A million rows, batches of 100, float32, MSGNHT_S with `local=None`: momentum and thermostat of
every parameter move at every update, so that the cost grows with their number; three arrays of that
size are the state. benchmarks/local.py has the same where only touched groups move.
The last line is the largest number on numba again, where the C library keeps the memory of arrays
that are freed, instead of asking the kernel for new pages at every update (glibc; KEPT below).
Writes benchmarks/results/parameters.txt.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results" / "parameters.txt"
BACKENDS = ["NUMBA", "JAX"]
NUMBERS = [10**k for k in range(2, 8)]
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**34)}


def peak_memory() -> float:
    """Peak memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(backend: str, n_parameters: int) -> dict[str, float]:
    """Microseconds per update, and memory beyond that of the data."""
    import numpy as np
    import pytensor

    pytensor.config.floatX = "float32"
    import pymc as pm

    import pymc_sgmcmc as sgm

    rng = np.random.default_rng(0)
    n_rows = 1_000_000
    groups = rng.integers(n_parameters, size=n_rows)
    y = rng.standard_normal(n_rows, dtype="float32")
    with pm.Model():
        effect = pm.Normal("effect", 0, 1, shape=n_parameters)
        pm.Normal("y", effect[groups], 1, observed=y)
        before = peak_memory()
        thin = max(10, min(20_000, 10**8 // n_parameters))
        step = sgm.MSGNHT_S(
            step_size=1e-3,
            batch_size=100,
            thin=thin,
            local=None,
            self_check=False,
            compile_kwargs={"mode": backend},
        )
    point = {"effect": np.zeros(n_parameters, "float32")}
    step.setup_chain(rng, 0, 0)
    times = []
    for _ in range(8):
        began = time.perf_counter()
        point, _ = step.step(point)
        times.append((time.perf_counter() - began) / thin)
    return {"us": 1e6 * median(times[3:]), "MB": peak_memory() - before}


def main():
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
        return
    lines = [
        f"python benchmarks/parameters.py   ({time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores)",
        "MSGNHT_S, float32, 1e6 rows, batch 100; MB: peak memory on top of model and data",
        f"{'parameters':>12}"
        + "".join(f"{b + ' us':>12}{'ns each':>9}{'MB':>7}" for b in BACKENDS),
    ]
    print(*lines, sep="\n", flush=True)
    largest = NUMBERS[-1]
    for n, backends, env in [*((n, BACKENDS, {}) for n in NUMBERS), (largest, ["NUMBA"], KEPT)]:
        line = f"{n:>12,}"
        for backend in backends:
            command = [sys.executable, __file__, backend, str(n)]
            result = subprocess.run(
                command, capture_output=True, text=True, check=True, env=os.environ | env
            )
            m = json.loads(result.stdout.splitlines()[-1])
            line += f"{m['us']:>12.1f}{1e3 * m['us'] / n:>9.1f}{m['MB']:>7.0f}"
        if env:
            line += "   " + " ".join(f"{name}={value}" for name, value in env.items())
        lines.append(line)
        print(line, flush=True)
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
