"""The warm-up by curvature: a start, then windows of metric, step size and short run.

For models whose curvature fits into a matrix. This class uses Hessians of all data at each update.
"""

import logging
import time
from math import ceil
from typing import Any

import numpy as np
from pymc.blocking import PointType
from pymc.exceptions import SamplingError

from pymc_sgmcmc.adaptation.adapted_settings import ANEW, Adapted, UnfitAdaptation
from pymc_sgmcmc.adaptation.change_of_form import OtherForm, form_may_change
from pymc_sgmcmc.adaptation.curvature import (
    largest_change,
    no_wider_than,
    positive,
    refuse_undetermined,
)
from pymc_sgmcmc.adaptation.jumps import (
    elements_compared,
    refuse_edges,
    refuse_hidden_jumps,
    refuse_jumps,
)
from pymc_sgmcmc.adaptation.non_centring_rule import weak_effects
from pymc_sgmcmc.adaptation.normal_approximation import spread_with_density
from pymc_sgmcmc.adaptation.objective import Evaluated, Objective, WholeObjective
from pymc_sgmcmc.adaptation.short_runs import (
    Diverged,
    Settings,
    ShortRun,
    effective_sizes,
    with_restarts,
)
from pymc_sgmcmc.adaptation.slow_draws_warning import gradients_of_nuts, warn_of_slow_draws
from pymc_sgmcmc.adaptation.start import find_start
from pymc_sgmcmc.adaptation.step_size import pace
from pymc_sgmcmc.adaptation.warm_up import ENOUGH, WarmUp
from pymc_sgmcmc.backends.blas_threads import blas_threads
from pymc_sgmcmc.gradients.rows_in_batches import FEW_ROWS

_log = logging.getLogger("pymc.sgmcmc")

CHAINS = 4
SETTLED = 2.0
"""Largest |log| change of the metric with which windows end, if it occurs twice."""
DRAWS = 50
"""Number of draws of each chain in a window."""
MAX_THIN = 200
"""Largest number of updates between these draws: a window need not reach the posterior if the next
one continues."""
SPREAD = 0.5
"""Spread of points around the start relative to a normal approximation, because a skewed posterior
may have no mass farther away."""
FIRST_ROWS, STEEP_ROWS = 1000, 5_000
"""Numbers of rows (but at least 10 per parameter) used for the first steps to the start, and to
compare normal approximations."""
ROWS_WITH_JUMPS = 2_000
"""Number of rows in which jumps of the likelihood are sought, if it compares parameters."""
WIDE = 2.0
"""Largest standard deviations of the metric relative to those of the last window's draws: if rows
say little about the curvature, such as rows without events, the metric is far too wide."""
ENOUGH_TO_SEE = 2.0
"""Length of a window's recorded draws, in relaxations, from which their sds show this."""
STARTS = 16
"""Number of points around the final points of the warm-up's chains, at which chains start."""
APART = 0.1
"""Distance that a chain's start is moved from its point, in the metric's standard deviations."""
MOST_NAMED = 3
"""Largest number of elements that a message names."""
HESSIANS = 8
"""Number of points at which Hessians are averaged if all rows are used at each update."""
PILOT_DRAWS = 50
SEEN = 0.06
"""Effective draws per draw of a pilot below which these are uncertain and it is run again."""
MAX_DOUBLINGS = 6
MOST_UPDATES = 1_000_000
"""Largest number of updates per draw: with the smallest models, 50 draws of 4 chains take minutes
then."""
MAX_PILOT_COST = 3e10
"""Largest product of a pilot's updates, rows per batch and parameters: about a minute's work."""
NOISY_AT_FIRST, NOISIER = 50.0, 5.0
"""Largest thermostats relative to their expectation, while chains descend and afterwards."""
HOT = 0.5
"""Largest excess of a pilot's thermostats over their expectation, in units of D or of their sd 1.
Where a posterior is far steeper than on average, as along quasi-separated columns, updates that are
too large heat the chain. At 1.3, sds came out .88 times the right ones, at 0.4 .95 times; the
sampling error of a pilot's mean is about .07."""
STABLE = 0.4
"""Largest step size, in units of 1 / sqrt(curvature), where the curvature is largest: updates are
stable up to 2, and draws will be farther out than those of the warm-up."""
FIXED_COST = 1e4
"""Smallest cost of an update, in rows x parameters."""
MOST_PASSES = 10
"""Largest number of passes over new data in which their anchor is sought."""
AT_THE_ANCHOR = 0.1
"""Largest step, in posterior standard deviations, at which that anchor counts as found."""


