"""The measurements of gpu.py, in a separate process: one JSON line per case.

    python benchmarks/gpu_cases.py '[{"function": "noise", "n": 478410, "repeats": 50}]' false '{}'

Every timed call is waited for. Calls that compile are left out of the times and counted apart;
contenders take turns, and each one's time is the median of its calls.
"""

import contextlib
import json
import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple
from unittest import mock

import numpy as np

os.environ["PYTENSOR_FLAGS"] = ",".join(
    filter(None, [os.environ.get("PYTENSOR_FLAGS"), "floatX=float32"])
)
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

SMALL = {
    "blr": dict(n_rows=500, columns=12, updates=10),
    "mlp": dict(n_rows=500, columns=20, width=8, updates=5),
    "mlp-1200": dict(n_rows=500, columns=20, width=12, updates=5),
}
"""Instead of the real sizes, to test that everything runs."""
PEAKS = {  # by the vendor, dense: GB/s, TFLOP/s in float32 and in TF32
    "NVIDIA H200": (4800, 67, 494),
    "NVIDIA H100 80GB HBM3": (3350, 67, 494),
    "NVIDIA H100 PCIe": (2000, 51, 378),
    "NVIDIA A100-SXM4-80GB": (2039, 19.5, 156),
    "NVIDIA A100-SXM4-40GB": (1555, 19.5, 156),
    "NVIDIA L40S": (864, 91.6, 183),
    "NVIDIA L4": (300, 30.3, 60),
}
UNROLLED = "pytensor.link.jax.dispatch.scan.jax_scan"
"""What PyTensor calls for a loop on JAX."""


class Unavailable(Exception):
    """A contender cannot be measured here; the message says why."""


class Context(NamedTuple):
    """What all measurements share."""

    tiny: bool
    device: dict
    """What `measure_device` found."""
    turns: int = 5
    """Of each contender."""
    seconds: float = 0.4
    """Length of a turn."""

    def settings(self, model: str) -> dict:
        import loops

        return loops.MODELS[model] | (SMALL[model] if self.tiny else {})


def median_call(context: Context, *runs) -> list[float]:
    """Median seconds of a call of each contender, over turns in which each is called for a while.

    The first calls, which compile, have been made before.
    """
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(context.turns):
        for run, own in zip(runs, times, strict=True):
            stop = time.perf_counter() + context.seconds
            first = True
            while first or time.perf_counter() < stop:
                first = False
                began = time.perf_counter()
                run()
                own.append(time.perf_counter() - began)
    return [float(np.median(own)) for own in times]


def timed(call):
    """A call's result and its seconds."""
    began = time.perf_counter()
    return call(), time.perf_counter() - began


class Ours:
    """The compiled call of all chains alone: its rows lie on the device, draws are not fetched."""

    def __init__(self, step, point, chains: int):
        import jax

        from pymc_sgmcmc.run.chain_batches import ChainBatches
        from pymc_sgmcmc.run.mapped_chains import VectorizedChains

        together = VectorizedChains(
            step, [point] * chains, np.random.default_rng(0).spawn(chains), 0, 10**9
        )
        self.chains = together._stack()
        with ThreadPoolExecutor() as threads:
            batches = ChainBatches(together.chains).take(threads, 1, 1, step.thin)
        self.rows = jax.device_put(batches.rows, self.chains._rows_go)
        h = step.kernel.step_sizes(0, step.thin).astype("float32")
        self.h = h.reshape(1, step.thin, *h.shape[1:])

    def __call__(self):
        import jax

        piece = self.chains.advance(1, 0, self.h, self.rows, {})
        jax.block_until_ready((self.chains.carry, piece))
        return piece

    def check(self):
        """Raise an error for non-finite chains: their timing would be meaningless."""
        assert (np.asarray(self().variable) < 0).all(), "a chain became non-finite"


@cache
def our_step(model: str, **settings):
    """A step, its start and the seconds that PyTensor took; the same for all numbers of chains."""
    import loops

    began = time.perf_counter()
    step, point = loops.our_step(model, "JAX", "float32", settings)
    return step, point, time.perf_counter() - began


@contextlib.contextmanager
def unrolled(updates: int):
    """Compile with so many updates in the body of the loop.

    Not an option of this package: what PyTensor calls for a loop is replaced meanwhile.
    """
    if updates == 1:
        yield
        return
    import jax
    from pytensor.link.jax.dispatch import scan

    jax.clear_caches()
    calls = []

    def with_unroll(*args, **kwargs):
        calls.append(1)
        return original(*args, unroll=updates, **kwargs)

    original = scan.jax_scan
    with mock.patch(UNROLLED, with_unroll):
        yield
    jax.clear_caches()
    assert calls, "no loop was traced again"


