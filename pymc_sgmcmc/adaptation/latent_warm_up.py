"""The warm-up of models whose latent variables are integrated out by draws of them.

The metric is derived from the Fisher information that the latent variables leave
(`pymc_sgmcmc.adaptation.fisher_information`), along the axes of the noise. All chains begin near
ONE point that Adam has found, and near one of their own points again if they have parted, as from a
saddle of a mixture: in another mode the labels of components could be exchanged.
"""

from typing import Any

import numpy as np
from pymc.blocking import PointType
from pymc.exceptions import SamplingError

from pymc_sgmcmc.adaptation.adam import adam, prior_unit, reach
from pymc_sgmcmc.adaptation.adapted_settings import Adapted
from pymc_sgmcmc.adaptation.curvature import (
    largest_change,
    positive,
    refuse_undetermined,
)
from pymc_sgmcmc.adaptation.fisher_information import PairedGradients
from pymc_sgmcmc.adaptation.short_runs import Settings, ShortRun, rounded
from pymc_sgmcmc.adaptation.step_size import pace
from pymc_sgmcmc.adaptation.warm_up import WarmUp, largest_move

ADAM_PASSES = 5
MIN_ADAM_UPDATES = 1000
ASCENTS = 6
"""Largest number of ascents by Adam, repeated while some elements are far from their target."""
FAR = 0.5
"""Share of the distance that Adam can move an element, beyond which the element is still far."""
GROWTH = 10.0
"""Factor by which the steps of such an element grow."""
CHAINS = 4
SETTLED = 1.0
"""Largest |log| change of the metric with which windows end, if it occurs twice."""
DRIFT = 1.5
"""Largest move of a mean with which windows end, in standard deviations of a window."""
DRAWS = 12
"""Number of draws of each chain in a window."""
SPREAD = 0.5
"""Spread of the chains' first points, relative to a normal approximation."""
APART = 10.0
"""Distance between the means of chains that have parted, in standard deviations of a window."""
POSITIONS = 8
"""Number of points at which gradients are compared after a window."""
FEWEST_PAIRS, PAIRS_PER_ELEMENT = 400, 5
"""Smallest number of batches with two gradients each, over all positions, in all and per
element."""
SETTLE_DRAWS, PILOT_DRAWS = 5, 30
MAX_DOUBLINGS = 3


