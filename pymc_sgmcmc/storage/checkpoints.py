"""Checkpoints of a store's chains: the number of valid draws and the sampler's state."""

from pathlib import Path
from typing import Any

from pymc_sgmcmc.file_lock import Lock
from pymc_sgmcmc.run.saved_state import load, save
from pymc_sgmcmc.storage.record import FOLDER


class Checkpoints:
    """The checkpoints of some chains of a run that advance together.

    They are written in turn to two files, of which one is complete whenever the process dies.
    """

    def __init__(self, path: Path, chains: range, run_id: str):
        self.chains, self.run_id = chains, run_id
        self._name = path / FOLDER / f"chains_{chains.start}_{chains.stop - 1}"
        self.slots = [self._name.with_suffix(f".{slot}.npz") for slot in "ab"]

    def lock(self) -> Lock:
        """Return the lock for writing these chains."""
        return Lock(self._name.with_suffix(".lock"), "these chains")

    @property
    def remedy(self) -> str:
        """How the user can sample these chains again."""
        files = " and ".join(str(slot) for slot in self.slots)
        return f"Delete {files}; then resume=True samples these chains again from their start."

    def latest(self) -> dict[str, Any] | None:
        """Return the latest complete checkpoint, if any, and refuse one of another run."""
        found, _ = self._read()
        return max(found, key=lambda checkpoint: checkpoint["number"], default=None)

    def damage_warning(self) -> str | None:
        """Return a warning if a damaged or missing checkpoint may have counted more draws."""
        found, damaged = self._read()
        begun = self._name.with_suffix(".lock").exists()
        missing = len(found) == 1 or (begun and not found)
        if not damaged and not missing:
            return None
        there = {path.name for path in self.slots if path.exists()} - {p.name for p in damaged}
        lost = " and ".join(str(path) for path in self.slots if path.name not in there)
        return (
            f"{lost}: this checkpoint is damaged or missing, and draws that it may have counted "
            "are left out. resume=True samples them again."
        )

    def _read(self) -> tuple[list[dict[str, Any]], list[Path]]:
        """Return the complete checkpoints, and the files of damaged ones."""
        found, damaged = [], []
        for path in self.slots:
            try:
                checkpoint = load(path)
            except FileNotFoundError:
                continue
            except ValueError:
                damaged.append(path)
                continue
            if checkpoint["run_id"] != self.run_id:
                raise ValueError(f"{path} is the checkpoint of another run. {self.remedy}")
            found.append(checkpoint)
        return found, damaged

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Replace the older of the two checkpoints."""
        number = checkpoint["number"]
        # The first checkpoint is written twice, so that a single file means that the other one was
        # lost.
        for slot in self.slots if number == 1 else [self.slots[number % 2]]:
            save(slot, checkpoint | {"run_id": self.run_id})


def all_checkpoints(path: Path, record: dict[str, Any]) -> list[Checkpoints]:
    """Return the checkpoints of all chains of a store, in order."""
    n, together = record["chains"], record["chains_together"]
    groups = (range(first, min(first + together, n)) for first in range(0, n, together))
    return [Checkpoints(path, chains, record["run_id"]) for chains in groups]
