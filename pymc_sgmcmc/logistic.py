"""Bernoulli terms whose log odds are affine in z: what a flip changes, without a transcendental.

With s = sigmoid(a) and c = sigmoid(-a), a flip that adds d to the log odds a changes the term by

    y d - (softplus(a + d) - softplus(a)) = (y - 1/2) d - log(s exp(d/2) + c exp(-d/2)),

takes s to s exp(d/2) / t and c to c exp(-d/2) / t, with t the argument of the logarithm. So
products of t over a few elements need one logarithm, and exp(d/2) is known before the sweep.
"""

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar import basic as ps
from pytensor.scalar.math import Softplus
from pytensor.tensor.variable import TensorVariable

FACTORS = 8
"""Elements a product: in float32 it stays finite while the mean of abs(d) is below 20 in it."""


def _scalar_op(var: Variable):
    return getattr(getattr(var.owner, "op", None), "scalar_op", None)


def _inputs(var: Variable, scalar_op: type) -> list[Variable] | None:
    return var.owner.inputs if isinstance(_scalar_op(var), scalar_op) else None


def _softplus_of(var: Variable) -> Variable | None:
    """Return a, where a variable is -softplus(a)."""
    negated = _inputs(var, ps.Neg)
    inner = negated and _inputs(negated[0], Softplus)
    return inner[0] if inner else None


def match_bernoulli(logp: TensorVariable) -> tuple[TensorVariable, TensorVariable] | None:
    """Return (y, a) where a log density is that of y ~ Bernoulli(sigmoid(a)), by element."""
    while isinstance(_scalar_op(logp), ps.Cast):
        [logp] = logp.owner.inputs
    outside = _inputs(logp, ps.Switch)
    if (
        not outside
        or not isinstance(outside[1], Constant)
        or not np.all(np.isneginf(outside[1].data))
    ):
        return None
    inside = _inputs(outside[2], ps.Switch)
    if not inside:
        return None
    y, if_one, if_zero = inside
    minus_a, a = _softplus_of(if_one), _softplus_of(if_zero)
    if minus_a is None or a is None or _inputs(minus_a, ps.Neg) != [a]:
        return None
    return y, a


def fold(values: TensorVariable, width: int, fill: float) -> TensorVariable:
    """Rearrange (m, width) for products over the first axis: (FACTORS, m, width / FACTORS).

    ``fill`` pads the last axis.
    """
    n_blocks = -(-width // FACTORS)
    missing = n_blocks * FACTORS - width
    if missing:
        padding = pt.full((values.shape[0], missing), np.asarray(fill, dtype=values.dtype))
        values = pt.concatenate([values, padding], axis=1)
    return values.reshape((values.shape[0], FACTORS, n_blocks)).dimshuffle(1, 0, 2)


def flip(
    s: TensorVariable, c: TensorVariable, up: TensorVariable, down: TensorVariable
) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
    """Return log t summed over each row's elements, and s and c after the flip.

    ``up`` is exp(d/2), ``down`` exp(-d/2), all folded.
    """
    # written out factor by factor, so that no array of all t is made before the products
    product = s[0] * up[0] + c[0] * down[0]
    for k in range(1, FACTORS):
        product = product * (s[k] * up[k] + c[k] * down[k])
    t = s * up + c * down
    return pt.log(product).sum(axis=-1), s * up / t, c * down / t
