"""What a normal and an exponential cost: ours against numba's and JAX's own.

    python benchmarks/normals.py    # a minute, on an otherwise idle machine

Writes benchmarks/results/normals.txt.
"""

import os
import time
from pathlib import Path
from statistics import median

import jax
import numpy as np
from numba import njit

from pymc_sgmcmc.backends.normals_numba import draw_normals
from pymc_sgmcmc.backends.numba_math import FLOAT_MATH
from pymc_sgmcmc.backends.random_jax import normals

RESULTS = Path(__file__).parent / "results" / "normals.txt"
NUMBERS = {124: 20_000, 478_410: 50}
"""As many as a logistic regression and a network have parameters; repetitions in a call."""


def nanoseconds(call, n_elements: int) -> float:
    """Median over seven calls."""
    call()
    times = []
    for _ in range(7):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e9 * median(times) / n_elements


def on_numba(dtype: str, n: int, repeats: int):
    """Calls of our normals, numba's, our exponential, numba's."""
    ours, vectorized, real = draw_normals[dtype], FLOAT_MATH[dtype].exp, np.dtype(dtype).type
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(n).astype(dtype), np.empty(n, dtype)

    @njit
    def draw_ours(rng):
        total = real(0)
        for _ in range(repeats):
            total += ours(rng, n)[0]
        return total

    @njit
    def draw_theirs(rng):
        total = real(0)
        for _ in range(repeats):
            total += rng.standard_normal(n, real)[0]
        return total

    @njit
    def our_exp(x, y):
        for _ in range(repeats):
            for i in range(n):
                y[i] = vectorized(x[i])

    @njit
    def their_exp(x, y):
        for _ in range(repeats):
            for i in range(n):
                y[i] = np.exp(x[i])

    return [
        lambda: draw_ours(rng),
        lambda: draw_theirs(rng),
        lambda: our_exp(x, y),
        lambda: their_exp(x, y),
    ]


def loop(draw, n: int, repeats: int, dtype: str):
    """A call of a compiled JAX loop that draws ``n`` normals so many times and adds them up."""

    def body(carry, _):
        key, total = carry
        key, own = jax.random.split(key)
        return (key, total + draw(own)), None

    @jax.jit
    def run(key):
        return jax.lax.scan(body, (key, jax.numpy.zeros(n, dtype)), length=repeats)[0]

    return lambda: jax.block_until_ready(run(np.array([1, 2], dtype="uint32")))


def on_jax(dtype: str, n: int, repeats: int):
    """Calls of our normals and JAX's."""
    return [
        loop(lambda key: normals(key, n, dtype), n, repeats, dtype),
        loop(lambda key: jax.random.normal(key, (n,), dtype), n, repeats, dtype),
    ]


def main():
    jax.config.update("jax_enable_x64", True)
    titles = ("numba: ours", "its own", "JAX: ours", "its own", "exp on numba: ours", "its own")
    lines = [
        f"python benchmarks/normals.py   ({time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores)",
        "ns per standard normal (last two columns: per exponential), many in a compiled loop",
        f"{'type':<9}{'in a call':>10}" + "".join(f"{t:>{len(t) + 3}}" for t in titles),
    ]
    print(*lines, sep="\n", flush=True)
    for dtype in ("float32", "float64"):
        for n, repeats in NUMBERS.items():
            calls = on_numba(dtype, n, repeats)
            calls[2:2] = on_jax(dtype, n, repeats)
            costs = [nanoseconds(call, n * repeats) for call in calls]
            cells = (f"{c:>{len(t) + 3}.2f}" for c, t in zip(costs, titles, strict=True))
            lines.append(f"{dtype:<9}{n:>10,}" + "".join(cells))
            print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