@contextlib.contextmanager
def precision(name: str | None):
    """How exactly matrices of float32 are multiplied; None leaves JAX's default."""
    import jax

    jax.config.update("jax_default_matmul_precision", name)
    yield
    jax.config.update("jax_default_matmul_precision", None)


def shares(flops: float, n_bytes: float, seconds: float, device: dict) -> dict:
    """The least work of an update as a percentage of the device's limits."""
    if not device:
        return {}
    moved, computed = n_bytes / seconds / 1e9, flops / seconds / 1e12
    found = {
        "memory, % of copy": 100 * moved / device["copy GB/s"],
        "arithmetic, % of matmul": 100 * computed / device["matmul TFLOP/s, default"],
    }
    if device["kind"] in PEAKS:
        gbytes, float32, tf32 = PEAKS[device["kind"]]
        stated = tf32 if device["default is TF32"] else float32
        found["memory, % stated"] = 100 * moved / gbytes
        found["arithmetic, % stated"] = 100 * computed / stated
    return found


def speed(context, model, chains, unroll=1, matmul=None) -> dict:
    """The compiled call of an ordinary model against the hand-written loop."""
    import loops
    from chains import work

    settings = context.settings(model)
    step, point, graph = our_step(model, **settings)
    with precision(matmul):
        with unrolled(unroll):
            ours = Ours(step, point, chains)
            _, first = timed(ours)
        by_hand = partial(loops.hand_or_blackjax, model, "hand-jax", "float32", settings)
        hand, first_of_hand = by_hand(chains, unroll)
        ours.check()
        mine, theirs = median_call(context, ours, hand)
    ours.check()
    n = settings["updates"]
    return compared(n, chains, mine, theirs) | {
        "compile s, PyTensor": graph,
        "XLA": first,
        "by hand": first_of_hand,
        **shares(*(w * n * chains for w in work(model, settings)), mine, context.device),
    }


def compared(updates: int, chains: int, mine: float, theirs: float) -> dict:
    """Times of a call as numbers of updates, all chains counted."""
    return {
        "us per update": 1e6 * mine / updates,
        "by hand, us": 1e6 * theirs / updates,
        "ratio": theirs / mine,
        "updates per second": updates * chains / mine,
    }


def whole(context, model, chains) -> dict:
    """All that `sample` does but storing: rows drawn on the host and sent, draws fetched."""
    import chains as many
    import loops

    settings = context.settings(model)
    step, point, _ = our_step(model, **settings)
    ours = many.Ours(step, point, chains)
    hand, _ = loops.hand_or_blackjax(model, "hand-jax", "float32", settings, chains)
    for _ in range(3):  # until calls have their full length
        ours.run(context.seconds)
    one_turn = context._replace(turns=1)
    turns = [
        (ours.run(context.seconds), *median_call(one_turn, hand)) for _ in range(context.turns)
    ]
    ours.blocks.close()
    mine, theirs = np.median(turns, axis=0)
    return compared(settings["updates"], chains, mine * settings["updates"], theirs)


@cache
def network_step(pixels: int, units: int):
    """As `our_step`, of the belief network."""
    import sbn_speed

    began = time.perf_counter()
    step = sbn_speed.make_step("JAX", pixels, [units])
    return step, step.model.initial_point(), time.perf_counter() - began


def belief_network(context, chains) -> dict:
    """Doubly stochastic Gibbs gradients, 5 + 5 sweeps, batches of 100."""
    import sbn_by_hand
    import sbn_speed

    pixels, units = (9, 4) if context.tiny else (784, 200)
    step, point, graph = network_step(pixels, units)
    ours = Ours(step, point, chains)
    _, first = timed(ours)
    settings = dict(batch_size=100, updates=step.thin, step_size=1e-4, burn_in=5, n_samples=5)
    hand = sbn_by_hand.by_hand(sbn_speed.random_images(pixels), units, settings, chains)
    _, first_of_hand = timed(hand)
    ours.check()
    mine, theirs = median_call(context, ours, hand)
    ours.check()
    n_parameters = units + units * pixels + pixels
    least = sbn_by_hand.work(pixels, units, settings, n_parameters)
    return compared(step.thin, chains, mine, theirs) | {
        "compile s, PyTensor": graph,
        "XLA": first,
        "by hand": first_of_hand,
        **shares(*(w * step.thin * chains for w in least), mine, context.device),
    }


def noise(context, n, repeats) -> dict:
    """Standard normals, many draws in a compiled loop that adds them up."""
    import jax
    from normals import loop

    from pymc_sgmcmc.backends.random_jax import normals

    draws = (lambda key: normals(key, n, "float32"), lambda key: jax.random.normal(key, (n,)))
    runs = [loop(draw, n, repeats, "float32") for draw in draws]
    for run in runs:
        run()
    mine, own = median_call(context, *runs)
    n_bytes = 4 * n * repeats / 1e9
    return {"GB/s": n_bytes / mine, "JAX's own, GB/s": n_bytes / own, "ratio": own / mine}


