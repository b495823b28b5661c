r"""The warm-up of models with so many parameters that no matrix of their curvature is made.

The chains' starts are found by Adam, from scattered points, so they may end in different modes. The
variance V of a batch's likelihood gradient, divided by R = N / n, is about the diagonal of the
Fisher information, and

    L_i = (V_i / R + prior precision_i)^(-1/2)

is the scale of each element. It makes all elements about equally uncertain; it does not make
posteriors of networks exact: predictions can be judged, means and standard deviations cannot.
"""

import numpy as np
from pymc.blocking import PointType

from pymc_sgmcmc.adaptation.adam import SCATTER, adam, prior_unit
from pymc_sgmcmc.adaptation.adapted_settings import Adapted
from pymc_sgmcmc.adaptation.short_runs import Settings
from pymc_sgmcmc.adaptation.step_size import pace
from pymc_sgmcmc.adaptation.warm_up import WarmUp

STARTS = 4
ADAM_PASSES = 20
MIN_ADAM_UPDATES = 2000
VARIANCE_BATCHES = 100
"""Number of batches at each start from which V is estimated."""
POWER_ITERATIONS = 25
CURVATURE_BATCHES = 10
"""Number of batches whose gradients are differenced for a product with the Hessian."""


class ManyParametersWarmUp(WarmUp):
    """Adapts a kernel with a diagonal metric by the variances of batches' gradients."""

    def _run(self, point: PointType) -> Adapted:
        kernel, gradients = self.kernel, self.gradients
        begin = gradients.flat(point)
        unit = prior_unit(gradients.prior_curvature_diagonal(begin))
        starts = np.empty((STARTS, begin.size))
        for k in range(STARTS):
            self.stage = f"start {k + 1} of {STARTS}"
            starts[k] = self._adam(begin, unit)
        self.stage = "noise and curvature"
        variance = np.mean([self._variance(theta) for theta in starts], axis=0)
        batches = gradients.n_rows / gradients.batch_size
        precision = variance / batches + 1 / unit**2
        self.metric.set(precision**-0.5)
        noise = variance / precision
        largest = max(self._largest_curvature(theta) for theta in starts)
        chosen = pace(kernel.algorithm, noise, self.target_bias, largest)
        return self.freeze(
            Settings(noise, chosen, largest, smallest_eigval=0.0),
            starts,
            int(np.ceil(batches)),
            anchor=starts[0],
            windows=0,
            ess_per_draw=0.0,
            predictions_only=True,
        )

    def _batch(self) -> np.ndarray:
        self.count(self.share_of_rows)
        return self.rng.integers(self.gradients.n_rows, size=self.gradients.batch_size)

    def _adam(self, begin: np.ndarray, unit: np.ndarray) -> np.ndarray:
        """Climb the log posterior from a point near the given one."""
        gradients = self.gradients
        theta = begin + SCATTER * unit * self.rng.standard_normal(begin.size)
        passes = ADAM_PASSES * gradients.n_rows / gradients.batch_size

        def slope(at: np.ndarray) -> np.ndarray:
            likelihood = gradients.likelihood_gradient(at, self._batch())
            return likelihood + gradients.prior_gradient(at)

        return adam(slope, theta, unit, int(max(MIN_ADAM_UPDATES, passes)))

    def _variance(self, theta: np.ndarray) -> np.ndarray:
        """Return the variance of a batch's gradient, by Welford's running sums."""
        mean, total = np.zeros_like(theta), np.zeros_like(theta)
        for k in range(1, VARIANCE_BATCHES + 1):
            slope = self.gradients.likelihood_gradient(theta, self._batch())
            off = slope - mean
            mean += off / k
            total += off * (slope - mean)
        return total / (VARIANCE_BATCHES - 1)

    def _largest_curvature(self, theta: np.ndarray) -> float:
        """Return the largest eigenvalue of L' H L by power iterations, H by differences."""
        batches = [self._batch() for _ in range(CURVATURE_BATCHES)]

        def slope(at):
            self.count(CURVATURE_BATCHES * self.share_of_rows)
            likelihood = [self.gradients.likelihood_gradient(at, rows) for rows in batches]
            return np.mean(likelihood, axis=0) + self.gradients.prior_gradient(at)

        eps = float(np.finfo(self.gradients.dtype).eps) ** 0.25
        here, z = slope(theta), self.rng.standard_normal(theta.size)
        largest = 0.0
        for _ in range(POWER_ITERATIONS):
            z /= np.linalg.norm(z)
            there = slope(theta + eps * self.metric.times(z))
            z = self.metric.transposed_times(here - there) / eps
            largest = float(np.linalg.norm(z))
        return max(largest, 1.0)
