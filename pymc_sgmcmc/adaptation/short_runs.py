"""Short runs of chains, by which a warm-up moves on and measures how fast they explore."""

import time
from collections.abc import Callable
from math import ceil
from typing import NamedTuple

import numpy as np
from arviz_stats.base import array_stats
from pymc.blocking import PointType
from pymc.exceptions import SamplingError
from pymc.stats.convergence import SamplerWarning

from pymc_sgmcmc.adaptation.step_size import Pace, expected_friction
from pymc_sgmcmc.chain import Chain
from pymc_sgmcmc.gradients.start_check import BadStart
from pymc_sgmcmc.kernel import Kernel
from pymc_sgmcmc.schedules import Constant

RESTARTS = 10
"""Largest number of restarts of a window that diverges, each with half the step size."""


CENTRING = (
    "Effects of groups, if there are any, are better written centred where each has many rows, "
    "pm.Normal('a', mu, tau, ...), in Bambi noncentered=False, and non-centred where each has few, "
    "and predictors are better standardised."
)


class Diverged(Exception):
    """A short run diverged; the message describes what was seen, as part of a sentence."""


class Settings(NamedTuple):
    """Settings of a short run, or of all updates after the warm-up."""

    noise: np.ndarray
    """Variances nu of the gradient's noise along z."""
    pace: Pace
    largest_eigval: float = 1.0
    """Largest eigenvalue of the curvature in z."""
    smallest_eigval: float = 1.0

    def slower(self, factor: float) -> "Settings":
        """Return the settings with a smaller step size."""
        return self._replace(pace=self.pace.slower(factor))


class ShortRun(NamedTuple):
    """The result of a short run of chains."""

    points: list[PointType]
    """The point at which each chain ended."""
    draws: np.ndarray
    """Recorded elements, shape (chains, draws, elements)."""
    thermostats: np.ndarray | None
    """Mean of the thermostats over chains and draws, shape (d,); None if friction is fixed."""
    friction: np.ndarray
    """The friction that was expected."""


class ShortRuns:
    """Chains that draw from a kernel for a while, then with other settings.

    ``elements`` maps a point to the recorded values; ``before_draw`` is called with each draw's
    number of updates.
    """

    def __init__(
        self,
        kernel: Kernel,
        rng: np.random.Generator,
        elements: Callable[[PointType], np.ndarray],
        before_draw: Callable[[int], None],
    ):
        self.kernel, self.rng = kernel, rng
        self.elements, self.before_draw = elements, before_draw
        self.chains: list[Chain] = []
        self.seconds_per_update = 0.0
        """Seconds per update of one chain in the last run; 0 before the first run."""

    def run(
        self, points: list[PointType], settings: Settings, thin: int, n: int, fresh: bool = True
    ) -> ShortRun:
        """Make ``n`` draws from each point; ``fresh`` chains have the present thermostats."""
        kernel = self.kernel
        step_size = settings.pace.step_size
        kernel.schedule, kernel.thin = Constant(step_size), thin
        expected = expected_friction(kernel.algorithm, step_size, settings.noise)
        kernel.friction = expected
        if fresh:
            self.chains = [Chain(kernel, rng, tune=0) for rng in self.rng.spawn(len(points))]
        last, draws, seconds = [], [], []
        friction: float | np.ndarray = 0.0
        for chain, now in zip(self.chains, points, strict=True):
            chain.begin(now)  # compiles the updates if nothing has yet
            for _ in range(n):
                self.before_draw(thin)
                began = time.perf_counter()
                try:
                    advance = chain.draw(now)
                except BadStart as error:
                    raise Diverged("a chain began without a density") from error
                if advance.nonfinite:
                    raise Diverged(_nonfinite(advance.warning))
                seconds.append(time.perf_counter() - began)
                now = {**now, **advance.moved}
                draws.append(self.elements(now))
                thermostats = kernel.algorithm.thermostats
                if chain.state is not None and thermostats is not None:
                    xi = chain.state[thermostats]
                    friction = friction + np.concatenate([np.ravel(x) for x in xi])
            last.append(now)
        # The first draw may have compiled something.
        self.seconds_per_update = float(np.median(seconds)) / thin
        shaped = np.reshape(draws, (len(points), n, -1))
        found = friction / len(draws) if isinstance(friction, np.ndarray) else None
        return ShortRun(last, shaped, found, expected)


def with_restarts[R](settings: Settings, run: Callable[[Settings], R]) -> tuple[Settings, R]:
    """Run chains, with smaller step sizes if they diverge; also return the settings used."""
    for _ in range(RESTARTS):
        try:
            return settings, run(settings)
        except Diverged as error:
            tried, seen = settings.pace.step_size, error
            settings = settings.slower(0.5)
    raise SamplingError(
        "The warm-up diverged with every step size that it tried; with the smallest, "
        f"{tried:.3g}, {seen}. Look for data that are impossible under the model or parameters "
        f"that the data and the prior leave undetermined. {CENTRING} Or pass step_size=, "
        "batch_size= and thin= yourself."
    ) from seen


def _nonfinite(warning: SamplerWarning | None) -> str:
    """Describe a chain's warning, which is given only once."""
    extra = {} if warning is None or warning.extra is None else warning.extra
    return f"{extra.get('name', 'a variable')} became non-finite"


def effective_sizes(draws: np.ndarray) -> np.ndarray:
    """Return the effective sample size of each element; draws are (chains, draws, elements)."""
    each = [array_stats.ess(column, chain_axis=0, draw_axis=1) for column in draws.T.swapaxes(1, 2)]
    return np.array(each, dtype=float)


def rounded(n: float) -> int:
    """Round up to four binary digits, because JAX compiles each number of updates separately."""
    unit = 2 ** max(0, int(np.log2(max(n, 1.0))) - 3)
    return max(1, unit * ceil(n / unit))
