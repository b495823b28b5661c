"""A step is the state of one chain: copies are independent, and a second thread is refused."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_sgmcmc as sgm
from pymc_sgmcmc.gradients.arrays import PYTHON

Y = np.random.default_rng(0).normal(size=30)


@pytest.fixture
def step():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=pm.Data("data", Y))
    return sgm.MSGNHT_S(
        model=model, step_size=0.05, batch_size=5, thin=3, compile_kwargs={"mode": PYTHON}
    )


def draws(step, n=3, seed=None, point=None):
    if seed is not None:
        step.setup_chain(np.random.default_rng(seed), tune=0, draws=n)
    point, values = point or step.model.initial_point(), []
    for _ in range(n):
        point, _ = step.step(point)
        values.append(float(point["mu"]))
    return values


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_are_independent(step, copied):
    """They go on where the step is, with a chain of their own, and work in the same model."""
    expected = draws(step, seed=1)
    step.setup_chain(np.random.default_rng(1), tune=0, draws=3)
    other = copied(step)
    assert draws(other) == expected
    assert step.n_updates == 0
    other.thin, other.schedule = 7, 0.01
    assert step.thin == 3
    assert draws(step) == expected
    model = step.model
    tree = pm.sample(
        3, tune=1, step=other, model=model, chains=1, cores=1, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
    assert tree.sample_stats["n_updates"].values[0, -1] == 4 * 7
    pm.set_data({"data": np.full(30, 50.0)}, model=model)
    assert min(draws(other, n=30, seed=1)[10:]) > max(expected)


def test_copies_in_threads(step):
    """Each draws what it would alone, and PyTensor's mode is what it was before they compiled."""
    before = pytensor.config.mode, pytensor.config.cxx
    point = step.model.initial_point()  # PyMC compiles for it, which is not safe in threads
    expected = [draws(step, n=40, seed=seed, point=point) for seed in range(3)]
    steps = [copy.deepcopy(step) for _ in range(3)]
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda k: draws(steps[k], 40, k, point), range(3)))
    assert found == expected
    assert (pytensor.config.mode, pytensor.config.cxx) == before


def test_second_thread_is_refused(step):
    """It is told what to do, and the first goes on as if nothing had happened."""
    expected = draws(step, n=6, seed=1)
    step.setup_chain(np.random.default_rng(1), tune=0, draws=6)
    point = step.model.initial_point()
    first = []
    for k in range(6):
        point, _ = step.step(point)
        first.append(float(point["mu"]))
        if k == 2:
            with (
                ThreadPoolExecutor(1) as other,
                pytest.raises(RuntimeError, match=r"MSGNHT_S is used in two .*deepcopy\(step"),
            ):
                other.submit(draws, step, 1).result()
    assert first == expected


def test_thread_that_loses_its_step_is_told(step):
    """Where another thread begins a chain of its own, the first does not go on with that."""
    begun, taken = threading.Event(), threading.Event()
    point = step.model.initial_point()

    def first():
        step.setup_chain(np.random.default_rng(1), tune=0, draws=2)
        step.step(point)
        begun.set()
        assert taken.wait(60)
        step.step(point)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(first)
        assert begun.wait(60)
        found = draws(step, seed=2)
        taken.set()
        with pytest.raises(RuntimeError, match="used in two threads"):
            running.result()
    assert found == draws(step, seed=2)


def test_step_goes_to_the_thread_that_begins(step):
    """Made here, it may be used elsewhere; and here again after `setup_chain`."""
    with ThreadPoolExecutor(1) as other:
        assert other.submit(draws, step, 2).result()
        expected = other.submit(draws, step, 2, 5).result()
    assert draws(step, 2, 5) == expected