def measure_device(context) -> dict:
    """Which device this is, a large copy, and matrix products by precision."""
    import jax
    import jax.numpy as jnp

    n_copied, n = (2**20, 64) if context.tiny else (2**29, 8192)
    key = jax.random.key(0)
    x = jax.random.normal(key, (n_copied,), "float32")
    copy = jax.jit(jnp.negative)
    copy(x)
    (seconds,) = median_call(context, lambda: jax.block_until_ready(copy(x)))
    found = {"copy GB/s": 2 * x.nbytes / seconds / 1e9}
    a = jax.random.normal(key, (n, n), "float32")
    errors = {}
    for name in ("default", "tensorfloat32", "highest"):
        with precision(None if name == "default" else name):
            product = jax.jit(lambda a: a @ a)
            first = np.asarray(product(a)[:16]).astype(float)
            (seconds,) = median_call(context, lambda f=product: jax.block_until_ready(f(a)))
        exact = np.asarray(a[:16]).astype(float) @ np.asarray(a).astype(float)
        errors[name] = float(np.linalg.norm(first - exact) / np.linalg.norm(exact))
        found[f"matmul TFLOP/s, {name}"] = 2 * n**3 / seconds / 1e12
        found[f"its error, {name}"] = errors[name]
    device = jax.devices()[0]
    return found | {
        "platform": device.platform,
        "kind": device.device_kind,
        # found from the products' errors: XLA chooses the default
        "default is TF32": errors["default"] > 10 * errors["highest"],
        "versions": ", ".join(versions("jax", "jaxlib", "pymc", "pytensor", "numpy")),
    }


def versions(*names):
    for name in names:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name} missing"


def bias(context, matmul) -> dict:
    """Posterior sd of a normal regression with many outputs, relative to the exact one.

    Gradients take all rows: nothing but the step size, near 0.1%, and rounding can bias it.
    """
    import pymc as pm

    import pymc_sgmcmc as sgm

    n_rows, size, chains, draws = (200, 4, 2, 40) if context.tiny else (1000, 64, 16, 400)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, size)).astype("float32")
    Y = (X @ rng.normal(size=(size, size)) + rng.normal(size=(n_rows, size))).astype("float32")
    precision_matrix = X.T.astype(float) @ X + np.eye(size)
    exact = np.sqrt(np.diag(np.linalg.inv(precision_matrix)))
    centre = np.linalg.solve(precision_matrix, X.T.astype(float) @ Y)
    start = {"W": centre.astype("float32")}  # from far away, thermostats take long to cool down
    with precision(matmul), pm.Model():
        W = pm.Normal("W", 0, 1, shape=(size, size))
        pm.Normal("Y", X @ W, 1, observed=Y)
        step = sgm.MSGNHT_S(
            step_size=0.1 / np.sqrt(n_rows),
            diffusion=np.sqrt(n_rows),
            thin=20,
            self_check=False,
            initial_point=start,
            compile_kwargs={"mode": "JAX"},
        )
        tree = sgm.sample(
            draws,
            tune=draws // 2,
            chains=chains,
            step=step,
            initvals=start,
            chain_method="vectorized",
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    W = tree.posterior["W"].values.astype(float)
    # squared errors about the exact mean: their root mean square, one independent error per chain
    squared = ((W - centre) / exact[:, None]) ** 2
    by_chain = squared.mean(axis=(1, 2, 3))
    ratio = float(np.sqrt(by_chain.mean()))
    error = float(by_chain.std(ddof=1) / np.sqrt(chains) / (2 * ratio))
    return {"sd ratio": ratio, "its MC error": error}


def posteriors(context, model) -> dict:
    """PyTorch, one Python call per update, one chain."""
    try:
        import torch
        from loop_posteriors import updates
    except ImportError as error:
        raise Unavailable(f"not installed here: {error}") from error
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = context.settings(model)
    torch.manual_seed(0)
    run = updates(model, "float32", settings, device)
    run()
    (seconds,) = median_call(context, run)
    return {"us per update": 1e6 * seconds / settings["updates"], "on": device}


FUNCTIONS = {
    f.__name__: f for f in (measure_device, speed, whole, belief_network, noise, bias, posteriors)
}


def main():
    cases, tiny, device = map(json.loads, sys.argv[1:])
    context = Context(tiny, device, 1, 0.001) if tiny else Context(tiny, device)
    for k, options in enumerate(cases):
        function = FUNCTIONS[options.pop("function")]
        try:
            row = function(context, **options)
            if function is measure_device:
                context.device.update(row)
            answer = {"row": row}
        except Unavailable as reason:
            answer = {"left_out": str(reason)}
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        print(json.dumps({"case": k} | answer), flush=True)


if __name__ == "__main__":
    main()
