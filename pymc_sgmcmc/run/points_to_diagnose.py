"""Some draws of all variables, for the verdict on a run that does not record all of them."""

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
from pymc.blocking import PointType
from pytensor.tensor.variable import TensorVariable


class PointsToDiagnose:
    """Keeps evenly spaced draws of each chain, in memory and in the state that a store saves.

    How long a chain will be is not known: when it has twice as many as asked for, about ``most`` of
    all chains together, every other one is dropped, and from then on every second of those to come.
    """

    def __init__(self, most: int, n_chains: int):
        self.most = ceil(most / n_chains)
        self.chains: dict[int, dict[str, Any]] = {}

    def begin_chain(self, chain: int) -> None:
        """Forget what was kept of a chain."""
        self.chains[chain] = {"points": [], "seen": 0, "stride": 1}

    def add(self, chain: int, point: PointType) -> None:
        """Take one draw of a chain, by value variable."""
        kept = self.chains[chain]
        if kept["seen"] % kept["stride"] == 0:
            kept["points"].append({name: np.array(value) for name, value in point.items()})
        kept["seen"] += 1
        if len(kept["points"]) == 2 * self.most:
            kept["points"], kept["stride"] = kept["points"][::2], 2 * kept["stride"]

    def state(self, chain: int) -> dict[str, Any]:
        """Return what was kept of a chain as plain values."""
        kept = self.chains[chain]
        return kept | {"points": list(kept["points"])}

    def restore(self, chain: int, state: dict[str, Any]) -> None:
        """Continue a chain from what `state` returned."""
        self.chains[chain] = state | {"points": list(state["points"])}

    def draws(self, vars: Sequence[TensorVariable]) -> np.ndarray | None:
        """Return as many draws of each chain that has any, shape (chains, draws, d), or None.

        They are on the unconstrained scale.
        """
        each = [kept["points"] for _, kept in sorted(self.chains.items()) if kept["points"]]
        if not each:
            return None
        n = min(self.most, *map(len, each))
        found = np.empty((len(each), n, sum(each[0][0][v.name].size for v in vars)))
        for points, draws in zip(each, found, strict=True):
            for k, i in enumerate(np.linspace(0, len(points) - 1, n).astype(int)):
                np.concatenate([np.ravel(points[i][v.name]) for v in vars], out=draws[k])
        return found
