"""Ctrl-C at a random moment, sent to a process of its own that samples, and to its workers.

The process is forked, so that it need not import or compile. Used by
tests/run/test_interrupts.py and benchmarks/interrupts.py. Default calls are interrupted in this
process, at a given draw, by tests of their adaptation.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from multiprocessing import RawArray, current_process
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


def small_step(model, mode="NUMBA"):
    options = {"step_size": 0.005, "batch_size": 20, "self_check": False}
    with model:
        return sgm.SGLD(rng=0, compile_kwargs={"mode": mode}, **options)


def whole_and_resumed(model, folder, caplog):
    """Return the result of a default call, and that of one interrupted at a draw and resumed.

    ``caplog`` then has what was logged on resuming.
    """

    def run(name, **arguments):
        return sgm.sample(
            40, tune=10, chains=2, cores=1, random_seed=3, model=model, trace=folder / name,
            progressbar=False, compute_convergence_checks=False, **arguments,
        )  # fmt: skip

    def interrupt(trace, draw):
        if draw.draw_idx == 30:
            raise KeyboardInterrupt

    whole = run("whole.zarr")
    run("cut.zarr", callback=interrupt)
    caplog.clear()
    with caplog.at_level("INFO"):
        return whole, run("cut.zarr", resume=True)


def run(model, step, sampler: str, cores: int, draws: int, **options):
    """`sgm.sample` or `pm.sample`, all draws kept, one chain per core."""
    options = {
        "draws": draws,
        "tune": 0,
        "chains": cores,
        "cores": cores,
        "random_seed": 1,
        "progressbar": False,
        "compute_convergence_checks": False,
    } | options
    with model:
        if sampler == "pm":
            start = model.initial_point()
            return pm.sample(step=step, initvals=start, **options)
        method = "sequential" if cores == 1 else "parallel"
        return sgm.sample(step=step, init="point", quiet=True, chain_method=method, **options)


def count_draws(step, made, mark: Path, long_draws: bool) -> None:
    """Count the draws of each chain, and touch a file when one has made ten.

    Further draws may be made long: ten million updates.
    """
    take, main = step.step, os.getpid()

    def counted(point):
        worker = os.getpid() != main
        chain = int(current_process().name.rpartition("_")[2]) if worker else 0
        if made[chain] == 10:
            if long_draws:
                step.thin = step.chain.call_length.longest = 10**7
            mark.touch()
        drawn = take(point)
        made[chain] += 1
        return drawn

    step.step = counted


def in_child(work: Callable, report: Path) -> int:
    """Fork a process, like one that a terminal runs, that reports its result; return its number."""
    pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)  # a terminal sends Ctrl-C to all processes of a group
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        tree = work()
        np.save(report.with_suffix(".npy"), tree.posterior["w"].values)
        said = {}
    except BaseException as error:
        said = {"error": f"{type(error).__name__}: {error}"[:300]}
    report.write_text(json.dumps(said))
    os._exit(0)


def interrupted(step, work: Callable, report: Path, after: float, long_draws: bool = False) -> dict:
    """Send Ctrl-C to a process, so long after it has made ten draws; return what it reports.

    Returns
    -------
    dict
        ``draws``, an array (chains, draws, 2), or ``error``. ``made``, draws of each chain that
        the step has returned. ``seconds`` from Ctrl-C to the end.
    """
    report.unlink(missing_ok=True)
    mark = report.with_suffix(".begun")
    mark.unlink(missing_ok=True)
    made = RawArray("l", 2)

    def counted():
        count_draws(step, made, mark, long_draws)
        return work()

    pid = in_child(counted, report)
    until = time.monotonic() + PATIENCE
    while not mark.exists() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(after)
    began = time.monotonic()
    os.killpg(pid, signal.SIGINT)
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() - began > PATIENCE:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return {"error": "it hung", "seconds": PATIENCE}
        time.sleep(0.01)
    said = json.loads(report.read_text()) if report.exists() else {"error": "it died"}
    if "error" not in said:
        said["draws"] = np.load(report.with_suffix(".npy"))
    return said | {"made": list(made), "seconds": time.monotonic() - began}
