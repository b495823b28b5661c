"""Rows of the verdict's table: a number, the right value, and whether it passes.

A deviation fails if it is larger than the tolerance AND larger than chance explains. Of m
deviations with normal errors the largest exceeds t standard errors with probability at most ALARM =
m P(|T| > t), where T has Student's distribution with as many degrees of freedom as there are
blocks, less one; so t grows slowly with the number of directions d.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats
from xarray import Dataset

TOLERANCE = 0.1
"""Tolerated deviation of the mean gradient, in posterior standard deviations, and of the virial."""
LARGEST_ERROR = 0.15
"""Largest standard error with which a number can pass, because larger ones hide deviations."""
ALARM = 0.001
"""Probability that chance alone makes any direction fail."""
FEWEST_ESS = 100
"""Smallest effective sample size that is judged, and smallest number of draws with gradients."""
IDENTITIES = ("gradient", "virial", "cross")
"""Names of the Stein identities that are measured along directions or pairs of them."""

Passed = Literal["yes", "within error", "no", "unclear", ""]
"""Judgement of a deviation, in this order: within the tolerance; beyond it, but not beyond what
chance explains; beyond both; undecided; not judged."""


class Row(NamedTuple):
    """One row of the table."""

    label: str
    value: float
    right: float | str
    passed: Passed
    remedy: str
    """What to do if the row did not pass, in one sentence."""
    tolerance: float | str = ""
    error: float = np.nan
    """Monte Carlo standard error, if known."""
    chance: float = 0.0
    """Deviation that the standard error explains."""
    decimals: int | None = None
    """Number of decimals of all its numbers; None means three significant digits for each."""


def threshold(n_tests: int, n_blocks: int) -> float:
    """Return the number of standard errors that chance explains, for ``n_tests`` numbers together.

    ``n_blocks`` is the number of blocks, over all chains, from which the standard errors were
    computed.
    """
    return float(errors_by_chance(n_tests, max(1, n_blocks - 1)))


def errors_by_chance(n_tests: int, degrees: np.ndarray | float) -> np.ndarray:
    """Return the same for standard errors with the given degrees of freedom."""
    return stats.t.isf(ALARM / (2 * n_tests), degrees)


def limit_of(measured: Dataset) -> float:
    """Return the number of standard errors that chance explains, for all identities together."""
    tests = 2 * measured.sizes["direction"] + measured.sizes.get("pair", 0) + 1
    if "outward" in measured:
        tests += int(np.count_nonzero(measured["shared_by"] > 1))
    return threshold(tests, int(measured["blocks"]))


def too_few(measured: Dataset) -> bool:
    """Return whether gradients were computed at too few draws to be judged."""
    return int(measured["gradients"]) < FEWEST_ESS


def have_no_bias(measured: Dataset) -> bool:
    """Return whether Metropolis' correction leaves the draws no error but that of their number.

    The identities then need not be precise: chains that have not converged make them fail.
    """
    return bool(measured.attrs.get("exact_draws"))


def precision(measured: Dataset) -> tuple[float, float]:
    """Return the identities' largest standard error, and how much of it is gradient noise."""
    errors = [measured[f"{name}_error"].values for name in IDENTITIES]
    noise = np.sqrt(float(measured["gradient_noise"].max()) / int(measured["gradients"]))
    return float(np.max(np.concatenate(errors))), float(noise)


def imprecise(measured: Dataset) -> str:
    """Return what has to be done before the identities can be judged."""
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
    return f"There are too few draws to tell (standard error {largest:.2g}): draw more."


def judged(off: float, tolerance: float, chance: float) -> Passed:
    """Judge a deviation from the right value."""
    if np.isnan(off):
        return "unclear"
    if abs(off) <= tolerance:
        return "yes"
    return "within error" if abs(off) <= chance else "no"


@dataclass(frozen=True)
class Number:
    """A check of a number that has a right value, which yields its row if it was measured."""

    name: str
    """Name of the measurement; the name of its standard error, if any, ends in ``_error``."""
    label: str
    right: float
    tolerance: float
    remedy: Callable[[float, str, Dataset], str]
    """Makes one sentence from the value, the element along which its direction mostly lies, and all
    measurements."""
    errors: Callable[[Dataset], float] = lambda measured: 0.0
    """Returns the number of standard errors that chance explains."""
    only_above: bool = False
    """Whether values below the right one are also right."""

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
    """A check of a Stein identity by its worst direction, or pair of directions."""

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
            off = np.where(measured["shared_by"] > 1, -1, off)  # they have separate rows
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
        precise = errors[k] <= LARGEST_ERROR or have_no_bias(measured)
        if too_few(measured) or not (failed[k] or precise):
            passed, remedy = "unclear", imprecise(measured)
        yield Row(
            label, values[k], self.right, passed, remedy, self.tolerance, errors[k], chance[k]
        )
