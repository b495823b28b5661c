"""How JAX compiles in the tests, and fixtures for the examples of docstrings.

JAX reads its settings where it is imported, which importing the package does.
"""

import os
import shutil
import tempfile

import pytensor
import pytest

JAX_CACHE = "JAX_COMPILATION_CACHE_DIR"
"""XLA compiles each program once for all processes of a run, those that tests start too."""

OWN_JAX_CACHE = None if JAX_CACHE in os.environ else tempfile.mkdtemp(prefix="jax_cache_")
if OWN_JAX_CACHE:
    os.environ[JAX_CACHE] = OWN_JAX_CACHE
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# Where JAX is only what compiles fastest, XLA need not optimise: a fifth of a first call's time.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"


def pytest_unconfigure():
    """The compiled programs of this run go with it."""
    if OWN_JAX_CACHE:
        shutil.rmtree(OWN_JAX_CACHE, ignore_errors=True)


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
