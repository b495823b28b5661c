"""One contender in one process: updates per second of one sampler loop on one model.

    python benchmarks/loops.py blr pymc_sgmcmc-numba float32

prints a JSON line. All contenders run mSGNHT-S (BlackJAX: its own SGNHT) with the same data, prior,
batch size and step size, many updates in one compiled call. `speed.py` runs them side by side.
"""

import argparse
import itertools
import json
import time

import numpy as np

MODELS = {
    "blr": dict(n_rows=32_561, columns=123, batch_size=50, updates=1000, step_size=1e-3),
    "mlp": dict(n_rows=60_000, columns=784, batch_size=100, updates=50, step_size=1e-4, width=400),
}
MODELS["mlp-1200"] = MODELS["mlp"] | dict(width=1200)
# of LeNet's type: 5 x 5 convolutions to 32 and 64 channels, each pooled 2 x 2, then 200-200
MODELS["cnn"] = dict(n_rows=60_000, columns=784, batch_size=100, updates=5, step_size=1e-5)


def layers(settings) -> list[int]:
    """Sizes of an MLP's layers, from pixels to classes."""
    return [settings["columns"], settings["width"], settings["width"], 10]


def weight_shapes(settings) -> list[tuple[int, ...]]:
    """Of each layer of a network; kernels have four axes."""
    if "width" in settings:
        return list(itertools.pairwise(layers(settings)))
    return [(5, 5, 1, 32), (5, 5, 32, 64), (1024, 200), (200, 200), (200, 10)]


def data(model: str, dtype: str, n_rows: int, columns: int = 123):
    """Rows as wide as a9a (11% ones) or MNIST (uniform pixels), with labels."""
    rng = np.random.default_rng(0)
    if model == "blr":
        X = (rng.random((n_rows, columns), dtype="float32") < 0.11).astype(dtype)
        weights = rng.normal(size=columns).astype(dtype)
        y = rng.random(n_rows) < 1 / (1 + np.exp(-(X @ weights)))
        return X, y.astype("int32")
    pixels = rng.random((n_rows, columns)).astype(dtype)
    return pixels, rng.integers(10, size=n_rows, dtype="int32")


def initial_weights(settings, dtype):
    rng = np.random.default_rng(1)
    shapes = enumerate(weight_shapes(settings))
    return {f"W{k}": (0.05 * rng.normal(size=shape)).astype(dtype) for k, shape in shapes}


def our_step(model, backend, dtype, settings):
    """A step that runs ``settings["updates"]`` updates per draw, and a starting point."""
    import pymc as pm
    import pytensor

    pytensor.config.floatX = dtype
    import pytensor.tensor as pt

    import pymc_sgmcmc as sgm

    columns = settings["columns"]
    X, y = data(model, dtype, settings["n_rows"], columns)
    start = {}
    with pm.Model() as pymc_model:
        features = pm.Data("X", X)
        if model == "blr":
            w = pm.Normal("w", 0, np.sqrt(10).astype(dtype), shape=columns)
            b = pm.Normal("b", 0, np.sqrt(10).astype(dtype))
            pm.Bernoulli("y", logit_p=features @ w + b, observed=y)
        else:
            start = initial_weights(settings, dtype)
            shapes = weight_shapes(settings)
            a = features
            for k, shape in enumerate(shapes):
                W = pm.Normal(f"W{k}", 0, 1, shape=shape)
                b = pm.Normal(f"b{k}", 0, 1, shape=shape[-1])
                if len(shape) == 4:
                    a = a.reshape((-1, 28, 28, 1)) if k == 0 else a
                    a = sgm.max_pool2d(pt.maximum(sgm.conv2d(a, W) + b, 0))
                    continue
                a = a.reshape((-1, shape[0])) @ W + b
                a = pt.maximum(a, 0) if k < len(shapes) - 1 else a
            pm.Categorical("y", logit_p=a, observed=y)
        point = pymc_model.initial_point() | start
        step = sgm.MSGNHT_S(
            step_size=settings["step_size"],
            batch_size=settings["batch_size"],
            thin=settings["updates"],
            replacement=False,
            self_check=False,
            initial_point=point,
            compile_kwargs={"mode": backend},
        )
    return step, point


