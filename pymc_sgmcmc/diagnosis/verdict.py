"""The verdict: from what was measured, "ok", "failed" or "unclear", and one sentence what to do.

A deviation fails if it is larger than the tolerance AND than chance explains. Of m deviations with
normal errors the largest exceeds t standard errors with probability at most
ALARM = m P(|T| > t), where T has Student's distribution with as many degrees of freedom as there
are blocks, less one; so t grows slowly with the number of directions d.
"""

from collections.abc import Iterator

import numpy as np
from scipy import stats
from xarray import Dataset

from pymc_sgmcmc.diagnosis.stein import BLOCKS

TOLERANCE = 0.1
"""Of the mean gradient, in posterior standard deviations, and of the virial."""
LARGEST_ERROR = 0.15
"""Standard errors above this say nothing."""
ALARM = 0.001
"""Probability that chance alone makes any direction fail."""
LARGEST_RHAT = 1.05
FEWEST_ESS = 100
THERMOSTAT_FACTOR = 2.0
"""Between the thermostat and its prediction."""
ANCHOR_TOLERANCE = 0.01
"""Of the gradient at the anchor, along z: how far, in standard deviations, it moves the mean."""
WHOLE_GROUPS = (
    "pass step=sgm.MSGNHT_S(batches='groups') if groups are nested, or half the step_size."
)
"""Remedy for batches of rows: single rows of small groups are noisy."""
DATA_CHANGED = "The data have changed since the step was adapted to them: make a new step."
NOTE = "No check can see a mode that no chain has visited."


def threshold(n_tests: int, n_blocks: int) -> float:
    """Return how many standard errors chance explains.

    Parameters
    ----------
    n_tests : int
        Numbers that are looked at.
    n_blocks : int
        Of all chains, from which the standard errors were made.

    Examples
    --------
    >>> from pymc_sgmcmc.diagnosis.verdict import threshold
    >>> round(threshold(10, 40), 1)
    4.3
    """
    return float(stats.t.isf(ALARM / (2 * n_tests), max(1, n_blocks - 1)))


def judge(measured: Dataset) -> tuple[str, str]:
    """Return the verdict and the remedy.

    Parameters
    ----------
    measured : Dataset
        As `diagnose` returns it. What is absent was not measured and is not judged.

    Returns
    -------
    verdict : {"ok", "failed", "unclear"}
    remedy : str
        One sentence; before it that the data are no longer those of the warm-up, if so.
    """
    verdict, remedy = _judged(measured)
    if measured.attrs.get("data_changed") and verdict != "ok":
        return verdict, f"{DATA_CHANGED} {remedy}"
    return verdict, remedy


def _judged(measured: Dataset) -> tuple[str, str]:
    if measured.attrs.get("predictions_only"):
        return "unclear", (
            f"With {int(measured['parameters'])} parameters neither means nor standard deviations "
            "are judged: judge predictions, on data that were held out."
        )
    for remedy in _failures(measured):
        return "failed", remedy
    for remedy in _doubts(measured):
        return "unclear", remedy
    return "ok", f"Nothing to do. {NOTE}"


def limit_of(measured: Dataset) -> float:
    """How many standard errors chance explains, for all Stein identities together."""
    tests = 2 * measured.sizes["direction"] + measured.sizes.get("pair", 0) + 1
    if "outward" in measured:
        tests += int(np.count_nonzero(measured["shared_by"] > 1))
    return threshold(tests, int(measured["blocks"]))


