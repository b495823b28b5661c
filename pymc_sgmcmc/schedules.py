"""Schedules: the step size as a function of the update number (0 is the first update).

A step size is a positive number, one of the schedules below, or any callable
``update number -> step size``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pymc_sgmcmc.number_checks import as_float, positive_number, real_number, shown

StepSize = float | Callable[[int], float]


class Schedule(ABC):
    """A step size that changes with the update number."""

    @abstractmethod
    def step_size(self, update: np.ndarray, updates_per_epoch: float) -> np.ndarray:
        """Return the step sizes of the given updates.

        Parameters
        ----------
        update : array
            Update numbers as floats; 0 is the first update of a chain, tuning included.
        updates_per_epoch : float
            Updates per pass over the data, N / n; 1 without minibatches.

        Returns
        -------
        array
            Of the same shape, in the unit of the sampler's step size.
        """

    def __call__(self, update, updates_per_epoch: float = 1.0):
        """Return the step size at an update number or an array of them."""
        return self.step_size(np.asarray(update, dtype=float), updates_per_epoch)


@dataclass(frozen=True)
class Constant(Schedule):
    """The same step size at every update; a plain number means this."""

    value: float

    def __post_init__(self):
        remedy = "Start small, for example at 1e-4, and double it until updates become non-finite."
        positive_number("step_size", self.value, remedy)

    def step_size(self, update, updates_per_epoch):
        return np.full_like(update, self.value)


@dataclass(frozen=True)
class PolynomialDecay(Schedule):
    """Step size a (b + t)^-c at update t (Welling and Teh 2011; pSGLD paper, Assumption 1).

    Parameters
    ----------
    a : float
        Scale, positive; the first step size is ``a * b ** -c``.
    b : float, default 1
        Offset in updates, positive: with a larger offset the decay starts later.
    c : float, default 0.33
        Decay exponent, in (0, 1]: beyond 1 the steps have a finite sum, and a chain stops before it
        has moved far enough. With 0.5 < c <= 1 their squares also have a finite sum, which makes
        SGLD exact in the limit.

    Raises
    ------
    ValueError
        For a value out of its range.

    Examples
    --------
    >>> from pymc_sgmcmc import PolynomialDecay
    >>> float(PolynomialDecay(a=0.1, b=1.0, c=0.5)(3))
    0.05
    """

    a: float
    b: float = 1.0
    c: float = 0.33

    def __post_init__(self):
        remedy = "For example: PolynomialDecay(a=0.01, b=1000, c=0.33)."
        positive_number("PolynomialDecay(a=)", self.a, remedy)
        positive_number("PolynomialDecay(b=)", self.b, remedy)
        exponent = "a number in (0, 1]"
        real_number("PolynomialDecay(c=)", self.c, exponent, lambda x: 0 < x <= 1, remedy)

    def step_size(self, update, updates_per_epoch):
        return self.a * (self.b + update) ** -self.c


@dataclass(frozen=True)
class BlockDecay(Schedule):
    """Multiply the step size by ``factor`` after every block (pSGLD paper, Experiments).

    Parameters
    ----------
    initial : float
        Step size of the first block, positive.
    every : float
        Length L of a block, positive, in ``unit``.
    unit : {"epochs", "updates"}, default "epochs"
        An epoch is one pass over the data; without minibatches each update is one.
    factor : float, default 0.5
        In (0, 1].

    Raises
    ------
    ValueError
        For a value out of its range, or another ``unit``.

    Examples
    --------
    >>> from pymc_sgmcmc import BlockDecay
    >>> BlockDecay(0.4, every=10, unit="updates")([0, 9, 10, 25])
    array([0.4, 0.4, 0.2, 0.1])
    """

    initial: float
    every: float
    unit: Literal["epochs", "updates"] = "epochs"
    factor: float = 0.5

    def __post_init__(self):
        remedy = "For example: BlockDecay(initial=0.01, every=10, factor=0.5)."
        positive_number("BlockDecay(initial=)", self.initial, remedy)
        positive_number("BlockDecay(every=)", self.every, remedy)
        if self.unit not in ("epochs", "updates"):
            raise ValueError(f"BlockDecay(unit=) must be 'epochs' or 'updates', got {self.unit!r}.")
        fraction = "a number in (0, 1]"
        real_number("BlockDecay(factor=)", self.factor, fraction, lambda x: 0 < x <= 1, remedy)

    def step_size(self, update, updates_per_epoch):
        block = self.every * (updates_per_epoch if self.unit == "epochs" else 1.0)
        return self.initial * self.factor ** np.floor(update / block)


@dataclass(frozen=True)
class Cyclical(Schedule):
    """Cosine cycles: large steps explore, small ones sample (Zhang et al. 2020, eq 1).

    Parameters
    ----------
    initial : float
        Step size at the start of each cycle, positive.
    period : int
        Length of a cycle in updates, at least 1.
    floor : float, default 0
        Smallest step size as a fraction of ``initial``, in [0, 1).

    Raises
    ------
    ValueError
        For a value out of its range.

    Notes
    -----
    The step at position s of a cycle of T updates is ``initial / 2 (cos(pi s / T) + 1)``.

    Examples
    --------
    >>> from pymc_sgmcmc import Cyclical
    >>> Cyclical(0.2, period=4)([0, 2, 4]).round(12)
    array([0.2, 0.1, 0.2])
    """

    initial: float
    period: int
    floor: float = 0.0

    def __post_init__(self):
        remedy = "For example: Cyclical(initial=0.01, period=1000)."
        positive_number("Cyclical(initial=)", self.initial, remedy)
        length = "a finite number of updates, at least 1"
        real_number("Cyclical(period=)", self.period, length, lambda x: 1 <= x < np.inf, remedy)
        fraction = "a number in [0, 1)"
        real_number("Cyclical(floor=)", self.floor, fraction, lambda x: 0 <= x < 1, remedy)

    def step_size(self, update, updates_per_epoch):
        position = np.mod(update, self.period) / self.period
        return self.initial * np.maximum(0.5 * (np.cos(np.pi * position) + 1.0), self.floor)


@dataclass(frozen=True)
class CallableSchedule(Schedule):
    """Any callable of the update number."""

    function: Callable[[int], float]

    def step_size(self, update, updates_per_epoch):
        values = [float(self.function(int(t))) for t in np.ravel(update)]
        return np.reshape(values, np.shape(update))


def as_schedule(step_size: StepSize) -> Schedule:
    """Turn a number, a schedule or a callable of the update number into a schedule."""
    if isinstance(step_size, Schedule):
        return step_size
    if callable(step_size):
        return CallableSchedule(step_size)
    value = as_float(step_size)
    if value is None:
        raise TypeError(
            "step_size must be a number, a schedule or a callable of the update number, "
            f"got {shown(step_size)}."
        )
    return Constant(value)


def step_sizes(
    schedule: Schedule, start: int, n_updates: int, updates_per_epoch: float
) -> np.ndarray:
    """Return the step sizes of updates ``start .. start + n_updates - 1``; all must be positive."""
    if isinstance(schedule, Constant):
        return np.full(n_updates, schedule.value)
    values = schedule(np.arange(start, start + n_updates), updates_per_epoch)
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        first = int(np.argmax(bad))
        raise ValueError(
            f"The schedule {schedule!r} gave the step size {values[first]} at update "
            f"{start + first}: step sizes must be positive and finite."
        )
    return values
