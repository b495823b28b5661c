"""Some draws of all variables, for the verdict on a run that does not record all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np
from pymc.blocking import PointType
from pytensor.tensor.variable import TensorVariable


@dataclass
class Kept:
    """Evenly spaced draws of one chain: every ``stride``-th of the ``n`` made so far."""

    points: list[PointType] = field(default_factory=list)
    n: int = 0
    stride: int = 1


class PointsToDiagnose:
    """Keeps evenly spaced draws of each chain, whose length is not known in advance.

    Once there are twice as many as requested, about ``most`` for all chains together, every other
    one is dropped and the stride doubles.
    """

    def __init__(self, most: int, n_chains: int):
        self.most = ceil(most / n_chains)
        self.chains: dict[int, Kept] = {}

    def begin_chain(self, chain: int) -> None:
        """Discard what was kept of a chain."""
        self.chains[chain] = Kept()

    def add(self, chain: int, point: PointType, stats: Any = None) -> None:
        """Take one draw of a chain, by value variable."""
        kept = self.chains[chain]
        if kept.n % kept.stride == 0:
            kept.points.append({name: np.array(value) for name, value in point.items()})
        kept.n += 1
        if len(kept.points) == 2 * self.most:
            kept.points, kept.stride = kept.points[::2], 2 * kept.stride

    def state(self, chain: int) -> dict[str, Any]:
        """Return what was kept of a chain as plain values."""
        kept = self.chains[chain]
        return {"points": list(kept.points), "seen": kept.n, "stride": kept.stride}

    def restore(self, chain: int, state: dict[str, Any]) -> None:
        """Continue a chain from what `state` returned."""
        self.chains[chain] = Kept(list(state["points"]), state["seen"], state["stride"])

    def draws(self, vars: Sequence[TensorVariable]) -> np.ndarray | None:
        """Return equally many unconstrained draws of each chain, (chains, draws, d), or None.

        Chains without draws are left out.
        """
        each = [kept.points for _, kept in sorted(self.chains.items()) if kept.points]
        if not each:
            return None
        n = min(self.most, *map(len, each))
        found = np.empty((len(each), n, sum(each[0][0][v.name].size for v in vars)))
        for points, draws in zip(each, found, strict=True):
            for k, i in enumerate(np.linspace(0, len(points) - 1, n).astype(int)):
                np.concatenate([np.ravel(points[i][v.name]) for v in vars], out=draws[k])
        return found
