"""A runner whose draws are averaged into predictions, or kept for the verdict, where it runs."""

from collections.abc import Iterable, Iterator
from typing import Any

from pymc.blocking import PointType
from pymc.model import Model
from pymc.step_methods.compound import flatten_steps

from pymc_sgmcmc.argument_checks import shown
from pymc_sgmcmc.predictions.predictions import Predictions
from pymc_sgmcmc.run.points_to_diagnose import PointsToDiagnose
from pymc_sgmcmc.run.run import Block, Predicted, Run, Stopped
from pymc_sgmcmc.step import SGMCMCStep


class PredictingRunner:
    """Runs another runner and gives each draw to the run's `Predictions` and `PointsToDiagnose`.

    What they make of it is part of its state, and so is saved and resumed with the draws.
    """

    def __init__(self, runner: Any, run: Run):
        self.runner, self.run, self.chains = runner, run, runner.chains
        for observer in _observers(run):
            for chain in self.chains:
                observer.begin_chain(chain)

    def blocks(self) -> Iterator[Block | Stopped]:
        run = self.run
        for event in self.runner.blocks():
            if isinstance(event, Block):
                if event.first >= run.tune:
                    self._take(event)
                if not run.each_draw:
                    event.points = None
            yield event

    def _take(self, block: Block) -> None:
        assert block.points is not None
        for k, chain in enumerate(block.chains):
            for i, point in enumerate(block.points[k][: block.count(k)]):
                stats = [{name: values[k, i] for name, values in s.items()} for s in block.stats]
                for predictions in self.run.predictions:
                    predictions.add(chain, point, stats)
                if self.run.points is not None:
                    self.run.points.add(chain, point)

    def state(self) -> dict[str, Any] | None:
        state = self.runner.state()
        if state is None:
            return None
        averages = {p.name: [p.state(c) for c in self.chains] for p in self.run.predictions}
        points = self.run.points
        kept = None if points is None else [points.state(chain) for chain in self.chains]
        return {"draws": state, "predictions": averages, "points": kept}

    def restore(self, n_draws: int, state: dict[str, Any]) -> None:
        stored, points = state.get("predictions", {}), state.get("points")
        if self.run.points is not None and points is not None:
            for chain, one in zip(self.chains, points, strict=True):
                self.run.points.restore(chain, one)
        for p in self.run.predictions:
            if p.name not in stored:
                raise ValueError(
                    f"The stored run has no predictions '{p.name}': resume it without, or begin a "
                    "new run."
                )
            for chain, one in zip(self.chains, stored[p.name], strict=True):
                p.restore(chain, one)
        self.runner.restore(n_draws, of_runner(state))


def of_runner(state: dict[str, Any]) -> dict[str, Any]:
    """Return what a runner needs of a state, whether it was saved with predictions or without."""
    return state.get("draws", state)


def predicted(run: Run, chain: int) -> Predicted:
    """Return a chain's averages and points, to be sent from the process that has made them."""
    return Predicted(
        chain,
        {p.name: p.state(chain) for p in run.predictions if chain in p.chains},
        run.points.state(chain) if run.points is not None and chain in run.points.chains else None,
    )


def receive(run: Run, event: Any) -> None:
    """Take what another process has made of a chain's draws; anything else is not taken."""
    if isinstance(event, Predicted):
        if run.points is not None and event.points is not None:
            run.points.restore(event.chain, event.points)
        for p in run.predictions:
            if p.name in event.states:
                p.restore(event.chain, event.states[p.name])


def all_observed(run: Run) -> bool:
    """Whether every chain has draws that were averaged and kept, in this session or restored."""
    return all(set(range(run.n_chains)) == _observed(observer) for observer in _observers(run))


def restore_rest(run: Run, chains: range, state: dict[str, Any]) -> None:
    """Take saved averages and points of the chains that this session has not gone on with.

    It may have been interrupted before. What the state lacks was not asked for when it was saved.
    """
    averages, points = state.get("predictions", {}), state.get("points")
    for p in run.predictions:
        for chain, one in zip(chains, averages.get(p.name, ()), strict=False):
            if chain not in _observed(p):
                p.restore(chain, one)
    if run.points is not None and points is not None:
        for chain, one in zip(chains, points, strict=True):
            if chain not in _observed(run.points):
                run.points.restore(chain, one)


def _observers(run: Run) -> list[Any]:
    """What each draw is given to."""
    return [*run.predictions, *([] if run.points is None else [run.points])]


def _observed(observer: Any) -> set[int]:
    """Return the chains of which it has any draw."""
    if isinstance(observer, PointsToDiagnose):
        return {chain for chain, kept in observer.chains.items() if kept["seen"]}
    return {chain for chain, average in observer.chains.items() if average.n}


def checked_predictions(model: Model, predictions: Any) -> list[Predictions]:
    """Return predictions as a list: of this model, each with a name of its own."""
    if isinstance(predictions, Predictions):
        predictions = [predictions]
    if not isinstance(predictions, Iterable):
        raise TypeError(
            f"predictions={shown(predictions)} must be made by sgm.Predictions(...), or a list "
            "of such. For none leave predictions= out."
        )
    predictions, names = list(predictions), set()
    for one in predictions:
        if not isinstance(one, Predictions):
            raise TypeError(f"predictions={shown(one)} must be made by sgm.Predictions(...).")
        if {v.name for v in one.predictor.model.value_vars} != {v.name for v in model.value_vars}:
            raise ValueError(f"{one!r} has been made for another model: make it for this one.")
        if one.name in names:
            raise ValueError(
                f"Two of predictions have the name '{one.name}': give each of them another name=."
            )
        names.add(one.name)
    return predictions


def prepare(predictions: Predictions, step: Any, point: PointType) -> None:
    """Begin a run's predictions: compile them as the step is, and check them at a point."""
    ours = [s for s in flatten_steps(step) if isinstance(s, SGMCMCStep)]
    if predictions.predictor.compile_kwargs is None and ours:
        predictions.predictor.compile_kwargs = ours[0].kernel.compile_kwargs
    predictions.begin()
    predictions.check(point)
