"""All chains in one compiled JAX call, on one device or spread over several."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pymc_sgmcmc.loop import Loop, first_nonfinite
from pymc_sgmcmc.pymc_internals import jitted
from pymc_sgmcmc.run.stacked import Carry, Piece, go_on

CHAINS = "chains"
"""Name of the mesh axis: the first axis of every array of a `Carry`."""


class DeviceChains:
    """A loop's chains on JAX's devices: `StackedChains`.

    Data and state stay on the device. Calls are asynchronous: they return `jax.Array`s that block
    when they are read.

    Parameters
    ----------
    loop : Loop
        Compiled for JAX.
    constants : list of arrays
        Data and scales, the same for all chains; one copy on each device.
    theta, state : lists of arrays
        With a leading chain axis, on the host.
    rngs : list
        Each chain's generator.
    """

    def __init__(self, loop: Loop, constants: list, theta: list, state: list, rngs: list):
        n_chains = len(rngs)
        devices = jax.devices()
        # Each device has the same number of chains, as XLA's sharding requires.
        count = max(k for k in range(1, len(devices) + 1) if n_chains % k == 0)
        self.devices = devices[:count]
        mesh, self._advance = _compiled(jitted(loop.function), loop.outcome, tuple(self.devices))
        if count > 1:
            constants = jax.device_put(constants, NamedSharding(mesh, P()))
        self._constants = constants
        self._rows_go = NamedSharding(mesh, P(None, CHAINS))
        rng = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *rngs)
        none = np.full(n_chains, -1, "int32")
        self.carry = jax.device_put(
            Carry(theta, state, rng, none, none), NamedSharding(mesh, P(CHAINS))
        )

    asynchronous = True

    @staticmethod
    def is_ready(piece: Piece) -> bool:
        """Whether a piece can be read without waiting."""
        return piece.potential.is_ready()

    @staticmethod
    def fetch(tree: Any) -> Any:
        """Wait for arrays and bring them to the host."""
        return jax.device_get(tree)

    @staticmethod
    def one_of(rng: Any, chain: int) -> Any:
        """Return one chain's generator from a fetched carry."""
        return jax.tree.map(lambda leaf: leaf[chain], rng)

    @property
    def slowdown(self) -> float:
        """Estimated time of all chains relative to one chain, before it is measured."""
        return len(self.carry.variable) if self.devices[0].platform == "cpu" else 1

    def advance(
        self,
        n: int,
        done: int,
        h: np.ndarray,
        rows: list[np.ndarray],
        blocks: dict[int, np.ndarray],
    ) -> Piece:
        """Run pieces of draws, as `StackedChains.advance`, without waiting for them."""
        self.carry, pieces = self._advance(
            self.carry,
            np.int32(n),
            np.int32(done),
            h,
            jax.device_put((rows, blocks), self._rows_go),
            self._constants,
        )
        return pieces


@lru_cache(maxsize=16)
def _compiled(function: Callable, outcome: Callable, devices: tuple) -> tuple[Mesh, Callable]:
    """Return the devices' mesh and `_advance` for it, cached for later runs of the loop."""
    mesh = Mesh(np.array(devices), (CHAINS,))
    advance = partial(_advance, function, outcome)
    chains, pieces, everywhere = P(CHAINS), P(None, CHAINS), P()
    if len(devices) > 1:
        # Chains never communicate: with shard_map XLA need not find that out.
        advance = jax.shard_map(
            advance,
            mesh=mesh,
            in_specs=(chains, everywhere, everywhere, everywhere, pieces, everywhere),
            out_specs=(chains, pieces),
            check_vma=False,
        )
    # For one device too: outputs are the next inputs, and another sharding would compile again.
    return mesh, jax.jit(
        advance, out_shardings=(NamedSharding(mesh, chains), NamedSharding(mesh, pieces))
    )


def _advance(function, outcome, carry, n, done, h, batches, constants):
    """``n`` pieces of all chains, in one compiled loop."""

    def one_chain(carry, h, batches):
        rows, blocks = batches
        data = [blocks.get(place, constant) for place, constant in enumerate(constants)]
        out = outcome(function(h, *rows, *carry.theta, *carry.state, carry.rng, *data))
        culprit, at = first_nonfinite(out.squared_gradient, out.theta, jnp)
        failure = ~jnp.isfinite(out.checksum), culprit.astype("int32"), at.astype("int32")
        return go_on(carry, out, done, failure, jnp.where)

    all_chains = jax.vmap(one_chain, in_axes=(0, None, 0))
    if len(h) == 1:  # without a loop's copies, which for a large network take as long as an update
        carry, piece = all_chains(carry, h[0], _piece(batches, 0))
        return carry, jax.tree.map(lambda one: one[None], piece)
    _, like = jax.eval_shape(all_chains, carry, h[0], _piece(batches, 0))
    kept = jax.tree.map(lambda one: jnp.zeros((len(h), *one.shape), one.dtype), like)

    def body(i, both):
        carry, kept = both
        carry, piece = all_chains(carry, h[i], _piece(batches, i))
        return carry, jax.tree.map(lambda all, one: all.at[i].set(one), kept, piece)

    return jax.lax.fori_loop(0, n, body, (carry, kept))


def _piece(batches, i):
    return jax.tree.map(lambda all: all[i], batches)
