"""Checkpoints of a store's chains: how many of their draws count, and the sampler's state."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from pymc_sgmcmc.run.plain import load, save


class Checkpoints:
    """The checkpoints of chains that advance together.

    Two files in turn: whenever the process dies, the older one is whole.

    Parameters
    ----------
    folder : pathlib.Path
        Where a store keeps what is not draws.
    chains : range
        The chains' numbers.
    """

    def __init__(self, folder: Path, chains: range):
        name = f"chains_{chains.start}_{chains.stop - 1}"
        self.lock_path = folder / f"{name}.lock"
        self._slots = [folder / f"{name}.{slot}.npz" for slot in "ab"]

    def latest(self) -> dict[str, Any] | None:
        """Return the latest one that is whole."""
        found = []
        for path in self._slots:
            with suppress(FileNotFoundError, ValueError):
                found.append(load(path))
        return max(found, key=lambda c: c["number"], default=None)

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Write one in place of the one before the last."""
        save(self._slots[checkpoint["number"] % 2], checkpoint)
