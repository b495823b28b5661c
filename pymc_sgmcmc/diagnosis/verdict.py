"""The verdict on what was measured: "ok", "failed" or "unclear", and a sentence on what to do.

`CHECKS` has an entry for each row of the table. Those with the most definite remedies come first:
the first row that failed gives the remedy, or if none has, the first that is unclear.
"""

from collections.abc import Callable, Iterator

import numpy as np
from xarray import Dataset

from pymc_sgmcmc.diagnosis.stein import BLOCKS
from pymc_sgmcmc.diagnosis.verdict_rows import (
    FEWEST_ESS,
    LARGEST_ERROR,
    TOLERANCE,
    Identity,
    Number,
    Passed,
    Row,
    errors_by_chance,
    have_no_bias,
    imprecise,
    judged,
    limit_of,
    precision,
    threshold,
    too_few,
)
from pymc_sgmcmc.exact.certificate_weights import LARGEST_K_HAT

LARGEST_RHAT = 1.05
"""Largest R-hat that passes, unless chance explains a larger one."""
LARGEST_RHAT_BY_CHANCE = 1.1
"""Largest R-hat explained by chance with which R-hat can still tell whether chains differ."""
THERMOSTAT_FACTOR = 2.0
"""Largest factor between the thermostat and its prediction."""
CERTAIN = 1.5
"""Deviation, relative to what chance explains, from which a failure needs no more draws."""
ANCHOR_TOLERANCE = 0.01
"""Tolerated error of the gradient at the anchor along z, as the number of standard deviations by
which it moves the mean."""
NO_INFORMATION = 1.0
"""Error of a mean, in standard deviations, from which its certificate says nothing if chance
explains it."""
EXACT = "pass exact=True, which leaves no error of the sampler"
"""Remedy for an error of the step size or of minibatches."""
WHOLE_GROUPS = (
    "pass step=sgm.MSGNHT_S(batches='groups') if groups are nested, or half the step_size."
)
"""Remedy for batches of rows, because single rows of small groups are noisy."""
DATA_CHANGED = "The data have changed since the step was adapted to them: make a new step."
NOTE = "No check can see a mode that no chain has visited, and none here sees the shape of tails."


def judge(measured: Dataset) -> tuple[str, str]:
    """Return the verdict and the remedy for what was measured; what is absent is not judged.

    If the data are no longer those of the warm-up, the remedy begins by saying so.
    """
    verdict, remedy = _judged(measured)
    if measured.attrs.get("data_changed") and verdict != "ok":
        return verdict, f"{DATA_CHANGED} {remedy}"
    return verdict, remedy


def _judged(measured: Dataset) -> tuple[str, str]:
    if measured.attrs.get("predictions_only"):
        return "unclear", (
            f"With {int(measured['parameters'])} parameters neither means nor standard deviations "
            "are judged: judge predictions on held-out data."
        )
    found = list(rows(measured))
    for verdict, passed in (("failed", "no"), ("unclear", "unclear")):
        for row in found:
            if row.passed == passed:
                return verdict, row.remedy
    sentences = ("Nothing to do.", _would_have_shown(measured), _by_exact_densities(measured), NOTE)
    return "ok", " ".join(filter(None, sentences))


def rows(measured: Dataset) -> Iterator[Row]:
    """Yield the rows of the table, in the order of `CHECKS`."""
    for check in CHECKS:
        yield from check(measured)


def _would_have_shown(measured: Dataset) -> str:
    """Return a sentence on how large an error would have been noticed."""
    if have_no_bias(measured):
        return (
            "The draws are exact: their number is their only error, "
            f"{1 / np.sqrt(float(measured['ess'])):.2g} sd of a mean."
        )

    def least(name: str) -> float:
        return max(TOLERANCE, limit_of(measured) * float(measured[f"{name}_error"].max()))

    shown = [f"{least('gradient'):.2g} sd of a mean"]
    shown.append(f"{least('virial') / 2:.0%} of a standard deviation")
    if measured.sizes.get("pair"):
        shown.append(f"{least('cross'):.2g} of a correlation")
    return (
        f"Errors of {', '.join(shown[:-1])} and {shown[-1]} would have shown; smaller ones may not."
    )


def _by_exact_densities(measured: Dataset) -> str:
    """Return a sentence on the certificate, if there is one."""
    found = list(_k_hat(measured))
    if not found:
        return ""
    if len(found) == 1:
        return (
            f"Exact densities do not tell (k-hat {found[0].value:.2g}), because the posterior is "
            "far from a Student distribution."
        )
    _, mean, sd = found
    if mean.chance > NO_INFORMATION:
        return (
            "Exact densities do not tell, because few draws have most of their weight (chance "
            f"explains an error of a mean of {mean.chance:.2g} sd)."
        )
    return (
        f"By exact densities the largest error of a mean is {abs(mean.value):.2g} sd (chance "
        f"explains {mean.chance:.2g}), and of a standard deviation {abs(sd.value - 1):.0%} "
        f"({sd.chance:.0%})."
    )


