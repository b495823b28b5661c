import numpy as np
import pymc as pm
import pytensor
import pytest


@pytest.fixture(autouse=True)
def _no_c_compiler(request):
    """Only tests of the C linker compile to C.

    Inner graphs, of scans say, are compiled whatever the mode: seconds each, for few evaluations.
    """
    parameters = request.node.callspec.params.values() if hasattr(request.node, "callspec") else ()
    if "CVM" in parameters or request.node.get_closest_marker("c_linker"):
        yield
    else:
        with pytensor.config.change_flags(cxx=""):
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
