"""Fixtures for the examples of docstrings."""

import pytensor
import pytest


@pytest.fixture(autouse=True)
def _examples_on_jax(request):
    """JAX compiles in a third of the time, and GCC need not compile inner graphs.

    Not where an example prints an array, which would be JAX's.
    """
    item = request.node
    if isinstance(item, pytest.DoctestItem) and "layers" not in item.name:
        with pytensor.config.change_flags(mode="JAX", cxx="", traceback__limit=0):
            yield
    else:
        yield
