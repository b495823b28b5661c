r"""Control variates: the gradient at a fixed anchor, exact, plus a batch's estimate of the change.

For an anchor a near the posterior's mean and a batch S of n of the N rows::

    g(theta) = grad log prior(theta) + sum_i f g_i(a) + N/n sum_{i in S} w_i (g_i(theta) - f g_i(a))

with g_i the gradient of the log likelihood of row i, and factors f that are 1 for most parameters
(`anchor_factors.py`).

The sum over all rows i is computed once; the noise of the rest shrinks as theta approaches a,
whatever N is. w_i = 1 / (N q_i) are the weights of rows that are not drawn uniformly. Baker et al.
(2019), Control variates for stochastic gradient MCMC, Statistics and Computing 29.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.anchor_factors import LogSlope, log_ratio, log_slope
from pymc_sgmcmc.gradients.source import GradientSource


@dataclass(frozen=True)
class ControlVariate(GradientSource):
    """A gradient source with a control variate; `of` makes it from another source."""

    has_control_variate = True

    anchor: list[SharedVariable] = field(kw_only=True)
    """The anchor: one array per variable, in its shape."""
    anchor_gradient: list[SharedVariable] = field(kw_only=True)
    """Gradient of the log likelihood of all rows at the anchor, one array per variable."""
    powers: list[SharedVariable] = field(kw_only=True)
    """Powers of the factors of the gradient at the anchor, one array per variable; 0 for none."""
    log_slopes: list[LogSlope | None] = field(kw_only=True)
    """Slopes of the transforms, one per variable; None for variables without factors."""

    @classmethod
    def of(cls, source: GradientSource, model: Model) -> "ControlVariate":
        """Add a control variate to a source without latents; its anchor is set later."""
        arrays: dict[str, Any] = {
            name: [
                pytensor.shared(np.zeros(shape, v.dtype), name=f"{what} of {v.name}", shape=shape)
                for v, shape in zip(source.vars, source.shapes, strict=True)
            ]
            for name, what in (
                ("anchor", "anchor"),
                ("anchor_gradient", "gradient at the anchor"),
                ("powers", "power"),
            )
        }
        own: dict[str, Any] = {f.name: getattr(source, f.name) for f in fields(source)}
        inputs = [(array, array.type(array.name)) for part in arrays.values() for array in part]
        own["data"] = [*source.data, *inputs]
        log_slopes = [log_slope(model, v) for v in source.vars]
        return cls(**own, **arrays, log_slopes=log_slopes)

    @property
    def _own(self) -> list[SharedVariable]:
        return [*self.anchor, *self.anchor_gradient, *self.powers]

    @property
    def model_data(self):
        own = set(self._own)
        return [array for array in super().model_data if array not in own]

    def set_anchor(self, anchor, likelihood_gradient, powers):
        for shared, value in zip(self._own, [*anchor, *likelihood_gradient, *powers], strict=True):
            shared.set_value(np.asarray(value, shared.dtype))

    def at(self, theta, rows, constants, state, stream):
        replace = dict(zip(self.inputs, [*theta, *rows, *constants], strict=True))
        here = self._evaluate(replace, state={}, diagnostics=[])
        values = self._values(replace)
        anchor = {v: values[a] for v, a in zip(self.vars, self.anchor, strict=True)}
        there = self._evaluate({**replace, **anchor}, state={}, diagnostics=[])
        factors = [
            1.0 if slope is None else pt.exp(values[power] * log_ratio(slope, x, anchor[v]))
            for v, x, power, slope in zip(
                self.vars, theta, self.powers, self.log_slopes, strict=True
            )
        ]
        likelihood = [
            g + f * (values[whole] - g_anchor)
            for whole, f, g, g_anchor in zip(
                self.anchor_gradient, factors, here.likelihood, there.likelihood, strict=True
            )
        ]
        return here._replace(likelihood=likelihood)

    def _values(self, replace: dict) -> dict[SharedVariable, TensorVariable]:
        """Map each of the control variate's own arrays to its replacement."""
        own = set(self._own)
        return {array: replace[variable] for array, variable in self.data if array in own}
