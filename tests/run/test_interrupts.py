"""Ctrl-C at any moment, with numba: no SystemError, no draw is lost, no signal is."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest
from numba import njit

from pymc_sgmcmc import run_chains
from pymc_sgmcmc.backends import interrupts as handlers
from pymc_sgmcmc.backends.interrupts import deferred, raise_deferred
from pymc_sgmcmc.chain import Chain
from pymc_sgmcmc.run.result import longest_cut
from tests import interrupts

rng = np.random.default_rng(0)


@pytest.fixture
def default_handler():
    """Python's own handler, and that of before in the end."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handlers.handle()
    yield
    signal.signal(signal.SIGINT, before)


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


# ---- one signal ------------------------------------------------------------------------------


def test_a_signal_is_put_off_to_the_end_of_the_outermost_block(default_handler):
    reached = []

    def nested():
        with deferred:
            with deferred:
                ctrl_c()
                reached.append("inner block")
            reached.append("outer block")

    with pytest.raises(KeyboardInterrupt):
        nested()
    assert reached == ["inner block", "outer block"]
    with deferred:
        pass  # it has been raised once, and that is all


def test_a_signal_that_was_put_off_is_raised_on_request(default_handler):
    with deferred:
        raise_deferred()
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            raise_deferred()
        raise_deferred()


def test_a_second_signal_is_not_put_off(default_handler):
    with deferred:
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
        raise_deferred()  # one exception for both


@pytest.mark.slow(3)
def test_machine_code_is_not_interrupted(default_handler):
    """A compiled function that does little but return arrays, each by way of numba's Python."""

    @njit
    def arrays(x):
        return x, x, x, x, x, x, x, x, x, x

    def call_until_interrupted(after):
        threading.Timer(after, ctrl_c).start()
        until = time.monotonic() + 5
        while time.monotonic() < until:
            arrays(x)

    def call_in_one_line_until_interrupted(after):
        threading.Timer(after, ctrl_c).start()
        until = time.monotonic() + 5
        while time.monotonic() < until: arrays(x)  # noqa: E701  # fmt: skip

    x = np.zeros(1)
    arrays(x)
    for after in rng.uniform(0.005, 0.03, size=40):
        for call in (call_until_interrupted, call_in_one_line_until_interrupted):
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                call(after)
            assert time.monotonic() - began < 4


def in_del():
    class Deleted:
        def __del__(self):
            ctrl_c()
            sum(range(10))

    Deleted()
    time.sleep(5)


def in_callback_of_weak_reference():
    class Referenced:
        pass

    referenced = Referenced()
    reference = weakref.ref(referenced, lambda _: ctrl_c())
    del referenced
    time.sleep(5)
    return reference


def in_callback_of_garbage_collection():
    def callback(phase, info):
        if phase == "start":
            ctrl_c()

    gc.callbacks.append(callback)
    gc.collect()
    time.sleep(5)


@pytest.mark.parametrize(
    "drop", [in_del, in_callback_of_weak_reference, in_callback_of_garbage_collection]
)
def test_an_interrupt_that_python_drops_is_raised_again(default_handler, drop):
    callbacks, began = list(gc.callbacks), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        drop()
    gc.callbacks[:] = callbacks
    assert time.monotonic() - began < 4
    time.sleep(0.01)  # and is not raised once more


def test_a_handler_is_replaced_once_and_called_as_often_as_there_are_signals():
    before, heard = signal.getsignal(signal.SIGINT), []
    try:
        signal.signal(signal.SIGINT, lambda *args: heard.append(args))
        handlers.handle()
        handlers.handle()
        ctrl_c()
        assert [number for number, _ in heard] == [signal.SIGINT]
        with deferred:
            ctrl_c()
            assert len(heard) == 1
        assert len(heard) == 2
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        handlers.handle()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_threads_put_off_nothing_for_the_main_thread(default_handler):
    inside, done = threading.Event(), threading.Event()

    def work():
        handlers.handle()  # only the main thread may: no error here
        with deferred:
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(10)
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()
    done.set()
    thread.join()


# ---- a run -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def numba_step():
    model = interrupts.small_model()
    return model, interrupts.small_step(model)


@pytest.fixture(scope="module")
def quick_step():
    model = interrupts.small_model()
    return model, interrupts.small_step(model, "FAST_COMPILE")


@pytest.mark.slow(5)
@pytest.mark.parametrize(("sampler", "cores"), [("sgm", 1), ("pm", 1), ("sgm", 2), ("pm", 2)])
def test_draws_so_far_are_returned(numba_step, tmp_path, sampler, cores):
    """All that the step has returned; PyMC leaves the last ones in its pipes."""
    model, step = numba_step
    for after in rng.uniform(0.0, 0.3, size=3):
        said = interrupts.interrupted(
            step,
            lambda: interrupts.run(model, step, sampler, cores, draws=10**6),
            tmp_path / "report.json",
            after,
        )
        assert "error" not in said, said["error"]
        chains, n = longest_cut(said["made"][:cores])
        made, returned = len(chains) * n, said["draws"][..., 0].size
        assert made - (0 if sampler == "sgm" else 4 * cores) <= returned <= made
        assert np.isfinite(said["draws"]).all()


@pytest.mark.slow(3)
@pytest.mark.parametrize(("sampler", "cores"), [("sgm", 1), ("pm", 1), ("sgm", 2), ("pm", 2)])
def test_a_long_draw_is_abandoned(numba_step, tmp_path, sampler, cores):
    """Of 10 million updates: after the current call."""
    model, step = numba_step
    said = interrupts.interrupted(
        step,
        lambda: interrupts.run(model, step, sampler, cores, draws=10**6),
        tmp_path / "report.json",
        after=1.0,
        long_draws=True,
    )
    assert said["seconds"] < 3
    assert "error" not in said, said["error"]
    assert said["draws"].shape == (cores, 10, 2)


