"""The interface of a stream of batches for a chain, its warnings and its saved state."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

type TakenRows = np.ndarray | dict[str, np.ndarray]
"""Row numbers, shape (batches, batch size); or rows by container, batch after batch."""


class BatchStream(ABC):
    """A chain's stream of batches."""

    batch_size: int
    by_number = False
    """Whether updates look rows up by number."""
    longest = 2**63 - 1
    """Largest number of batches per call."""

    @abstractmethod
    def take(self, n_batches: int) -> TakenRows:
        """Return the rows of the next batches, which must not be modified."""

    @property
    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Plain values from which the stream continues identically."""

    @state.setter
    @abstractmethod
    def state(self, state: dict[str, Any]) -> None: ...

    def order_warning(self) -> str | None:
        """Return, once, what is wrong with the order of the rows read so far, if anything."""
        return None

    def infinite(self) -> list[str]:
        """Return the names of the containers with infinite values in the rows just read."""
        return []


def joined(parts: Sequence[Any]) -> Any:
    """Return the rows of some batches joined with those of later batches."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    return {name: np.concatenate([part[name] for part in parts]) for name in first}
