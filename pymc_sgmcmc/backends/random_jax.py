"""The random operations on JAX.

`Normals` are written in plain arithmetic, which XLA fuses into one vectorised loop. JAX's own
`normal` stores arrays of bits, and on a CPU it does not unroll the rounds.
"""

import jax.numpy as jnp
from jax import lax
from pytensor.link.jax.dispatch.basic import jax_funcify
from pytensor.link.jax.dispatch.random import jax_sample_fn

from pymc_sgmcmc.backends.box_muller import PARITY, ROTATIONS, ROUNDS, sine_series
from pymc_sgmcmc.backends.random_operations import GeneratorCopy, Normals


def threefry(key, x0, x1):
    """Return two random words: Threefry-2x32 with 13 rounds."""
    k = [key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY)]
    x0, x1 = x0 + k[0], x1 + k[1]
    for r in range(ROUNDS):
        left = jnp.uint32(ROTATIONS[r % 8])
        x0 = x0 + x1
        x1 = ((x1 << left) | (x1 >> (32 - left))) ^ x0
        if r % 4 == 3:
            s = r // 4 + 1
            x0, x1 = x0 + k[s % 3], x1 + k[(s + 1) % 3] + jnp.uint32(s)
    return x0, x1


def normals(key, n: int, dtype: str):
    """Draw ``n`` standard normals of a float type.

    Each normal uses the two words (in float64 four) of its own position: with two normals per
    position XLA would compute the words twice.
    """
    position = lax.iota(jnp.uint32, n)
    a, b = threefry(key, jnp.zeros_like(position), position)
    u = a.astype(dtype)
    s = lax.bitcast_convert_type(b, jnp.int32).astype(dtype)
    if dtype == "float64":
        c, d = threefry(key, jnp.ones_like(position), position)
        u, s = u + (c.astype(dtype) + 0.5) / 2**32, s + d.astype(dtype) / 2**32
    else:
        u = u + 0.5
    radius = jnp.sqrt(-2 * jnp.log(u * 2.0**-32))
    s = s * 2.0**-31
    return radius * s * jnp.polyval(jnp.asarray(sine_series(dtype)[::-1], dtype), s * s)


@jax_sample_fn.register(Normals)
def jax_sample_normals(op, node):
    """Draw with the generator's new key."""
    (n,) = node.default_output().type.shape

    def sample(key, size, dtype, n_given):
        # Without the barrier XLA would draw them again on CPUs, in each loop that uses them. On a
        # GPU it draws them once, in the kernel that uses them, which saves two passes over memory.
        z = normals(key, n, dtype)
        return lax.platform_dependent(z, cpu=lax.optimization_barrier, default=lambda z: z)

    return sample


@jax_funcify.register(GeneratorCopy)
def jax_funcify_generator_copy(op, **kwargs):
    """Copy only the dict, because keys never change."""
    return dict
