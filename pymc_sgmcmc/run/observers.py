"""Observers of a run's draws, where these are made: predictions, and the points for its verdict."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from pymc.blocking import PointType

from pymc_sgmcmc.predictions.predictions import Predictions
from pymc_sgmcmc.run.points_to_diagnose import PointsToDiagnose


class Observers:
    """The `Predictions` and `PointsToDiagnose` of a run, which see each draw after tuning.

    What they compute from a chain's draws is saved, and sent between processes, with the chain.
    """

    def __init__(
        self, predictions: Sequence[Predictions] = (), points: PointsToDiagnose | None = None
    ):
        self.predictions, self.points = predictions, points
        self._each: list[Any] = [*predictions, *([] if points is None else [points])]

    def __bool__(self):
        return bool(self._each)

    def begin(self, chains: Iterable[int]) -> None:
        """Discard what was computed from some chains."""
        for observer, chain in product(self._each, chains):
            observer.begin_chain(chain)

    def add(self, chain: int, point: PointType, stats: Sequence[dict[str, Any]]) -> None:
        """Take one draw, by value variable, with the statistics of each step."""
        for observer in self._each:
            observer.add(chain, point, stats)

    def state(self, chains: Iterable[int]) -> dict[str, Any]:
        """Return, as plain values, what was computed from those of the chains that have begun."""

        def of(observer: Any) -> list[dict[str, Any]]:
            return [observer.state(chain) for chain in chains if chain in observer.chains]

        return {
            "predictions": {p.name: of(p) for p in self.predictions},
            "points": None if self.points is None else of(self.points),
        }

    def restore(
        self, chains: Iterable[int], state: dict[str, Any], only_unseen: bool = False
    ) -> None:
        """Continue from what `state` returned, for the observers that existed when it was saved."""
        for observer in self._each:
            saved = (
                state.get("points")
                if observer is self.points
                else state.get("predictions", {}).get(observer.name)
            )
            for chain, one in zip(chains, saved or (), strict=False):
                if not (only_unseen and self._has_seen(observer, chain)):
                    observer.restore(chain, one)

    def check_stored(self, state: dict[str, Any]) -> None:
        """Raise an error if a stored run averages other predictions."""
        stored = state.get("predictions", {})
        if stored and not self.predictions:
            raise ValueError(
                "The stored run averages predictions: resume it with the same predictions=, "
                "or begin a new run."
            )
        for p in self.predictions:
            if p.name not in stored:
                raise ValueError(
                    f"The stored run has no predictions '{p.name}': resume it without, or begin a "
                    "new run."
                )

    def have_seen_all(self, n_chains: int) -> bool:
        """Whether each observer has draws of every chain, from this session or restored."""
        return all(self._has_seen(*pair) for pair in product(self._each, range(n_chains)))

    @staticmethod
    def _has_seen(observer: Any, chain: int) -> bool:
        return chain in observer.chains and observer.chains[chain].n > 0
