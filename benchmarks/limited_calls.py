"""Calls that are made in a process with caches of its own, on one core, and ended after a limit.

For `crossover.py` and `hierarchy_rivals.py`.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any


def cpu_seconds() -> float:
    """CPU seconds of this process and of those it has ended."""
    return sum(os.times()[:4])


def timed(call: Callable[[], Any], limit: float) -> tuple[Any, float]:
    """Return what a call returns and its CPU seconds; end the process after the limit."""
    began = cpu_seconds()
    end = int(time.process_time() + limit) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))
    return call(), cpu_seconds() - began


def lines_of(script: str, task: Any, limit: float) -> tuple[list[dict], str | None]:
    """Run `script --one` with a task as JSON: the JSON lines that it prints, and why it ended.

    The reason is None where it ended well.
    """
    core = max(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as caches:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", script, "--one"],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            env=os.environ
            | {
                "PYTENSOR_FLAGS": f"base_compiledir={caches}/pytensor",
                "NUMBA_CACHE_DIR": f"{caches}/numba",
                "JAX_COMPILATION_CACHE_DIR": f"{caches}/jax",
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            },
        )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not done.returncode:
        return found, None
    if done.returncode == -signal.SIGXCPU:
        return found, f"ended after {limit:g} s"
    if done.returncode == -signal.SIGKILL:
        return found, "killed for its memory"
    return found, str(done.stderr.strip().splitlines()[-1:])
