"""Bernoulli terms whose log odds are affine in z: the effect of a flip, without exponentials.

With v = tanh(a/2) and tau = tanh(d/2), a flip that adds d to the log odds a changes the term by

    y d - (softplus(a + d) - softplus(a)) = (y - 1/2) d - log cosh(d/2) - log(1 + v tau)

and takes v to (v + tau) / (1 + v tau), by the addition theorem of tanh. Whatever depends only on d
is computed before the sweep, and one logarithm is taken of the product of several elements.
"""

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar import basic as ps
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.variable import TensorVariable

FACTORS = 8
"""Number of elements in a product that share a single logarithm."""


def _scalar_op(var: Variable):
    return getattr(getattr(var.owner, "op", None), "scalar_op", None)


def _inputs(var: Variable, scalar_op: type) -> list[Variable] | None:
    return var.owner.inputs if isinstance(_scalar_op(var), scalar_op) else None


def _softplus_of(var: Variable) -> Variable | None:
    """Return a if a variable is -softplus(a), or log1p(-sigmoid(a)) as in PyMC before 6.4."""
    negated = _inputs(var, ps.Neg)
    inner = negated and _inputs(negated[0], Softplus)
    if not inner:
        log1p = _inputs(var, ps.Log1p)
        factors = log1p and _inputs(log1p[0], ps.Mul)
        if factors and isinstance(factors[0], Constant) and np.all(factors[0].data == -1):
            inner = _inputs(factors[1], Sigmoid) if len(factors) == 2 else None
    return inner[0] if inner else None


def match_bernoulli(logp: TensorVariable) -> tuple[TensorVariable, TensorVariable] | None:
    """Return (y, a) if a log density is that of y ~ Bernoulli(sigmoid(a)), elementwise."""
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


def fold(values: TensorVariable) -> TensorVariable:
    """Rearrange (m, elements) to (FACTORS, m, elements / FACTORS), padded with zeros."""
    width = values.type.shape[1]
    width = values.shape[1] if width is None else width
    n_blocks = -(-width // FACTORS)
    missing = n_blocks * FACTORS - width
    if not isinstance(missing, int) or missing:
        padding = pt.zeros((values.shape[0], missing), dtype=values.dtype)
        values = pt.concatenate([values, padding], axis=1)
    return values.reshape((values.shape[0], FACTORS, n_blocks)).dimshuffle(1, 0, 2)


def log_cosh_half(d: TensorVariable) -> TensorVariable:
    """Return log cosh(d/2)."""
    return pt.softplus(d) - d / 2 - np.log(2).astype(d.dtype)


def tanh_half(d: TensorVariable) -> TensorVariable:
    """Return tanh(d/2), kept away from +-1 so that 1 + v tau is never zero."""
    limit = 1 - 2 * np.finfo(d.dtype).eps
    return pt.clip(pt.tanh(d / 2), -limit, limit).astype(d.dtype)


def log_products(v: TensorVariable, tau: TensorVariable) -> TensorVariable:
    """Return the sum of log(1 + v tau) over each row's elements; both arguments are folded."""
    products = pt.prod(1 + v * tau, axis=0, dtype=v.dtype, acc_dtype=v.dtype)
    smallest = np.finfo(v.dtype).tiny
    return pt.log(pt.maximum(products, smallest)).sum(axis=-1, acc_dtype=v.dtype)


def flipped(v: TensorVariable, tau: TensorVariable) -> TensorVariable:
    """Return v after a flip, which changes nothing where tau is 0."""
    return (v + tau) / (1 + v * tau)
