"""Ctrl-C at any moment, with numba: no SystemError, no draw is lost."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from numba import njit

from pymc_sgmcmc.backends import interrupts as handler
from tests import interrupts

rng = np.random.default_rng(0)


@pytest.fixture
def default_handler():
    """Python's own, and what was there before in the end."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_is_heard_wherever_it_comes(default_handler):
    """A compiled function that does little but return arrays, each by way of numba's Python."""

    @njit
    def arrays(x):
        return x, x, x, x, x, x, x, x, x, x

    def call_until_interrupted(after):
        threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()
        until = time.monotonic() + 5
        while time.monotonic() < until:
            arrays(x)

    x = np.zeros(1)
    arrays(x)
    handler.hear_interrupts()
    for after in rng.uniform(0.001, 0.02, size=40):
        with pytest.raises(KeyboardInterrupt):
            call_until_interrupted(after)


def test_an_interrupt_is_heard_while_objects_are_deleted(default_handler):
    """Whose methods' exceptions Python drops."""

    class Deleted:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)
            sum(range(10))

    def delete():
        Deleted()
        time.sleep(5)

    handler.hear_interrupts()
    with pytest.raises(KeyboardInterrupt):
        delete()


def test_a_dropped_interrupt_is_raised_again(default_handler):
    """Python drops what a weak reference's callback raises; once raised and heard is enough."""

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

    handler.hear_interrupts()
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    with pytest.raises(KeyboardInterrupt):
        handler.raise_if_dropped()
    handler.raise_if_dropped()
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    handler.hear_interrupts()  # another chain begins
    handler.raise_if_dropped()


def test_a_handler_is_wrapped_once_and_otherwise_called(default_handler):
    heard = []
    signal.signal(signal.SIGINT, lambda *args: heard.append(args))
    handler.hear_interrupts()
    handler.hear_interrupts()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)
    assert [number for number, _ in heard] == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handler.hear_interrupts()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize(("sampler", "cores"), [("sgm", 1), ("pm", 1), ("sgm", 2)])
def test_draws_so_far_are_returned(numba_step, tmp_path, sampler, cores):
    model, step = numba_step
    for after in rng.uniform(1.0, 1.5, size=3):
        said = interrupts.interrupted(
            step,
            lambda: interrupts.run(model, step, sampler, cores, draws=10**6),
            tmp_path / "report.json",
            after,
        )
        assert "error" not in said, said["error"]
        assert said["draws"].shape[1] > 10
        assert np.isfinite(said["draws"]).all()


def test_a_long_draw_does_not_keep_workers(numba_step, tmp_path):
    """Of 10 million updates, in two processes: it is given up after the call under way."""
    model, _ = numba_step
    step = interrupts.small_step(model, "FAST_COMPILE", thin=10**7)
    said = interrupts.interrupted(
        step,
        lambda: interrupts.run(model, step, "sgm", 2, draws=2),
        tmp_path / "report.json",
        after=2.0,
    )
    assert said["seconds"] < 3


@pytest.fixture(scope="module")
def numba_step():
    model = interrupts.small_model()
    return model, interrupts.small_step(model)
