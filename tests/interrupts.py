"""Ctrl-C at a random moment, sent to a process of its own that samples.

The process is forked, so that it need not import or compile. Used by tests/test_interrupts.py and
by benchmarks/interrupts.py.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pymc as pm

import pymc_sgmcmc as sgm

PATIENCE = 60.0
"""Seconds after which a process that has not ended is taken to hang."""


def small_model():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    with pm.Model() as model:
        w = pm.Normal("w", 0, 3, shape=2)
        pm.Normal("y", pm.Data("X", X) @ w, 1, observed=X @ [1.0, -0.5])
    return model


def small_step(model, mode="NUMBA", thin=1):
    options = {"step_size": 0.005, "batch_size": 20, "self_check": False}
    with model:
        return sgm.SGLD(thin=thin, rng=0, compile_kwargs={"mode": mode}, **options)


def run(model, step, sampler: str, cores: int, draws: int):
    """`sgm.sample` or `pm.sample`, all draws kept."""
    options = {
        "draws": draws,
        "tune": 0,
        # In one process Ctrl-C ends one chain of pm.sample, which goes on with the next.
        "chains": 1 if sampler == "pm" and cores == 1 else 2,
        "cores": cores,
        "random_seed": 1,
        "progressbar": False,
        "compute_convergence_checks": False,
    }
    with model:
        if sampler == "pm":
            start = model.initial_point()
            return pm.sample(step=step, initvals=start, **options)
        method = "sequential" if cores == 1 else "parallel"
        return sgm.sample(step=step, init="point", quiet=True, chain_method=method, **options)


def mark_tenth(step, mark: Path) -> None:
    """Touch a file at the tenth step, or at the first long one: until then things are compiled."""
    take, taken = step.step, []

    def counted(point):
        taken.append(1)
        if len(taken) == (1 if step.thin > 1 else 10):
            mark.touch()
        return take(point)

    step.step = counted


def in_child(work: Callable, report: Path) -> int:
    """Fork a process that hears Ctrl-C and reports what came of it; return its number."""
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        tree = work()
        np.save(report.with_suffix(".npy"), tree.posterior["w"].values)
        said = {"chains": tree.posterior.chain.values.tolist()}
    except BaseException as error:
        said = {"error": f"{type(error).__name__}: {error}"[:300]}
    report.write_text(json.dumps(said))
    os._exit(0)


def interrupted(step, work: Callable, report: Path, after: float) -> dict:
    """Send Ctrl-C to a process, so long after it began to sample; return what it reports.

    Returns
    -------
    dict
        ``draws``, an array (chains, draws, 2), and ``chains``; or ``error``. ``seconds`` from
        Ctrl-C to the end.
    """
    report.unlink(missing_ok=True)
    mark = report.with_suffix(".begun")
    mark.unlink(missing_ok=True)

    def marked():
        mark_tenth(step, mark)
        return work()

    pid = in_child(marked, report)
    until = time.monotonic() + PATIENCE
    while not mark.exists() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(after)
    began = time.monotonic()
    os.kill(pid, signal.SIGINT)
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() - began > PATIENCE:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return {"error": "it hung", "seconds": PATIENCE}
        time.sleep(0.01)
    said = json.loads(report.read_text()) if report.exists() else {"error": "it died"}
    if "error" not in said:
        said["draws"] = np.load(report.with_suffix(".npy"))
    return said | {"seconds": time.monotonic() - began}
