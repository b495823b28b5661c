"""Products of matrices and vectors on numba are NumPy's, whatever the layout of the matrix."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.scan.op import Scan

from pymc_sgmcmc.backends.matrix_products import MatrixVector
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.loop import Loop
from tests.samplers import SAMPLERS, Chain

NUMBA = with_cheap_calls(pytensor.compile.get_mode("NUMBA"))
LAYOUTS = {
    "rows": lambda a: a,
    "columns": np.asfortranarray,
    "neither": lambda a: np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
    "reversed": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
}


def operations(function):
    return [type(node.op) for node in function.maker.fgraph.toposort()]


@pytest.mark.slow(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products(dtype):
    matrix, left, right = (pt.tensor(dtype=dtype, shape=(None,) * k) for k in (2, 1, 1))
    products = [
        left @ matrix,
        matrix @ right,
        matrix.T @ left,
        right @ matrix.T,
        pt.dot(matrix, right[:, None]),
        pt.dot(left[None], matrix),
    ]
    function = pytensor.function([matrix, left, right], products, mode=NUMBA)
    assert operations(function).count(MatrixVector) == 2  # those that are equal are computed once
    rng = np.random.default_rng(1)
    for shape in [(3, 4), (70, 33), (1, 5), (5, 1), (0, 2), (2, 0)]:
        values = [rng.normal(size=s).astype(dtype) for s in (shape, shape[0], shape[1])]
        for lay_out in LAYOUTS.values():
            m, u, v = lay_out(values[0]), *values[1:]
            expected = [u @ m, m @ v, m.T @ u, v @ m.T, m @ v[:, None], u[None] @ m]
            results = function(m, u, v)
            for result, value in zip(results, expected, strict=True):
                assert result.dtype == dtype
                # rounding: sums of at most 70 products of about unit size
                np.testing.assert_allclose(result, value, atol=70 * np.finfo(dtype).eps * 10)


@pytest.mark.slow(12)
def test_integers_and_matrices_stay_as_they_are():
    whole, matrix, vector = pt.matrix(dtype="int64"), pt.dmatrix(), pt.dvector()
    products = [whole @ vector, matrix @ matrix]
    function = pytensor.function([whole, matrix, vector], products, mode=NUMBA)
    a = np.arange(9).reshape(3, 3)
    results = function(a, a / 7, np.array([1.0, -1.0, 0.5]))
    np.testing.assert_allclose(results[0], a @ [1.0, -1.0, 0.5])
    np.testing.assert_allclose(results[1], (a / 7) @ (a / 7))


@pytest.mark.parametrize("product", [lambda m, v: m @ v, lambda m, v: v @ m.T])
def test_lengths_that_differ_are_an_error(product):
    matrix, vector = pt.dmatrix(), pt.dvector()
    function = pytensor.function([matrix, vector], product(matrix, vector), mode=NUMBA)
    with pytest.raises(ValueError, match="multipl"):
        function(np.ones((3, 4)), np.ones(5))


def test_loops_use_them(regression):
    """The regression's one product and its gradient's, in the scan."""
    algorithm = SAMPLERS[0].algorithm()
    loop: Loop = Chain(regression, algorithm, "NUMBA", batch_size=20).loop
    (scan,) = (n.op for n in loop.function.maker.fgraph.toposort() if isinstance(n.op, Scan))
    inner = [type(node.op) for node in scan.fgraph.toposort()]
    assert inner.count(MatrixVector) == 2


def test_python_computes_the_same():
    matrix, vector = np.arange(6.0).reshape(2, 3), np.array([1.0, 2.0, -1.0])
    for from_left, a in [(False, matrix), (True, matrix.T)]:
        product = MatrixVector(from_left)(pt.as_tensor(a), pt.as_tensor(vector))
        assert product.type.shape == (2,)
        np.testing.assert_array_equal(product.eval(mode="FAST_COMPILE"), matrix @ vector)