def tolerances(measured: Dataset, name: str) -> np.ndarray:
    """Return the tolerated deviation of a Stein identity along each direction, or for each pair."""
    each = np.full(measured[name].shape, TOLERANCE)
    if name == "virial" and "shared_by" in measured:
        groups = measured["shared_by"].values
        own = tolerance_of_groups(groups, measured["prior_share"].values)
        each = np.where(groups > 1, np.minimum(own, each), each)
    return each


def _of_effects(measured: Dataset) -> Iterator[Row]:
    """Yield a row for each scale that many groups share, judged by the spread of their effects."""
    if "shared_by" not in measured or "virial" not in measured:
        return
    groups = measured["shared_by"].values
    tolerance = tolerance_of_groups(groups, measured["prior_share"].values)
    whole = measured.attrs.get("batches") == "groups"
    remedy = "pass a larger batch_size, or half the step_size." if whole else WHOLE_GROUPS
    for identity, right, what in (("virial", 1, "variances"), ("outward", 0, "means")):
        if identity not in measured:
            continue
        values, errors = measured[identity].values, measured[f"{identity}_error"].values
        for k in np.flatnonzero(groups > 1):
            name = str(measured["element"].values[k]).removesuffix(", mean of all")
            off, chance = values[k] - right, limit_of(measured) * errors[k]
            sds = TOLERANCE * abs(off) / tolerance[k]
            yield Row(
                f"{OF_SPREAD if right else SPREAD_OF_MEANS}, all {groups[k]} groups of {name}",
                values[k],
                right,
                "unclear" if too_few(measured) else judged(off, tolerance[k], chance),
                f"The {what} of '{name}' move the scale that {groups[k]} groups share by about "
                f"{sds:.1f} of its sds: {remedy}",
                tolerance[k],
                errors[k],
                chance,
                decimals=4,
            )


def tolerance_of_groups(groups: np.ndarray, prior_share: np.ndarray) -> np.ndarray:
    """Return how far the mean virial of the groups' effects, and `outward`, may be off.

    An error of the effects alpha_j, given everything else, moves the log of the scale tau that they
    share by its variance, 1 / (2 G (1 - r)^2), times what the error adds to its gradient, the sum
    over groups of ((alpha_j - mu) / tau)^2. Here r is the prior's share of an effect's precision,
    s_j^2 / tau^2.

    - Variances that are off by a fraction v add G r v, the virial being 1 + v.
    - Means m_j that are off by e_j add 2 / tau^2 times the sum of (m_j - mu) e_j, which is G r
      times `outward` (see `pymc_sgmcmc.diagnosis.local_identities`).

    In sds of log tau, both errors are r sqrt(G / 2) / (1 - r) times v or `outward`, and may be a
    tenth. An r above a half counts as a half, and one below 0.01 as 0.01; neither v nor `outward`
    has to be smaller than 0.1 sqrt(2 / G).
    """
    r = np.clip(prior_share, 0.01, 0.5)
    return TOLERANCE * np.sqrt(2 / groups) * (1 - r) / r


# ---- what is unclear ----------------------------------------------------------------------------


def times_as_many_draws(measured: Dataset) -> float:
    """Return the factor by which a clear verdict needs more draws, 1 if it needs no more.

    Draws that fail by little more than chance explains may be right after all, because `ALARM`
    holds for draws without any error, and tolerable errors make an alarm more likely.
    """
    if "virial" not in measured:
        return 1.0
    verdict, _ = judge(measured)
    if verdict == "unclear":
        largest, noise = precision(measured)
        return 1.0 if noise > largest / 2 else max(1.0, (largest / LARGEST_ERROR) ** 2)
    failed = [row for row in rows(measured) if row.passed == "no"]
    if not failed or not all(row.chance for row in failed):
        return 1.0
    surest = max(abs(row.value - float(row.right)) / row.chance for row in failed)
    return max(1.0, (CERTAIN / surest) ** 2)


def _effective_sample_size(measured: Dataset) -> Iterator[Row]:
    if "ess" not in measured:
        return
    ess = float(measured["ess"])
    remedy = (
        f"The effective sample size is only {ess:.0f}: draw more, for at least {FEWEST_ESS} and "
        "preferably 400."
    )
    if np.isnan(ess):
        remedy = (
            "The effective sample size is unknown: draw more, and record at least one free "
            "variable (var_names=)."
        )
    passed: Passed = "yes" if ess >= FEWEST_ESS else "unclear"
    right = f"> {FEWEST_ESS}"
    yield Row("smallest effective sample size", ess, right, passed, remedy, decimals=0)


