"""Engine: chains in separate processes.

Each worker runs chains one after another, compiles once, writes to the store itself and sends
blocks of draws; PyMC's process per chain compiles for each chain and sends single draws.
"""

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
from pymc.exceptions import SamplingError
from threadpoolctl import threadpool_limits

from pymc_sgmcmc.backends import interrupts
from pymc_sgmcmc.run.run_events import Event, Observed, Resumed, Run
from pymc_sgmcmc.run.runner import run_and_keep
from pymc_sgmcmc.run.sequential import ChainRunner
from pymc_sgmcmc.temporary_folder import temporary_folder

POLL_SECONDS = 0.1
"""Seconds between two checks for Ctrl-C."""
SECONDS_TO_NOTICE = 0.7 if os.name == "posix" else 10.0
"""Seconds for a worker to notice, between two draws, that it must end, before it is interrupted
(killed on systems other than POSIX)."""
SECONDS_TO_END = 10.0
"""Seconds for a worker to save its state before it is killed."""


class ChainError(SamplingError):
    """An exception in a worker process, which is its cause."""


def context_for(mp_ctx: Any, forks: bool) -> Any:
    """Return the multiprocessing context: the system's default, but no fork for JAX."""
    if mp_ctx is None or isinstance(mp_ctx, str):
        if mp_ctx is None and not forks:
            # JAX's threads do not survive a fork.
            methods = multiprocessing.get_all_start_methods()
            mp_ctx = "forkserver" if "forkserver" in methods else "spawn"
        mp_ctx = multiprocessing.get_context(mp_ctx)
    if not forks and mp_ctx.get_start_method() == "fork":
        raise ValueError(
            "mp_ctx='fork' cannot be used with a JAX step: JAX's threads do not survive a fork, "
            "and the run would hang. Leave mp_ctx out, or pass 'forkserver' or 'spawn'."
        )
    return mp_ctx


def parallel(run: Run, workers: int, mp_ctx: Any, blas_threads: int | None) -> Generator[Event]:
    """Run chains in ``workers`` processes, and yield events in order of arrival.

    An exception in a chain becomes a `ChainError`, and so does a worker that ends by itself.
    """
    forked = mp_ctx.get_start_method() == "fork"
    with temporary_folder() as folder:
        if forked:
            run.recorder.trace  # noqa: B018  compiled once, inherited by all
            payload: Any = run
        else:
            # In a file, because as an argument the data would be pickled again for each worker.
            payload = folder / "run.pickle"
            with open(payload, "wb") as file:
                cloudpickle.dump(run, file)
        pool = _Pool(mp_ctx, workers, payload, forked, blas_threads)
        try:
            yield Resumed(range(0), 0)  # without chains: the processes have been forked
            yield from pool.run(run.n_chains)
        except (KeyboardInterrupt, SystemExit):
            yield from pool.rest()
            raise
        finally:
            for event in pool.end():
                if isinstance(event, Observed):
                    run.observers.restore(event.chains, event.state)


