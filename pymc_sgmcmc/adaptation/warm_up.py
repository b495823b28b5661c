"""The common part of all warm-ups: the course over windows, with progress, and a frozen result."""

import logging
from functools import cached_property
from typing import Any

import numpy as np
from pymc.blocking import PointType

from pymc_sgmcmc.adaptation.adapted_settings import Adapted, UnfitAdaptation
from pymc_sgmcmc.adaptation.change_of_form import OtherForm
from pymc_sgmcmc.adaptation.scale_parameters import is_scale
from pymc_sgmcmc.adaptation.short_runs import (
    Settings,
    ShortRun,
    ShortRuns,
    effective_sizes,
    rounded,
    with_restarts,
)
from pymc_sgmcmc.adaptation.step_size import expected_friction
from pymc_sgmcmc.adaptation.warm_up_progress import WarmUpProgress
from pymc_sgmcmc.kernel import Kernel

_log = logging.getLogger("pymc.sgmcmc")

ENOUGH = 0.15
"""Smallest effective draws per draw of a pilot; below it, the updates per draw are increased."""
MOST_HALVINGS = 6
"""Largest number of times that the step size is halved because updates heat the chains."""
SHARE = 0.5
"""Distance between the draws of a window, in relaxations."""


class WarmUp:
    """Adapts a kernel with a metric: `run` returns what was chosen, and configures the kernel.

    From a start follow windows of short runs, each with the settings that the last one suggests,
    until two have changed little; then a pilot run. A warm-up with a different course overrides
    `_run`.
    """

    min_windows, max_windows = 0, 0

    def __init__(
        self, kernel: Kernel, gradients: Any, rng: np.random.Generator, target_bias: float
    ):
        self.kernel, self.gradients = kernel, gradients
        self.metric: Any = kernel.metric
        self.rng, self.target_bias = rng, target_bias
        self.progress, self.stage = WarmUpProgress(), "start"
        self._counted_passes, self._forecast = 0.0, ""
        self.runs = ShortRuns(kernel, rng, self.elements, lambda n: self.count(self.passes_of(n)))

    def elements(self, point: PointType) -> np.ndarray:
        """Return the elements of a point that short runs record: all of them, flat."""
        return self.gradients.flat(point)

    @cached_property
    def is_scale(self) -> np.ndarray:
        """Whether each parameter is under a log or logit transform, shape (d,)."""
        source = self.kernel.source
        return is_scale(self.kernel.model, source.vars, source.shapes)

    @property
    def passes(self) -> float:
        """Number of row gradients so far, divided by N."""
        return self._counted_passes

    @property
    def share_of_rows(self) -> float:
        """Number of rows of a batch, divided by N."""
        rows = self.kernel.source.rows
        return rows[0].batch_size / rows[0].n_rows if rows else 1.0

    def passes_of(self, n_updates: int) -> float:
        """Return the passes over the data of some updates."""
        loop = self.kernel.loop
        assert loop is not None
        at_anchor = 2 if self.kernel.source.has_control_variate else 1
        return n_updates * loop.n_gradients * at_anchor * self.share_of_rows

    def run(self, point: PointType) -> Adapted:
        """Warm up from a point; a `SamplingError` explains why if that is impossible."""
        with self.progress:
            try:
                return self._run(point)
            except OtherForm as found:
                found.passes = self.passes
                raise

    def _run(self, point: PointType) -> Adapted:
        self.begin(point)
        calm = 0
        for k in range(self.max_windows + 1):
            self.stage = f"window {k + 1}"
            self.report()
            settings, settled = self.prepare(k)
            calm = calm + 1 if settled else 0
            if k == self.max_windows or (k >= self.min_windows and calm >= 2):
                break
            _log.debug(
                f"Window {k}: noise {settings.noise.mean():.3g} (largest "
                f"{settings.noise.max():.3g}), step size {settings.pace.step_size:.3g}, "
                f"{settings.pace.relaxation:.3g} updates per relaxation, passes {self.passes:.3g}."
            )
            self.window(k, settings)
        self.stage = "updates per draw"
        settings, (run, thin, per_draw) = with_restarts(settings, self.pilot)
        for _ in range(MOST_HALVINGS):
            if not self.is_hot(run):
                break
            _log.debug(f"Updates of step size {settings.pace.step_size:.3g} heat the chains.")
            settings, (run, thin, per_draw) = with_restarts(settings.slower(0.5), self.pilot)
        return self.finish(settings, run, thin, windows=k, ess_per_draw=per_draw)

    def renew(self, earlier: Adapted) -> Adapted:
        """Adapt to new data with what was chosen for other data of the same model."""
        raise UnfitAdaptation(
            "adaptation= of other data works for models without latents= and with at most 2000 "
            "parameters, none of them local: pass adaptation='auto'."
        )

    def begin(self, point: PointType) -> None:
        """Find where the chains begin."""
        raise NotImplementedError

    def prepare(self, k: int) -> tuple[Settings, bool]:
        """Set the metric from the draws so far; return settings, and whether little has changed."""
        raise NotImplementedError

    def window(self, k: int, settings: Settings) -> None:
        """Run the chains for a while."""
        raise NotImplementedError

    def pilot(self, settings: Settings) -> tuple[ShortRun, int, float]:
        """Return a run with nearly independent draws, its updates and effective draws per draw."""
        raise NotImplementedError

    def is_hot(self, run: ShortRun) -> bool:
        """Return whether updates of a pilot are so large that they heat the chains."""
        return False

    def finish(self, settings: Settings, run: ShortRun, thin: int, **found: Any) -> Adapted:
        """Freeze what was chosen according to the pilot run."""
        raise NotImplementedError

    def report(self) -> None:
        """Show the stage and the passes so far, if there is time left."""
        self.progress.report(self.stage + self._forecast, self.passes)

    def foresee(self, seconds: float) -> None:
        """Show how long the stage will take, if known."""
        self._forecast = f", about {seconds:.0f} s" if seconds >= 1 else ""
        if self._forecast:
            self.progress.report_at_once(self.stage + self._forecast, self.passes)

    def count(self, passes: float) -> None:
        """Add to the passes over the data, and show them."""
        self._counted_passes += passes
        self.report()

    def move_on(
        self, points: list[PointType], settings: Settings, n_draws: int
    ) -> tuple[list[PointType], np.ndarray]:
        """Run chains, `SHARE` of a relaxation between draws; return where they end, and draws."""

        def run(slower: Settings) -> ShortRun:
            thin = rounded(SHARE * slower.pace.relaxation)
            return self.runs.run(points, slower, thin, n_draws)

        _, found = with_restarts(settings, run)
        return found.points, found.draws

    def effective_size(self, draws: np.ndarray) -> float:
        """Return the effective sample size of what a short run recorded."""
        return float(effective_sizes(draws).min())

    def doubled(
        self,
        points: list[PointType],
        settings: Settings,
        thin: int,
        n_draws: int,
        doublings: int,
        fresh: bool,
    ) -> tuple[ShortRun, int, float]:
        """Double the updates per draw of a pilot run until its draws reach `ENOUGH`."""
        for k in range(doublings + 1):
            run = self.runs.run(points, settings, thin, n_draws, fresh=fresh and k == 0)
            per_draw = self.effective_size(run.draws) / (len(points) * n_draws)
            if per_draw >= ENOUGH or k == doublings:
                break
            points, thin = run.points, 2 * thin
        return run, thin, per_draw

    def freeze(self, settings: Settings, starts: np.ndarray, thin: int, **others: Any) -> Adapted:
        """Freeze what was chosen, with ``others`` as fields of `Adapted`; configure the kernel."""
        kernel, step_size = self.kernel, settings.pace.step_size
        rows = kernel.source.rows
        common = {
            "anchor_gradient": np.zeros(starts.shape[1]),
            "anchor_powers": np.zeros(starts.shape[1]),
            "row_copies": None,
            "largest_eigval": settings.largest_eigval,
            "smallest_eigval": settings.smallest_eigval,
            "batch_size": rows[0].batch_size if rows else None,
            "n_rows": rows[0].n_rows if rows else None,
            "passes_per_draw": self.passes_of(thin),
        }
        chosen = Adapted(
            metric=self.metric.name,
            scaling=[a.copy() for a in self.metric.arrays],
            noise=settings.noise,
            friction=expected_friction(kernel.algorithm, step_size, settings.noise),
            starts=starts,
            step_size=step_size,
            thin=thin,
            data_passes=self.passes,
            **common | others,
        )
        chosen.apply(kernel)
        return chosen


def largest_move(draws: np.ndarray, past: np.ndarray) -> float:
    """Return the largest move of an element's mean between windows, in a window's sds."""
    spread = np.sqrt((draws.var(axis=0) + past.var(axis=0)) / 2) + np.finfo(float).tiny
    return float(np.max(np.abs(draws.mean(axis=0) - past.mean(axis=0)) / spread, initial=0.0))
