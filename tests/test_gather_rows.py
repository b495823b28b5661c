"""Rows of arrays on numba are NumPy's, whatever the array's size, type and layout."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.scan.op import Scan

from pymc_sgmcmc import SGLD
from pymc_sgmcmc.backends.gather_rows import CACHED, GatherRows
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.loop import Loop
from tests.samplers import SAMPLERS, Chain

NUMBA = with_cheap_calls(pytensor.compile.get_mode("NUMBA"))
QUICK = {"mode": "FAST_COMPILE"}
LAYOUTS = {
    "rows": np.ascontiguousarray,
    "columns": np.asfortranarray,
    "neither": lambda a: np.repeat(a, 2, axis=0)[::2],
}


@pytest.mark.slow(3)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_rows(dtype):
    arrays = [pt.tensor(dtype=dtype, shape=(None,) * k) for k in (1, 2, 3)]
    rows = pt.lvector()
    function = pytensor.function([rows, *arrays], [a[rows] for a in arrays], mode=NUMBA)
    operations = [type(node.op) for node in function.maker.fgraph.toposort()]
    assert operations.count(GatherRows) == 3
    rng = np.random.default_rng(1)
    many = CACHED // np.dtype(dtype).itemsize + 3  # elements: rows are prefetched or not
    for n in (5, many):
        shapes = [(n,), (n // 3 + 2, 3), (n // 34 + 2, 2, 17)]
        values = [(rng.normal(size=shape) * 50).astype(dtype) for shape in shapes]
        lowest = min(map(len, values))
        for chosen in (rng.integers(-lowest, lowest, size=40), np.array([], np.int64)):
            for lay_out in LAYOUTS.values():
                results = function(chosen, *map(lay_out, values))
                for result, value in zip(results, values, strict=True):
                    assert result.dtype == dtype
                    np.testing.assert_array_equal(result, value[chosen])


def test_rows_of_nothing():
    matrix, rows = pt.dmatrix(), pt.lvector()
    function = pytensor.function([matrix, rows], matrix[rows], mode=NUMBA)
    assert function(np.ones((3, 0)), np.array([2, 0])).shape == (2, 0)


@pytest.mark.slow(2)
def test_other_indices_stay_as_they_are():
    matrix, rows = pt.dmatrix(), pt.lvector()
    outputs = [matrix[:, rows], matrix[rows, rows], matrix[rows[:, None]]]
    function = pytensor.function([matrix, rows], outputs, mode=NUMBA)
    assert not any(isinstance(node.op, GatherRows) for node in function.maker.fgraph.toposort())
    a, r = np.arange(12.0).reshape(3, 4), np.array([2, 0])
    for result, value in zip(function(a, r), [a[:, r], a[r, r], a[r[:, None]]], strict=True):
        np.testing.assert_array_equal(result, value)


def test_loops_use_them(regression):
    """The features' rows and the observed values', in the scan."""
    loop: Loop = Chain(regression, SAMPLERS[0].algorithm(), "NUMBA", batch_size=20).loop
    (scan,) = (n.op for n in loop.function.maker.fgraph.toposort() if isinstance(n.op, Scan))
    inner = [type(node.op) for node in scan.fgraph.toposort()]
    assert inner.count(GatherRows) == 2


@pytest.mark.slow(3)
def test_a_table_in_column_order_is_put_into_row_order():
    """As pandas gives it: its rows would be gathered element by element, at each update."""
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(50, 3)), rng.normal(size=50)
    draws = []
    for lay_out in (np.ascontiguousarray, np.asfortranarray):
        with pm.Model():
            w = pm.Normal("w", shape=3)
            pm.Normal("y", pm.Data("X", lay_out(X)) @ w, 1, observed=y)
            step = SGLD(step_size=1e-3, batch_size=10, thin=5, rng=3, compile_kwargs=QUICK)
        assert all(np.asarray(c).flags.c_contiguous for c in step.kernel.constants)
        point = {"w": np.zeros(3)}
        draws.append([step.step(point)[0]["w"] for _ in range(3)])
    np.testing.assert_array_equal(*draws)
