"""What an update costs against the number of groups when only touched groups move.

    python benchmarks/local.py                   # 20 minutes, on an otherwise idle machine
    python benchmarks/local.py NUMBA auto 1000   # one backend, one way, one number; nothing written

A million rows (as many as groups, if there are more), batches of 100, float32, MSGNHT_S on
``effect[group]`` with an unknown mean and scale. The ways: "auto", local variables; "dense", all
groups at every update; "memory", a loop that computes nothing: it reads a batch's rows, their
groups and these groups' sizes, effects, momenta and thermostats, and writes the last three; "hand",
a `jax.lax.scan` loop with scatters written by hand for this model, which finds the groups of its
batches with this package's function; "loop", the hand-written loop without the time for that.

A call has 20,000 updates (where the dense way takes long, fewer): it copies the state once; "auto"
of 10^7 groups has 100,000. Each number is the median of three processes ("dense": one), bound to
one core each: on two, XLA's threads get in each other's way, and times vary by a factor of three.
Writes benchmarks/results/local.txt.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

RESULTS = Path(__file__).parent / "results" / "local.txt"
NUMBERS = [10**k for k in range(2, 8)]
WAYS = [
    ("NUMBA", "auto"),
    ("NUMBA", "memory"),
    ("NUMBA", "dense"),
    ("JAX", "auto"),
    ("JAX", "hand"),
    ("JAX", "loop"),
    ("JAX", "dense"),
]
ROUNDS = 3
BATCH = 100
THIN = 20_000
STEP_SIZE = 1e-5
"""Small enough for the gradient of log_tau with 10^7 groups."""


def rows(n_groups: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    n_rows = max(1_000_000, n_groups)
    return rng.integers(n_groups, size=n_rows), rng.standard_normal(n_rows, dtype="float32")


def package(backend: str, way: str, n_groups: int) -> list[float]:
    """Seconds per update of calls of this package's step."""
    import pytensor

    pytensor.config.floatX = "float32"
    import pymc as pm

    import pymc_sgmcmc as sgm

    groups, y = rows(n_groups)
    thin = max(THIN, n_groups // 100) if way == "auto" else max(10, min(THIN, 10**8 // n_groups))
    with pm.Model() as model:
        mu, log_tau = pm.Normal("mu"), pm.Normal("log_tau")
        effect = pm.Normal("effect", mu, pm.math.exp(log_tau), shape=n_groups)
        pm.Normal("y", effect[groups], 1, observed=y)
        step = sgm.MSGNHT_S(
            step_size=STEP_SIZE,
            batch_size=BATCH,
            thin=thin,
            local=["effect"] if way == "auto" else None,
            self_check=False,
            compile_kwargs={"mode": backend},
        )
    point = model.initial_point()
    step.setup_chain(np.random.default_rng(0), 0, 0)
    times = []
    for _ in range(10 if way == "auto" else 6):  # in the first ones calls still change their length
        began = time.perf_counter()
        point, [stats] = step.step(point)
        times.append((time.perf_counter() - began) / thin)
        assert not stats["nonfinite"]
    return times


def by_hand(n_groups: int, loop_alone: bool) -> list[float]:
    """The same updates in JAX; ``loop_alone``: batches and their groups are found off the clock."""
    import jax
    import jax.numpy as jnp

    groups, y = rows(n_groups)
    n_rows, h, D = len(y), STEP_SIZE, 1.0
    y_on_device = jnp.asarray(y)
    slots = min(BATCH, n_groups)

    def update(carry, batch):
        mu, t, effect, p, xi, p2, xi2, key = carry
        rows, touched, places, weight = batch
        a, q, x = effect[touched], p[touched], xi[touched]
        g, pg, xg = jnp.stack([mu, t]), p2, xi2
        a, x = a + h / 2 * q, x + h / 2 * (q * q - 1)
        g, xg = g + h / 2 * pg, xg + h / 2 * (pg * pg - 1)
        used = weight > 0
        residual = jnp.zeros(slots).at[places].add(y_on_device[rows] - a[places])
        z, precision = a - g[0], jnp.exp(-2 * g[1])
        ga = weight * residual - z * precision
        spread = jnp.where(used, n_rows / BATCH / weight, 0)
        gg = jnp.stack(
            [
                -g[0] + jnp.sum(spread * z * precision),
                -g[1] + jnp.sum(spread * (z * z * precision - 1)),
            ]
        )
        key, k = jax.random.split(key)
        noise = jax.random.normal(k, (slots + 2,)) * jnp.sqrt(2 * D * h)
        d, dg = jnp.exp(-h / 2 * x), jnp.exp(-h / 2 * xg)
        q, pg = d * (d * q + h * ga + noise[2:]), dg * (dg * pg + h * gg + noise[:2])
        a, x = a + h / 2 * q, x + h / 2 * (q * q - 1)
        g, xg = g + h / 2 * pg, xg + h / 2 * (pg * pg - 1)

        def put(old, new):
            return old.at[touched].set(jnp.where(used, new, new[0]))

        return (g[0], g[1], put(effect, a), put(p, q), put(xi, x), pg, xg, key), None

    run = jax.jit(lambda carry, batches: jax.lax.scan(update, carry, batches)[0])
    from pymc_sgmcmc.batches.touched import GroupsOfRows, TouchedGroups

    found = TouchedGroups(GroupsOfRows.of(groups, n_groups, slots, "float32"))
    rng = np.random.default_rng(1)
    p = rng.standard_normal(n_groups, dtype="float32")
    carry = (
        *np.zeros(2, "float32"), np.zeros(n_groups, "float32"), p, np.ones(n_groups, "float32"),
        np.zeros(2, "float32"), np.ones(2, "float32"), jax.random.key(0),
    )  # fmt: skip
    carry = jax.tree.map(jnp.asarray, carry)
    times = []
    for _ in range(6):
        began = time.perf_counter()
        batch = rng.integers(n_rows, size=(THIN, BATCH))
        batches = jax.block_until_ready(jax.device_put((batch, *found.of(batch))))
        if loop_alone:
            began = time.perf_counter()
        carry = jax.block_until_ready(run(carry, batches))
        times.append((time.perf_counter() - began) / THIN)
        assert all(bool(jnp.isfinite(a).all()) for a in carry[:-1])
    return times


def memory_alone(n_groups: int) -> list[float]:
    """What the updates read and write, and nothing else, with numba."""
    from numba import njit

    from pymc_sgmcmc.backends.software_prefetch import prefetch_rows

    @njit
    def read_and_write(batches, group_of_row, y, sizes, records):
        total, groups = np.float32(0), np.empty(BATCH, np.int64)
        for batch in batches:
            prefetch_rows(group_of_row, batch)
            prefetch_rows(y, batch)
            for i in range(BATCH):
                groups[i] = group_of_row[batch[i]]
            prefetch_rows(sizes, groups)
            prefetch_rows(records, groups)
            for i in range(BATCH):
                total += y[batch[i]] + sizes[groups[i], 0]
            for i in range(BATCH):
                effect, p, xi = records[groups[i]]
                records[groups[i]] = effect + p, p + xi, xi
        return total

    groups, y = rows(n_groups)
    group_of_row = groups.astype("int32")
    sizes, records = np.ones((n_groups, 2), "int32"), np.full((n_groups, 3), 1e-9, "float32")
    rng = np.random.default_rng(1)
    times = []
    for _ in range(6):
        batches = rng.integers(len(y), size=(THIN, BATCH))
        began = time.perf_counter()
        read_and_write(batches, group_of_row, y, sizes, records)
        times.append((time.perf_counter() - began) / THIN)
    return times


def in_own_process(backend: str, way: str, n_groups: int) -> float:
    """Microseconds per update."""
    command = [sys.executable, __file__, backend, way, str(n_groups)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(result.stdout.splitlines()[-1]))


def measured(backend: str, way: str, n_groups: int) -> list[float]:
    """Seconds per update of several calls."""
    if way in ("auto", "dense"):
        return package(backend, way, n_groups)
    if way == "memory":
        return memory_alone(n_groups)
    return by_hand(n_groups, loop_alone=way == "loop")


def main():
    if len(sys.argv) == 4:
        backend, way, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
        print(json.dumps(1e6 * median(measured(backend, way, n)[-4:])))
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    lines = [
        f"python benchmarks/local.py   ({time.strftime('%Y-%m-%d')})",
        f"MSGNHT_S, float32, batch {BATCH}, one core: microseconds per update",
        f"{'groups':>12}" + "".join(f"{f'{b} {w}':>14}" for b, w in WAYS),
    ]
    print(*lines, sep="\n", flush=True)
    for n in NUMBERS:
        times: dict[tuple[str, str], list[float]] = {of: [] for of in WAYS}
        for k in range(ROUNDS):
            for backend, way in WAYS:
                if k == 0 or way != "dense":
                    times[backend, way].append(in_own_process(backend, way, n))
        lines.append(f"{n:>12,}" + "".join(f"{median(t):>14.1f}" for t in times.values()))
        print(lines[-1], flush=True)
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
