"""Warnings of many chains at once: those of single chains, or one for many chains."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from pymc.stats.convergence import SamplerWarning

from pymc_sgmcmc.chain import Chain

if TYPE_CHECKING:
    from pymc_sgmcmc.run.devices import Piece

MAX_WARNINGS = 4
"""If more chains than this warn or stop at the same time, they share one message."""


def warnings_of(
    chains: list[Chain],
    first_draw: int,
    small: "Piece",
    shown: dict[str, np.ndarray],
    nonfinite: np.ndarray,
) -> tuple[np.ndarray, dict[int, SamplerWarning]]:
    """Return the chains' warnings, each at its chain and draw, and those about failures by chain.

    ``small`` is a call's `Piece` on the host; ``shown`` and ``nonfinite`` have the shape (chains,
    draws).
    """
    kernel = chains[0].kernel
    thin, burnt_in = kernel.thin, chains[0].burnt_in
    warnings = np.full(nonfinite.shape, None, dtype=object)
    i = burnt_in // thin - 1 - first_draw
    if 0 <= i < nonfinite.shape[1]:
        for c in np.flatnonzero(~nonfinite[:, i]):
            last = {name: float(values[c, i]) for name, values in shown.items()}
            warnings[c, i] = chains[c].order_warning() or chains[c].burn_in_warning(last)
        shorten(warnings[:, i])
    order_warnings = np.array([chain.order_warning() for chain in chains], dtype=object)
    shorten(order_warnings)
    for c in np.flatnonzero(order_warnings):
        warnings[c, 0] = order_warnings[c]
    failures = np.full(len(chains), None, dtype=object)
    for c in np.flatnonzero(nonfinite.any(axis=1)):
        i = int(np.argmax(nonfinite[c]))
        first, at = (first_draw + i) * thin, int(small.update[i, c])
        h = kernel.step_sizes(first, thin)[at]
        failures[c] = chains[c].failure(int(small.variable[i, c]), first + at, h)
    failed = {int(c): failures[c] for c in np.flatnonzero(failures)}
    shorten(failures)
    for c in np.flatnonzero(failures):
        warnings[c, int(np.argmax(nonfinite[c]))] = failures[c]
    return warnings, failed


def shorten(warnings: np.ndarray) -> None:
    """Keep one warning if many chains have the same one."""
    warned = np.flatnonzero(warnings)
    if len(warned) > MAX_WARNINGS:
        first = warnings[warned[0]]
        message = f"{first.message} (The same in {len(warned)} of {len(warnings)} chains.)"
        warnings[warned] = None
        warnings[warned[0]] = replace(first, message=message)
