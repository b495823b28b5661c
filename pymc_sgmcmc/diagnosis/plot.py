"""A figure of the Stein identities."""

from typing import Any

import numpy as np
from xarray import Dataset

from pymc_sgmcmc.diagnosis.verdict import tolerances
from pymc_sgmcmc.diagnosis.verdict_rows import Passed, judged, limit_of

PANELS = (
    ("gradient", 0.0, "error of mean (sd)"),
    ("virial", 1.0, "variance / right"),
)
"""Variable, right value and title of each panel."""
POINTS: tuple[tuple[Passed, str, str], ...] = (
    ("yes", "C0", "passed"),
    ("within error", "C1", "passed: within error"),
    ("no", "C3", "failed"),
)
"""Judgement, colour and legend of points."""


def plot_identities(measured: Dataset, **kwargs: Any) -> np.ndarray:
    """Plot the mean gradient and the virial along each direction.

    A point fails (red) if it lies outside the band of tolerated deviations and its bar, the
    deviation that Monte Carlo error explains, does not reach the right value.
    """
    import matplotlib.pyplot as plt

    if "virial" not in measured:
        raise ValueError(
            "No gradients were computed at the draws: call sgm.diagnose(idata, model)."
        )
    limit = limit_of(measured)
    options: dict[str, Any] = {"figsize": (7, 5.5), "sharex": True, "layout": "constrained"}
    figure, axes = plt.subplots(2, 1, **options | kwargs)
    k = measured["direction"].values
    for ax, (name, right, label) in zip(axes, PANELS, strict=True):
        values, errors = measured[name].values, limit * measured[f"{name}_error"].values
        tolerance = tolerances(measured, name)
        passed = np.array(
            [judged(*each) for each in zip(values - right, tolerance, errors, strict=True)]
        )
        band = ax.bar(k, 2 * tolerance, 1.0, right - tolerance, color="0.9", label="tolerated")
        line = ax.axhline(right, color="0.3", lw=1, label="right")
        points = [
            ax.errorbar(k[at], values[at], errors[at], fmt="o", ms=4, color=colour, label=said)
            for kind, colour, said in POINTS
            for at in [passed == kind]
        ]
        ax.set_title(label, loc="left", fontsize=10)
    axes[-1].set_xlabel(f"direction (bars: {limit:.1f} standard errors, what chance explains)")
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(f"verdict: {measured.attrs['verdict']}")
    figure.legend(handles=[line, band, *points], loc="outside lower center", ncols=5, fontsize=9)
    return axes
