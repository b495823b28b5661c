"""What this package's numba linker compiles computes what PyTensor's does."""

import os
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numba import njit
from pytensor import wrap_py
from pytensor.compile.mode import get_mode
from pytensor.tensor.random.type import random_generator_type

from pymc_sgmcmc.backends.link_time_optimization import link_time_optimization
from pymc_sgmcmc.backends.matrix_products import MatrixProduct, MatrixVector
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.run.threaded_chains import ThreadedChains

NUMBA = with_cheap_calls(get_mode("NUMBA"))
LAYOUTS = {
    "rows": np.ascontiguousarray,
    "columns": np.asfortranarray,
    "neither": lambda a: np.repeat(a, 2, axis=0)[::2],
}


@pytest.mark.slow(3)
def test_products_and_sums_of_matrices():
    """Of every layout; the outputs are computed by this package's operations."""
    a, b = pt.matrix("a", shape=(5, 4)), pt.matrix("b", shape=(4, 3))
    outputs = [a @ b, b.T @ a.T, a.sum(axis=0), a.sum(axis=1)]
    function = pytensor.function([a, b], outputs, mode=NUMBA)
    operations = [type(node.op) for node in function.maker.fgraph.toposort()]
    assert operations.count(MatrixProduct) == operations.count(MatrixVector) == 2
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=v.type.shape).astype(v.dtype) for v in (a, b))
    expected = [x @ y, y.T @ x.T, x.sum(axis=0), x.sum(axis=1)]
    for lay_out in LAYOUTS.values():
        for result, value in zip(function(lay_out(x), lay_out(y)), expected, strict=True):
            np.testing.assert_allclose(result, value, rtol=1e-12 if x.dtype == "f8" else 1e-5)


@wrap_py([pt.dscalar], [pt.dscalar])
def in_python(x):
    return x * 2


@pytest.mark.slow(3)
@pytest.mark.filterwarnings("ignore:Numba will use object mode")
@pytest.mark.parametrize(("operation", "in_turns"), [(in_python, True), (pt.exp, False)])
def test_operations_in_python_never_run_twice_at_a_time(operation, in_turns, monkeypatch):
    """PyTensor keeps their results in one place, where threads would find those of others."""
    monkeypatch.setattr("pymc_sgmcmc.run.threaded_chains.n_cores", lambda: 4)
    x = pt.dscalar("x")
    function = pytensor.function([x], operation(x), mode=NUMBA)
    chains = Mock(kernel=Mock(loop=Mock(function=function)), chains=[None] * 4)
    assert ThreadedChains.n_threads.fget(chains) == (1 if in_turns else 4)


def test_generators_are_advanced_and_come_back():
    rng = random_generator_type("rng")
    later, draws = pt.random.normal(size=(3,), rng=rng, return_next_rng=True)
    function = pytensor.function(
        [pytensor.In(rng, mutable=True, borrow=True)],
        [pytensor.Out(later, borrow=True), draws],
        mode=NUMBA,
    )
    function.trust_input = True
    ours, numpys = np.random.default_rng(4), np.random.default_rng(4)
    for _ in range(2):
        returned, values = function(ours)
        assert returned is ours
        np.testing.assert_array_equal(values, numpys.normal(size=3))
    assert ours.bit_generator.state == numpys.bit_generator.state


def test_a_function_compiled_late_is_whole_for_others():
    """For one that numba compiles as usual, later, and when it is called from Python itself."""

    @njit
    def innermost(x):
        return x + 1

    @njit
    def inner(x):
        return 2 * innermost(x)

    outer, other = njit(lambda x: inner(x) - 1), njit(lambda x: inner(x) + 1)
    with link_time_optimization():
        assert outer(3) == 7
    assert other(3) == 9
    assert inner(3) == 8


def test_shapes_that_differ_are_an_error():
    @njit
    def assign(to, values):
        to[:] = values

    with link_time_optimization():
        assign(np.zeros(2), np.ones(2))
    with pytest.raises(ValueError, match="different size"):
        assign(np.zeros(2), np.ones(3))


SUMS = """
import sys, warnings
import numpy as np, pytensor, pytensor.tensor as pt
from pytensor.compile.mode import get_mode
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
warnings.simplefilter("ignore")  # numba's, that it does not store the function
before = [np.ones(10**5) for _ in range(int(sys.argv[1]))]  # the array lies elsewhere
rows, x = pt.constant(np.arange(2 * 10**5) % 4), pt.vector("x", shape=(4,), dtype="float64")
gradient = pytensor.grad((x[rows] ** 2).sum(), x)
print(pytensor.function([x], gradient, mode=with_cheap_calls(get_mode("NUMBA")))(np.ones(4)))
"""


@pytest.mark.long
@pytest.mark.slow(8)
def test_addresses_are_not_stored(tmp_path):
    """Of large arrays in the code: the next process would read where they were in the last one."""
    environment = os.environ | {"PYTENSOR_FLAGS": f"base_compiledir={tmp_path},cxx="}
    for k in range(2):
        command = [sys.executable, "-c", SUMS, str(3 * k)]
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        )
        assert result.stdout == "[100000. 100000. 100000. 100000.]\n"
