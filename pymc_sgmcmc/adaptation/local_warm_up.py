r"""The warm-up of models with local variables, whose elements move only with their groups' rows.

Given everything else, an element of group j has about the precision of its prior and its n_j rows,

    1 / L_j^2 = prior precision + n_j c_j,     c_j the curvature of a row,

and the gradient of a batch with m_j of its rows has the noise, along z,

    nu_j = L_j^2 n_j^2 v_j c_j

if the rows' gradients have the variance c_j, as they do if the model is right. v_j is the variance
of the mean of m_j rows (`pymc_sgmcmc.adaptation.touch_rates`): E[1 / m_j] (1 - 1 / n_j) in batches
of rows, 0 for groups that batches contain as a whole. The scale of the shared variables is
conditional on the local ones: a matrix from differences of their gradients, along the axes of their
noise, which is that of N / n. All scales are slowed where they are noisy
(`pymc_sgmcmc.adaptation.step_size.slowed`), so that one step size suits all.

The chains of the warm-up begin with shared variables held, until the groups are spread as in the
posterior: otherwise the groups' scales would fall to zero.
"""

import logging
from collections.abc import Iterator
from math import ceil, sqrt
from typing import Any, NamedTuple

import numpy as np
from pymc.blocking import PointType
from pymc.exceptions import SamplingError

from pymc_sgmcmc.adaptation.adapted_settings import Adapted
from pymc_sgmcmc.adaptation.curvature import (
    largest_change,
    positive,
    refuse_undetermined,
)
from pymc_sgmcmc.adaptation.local_gradients import LocalBatch, LocalGradient, LocalGradients
from pymc_sgmcmc.adaptation.short_runs import (
    Settings,
    ShortRun,
    effective_sizes,
    rounded,
)
from pymc_sgmcmc.adaptation.slow_draws_warning import warn_of_slow_draws
from pymc_sgmcmc.adaptation.step_size import pace, slowed
from pymc_sgmcmc.adaptation.warm_up import WarmUp, largest_move
from pymc_sgmcmc.gradients.metric import flat, root_of_inverse, split_flat

_log = logging.getLogger("pymc.sgmcmc")

SHARED_ERROR = {"thermostat": 0.03, "friction": 0.2}
"""Assumed error of a scale that groups share, as a multiple of h^2 sqrt(2 G) sds; measured were
0.01 to 0.04, and 0.2."""
PRIOR_SHARES = 0.01, 0.5
"""Smallest and largest prior share r that is used for batches of rows."""
CHAINS = 2
HELD = 2
"""Number of first windows in which shared variables do not move."""
SETTLED = 2.0
"""Largest |log| change of the shared variables' metric, twice, with which windows end."""
DRIFT = 1.5
"""Largest move of the shared variables' means, in a window's sds, with which windows end."""
HELD_DRAWS, DRAWS = 8, 12
"""Number of draws of each chain in a window with shared variables held, and in the others."""
MOST_ROWS = 1_000_000
"""Largest number of rows for the groups' curvature, at most one pass."""
ROWS_OF_MEAN = 5.0
"""Number of rows that the mean over all groups counts for in the curvature of each group."""
SHARED_ROWS = 20_000
"""Largest number of rows, at most two passes, per difference of the shared gradients."""
NOISE_BATCHES = 100
"""Smallest number of batches for the noise of shared variables; at least three per element."""
SLOW = 0.9
"""Share of the groups that must move fast enough for draws to be nearly independent."""
TRACKED = 100
"""Number of elements of local variables whose effective sample size is tracked."""
WORST_TRACKED = 0.05
"""Share of the tracked elements that may have a smaller effective sample size."""
PILOT_DRAWS = 40
MAX_DOUBLINGS = 2
GRADIENTS_OF_NUTS = 63
"""Number of gradients per draw of NUTS in a hierarchy with many groups."""


class BlockScales(NamedTuple):
    """Scales of one variable's elements, or of all shared elements."""

    scales: np.ndarray
    """The scales L, a matrix for the shared elements."""
    noise: np.ndarray
    """Noise nu along z."""
    updates: np.ndarray
    """Number of updates in which each element forgets its position, if step size and D are 1."""
    prior_share: float = 0.0
    """The prior's share r of the curvature, averaged over groups with rows."""


