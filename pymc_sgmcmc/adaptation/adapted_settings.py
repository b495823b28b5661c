"""What a warm-up has chosen: plain arrays and numbers, with which a step's kernel is configured."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from pymc.blocking import PointType
from pymc.model import Model
from xarray import DataTree

from pymc_sgmcmc.gradients.metric import flat, split_flat
from pymc_sgmcmc.gradients.value_draws import value_draws
from pymc_sgmcmc.kernel import Kernel
from pymc_sgmcmc.number_checks import shown
from pymc_sgmcmc.schedules import Constant

FAR = 5.0
"""Distance from the anchor, in posterior standard deviations (root mean square over directions),
beyond which a start is replaced, because the control variate's noise would be too large there."""
BURN_IN_TIMES = 5
"""Length of the burn-in, in autocorrelation times of the slowest element."""
LEAST_BURN_IN, MOST_BURN_IN = 15, 50
"""Smallest and largest number of burn-in draws."""
BURN_IN_OF_MANY = 20
"""Number of burn-in draws if each draw is a pass over the data."""
STARTS = 16
"""Number of an earlier result's draws that serve as starts."""
FORM = "non_centred", "follow_prior", "refined", "equally_spaced"
"""Fields of `Adapted` for the form in which the model is sampled, which warm-ups set by
`OtherForm`."""
ANEW = "Pass adaptation='auto' to adapt it again."
"""Remedy for an earlier adaptation that does not fit."""


class UnfitAdaptation(ValueError):
    """What an earlier warm-up has chosen does not fit the model or the step."""


