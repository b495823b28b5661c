"""Rows that are prefetched are NumPy's, whatever the array's size, type and layout."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.scan.op import Scan

from pymc_sgmcmc import SGLD, kernel
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.backends.software_prefetch import CACHED, SoftwarePrefetch
from pymc_sgmcmc.batches import prefetched
from pymc_sgmcmc.loop import Loop
from tests.samplers import SAMPLERS, Chain

KEPT_OUT = pytensor.compile.get_mode("NUMBA").excluding("software_prefetch")
NUMBA = with_cheap_calls(pytensor.compile.get_mode("NUMBA"))
QUICK = {"mode": "FAST_COMPILE"}
LAYOUTS = {
    "rows": np.ascontiguousarray,
    "columns": np.asfortranarray,
    "neither": lambda a: np.repeat(a, 2, axis=0)[::2],
}


@pytest.mark.slow(3)
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.long), "int8"])
def test_rows(dtype):
    arrays = [pt.tensor(dtype=dtype, shape=(None,) * k) for k in (1, 2, 3)]
    rows = pt.lvector()
    function = pytensor.function([rows, *arrays], [a[rows] for a in arrays], mode=NUMBA)
    operations = [type(node.op) for node in function.maker.fgraph.toposort()]
    assert operations.count(SoftwarePrefetch) == 3
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
    assert not any(
        isinstance(node.op, SoftwarePrefetch) for node in function.maker.fgraph.toposort()
    )
    a, r = np.arange(12.0).reshape(3, 4), np.array([2, 0])
    for result, value in zip(function(a, r), [a[:, r], a[r, r], a[r[:, None]]], strict=True):
        np.testing.assert_array_equal(result, value)


def regression_of(n_rows):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(n_rows, 2))
    with pm.Model() as model:
        w = pm.Normal("w", shape=2)
        pm.Normal("y", pm.Data("X", X) @ w, 1, observed=X @ [1.0, -0.5] + rng.normal(size=n_rows))
    return model


@pytest.mark.long
def test_loops_draw_the_same_with_and_without():
    """A resumed run may have another number of processes, and so fetch its rows in another way."""
    model = regression_of(CACHED // 16 + 1)  # the features are prefetched, the observed are not
    draws = []
    for mode in (pytensor.compile.get_mode("NUMBA"), KEPT_OUT):
        chain = Chain(model, SAMPLERS[-2].algorithm(), mode, batch_size=20)
        (scan,) = (
            node.op
            for node in chain.loop.function.maker.fgraph.toposort()
            if isinstance(node.op, Scan)
        )
        inner = [type(node.op) for node in scan.fgraph.toposort()]
        assert inner.count(SoftwarePrefetch) == (0 if mode is KEPT_OUT else 2)
        draws.append(chain.run(1e-5, seed=5, snapshots=3, every=50))
    (theta, state), (other_theta, other_state) = draws
    np.testing.assert_array_equal(theta[0], other_theta[0])
    np.testing.assert_array_equal(state["p"][0], other_state["p"][0])


@pytest.mark.parametrize("table", ["small", "large", "fetched by a thread"])
def test_where_the_caches_do_not_hold_the_rows(table, monkeypatch):
    """Nowhere else: an instruction for each row costs more than it saves."""
    large = table != "small"
    monkeypatch.setattr(kernel, "CACHED", 8 * 150 * (1 if large else 10))
    monkeypatch.setattr(prefetched, "MIN_TABLE_BYTES", 1 if "thread" in table else np.inf)
    monkeypatch.setattr(prefetched, "n_cores", lambda: 2)
    modes = []

    class Spied(Loop):
        def __init__(self, *arguments):
            modes.append(arguments[-1]["mode"])
            super().__init__(*arguments)

    monkeypatch.setattr(kernel, "Loop", Spied)
    with regression_of(n_rows=100):
        SGLD(step_size=1e-3, batch_size=10, compile_kwargs=QUICK)
    [mode] = modes
    assert ("software_prefetch" not in mode.provided_optimizer.exclude) == (table == "large")


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