def ours(model, backend, dtype, settings):
    """A callable that runs the updates of one draw, and the seconds until the first was done."""
    began = time.perf_counter()
    step, point = our_step(model, backend, dtype, settings)
    state = {"point": point}

    def run():
        state["point"], [stats] = step.step(state["point"])
        assert not stats["nonfinite"]

    for _ in range(3):  # until calls have their full length
        run()
    return run, time.perf_counter() - began


def hand_or_blackjax(model, who, dtype, settings, chains=None, unroll=1):
    """The loop that a JAX user would write: gradient, noise and rows in one lax.scan.

    With ``chains``, as many at once: the loop under `jax.vmap`. ``unroll`` updates stand in the
    body of the compiled loop. "hand-jax-calls" is one compiled call per update, without the scan:
    within one, XLA's convolutions take 20 times as long on CPUs.
    """
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", dtype == "float64")
    N, n, h = settings["n_rows"], settings["batch_size"], settings["step_size"]
    X, y = map(jnp.asarray, data(model, dtype, N, settings["columns"]))
    began = time.perf_counter()
    if model == "blr":
        theta = {"w": jnp.zeros(settings["columns"], dtype), "b": jnp.zeros((), dtype)}

        def log_likelihood(theta, X, y):
            logit = X @ theta["w"] + theta["b"]
            return y * logit - jax.nn.softplus(logit)

        prior_variance = 10.0
    else:
        theta = {k: jnp.asarray(v) for k, v in initial_weights(settings, dtype).items()}
        shapes = weight_shapes(settings)
        theta |= {f"b{k}": jnp.zeros(shape[-1], dtype) for k, shape in enumerate(shapes)}

        def convolved(a, kernel):
            a = a.reshape(-1, 28, 28, 1) if a.ndim == 2 else a
            layout = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(a, kernel, (1, 1), "VALID", None, None, layout)

        def pooled(a):
            return jax.lax.reduce_window(
                a, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
            )

        def log_likelihood(theta, X, y):
            a = X
            for k, shape in enumerate(shapes):
                W, b = theta[f"W{k}"], theta[f"b{k}"]
                if len(shape) == 4:
                    a = pooled(jax.nn.relu(convolved(a, W) + b))
                    continue
                a = a.reshape(-1, shape[0]) @ W + b
                a = jax.nn.relu(a) if k < len(shapes) - 1 else jax.nn.log_softmax(a)
            return jnp.take_along_axis(a, y[:, None], axis=1)[:, 0]

        prior_variance = 1.0
    tree = jax.tree.map

    def log_posterior(theta, rows):
        prior = -0.5 / prior_variance * sum(jnp.sum(t**2) for t in jax.tree.leaves(theta))
        return prior + N / n * jnp.sum(log_likelihood(theta, X[rows], y[rows]))

    gradient = jax.grad(log_posterior)

    def normals(key, theta):
        leaves, structure = jax.tree.flatten(theta)
        keys = jax.random.split(key, len(leaves))
        draws = [jax.random.normal(k, t.shape, t.dtype) for k, t in zip(keys, leaves, strict=True)]
        return jax.tree.unflatten(structure, draws)

    def msgnht_s(state, key):
        theta, p, xi = state
        rows_key, noise_key = jax.random.split(key)
        rows = jax.random.randint(rows_key, (n,), 0, N)
        theta = tree(lambda t, q: t + h / 2 * q, theta, p)
        xi = tree(lambda x, q: x + h / 2 * (q * q - 1), xi, p)
        p = tree(
            lambda q, x, g, z: (
                jnp.exp(-h / 2 * x) * (jnp.exp(-h / 2 * x) * q + h * g + (2 * h) ** 0.5 * z)
            ),
            p,
            xi,
            gradient(theta, rows),
            normals(noise_key, p),
        )
        theta = tree(lambda t, q: t + h / 2 * q, theta, p)
        xi = tree(lambda x, q: x + h / 2 * (q * q - 1), xi, p)
        return (theta, p, xi), None

    if who.startswith("hand-jax"):
        update = msgnht_s
        state = (theta, normals(jax.random.key(1), theta), tree(jnp.ones_like, theta))
    else:
        import blackjax

        sgnht = blackjax.sgnht(lambda theta, rows: gradient(theta, rows), 1.0, 0.0)
        state = sgnht.init(theta, jax.random.key(1))

        def update(state, key):
            rows_key, key = jax.random.split(key)
            rows = jax.random.randint(rows_key, (n,), 0, N)
            return sgnht.step(key, state, rows, h), None

    def block(state, key):
        keys = jax.random.split(key, settings["updates"])
        return jax.lax.scan(update, state, keys, unroll=unroll)[0]

    if chains is not None:
        one_block, one_state = block, state
        state = tree(lambda leaf: jnp.broadcast_to(leaf, (chains, *leaf.shape)), one_state)

        def block(state, key):
            return jax.vmap(one_block)(state, jax.random.split(key, chains))

    block = jax.jit(block)
    if who == "hand-jax-calls":
        one_update = jax.jit(update)

        def block(state, key):
            for one_key in jax.random.split(key, settings["updates"]):
                state, _ = one_update(state, one_key)
            return state

    carry = {"state": state, "key": jax.random.key(2)}

    def run():
        carry["key"], key = jax.random.split(carry["key"])
        carry["state"] = jax.block_until_ready(block(carry["state"], key))

    run()
    return run, time.perf_counter() - began


