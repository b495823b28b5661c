"""Exponentials, logarithms, logistic functions and softplus on numba: ours beside PyTensor's.

    python benchmarks/elementary.py   # a minute

Writes benchmarks/results/elementary.txt: nanoseconds of CPU per element of an array in the cache,
and the log density of a binary outcome, whose softplus has two cases. The median of 50 calls.
"""

import platform
import time
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import get_mode

from pymc_sgmcmc.backends.numba_linker import with_cheap_calls

RESULTS = Path(__file__).parent / "results" / "elementary.txt"
SHAPE, CALLS = (64, 4096), 50
FUNCTIONS = {
    "exp": pt.exp,
    "log": lambda x: pt.log(pt.abs(x)),
    "log1p": lambda x: pt.log1p(pt.abs(x)),
    "sigmoid": pt.sigmoid,
    "softplus": pt.softplus,
    "binary outcome": lambda x: pt.switch(x > 0, -pt.softplus(-x), -pt.softplus(x)),
}


def nanoseconds(function, values):
    function(values)
    times = []
    for _ in range(CALLS):
        began = time.process_time_ns()
        function(values)
        times.append(time.process_time_ns() - began)
    return np.median(times) / values.size


def main():
    numba = get_mode("NUMBA")
    ours = with_cheap_calls(numba)
    values = np.random.default_rng(1).normal(size=SHAPE)
    lines = [
        f"python benchmarks/elementary.py   ({time.strftime('%Y-%m-%d')}, {platform.machine()}, "
        f"pytensor {pytensor.__version__})",
        "ns per element    float64              float32",
        "                  PyTensor    ours     PyTensor    ours",
    ]
    for name, of in FUNCTIONS.items():
        line = f"{name:16}"
        for dtype in ("float64", "float32"):
            x = pt.matrix(dtype=dtype)
            for mode in (with_cheap_calls(numba).excluding("vectorized_math"), ours):
                function = pytensor.function([x], of(x), mode=mode)
                line += f"{nanoseconds(function, values.astype(dtype)):10.2f}"
        lines.append(line)
        print(line, flush=True)
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
