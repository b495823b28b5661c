import gc
import os
import signal
import sys
from collections import Counter
from itertools import count
from traceback import walk_stack

import numpy as np
import pymc as pm
import pytensor
import pytest
from pytensor.configparser import _ChangeFlagsDecorator
from threadpoolctl import threadpool_limits

import pymc_sgmcmc as sgm
import pymc_sgmcmc.exact.certificate_in_result
from pymc_sgmcmc.backends.compile_time import compile_lock

# A shell's background jobs ignore Ctrl-C, which the tests send to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Graphs of models are many objects in use, which Python's collector would search all the time.
gc.set_threshold(50_000, 20, 100)

# It compiles a function of each model; test_exact.py tests it.
pymc_sgmcmc.exact.certificate_in_result.MOST_NUMBERS = -1

TESTS_BETWEEN_COLLECTIONS = 10

COMPILED_CODE = {"NUMBA": 15.0, "CVM": 10.0}
"""CPU seconds that a test takes at least on these backends, most of them to compile."""


def backend_of(item):
    """The compilation mode among a test's parameters."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    modes = ("JAX", *COMPILED_CODE)
    return next((v for v in values if isinstance(v, str) and v in modes), None)


def pytest_collection_modifyitems(items):
    """Files that take long first, so that none begins when the others are through.

    Those of a file run in one process, which compiles once what they share. A test of several
    backends is quick on JAX, and slow on those that take long to compile: there the samplers'
    tests are enough for make test. The examples of docstrings are slow together.
    """
    on_jax = {
        (item.path, item.originalname)
        for item in items
        if backend_of(item) == "JAX" and not item.get_closest_marker("long")
    }
    for item in items:
        seconds = COMPILED_CODE.get(backend_of(item))
        if seconds and (item.path, item.originalname) in on_jax:
            of_samplers = item.path.name == "test_samplers.py"
            item.add_marker(pytest.mark.slow(seconds) if of_samplers else pytest.mark.long)
        if isinstance(item, pytest.DoctestItem):
            item.add_marker(pytest.mark.slow(2.0))
    of_file = Counter()
    for item in items:
        of_file[item.path] += cpu_seconds(item)
    items.sort(key=lambda item: -of_file[item.path])  # a stable order: alike in all processes


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """The samplers' tests run on JAX as users run it, fully optimised."""
    if item.path.name != "test_samplers.py":
        return (yield)
    import jax

    def optimise(everything):
        jax.config.update("jax_disable_most_optimizations", not everything)
        # what processes started from here compile has to round alike
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(not everything))

    optimise(True)
    try:
        return (yield)
    finally:
        optimise(False)


_finished = count(1)


def pytest_runtest_logfinish():
    """What compiled functions keep alive grows with each test; the collector need not look again.

    It would take most of the time by the end of a run.
    """
    if next(_finished) % TESTS_BETWEEN_COLLECTIONS == 0:
        gc.collect()
        gc.freeze()


def cpu_seconds(item) -> float:
    """What a test's nearest mark says."""
    mark = item.get_closest_marker("slow")
    return mark.args[0] if mark else 0.0


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread():
    """As many tests run at once as there are cores: more threads would wait for each other."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(scope="session", autouse=True)
def c_compiler():
    """Nothing is compiled to C, here or in processes started from here.

    Inner graphs, of scans say, would be, whatever the mode.
    """
    found = pytensor.config.cxx
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    without = {"cxx": "", "traceback__limit": 0}  # nor is it recorded where nodes are made
    with pytensor.config.change_flags(**without), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTENSOR_FLAGS", f"{flags},cxx=,traceback__limit=0".strip(","))
        yield found


@pytest.fixture(autouse=True)
def _c_linker(request, c_compiler):
    """Except for the tests of the C linker; GCC takes half the time if it optimises nothing."""
    if backend_of(request.node) == "CVM" or request.node.get_closest_marker("c_linker"):
        with pytensor.config.change_flags(cxx=c_compiler, gcc__cxxflags="-O0"):
            yield
    else:
        yield


OURS, TESTS = os.path.dirname(sgm.__file__), os.path.dirname(__file__)
PUBLIC = {
    public.__name__
    for name in sgm.__all__
    for public in getattr(getattr(sgm, name), "__mro__", [getattr(sgm, name)])
}
"""What users call, and the classes whose methods they call with it."""
without_lock = set()
"""Functions of the package that changed or read PyTensor's configuration without the lock."""


def watched(method):
    """A method of PyTensor's configuration that notes who calls it without the lock."""

    def watching(*args, **kwargs):
        if not compile_lock._is_owned():
            codes = [frame.f_code for frame, _ in walk_stack(sys._getframe(1))]
            codes = [code for code in codes if code.co_filename.startswith((OURS, TESTS))]
            ours = [code for code in codes if code.co_filename.startswith(OURS)]
            public = any(code.co_qualname.split(".")[0] in PUBLIC for code in ours)
            # Not what tests call of the package's inner parts, nor what they call in a callback.
            if codes[:1] == ours[:1] != [] and public:
                without_lock.add(f"{ours[0].co_qualname} in {ours[0].co_filename}")
        return method(*args, **kwargs)

    return watching


@pytest.fixture(scope="session")
def _watched_configuration():
    """What PyTensor changes while it compiles, and the mode, which it changes and others read."""
    mode = pytensor.config._config_var_dict["mode"]
    own = type(mode)
    mode.__class__ = type("Watched", (own,), {"__get__": watched(own.__get__)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_ChangeFlagsDecorator, "__enter__", watched(_ChangeFlagsDecorator.__enter__))
        yield
    mode.__class__ = own


@pytest.fixture
def one_graph_at_a_time(_watched_configuration):
    """Two threads that change PyTensor's configuration at once leave it changed."""
    without_lock.clear()
    yield
    assert not without_lock, f"without backends.compile_time.compile_lock: {without_lock}"


@pytest.fixture
def python_by_default():
    """Only where a test asks for numba is something compiled on it: PyMC's recorder is not."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.fixture(scope="session")
def regression_data():
    """Rows for a small linear regression: 200 x 2, unit noise."""
    rng = np.random.default_rng(42)
    X = rng.normal(size=(200, 2))
    return X, X @ [1.0, -0.5] + 0.3 + rng.normal(size=200)


@pytest.fixture
def regression(regression_data):
    """An ordinary PyMC model with data containers and dims."""
    X, y = regression_data
    coords = {"obs": np.arange(200), "feature": ["a", "b"]}
    with pm.Model(coords=coords) as model:
        features = pm.Data("X", X, dims=("obs", "feature"))
        target = pm.Data("target", y, dims="obs")
        w = pm.Normal("w", 0, 3, dims="feature")
        b = pm.Normal("b", 0, 3)
        sigma = pm.HalfNormal("sigma", 2)
        pm.Deterministic("slope_ratio", w[0] / (1 + w[1] ** 2))
        pm.Normal("y", features @ w + b, sigma, observed=target, dims="obs")
    return model
