"""All chains in one compiled JAX call, on one device or distributed over several."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pymc_sgmcmc.loop import Loop, Outcome, first_nonfinite
from pymc_sgmcmc.pymc_internals import jitted

CHAINS = "chains"
"""Name of the mesh axis, the first axis of every array of a `Carry`."""


class Carry(NamedTuple):
    """The state of all chains between two pieces of a draw, as arrays with a leading chain axis."""

    theta: list
    state: list
    """State of the algorithm and of the source, flat, in the loop's order."""
    rng: Any
    variable: Any
    """Index of the variable that became non-finite in this draw, or -1."""
    update: Any
    """Index of the update within the draw at which that happened."""


class Piece(NamedTuple):
    """The results of each piece: arrays with leading axes (pieces, chains)."""

    theta: list
    potential: Any
    per_update: list
    """Scalars of each update, as in an `Outcome`."""
    variable: Any
    update: Any
    diagnostics: list
    """Diagnostics of the state after the piece."""


def _go_on(
    carry: Carry, outcome: Outcome, done: Any, failure: tuple[Any, Any, Any]
) -> tuple[Carry, Piece]:
    """Continue from a piece of one chain's draw, unless it is not finite: then stay before it.

    ``failure`` contains whether the piece is not finite, and the variable and update from
    `first_nonfinite`.
    """
    failed, culprit, at = failure
    variable = jnp.where(done == 0, -1, carry.variable)
    fails_here = failed & (variable < 0)
    update = jnp.where(fails_here, done + at, carry.update)
    variable = jnp.where(fails_here, culprit, variable)
    moved = variable < 0

    def keep(new: list, old: list) -> list:
        return [jnp.where(moved, a, b) for a, b in zip(new, old, strict=True)]

    theta = keep(outcome.theta, carry.theta)
    carry = Carry(theta, keep(outcome.state, carry.state), outcome.rng, variable, update)
    potential = jnp.where(moved, outcome.potential, np.nan)
    piece = Piece(theta, potential, outcome.per_update, variable, update, outcome.diagnostics)
    return carry, piece


class DeviceChains:
    """A loop's chains on JAX's devices, where data and state stay; calls are asynchronous."""

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
        """Estimated time of all chains relative to that of one chain, before it is measured."""
        return len(self.carry.variable) if self.devices[0].platform == "cpu" else 1

    def advance(
        self,
        n: int,
        done: int,
        h: np.ndarray,
        rows: list[np.ndarray],
        blocks: dict[int, np.ndarray],
    ) -> Piece:
        """Run the first ``n`` of the pieces of draws in ``h``, (D, k), without waiting for them.

        ``rows`` has row numbers of each stream, shape (D, chains, k, batch size), and ``blocks``
        streamed rows, (D, chains, k * batch size, ...), by their position among the constants.
        """
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
        # Chains never communicate; shard_map spares XLA finding that out.
        advance = jax.shard_map(
            advance,
            mesh=mesh,
            in_specs=(chains, everywhere, everywhere, everywhere, pieces, everywhere),
            out_specs=(chains, pieces),
            check_vma=False,
        )
    # Also for one device: outputs are the next inputs, and another sharding would compile again.
    return mesh, jax.jit(
        advance, out_shardings=(NamedSharding(mesh, chains), NamedSharding(mesh, pieces))
    )


def _advance(function, outcome, carry, n, done, h, batches, constants):
    """Run ``n`` pieces of all chains in one compiled loop."""

    def one_chain(carry, h, batches):
        rows, blocks = batches
        data = [blocks.get(place, constant) for place, constant in enumerate(constants)]
        out = outcome(function(h, *rows, *carry.theta, *carry.state, carry.rng, *data))
        culprit, at = first_nonfinite(out.squared_gradient, out.theta, jnp)
        failure = ~jnp.isfinite(out.checksum), culprit.astype("int32"), at.astype("int32")
        return _go_on(carry, out, done, failure)

    all_chains = jax.vmap(one_chain, in_axes=(0, None, 0))
    if len(h) == 1:  # avoids a loop's copies, which in a large network take as long as an update
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