def _gradients_at_draws(measured: Dataset) -> Iterator[Row]:
    """Yield rows for the number of draws with gradients, and the resulting standard error."""
    if "ess" not in measured:
        return
    number = int(measured.get("gradients", 0))
    remedy = "No gradients were computed at the draws: call sgm.diagnose(idata, model)."
    if "left_out" in measured.attrs:
        names = ", ".join(f"'{name}'" for name in np.atleast_1d(measured.attrs["left_out"]))
        remedy = (
            f"No gradients were computed, because they need draws of {names}: leave out "
            "var_names= to have the draws judged."
        )
    elif "virial" in measured:
        remedy = imprecise(measured)
    passed: Passed = "yes" if number >= FEWEST_ESS else "unclear"
    yield Row("draws with gradients", number, f"> {FEWEST_ESS}", passed, remedy, decimals=0)
    if "virial" in measured:
        largest, _ = precision(measured)
        passed = "yes" if largest <= LARGEST_ERROR else "unclear"
        passed = "" if have_no_bias(measured) else passed
        right = f"< {LARGEST_ERROR}"
        yield Row("largest standard error", largest, right, passed, imprecise(measured))


def _rhat(measured: Dataset) -> Iterator[Row]:
    if "rhat" not in measured:
        return
    rhat, chance = float(measured["rhat"]), float(measured["rhat_by_chance"]) - 1
    passed = judged(max(rhat - 1, 0.0), LARGEST_RHAT - 1, chance)
    remedy = (
        f"The chains have not converged (R-hat {rhat:.2f}): draw more, pass a smaller step_size, "
        "or reparametrise the slowest variables."
    )
    if passed == "within error" and chance > LARGEST_RHAT_BY_CHANCE - 1:
        passed = "unclear"
        remedy = (
            f"There are too few draws to tell whether the chains have converged (R-hat {rhat:.2f}"
            f", and chance explains up to {chance + 1:.2f}): draw more."
        )
    yield Row("largest R-hat", rhat, 1, passed, remedy, LARGEST_RHAT - 1, chance=chance)


# ---- remedies -----------------------------------------------------------------------------------


def _of_nonfinite(share: float, where: str, measured: Dataset) -> str:
    return (
        f"{share:.2%} of the draws have an update that is not finite: pass a smaller step_size, or "
        "standardise the data."
    )


def _of_anchor(error: float, where: str, measured: Dataset) -> str:
    return (
        "The gradient at the anchor is not that of the model's present data (it moves the mean by "
        f"{error:.2g} sd): if the data have changed, make a new step and sample again."
    )


def _of_quadrature(error: float, where: str, measured: Dataset) -> str:
    return (
        f"The integrals over the effects of groups are off, which may move means by {error:.2g} "
        "sd: pass integrate=None, which samples the effects."
    )


def _of_chains_together(correlation: float, where: str, measured: Dataset) -> str:
    return (
        f"The chains move together (correlation {correlation:.2f}) and count as one: give each its "
        "own seed."
    )


def _of_drift(excess: float, where: str, measured: Dataset) -> str:
    drifts, size = ("rose", "large") if excess > 0 else ("fell", "small")
    return (
        f"The chains have not burnt in: the thermostat {drifts} while they drew, at "
        f"{1 + excess:.2f} times the right temperature, so standard deviations are too {size}. "
        "Pass a longer tune."
    )


def _of_virial(virial: float, where: str, measured: Dataset) -> str:
    ratio = f"{np.sqrt(max(virial, 0.0)):.2g} times the right ones{where}"
    if virial > 1:
        return (
            f"Standard deviations are too large, {ratio}: pass half the step_size or a larger "
            f"batch_size, or {EXACT}."
        )
    if virial > 0:
        return (
            f"Standard deviations are too small, {ratio}: pass half the step_size, with twice the "
            f"thin, or {EXACT}."
        )
    return (
        f"The draws have missed a part of the posterior{where}, as in a hierarchy whose scale may "
        "be zero: write effects about which the data say little in non-centred form, or use NUTS."
    )


def _of_means(gradient: float, where: str, measured: Dataset) -> str:
    remedy = f"draw more, with more tune, or pass a smaller step_size; or {EXACT}."
    if measured.attrs.get("batches") == "rows":
        remedy = WHOLE_GROUPS
    return f"Means are off by up to {abs(gradient):.2g} sd{where}: {remedy}"


def _of_correlations(cross: float, where: str, measured: Dataset) -> str:
    return (
        f"Correlations are off by up to {abs(cross):.2g}: pass a smaller step_size or a larger "
        f"batch_size, or {EXACT}."
    )


