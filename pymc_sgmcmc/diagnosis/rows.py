"""Rows of the verdict's table: a number, what is right, and whether it passes.

A deviation fails if it is larger than the tolerance AND than chance explains. Of m deviations with
normal errors the largest exceeds t standard errors with probability at most
ALARM = m P(|T| > t), where T has Student's distribution with as many degrees of freedom as there
are blocks, less one; so t grows slowly with the number of directions d.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats
from xarray import Dataset

TOLERANCE = 0.1
"""Of the mean gradient, in posterior standard deviations, and of the virial."""
LARGEST_ERROR = 0.15
"""Standard errors above this say nothing."""
ALARM = 0.001
"""Probability that chance alone makes any direction fail."""
FEWEST_ESS = 100
IDENTITIES = ("gradient", "virial", "cross")
"""Measured along directions or pairs of them."""

Passed = Literal["yes", "within error", "no", "unclear", ""]
"""Within the tolerance; beyond it, but not beyond what chance explains; beyond both; it cannot be
told; it is not judged."""


class Row(NamedTuple):
    """One row of the table."""

    label: str
    value: float
    right: float | str
    passed: Passed
    remedy: str
    """One sentence, for a row that did not pass."""
    tolerance: float | str = ""
    error: float = np.nan
    """Monte Carlo standard error, if it is known,"""
    chance: float = 0.0
    """... and the deviation that it explains."""
    decimals: int | None = None
    """Of all its numbers; by default three digits of each."""


def threshold(n_tests: int, n_blocks: int) -> float:
    """Return how many standard errors chance explains.

    Parameters
    ----------
    n_tests : int
        Numbers that are judged together.
    n_blocks : int
        Of all chains, from which the standard errors were made.

    Examples
    --------
    >>> from pymc_sgmcmc.diagnosis.verdict import threshold
    >>> round(threshold(10, 40), 1)
    4.3
    """
    return float(stats.t.isf(ALARM / (2 * n_tests), max(1, n_blocks - 1)))


def limit_of(measured: Dataset) -> float:
    """How many standard errors chance explains, for all Stein identities together."""
    tests = 2 * measured.sizes["direction"] + measured.sizes.get("pair", 0) + 1
    if "outward" in measured:
        tests += int(np.count_nonzero(measured["shared_by"] > 1))
    return threshold(tests, int(measured["blocks"]))


def too_few(measured: Dataset) -> bool:
    """Whether there are too few draws with gradients to judge these."""
    return int(measured["gradients"]) < FEWEST_ESS


def precision(measured: Dataset) -> tuple[float, float]:
    """The largest standard error of the identities, and what noise of the gradients makes of it."""
    errors = [measured[f"{name}_error"].values for name in IDENTITIES]
    noise = np.sqrt(float(measured["gradient_noise"].max()) / int(measured["gradients"]))
    return float(np.max(np.concatenate(errors))), float(noise)


def imprecise(measured: Dataset) -> str:
    """Say how the identities could be judged."""
    if too_few(measured):
        return (
            f"Gradients were computed at only {int(measured['gradients'])} draws: draw more, in "
            "chains of equal length."
        )
    largest, noise = precision(measured)
    if noise > largest / 2:
        return (
            f"The gradients are too noisy to tell (standard error {largest:.2g}): call "
            "sgm.diagnose(idata, model, full_data=True)."
        )
    return f"The draws are too few to tell (standard error {largest:.2g}): draw more."


def judged(off: float, tolerance: float, chance: float) -> Passed:
    """Judge a deviation from what is right."""
    if np.isnan(off):
        return "unclear"
    if abs(off) <= tolerance:
        return "yes"
    return "within error" if abs(off) <= chance else "no"


@dataclass(frozen=True)
class Number:
    """A number with a right value. Calling it gives its row, if it was measured."""

    name: str
    """Of the measurement; that of its standard error, if it has one, ends in ``_error``."""
    label: str
    right: float
    tolerance: float
    remedy: Callable[[float, str, Dataset], str]
    """One sentence, from the value, what is mostly along its direction, and all measurements."""
    errors: Callable[[Dataset], float] = lambda measured: 0.0
    """How many standard errors chance explains."""
    only_above: bool = False
    """Whether smaller values than the right one are right too."""

    def __call__(self, measured: Dataset) -> Iterator[Row]:
        if self.name not in measured:
            return
        value, error, chance = float(measured[self.name]), np.nan, 0.0
        if f"{self.name}_error" in measured:
            error = float(measured[f"{self.name}_error"])
            chance = self.errors(measured) * error
        off = value - self.right
        passed = judged(max(off, 0.0) if self.only_above else off, self.tolerance, chance)
        remedy = self.remedy(value, "", measured)
        yield Row(self.label, value, self.right, passed, remedy, self.tolerance, error, chance)


@dataclass(frozen=True)
class Identity(Number):
    """A Stein identity. Its row is that of the direction, or pair of them, which is off most."""

    def __call__(self, measured: Dataset) -> Iterator[Row]:
        if not measured.get(self.name, np.empty(0)).size:
            return
        dims = measured[self.name].dims
        values, errors = (measured[n].values.ravel() for n in (self.name, f"{self.name}_error"))
        off, chance = np.abs(values - self.right), self.errors(measured) * errors
        failed = (off > self.tolerance) & (off > chance)
        if failed.any():
            off = np.where(failed, off, 0)
        elif dims == ("direction",) and "shared_by" in measured:
            off = np.where(measured["shared_by"] > 1, -1, off)  # they have rows of their own
        k, label, where = int(np.argmax(off)), self.label, ""
        if off[k] < 0:
            return
        if dims:
            label += f", {dims[0]} {measured[dims[0]].values[k]}"
        if dims == ("direction",) and "element" in measured.coords:
            element = measured["element"].values[k]
            label, where = f"{label}, mostly {element}", f" (mostly of '{element}')"
        passed = judged(values[k] - self.right, self.tolerance, chance[k])
        remedy = self.remedy(values[k], where, measured)
        if too_few(measured) or not (failed[k] or errors[k] <= LARGEST_ERROR):
            passed, remedy = "unclear", imprecise(measured)
        yield Row(
            label, values[k], self.right, passed, remedy, self.tolerance, errors[k], chance[k]
        )
