"""The warm-up's choices in a store, so that a resumed run need not warm up again."""

import logging
from dataclasses import fields
from pathlib import Path

from pymc_sgmcmc.adaptation.adapted import Adapted
from pymc_sgmcmc.run.saved_state import load, save, to_plain
from pymc_sgmcmc.storage.record import FOLDER

_log = logging.getLogger("pymc.sgmcmc")


def adapted_path(path: Path) -> Path:
    """Return the file of a store that has the choices of the warm-up."""
    return path / FOLDER / "adapted.npz"


def write_adapted(path: Path, adapted: Adapted) -> None:
    """Write what the warm-up of a new run has chosen."""
    save(adapted_path(path), to_plain(adapted, "of the warm-up"))


def read_adapted(path: Path) -> Adapted | None:
    """Return what the warm-up of a run has chosen, or None if its file is missing or damaged.

    A warm-up depends on the run's seed alone, so it can be repeated.
    """
    try:
        plain = load(adapted_path(path))
        return Adapted(**{f.name: plain[f.name] for f in fields(Adapted)})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        _log.warning(f"The warm-up is repeated, because its file cannot be read: {error}")
        return None