def _thermostat(measured: Dataset) -> Iterator[Row]:
    if "thermostat" not in measured:
        return
    value, predicted = float(measured["thermostat"]), measured.get("thermostat_predicted")
    if predicted is None:
        yield Row("thermostat", value, "", "", "")
        return
    ratio = value / float(predicted)
    right = 1 / THERMOSTAT_FACTOR < ratio < THERMOSTAT_FACTOR
    remedy = (
        f"The thermostat is {ratio:.2g} times what the warm-up predicts: the noise has changed, so "
        "make a new step, with a larger batch_size."
    )
    tolerance = f"factor {THERMOSTAT_FACTOR:g}"
    yield Row("thermostat", value, float(predicted), "yes" if right else "no", remedy, tolerance)


def _of_temperature(temperature: float, where: str, measured: Dataset) -> str:
    return (
        f"The kinetic temperature is {temperature:.2f} instead of 1: the friction does not absorb "
        "the noise, so pass a smaller step_size, a larger batch_size, or use MSGNHT_S."
    )


def _k_hat(measured: Dataset) -> Iterator[Row]:
    """Whether exact densities can be used, and how far the draws' moments differ from theirs.

    A large k-hat is not held against the draws, because their posterior need not be a Student
    distribution.
    """
    if "k_hat" not in measured:
        return
    k_hat = float(measured["k_hat"])
    usable: Passed = "yes" if k_hat < LARGEST_K_HAT else ""
    yield Row("k-hat of the certificate", k_hat, f"< {LARGEST_K_HAT}", usable, "", decimals=2)
    if not usable:
        return
    for name, label, right, what in (
        ("certified_mean", "mean, off the exact one (sd)", 0, "Means are {:.2g} sd off{}"),
        ("certified_sd", "sd / exact one", 1, "Standard deviations are {:.2g} of the right ones{}"),
    ):
        values, errors = measured[name].values, measured[f"{name}_error"].values
        degrees, n_tests = measured[f"{name}_degrees"].values, 2 * len(values)
        off, chance = values - right, errors_by_chance(n_tests, degrees) * errors
        beyond = (np.abs(off) > TOLERANCE) & (np.abs(off) > chance)
        k = int(np.argmax(np.where(beyond, np.abs(off), 0) if beyond.any() else np.abs(off)))
        element = str(measured["element"].values[k])
        remedy = f"{what.format(abs(values[k]), f' (mostly of {element!r})')}: {EXACT}."
        yield Row(
            f"{label}, mostly {element}",
            values[k],
            right,
            judged(off[k], TOLERANCE, chance[k]),
            remedy,
            TOLERANCE,
            errors[k],
            chance[k],
        )


def _noise_ratio(measured: Dataset) -> Iterator[Row]:
    if "noise_to_friction" in measured:
        yield Row("noise / injected noise", float(measured["noise_to_friction"]), "", "", "")


def _of_all_blocks(measured: Dataset) -> float:
    return threshold(1, int(measured["blocks"]))


def _of_blocks_of_one(measured: Dataset) -> float:
    return threshold(1, BLOCKS)


OF_SPREAD = "variance / right"
SPREAD_OF_MEANS = "spread of means"
BURN_IN = Number(
    "thermostat_drift", "drift of the thermostat", 0, TOLERANCE, _of_drift, _of_blocks_of_one
)
CHECKS: tuple[Callable[[Dataset], Iterator[Row]], ...] = (
    Number("nonfinite", "draws that are not finite", 0, 0, _of_nonfinite),
    Number("quadrature_error", "error of the integrals (sd)", 0, TOLERANCE, _of_quadrature),
    Number("anchor_error", "gradient at the anchor, error", 0, ANCHOR_TOLERANCE, _of_anchor),
    Number(
        "chain_correlation",
        "correlation of chains",
        0,
        TOLERANCE,
        _of_chains_together,
        _of_blocks_of_one,
        only_above=True,
    ),
    _effective_sample_size,
    _gradients_at_draws,
    BURN_IN,
    Identity("virial", OF_SPREAD, 1, TOLERANCE, _of_virial, limit_of),
    Identity("mean_virial", f"{OF_SPREAD}, mean of all", 1, TOLERANCE, _of_virial, limit_of),
    Identity("gradient", "error of mean (sd)", 0, TOLERANCE, _of_means, limit_of),
    _of_effects,
    Identity("cross", "error of correlation", 0, TOLERANCE, _of_correlations, limit_of),
    _k_hat,
    _rhat,
    _thermostat,
    Number(
        "held_temperature", "kinetic temperature", 1, TOLERANCE, _of_temperature, _of_all_blocks
    ),
    _noise_ratio,
)
