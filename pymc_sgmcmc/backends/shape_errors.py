"""numba's error for an assignment between arrays of different shapes, without naming the shapes.

To name them numba compiles code that formats text: 2.0 CPU seconds of each process's first
compilation, measured with a function that assigns a vector and a matrix.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from numba.extending import overload
from numba.np import arrayobj

from pymc_sgmcmc.internals_used import available


def raise_without_shapes(source_shape, shape):
    """Replace numba's function."""
    raise NotImplementedError("for numba only")


@overload(raise_without_shapes)
def _raise_without_shapes(source_shape, shape):
    def implementation(source_shape, shape):
        raise ValueError("cannot assign slice from input of different size")

    return implementation


@contextmanager
def short_shape_errors() -> Iterator[None]:
    """Compile with this error; the caller holds the lock of numba's compiler."""
    if not available("backends/shape_errors.py", "compilation takes some seconds longer"):
        yield
        return
    # numba has no option for this; it looks up its function by this name.
    before = arrayobj.raise_with_shape_context
    arrayobj.raise_with_shape_context = raise_without_shapes
    try:
        yield
    finally:
        arrayobj.raise_with_shape_context = before