@dataclass(frozen=True)
class Adapted:
    """The frozen result of a warm-up; d is the number of elements of theta."""

    metric: Literal["dense", "diag", "local"]
    scaling: list[np.ndarray] = field(repr=False)
    """Arrays of the metric."""
    anchor: np.ndarray = field(repr=False)
    """Posterior mean as the warm-up saw it, shape (d,): the anchor of the control variate."""
    anchor_gradient: np.ndarray = field(repr=False)
    """Gradient of the log likelihood at the anchor, shape (d,); zeros without a control variate."""
    anchor_powers: np.ndarray = field(repr=False)
    """Powers of the factors of gradients at the anchor (`anchor_factors.py`), shape (d,)."""
    row_copies: np.ndarray | None = field(repr=False)
    """Number of times each row is in the urn, shape (N,); None if all rows are equally likely."""
    noise: np.ndarray = field(repr=False)
    """Variances of the gradient's noise along z, shape (d,)."""
    friction: np.ndarray = field(repr=False)
    """Expected thermostats, D + h nu / 2, shape (d,)."""
    starts: np.ndarray = field(repr=False)
    """Points at which the chains of the warm-up ended, shape (chains, d)."""
    largest_eigval: float
    """Largest eigenvalue of the curvature in z as the warm-up saw it; 1 if the metric is dense."""
    smallest_eigval: float
    step_size: float
    thin: int
    batch_size: int | None
    windows: int
    ess_per_draw: float
    """Effective draws per draw of one chain, for the slowest element in the pilot run."""
    passes_per_draw: float
    """Row gradients for one draw of one chain, divided by N."""
    data_passes: float
    """Row gradients of the warm-up, divided by N."""
    data_checksum: int | None = None
    """Checksum of the data of the anchor's gradient; None without a control variate."""
    n_rows: int | None = None
    """Number of rows N; None if all rows are used at each update."""
    batches: Literal["rows", "groups"] = "rows"
    """What batches are made of: "rows" or "groups"."""
    jitter: float = 1.0
    """Spread of the chains' starts around ``starts``, in the metric's standard deviations."""
    non_centred: dict[str, np.ndarray] = field(default_factory=dict)
    """Centred effects about which rows say little, with what they say of each, shape (2, *shape),
    and the widths and starts of their scales; the step samples them partially non-centred."""
    follow_prior: bool = False
    """Whether points of integrals over two or three effects of groups follow the effects' prior."""
    refined: bool = False
    """Whether the integrals over two or three effects of groups have more nodes than usual."""
    equally_spaced: bool = False
    """Whether the integrals over effects of groups have equally spaced points."""
    predictions_only: bool = False
    """Whether there are too many parameters to judge means and standard deviations. If so,
    ``anchor``, ``smallest_eigval`` and ``ess_per_draw`` are meaningless, and all chains start at
    ``starts``."""

    @property
    def burn_in(self) -> int:
        """Number of burn-in draws: chains start within the posterior, but too widely spread."""
        if self.predictions_only:
            return BURN_IN_OF_MANY
        times = BURN_IN_TIMES / max(self.ess_per_draw, 1e-3)
        return int(np.clip(np.ceil(times), LEAST_BURN_IN, MOST_BURN_IN))

    @property
    def form(self) -> dict[str, Any]:
        """The form in which the model is sampled."""
        return {name: getattr(self, name) for name in FORM}

    def check(self, kernel: Kernel) -> None:
        """Raise `UnfitAdaptation` for a kernel whose sizes, data or batches differ from before."""
        source = kernel.source
        there = {
            "parameters": (len(self.anchor), kernel.n_elements),
            "rows per batch": (self.batch_size, next((r.batch_size for r in source.rows), None)),
        }
        if self.n_rows is not None and source.rows:
            there["rows"] = (self.n_rows, source.rows[0].n_rows)
        if self.data_checksum not in (None, kernel.checksum()):
            raise UnfitAdaptation(
                f"adaptation= was chosen for data other than those of {kernel.name}. {ANEW}"
            )
        now_of = "rows" if kernel.whole_groups is None else "groups"
        if self.batches != now_of:
            raise UnfitAdaptation(
                f"adaptation= was chosen for batches={self.batches!r}, but {kernel.name} has "
                f"batches={now_of!r} here. {ANEW}"
            )
        for what, (then, now) in there.items():
            if then != now:
                raise UnfitAdaptation(
                    f"adaptation= was chosen for {then or 'all'} {what}, but {kernel.name} has "
                    f"{now or 'all'} {what} here. {ANEW}"
                )

    def apply(self, kernel: Kernel) -> None:
        """Set the kernel's metric, anchor, rows, step size and updates per draw."""
        self.check(kernel)
        source = kernel.source
        assert kernel.metric is not None
        kernel.metric.arrays = [np.asarray(a) for a in self.scaling]
        kernel.friction = self.friction
        kernel.schedule = Constant(self.step_size)
        kernel.thin = self.thin
        kernel.data_checksum = self.data_checksum
        shapes = source.shapes
        at_anchor = self.anchor, self.anchor_gradient, self.anchor_powers
        source.set_anchor(*(split_flat(array, shapes) for array in at_anchor))
        if source.rows and source.rows[0].weights is not None:
            kernel.set_row_copies(self.row_copies)
        kernel.load_data()

    def jittered_start(self, kernel: Kernel, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw a start for a chain, over-dispersed around one of the warm-up's last points."""
        assert kernel.metric is not None
        centre = self.starts[rng.integers(len(self.starts))]
        theta = centre + self.jitter * kernel.metric.times(rng.standard_normal(len(centre)))
        arrays = split_flat(theta, kernel.source.shapes)
        return {v.name: a.astype(v.dtype) for v, a in zip(kernel.source.vars, arrays, strict=True)}

    def near_start(self, kernel: Kernel, point: PointType, rng: np.random.Generator) -> PointType:
        """Return a chain's start: the point, or one of the posterior if that is far outside."""
        if self.predictions_only or self.is_far(kernel, point):
            return {**point, **self.jittered_start(kernel, rng)}
        return point

    def is_far(self, kernel: Kernel, point: PointType) -> bool:
        """Whether a point is far outside the posterior, as the warm-up saw it."""
        assert kernel.metric is not None
        theta = flat([point[v.name] for v in kernel.source.vars])
        z = kernel.metric.inverse_times(theta - self.anchor)
        return not np.linalg.norm(z) < FAR * np.sqrt(len(z))

    def summary(self) -> dict[str, Any]:
        """Return the choices that are numbers or words."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen: dict[str, Any] = {
            k: v for k, v in plain.items() if isinstance(v, str | int | float | None)
        }
        chosen["non_centred"] = list(self.non_centred)
        chosen["rows"] = "all alike" if self.row_copies is None else "weighted"
        chosen["noise_largest"] = float(self.noise.max())
        chosen["friction_mean"] = float(self.friction.mean())
        chosen["noise_mean"] = float(self.noise.mean())
        return chosen


def earlier_adaptation(given: Any, model: Model, vars: Sequence) -> Adapted | None:
    """Return what an earlier step or result was adapted to; None for any other ``adaptation=``."""
    if isinstance(given, DataTree):
        return _of_result(given, model, vars)
    if not hasattr(given, "adapted"):
        return None
    if given.adapted is None:
        raise ValueError(f"adaptation={given!r} is a step that was not adapted. {ANEW}")
    return given.adapted


def check_earlier_result(given: Any, step: Any) -> None:
    """Raise an error if ``adaptation=`` of `sample` is not "auto" or an earlier result."""
    if isinstance(given, str) and given == "auto":
        return
    if not isinstance(given, DataTree):
        raise ValueError(
            f"adaptation={shown(given)} must be 'auto', or the result of "
            "sgm.sample(store_adaptation=True). For other choices make the step yourself: "
            "step=sgm.MSGNHT_S(adaptation=...)."
        )
    if step is not None:
        raise ValueError("adaptation= is for the default step: pass it to the step that you made.")
    _check_result(given)


def form_of(given: DataTree | str) -> dict[str, Any]:
    """Return the form in which an earlier result was sampled, that of the model if "auto".

    Effects are centred or not as in the model, because the result was stored with its warm-up.
    """
    if not isinstance(given, DataTree):
        return {}
    chosen = json.loads(given["posterior"].attrs["adaptation"])
    return {name: chosen[name] for name in FORM if name != "non_centred"}


def anchor_of(given: Adapted | DataTree) -> np.ndarray:
    """Return the anchor of an earlier warm-up or result."""
    return given.anchor if isinstance(given, Adapted) else given["adaptation"]["anchor"].to_numpy()


def _check_result(idata: DataTree) -> None:
    if "adaptation" not in idata.children or "posterior" not in idata.children:
        raise ValueError(
            "adaptation= is a result without the group adaptation: sample with "
            "store_adaptation=True, or pass the step of that run."
        )


def _of_result(idata: DataTree, model: Model, vars: Sequence) -> Adapted:
    _check_result(idata)
    arrays = {name: values.values for name, values in idata["adaptation"].data_vars.items()}
    chosen = json.loads(idata["posterior"].attrs["adaptation"])
    if chosen["metric"] != "dense":
        raise UnfitAdaptation(
            f"adaptation= is a result with the metric '{chosen['metric']}', of which it does not "
            "have all parts: pass the step of that run."
        )
    draws = value_draws(model, vars, idata["posterior"].to_dataset())
    draws = draws.reshape(-1, draws.shape[-1])
    own = {
        "scaling": [arrays["metric"]],
        "anchor": arrays["anchor"],
        "anchor_gradient": arrays["anchor_gradient"],
        "anchor_powers": arrays["anchor_powers"],
        "row_copies": None,
        "non_centred": {},
        "noise": arrays["noise"],
        "friction": arrays["thermostat_predicted"],
        "starts": draws[np.linspace(0, len(draws) - 1, min(STARTS, len(draws))).astype(int)],
    }
    return Adapted(**{f.name: chosen[f.name] for f in fields(Adapted) if f.name in chosen} | own)
