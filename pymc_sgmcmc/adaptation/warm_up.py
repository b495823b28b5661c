"""What all warm-ups share: a kernel, a course with progress, a frozen result."""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from pymc.blocking import PointType

from pymc_sgmcmc.adaptation.adapted import Adapted
from pymc_sgmcmc.adaptation.plan import is_scale
from pymc_sgmcmc.adaptation.progress import WarmUpProgress
from pymc_sgmcmc.adaptation.step_size import Pace, expected_friction
from pymc_sgmcmc.adaptation.time_limit import check_time
from pymc_sgmcmc.kernel import Kernel


class Window(NamedTuple):
    """Settings of a window: of the updates until metric and step size are chosen anew."""

    noise: np.ndarray
    """nu, variances of the gradient's noise along z."""
    pace: Pace
    largest_eigval: float = 1.0
    """Of the curvature in z,"""
    smallest_eigval: float = 1.0

    def slower(self, factor: float) -> "Window":
        """Return the settings with a smaller step size."""
        return self._replace(pace=self.pace.slower(factor))


class WarmUp(ABC):
    """Adapts a kernel: `run` returns what was chosen, and has set the kernel so.

    Parameters
    ----------
    kernel : Kernel
        With a metric.
    gradients : FlatModel or LocalGradients
        Of its model.
    rng : numpy.random.Generator
    target_bias : float
        Tolerated relative error of a standard deviation.

    Attributes
    ----------
    stage : str
        What it is at, for the progress line.
    """

    def __init__(
        self, kernel: Kernel, gradients: Any, rng: np.random.Generator, target_bias: float
    ):
        self.kernel, self.gradients = kernel, gradients
        self.rng, self.target_bias = rng, target_bias
        self.progress, self.stage = WarmUpProgress(), "start"
        self._counted_passes, self._forecast = 0.0, ""

    @cached_property
    def is_scale(self) -> np.ndarray:
        """Parameters under a log or logit transform, shape (d,)."""
        source = self.kernel.source
        return is_scale(self.kernel.model, source.vars, source.shapes)

    @property
    def passes(self) -> float:
        """Row gradients so far / N."""
        return self._counted_passes

    @property
    def gradients_per_update(self) -> int:
        """Batches' gradients that an update evaluates."""
        assert self.kernel.loop is not None
        return self.kernel.loop.n_gradients

    def run(self, point: PointType) -> Adapted:
        """Warm up from a point.

        Raises
        ------
        pymc.exceptions.SamplingError
            If a window diverges with every step size, or data and priors leave variables
            undetermined.
        """
        with self.progress:
            return self._run(point)

    @abstractmethod
    def _run(self, point: PointType) -> Adapted:
        """The course of the warm-up."""

    def report(self) -> None:
        """Show the stage and the passes so far, if there is time left."""
        check_time(self.stage, self.passes)
        self.progress.report(self.stage + self._forecast, self.passes)

    def foresee(self, seconds: float) -> None:
        """Show how long the stage will take, as far as that is known."""
        self._forecast = f", about {seconds:.0f} s" if seconds >= 1 else ""

    def count(self, passes: float) -> None:
        """Note and show further passes over the data."""
        self._counted_passes += passes
        self.report()

    def freeze(
        self, pace: Pace, noise: np.ndarray, starts: np.ndarray, thin: int, **others: Any
    ) -> Adapted:
        """Freeze what was chosen, and set the kernel so.

        Parameters
        ----------
        pace : Pace
        noise : array, shape (d,)
        starts : array, shape (chains, d)
        thin : int
            Updates per draw.
        **others
            Further fields of `Adapted`.
        """
        kernel = self.kernel
        assert kernel.metric is not None
        chosen = Adapted(
            metric=kernel.metric.name,
            scaling=[a.copy() for a in kernel.metric.arrays],
            noise=noise,
            friction=expected_friction(kernel.algorithm, pace.step_size, noise),
            starts=starts,
            step_size=pace.step_size,
            thin=thin,
            data_passes=self.passes,
            **{"anchor_gradient": np.zeros(starts.shape[1]), "row_copies": None} | others,
        )
        chosen.apply(kernel)
        return chosen


def drift(draws: np.ndarray, past: np.ndarray) -> float:
    """Largest move of an element's mean between windows, in standard deviations of a window.

    Parameters
    ----------
    draws, past : array, shape (n, d)
        Of this window and the one before.
    """
    spread = np.sqrt((draws.var(axis=0) + past.var(axis=0)) / 2) + np.finfo(float).tiny
    return float(np.max(np.abs(draws.mean(axis=0) - past.mean(axis=0)) / spread, initial=0.0))
