"""The interface between the draws of many chains together and what advances them by one call.

The chains are stacked: their arrays have a leading chain axis. A *piece* is a whole draw or, where
a draw takes long, a part of one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from pymc_sgmcmc.loop import Outcome


class Carry(NamedTuple):
    """The state of all chains between two pieces of a draw: arrays with a leading chain axis.

    The last two are about the draw in progress.
    """

    theta: list
    state: list
    """That of the algorithm and of the source, flat, in the loop's order."""
    rng: Any
    variable: Any
    """Number of the variable that became non-finite in this draw, or -1."""
    update: Any
    """Number of the update, within the draw, at which it did."""


class Piece(NamedTuple):
    """The results of each piece: arrays with leading axes (pieces, chains)."""

    theta: list
    potential: Any
    per_update: list
    """As in an `Outcome`."""
    variable: Any
    update: Any
    diagnostics: list
    """Those of the state after the piece."""


def go_on(
    carry: Carry, outcome: Outcome, done: Any, failure: tuple[Any, Any, Any], select: Callable
) -> tuple[Carry, Piece]:
    """Go on from a piece of a draw; once one is not finite, stay at the last finite point.

    Parameters
    ----------
    carry : Carry
        One chain's, before the piece.
    outcome : Outcome
        The piece's, with its state in one list.
    done : int
        Updates of the draw before the piece.
    failure : tuple of (bool, int, int)
        Whether the piece is not finite, and if so the variable and update of `first_nonfinite`.
    select : callable
        ``select(condition, a, b)`` is a if the condition holds, else b: `jax.numpy.where`, as
        traced code cannot branch.

    Returns
    -------
    carry : Carry
    piece : Piece
    """
    failed, culprit, at = failure
    variable = select(done == 0, -1, carry.variable)
    fails_here = failed & (variable < 0)
    update = select(fails_here, done + at, carry.update)
    variable = select(fails_here, culprit, variable)
    moved = variable < 0

    def keep(new: list, old: list) -> list:
        return [select(moved, a, b) for a, b in zip(new, old, strict=True)]

    theta = keep(outcome.theta, carry.theta)
    carry = Carry(theta, keep(outcome.state, carry.state), outcome.rng, variable, update)
    potential = select(moved, outcome.potential, np.nan)
    piece = Piece(theta, potential, outcome.per_update, variable, update, outcome.diagnostics)
    return carry, piece


class StackedChains(Protocol):
    """A loop's chains, stacked: on JAX's devices (`DeviceChains`) or in threads (`ThreadChains`).

    Attributes
    ----------
    carry : Carry
        After the last call.
    asynchronous : bool
        Whether `advance` returns before its pieces are computed.
    """

    carry: Carry
    asynchronous: bool

    @property
    def slowdown(self) -> float:
        """Estimated time of all chains relative to one chain, before it is measured."""
        ...

    def advance(
        self,
        n: int,
        done: int,
        h: np.ndarray,
        rows: list[np.ndarray],
        blocks: dict[int, np.ndarray],
    ) -> Piece:
        """Run pieces of draws and return their results.

        Parameters
        ----------
        n : int
            How many of the ``D`` pieces below to run: one compilation serves all numbers.
        done : int
            Updates of the draw that are done already; 0 where each piece begins a draw.
        h : array, shape (D, k)
            Step sizes of the ``k`` updates of each piece.
        rows : list of arrays, shape (D, chains, k, batch size)
            Row numbers of each stream.
        blocks : dict of arrays, shape (D, chains, k * batch size, ...)
            Streamed rows, by their place among the constants.
        """
        ...

    def is_ready(self, piece: Piece) -> bool:
        """Whether a piece can be read without waiting."""
        ...

    def fetch(self, tree: Any) -> Any:
        """Wait for arrays and bring them to the host."""
        ...

    def one_of(self, rng: Any, chain: int) -> Any:
        """Return one chain's generator from a fetched carry."""
        ...