def fetching(model, dtype, settings):
    """Only the rows: their numbers, and the reading of each batch's features and labels."""
    from numba import njit

    from pymc_sgmcmc.backends.software_prefetch import prefetch_rows
    from pymc_sgmcmc.batches.shuffled import Batches

    began = time.perf_counter()
    X, y = data(model, dtype, settings["n_rows"], settings["columns"])
    batches = Batches(len(X), settings["batch_size"], np.random.default_rng(2))

    @njit
    def fetch(X, y, rows):
        total = 0.0
        for batch in rows:
            prefetch_rows(X, batch)
            prefetch_rows(y, batch)
            for row in batch:
                total += X[row].sum() + y[row]
        return total

    def run():
        fetch(X, y, batches.take(settings["updates"]))

    run()
    return run, time.perf_counter() - began


def microseconds_per_update(run, updates: int, seconds: float) -> tuple[float, float, int]:
    """Median and mean over repeated calls of so many updates each, and the number of calls."""
    times = []
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(times) < 5:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return *(float(f(times)) / updates * 1e6 for f in (np.median, np.mean)), len(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("who")
    parser.add_argument("dtype", choices=["float32", "float64"])
    parser.add_argument("--rows", type=int, help="number of rows in the data")
    parser.add_argument("--columns", type=int, help="columns of the logistic regression")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long to measure")
    args = parser.parse_args()
    settings = dict(MODELS[args.model])
    settings["n_rows"] = args.rows or settings["n_rows"]
    settings["columns"] = args.columns or settings["columns"]
    if args.who.startswith("pymc_sgmcmc"):
        backend = args.who.split("-")[1].upper()
        run, first = ours(args.model, backend, args.dtype, settings)
    elif args.who == "rows-alone":
        run, first = fetching(args.model, args.dtype, settings)
    else:
        run, first = hand_or_blackjax(args.model, args.who, args.dtype, settings)
    us, mean, repeats = microseconds_per_update(run, settings["updates"], args.seconds)
    result = {"us_per_update": us, "mean_us": mean, "first_call_s": first, "repeats": repeats}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
