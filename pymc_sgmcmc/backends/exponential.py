"""The exponential of arrays as large as a model's parameters."""

import numpy as np
import pytensor.scalar as ps
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key
from pytensor.tensor.elemwise import Elemwise

from pymc_sgmcmc.backends.numba_math import FLOAT_MATH


class Exponential(ps.UnaryScalarOp):
    """The exponential; on numba the vectorised one of `numba_math`.

    PyTensor would also rewrite its own: e (e p + g) to e^2 p + e g, with two exponentials instead
    of one.
    """

    nfunc_spec = ("exp", 1, 1)  # on JAX it is jax.numpy.exp

    def impl(self, x):
        return np.exp(x)

    def c_code(self, node, name, inputs, outputs, sub):
        return f"{outputs[0]} = exp({inputs[0]});"


@register_funcify_and_cache_key(Exponential)
def numba_funcify_exponential(op, node, **kwargs):
    """Choose the function by float type."""
    dtype = node.outputs[0].type.dtype
    vectorized = FLOAT_MATH[dtype].exp

    @numba_njit
    def exponential(x):
        return vectorized(x)

    return exponential, f"{__name__}.Exponential_1_{dtype}"


exp = Elemwise(Exponential(ps.upgrade_to_float, name="exp"))
"""exp(x), element by element, without a gradient."""
