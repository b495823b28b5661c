"""A small run in a process of its own that dies: at a random moment, or at a chosen write.

The process is forked, so that it need not import or compile. Used by the tests of the store and by
benchmarks/kills.py.
"""

import os
import shutil
import signal
import time
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from unittest.mock import patch

import numpy as np
import pymc as pm
import zarr.storage._local as zarr_files
from pytensor.compile.mode import Mode

import pymc_sgmcmc as sgm
from pymc_sgmcmc.chain import Chain
from pymc_sgmcmc.run import processes, sequential
from pymc_sgmcmc.storage import chunks, store, writer
from pymc_sgmcmc.storage.identity import identity

DRAWS, TUNE, CHAINS = 12, 4, 2
MODE = Mode("py", "fast_compile")
"""Compiles at once, and a forked process can go on with it."""


def small_model():
    X = np.random.default_rng(0).normal(size=(60, 2))
    with pm.Model() as model:
        w = pm.Normal("w", 0, 3, shape=2)
        s = pm.HalfNormal("s", 2)
        pm.Normal("y", pm.Data("X", X) @ w, s, observed=X @ [1.0, -0.5] + 0.1)
    return model


def small_step(model, **options):
    options = {"step_size": 0.005, "batch_size": 20, "thin": 3} | options
    with model:
        return sgm.MSGNHT_S(compile_kwargs={"mode": MODE}, **options)


def small_run(model, step, **options):
    options = {
        "draws": DRAWS,
        "tune": TUNE,
        "chains": CHAINS,
        "random_seed": 1,
        "chain_method": "sequential",
        "discard_tuned_samples": False,
        "compute_convergence_checks": False,
        "quiet": True,
    } | options
    with model:
        return sgm.sample(step=step, **options)


def same(a, b):
    """Whether two results agree to the last bit, in everything but times."""
    if set(a.children) != set(b.children):
        return False
    for name in a.children:
        one, other = a[name].to_dataset().load(), b[name].to_dataset().load()
        if set(one.variables) != set(other.variables):
            return False
        for key in one.variables:
            x, y = one[key], other[key]
            if x.dims != y.dims or x.dtype != y.dtype or x.values.tobytes() != y.values.tobytes():
                return False
    return True


def in_child(work):
    """Fork a process that does some work and ends at once; return its number."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def ended(pid):
    """Wait for a process; return its exit status, minus the signal if it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_after(pid, seconds):
    """Kill a process after a while; whether it was still alive."""
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return ended(pid) == -signal.SIGKILL


def write_much():
    """Hand on and commit every draw, in small chunks: as many moments of writing as can be."""
    sequential.SECONDS_PER_BLOCK = -1.0
    chunks.DRAWS_PER_CHUNK = 5
    writer.Writer.due = lambda self: True


class DieAt:
    """Ends the process at the k-th moment of writing: before, in the middle of, or after a file."""

    def __init__(self, k):
        self.k = k
        self.count = 0

    def moment(self, last_words=lambda: None):
        if self.count == self.k:
            last_words()
            os._exit(9)
        self.count += 1

    def install(self):
        atomic_write, savez, replace = zarr_files._atomic_write, np.savez, os.replace
        moment = self.moment

        def write(file, whole):
            """Into whichever file it was to be: nothing, half of it, all of it."""
            moment()
            moment(lambda: (file.write(whole[: len(whole) // 2]), file.flush()))
            file.write(whole)
            file.flush()
            moment()
            return len(whole)

        class Dying:
            def __init__(self, file):
                self.file = file

            def write(self, view):
                return write(self.file, bytes(view))

        @contextmanager
        def dying_atomic_write(*args, **kwargs):
            with atomic_write(*args, **kwargs) as file:
                yield Dying(file)
            moment()

        def dying_savez(file, **arrays):
            whole = BytesIO()
            savez(whole, **arrays)
            write(file, whole.getvalue())

        def dying_replace(*args):
            moment()
            replace(*args)
            moment()

        zarr_files._atomic_write = dying_atomic_write
        np.savez = dying_savez
        os.replace = dying_replace


def prepared(model, step, path, method="sequential", **options):
    """A run as `sgm.sample` hands it to a store, to be begun or resumed again and again.

    What identifies it is determined once: that takes as long as the whole run.
    """
    caught = []

    class Spy(sgm.ZarrStore):
        def begin(self, run, tree):
            caught.append((run, tree))
            return super().begin(run, tree)

    small_run(model, step, trace=Spy(path), **options)
    shutil.rmtree(path)
    [(run, tree)] = caught
    run = replace(run, store=sgm.ZarrStore(path, seconds=0.0))
    known = identity(run)

    def go():
        try:
            with patch.object(store, "identity", return_value=known):
                begun = run.store.begin(run, tree)
            if method == "sequential":
                engine = sequential.sequential(begun)
            else:
                engine = processes.parallel(begun, 2, processes.context_for("fork", True), 1)
            for _ in engine:
                pass
            return run.store.to_datatree()
        finally:
            run.store.release()

    return go


def dying(go, path, k):
    """Run, all but the k-th moment of writing; return the number of moments."""
    write_much()
    death = DieAt(k)
    death.install()
    go()
    path.with_name("moments").write_text(str(death.count))


def moments_of(go, path):
    """Count the moments of writing of a whole run."""
    shutil.rmtree(path, ignore_errors=True)
    assert ended(in_child(lambda: dying(go, path, None))) == 0
    return int(path.with_name("moments").read_text())


def die_at(go, path, k):
    """Run from the start to the k-th moment of writing."""
    shutil.rmtree(path, ignore_errors=True)
    assert ended(in_child(lambda: dying(go, path, k))) == 9


# ---- runs that adapt themselves ------------------------------------------------------------

_rng = np.random.default_rng(0)
X = _rng.normal(size=(300, 2)) @ [[1.0, 0.9], [0.0, 0.3]]
Y = X @ [1.0, -0.5] + _rng.normal(size=300)
ROWS = 40
"""So few are all used at each update: quick without compiled code."""


def adapting_model(y=Y[:ROWS]):
    with pm.Model() as model:
        w = pm.Normal("w", 0, 3, shape=2)
        s = pm.HalfNormal("s", 2)
        pm.Normal("y", pm.Data("X", X[: len(y)]) @ w, s, observed=y)
    return model


def adapting_run(path, model, **options):
    """Begin or resume a run with the default step."""
    options = {"compile_kwargs": {"mode": MODE}, "resume": True} | options
    return small_run(model, None, trace=sgm.ZarrStore(path, seconds=0.0), **options)


def warm_up_calls(work, draws):
    """Do some work to its end; return its result and how often a warm-up called `Chain.draw`.

    `draws` is the number of draws of all chains that follow the warm-up.
    """
    calls, original = [], Chain.draw
    with patch.object(Chain, "draw", lambda *args: calls.append(0) or original(*args)):
        result = work()
    return result, len(calls) - draws


def killed_after(work, calls, owner=Chain, method="draw"):
    """Do some work in a process that is killed after so many calls of a method; whether it was."""
    original, count = getattr(owner, method), 0

    def last(*args):
        nonlocal count
        count += 1
        if count > calls:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    def with_death():
        setattr(owner, method, last)
        work()

    return ended(in_child(with_death)) == -signal.SIGKILL
