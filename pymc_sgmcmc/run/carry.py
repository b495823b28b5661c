"""What engines that advance many chains together take from call to call, and what they give.

A *piece* is a whole draw or, where a draw takes long, a part of one.
"""

from typing import Any, NamedTuple


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
