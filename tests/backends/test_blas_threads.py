"""Threads of BLAS in a warm-up."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from pymc_sgmcmc.adaptation.curvature_warm_up import CurvatureWarmUp
from pymc_sgmcmc.adaptation.warm_up import WarmUp
from pymc_sgmcmc.backends.blas_threads import blas_threads
from pymc_sgmcmc.gradients.row_gradients import RowGradients


def threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads():
    with threadpool_limits(2, user_api="blas"):
        yield


def test_threads_in_a_block():
    with blas_threads(1):
        assert threads() == {1}
        with blas_threads(2):
            assert threads() == {2}
        assert threads() == {1}
    assert threads() == {2}


def test_a_warm_up_has_one_thread(monkeypatch):
    monkeypatch.setattr(WarmUp, "run", lambda self, point: threads())
    assert CurvatureWarmUp.run(object.__new__(CurvatureWarmUp), {}) == {1}


@pytest.mark.parametrize(("size", "expected"), [(499, 1), (500, 2)])
def test_products_of_many_gradients_have_several(size, expected, monkeypatch):
    """Gradients of rows that tell in how many threads their products are computed."""
    seen = []

    class Gradients(np.ndarray):
        def __matmul__(self, other):
            seen.append(threads())
            return np.zeros((size, size))

    rows = object.__new__(RowGradients)
    rows.size, rows._of_rows = size, None
    monkeypatch.setattr("pymc_sgmcmc.gradients.row_gradients.n_cores", lambda: 2)
    monkeypatch.setattr(RowGradients, "split", lambda self, theta: [])
    monkeypatch.setattr(RowGradients, "_blocks", lambda self, index: [None])
    each = np.zeros(3), np.zeros((3, size)).view(Gradients)
    monkeypatch.setattr(RowGradients, "_evaluated", lambda self, *args: each)
    with blas_threads(1):
        rows.likelihood(np.zeros(size), index=[0, 1, 2])
    assert seen == [{expected}]
