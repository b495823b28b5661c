"""Cost of an update and size of the trace against the number of parameters.

    python benchmarks/parameters.py       # a few minutes: let nothing else run

A regression with an effect for each group, 10^6 rows, batches of 100, 10^2 to 10^7 groups; MSGNHT_S
in float32. Writes benchmarks/results/parameters.txt.
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

RESULTS = Path(__file__).parent / "results" / "parameters.txt"
N_ROWS, BATCH_SIZE = 10**6, 100


def measure(n_parameters: int, backend: str) -> str:
    """One size on one backend: microseconds an update, and the memory of this process."""
    import pymc as pm
    import pytensor

    pytensor.config.floatX = "float32"
    import pymc_sgmcmc as sgm

    rng = np.random.default_rng(0)
    group = rng.integers(n_parameters, size=N_ROWS)
    y = rng.normal(size=N_ROWS).astype("float32")
    thin = max(1, min(1000, 10**7 // n_parameters))
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, np.float32(1), shape=n_parameters)
        pm.Normal("y", effect[group], np.float32(1), observed=y)
        step = sgm.MSGNHT_S(
            step_size=1e-3, batch_size=BATCH_SIZE, thin=thin, compile_kwargs={"mode": backend}
        )
    point = model.initial_point()
    times = []
    stop = time.perf_counter() + 4
    while time.perf_counter() < stop or len(times) < 5:
        began = time.perf_counter()
        point, _ = step.step(point)
        times.append(time.perf_counter() - began)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"{1e6 * median(times) / thin:>12.1f}{memory:>12.0f}"


def main():
    if len(sys.argv) == 3:
        print(measure(int(sys.argv[1]), sys.argv[2]))
        return
    lines = [
        f"python benchmarks/parameters.py   ({time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores)",
        f"an effect a group, {N_ROWS:,} rows, batches of {BATCH_SIZE}, MSGNHT_S, float32",
        "MB: peak of the process. trace: float32 draws, 4 chains of 1000, every parameter recorded",
        f"{'parameters':>12}{'us numba':>12}{'MB':>12}{'us JAX':>12}{'MB':>12}{'trace MB':>12}",
    ]
    for line in lines:
        print(line)
    for n in (10**2, 10**3, 10**4, 10**5, 10**6, 10**7):
        columns = [
            subprocess.run(
                [sys.executable, __file__, str(n), backend],
                capture_output=True, text=True, check=True,
            ).stdout.splitlines()[-1]
            for backend in ("NUMBA", "JAX")
        ]  # fmt: skip
        lines.append(f"{n:>12,}{columns[0]}{columns[1]}{4 * 4 * 1000 * n / 1e6:>12,.0f}")
        print(lines[-1], flush=True)
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