class LocalWarmUp(WarmUp):
    """Adapts a kernel with a `LocalScales` metric, group by group."""

    max_windows = 14

    gradients: LocalGradients

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.n_shared = self.metric.n_shared
        self.shared_is_scale = self.is_scale[self.metric.order[: self.n_shared]]
        eps = float(np.finfo(self.gradients.source.vars[0].dtype).eps)
        self.difference = eps**0.25
        """Step of a difference of gradients, in units of a scale."""
        self.local_steps = [1.0 for _ in self.gradients.variables]
        """Typical scale of each variable's elements, as far as it is known."""
        self.tracked = self._tracked()

    def run(self, point: PointType) -> Adapted:
        if self._batches_of == "rows" and self.kernel.algorithm.dynamics != "thermostat":
            _log.warning(
                f"{self.kernel.name} does not absorb the noise of batches of rows. Its effect on "
                "each group adds up in scales that groups share, so these may be off. "
                "Use MSGNHT_S, or pass batches='groups' to SGHMC_S."
            )
        try:
            return super().run(point)
        finally:
            self.gradients.forget_rows()

    # ---- the course of the warm-up ---------------------------------------------------------

    def begin(self, point: PointType) -> None:
        self.points = [point] * CHAINS
        self.past: np.ndarray | None = None
        """Draws of the shared elements in the last window, if they moved."""
        self.curvature: np.ndarray | None = None
        self.moved = self.change = np.inf

    def prepare(self, k: int) -> tuple[Settings, bool]:
        settled = k > 0 and ((self.moved < DRIFT and self.change < SETTLED) or not self.n_shared)
        before, self.curvature = self.curvature, None
        if not self._holds(k):
            self.curvature = self._shared_curvature(self.points, self.past)
        settings = self._settings(self.points, self.curvature)
        self.change = np.inf
        if before is not None and self.curvature is not None:
            self.change = largest_change(before, self.curvature)
        return settings, settled

    def _holds(self, k: int) -> bool:
        """Whether shared variables are held in a window."""
        return k < HELD or not self.n_shared

    def window(self, k: int, settings: Settings) -> None:
        if k < 2 * HELD:
            halved = settings.pace._replace(step_size=0.5 * settings.pace.step_size)
            settings = settings._replace(pace=halved)
        held = self._holds(k)
        self.points, draws = self.move_on(self.points, settings, HELD_DRAWS if held else DRAWS)
        shared = draws[:, DRAWS // 2 :, : self.n_shared].reshape(-1, self.n_shared)
        self.moved = np.inf if held or self.past is None else largest_move(shared, self.past)
        self.past = None if held else shared

    def _settings(self, points: list[PointType], curvature: np.ndarray | None) -> Settings:
        """Set the metric for the next updates; shared variables are held without a curvature."""
        n = self.n_shared
        theta = [self.kernel.split(point)[0] for point in points]
        blocks = self._local_blocks(theta)
        shared = BlockScales(np.zeros((n, n)), np.zeros(n), np.zeros(n))
        if curvature is not None:
            shared = self._shared_block(theta, curvature)
        self.metric.set(shared.scales, [block.scales for block in blocks])
        self.kernel.load_adaptation()
        noise = np.concatenate([shared.noise, *(block.noise.ravel() for block in blocks)])
        chosen = pace(self.kernel.algorithm, noise, self.target_bias)
        if self.kernel.algorithm.dynamics != "langevin":
            chosen = chosen.slower(min(1.0, self._largest_of_many(blocks) / chosen.step_size))
        diffusion = self.kernel.algorithm.injected_noise or 1.0
        h = chosen.step_size
        if self.kernel.algorithm.dynamics == "langevin":
            unit = 2 / h
        else:
            unit = (diffusion + h * float(noise.mean()) / 2) / h
        slowest = [unit * float(np.quantile(b.updates, SLOW)) for b in blocks]
        slowest += [unit * float(shared.updates.max(initial=0.0))]
        return Settings(noise, chosen._replace(relaxation=max(slowest)))

    def _largest_of_many(self, blocks: list[BlockScales]) -> float:
        """Return the step size with which scales of G groups are right, within the target bias.

        The integrator's error has the same sign in all groups: about `SHARED_ERROR` h^2 sqrt(2 G)
        in sds of a shared scale; in batches of rows times r / (1 - r).
        """
        error = SHARED_ERROR[self.kernel.algorithm.dynamics or "friction"]
        largest = 0.0
        for k, block in zip(self.gradients.local, blocks, strict=True):
            n_groups = np.count_nonzero(self.gradients.sizes(k))
            r = 0.5 if self._batches_of == "groups" else np.clip(block.prior_share, *PRIOR_SHARES)
            largest = max(largest, error * sqrt(2 * n_groups) * r / (1 - r))
        return sqrt(self.target_bias / largest)

    @property
    def _batches_of(self) -> str:
        return "rows" if self.kernel.whole_groups is None else "groups"

    # ---- scales ----------------------------------------------------------------------------

    def _batches(self, n_rows: float) -> Iterator[LocalBatch]:
        """Draw batches with about this number of rows in total."""
        return self.gradients.batches(ceil(n_rows / self.gradients.rows_per_batch), self.rng)

    def _at(self, elements: list[np.ndarray], batch: LocalBatch) -> LocalGradient:
        self.count(self.gradients.share)
        return self.gradients.at(elements, batch)

    def _local_blocks(self, theta: list[list[np.ndarray]]) -> list[BlockScales]:
        """Estimate the scale and the noise of each element of each local variable.

        The diagonal of a group's curvature is the average, over random signs, of the signs times
        the curvature times the signs.
        """
        g = self.gradients
        local = g.local
        rows = {k: np.zeros_like(theta[0][k], dtype=float) for k in local}
        prior = {k: np.zeros_like(rows[k]) for k in local}
        seen = {k: np.zeros_like(g.sizes(k)) for k in local}
        visits = {k: np.zeros_like(g.sizes(k)) for k in local}
        for i, batch in enumerate(self._batches(min(MOST_ROWS, g.n_rows))):
            elements = g.gathered(theta[i % len(theta)], batch)
            here = self._at(elements, batch)
            for k in local:
                groups, used = g.slots(k, batch)
                signs = self.rng.choice([-1.0, 1.0], size=elements[k].shape)
                step = self.difference * self.local_steps[k]
                shifted = elements.copy()
                shifted[k] = elements[k] + step * signs
                there = self._at(shifted, batch)
                per_seen = g.rows_per_seen(k, batch)
                of_rows = (here.likelihood[k] - there.likelihood[k]) * signs / step
                of_prior = (here.prior[k] - there.prior[k]) * signs / step
                rows[k][groups] += of_rows[used] / per_seen
                prior[k][groups] += of_prior[used]
                seen[k][groups] += g.sizes(k)[groups] / per_seen
                visits[k][groups] += 1
        return [self._block(k, rows[k], prior[k], seen[k], visits[k]) for k in local]

    def _block(self, k: int, rows, prior, seen, visits) -> BlockScales:
        """Turn sums over batches into scales; arrays are shaped like the variable."""
        g = self.gradients
        axis, n = g.axis(k), g.sizes(k)
        mean = np.sum(rows, axis=axis, keepdims=True) / seen.sum()
        mean = np.maximum(mean, 0.0)
        each = (rows + ROWS_OF_MEAN * mean) / (seen + ROWS_OF_MEAN)
        each = np.maximum(each, mean / 10)
        of_prior = np.maximum(np.sum(prior, axis=axis, keepdims=True) / visits.sum(), 0.0)
        curvature = n * each + of_prior
        curvature = np.maximum(curvature, 1e-6 * curvature.max())
        if not np.isfinite(curvature).all() or not (curvature > 0).all():
            raise SamplingError(
                f"The log posterior of '{g.source.vars[k].name}' has no curvature where the "
                "warm-up starts: data and prior leave its elements undetermined. Give it a proper "
                "prior, or pass step_size=, batch_size= and thin= yourself."
            )
        self.local_steps[k] = float(np.median(curvature) ** -0.5)
        rates = g.touch_rates(k)
        noise = n**2 * rates.variance * each / curvature
        slower = slowed(self.kernel.algorithm, noise, self.target_bias)
        updates = 1 / (slower**2 * np.maximum(rates.touched, 1e-300))
        updates = np.where(n > 0, updates, 1.0)  # drawn from the prior
        shares = (of_prior / curvature)[np.broadcast_to(n > 0, curvature.shape)]
        return BlockScales(
            slower * curvature**-0.5, noise * slower**2, updates, float(shares.mean())
        )

    def _shared_gradient(self, theta, batch: LocalBatch, shift=None) -> np.ndarray:
        """Return the flat gradient of the whole log posterior for the shared elements."""
        elements = self.gradients.gathered(theta, batch)
        if shift is not None:
            pieces = iter(split_flat(shift, [e.shape for e in self._of_shared(elements)]))
            elements = [
                e + next(pieces) if local is None else e
                for e, local in zip(elements, self.gradients.variables, strict=True)
            ]
        found = self._at(elements, batch)
        total = [p + lik for p, lik in zip(found.prior, found.likelihood, strict=True)]
        return np.concatenate([np.empty(0), *(np.ravel(t) for t in self._of_shared(total))])

    def _of_shared(self, each: list[np.ndarray]) -> list[np.ndarray]:
        return [e for e, v in zip(each, self.gradients.variables, strict=True) if v is None]

    def _shared_curvature(self, points: list[PointType], past: np.ndarray | None) -> np.ndarray:
        """Return the Hessian of -log posterior over the shared elements, given the local ones."""
        theta = [self.kernel.split(point)[0] for point in points]
        g, n = self.gradients, self.n_shared
        # If rows are independent, the variance of a batch's gradient is about N / n times this.
        noise = self._noise(theta)
        information = np.diag(noise) * g.share
        if g.share == 1:  # one batch of all groups, without noise
            information = np.ones(n)
        steps = self.difference / np.sqrt(np.maximum(information, 1e-12))
        shifts = np.diag(steps)
        hessian = np.zeros((n, n))
        batches = list(self._batches(min(SHARED_ROWS, 2 * g.n_rows)))
        for i, batch in enumerate(batches):
            at = theta[i % len(theta)]
            here = self._shared_gradient(at, batch)
            for k, step in enumerate(steps):
                there = self._shared_gradient(at, batch, shifts[k])
                hessian[k] += (here - there) / (step * len(batches))
        hessian = (hessian + hessian.T) / 2
        refuse_undetermined(hessian, g.order()[2])
        if past is None:
            hessian = positive(hessian) + np.diag(1.0 * self.shared_is_scale)
        return positive(hessian)

    def _noise(self, theta: list[list[np.ndarray]]) -> np.ndarray:
        """Return the covariance of a batch's gradient for the shared elements, shape (s, s)."""
        count = max(NOISE_BATCHES, 3 * self.n_shared)
        total = np.zeros((self.n_shared, self.n_shared))
        for at in theta:
            batches = self.gradients.batches(count, self.rng)
            each = np.array([self._shared_gradient(at, batch) for batch in batches])
            each -= each.mean(axis=0)
            total += each.T @ each / (len(each) - 1)
        return total / len(theta)

    def _shared_block(self, theta: list[list[np.ndarray]], curvature: np.ndarray) -> BlockScales:
        """Choose scales for the shared elements, along the axes of their noise."""
        root = root_of_inverse(curvature)
        variances, axes = np.linalg.eigh(root.T @ self._noise(theta) @ root)
        variances = np.maximum(variances, 0.0)
        slower = slowed(self.kernel.algorithm, variances, self.target_bias)
        return BlockScales(root @ axes * slower, variances * slower**2, slower**-2.0)

    # ---- short runs ------------------------------------------------------------------------

    @property
    def share_of_rows(self):
        return self.gradients.share

    def elements(self, point):
        return self._flat(point)[self.tracked]

    def _flat(self, point: PointType) -> np.ndarray:
        return flat(self.kernel.split(point)[0])

    def _tracked(self) -> np.ndarray:
        """Choose the elements of theta to record: all shared ones, and some of groups with rows."""
        order, g = self.metric.order, self.gradients
        shared, local = order[: self.n_shared], order[self.n_shared :]
        with_rows = [np.broadcast_to(g.sizes(k) > 0, g.source.shapes[k]).ravel() for k in g.local]
        local = local[np.concatenate(with_rows)]
        some = self.rng.choice(local, min(TRACKED, len(local)), replace=False)
        return np.concatenate([shared, some])

    def pilot(self, settings: Settings) -> tuple[ShortRun, int, float]:
        thin = rounded(settings.pace.relaxation)
        return self.doubled(self.points, settings, thin, PILOT_DRAWS, MAX_DOUBLINGS, fresh=True)

    def finish(self, settings: Settings, run: ShortRun, thin: int, **found: Any) -> Adapted:
        starts = np.array([self._flat(point) for point in run.points])
        own = {"anchor": starts.mean(axis=0), "batches": self._batches_of}
        chosen = self.freeze(settings, starts, thin, **own, **found)
        seconds = self.runs.seconds_per_update
        g = self.gradients
        warn_of_slow_draws(chosen, seconds, lambda: seconds / g.share, GRADIENTS_OF_NUTS)
        return chosen

    def effective_size(self, draws):
        each = effective_sizes(draws)
        shared, local = each[: self.n_shared], each[self.n_shared :]
        return min([*shared, float(np.quantile(local, WORST_TRACKED))])
