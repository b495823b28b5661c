"""Engine: chains as tasks of a Dask cluster.

A worker receives the run, compiles once, and runs its chains one after another; with a store that
all machines can access, it writes the draws itself. The tasks of a lost worker go to another one,
which continues from the chain's last checkpoint.
"""

import threading
import time
import uuid
from collections.abc import Generator
from contextlib import closing
from functools import lru_cache
from typing import Any

import cloudpickle

from pymc_sgmcmc.backends.interrupts import raise_deferred
from pymc_sgmcmc.run.run_events import Event, Observed, Resumed, Run
from pymc_sgmcmc.run.runner import run_and_keep
from pymc_sgmcmc.run.sequential import ChainRunner

POLL_SECONDS = 0.1
"""Seconds between two checks for new blocks."""
MAX_QUEUED_BLOCKS = 256
"""Blocks in the queue before workers wait: a slow caller slows the workers, not the scheduler."""

_one_at_a_time = threading.Lock()


def client_of(client: Any) -> Any:
    """Return the Dask client to use: the given one, or the current one."""
    try:
        import distributed
    except ImportError as error:
        raise ImportError(
            "chain_method='dask' needs the package distributed: pip install 'pymc-sgmcmc[dask]'."
        ) from error
    if client is None:
        try:
            client = distributed.Client.current()
        except ValueError:
            raise ValueError(
                "chain_method='dask' needs a client: create distributed.Client(address) first, or "
                "pass client=."
            ) from None
    if not client.scheduler_info()["workers"]:
        raise ValueError(f"chain_method='dask': {client!r} has no workers. Start workers first.")
    return client


def on_cluster(run: Run, client: Any) -> Generator[Event]:
    """Yield events in order of arrival; draws since a lost worker's last checkpoint occur twice."""
    import distributed

    name = f"pymc_sgmcmc-{uuid.uuid4().hex}"
    queue = distributed.Queue(name, client=client, maxsize=MAX_QUEUED_BLOCKS)
    stop = distributed.Event(name, client=client)
    # As one array of bytes, because Dask would inspect a Run, and pickle the data for each task.
    payload = client.scatter(cloudpickle.dumps(run), broadcast=True, hash=False)
    tasks = [
        client.submit(_run_chain, payload, chain, name, key=f"{name}-{chain}", pure=False)
        for chain in range(run.n_chains)
    ]
    yield Resumed(range(0), 0)  # for no chain: the tasks have been submitted
    interrupt: BaseException | None = None
    try:
        while True:
            ended = all(task.done() for task in tasks)  # before the queue is read for the last time
            for pickled in queue.get(batch=True) if queue.qsize() else ():
                yield cloudpickle.loads(pickled)
            for task in tasks:
                if task.status in ("error", "lost", "cancelled"):
                    task.result()  # raises
            if ended:
                break
            try:
                raise_deferred()
            except BaseException as error:  # first take what the tasks have drawn so far
                interrupt = error
                stop.set()
            time.sleep(POLL_SECONDS)
        if interrupt is not None:
            raise interrupt
    finally:
        stop.set()
        distributed.wait(tasks)
        for pickled in queue.get(batch=True) if queue.qsize() else ():
            event = cloudpickle.loads(pickled)
            if isinstance(event, Observed):
                run.observers.restore(event.chains, event.state)
        queue.close()
        client.cancel([*tasks, payload])


@lru_cache(maxsize=1)
def _load(name: str, payload: bytes) -> Run:
    """Load a run once per worker, which then compiles only once for all its chains."""
    return cloudpickle.loads(payload)


def _run_chain(payload: bytes, chain: int, name: str) -> None:
    """Run a chain in a worker to its end, or until the caller has enough draws."""
    import distributed

    client = distributed.get_client()
    queue = distributed.Queue(name, client=client)
    stop = distributed.Event(name, client=client)
    with _one_at_a_time:  # chains of a worker share the step
        run = _load(name, payload)
        with closing(run_and_keep(ChainRunner(run, chain), run)) as events:
            for event in events:
                queue.put(cloudpickle.dumps(event))
                if stop.is_set():
                    break
        if run.observers:
            own = range(chain, chain + 1)
            queue.put(cloudpickle.dumps(Observed(own, run.observers.state(own))))