def _failures(measured: Dataset) -> Iterator[str]:
    """What certainly is wrong, first what has the most definite remedy."""
    number = {name: float(v) for name, v in measured.data_vars.items() if v.ndim == 0}
    if number.get("nonfinite", 0) > 0:
        yield (
            f"{number['nonfinite']:.2%} of the draws have an update that is not finite: pass a "
            "smaller step_size, or standardise the data."
        )
    if number.get("anchor_error", 0) > ANCHOR_TOLERANCE:
        yield (
            "The gradient at the anchor is not that of the model's present data (it moves the mean "
            f"by {number['anchor_error']:.2g} sd): if the data have changed, make a new step and "
            "sample again."
        )
    if "chain_correlation" in number:
        limit = threshold(1, BLOCKS) * number["chain_correlation_error"]
        if number["chain_correlation"] > max(TOLERANCE, limit):
            yield (
                f"The chains move together (correlation {number['chain_correlation']:.2f}): give "
                "each its own seed, without which they count as one."
            )
    if "virial" in measured and number["gradients"] >= FEWEST_ESS:
        yield from _stein_failures(measured)
    if number["rhat"] > max(LARGEST_RHAT, number["rhat_by_chance"]):
        yield (
            f"The chains have not come together (R-hat {number['rhat']:.2f}): draw more, or pass "
            "a smaller step_size, or reparametrise the slowest variables."
        )
    if "thermostat_predicted" in number:
        ratio = number["thermostat"] / number["thermostat_predicted"]
        if not 1 / THERMOSTAT_FACTOR < ratio < THERMOSTAT_FACTOR:
            yield (
                f"The thermostat is {ratio:.2g} times what the warm-up predicts: the noise is not "
                "what it was, so make a new step, with a larger batch_size."
            )
    if "held_temperature" in number:
        off = number["held_temperature"] - 1
        limit = threshold(1, int(measured["blocks"])) * number["held_temperature_error"]
        if abs(off) > max(TOLERANCE, limit):
            yield (
                f"The kinetic temperature is {off + 1:.2f} instead of 1: the friction does not "
                "absorb the noise, so pass a smaller step_size, a larger batch_size, or use "
                "MSGNHT_S."
            )


def _stein_failures(measured: Dataset) -> Iterator[str]:
    limit = limit_of(measured)

    def worst(name: str, target: float) -> tuple[float, str] | None:
        """Deviation, and what is mostly along that direction."""
        off, error = measured[name] - target, measured[f"{name}_error"]
        failed = (np.abs(off) > TOLERANCE) & (np.abs(off) > limit * error)
        if not failed.any():
            return None
        at = int(np.argmax(np.where(failed, np.abs(off), 0)))
        along = off.dims == ("direction",) and "element" in measured.coords
        where = f" (mostly of '{measured['element'].values[at]}')" if along else ""
        return float(off.values.flat[at]), where

    found = worst("virial", 1.0) or worst("mean_virial", 1.0)
    if found is not None and found[0] > 0:
        yield (
            f"Standard deviations are too large, {_ratio(found[0] + 1)} times the right ones"
            f"{found[1]}: pass half the step_size, or a larger batch_size."
        )
    elif found is not None and found[0] > -1:
        yield (
            f"Standard deviations are too small, {_ratio(found[0] + 1)} times the right ones"
            f"{found[1]}: draw more, with a larger thin and replacement=True, or use NUTS."
        )
    elif found is not None:
        yield (
            f"The draws have missed a part of the posterior{found[1]}, as in a hierarchy whose "
            "scale may be zero: write effects that the data tell little about non-centred, or use "
            "NUTS."
        )
    found = worst("gradient", 0.0)
    if found is not None:
        remedy = "draw more, with more tune, or pass a smaller step_size."
        if measured.attrs.get("batches") == "rows":
            remedy = WHOLE_GROUPS
        yield f"Means are off by up to {abs(found[0]):.2g} sd{found[1]}: {remedy}"
    if "shared_by" in measured:
        yield from _group_failures(measured, limit)
    if "pair" in measured.dims:
        found = worst("cross", 0.0)
        if found is not None:
            yield (
                f"Correlations are off by up to {abs(found[0]):.2g}: pass a smaller step_size, or "
                "a larger batch_size."
            )


