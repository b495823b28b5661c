"""Checkpoints of a store's chains: the number of valid draws and the sampler's state."""

from pathlib import Path
from typing import Any

from pymc_sgmcmc.run.saved_state import load, save
from pymc_sgmcmc.storage.lock import Lock


class Checkpoints:
    """The checkpoints of chains that advance together.

    Two files in turn: whenever the process dies, the older one is whole.

    Parameters
    ----------
    folder : pathlib.Path
        Where a store keeps what is not draws.
    chains : range
        The chains' numbers.
    run_id : str
        The run whose checkpoints they are to be.
    """

    def __init__(self, folder: Path, chains: range, run_id: str):
        self.chains, self.run_id = chains, run_id
        self._name = folder / f"chains_{chains.start}_{chains.stop - 1}"
        self.slots = [self._name.with_suffix(f".{slot}.npz") for slot in "ab"]

    def lock(self) -> Lock:
        """Return the lock of whoever writes these chains."""
        return Lock(self._name.with_suffix(".lock"), "these chains")

    @property
    def remedy(self) -> str:
        """How to have these chains sampled again."""
        files = " and ".join(str(slot) for slot in self.slots)
        return f"Delete {files}; then resume=True samples these chains again from their start."

    def latest(self) -> dict[str, Any] | None:
        """Return the latest one that is whole.

        Raises
        ------
        ValueError
            If one is of another run.
        """
        found, _ = self._read()
        return max(found, key=lambda checkpoint: checkpoint["number"], default=None)

    def complaint(self) -> str | None:
        """What is wrong with them, if draws may be there that none of them counts."""
        found, damaged = self._read()
        begun = self._name.with_suffix(".lock").exists()
        missing = len(found) == 1 or (begun and not found)
        if not damaged and not missing:
            return None
        there = {path.name for path in self.slots if path.exists()} - {p.name for p in damaged}
        lost = " and ".join(str(path) for path in self.slots if path.name not in there)
        return (
            f"{lost}: this checkpoint is damaged or missing, and draws that it may have counted "
            "are left out. resume=True makes them again."
        )

    def _read(self) -> tuple[list[dict[str, Any]], list[Path]]:
        """Those that are whole, and the files of those that are not."""
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
        """Write one in place of the one before the last."""
        number = checkpoint["number"]
        # The first is written twice: where one file is there alone, the other has been lost.
        for slot in self.slots if number == 1 else [self.slots[number % 2]]:
            save(slot, checkpoint | {"run_id": self.run_id})
