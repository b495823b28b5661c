"""The common part of chains that advance together, in threads on numba or mapped on JAX."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pymc.blocking import PointType
from pytensor.link.basic import JITLinker

from pymc_sgmcmc.backends.interrupts import raise_deferred
from pymc_sgmcmc.chain import Chain, SGMCMCState
from pymc_sgmcmc.step import SGMCMCStep

SECONDS_PER_CALL = 0.2
"""Target duration of a call of whole draws, in seconds."""
BYTES_PER_CALL = 2**26
"""Largest memory of a call's draws and row indices, in bytes, unless a single draw needs more."""
MAX_WARNINGS = 4
"""Largest number of chains that warn or stop at the same time without sharing one message."""


@dataclass
class Drawn:
    """Consecutive draws of all chains, either all from tuning or none."""

    first: int
    n: int
    theta: list[Any]
    """One array per variable with leading axes (room, chains); the first ``n`` draws are filled."""
    stats: dict[str, np.ndarray]
    """Statistics by name, each of shape (chains, n)."""
    failures: dict[int, Any]
    """Warnings about each chain's first non-finite draw, by chain."""
    carry: Any = None
    """State of the chains after the last of these draws; only on JAX."""
    batch_states: Any = None
    """State of each chain's batches after these draws; only on JAX."""


class ChainsTogether:
    """Chains of one step for all free variables, advanced by the same number of draws."""

    def __init__(
        self,
        step: SGMCMCStep,
        starts: Sequence[PointType],
        rngs: Sequence[np.random.Generator],
        tune: int,
        draws: int,
    ):
        self.step, self.kernel = step, step.kernel
        self.tune, self.total, self.n_done = tune, tune + draws, 0
        self.points = [dict(start) for start in starts]
        self.kernel.load_data()
        self.chains = [Chain(self.kernel, rng, tune, check=self._check) for rng in rngs]
        self.chains[0].begin(self.points[0])  # compiles, unless this process has done so
        self.most_draws_a_call = BYTES_PER_CALL

    def _check(self) -> None:
        """Abandon a draw by raising an error between two of its compiled calls."""
        raise_deferred()

    def restore(
        self, n_done: int, points: Sequence[PointType], states: Sequence[SGMCMCState]
    ) -> None:
        """Continue after ``n_done`` draws, tuning included, from what `saved` returned."""
        self.n_done = n_done
        self.points = [dict(point) for point in points]
        for chain, state in zip(self.chains, states, strict=True):
            chain.sampling_state = state

    def saved(self, drawn: Drawn) -> tuple[list[PointType], list[SGMCMCState]]:
        """Return points and states of the chains after the draws that were yielded last."""
        return self.points, [chain.sampling_state for chain in self.chains]

    def fetch(self, arrays: list[Any]) -> list[Any]:
        """Bring arrays to the host."""
        return arrays

    def run(self) -> Iterator[Drawn]:
        """Advance all chains to the end."""
        raise NotImplementedError


def check_step(step: Any) -> None:
    """Raise an error, with the remedy, for a step whose chains cannot be advanced together."""
    remedy = "Use chain_method='parallel' or 'sequential'"
    if not isinstance(step, SGMCMCStep):
        raise ValueError(
            f"chain_method='vectorized' needs one minibatch step for all variables, not {step!r}. "
            f"{remedy}."
        )
    others = [v for v in step.model.value_vars if v not in step.vars]
    if others:
        names = ", ".join(f"'{v.name}'" for v in others)
        raise ValueError(
            f"chain_method='vectorized' needs one step for all variables, but {step!r} leaves out "
            f"{names}. {remedy}."
        )
    if not isinstance(step.kernel.mode.linker, JITLinker):
        raise ValueError(
            "chain_method='vectorized' needs a step compiled for JAX or numba: pass "
            f"compile_kwargs={{'mode': 'JAX'}} to {type(step).__name__}. {remedy}."
        )


def shorten(warnings: np.ndarray) -> None:
    """Keep only one warning if many chains have the same one."""
    warned = np.flatnonzero(warnings)
    if len(warned) > MAX_WARNINGS:
        first = warnings[warned[0]]
        message = f"{first.message} (The same in {len(warned)} of {len(warnings)} chains.)"
        warnings[warned] = None
        warnings[warned[0]] = replace(first, message=message)
