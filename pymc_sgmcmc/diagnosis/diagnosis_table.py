"""The result of `diagnose`: a Dataset that prints as a short table and can be plotted."""

from html import escape
from textwrap import fill
from typing import Any

import numpy as np
from xarray import Dataset

from pymc_sgmcmc.diagnosis.verdict import NOTE, judge, rows
from pymc_sgmcmc.diagnosis.verdict_rows import Row

WIDTH = 100
"""Number of characters of a line of the remedy."""
HEADER = ("", "value", "right", "tolerance", "error", "chance", "passed")
"""Headings of the table's columns."""
EXPLANATION = """\
error: Monte Carlo standard error; chance: the deviation that it explains; within error: beyond the
tolerance, but not beyond chance; no: beyond both."""


class Diagnosis(Dataset):
    """The measurements of `diagnose` as variables, with the attributes ``verdict`` and ``remedy``.

    It is printed as a table with a row for each check, which shows what it found, what is right,
    and whether it passed. These are the variables, along ``direction`` (coordinates z of the
    metric) or single numbers:

    - ``gradient``, ``virial``, ``cross``, ``mean_virial``: estimates of the Stein identities, right
      at 0, 1, 0, 1; each has its standard error in a variable ``..._error``;
    - ``outward``: how much too far apart the means of groups' effects are, right at 0, with its
      standard error in ``outward_error``; 0 for other directions;
    - ``shared_by``: for effects of groups, how many groups share a scale; 1 for other directions;
    - ``prior_share``: for effects of groups, the prior's share of their precision; 1 for other
      directions;
    - ``gradient_noise``: variance of a gradient's estimate;
    - ``ess``, ``rhat``: the smallest bulk effective sample size and the largest R-hat;
    - ``rhat_by_chance``: the largest R-hat that chance explains for this number of draws and
      elements;
    - ``chain_correlation``: correlation of different chains' draws of the same number, 0 if the
      chains are independent;
    - ``k_hat``: of the certificate's weights; ``certified_mean``, ``certified_sd``: means of the
      draws less the exact ones, in exact standard deviations, and standard deviations relative to
      the exact ones, right at 0 and 1, with standard errors in ``..._error`` and their degrees of
      freedom in ``..._degrees``;
    - ``thermostat_drift``: how much too hot the draws were on average, relative to the temperature,
      by the drift of the thermostat; right at 0;
    - ``thermostat``, ``thermostat_predicted``, ``noise_to_friction``, ``held_temperature``,
      ``nonfinite``, ``anchor_error``: see the page "Can I trust this?".
    """

    __slots__ = ()

    @property
    def verdict(self) -> str:
        """The judgement: "ok", "failed" or "unclear"."""
        return self.attrs["verdict"]

    @property
    def remedy(self) -> str:
        """What to do, in one sentence."""
        return self.attrs["remedy"]

    @classmethod
    def of(cls, measured: Dataset) -> "Diagnosis":
        """Judge what was measured."""
        verdict, remedy = judge(measured)
        attrs = measured.attrs | {"verdict": verdict, "remedy": remedy, "note": NOTE}
        return cls(measured.data_vars, measured.coords, attrs)

    def __repr__(self) -> str:
        whole = "rhat" in self or "parameters" in self
        if "verdict" not in self.attrs or not whole:
            return super().__repr__()
        lines = [f"verdict: {self.attrs['verdict']}", fill(self.attrs["remedy"], WIDTH)]
        if NOTE not in self.attrs["remedy"]:
            lines.append(NOTE)
        table = [HEADER, *map(_cells, rows(self))]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines.append("")
        for first, *others in table:
            cells = [first.ljust(widths[0])]
            cells += [cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True)]
            lines.append("  ".join(cells).rstrip())
        lines += ["", EXPLANATION]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"

    def plot(self, **kwargs: Any) -> Any:  # type: ignore[override]
        """Plot both identities along each direction, with error bars and tolerances.

        Parameters
        ----------
        **kwargs
            For `matplotlib.pyplot.subplots`.

        Returns
        -------
        array of matplotlib.axes.Axes

        Raises
        ------
        ValueError
            If no gradients were computed.
        """
        from pymc_sgmcmc.diagnosis.plot import plot_identities

        return plot_identities(self, **kwargs)


def _cells(row: Row) -> tuple[str, ...]:
    """Return a row as the table prints it."""

    def shown(number: float | str, digits: int) -> str:
        if isinstance(number, str):
            return number
        return f"{number:.{digits}g}" if row.decimals is None else f"{number:.{row.decimals}f}"

    value, right, tolerance = (shown(n, 3) for n in (row.value, row.right, row.tolerance))
    error = "" if np.isnan(row.error) else shown(row.error, 2)
    chance = shown(row.chance, 2) if row.chance > 0 else ""
    right = f"{row.right:g}" if row.decimals and not isinstance(row.right, str) else right
    return row.label, value, right, tolerance, error, chance, row.passed
