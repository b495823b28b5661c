"""The belief network of sbn_speed.py as a JAX user would write it by hand, for comparison.

One hidden layer. An update is SGHMC_S with a doubly stochastic gradient: for each row of a batch,
burn-in sweeps of Gibbs sampling over the hidden units and then draws whose gradients are averaged.
All of it, rows and noise too, is in one `lax.scan`; many chains run under `jax.vmap`.
"""

import jax
import jax.numpy as jnp
import numpy as np

NU, SIGMA = 2.2, 0.09


def network_logits(theta, z):
    """Log odds of the pixels given hidden units, shape (rows, pixels)."""
    return z @ theta["W"] + theta["c"]


def sweep(theta, x, z, key):
    """Draw each hidden unit given all others; the logits follow as units change."""

    def draw_unit(j, carry):
        z, logits, log_odds_of_u = carry
        without = logits - z[:, j, None] * theta["W"][j]
        with_unit = without + theta["W"][j]
        gain = x * theta["W"][j] - jax.nn.softplus(with_unit) + jax.nn.softplus(without)
        log_odds = theta["b"][j] + gain.sum(axis=1)
        drawn = (log_odds > log_odds_of_u[:, j]).astype(z.dtype)
        logits = without + drawn[:, None] * theta["W"][j]
        return z.at[:, j].set(drawn), logits, log_odds_of_u

    u = jax.random.logistic(key, z.shape, z.dtype)
    return jax.lax.fori_loop(0, z.shape[1], draw_unit, (z, network_logits(theta, z), u))[0]


def log_joint(theta, x, z):
    """log p(x, z | theta), summed over rows."""
    hidden = jnp.sum(z * theta["b"] - jax.nn.softplus(theta["b"]))
    logits = network_logits(theta, z)
    return hidden + jnp.sum(x * logits - jax.nn.softplus(logits))


def log_prior(theta):
    """Student's t, up to a constant."""
    return sum(
        -(NU + 1) / 2 * jnp.sum(jnp.log1p((t / SIGMA) ** 2 / NU)) for t in jax.tree.leaves(theta)
    )


def latent_draws(theta, x, key, burn_in: int, n_samples: int):
    """Draws of the hidden units from consecutive sweeps, shape (n_samples, rows, units)."""
    start_key, key = jax.random.split(key)
    p = jax.nn.sigmoid(theta["b"])
    z = jax.random.bernoulli(start_key, p, (len(x), len(p))).astype(p.dtype)

    def one(z, key):
        z = sweep(theta, x, z, key)
        return z, z

    _, draws = jax.lax.scan(one, z, jax.random.split(key, burn_in + n_samples))
    return draws[burn_in:]


def by_hand(images, units: int, settings: dict, chains: int):
    """A callable that runs the updates of one block of all chains and waits until they are done.

    ``settings``: batch_size, updates, step_size, burn_in, n_samples.
    """
    h, n = settings["step_size"], settings["batch_size"]
    images = jnp.asarray(np.asarray(images, dtype="int8"))
    N, pixels = images.shape
    shapes = {"b": (units,), "W": (units, pixels), "c": (pixels,)}
    theta = {name: jnp.zeros((chains, *shape), "float32") for name, shape in shapes.items()}

    def log_posterior(theta, x, draws):
        likelihood = jnp.mean(jax.vmap(lambda z: log_joint(theta, x, z))(draws))
        return log_prior(theta) + N / n * likelihood

    gradient = jax.grad(log_posterior)

    def update(state, key):
        theta, p = state
        rows_key, latents_key, noise_key = jax.random.split(key, 3)
        x = images[jax.random.randint(rows_key, (n,), 0, N)].astype("float32")
        theta = jax.tree.map(lambda t, q: t + h / 2 * q, theta, p)
        draws = latent_draws(theta, x, latents_key, settings["burn_in"], settings["n_samples"])
        g = gradient(theta, x, draws)
        decay = jnp.exp(-h / 2)
        keys = dict(zip(p, jax.random.split(noise_key, len(p)), strict=True))
        p = {
            name: decay
            * (
                decay * q
                + h * g[name]
                + (2 * h) ** 0.5 * jax.random.normal(keys[name], q.shape, q.dtype)
            )
            for name, q in p.items()
        }
        theta = jax.tree.map(lambda t, q: t + h / 2 * q, theta, p)
        return (theta, p), None

    def block(state, key):
        return jax.lax.scan(update, state, jax.random.split(key, settings["updates"]))[0]

    blocks = jax.jit(lambda state, key: jax.vmap(block)(state, jax.random.split(key, chains)))
    carry = {"state": (theta, jax.tree.map(jnp.zeros_like, theta)), "key": jax.random.key(2)}

    def run():
        carry["key"], key = jax.random.split(carry["key"])
        carry["state"] = jax.block_until_ready(blocks(carry["state"], key))

    return run


def work(n_pixels: int, units: int, settings: dict, n_parameters: int) -> tuple[float, float]:
    """Floating-point operations and bytes of memory that an update cannot do without.

    For each row, sweep, unit and pixel: two additions to the logits, two softplus (counted as one
    operation each), two to combine them. The products of the gradient, of each draw, come on top.
    """
    n, draws = settings["batch_size"], settings["n_samples"]
    sweeps = settings["burn_in"] + draws
    flops = n * sweeps * units * n_pixels * 6 + 4 * n * draws * units * n_pixels
    return flops, n * n_pixels + 4 * 4 * n_parameters