@pytest.mark.parametrize("sampler", ["sgm", "pm"])
def test_a_signal_in_the_last_draw(default_handler, quick_step, sampler, monkeypatch):
    """`sgm.sample` has it by then; PyMC is interrupted as it takes it."""
    model, step = quick_step
    of_call = Chain.run

    def interrupted(chain, *args):
        if chain.n_updates == 29:
            ctrl_c()
        return of_call(chain, *args)

    monkeypatch.setattr(Chain, "run", interrupted)
    draws = interrupts.run(model, step, sampler, 1, draws=30).posterior.sizes["draw"]
    assert draws == {"sgm": 30, "pm": 29}[sampler]


def test_a_signal_after_the_last_draw_of_a_chain(default_handler, quick_step):
    model, step = quick_step
    callback = at_draw(29, ctrl_c)
    tree = interrupts.run(model, step, "sgm", 1, draws=30, callback=callback)
    assert tree.posterior.sizes["draw"] == 30


@pytest.mark.parametrize(("meanwhile", "call"), [("to_datatree", 2), ("check_convergence", 1)])
def test_a_signal_after_all_draws(default_handler, quick_step, monkeypatch, meanwhile, call):
    """A second Ctrl-C, say: the result is almost there. One draw is converted on trial before."""
    model, step = quick_step
    function, calls = getattr(run_chains, meanwhile), []

    def interrupted(*args, **options):
        calls.append(args)
        if len(calls) == call:
            ctrl_c()
        return function(*args, **options)

    monkeypatch.setattr(run_chains, meanwhile, interrupted)
    tree = interrupts.run(model, step, "sgm", 1, draws=30, compute_convergence_checks=True)
    assert tree.posterior.sizes["draw"] == 30
    assert len(calls) == call


@pytest.mark.parametrize("sampler", ["sgm", "pm"])
@pytest.mark.parametrize("cores", [1, 2])
def test_a_handler_that_does_not_raise_does_not_end_the_run(quick_step, sampler, cores):
    model, step = quick_step
    before, heard = signal.getsignal(signal.SIGINT), []
    try:
        signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
        callback = at_draw(5, ctrl_c)
        tree = interrupts.run(model, step, sampler, cores, draws=30, callback=callback)
    finally:
        signal.signal(signal.SIGINT, before)
    assert tree.posterior.sizes["draw"] == 30
    assert heard == [signal.SIGINT]


def test_a_handler_set_after_the_step_was_made(quick_step):
    """Each cell of a notebook sets one. In PyMC's parent process no step is made or run."""
    model, step = quick_step
    before, handler_of_run = signal.getsignal(signal.SIGINT), []
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        callback = at_draw(5, lambda: handler_of_run.append(signal.getsignal(signal.SIGINT)))
        interrupts.run(model, step, "pm", 2, draws=30, callback=callback)
    finally:
        signal.signal(signal.SIGINT, before)
    assert handler_of_run[0].handler is signal.default_int_handler


def test_workers_of_pymc_leave_ctrl_c_to_their_parent(quick_step):
    """A terminal sends it to them too. If they ended by themselves, all draws would be lost."""
    model, step = quick_step
    drawing, sent = set(), []

    def to_workers(trace, draw):
        drawing.add(draw.chain)
        if len(drawing) == 2 and not sent:  # one that begins is not yet told to ignore it
            sent.extend(multiprocessing.active_children())
            for worker in sent:
                os.kill(worker.pid, signal.SIGINT)

    tree = interrupts.run(model, step, "pm", 2, draws=300, callback=to_workers)
    assert tree.posterior.sizes["draw"] == 300
    assert sent


def test_a_second_signal_ends_a_run_at_once(default_handler, quick_step):
    """Also in somebody's function that takes long."""
    model, step = quick_step

    def twice():
        ctrl_c()
        threading.Timer(0.1, ctrl_c).start()
        time.sleep(10)

    began = time.monotonic()
    tree = interrupts.run(model, step, "sgm", 1, draws=30, callback=at_draw(5, twice))
    assert tree.posterior.sizes["draw"] == 6
    assert time.monotonic() - began < 8


@pytest.mark.parametrize("cores", [1, 2])
def test_a_handler_of_sigterm_that_exits(quick_step, cores):
    """The draws so far go with the exit, and the handler is again what it was."""
    model, step = quick_step
    before = signal.getsignal(signal.SIGTERM)

    def handler(number, frame):
        sys.exit(3)

    try:
        signal.signal(signal.SIGTERM, handler)
        callback = at_draw(5, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit) as caught:
            interrupts.run(model, step, "sgm", cores, draws=10**6, callback=callback)
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught.value.code == 3
    assert caught.value.idata.posterior["w"][..., 0].size >= 6


@pytest.mark.slow(3)
def test_an_interrupt_that_is_dropped_while_python_exits(tmp_path):
    """There is no code any more in which it could be raised: Python tells of it, as without us."""
    script = """
        import builtins
        from pymc_sgmcmc.backends import interrupts

        class D:
            def __del__(self):
                raise KeyboardInterrupt("at the end")

        interrupts.handle()
        builtins.kept = D()
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert "KeyboardInterrupt: at the end" in ran.stderr
    assert "ValueError" not in ran.stderr


def at_draw(number: int, function):
    """A callback that calls a function at this draw of the first chain."""

    def callback(trace, draw):
        if draw.chain == 0 and draw.draw_idx == number:
            function()

    return callback
