"""A run and its events.

Every chain makes blocks of draws. These classes are all that engines and storage share.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytensor
from pymc.backends.ndarray import NDArray
from pymc.blocking import PointType
from pymc.model import Model
from pymc.util import RandomGeneratorState
from pytensor.graph.replace import vectorize_graph

from pymc_sgmcmc.gradients.arrays import has_named_dims, tensor_model

TILE = 64
"""Points that `Run.record` turns into recorded variables in one call."""
_FILL = {"f": np.nan, "O": None}
"""Stands for draws that were not made, as in a store; 0 for all other types."""


@dataclass
class Block:
    """Consecutive draws of some chains, all of them from tuning or none."""

    chains: range
    first: int
    """Number of the first draw, tuning included."""
    n_draws: int
    values: dict[str, np.ndarray]
    """Recorded variables, shapes (chains, draws, ...); empty for draws that are not kept."""
    stats: list[dict[str, np.ndarray]]
    """Statistics of each step, shapes (chains, draws, ...)."""
    points: list[list[PointType]] | None = None
    """Value variables of each chain's draws, where a callback wants them."""
    counts: list[int] | None = None
    """Draws of each chain, where one has made fewer: NaN (0, False, None) stands for the rest."""

    def count(self, k: int) -> int:
        """Draws of the k-th of its chains."""
        return self.n_draws if self.counts is None else self.counts[k]

    def end_early(self, counts: list[int]) -> None:
        """Leave out what chains have not drawn: all but so many draws of each."""
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


Event = Block | Stopped | Resumed


@dataclass
class Run:
    """What all chains of a run share. Starts and generators have one entry per chain."""

    model: Model
    step: Any
    tune: int
    draws: int
    starts: list[PointType]
    rngs: list[RandomGeneratorState]
    """States, not generators: NumPy forgets a generator's children when it pickles it."""
    vars: list
    """Variables to record, in terms of value variables."""
    keep_warmup: bool
    each_draw: bool = False
    """Blocks of one draw, with its point, for a callback."""
    store: Any = None
    seed: Any = None
    """As it was given, as plain values."""
    together: bool = False
    """Whether one runner advances all chains."""
    fresh: Any = None
    """The step's state before its first chain."""
    recorder: NDArray | None = field(default=None, repr=False)
    """What `recorded` gives, once it is there; to be forgotten where `vars` change."""
    _record: Any = field(default=None, repr=False)

    @property
    def n_chains(self) -> int:
        return len(self.starts)

    @property
    def chains_together(self) -> int:
        """Chains of one runner."""
        return self.n_chains if self.together else 1

    @property
    def wants_warmup(self) -> bool:
        """Whether draws of tuning are made into recorded variables."""
        return self.keep_warmup or self.each_draw

    @property
    def total(self) -> int:
        return self.tune + self.draws

    @property
    def recorded(self) -> NDArray:
        """PyMC's recorder: what turns a point into recorded variables, their names and types.

        Compiled where it is first needed, so a run can be sent to another process.
        """
        if self.recorder is None:
            self.recorder = NDArray(model=self.model, vars=self.vars, test_point=self.starts[0])
        return self.recorder

    def record(self, points: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Turn many points into recorded variables at once, for engines with many chains.

        Parameters
        ----------
        points : dict
            Value variables by name, shapes (n, ...).

        Returns
        -------
        dict
            Recorded variables by name, shapes (n, ...), C-contiguous.
        """
        values = self.model.value_vars
        derived = [v for v in self.recorded.vars if v not in values]
        if derived and self._record is None:
            inputs, outs = values, derived
            if has_named_dims(self.model):
                plain = tensor_model(self.model)
                inputs, outs = plain.value_vars, plain.tensors(derived)
            many = [v.type.clone(shape=(TILE, *v.type.shape))(v.name) for v in inputs]
            outs = vectorize_graph(outs, dict(zip(inputs, many, strict=True)))
            self._record = pytensor.function(many, outs, on_unused_input="ignore")
        n = len(next(iter(points.values())))
        columns: dict[str, list] = {v.name: [] for v in derived}
        for first in range(0, n if derived else 0, TILE):
            # Tiles of one size: where a block ends must not change how its draws are computed.
            tile = [points[v.name][first : first + TILE] for v in values]
            short = TILE - len(tile[0])
            if short:
                tile = [np.concatenate([t, np.repeat(t[-1:], short, axis=0)]) for t in tile]
            for name, column in zip(columns, self._record(*tile), strict=True):
                columns[name].append(np.asarray(column)[: TILE - short])
        made = {name: np.concatenate(column) for name, column in columns.items()}
        return {
            v.name: np.ascontiguousarray(
                made[v.name] if v.name in made else points[v.name],
                dtype=self.recorded.var_dtypes[v.name],
            )
            for v in self.recorded.vars
        }

    def __getstate__(self):
        return self.__dict__ | {"recorder": None, "_record": None}


def reason_to_stop(run: Run, chain: int, n_draws: int, failure: dict[str, Any]) -> str:
    """Tell the user why a chain stopped after some draws, tuning included."""
    phase = "tuning " if n_draws < run.tune else ""
    done = n_draws - (0 if phase else run.tune)
    return (
        f"Chain {chain} stopped after {done} {phase}draws: {failure['name']} "
        f"became non-finite at update {failure['update']} with step size "
        f"{failure['step_size']:.4g}. Try a smaller step_size or a larger batch_size, "
        "standardise the data, or pass another starting point (initvals=)."
    )
