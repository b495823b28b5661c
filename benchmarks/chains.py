"""Many chains at once: updates per second against the loop that a JAX user would write by hand.

    python benchmarks/chains.py
    python benchmarks/chains.py --peak-gbytes 4800 --peak-tflops 60     # an H200, float32

Runs on the devices of `jax.devices()`. "ours" is everything that `chain_method="vectorized"` does
except storing draws: row numbers are drawn on the host and sent to the device, statistics and every
draw are sent back. The hand-written loop (`loops.py`, under `jax.vmap`) draws its rows on the
device and returns nothing. Both run mSGNHT-S with the same data, prior, batch size and step size.
They take turns in one process, so that the ratio is meaningful on a busy machine too. With
`--write` the table is stored as benchmarks/results/chains.txt.
"""

import argparse
import itertools
import os
import sys
import time
from pathlib import Path

import numpy as np

os.environ.setdefault("PYTENSOR_FLAGS", "floatX=float32")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import loops

from pymc_sgmcmc.run.mapped_chains import VectorizedChains

RESULTS = Path(__file__).parent / "results" / "chains.txt"
CHAINS = {"blr": [1, 8, 64, 1024], "mlp": [1, 4, 16]}


def work(model: str, settings: dict) -> tuple[float, float]:
    """Floating-point operations and bytes of memory that an update of a chain cannot do without.

    Products with the batch, once forwards and twice backwards (the data need no gradient); the
    batch's rows and the state, read and written.
    """
    batch_size, row = settings["batch_size"], settings["columns"]
    if model == "blr":
        n_parameters = row + 1
        flops = 4 * batch_size * row
    else:
        layers = loops.layers(settings)
        sizes = [a * b for a, b in itertools.pairwise(layers)]
        n_parameters = sum(sizes) + sum(layers[1:])
        flops = 2 * batch_size * (3 * sum(sizes) - sizes[0])
    return flops, 4 * (batch_size * row + 6 * n_parameters)


class Ours:
    """All chains by this package, call after call."""

    def __init__(self, step, point, chains: int):
        self.thin = step.thin
        rngs = np.random.default_rng(0).spawn(chains)
        self.together = VectorizedChains(step, [point] * chains, rngs, 0, 10**9)
        self.blocks = self.together.run()

    def run(self, seconds: float) -> float:
        """Seconds per update. At both ends one finished call is unread: calls are counted."""
        began = time.perf_counter()
        n = 0
        while time.perf_counter() - began < seconds or n == 0:
            drawn = next(self.blocks)
            self.together.fetch(drawn.theta)
            assert not drawn.stats["nonfinite"].any()
            n += drawn.n * self.thin
        jax.block_until_ready(self.together._stacked.carry)
        return (time.perf_counter() - began) / n


def by_hand(run, updates: int, seconds: float) -> float:
    began = time.perf_counter()
    n = 0
    while time.perf_counter() - began < seconds or n == 0:
        run()
        n += updates
    return (time.perf_counter() - began) / n


def compare(model: str, chains: int, args) -> dict:
    settings = dict(loops.MODELS[model])
    if args.thin:
        settings["updates"] = args.thin
    step, point = loops.our_step(model, "JAX", "float32", settings)
    ours = Ours(step, point, chains)
    hand, _ = loops.hand_or_blackjax(model, "hand-jax", "float32", settings, chains)
    for _ in range(3):  # until calls have their full length
        ours.run(args.seconds / 2)
    pairs = [
        (ours.run(args.seconds), by_hand(hand, settings["updates"], args.seconds))
        for _ in range(args.turns)
    ]
    mine, theirs = np.median(pairs, axis=0)
    flops, n_bytes = (w * chains / mine for w in work(model, settings))
    result = {
        "model": model,
        "chains": chains,
        "updates_per_second": chains / mine,
        "by_hand": chains / theirs,
        "ratio": float(np.median([b / a for a, b in pairs])),
    }
    if args.peak_gbytes:
        result["memory"] = n_bytes / (args.peak_gbytes * 1e9)
    if args.peak_tflops:
        result["compute"] = flops / (args.peak_tflops * 1e12)
    ours.blocks.close()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=CHAINS, action="append")
    parser.add_argument("--chains", type=int, action="append")
    parser.add_argument("--thin", type=int, help="updates per draw; default: that of loops.py")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--peak-gbytes", type=float, help="memory bandwidth of the device, GB/s")
    parser.add_argument("--peak-tflops", type=float, help="float32 speed of the device, TFLOP/s")
    parser.add_argument("--write", action="store_true", help="store the table")
    args = parser.parse_args()
    lines = []

    def write(line):
        print(line, flush=True)
        lines.append(line)
        if args.write:
            RESULTS.write_text("\n".join(lines) + "\n")

    command = " ".join(["python benchmarks/chains.py", *sys.argv[1:]])
    device = jax.devices()[0].device_kind
    write(f"{command}   ({time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {device}, float32)")
    write("updates per second over all chains; ratio: ours to the hand-written loop")
    for model in args.model or CHAINS:
        for chains in args.chains or CHAINS[model]:
            result = compare(model, chains, args)
            shares = [
                f"  {name} {result[name]:.0%}" for name in ("memory", "compute") if name in result
            ]
            write(
                f"{model}  {chains:5d} chains  {result['updates_per_second']:12,.0f} a second"
                f"  ratio {result['ratio']:.2f}{''.join(shares)}"
            )


if __name__ == "__main__":
    main()
