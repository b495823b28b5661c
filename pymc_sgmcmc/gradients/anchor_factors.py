"""Factors of the gradients at an anchor, for parameters whose unconstrained values are transformed.

The gradient by the unconstrained value x of a parameter b(x) is b'(x) times that by b. So it
changes with x even where the latter does not, as for a positive coefficient near 0, x = log b, of a
linear predictor. Gradients at the anchor a are then multiplied by b'(x) / b'(a), or by its square
for parameters such as a scale of effects near 0, whose gradient by b is itself proportional to b.
"""

from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt
from pymc.model import Model
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.arrays import python_function
from pymc_sgmcmc.gradients.row_gradients import RowGradients

type LogSlope = Callable[[TensorVariable], TensorVariable]
"""log |b'(x)| as a function of x, elementwise."""

POINTS, ROWS = 20, 512
"""Numbers of points, and of ordinary rows at each, at which gradients with and without factors are
compared."""
POWERS = 0, 1, 2
"""Powers that are tried."""
LARGEST = 8.0
"""Largest ratio of slopes, so that no factor is large where a posterior's tail is long."""


def log_slope(model: Model, value: TensorVariable) -> LogSlope | None:
    """Return log |b'| of a value variable; None if that is 0, not elementwise, or random.

    Also None for models of `pymc.dims`, whose transforms do not take plain tensors.
    """
    if value not in model.values_to_rvs:
        return None
    rv = model.values_to_rvs[value]
    transform = model.rvs_to_transforms[rv]
    if transform is None or getattr(transform, "ndim_supp", 1) != 0:
        return None

    def of(x: TensorVariable) -> TensorVariable:
        return transform.log_jac_det(x, *rv.owner.inputs)

    x = value.type()
    leaves = (v for v in ancestors([of(x)]) if v.owner is None)
    return of if all(v is x or isinstance(v, Constant) for v in leaves) else None


def log_ratio(slope: LogSlope, x: TensorVariable, anchor: TensorVariable) -> TensorVariable:
    """Return log |b'(x) / b'(anchor)|, at most that of `LARGEST`."""
    return pt.minimum(slope(x) - slope(anchor), np.log(LARGEST).astype(x.dtype))


class AnchorFactors:
    """The factors at any points, for the elements that have one."""

    def __init__(self, gradients: RowGradients):
        self.gradients = gradients
        variables, sizes = gradients.source.vars, [p.stop - p.start for p in gradients.parts]
        slopes = [log_slope(gradients.model, v) for v in variables]
        possible = np.repeat([slope is not None for slope in slopes], sizes)
        self._log_ratios: Callable | None = None
        if possible.any():
            anchor = [pt.tensor(dtype=v.dtype, shape=v.type.shape) for v in variables]
            points = [pt.tensor(dtype=v.dtype, shape=(None, *v.type.shape)) for v in variables]
            ratios = [
                pt.zeros_like(x) if slope is None else log_ratio(slope, x, a)
                for slope, x, a in zip(slopes, points, anchor, strict=True)
            ]
            self._log_ratios = python_function([*points, *anchor], ratios)
        self.is_possible = possible
        """Which elements may have a factor, shape (d,)."""
        self.powers = np.zeros(gradients.size)
        """The power of each element, shape (d,); 0 without a factor."""

    def at(self, points: np.ndarray, anchor: np.ndarray) -> np.ndarray:
        """Return the factors at points, shape (..., d)."""
        if not self.powers.any():
            return np.ones_like(points)
        return np.exp(self.powers * self.log_ratios(points, anchor))

    def choose(self, anchor: np.ndarray, points: np.ndarray, rng: np.random.Generator) -> float:
        """Choose the powers with which rows' gradients change least from the anchor to points.

        Return the number of passes over the data that this took.
        """
        if not self.is_possible.any():
            return 0.0
        points = points[:: max(1, len(points) // POINTS)]
        changes = np.zeros((len(POWERS), self.gradients.size))
        n = ROWS // self.gradients.rows_worth
        for theta in points:
            rows = rng.integers(self.gradients.n_at_hand, size=n)
            here, there = (self.gradients.rows(p, rows)[1] for p in (theta, anchor))
            ratio = np.exp(self.log_ratios(theta, anchor))
            changes += [np.var(here - ratio**k * there, axis=0) for k in POWERS]
        self.powers = np.where(self.is_possible, np.array(POWERS)[changes.argmin(axis=0)], 0.0)
        return 2 * len(points) * n / self.gradients.n_rows

    def log_ratios(self, points: np.ndarray, anchor: np.ndarray) -> np.ndarray:
        """Return `log_ratio` at points, shape (..., d); 0 for elements without slopes."""
        assert self._log_ratios is not None
        split = self.gradients.split
        arrays = self._log_ratios(*split(points.reshape(-1, len(anchor))), *split(anchor))
        return np.concatenate([a.reshape(len(a), -1) for a in arrays], axis=1).reshape(points.shape)
