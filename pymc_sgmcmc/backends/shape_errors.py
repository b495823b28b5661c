"""numba's error for an assignment between arrays of different shapes, without the shapes in it.

To write them numba compiles the formatting of text, for 2 to 5 seconds.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from numba.extending import overload
from numba.np import arrayobj


def raise_without_shapes(source_shape, shape):
    """Stand in for numba's function."""
    raise NotImplementedError("for numba only")


@overload(raise_without_shapes)
def _raise_without_shapes(source_shape, shape):
    def implementation(source_shape, shape):
        raise ValueError("cannot assign slice from input of different size")

    return implementation


@contextmanager
def short_shape_errors() -> Iterator[None]:
    """Compile with this error; the caller holds numba's lock of the compiler."""
    # numba looks its function up by this name, and has no option.
    before = arrayobj.raise_with_shape_context
    arrayobj.raise_with_shape_context = raise_without_shapes
    try:
        yield
    finally:
        arrayobj.raise_with_shape_context = before
