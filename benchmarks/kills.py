"""Does a run survive ``kill -9``, bit for bit?

    python benchmarks/kills.py               # about a quarter of an hour
    python benchmarks/kills.py --every 9     # only every ninth moment of writing

Writes benchmarks/results/kills.txt.

First, processes that sample are killed at random moments, one after another and with chains in
processes, and resumed by the next process, until 50 have been killed; each finished run is compared
with one that was never stopped. Then 50 processes that also choose their settings, in the warm-up
and later. Then one small run is killed at every single moment of writing: before, in the middle of,
and after each file that is written or renamed.
"""

import argparse
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytensor
import zarr

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import kills

import pymc_sgmcmc as sgm
from pymc_sgmcmc.run import sequential

KILLS = 50
DRAWS_ADAPTED = 100
"""Of each chain that adapts itself."""
RESULTS = Path(__file__).parent / "results" / "kills.txt"


def killed_at_random(model, step, folder):
    rng = np.random.default_rng(0)
    sequential.SECONDS_PER_BLOCK = 0.01
    lines = []
    for method, least in (("sequential", KILLS // 2), ("parallel", KILLS - KILLS // 2)):
        path = folder / f"{method}.zarr"
        go = kills.prepared(model, step, path, method, draws=400)
        began = time.perf_counter()
        expected = go()
        seconds = time.perf_counter() - began
        n_kills, n_runs, n_same = 0, 0, 0
        while n_kills < least:
            shutil.rmtree(path)
            while kills.kill_after(kills.in_child(go), rng.uniform(0, seconds)):
                n_kills += 1
            n_runs += 1
            n_same += kills.same(sgm.ZarrStore(path).to_datatree(), expected)
        lines.append(
            f"{method}: {n_kills} processes killed at random moments, {n_runs} runs finished, "
            f"{n_same} of them identical to the undisturbed run"
        )
        print(lines[-1], flush=True)
        assert n_same == n_runs
    return lines


def killed_while_writing(model, step, folder, every):
    path = folder / "every.zarr"
    go = kills.prepared(model, step, path, draws=6, tune=2, chains=1)
    expected = go()
    n = kills.moments_of(go, path)
    chosen = range(0, n, every)
    n_same = 0
    for k in chosen:
        kills.die_at(go, path, k)
        n_same += kills.same(go(), expected)
    line = (
        f"{len(chosen)} of the {n} moments of writing of a small run: killed there, "
        f"{n_same} resumed identically"
    )
    print(line, flush=True)
    assert n_same == len(chosen)
    return [line]


def killed_while_adapting(folder):
    """Runs with the default step: killed in the warm-up as often as while they sample."""
    model, path, other = kills.adapting_model(), folder / "adapting.zarr", folder / "other.zarr"
    rng = np.random.default_rng(1)
    of_draws = kills.CHAINS * (DRAWS_ADAPTED + kills.TUNE)
    expected, of_warm_up = kills.warm_up_calls(
        lambda: kills.adapting_run(other, model, draws=DRAWS_ADAPTED), of_draws
    )
    n_early, n_late, n_runs, n_same = 0, 0, 0, 0
    while n_early + n_late < KILLS:
        shutil.rmtree(path, ignore_errors=True)
        while True:
            if path.exists():
                calls = rng.integers(of_draws)
            elif rng.integers(2):
                calls = of_warm_up + rng.integers(of_draws)
            else:
                calls = rng.integers(of_warm_up)
            if not kills.killed_after(
                lambda: kills.adapting_run(path, model, draws=DRAWS_ADAPTED), calls
            ):
                break
            n_early, n_late = n_early + (not path.exists()), n_late + path.exists()
        n_runs += 1
        result = sgm.ZarrStore(path).to_datatree()
        n_same += all(np.array_equal(result.posterior[v], expected.posterior[v]) for v in "ws")
    line = (
        f"default step: {n_early} processes killed in the warm-up, {n_late} later, {n_runs} runs "
        f"finished, {n_same} of them with the draws of the undisturbed run"
    )
    print(line, flush=True)
    assert n_same == n_runs
    return [line]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="stride over the moments of writing")
    options = parser.parse_args()
    began = time.perf_counter()
    with pytensor.config.change_flags(mode="FAST_COMPILE"), tempfile.TemporaryDirectory() as folder:
        model = kills.small_model()
        step = kills.small_step(model)
        lines = killed_at_random(model, step, Path(folder))
        lines += killed_while_adapting(Path(folder))
        lines += killed_while_writing(model, step, Path(folder), options.every)
    head = (
        f"{time.strftime('%Y-%m-%d')}, {platform.system()}, Python {platform.python_version()}, "
        f"zarr {zarr.__version__}, {time.perf_counter() - began:.0f} seconds"
    )
    RESULTS.write_text("\n".join([head, *lines]) + "\n")


if __name__ == "__main__":
    main()
