"""A run and its events.

Every chain makes blocks of draws. Engines and storage share only these classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pymc.blocking import PointType
from pymc.model import Model
from pymc.util import RandomGeneratorState

from pymc_sgmcmc.run.observers import Observers
from pymc_sgmcmc.run.recorder import Recorder

_FILL = {"f": np.nan, "O": None}
"""Fill values, by kind of type, for draws that were not made, as in a store; other types have 0."""


@dataclass
class Block:
    """Consecutive draws of some chains, either all from tuning or none."""

    chains: range
    first: int
    """Number of the first draw, tuning included."""
    n_draws: int
    values: dict[str, np.ndarray]
    """Recorded variables, shapes (chains, draws, ...); empty for draws that are not kept."""
    stats: list[dict[str, np.ndarray]]
    """Statistics of each step, shapes (chains, draws, ...)."""
    points: list[list[PointType]] | None = None
    """Value variables of each chain's draws, if a callback or `Predictions` need them."""
    counts: list[int] | None = None
    """Number of draws of each chain, if some made fewer; the rest is NaN (0, False, None)."""

    def count(self, k: int) -> int:
        """Return the number of draws of the block's k-th chain."""
        return self.n_draws if self.counts is None else self.counts[k]

    def each_draw(self) -> Iterator[tuple[int, int, PointType, list[dict[str, Any]]]]:
        """Yield the chain, number, point and statistics of each draw of a block with points."""
        assert self.points is not None
        for k, chain in enumerate(self.chains):
            for i, point in enumerate(self.points[k][: self.count(k)]):
                stats = [{name: values[k, i] for name, values in s.items()} for s in self.stats]
                yield chain, self.first + i, point, stats

    def end_early(self, counts: list[int]) -> None:
        """Keep only the first ``counts`` draws of each chain, and fill in the rest."""
        self.counts = counts
        missing = np.arange(self.n_draws) >= np.array(counts)[:, None]
        for arrays in (self.values, *self.stats):
            for name, array in arrays.items():
                if not array.flags.writeable:
                    arrays[name] = array = array.copy()
                array[missing] = _FILL.get(array.dtype.kind, 0)


@dataclass
class Stopped:
    """A chain that ended early, with the reason for the user."""

    chain: int
    message: str


@dataclass
class Resumed:
    """Chains that continue after some draws, tuning included, of an earlier run."""

    chains: range
    n_draws: int


@dataclass
class Observed:
    """State of another process's `Observers`, computed from some chains."""

    chains: range
    state: dict[str, Any]


Event = Block | Stopped | Resumed | Observed


@dataclass(frozen=True)
class Run:
    """What all chains of a run share. Starts and generators have one entry per chain."""

    model: Model
    step: Any
    tune: int
    draws: int
    starts: list[PointType]
    rngs: list[RandomGeneratorState]
    """States, because NumPy forgets a generator's children when it pickles the generator."""
    recorder: Recorder
    """Turns points into recorded variables."""
    keep_warmup: bool
    each_draw: bool = False
    """Whether blocks consist of one draw with its point, for a callback."""
    store: Any = None
    seed: Any = None
    """The user's seed, as plain values."""
    together: bool = False
    """Whether one runner advances all chains."""
    fresh: Any = None
    """The step's state before its first chain."""
    observers: Observers = field(default_factory=Observers)
    """The observers of draws, recorded or not, in the process that makes them."""

    @property
    def n_chains(self) -> int:
        return len(self.starts)

    @property
    def chains_together(self) -> int:
        """Number of chains of one runner."""
        return self.n_chains if self.together else 1

    @property
    def needs_points(self) -> bool:
        """Whether blocks contain their draws' points."""
        return self.each_draw or bool(self.observers)

    @property
    def wants_warmup(self) -> bool:
        """Whether tuning draws are turned into recorded variables."""
        return self.keep_warmup or self.each_draw

    @property
    def total(self) -> int:
        return self.tune + self.draws


def reason_to_stop(run: Run, chain: int, n_draws: int, failure: dict[str, Any]) -> str:
    """Return a message that explains why a chain stopped after some draws, tuning included."""
    phase = "tuning " if n_draws < run.tune else ""
    done = n_draws - (0 if phase else run.tune)
    return (
        f"Chain {chain} stopped after {done} {phase}draws: {failure['name']} "
        f"became non-finite at update {failure['update']} with step size "
        f"{failure['step_size']:.4g}. Try a smaller step_size or a larger batch_size, "
        "standardise the data, or pass another starting point (initvals=)."
    )
