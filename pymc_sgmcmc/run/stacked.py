"""The seam between the draws of many chains together and what advances them by one call.

The chains are stacked: their arrays have a leading chain axis. A *piece* is a whole draw or, where
a draw takes long, a part of one.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np


class Carry(NamedTuple):
    """What all chains take from one piece of a draw to the next: arrays with a leading chain axis.

    The last two are about the draw in progress.
    """

    theta: list
    state: list
    """The algorithm's and the source's, flat, in the loop's order."""
    rng: Any
    variable: Any
    """Number of the variable that became non-finite in this draw, or -1."""
    update: Any
    """Number of the update, within the draw, at which it did."""


class Piece(NamedTuple):
    """What is kept of each piece: arrays with leading axes (pieces, chains)."""

    theta: list
    potential: Any
    per_update: list
    """As in an `Outcome`."""
    variable: Any
    update: Any
    diagnostics: list
    """Of the state after the piece."""


class StackedChains(Protocol):
    """A loop's chains, stacked: on JAX's devices (`DeviceChains`) or in threads (`ThreadChains`).

    Attributes
    ----------
    carry : Carry
        As the last call leaves it.
    asynchronous : bool
        Whether `advance` returns before its piece is there.
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
        """Run pieces of draws and return what they leave.

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
            Streamed rows, by the place among the constants that they take.
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
