"""Elementary functions that numba compiles into loops over vector registers.

numba's own functions call the C library for each element. The rewrite ``vectorized_math`` replaces
PyTensor's functions with these; the exponential of this package's updates is one of them from the
beginning. C and JAX have their own vectorised functions.

They take a tenth to a third of the time (benchmarks/results/elementary.txt). The derivative of the
digamma function, in Newton's steps of effects on the dispersion of counts or the shape of a gamma
density, would run in Python.
"""

from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key
from pytensor.scalar.math import Sigmoid, Softplus, TriGamma
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import switch

from pymc_sgmcmc.backends.numba_math import FLOAT_MATH, inlined, polynomial_of


class Exponential(ps.UnaryScalarOp):
    """The exponential.

    PyTensor would rewrite its own: e (e p + g) to e^2 p + e g, with two exponentials instead of
    one.
    """

    nfunc_spec = ("exp", 1, 1)  # on JAX it is jax.numpy.exp

    def impl(self, x):
        return np.exp(x)

    def c_code(self, node, name, inputs, outputs, sub):
        return f"{outputs[0]} = exp({inputs[0]});"


exp = Elemwise(Exponential(ps.upgrade_to_float, name="exp"))
"""exp(x), element by element, without a gradient."""


def _functions(dtype: str) -> dict[str, Any]:
    """Return branch-free functions of one number of a float type."""
    math = FLOAT_MATH[dtype]
    real, exp, log_of_normal = math.real, math.exp, math.log
    information = np.finfo(dtype)
    zero, one, two, tiny = real(0), real(1), real(2), real(information.tiny)
    nan, infinity = real(np.nan), real(np.inf)
    bits = information.nmant + 2
    lift, lifted_by = real(2.0**bits), real(bits * np.log(2))
    # log(1 + t) = 2 atanh(s) = 2 s (1 + s^2 / 3 + ...) for s = t / (2 + t), at most 1 / 3; in two
    # parts, since LLVM does not unroll a loop over all terms.
    series = [2 / (2 * k + 1) for k in range(18 if dtype == "float64" else 8)]
    even, odd = polynomial_of(series[::2], real), polynomial_of(series[1::2], real)

    @inlined
    def log(x):
        subnormal = x < tiny
        y = log_of_normal(real(x * lift) if subnormal else x)
        y = real(y - lifted_by) if subnormal else y
        y = infinity if x == infinity else y
        y = -infinity if x == zero else y
        return y if x >= zero else nan

    @inlined
    def log1p(x):
        u = real(one + x)
        y = log(u)
        rounded_off = real(real(x - real(u - one)) / u)
        return real(y + rounded_off) if zero < u < infinity else y

    @inlined
    def sigmoid(x):
        return real(one / real(one + exp(real(-x))))

    @inlined
    def softplus(x):
        t = exp(real(-abs(x)))
        s = real(t / real(two + t))
        q = real(s * s)
        atanh_over_s = real(even(real(q * q)) + real(q * odd(real(q * q))))
        return real((x if x > zero else zero) + real(s * atanh_over_s))

    pi, shift = real(np.pi), 10
    # B_2k, without the first: psi'(z) = 1 / z + 1 / (2 z^2) + sum_k B_2k / z^(2 k + 1)
    bernoulli = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6]
    far = polynomial_of(bernoulli, real)

    @inlined
    def tri_gamma(x):
        y = x if x > zero else real(one - x)
        total = zero
        for k in range(shift):
            total = real(total + one / real(real(y + real(k)) * real(y + real(k))))
        z = real(one / real(y + real(shift)))
        q = real(z * z)
        total = real(total + real(z + real(q / two)) + real(z * real(q * far(q))))
        sine = real(np.sin(real(pi * x)))
        reflected = real(real(pi * pi) / real(sine * sine) - total)
        reflected = infinity if x == np.floor(x) else reflected
        return total if x > zero else reflected

    functions = {"exp": exp, "log": log, "log1p": log1p, "sigmoid": sigmoid, "softplus": softplus}
    return functions | {"tri_gamma": tri_gamma}


FUNCTIONS = {dtype: _functions(dtype) for dtype in FLOAT_MATH}

VECTORIZED = {
    ps.Exp: "exp",
    ps.Log: "log",
    ps.Log1p: "log1p",
    Sigmoid: "sigmoid",
    Softplus: "softplus",
    TriGamma: "tri_gamma",
}
"""Maps PyTensor's operations to the functions of `FUNCTIONS` that replace them."""


class OnNumba(ps.UnaryScalarOp):
    """A function of `FUNCTIONS`.

    It has no C code, so that PyTensor gives it a separate loop: LLVM does not inline two of them,
    nor one within a switch, and then vectorises nothing.
    """

    __props__ = ("function",)

    def __init__(self, function: str):
        self.function = function
        super().__init__(ps.upgrade_to_float, name=function)

    def impl(self, x):
        raise NotImplementedError(f"{self.function} is for numba")


@register_funcify_and_cache_key(Exponential)
def numba_funcify_exponential(op, node, **kwargs):
    """Choose the function by float type."""
    dtype = node.outputs[0].type.dtype
    vectorized = FLOAT_MATH[dtype].exp

    @numba_njit
    def exponential(x):
        return vectorized(x)

    return exponential, f"{__name__}.Exponential_1_{dtype}"


@register_funcify_and_cache_key(OnNumba)
def numba_funcify_on_numba(op, node, **kwargs):
    """Choose the function by its name and float type."""
    dtype = node.outputs[0].type.dtype
    function = FUNCTIONS[dtype][op.function]

    # Sums in another order would undo what `log1p` adds.
    @numba_njit(fastmath={"contract"}, error_model="numpy")
    def on_numba(x):
        return function(x)

    return on_numba, f"{__name__}.{op.function}_6_{dtype}"


@node_rewriter([Elemwise])
def vectorized(fgraph, node):
    """Replace PyTensor's function with one of this file."""
    name = VECTORIZED.get(type(node.op.scalar_op))
    dtypes = {variable.type.dtype for variable in (*node.inputs, *node.outputs)}
    if name is None or len(dtypes) != 1 or not dtypes <= FUNCTIONS.keys():
        return None
    return [Elemwise(OnNumba(name))(*node.inputs)]


@node_rewriter([Elemwise])
def function_of_switch(fgraph, node):
    """Rewrite switch(c, f(a), f(b)) to f(switch(c, a, b)): a vectorised loop evaluates both."""
    if not isinstance(node.op.scalar_op, ps.Switch):
        return None
    condition, *both = node.inputs
    ops = [value.owner.op if value.owner else None for value in both]
    if ops[0] != ops[1] or not isinstance(ops[0], Elemwise):
        return None
    function = ops[0].scalar_op
    if not isinstance(function, ps.Neg) and type(function) not in VECTORIZED:
        return None
    [a], [b] = (value.owner.inputs for value in both)
    return [ops[0](switch(condition, a, b))]


# After PyTensor's rewrites of expressions, and before those that join them into loops.
optdb.register("function_of_switch", in2out(function_of_switch), "vectorized_math", position=48.91)
optdb.register("vectorized", in2out(vectorized), "vectorized_math", position=48.92)