class _Pool:
    """Worker processes and the chain that each one runs."""

    def __init__(self, mp_ctx, workers: int, payload: Any, forked: bool, blas_threads: int | None):
        self.chain_of: dict[Connection, int] = {}
        self.process_of: dict[Connection, Any] = {}
        for k in range(workers):
            ours, theirs = mp_ctx.Pipe()
            # A forked worker inherits our ends of the pipes: left open, no worker would see us end.
            inherited = [ours, *self.process_of] if forked else []
            process = mp_ctx.Process(
                target=_work,
                args=(theirs, inherited, payload, blas_threads),
                name=f"pymc_sgmcmc_{k}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self.process_of[ours] = process

    def run(self, n_chains: int) -> Iterator[Event]:
        waiting = list(range(n_chains))
        idle = list(self.process_of)
        while waiting or self.chain_of:
            while waiting and idle:
                connection, chain = idle.pop(0), waiting.pop(0)
                self.chain_of[connection] = chain
                with suppress(OSError):  # it has ended: `_receive` raises the error
                    connection.send(chain)
            interrupts.raise_deferred()
            for connection in wait(list(self.chain_of), POLL_SECONDS):  # type: ignore[assignment]
                event = self._receive(connection)
                if event is None:
                    del self.chain_of[connection]
                    idle.append(connection)
                else:
                    yield event

    def _receive(self, connection: Any) -> Event | None:
        chain = self.chain_of[connection]
        try:
            event = connection.recv()
        except (EOFError, OSError):
            process = self.process_of[connection]
            process.join(SECONDS_TO_END)
            raise ChainError(
                f"The process of chain {chain} ended unexpectedly (exit code {process.exitcode}). "
                "It may have been killed or run out of memory. If processes fail to start, put "
                "the main part of the script under `if __name__ == '__main__':`, or pass "
                "chain_method='sequential', which needs no processes."
            ) from None
        if isinstance(event, tuple):
            pickled, trace = event
            error = cloudpickle.loads(pickled)
            message = f"Chain {chain} failed with {type(error).__name__}: {error}\n\n{trace}"
            raise ChainError(message) from error
        return event

    def rest(self) -> Iterator[Event]:
        """Make all workers save their states and end, and return what they have drawn so far."""
        for connection in self.process_of:
            with suppress(OSError):
                connection.send(None)
        # First between two draws, then between two calls of a long draw, then anywhere: see
        # `interrupts`.
        for seconds in (SECONDS_TO_NOTICE, SECONDS_TO_NOTICE, SECONDS_TO_END):
            until = time.monotonic() + seconds
            while self.chain_of and (left := until - time.monotonic()) > 0:
                for connection in wait(list(self.chain_of), left):  # type: ignore[assignment]
                    try:
                        event = connection.recv()
                    except (EOFError, OSError):
                        event = None
                    if event is None or isinstance(event, tuple):  # too late for an error
                        del self.chain_of[connection]
                    else:
                        yield event
            for connection in self.chain_of:
                self.process_of[connection].terminate()

    def end(self) -> list[Event]:
        """Make all workers end, and return what they have drawn so far."""
        events = list(self.rest())
        until = time.monotonic() + SECONDS_TO_END
        for connection, process in self.process_of.items():
            connection.close()
            process.join(max(0.0, until - time.monotonic()))
            process.kill()
            process.join()
        return events


def _stop(number: int, frame: Any) -> None:
    """Handle SIGTERM by abandoning the current draw."""
    _ignore_sigterm()
    raise KeyboardInterrupt


def _ignore_sigterm() -> None:
    """Ignore further signals, so that the state can be saved."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _work(connection: Any, inherited: list, payload: Any, blas_threads: int | None) -> None:
    """Run the chains that come through the pipe, until None arrives or the pipe is closed."""
    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, _stop)
    interrupts.handle(signal.SIGTERM)
    with (
        suppress(EOFError, OSError, KeyboardInterrupt),
        interrupts.deferred,
        threadpool_limits(limits=blas_threads),
    ):
        run = _load(connection, payload) if isinstance(payload, Path) else payload
        while (chain := connection.recv()) is not None:
            _run_chain(connection, run, chain)


def _load(connection: Any, path: Path) -> Run:
    try:
        with open(path, "rb") as file:
            return cloudpickle.load(file)
    except Exception as error:
        connection.send(_sendable(error))
        raise EOFError from error


def _run_chain(connection: Any, run: Run, chain: int) -> None:
    try:
        try:
            with closing(run_and_keep(ChainRunner(run, chain), run)) as events:
                for event in events:
                    connection.send(event)
                    if connection.poll():  # a busy worker is only ever sent the request to end
                        _ignore_sigterm()
                        break
        finally:
            if run.observers:
                own = range(chain, chain + 1)
                connection.send(Observed(own, run.observers.state(own)))
        connection.send(None)
    except (EOFError, OSError) as error:
        if connection.closed or _gone(connection):
            raise
        connection.send(_sendable(error))
    except Exception as error:
        connection.send(_sendable(error))


def _gone(connection: Any) -> bool:
    """Whether the other end of a pipe is closed."""
    try:
        return connection.poll()
    except OSError:
        return True


def _sendable(error: Exception) -> tuple[bytes, str]:
    """Return an exception and its traceback; only its message if it cannot be pickled."""
    trace = traceback.format_exc()
    try:
        pickled = cloudpickle.dumps(error)
        cloudpickle.loads(pickled)
    except Exception:
        pickled = cloudpickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return pickled, trace
