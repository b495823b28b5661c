"""What `diagnose` returns: a Dataset that prints as a short table and can be plotted."""

from html import escape
from typing import Any

import numpy as np
from xarray import Dataset

from pymc_sgmcmc.diagnosis.verdict import (
    LARGEST_RHAT,
    NOTE,
    TOLERANCE,
    judge,
    tolerance_of_groups,
)


class Diagnosis(Dataset):
    """Measurements as variables; attributes ``verdict`` and ``remedy``.

    Variables, along ``direction`` (coordinates z of the metric) or numbers:

    - ``gradient``, ``virial``, ``cross``, ``mean_virial``: estimates of the Stein identities, right
      at 0, 1, 0, 1; each with its standard error in a variable ``..._error``;
    - ``outward``: how much too far the means of groups' effects are spread, right at 0, with its
      standard error in ``outward_error``; elsewhere 0;
    - ``shared_by``: of the effects of groups how many groups share a scale, elsewhere 1;
    - ``prior_share``: of such effects the prior's share of their precision, elsewhere 1;
    - ``gradient_noise``: variance of a gradient's estimate;
    - ``ess``, ``rhat``: the smallest bulk effective sample size, the largest R-hat;
    - ``rhat_by_chance``: the largest R-hat that so few draws of so many elements explain;
    - ``chain_correlation``: of different chains' draws of the same number, 0 if independent;
    - ``thermostat``, ``thermostat_predicted``, ``noise_to_friction``, ``held_temperature``,
      ``nonfinite``, ``anchor_error``: see the page "Can I trust this?".
    """

    __slots__ = ()

    @property
    def verdict(self) -> str:
        """Judgement: "ok", "failed" or "unclear"."""
        return self.attrs["verdict"]

    @property
    def remedy(self) -> str:
        """One sentence: what to do."""
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
        lines = [f"verdict: {self.attrs['verdict']}", self.attrs["remedy"]]
        if NOTE not in self.attrs["remedy"]:
            lines.append(NOTE)
        lines.append("")
        table = [("", "value", "error", "right"), *self._rows()]
        widths = [max(len(row[k]) for row in table) for k in range(4)]
        for row in table:
            cells = [row[0].ljust(widths[0])]
            cells += [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"

    def _rows(self) -> list[tuple[str, str, str, str]]:
        """What is measured, its value, standard error, and what is right."""
        rows: list[tuple[str, str, str, str]] = []

        def add(label: str, name: str, right: str) -> None:
            if name in self:
                error = f"{name}_error"
                shown = f"{float(self[error]):.3f}" if error in self else ""
                rows.append((label, f"{float(self[name]):.3g}", shown, right))

        if "virial" in self:
            groups = (
                self["shared_by"].values if "shared_by" in self else np.zeros_like(self["virial"])
            )
            for name, target in (("gradient", 0), ("virial", 1), ("cross", 0)):
                values, errors = self[name].values, self[f"{name}_error"].values
                off = np.abs(values - target)
                if name == "virial":
                    off[groups > 1] = -1  # they have rows of their own
                if off.max(initial=-1) >= 0:
                    k = int(np.argmax(off))
                    where = self[self[name].dims[0]].values[k]
                    if name != "cross":
                        where = f"{where}, mostly {self['element'].values[k]}"
                    row = (f"{name}, direction {where}", f"{values[k]:.3g}", f"{errors[k]:.3f}")
                    rows.append((*row, f"{target} +- {TOLERANCE}"))
            for j in np.flatnonzero(groups > 1):  # judged more strictly
                most = tolerance_of_groups(groups[j], self["prior_share"].values[j])
                effect = str(self["element"].values[j]).removesuffix(", mean of all")
                for name, target, label in (
                    ("virial", 1, "virial, mean of all"),
                    ("outward", 0, "spread of the means of"),
                ):
                    if name not in self:
                        continue
                    value, error = float(self[name][j]), float(self[f"{name}_error"][j])
                    label = f"{label} {groups[j]} groups of {effect}"
                    cells = (f"{value:.4f}", f"{error:.4f}", f"{target} +- {most:.4f}")
                    rows.append((label, *cells))
            add("virial, mean of all directions", "mean_virial", f"1 +- {TOLERANCE}")
        add("smallest effective sample size", "ess", "> 100")
        if "rhat" in self:
            most = np.maximum(LARGEST_RHAT, float(self["rhat_by_chance"]))
            add("largest R-hat", "rhat", f"< {most:.2f}")
        predicted = self.get("thermostat_predicted")
        add("correlation of chains", "chain_correlation", f"< {TOLERANCE}")
        add("thermostat", "thermostat", "" if predicted is None else f"{float(predicted):.3g}")
        add("kinetic temperature", "held_temperature", f"1 +- {TOLERANCE}")
        add("noise / injected noise", "noise_to_friction", "")
        add("gradient at the anchor, error", "anchor_error", "< 0.01")
        add("draws that are not finite", "nonfinite", "0")
        return rows

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
            If no gradients were looked at.
        """
        from pymc_sgmcmc.diagnosis.plot import plot_identities

        return plot_identities(self, **kwargs)
