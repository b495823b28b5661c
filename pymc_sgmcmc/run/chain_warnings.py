"""Warnings of many chains at once: what each says alone, and one message if many say the same."""

from dataclasses import replace

import numpy as np
from pymc.stats.convergence import SamplerWarning

from pymc_sgmcmc.chain import Chain
from pymc_sgmcmc.run.stacked import Piece

MOST_WARNINGS = 4
"""If more chains than this stop at once, they share one message."""


def warnings_of(
    chains: list[Chain],
    first_draw: int,
    small: Piece,
    shown: dict[str, np.ndarray],
    nonfinite: np.ndarray,
) -> tuple[np.ndarray, dict[int, SamplerWarning]]:
    """The chains' own warnings, each at its chain and draw; all those of failures by chain.

    Parameters
    ----------
    chains : list of Chain
    first_draw : int
        Number of the first draw of the call, tuning included.
    small : Piece
        The call's, on the host.
    shown : dict of arrays, shape (chains, draws)
        Statistics by name.
    nonfinite : array of bool, shape (chains, draws)
    """
    kernel = chains[0].kernel
    thin, burnt_in = kernel.thin, chains[0].burnt_in
    warnings = np.full(nonfinite.shape, None, dtype=object)
    i = burnt_in // thin - 1 - first_draw
    if 0 <= i < nonfinite.shape[1]:
        for c in np.flatnonzero(~nonfinite[:, i]):
            last = {name: float(values[c, i]) for name, values in shown.items()}
            warnings[c, i] = chains[c].complaint() or chains[c].caution(last)
        _shorten(warnings[:, i])
    complaints = np.array([chain.complaint() for chain in chains], dtype=object)
    _shorten(complaints)
    for c in np.flatnonzero(complaints):
        warnings[c, 0] = complaints[c]
    failures = np.full(len(chains), None, dtype=object)
    for c in np.flatnonzero(nonfinite.any(axis=1)):
        i = int(np.argmax(nonfinite[c]))
        first, at = (first_draw + i) * thin, int(small.update[i, c])
        h = kernel.step_sizes(first, thin)[at]
        failures[c] = chains[c].failure(int(small.variable[i, c]), first + at, h)
    failed = {int(c): failures[c] for c in np.flatnonzero(failures)}
    _shorten(failures)
    for c in np.flatnonzero(failures):
        warnings[c, int(np.argmax(nonfinite[c]))] = failures[c]
    return warnings, failed


def _shorten(warnings: np.ndarray) -> None:
    """Keep one warning for all if many chains have the same one."""
    told = np.flatnonzero(warnings)
    if len(told) > MOST_WARNINGS:
        first = warnings[told[0]]
        message = f"{first.message} (The same in {len(told)} of {len(warnings)} chains.)"
        warnings[told] = None
        warnings[told[0]] = replace(first, message=message)
