"""All chains of a run together on JAX: one compiled call advances every chain by many updates.

Each chain has the batches, noise and start that it would have alone; the update is mapped over
chains.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytensor
from pymc.blocking import PointType
from pymc.stats.convergence import SamplerWarning

from pymc_sgmcmc.backends.interrupts import raise_deferred
from pymc_sgmcmc.chain import Chain, SGMCMCState
from pymc_sgmcmc.compiled_call_length import FIRST_CALL
from pymc_sgmcmc.run.chain_batches import ChainBatches, bytes_per_update, most_updates
from pymc_sgmcmc.run.chains_together import (
    BYTES_PER_CALL,
    SECONDS_PER_CALL,
    ChainsTogether,
    Drawn,
    shorten,
)

if TYPE_CHECKING:
    from pymc_sgmcmc.run.devices import DeviceChains, Piece

MAX_SECONDS_PER_CALL = 0.5
"""Longest call in seconds: longer draws are split into calls of about this length, each of which
copies its results. Two calls may be in progress, and Ctrl-C should take effect within a second."""


class Call(NamedTuple):
    """The task of one compiled call: ``n`` whole draws, or part of one."""

    first: int
    """Number of the first draw, tuning included."""
    done: int
    """Number of updates of that draw made by earlier calls."""
    n: int
    room: int
    """Number of draws that the arrays can hold; it seldom changes, as each value is compiled."""
    n_updates: int
    """Number of updates of each draw in this call."""
    h: np.ndarray
    """Step sizes, shape (n, n_updates)."""
    batches: Future
    """Batches of all chains, as a `CallBatches`."""


class VectorizedChains(ChainsTogether):
    """Chains that are advanced by one compiled call."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._loop: Any = self.kernel.loop
        self._step_size_names = self.step.step_size_names
        self._batches = ChainBatches(self.chains)
        self._room = self._draws_a_call = self._updates_a_call = 1
        self._shapes_run: set[tuple[int, int]] = set()
        self._last_ready = 0.0
        self._per_update: list[list[np.ndarray]] = []
        self._helper: Executor
        self._threads: Executor

    def saved(self, drawn: Drawn) -> tuple[list[PointType], list[SGMCMCState]]:
        """Return points and states of the chains after some draws."""
        carry = self._stacked.fetch(drawn.carry)
        points, states = [], []
        for c, chain in enumerate(self.chains):
            theta = {v.name: t[c] for v, t in zip(chain.vars, carry.theta, strict=True)}
            points.append({name: theta[name] for name in self.points[c]})
            chain.state = self._loop.named([s[c] for s in carry.state])
            chain.noise = self._stacked.one_of(carry.rng, c)
            chain.n_updates = (drawn.first + drawn.n) * chain.thin
            states.append(replace(chain.sampling_state, batch_states=drawn.batch_states[c]))
        return points, states

    def fetch(self, arrays: list[Any]) -> list[np.ndarray]:
        """Bring arrays to the host."""
        return self._stacked.fetch(arrays)

    def run(self) -> Iterator[Drawn]:
        """Advance all chains to the end; the draws of the last call are read while one runs."""
        self._stacked = self._stack()
        self._probe()
        planned, under_way = (self.n_done, 0), None
        interrupt: BaseException | None = None
        with ThreadPoolExecutor(1) as helper, ThreadPoolExecutor() as threads:
            self._threads, self._helper = threads, helper
            call = self._plan(*planned)
            while call is not None or under_way is not None:
                now = None
                if call is not None:
                    batches = call.batches.result()
                    # The rest is not run, so any positive numbers will do.
                    h = np.concatenate([call.h, np.repeat(call.h[-1:], call.room - call.n, axis=0)])
                    pieces = self._stacked.advance(
                        call.n, call.done, h, batches.rows, batches.blocks
                    )
                    # If JAX had to compile, it has done so, and computes from now on.
                    dispatched = time.perf_counter()
                    now = call, pieces, self._stacked.carry, batches.states, dispatched
                    call = self._plan(*self._after(call))
                if under_way is not None:
                    drawn = self._read(*under_way, is_new=now is not None and self._is_new(now[0]))
                    if drawn is not None:
                        yield drawn
                under_way = now
                try:
                    raise_deferred()
                except BaseException as error:  # first read the calls in progress
                    interrupt, call = error, None
        if interrupt is not None:
            raise interrupt

    def _stack(self) -> "DeviceChains":
        """Stack all chains' starts along a leading chain axis, on the device."""
        kernel = self.kernel
        theta, states = [], []
        for chain, point in zip(self.chains, self.points, strict=True):
            theta.append(kernel.checked_theta(point))
            state = chain.state
            if state is None:
                state = kernel.initial_state(theta[-1], chain.init_rng)
            states.append([np.asarray(a) for name in self._loop.layout for a in state[name]])
        arguments = (
            self._loop,
            [*kernel.constants, *kernel.scaling],
            [np.stack(values) for values in zip(*theta, strict=True)],
            [np.stack(values) for values in zip(*states, strict=True)],
            [chain.noise for chain in self.chains],
        )
        from pymc_sgmcmc.run.devices import DeviceChains  # JAX is an extra

        return DeviceChains(*arguments)

    # ---- length of calls -------------------------------------------------------------------

    def _probe(self) -> None:
        """Estimate a call's length from the speed of one chain; `_pace` corrects it."""
        chain = Chain(self.kernel, np.random.default_rng(0), tune=0)
        chain.begin(self.points[0])
        theta, others = self.kernel.split(self.points[0])

        n = min(self.kernel.thin, FIRST_CALL)
        for _ in range(2):  # the first may compile
            began = time.perf_counter()
            float(chain.run(theta, others, n)[0].checksum)
            seconds = time.perf_counter() - began
        self._choose(seconds * self._stacked.slowdown / n)

    def _choose(self, seconds: float) -> None:
        """Choose the length of calls from the seconds per update of all chains."""
        thin = self.kernel.thin
        most = most_updates(self.chains, BYTES_PER_CALL)
        if seconds * thin > MAX_SECONDS_PER_CALL or most < thin:
            self._updates_a_call = _power_of_two(min(MAX_SECONDS_PER_CALL / seconds, most))
            self._room = self._draws_a_call = 1
            return
        self._updates_a_call = thin
        self._draws_a_call = max(1, int(SECONDS_PER_CALL / (seconds * thin)))
        n_bytes = sum(np.asarray(p).nbytes for p in self.points[0].values())
        n_bytes += thin * bytes_per_update(self.kernel.source)
        most = max(1, BYTES_PER_CALL // (n_bytes * len(self.chains)))
        self._room = min(
            self.most_draws_a_call,
            _power_of_two(most),
            2 * _power_of_two(self._draws_a_call),
            2 * _power_of_two(self.total - self.n_done),
        )
        self._draws_a_call = min(self._draws_a_call, self._room)

    def _is_new(self, call: Call) -> bool:
        """Whether a call was the first of its shape, so that it may have been compiled."""
        shape = call.room, call.n_updates
        is_new = shape not in self._shapes_run
        self._shapes_run.add(shape)
        return is_new

    def _pace(self, call: Call, seconds: float, exact: bool) -> None:
        """Correct the length of calls by a call's time or (not ``exact``) an upper bound of it."""
        thin = self.kernel.thin
        seconds /= call.n * call.n_updates
        is_part = self._updates_a_call < thin
        target = MAX_SECONDS_PER_CALL if is_part else SECONDS_PER_CALL
        affordable = target / seconds
        if not exact and affordable < self._updates_a_call * self._draws_a_call:
            return  # the reader of the draws was slow
        if is_part:
            if not 1 / 2.5 < affordable / self._updates_a_call < 8:  # each length is compiled
                self._choose(seconds)
        elif thin > 4 * affordable or affordable > 16 * self._room * thin:
            self._choose(seconds)
        else:
            self._draws_a_call = min(self._room, max(1, int(affordable / thin)))

    def _plan(self, first: int, done: int) -> Call | None:
        """Prepare the next call; its batches are drawn while the device computes."""
        thin = self.kernel.thin
        if first == self.total:
            return None
        phase_end = self.tune if first < self.tune else self.total
        if done == 0 and self._updates_a_call == thin:
            n, room, n_updates = min(self._draws_a_call, phase_end - first), self._room, thin
        else:
            n, room, n_updates = 1, 1, min(self._updates_a_call, thin - done)
        h = self.kernel.step_sizes(first * thin + done, n * n_updates)
        h = h.astype(pytensor.config.floatX).reshape(n, n_updates, *h.shape[1:])
        batches = self._helper.submit(self._batches.take, self._threads, n, room, n_updates)
        return Call(first, done, n, room, n_updates, h, batches)

    def _after(self, call: Call) -> tuple[int, int]:
        """Return the draw, and the update within it, at which the next call begins."""
        done = call.done + call.n_updates
        return (call.first + call.n, 0) if done == self.kernel.thin else (call.first, done)

    # ---- results of calls ------------------------------------------------------------------

    def _read(
        self, call, pieces, carry, batch_states, dispatched: float, is_new: bool
    ) -> Drawn | None:
        """Wait for a call, and return its draws, or None if it did not finish a draw.

        ``is_new``: the next call was compiled in the meantime, so this one cannot be timed.
        """
        waited = not self._stacked.is_ready(pieces)
        small = self._stacked.fetch(pieces._replace(theta=[]))
        ready = time.perf_counter()
        since = max(dispatched, self._last_ready)
        self._pace(call, ready - since, exact=waited and not is_new)
        self._last_ready = ready
        self._per_update.append([np.asarray(v[: call.n], dtype=float) for v in small.per_update])
        if self._after(call)[1] != 0:
            return None
        nonfinite = small.variable[: call.n].T >= 0

        def unless_nonfinite(values):
            return np.where(nonfinite, np.nan, values.T)

        kernel, calls = self.kernel, zip(*self._per_update, strict=True)
        self._per_update = []
        final = zip(kernel.algorithm.statistics, small.diagnostics, strict=True)
        means = zip(kernel.averaged, calls, strict=True)
        known = {name: _mean(np.concatenate(values, axis=2)) for name, values in means}
        known |= {name: np.asarray(values[: call.n], dtype=float) for name, values in final}
        known = {name: unless_nonfinite(values) for name, values in known.items()}
        shown = {name: known[name] for name in kernel.statistics}
        warnings, failures = _warnings_of(self.chains, call.first, small, shown, nonfinite)
        updates = (call.first + 1 + np.arange(call.n)) * self.kernel.thin
        like = np.ones_like(nonfinite, dtype=float)
        last_h = call.h[:, -1].astype(float).reshape(call.n, -1).T
        stats = {
            **{name: h * like for name, h in zip(self._step_size_names, last_h, strict=True)},
            **shown,
            "potential": unless_nonfinite(np.asarray(small.potential[: call.n], dtype=float)),
            "gradient_norm": known["gradient_norm"],
            "nonfinite": nonfinite,
            "n_updates": np.broadcast_to(updates, nonfinite.shape),
            "warning": warnings,
        }
        return Drawn(call.first, call.n, pieces.theta, stats, failures, carry, batch_states)


def _warnings_of(
    chains: list[Chain],
    first_draw: int,
    small: "Piece",
    shown: dict[str, np.ndarray],
    nonfinite: np.ndarray,
) -> tuple[np.ndarray, dict[int, SamplerWarning]]:
    """Return the warnings of chains, by chain and draw, and those about failures, by chain.

    ``small`` is a call's `Piece` on the host; ``shown`` and ``nonfinite`` have shape (chains,
    draws).
    """
    kernel = chains[0].kernel
    thin, burnt_in = kernel.thin, chains[0].burnt_in
    warnings = np.full(nonfinite.shape, None, dtype=object)
    i = burnt_in // thin - 1 - first_draw
    if 0 <= i < nonfinite.shape[1]:
        for c in np.flatnonzero(~nonfinite[:, i]):
            last = {name: float(values[c, i]) for name, values in shown.items()}
            warnings[c, i] = chains[c].order_warning() or chains[c].burn_in_warning(last)
        shorten(warnings[:, i])
    order_warnings = np.array([chain.order_warning() for chain in chains], dtype=object)
    shorten(order_warnings)
    for c in np.flatnonzero(order_warnings):
        warnings[c, 0] = order_warnings[c]
    failures = np.full(len(chains), None, dtype=object)
    for c in np.flatnonzero(nonfinite.any(axis=1)):
        i = int(np.argmax(nonfinite[c]))
        first, at = (first_draw + i) * thin, int(small.update[i, c])
        h = kernel.step_sizes(first, thin)[at]
        failures[c] = chains[c].failure(int(small.variable[i, c]), first + at, h)
    failed = {int(c): failures[c] for c in np.flatnonzero(failures)}
    shorten(failures)
    for c in np.flatnonzero(failures):
        warnings[c, int(np.argmax(nonfinite[c]))] = failures[c]
    return warnings, failed


def _mean(values: np.ndarray) -> np.ndarray:
    """Average over the last axis, adding in order: the order of `sum` depends on the shape."""
    return np.cumsum(values, axis=-1)[..., -1] / values.shape[-1]


def _power_of_two(number: float) -> int:
    """Return the largest power of two up to a number, at least 1."""
    return 1 << max(0, int(number).bit_length() - 1)
