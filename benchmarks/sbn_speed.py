"""Speed of Gibbs sampling in sigmoid belief networks: seconds for an iteration of Table 4.

    python benchmarks/sbn_speed.py                      # JAX, one to three layers; a few minutes
    python benchmarks/sbn_speed.py --modes JAX NUMBA --layers 200

An iteration is what the doubly stochastic paper times (25.4 s for 784 pixels and 200 hidden units,
5.44 s for 128 pixels): 10 updates on batches of 100 rows, each with 5 burn-in sweeps and 5 draws of
all hidden units, in float32. Wall time is the median of five calls and depends on other load;
CPU time, summed over threads, depends on it less. Writes benchmarks/results/sbn_speed.txt.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results" / "sbn_speed.txt"
N_ROWS, CALLS = 2_000, 5
PRIOR = {"nu": 2.2, "mu": 0, "sigma": 0.09}


def random_images(n_pixels, n_rows=N_ROWS):
    """Binary pixels, 15% of them 1."""
    import numpy as np

    return (np.random.default_rng(0).random((n_rows, n_pixels)) < 0.15).astype("int8")


def network(n_pixels, layers):
    """A belief network on random images; the last of ``layers`` is the top one."""
    import pymc as pm

    images = random_images(n_pixels)
    coords = {"row": range(N_ROWS), "pixel": range(n_pixels)}
    coords |= {f"unit{k}": range(n) for k, n in enumerate(layers)}
    below = ["pixel", *(f"unit{k}" for k in range(len(layers)))]
    with pm.Model(coords=coords) as model:
        images = pm.Data("images", images, dims=("row", "pixel"))
        logits = pm.StudentT("b", **PRIOR, dims=below[-1])
        for k in reversed(range(len(layers))):
            z = pm.Bernoulli(f"z{k}", logit_p=logits, dims=("row", below[k + 1]))
            W = pm.StudentT(f"W{k}", **PRIOR, dims=(below[k + 1], below[k]))
            logits = z @ W + pm.StudentT(f"c{k}", **PRIOR, dims=below[k])
        pm.Bernoulli("x", logit_p=logits, observed=images, dims=("row", "pixel"))
    return model


def make_step(mode, n_pixels, layers):
    """A step of 10 updates per draw."""
    import pymc_sgmcmc as sgm

    latents = sgm.Gibbs([f"z{k}" for k in range(len(layers))], n_samples=5, burn_in=5)
    with network(n_pixels, layers):
        return sgm.SGHMC_S(
            step_size=1e-4,
            batch_size=100,
            thin=10,
            latents=latents,
            compile_kwargs={"mode": mode},
            self_check=False,
        )


def measure(mode, n_pixels, layers):
    """Compile a step and time it, in this process."""
    import pytensor

    pytensor.config.floatX = "float32"
    began = time.perf_counter()
    step = make_step(mode, n_pixels, layers)
    compiling = time.perf_counter() - began
    point = step.model.initial_point()
    wall, cpu = [], []
    for _ in range(CALLS + 2):  # the first calls may compile for another number of updates
        began, began_cpu = time.perf_counter(), time.process_time()
        point, [stats] = step.step(point)
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
        assert not stats["nonfinite"]
    return {"compile": compiling, "wall": median(wall[2:]), "cpu": median(cpu[2:])}


def in_a_process(mode, n_pixels, layers):
    """Measure in a separate process."""
    only = [mode, str(n_pixels), "-".join(map(str, layers))]
    command = [sys.executable, __file__, "--only", *only]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--modes", nargs="+", default=["JAX"])
    parser.add_argument("--layers", nargs="+", default=["200", "200-200", "200-200-200"])
    parser.add_argument("--pixels", nargs="+", type=int, default=[784, 128])
    parser.add_argument("--only", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        mode, n_pixels, layers = arguments.only
        print(json.dumps(measure(mode, int(n_pixels), [int(n) for n in layers.split("-")])))
        return
    lines = [
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs, {platform.machine()}, float32",
        "seconds for 10 updates: batch 100, 5 + 5 sweeps each",
        f"{'network':<22}{'mode':<8}{'wall':>8}{'CPU':>8}{'compile':>9}",
    ]
    print("\n".join(lines))
    for n_pixels in arguments.pixels:
        for shown in arguments.layers:
            for mode in arguments.modes:
                t = in_a_process(mode, n_pixels, [int(n) for n in shown.split("-")])
                times = f"{t['wall']:>8.2f}{t['cpu']:>8.2f}{t['compile']:>9.1f}"
                lines.append(f"{f'{n_pixels}-{shown}':<22}{mode:<8}{times}")
                print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
