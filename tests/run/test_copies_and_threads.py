"""A step is the state of one chain: copies are independent; threads and runs take turns."""

import copy
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pymc as pm
import pytensor
import pytest
from pytensor.configparser import _ChangeFlagsDecorator

import pymc_sgmcmc as sgm
from pymc_sgmcmc.backends.compile_time import compile_lock
from pymc_sgmcmc.gradients.arrays import PYTHON
from pymc_sgmcmc.pymc_internals import quiet_logging

pytestmark = pytest.mark.usefixtures("one_graph_at_a_time")
CHANGED_BY_PYTENSOR = ("mode", "cxx", "traceback__limit", "optdb__max_use_ratio")
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


def test_runs_in_threads(python_by_default, monkeypatch):
    """Whole runs, with starts, steps that PyMC chooses and recorded variables of their own."""

    def model(k):  # which PyMC builds, and that is not safe in threads
        with pm.Model() as model:
            mu = pm.Normal("mu")
            pm.Poisson("count", 3.0)
            pm.Deterministic("twice", 2 * mu + k)
            pm.Normal("y", mu, 1, observed=Y)
        return model

    def sampled(model):
        options = {"step_size": 0.05, "batch_size": 5, "compile_kwargs": {"mode": PYTHON}}
        tree = sgm.sample(
            5, tune=2, chains=2, random_seed=1, quiet=True, chain_method="sequential",
            step=sgm.SGLD([model["mu"]], model=model, **options), model=model,
            compute_convergence_checks=False, idata_kwargs={"log_likelihood": True},
        )  # fmt: skip
        return tree.posterior["twice"].values.tolist()

    models = [model(k) for k in range(3)]
    expected = [sampled(model) for model in models]
    before = {name: getattr(pytensor.config, name) for name in CHANGED_BY_PYTENSOR}
    enter = _ChangeFlagsDecorator.__enter__

    def enter_and_wait(self):
        enter(self)
        time.sleep(0.005)  # so that another thread goes on in the meantime

    monkeypatch.setattr(_ChangeFlagsDecorator, "__enter__", enter_and_wait)
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(sampled, models))
    assert found == expected
    assert {name: getattr(pytensor.config, name) for name in before} == before


def test_quiet_runs_that_overlap():
    """Messages come back when the last one ends, and not before."""
    logger = logging.getLogger("pymc")
    level, loud, quiet = logger.level, logging.CRITICAL, logging.CRITICAL + 1
    logger.setLevel(loud)
    try:
        first, second = quiet_logging(True), quiet_logging(True)
        seen = []
        for change in (first.__enter__, second.__enter__):
            change()
            seen.append(logger.level)
        for run in (first, second):
            run.__exit__(None, None, None)
            seen.append(logger.level)
    finally:
        logger.setLevel(level)
    assert seen == [quiet, quiet, quiet, loud]


def test_a_process_can_be_forked_while_another_thread_compiles():
    """It does not wait for ever for a lock that nobody in it will release."""
    holds, go_on = threading.Event(), threading.Event()

    def compiling():
        with compile_lock:
            holds.set()
            go_on.wait(0.2)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(compiling)
        assert holds.wait(60)
        child = os.fork()
        if child == 0:
            os._exit(0 if compile_lock.acquire(timeout=5) else 1)
        go_on.set()
        running.result()
    assert os.waitpid(child, 0)[1] == 0


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


# ---- runs within runs ----------------------------------------------------------------------


def run(sample, step, callback=None, draws=12, **options):
    """Draws of mu of a run with one chain."""
    options = {"tune": 3, "chains": 1, "random_seed": 1, "progressbar": False} | options
    options |= {"cores": 1} if sample is pm.sample else {"init": "point"}
    tree = sample(
        draws, step=step, model=step.model, callback=callback, compute_convergence_checks=False,
        **options,
    )  # fmt: skip
    return tree.posterior["mu"].values


def inside(sample, step, at=6):
    """A callback that draws with a step."""

    def callback(trace, draw):
        if draw.draw_idx == at:
            run(sample, step, draws=4, random_seed=9)

    return callback


REFUSED = pytest.mark.parametrize(
    ("sample", "told"),
    [
        (sgm.sample, "MSGNHT_S is in use by a run of sgm.sample"),
        (pm.sample, "MSGNHT_S has begun"),
    ],
    ids=["sgm", "pm"],
)


@REFUSED
@pytest.mark.parametrize("at", [6, 14])
@pytest.mark.parametrize("turns", [np.inf, -1.0], ids=["one by one", "in turns"])
def test_run_in_the_callback_of_a_run(step, sample, told, at, turns, monkeypatch):
    """Refused at any draw, with the draws so far; a copy may draw there, and later the step."""
    monkeypatch.setattr("pymc_sgmcmc.run.sequential.SECONDS_PER_TURN", turns)
    monkeypatch.setattr("pymc_sgmcmc.run.sequential.PART_PER_TURN", np.inf)
    monkeypatch.setattr("pymc_sgmcmc.run.sequential.TURNS_PER_CHANGE", 0)
    two = {"chains": 2, "chain_method": "sequential"}
    expected = run(sgm.sample, step, **two)
    if sample is sgm.sample or at < 14:  # after the last draw of a chain it does no harm
        with pytest.raises(RuntimeError, match=rf"{told}.*step=copy\.deepcopy\(step\)") as caught:
            run(sgm.sample, step, inside(sample, step, at), **two)
        found = caught.value.idata.posterior["mu"].values
        np.testing.assert_array_equal(found[0], expected[0, : found.shape[1]])
    copied = inside(sample, copy.deepcopy(step), at)
    np.testing.assert_array_equal(run(sgm.sample, step, copied, **two), expected)


@REFUSED
def test_interrupted_after_a_run_in_its_callback(step, sample, told, tmp_path):
    """The other run's state is not taken for that of the interrupted one."""
    expected = run(sgm.sample, step)

    def callback(trace, draw):
        with suppress(RuntimeError):
            inside(sample, step)(trace, draw)
        if draw.draw_idx == 6:
            raise KeyboardInterrupt

    stored = {"trace": str(tmp_path / "run.zarr")}
    run(sgm.sample, step, callback, **stored)
    np.testing.assert_array_equal(run(sgm.sample, step, **stored, resume=True), expected)


@pytest.mark.parametrize("stored", [False, True])
def test_run_in_the_callback_of_pm_sample(step, stored, tmp_path):
    """It leaves the step as it was."""
    expected = run(pm.sample, step)
    options = {"trace": str(tmp_path / "run.zarr")} if stored else {}

    def callback(trace, draw):
        if draw.draw_idx == 6:
            run(sgm.sample, step, chains=2, chain_method="sequential", random_seed=9, **options)

    np.testing.assert_array_equal(run(pm.sample, step, callback), expected)


@pytest.mark.parametrize("ended", [ValueError, KeyboardInterrupt])
def test_step_of_a_run_that_was_ended_is_free(step, ended):
    expected = run(sgm.sample, step)

    def callback(trace, draw):
        if draw.draw_idx == 6:
            raise ended

    with suppress(ValueError):
        run(sgm.sample, step, callback)
    np.testing.assert_array_equal(run(sgm.sample, step), expected)