class CurvatureWarmUp(WarmUp):
    """Adapts a kernel by Hessians of all its parameters; `RowsWarmUp` uses rows' curvature."""

    min_windows, max_windows = 2, 8

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.objective = self.make_objective()
        self.past: np.ndarray | None = None
        """The later half of the last window's draws, flat."""
        self.noise_in_tails = 0.0
        """Largest noise in z of an element whose noise varies, where that is largest."""
        self.matrix = np.eye(self.gradients.size)
        self.anchor_gradient = np.zeros(self.gradients.size)

    # ---- what subclasses with gradients of rows override ------------------------------------

    def make_objective(self) -> Objective:
        """Return the objective that the start minimises."""
        return WholeObjective(self.gradients, self.report, self.foresee)

    def curvatures(self) -> list[np.ndarray]:
        """Return the curvature at the anchor, or at points of the last window."""
        past = self.past
        points = [self.anchor] if past is None else past[:: max(1, len(past) // HESSIANS)]
        return [self.objective.at(p).curvature() for p in points]

    def narrow(self) -> None:
        """Move the anchor if the normal approximation there is far too wide."""

    def refuse_coarse_integrals(self) -> None:
        """Raise `OtherForm` if the integrals over groups' effects need other points."""

    def weight_rows(self) -> None:
        """Draw rows by weight, if that is worthwhile."""

    def noise(self, k: int) -> np.ndarray:
        """Prepare the kernel for the updates of a window; return their noise in z, (d, d)."""
        return np.zeros((self.gradients.size, self.gradients.size))

    def steepest(self) -> float:
        """Return the largest curvature in z along an element far from the mean; 0 if unknown."""
        return 0.0

    @property
    def rows_per_update(self) -> int:
        """Number of rows of an update, or the number with the same cost."""
        return FEW_ROWS

    # ---- the course of the warm-up ---------------------------------------------------------

    def run(self, point: PointType) -> Adapted:
        with blas_threads(1):
            return super().run(point)

    def begin(self, point: PointType) -> None:
        self.point, self.anchor = point, self._start(point)
        self.positions = np.tile(self.anchor, (CHAINS, 1))
        self.relaxations = 0.0
        """Length of the recorded half of the last window, in relaxations."""

    def prepare(self, k: int) -> tuple[Settings, bool]:
        spread = None
        if self.past is not None and self.relaxations >= ENOUGH_TO_SEE:
            spread = self.past.std(axis=0)
        change = self._update_matrix(k, spread)
        self._refuse_weak_effects()
        if k == 0:
            self.narrow()
        self.refuse_coarse_integrals()
        if k == 0:
            self._refuse_hidden_jumps(self.anchor)
        return self._settings(k), change < SETTLED

    def window(self, k: int, settings: Settings) -> None:
        share, anchor, positions = 0.1 if k == 0 else 0.5, self.anchor, self.positions

        def thin(settings: Settings) -> int:
            return int(np.clip(np.ceil(share * settings.pace.relaxation), 1, MAX_THIN))

        def run(slower: Settings) -> ShortRun:
            # Each restart begins closer to the anchor.
            closer = slower.pace.step_size / settings.pace.step_size
            if k == 0:
                near = self._jittered(np.tile(anchor, (CHAINS, 1)), SPREAD * closer)
            else:
                near = anchor + closer * (positions - anchor)
            return self._draws(near, slower, thin(slower), DRAWS, early=k == 0)

        used, (_, draws, *_) = with_restarts(settings, run)
        self.relaxations = DRAWS / 2 * thin(used) / used.pace.relaxation
        self.past = draws[:, DRAWS // 2 :].reshape(-1, self.gradients.size)
        self.positions, self.anchor = draws[:, -1], self.past.mean(axis=0)

    def _start(self, point: PointType) -> np.ndarray:
        n_rows = self.objective.n_rows
        first = min(n_rows, self._enough_rows(FIRST_ROWS))
        theta = self.gradients.flat(point)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                theta = find_start(self.objective_of, n_rows, first, theta, self.is_scale, self.rng)
        except np.linalg.LinAlgError as error:
            raise SamplingError(
                "The warm-up found no start: its steps ran away to where the log posterior has no "
                "curvature. Give the variables other values of initval=, and narrower priors."
            ) from error
        refuse_jumps(self.objective_of(first), theta, self.rng)
        refuse_edges(self.objective, self.gradients.flat(point), theta)
        return theta

    def _refuse_weak_effects(self) -> None:
        if form_may_change("non_centred"):
            curvature = np.diag(self.matrix)
            with self.gradients.points_held():
                found = weak_effects(self.kernel.model, self.objective, self.anchor, curvature)
            if found:
                raise OtherForm("non_centred", found)

    def _refuse_hidden_jumps(self, theta: np.ndarray) -> None:
        possible = elements_compared(self.gradients)
        if not possible.any():
            return
        objective = self.objective.sample(ROWS_WITH_JUMPS, np.random.default_rng(0))
        self.gradients.settle_around(theta)
        with self.gradients.points_held():
            refuse_hidden_jumps(objective, theta, self.metric, possible)

    def at_anchor(self, with_curvature: bool = False) -> Evaluated:
        """Evaluate the objective at the anchor, with the points of integration of the updates."""
        self.gradients.settle_around(self.anchor)
        with self.gradients.points_held():
            return self.objective.at(self.anchor, with_curvature=with_curvature)

    def objective_of(self, n: int) -> Objective:
        return self.objective.some(n, self.rng)

    def _enough_rows(self, n: int) -> int:
        """Return how many rows are worth ``n`` of an ordinary model, or 10 per parameter."""
        return max(n // self.gradients.rows_worth, 10 * self.gradients.size)

    def objective_of_steep_rows(self) -> Objective:
        """Return the objective of some rows, enough to see where the posterior is steep."""
        return self.objective_of(self._enough_rows(STEEP_ROWS))

    def _update_matrix(self, k: int, spread: np.ndarray | None) -> float:
        """Average the curvature again; return the largest |log| of its change.

        ``spread`` is the standard deviation of the last window's draws, if known.
        """
        matrices = self.curvatures()
        if k == 0:
            refuse_undetermined(matrices[0], self.gradients.names, self.objective.no_curvature)
        new = np.mean([positive(matrix) for matrix in matrices], axis=0)
        if spread is not None:
            new = no_wider_than(WIDE * spread, new)
        if k == 0:
            new = new + np.diag(1.0 * self.is_scale)
            self.matrix, change = new, np.inf
        else:
            change = largest_change(self.matrix, new)
            # The curvature at the start is dropped after the first window.
            self.matrix = new if k == 1 else (self.matrix * (k - 1) + new) / k
        self.metric.scale_to(self.matrix)
        return change

    def _settings(self, k: int) -> Settings:
        """Measure the noise of the next updates, and fit the metric to it."""
        noise = self.noise(k)
        variances, largest, smallest = self.metric.fit_to_noise(noise, self.matrix)
        variances = np.maximum(variances, 0.0)
        chosen = pace(
            self.kernel.algorithm,
            variances,
            self.target_bias,
            largest,
            smallest,
            self.noise_in_tails,
        )
        if k < 2:
            chosen = chosen.slower(0.5)
        if steepest := self.steepest():
            stable = STABLE / np.sqrt(steepest)
            chosen = chosen.slower(min(1.0, stable / chosen.step_size))
        self.kernel.load_adaptation()
        return Settings(variances, chosen, largest, smallest)

    # ---- short runs ------------------------------------------------------------------------

    def pilot(self, settings: Settings) -> tuple[ShortRun, int, float]:
        """Settle; choose the updates per draw by the effective sample size of some draws."""
        thin = settings.pace.thin
        if thin > MOST_UPDATES:
            raise self._too_slow(settings)
        longest = MAX_PILOT_COST / (CHAINS * self._cost_of_update)
        settle = max(1, int(min(15 * settings.pace.relaxation, longest) / thin))
        run = self._draws(self.positions, settings, thin, settle)
        for _ in range(MAX_DOUBLINGS):
            run = self._draws(run.draws[:, -1], settings, thin, PILOT_DRAWS, fresh=False)
            per_draw = effective_sizes(run.draws).min() / (CHAINS * PILOT_DRAWS)
            if self.is_hot(run):
                break
            if SEEN <= per_draw < ENOUGH:  # every second or fourth draw would do
                longer = 2 if 2 * per_draw >= ENOUGH else 4
                return run, longer * thin, longer * per_draw
            cost = CHAINS * PILOT_DRAWS * 2 * thin * self._cost_of_update
            if per_draw >= ENOUGH or cost > MAX_PILOT_COST:
                break
            thin *= 2
        return run, thin, per_draw

    def _too_slow(self, settings: Settings) -> SamplingError:
        """Return the error for steps so small that no number of draws is worthwhile."""
        if self.kernel.algorithm.dynamics == "thermostat":
            remedy = "Look for parameters that the data and the prior leave undetermined."
        else:
            remedy = "Pass step=sgm.MSGNHT_S(), whose thermostats absorb the noise of batches."
        return SamplingError(
            f"A draw would need {settings.pace.thin:,} updates of {self.kernel.name}, whose step "
            f"size must be {settings.pace.step_size:.2g} because of the noise of batches along "
            f"{self._along(settings.noise)}. {remedy}"
        )

    def is_hot(self, run: ShortRun) -> bool:
        if run.thermostats is None:
            return False
        most = HOT * max(1.0, self.kernel.algorithm.injected_noise)
        return float((run.thermostats - run.friction).max()) > most

    def _draws(
        self,
        positions: np.ndarray,
        settings: Settings,
        thin: int,
        n: int,
        early: bool = False,
        fresh: bool = True,
    ) -> ShortRun:
        """Run the chains from some positions; chains that go too far away have diverged."""
        points = [{**self.point, **self.gradients.point(theta)} for theta in positions]
        self.foresee(self.runs.seconds_per_update * thin * n * len(points))
        try:
            run = self.runs.run(points, settings, thin, n, fresh)
        except Diverged as error:
            steep = self._largest(self._steepness(positions))
            raise Diverged(f"{error}; chains began where it is steepest along {steep}") from error
        self.foresee(0.0)
        away = run.draws - positions.mean(axis=0)
        distance = np.sqrt(np.einsum("cni,ij,cnj->cn", away, self.matrix, away).max())
        if distance > (1000.0 if early else 50.0) + 5 * np.sqrt(self.gradients.size):
            each = np.abs(away).max(axis=(0, 1)) / self.metric.spread()
            raise Diverged(f"{self._largest(each)} went {each.max():.0f} standard deviations away")
        # Thermostats also absorb what chains lose in height; without batches they absorb only that.
        thermostats = run.thermostats if fresh and self.kernel.source.rows else None
        most = (NOISY_AT_FIRST if early else NOISIER) * run.friction.max()
        if thermostats is not None and thermostats.max() > most:
            noisiest = self._along(thermostats)
            raise Diverged(f"the gradient's noise along {noisiest} grew without bound")
        return run

    def _steepness(self, positions: np.ndarray) -> np.ndarray:
        """Return the largest slope of -log posterior, per standard deviation of an element."""
        objective = self.objective_of_steep_rows()
        slopes = [np.nan_to_num(objective.at(p).gradient) for p in positions]
        return np.abs(slopes).max(axis=0) * self.metric.spread()

    def _largest(self, each: np.ndarray) -> str:
        """Return the names of the elements for which a number is largest."""
        order = np.argsort(-each)[:MOST_NAMED]
        return ", ".join(f"'{self.gradients.names[j]}'" for j in order if each[j] > each.max() / 2)

    def _along(self, each: np.ndarray) -> str:
        """Return the names of the elements along the axis of z for which a number is largest."""
        axis = np.zeros(self.gradients.size)
        axis[each.argmax()] = 1.0
        return self._largest(np.abs(self.metric.times(axis)) / self.metric.spread())

    def _jittered(self, positions: np.ndarray, spread: float = 1.0) -> np.ndarray:
        """Return over-dispersed points around some points, each of about the same density."""
        objective = self.objective_of_steep_rows()
        shifts = spread * self.metric.times(self.rng.standard_normal(positions.shape))
        with np.errstate(over="ignore", invalid="ignore"):
            highest = max(objective.at(p).value for p in np.unique(positions, axis=0))
            spreads = [
                spread_with_density(objective, p, shift[None], highest)[0]
                for p, shift in zip(positions, shifts, strict=True)
            ]
        return positions + np.array(spreads)[:, None] * shifts

    @property
    def passes(self) -> float:
        return super().passes + self.objective.passes

    @property
    def _cost_of_update(self) -> float:
        return max(FIXED_COST, float(self.rows_per_update * self.gradients.size))

    def finish(self, settings: Settings, run: ShortRun, thin: int, **found: Any) -> Adapted:
        starts = self._jittered(np.tile(run.draws[:, -1], (STARTS // CHAINS, 1)))
        chosen = self.freeze(settings, starts, thin, jitter=APART, **found)
        warn_of_slow_draws(
            chosen,
            self.runs.seconds_per_update,
            self._seconds_per_gradient,
            gradients_of_nuts(self.matrix),
            self.gradients.effects_are_integrated,
        )
        return chosen

    def freeze(self, settings: Settings, starts: np.ndarray, thin: int, **others: Any) -> Adapted:
        own = {"anchor": self.anchor, "anchor_gradient": self.anchor_gradient}
        return super().freeze(settings, starts, thin, **own | others)

    def _seconds_per_gradient(self) -> float:
        """Time a gradient of all rows: the faster of updates and gradients of single rows."""
        by_updates = self.runs.seconds_per_update / self.passes_of(1)
        began = time.perf_counter()
        self.objective.at(self.anchor)
        return min(by_updates, time.perf_counter() - began)

    # ---- new data --------------------------------------------------------------------------

    def renew(self, earlier: Adapted) -> Adapted:
        """Adapt to new data with the metric and step size that were chosen for other data."""
        size = self.gradients.size
        if len(earlier.anchor) != size:
            raise UnfitAdaptation(
                f"adaptation= was chosen for {len(earlier.anchor)} parameters, but "
                f"{self.kernel.name} has {size} here. {ANEW}"
            )
        with blas_threads(1), self.progress:
            self.metric.arrays = [np.asarray(array) for array in earlier.scaling]
            inverse = np.linalg.inv(self.metric.matrix)
            self.matrix = inverse.T @ inverse
            self.metric.scale_to(self.matrix)
            self.anchor = self._anchor_from(earlier)
            self.refuse_coarse_integrals()
            self.anchor_gradient = self.at_anchor().likelihood_gradient
            self.stage = "row weights and noise"
            self.weight_rows()
            window = self._settings(self.min_windows)
            chosen = window.slower(min(1.0, earlier.step_size / window.pace.step_size))
            return self.freeze(
                chosen,
                earlier.starts + self.anchor - earlier.anchor,
                ceil(earlier.thin * earlier.step_size / chosen.pace.step_size),
                jitter=earlier.jitter,
                windows=0,
                ess_per_draw=earlier.ess_per_draw,
            )

    def _anchor_from(self, earlier: Adapted) -> np.ndarray:
        """Find the mode of the new data by steps from the earlier anchor in its metric."""
        theta, metric = earlier.anchor.astype(float), self.metric
        self.stage = "anchor"
        n_rows = self.objective.n_rows
        # With more rows than before, the posterior is narrower than the metric.
        rate = min(1.0, (earlier.n_rows or n_rows) / n_rows)
        for _ in range(MOST_PASSES):
            here = self.objective.at(theta)
            z = -rate * metric.transposed_times(here.gradient)
            if np.abs(z).max() < AT_THE_ANCHOR:
                return theta
            theta = theta + metric.times(z)
        raise UnfitAdaptation(
            f"adaptation= does not fit these data: after {MOST_PASSES} passes from its anchor the "
            f"mode of the posterior was not found. {ANEW}"
        )
