"""A figure of the Stein identities."""

from typing import Any

import numpy as np
from xarray import Dataset

from pymc_sgmcmc.diagnosis.verdict import TOLERANCE, limit_of

PANELS = (
    ("gradient", 0.0, "mean gradient (error of the mean, in sd)"),
    ("virial", 1.0, "virial (square of the sd's ratio to the right one)"),
)


def plot_identities(measured: Dataset, **kwargs: Any) -> np.ndarray:
    """Plot the mean gradient and the virial along each direction.

    Points with the range that chance explains; red where the identity fails. Between the dashed
    lines a deviation is tolerated.

    Parameters
    ----------
    measured : Dataset
        As `diagnose` returns it.
    **kwargs
        For `matplotlib.pyplot.subplots`.

    Returns
    -------
    array of matplotlib.axes.Axes, shape (2,)
    """
    import matplotlib.pyplot as plt

    if "virial" not in measured:
        raise ValueError("No gradients were looked at: call sgm.diagnose(idata, model).")
    limit = limit_of(measured)
    options: dict[str, Any] = {"figsize": (7, 5), "sharex": True, "layout": "constrained"} | kwargs
    figure, axes = plt.subplots(2, 1, **options)
    k = measured["direction"].values
    for ax, (name, target, label) in zip(axes, PANELS, strict=True):
        values, errors = measured[name].values, measured[f"{name}_error"].values
        off = np.abs(values - target)
        failed = (off > TOLERANCE) & (off > limit * errors)
        for chosen, color in ((~failed, "C0"), (failed, "C3")):
            ax.errorbar(
                k[chosen], values[chosen], limit * errors[chosen], fmt="o", ms=4, color=color
            )
        ax.axhline(target, color="0.3", lw=1)
        for edge in (target - TOLERANCE, target + TOLERANCE):
            ax.axhline(edge, color="0.3", lw=1, ls="--")
        ax.set_title(label, loc="left", fontsize=10)
    axes[-1].set_xlabel("direction (bars: what chance explains; dashed: tolerance)")
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(f"verdict: {measured.attrs['verdict']}")
    return axes