def tolerance_of_groups(groups: np.ndarray, prior_share: np.ndarray) -> np.ndarray:
    """How far the mean virial of the effects of so many groups may be off, and `outward`.

    An error of the effects alpha_j, given all else, moves the log of the scale tau that they share
    by its variance, 1 / (2 G (1 - r)^2), times what it adds to its gradient, the sum over groups of
    ((alpha_j - mu) / tau)^2. r is the prior's share of an effect's precision, s_j^2 / tau^2.

    - Variances that are off by a part v add G r v, the virial being 1 + v.
    - Means m_j that are off by e_j add 2 / tau^2 times the sum of (m_j - mu) e_j, which is G r
      times `outward` (see `pymc_sgmcmc.diagnosis.local_identities`).

    In sds of log tau, both errors are r sqrt(G / 2) / (1 - r) times v or `outward`, and may be a
    tenth. More than half is taken for half: neither need be smaller than 0.1 sqrt(2 / G).
    """
    r = np.clip(prior_share, 0.01, 0.5)
    return TOLERANCE * np.sqrt(2 / groups) * (1 - r) / r


def _group_failures(measured: Dataset, limit: float) -> Iterator[str]:
    """What is wrong with a scale that many groups share, by the spread of these."""
    groups = measured["shared_by"].values
    tolerance = tolerance_of_groups(groups, measured["prior_share"].values)
    whole = measured.attrs.get("batches") == "groups"
    remedy = "pass a larger batch_size, or half the step_size." if whole else WHOLE_GROUPS
    for identity, right, what in (("virial", 1, "variances"), ("outward", 0, "means")):
        if identity not in measured:
            continue
        off = measured[identity].values - right
        most = np.maximum(tolerance, limit * measured[f"{identity}_error"].values)
        for k in np.flatnonzero((groups > 1) & (np.abs(off) > most)):
            name = str(measured["element"].values[k]).removesuffix(", mean of all")
            sds = TOLERANCE * abs(off[k]) / tolerance[k]
            yield (
                f"The {what} of '{name}' move the scale that {groups[k]} groups share by about "
                f"{sds:.1f} of its sds: {remedy}"
            )


def _doubts(measured: Dataset) -> Iterator[str]:
    """What cannot be said."""
    ess = float(measured["ess"])
    if np.isnan(ess):
        yield (
            "The effective sample size cannot be told: draw more, and record a free variable at "
            "least (var_names=)."
        )
    elif ess < FEWEST_ESS:
        yield (
            f"The effective sample size is only {ess:.0f}: draw more, for {FEWEST_ESS} at least "
            "and better 400."
        )
    if "left_out" in measured.attrs:
        names = ", ".join(f"'{name}'" for name in np.atleast_1d(measured.attrs["left_out"]))
        yield (
            f"The gradients were not looked at, which takes draws of {names}: leave out var_names= "
            "to have them judged."
        )
    if "virial" not in measured:
        yield "The gradients were not looked at: call sgm.diagnose(idata, model)."
        return
    if measured["gradients"] < FEWEST_ESS:
        yield (
            f"Gradients were looked at at only {int(measured['gradients'])} draws: draw more, in "
            "chains of equal length."
        )
    errors = [measured[f"{name}_error"].values for name in ("gradient", "virial", "cross")]
    largest = float(np.max(np.concatenate(errors)))
    if not largest <= LARGEST_ERROR:
        noise = np.sqrt(float(measured["gradient_noise"].max()) / int(measured["gradients"]))
        if noise > largest / 2:
            yield (
                f"The gradients are too noisy to tell (standard error {largest:.2g}): call "
                "sgm.diagnose(idata, model, full_data=True)."
            )
        else:
            yield f"The draws are too few to tell (standard error {largest:.2g}): draw more."


def _ratio(virial: float) -> str:
    """The ratio of standard deviations that a virial means."""
    return f"{np.sqrt(max(virial, 0.0)):.2g}"