class LatentWarmUp(WarmUp):
    """Adapts a kernel with a `Dense` or `Diagonal` metric by paired draws of latent variables."""

    min_windows, max_windows = 2, 8

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.gradients.draw_from(self.rng.spawn(1)[0])

    # ---- the course of the warm-up ---------------------------------------------------------

    def begin(self, point: PointType) -> None:
        self.point, self.theta = point, self._start(self.gradients.flat(point))
        self.draws = self.past = self.theta[None]
        """Flat draws of the last window and of the one before."""
        self.points: list[PointType] | None = None
        """Positions of the chains; None if they begin near the last draw."""
        self.parted = False
        self.seen: PairedGradients
        self.matrix: np.ndarray
        """The curvature after a window."""

    def prepare(self, k: int) -> tuple[Settings, bool]:
        draws = self.draws
        positions = draws[np.linspace(0, len(draws) - 1, POSITIONS).astype(int)] if k else draws
        found = self._paired_gradients(positions)
        # Gradients seen at the start, or where the chains parted, are dropped.
        self.seen = found if k <= 1 or self.parted else self.seen.joined(found)
        matrix = self._curvature(self.seen, positions)
        if k == 0:
            matrix = matrix + np.diag(1.0 * self.is_scale)
        settled = k > 1 and not self.parted and largest_move(draws, self.past) < DRIFT
        settled = settled and largest_change(self.matrix, matrix) < SETTLED
        self.matrix = matrix
        settings = self._settings(matrix, self.seen)
        if self.points is None:
            z = self.rng.standard_normal((CHAINS, self.theta.size))
            near = draws[-1] + SPREAD * self.metric.times(z)
            self.points = [{**self.point, **self.gradients.point(each)} for each in near]
        return settings, settled

    def window(self, k: int, settings: Settings) -> None:
        if k < self.min_windows:
            settings = settings.slower(0.5)
        assert self.points is not None
        self.points, draws = self.move_on(self.points, settings, DRAWS)
        draws = draws[:, DRAWS // 2 :]
        self.parted = _parted(draws)
        if self.parted:
            # For the chain that has moved farthest from the common starting point.
            z = (draws.mean(axis=1) - self.theta) / self.metric.spread()
            farthest = int(np.argmax(np.linalg.norm(z, axis=1)))
            draws, self.points = draws[farthest : farthest + 1], None
        self.past, self.draws = self.draws, draws.reshape(-1, self.theta.size)

    def _start(self, begin: np.ndarray) -> np.ndarray:
        """Climb the log posterior, with larger steps for elements that still have far to go."""
        unit = prior_unit(self.gradients.prior_curvature_diagonal(begin))
        theta = begin + unit * self.rng.uniform(-1, 1, begin.size)
        n_updates = int(max(MIN_ADAM_UPDATES, ADAM_PASSES / self.share_of_rows))
        for _ in range(ASCENTS):
            before = theta
            theta = adam(self._gradient, theta, unit, n_updates)
            if not np.isfinite(theta).all():
                raise SamplingError(
                    "The gradient of the log posterior is not finite on the way from the initial "
                    "point. Look for data that are impossible under the model, or pass step_size=, "
                    "batch_size= and thin= yourself."
                )
            far = np.abs(theta - before) > FAR * reach(unit, n_updates)
            if not far.any():
                break
            unit = np.where(far, GROWTH * unit, unit)
        return theta

    def _settings(self, matrix: np.ndarray, seen: PairedGradients) -> Settings:
        """Set the metric for the next updates."""
        self.metric.scale_to(matrix)
        within = self.metric.transposed_times(self.metric.transposed_times(seen.within).T)
        noise, largest, smallest = self.metric.fit_to_noise(within, matrix)
        self.kernel.load_adaptation()
        noise = np.maximum(noise, 0.0)
        chosen = pace(self.kernel.algorithm, noise, self.target_bias, largest, smallest)
        return Settings(noise, chosen, largest, smallest)

    # ---- gradients -------------------------------------------------------------------------

    def _rows(self) -> np.ndarray:
        return self.rng.integers(self.gradients.n_rows, size=self.gradients.batch_size)

    def _likelihood_gradient(self, theta: np.ndarray, rows: np.ndarray) -> np.ndarray:
        self.count(self.share_of_rows)
        return self.gradients.likelihood_gradient(theta, rows)

    def _gradient(self, theta: np.ndarray) -> np.ndarray:
        likelihood = self._likelihood_gradient(theta, self._rows())
        return likelihood + self.gradients.prior_gradient(theta)

    def _paired_gradients(self, positions: np.ndarray) -> PairedGradients:
        """Compare two draws of the latent variables for some batches at each position."""
        size = self.gradients.size
        count = max(FEWEST_PAIRS, PAIRS_PER_ELEMENT * size) // len(positions)
        found: PairedGradients | None = None
        for theta in positions:
            pairs = np.empty((2, count, size))
            for i in range(count):
                rows = self._rows()
                pairs[:, i] = [self._likelihood_gradient(theta, rows) for _ in range(2)]
            here = PairedGradients.of(*pairs)
            found = here if found is None else found.joined(here)
        assert found is not None
        return found

    def _curvature(self, seen: PairedGradients, positions: np.ndarray) -> np.ndarray:
        """Return the curvature of -log posterior: the Fisher information plus the prior's."""
        of_prior = -np.mean([self.gradients.prior_hessian(theta) for theta in positions], axis=0)
        refuse_undetermined(self.share_of_rows * seen.within + of_prior, self.gradients.names)
        return positive(self.share_of_rows * seen.covariance_of_scores() + of_prior)

    # ---- short runs ------------------------------------------------------------------------

    def pilot(self, settings: Settings) -> tuple[ShortRun, int, float]:
        assert self.points is not None
        thin = rounded(settings.pace.relaxation)
        points = self.runs.run(self.points, settings, thin, SETTLE_DRAWS).points
        return self.doubled(points, settings, thin, PILOT_DRAWS, MAX_DOUBLINGS, fresh=False)

    def finish(self, settings: Settings, run: ShortRun, thin: int, **found: Any) -> Adapted:
        anchor = run.draws.mean(axis=(0, 1))
        return self.freeze(settings, run.draws[:, -1], thin, anchor=anchor, **found)


def _parted(draws: np.ndarray) -> bool:
    """Whether chains, shape (chains, draws, d), are in different places."""
    means = draws.mean(axis=1)
    spread = np.sqrt(draws.var(axis=1).mean(axis=0))
    return bool((np.ptp(means, axis=0) > APART * spread).any())
