"""Elementary functions in vector registers: as exact as the C library's, also at the ends."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.tensor.elemwise import Elemwise
from scipy.special import polygamma

from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.backends.vectorized_math import OnNumba, exp

both_floats = pytest.mark.parametrize("dtype", ["float32", "float64"])
ARGUMENTS = np.linspace(-80, 80, 20_001)
NEAR_ZERO = np.geomspace(1e-30, 0.9, 5000)
EXACT = {
    "exp": (np.exp, ARGUMENTS),
    "log": (np.log, np.exp(ARGUMENTS)),
    "log1p": (np.log1p, np.concatenate([-NEAR_ZERO, NEAR_ZERO, np.exp(ARGUMENTS)])),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), ARGUMENTS),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), ARGUMENTS),
    "tri_gamma": (
        lambda x: polygamma(1, x.astype(float)),
        np.concatenate([np.geomspace(1e-6, 1e6, 5001), np.linspace(-9.9, -0.1, 50)]),
    ),
}
ENDS = [np.nan, np.inf, -np.inf, 0.0, -2.0]
AT_ENDS = {
    "exp": [np.nan, np.inf, 0, 1, np.exp(-2)],
    "log": [np.nan, np.inf, np.nan, -np.inf, np.nan],
    "log1p": [np.nan, np.inf, np.nan, 0, np.nan],
    "sigmoid": [np.nan, 1, 0, 0.5, 1 / (1 + np.exp(2))],
    "softplus": [np.nan, np.inf, 0, np.log(2), np.log1p(np.exp(-2))],
    "tri_gamma": [np.nan, 0, np.inf, np.inf, np.inf],
}


def elementwise(function):
    """Scalar operations of a compiled function, those of fused loops too."""
    ops = [node.op for node in function.maker.fgraph.toposort()]
    ops = [op.scalar_op for op in ops if isinstance(op, Elemwise)]
    inner = [node.op for op in ops if hasattr(op, "fgraph") for node in op.fgraph.toposort()]
    return ops + inner


def compiled(x, outputs):
    return pytensor.function([x], outputs, mode=with_cheap_calls(get_mode("NUMBA")))


@both_floats
@pytest.mark.parametrize("name", EXACT)
def test_functions_are_those_of_the_c_library(name, dtype):
    x = pt.vector(dtype=dtype)
    function = compiled(x, getattr(pt, name)(x))
    assert elementwise(function) == [OnNumba(name)]
    right, values = EXACT[name]
    values = values.astype(dtype)
    exact = right(values.astype(np.longdouble))
    # As if the exponential's argument had been rounded, and a few roundings of the result.
    argument = np.abs(values) if name in ("exp", "sigmoid", "softplus") else 0
    if name == "tri_gamma":  # of the sine of pi x
        argument = 10 * np.maximum(-values, 0)
    allowed = (4 + 2 * argument) * np.finfo(dtype).eps * np.abs(exact)
    assert (np.abs(function(values) - exact) <= allowed).all()
    at_ends = function(np.array(ENDS, dtype))
    np.testing.assert_allclose(at_ends, AT_ENDS[name], rtol=8 * np.finfo(dtype).eps)


def test_logarithms_of_numbers_too_small_to_be_normal():
    x = pt.vector(dtype="float64")
    small = np.array([5e-324, 1e-310, np.finfo(float).tiny])
    np.testing.assert_allclose(compiled(x, pt.log(x))(small), np.log(small), rtol=1e-15)


def test_other_types_are_left_alone():
    x = pt.vector(dtype="int64")
    function = compiled(x, pt.exp(x))
    assert not any(isinstance(op, OnNumba) for op in elementwise(function))
    np.testing.assert_allclose(function(np.arange(3)), np.exp(np.arange(3.0)))


def test_a_function_of_two_cases_is_evaluated_once():
    """The log density of a binary outcome: softplus(-x) or softplus(x)."""
    x, y = pt.vector(dtype="float64"), np.array([0, 1, 1])
    log_density = pt.switch(y, -pt.softplus(-x), -pt.softplus(x))
    function = compiled(x, log_density)
    assert elementwise(function).count(OnNumba("softplus")) == 1
    values = np.array([-1.5, 0.3, 40.0])
    right = np.log(np.where(y, 1 / (1 + np.exp(-values)), 1 / (1 + np.exp(values))))
    np.testing.assert_allclose(function(values), right, rtol=1e-12, atol=1e-17)


@both_floats
@pytest.mark.parametrize("mode", ["NUMBA", "JAX", "FAST_RUN", "FAST_COMPILE"])
def test_exponential(mode, dtype):
    x = pt.vector(dtype=dtype)
    f = pytensor.function([x], exp(x), mode=mode)
    values = np.linspace(-80, 80, 200_001).astype(dtype)
    exact = np.exp(values.astype(np.longdouble))
    # As if the argument had been rounded to its float type, and a few roundings of the result.
    allowed = (4 + 2 * np.abs(values)) * np.finfo(dtype).eps * exact
    assert (np.abs(np.asarray(f(values)) - exact) <= allowed).all()
    ends = np.array([np.nan, np.inf, -np.inf, 0, 1e30, -1e30], dtype=dtype)
    np.testing.assert_array_equal(f(ends), [np.nan, np.inf, 0, 1, np.inf, 0])
