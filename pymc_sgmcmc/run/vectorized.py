"""All chains of a run together: one compiled call advances every chain by many updates.

Each chain has the batches, noise and start that it would have alone, and its update is the same
compiled function: mapped over a leading chain axis on JAX (`devices.py`), called by a thread for
each chain on numba (`threads.py`).
"""

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytensor
from pymc.blocking import PointType
from pymc.stats.convergence import SamplerWarning
from pymc.util import random_generator_from_state
from pytensor.link.basic import JITLinker

from pymc_sgmcmc.chain import Chain, SGMCMCState
from pymc_sgmcmc.gradients.start_check import BadStart
from pymc_sgmcmc.pacing import FIRST_CALL
from pymc_sgmcmc.run.chain_batches import Feeder, bytes_per_update, most_updates
from pymc_sgmcmc.run.run import Block, Event, Run, Stopped, reason_to_stop
from pymc_sgmcmc.run.runner import run_and_keep
from pymc_sgmcmc.run.saved_state import from_plain, to_plain
from pymc_sgmcmc.run.threads import ThreadChains
from pymc_sgmcmc.step import SGMCMCStep

SECONDS_PER_CALL = 0.2
"""Target length of a call of whole draws."""
SECONDS_AT_MOST = 0.5
"""A draw that takes at most this long is one call; longer draws are split into calls of about this
length, each of which copies its results. Two calls may be in progress, and Ctrl-C should take
effect within a second."""
BYTES_PER_CALL = 2**26
"""Largest memory of a call's draws and row indices, unless a single draw needs more."""
MOST_WARNINGS = 4
"""If more chains than this stop at once, they share one message."""


class Call(NamedTuple):
    """The task of one compiled call: ``n`` whole draws, or a part of one."""

    first: int
    """Number of the first draw, tuning included."""
    done: int
    """Updates of that draw that earlier calls make."""
    n: int
    room: int
    """How many the arrays are made for: a number that seldom changes, for each is compiled."""
    n_updates: int
    """Of each draw, in this call."""
    h: np.ndarray
    """Step sizes, shape (n, n_updates)."""
    feed: Future
    """Batches of all chains, a `Feed`."""


@dataclass
class Drawn:
    """Consecutive draws of all chains, all of them from tuning or none."""

    first: int
    n: int
    theta: list[Any]
    """One array a variable with leading axes (room, chains), filled for the first ``n``."""
    stats: dict[str, np.ndarray]
    """Shapes (chains, n)."""
    carry: Any
    batch_states: list[list[dict[str, Any]]]
    """Of each chain, after the last of these draws."""
    failures: dict[int, SamplerWarning]
    """What became non-finite, by chain, at the chain's first non-finite draw."""


class VectorizedChains:
    """Chains of one step, advanced together.

    Parameters
    ----------
    step : SGMCMCStep
        Of all free variables of the model.
    starts : list of dict
        Where each chain starts.
    rngs : list of numpy.random.Generator
        What each chain's `setup_chain` would be given; they are advanced.
    tune, draws : int
        Draws of tuning and after it.

    Raises
    ------
    ValueError
        If the chains of this step cannot be advanced together.
    """

    def __init__(
        self,
        step: SGMCMCStep,
        starts: Sequence[PointType],
        rngs: Sequence[np.random.Generator],
        tune: int,
        draws: int,
    ):
        check_step(step)
        self.tune = tune
        self.total = tune + draws
        self.n_done = 0
        self.points = [dict(start) for start in starts]
        self.kernel = step.kernel
        self.kernel.load_data()
        self.chains = [Chain(self.kernel, rng, tune) for rng in rngs]
        self.chains[0].begin(self.points[0])  # compiles, where this process has not
        self._loop: Any = self.kernel.loop
        self._step_size_names = step.step_size_names
        self._feeder = Feeder(self.chains)
        self.most_draws_a_call = BYTES_PER_CALL
        self._room = self._draws_a_call = self._updates_a_call = 1
        self._shapes_run: set[tuple[int, int]] = set()
        self._last_ready = 0.0
        self._per_update: list[list[np.ndarray]] = []
        self._helper: Executor
        self._threads: Executor

    def restore(
        self, n_done: int, points: Sequence[PointType], states: Sequence[SGMCMCState]
    ) -> None:
        """Continue after ``n_done`` draws, tuning included, from what `saved` returned."""
        self.n_done = n_done
        self.points = [dict(point) for point in points]
        for chain, state in zip(self.chains, states, strict=True):
            chain.sampling_state = state

    def saved(self, drawn: Drawn) -> tuple[list[PointType], list[SGMCMCState]]:
        """Points and states of the chains as they were after some draws."""
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
        """Advance all chains to the end; while a call runs, the draws of the last are read."""
        self._stacked = self._stack()
        self._probe()
        planned, under_way = (self.n_done, 0), None
        with ThreadPoolExecutor(1) as helper, ThreadPoolExecutor() as threads:
            self._threads, self._helper = threads, helper
            call = self._plan(*planned)
            while call is not None or under_way is not None:
                now = None
                if call is not None:
                    fed = call.feed.result()
                    # Any positive numbers fill the rest: it is not run.
                    h = np.concatenate([call.h, np.repeat(call.h[-1:], call.room - call.n, axis=0)])
                    began = time.perf_counter()
                    pieces = self._stacked.advance(call.n, call.done, h, fed.rows, fed.blocks)
                    # JAX has compiled, where it had to, and computes from now on.
                    dispatched = time.perf_counter()
                    if not self._stacked.asynchronous:
                        self._pace(call, dispatched - began, exact=True)
                    now = call, pieces, self._stacked.carry, fed.states, dispatched
                    call = self._plan(*self._after(call))
                if under_way is not None:
                    drawn = self._read(*under_way, is_new=now is not None and self._is_new(now[0]))
                    if drawn is not None:
                        yield drawn
                under_way = now

    def _stack(self) -> Any:
        """All chains' starts with a leading chain axis, where they will be advanced."""
        kernel = self.kernel
        theta, states = [], []
        for chain, point in zip(self.chains, self.points, strict=True):
            theta.append(kernel.split(point)[0])
            for var, value, shape in zip(chain.vars, theta[-1], kernel.source.shapes, strict=True):
                if value.shape != shape:
                    raise ValueError(
                        f"A chain's start of '{var.name}' has the shape {value.shape}, the step's "
                        f"is {shape}."
                    )
            state = chain.state
            if state is None:
                state = kernel.initial_state(theta[-1], chain.init_rng)
            states.append([np.asarray(a) for name in self._loop.layout for a in state[name]])
        kind: Any = ThreadChains
        if kernel.backend.is_jax:
            from pymc_sgmcmc.run.devices import DeviceChains  # JAX is an extra

            kind = DeviceChains
        return kind(
            self._loop,
            kernel.constants,
            [np.stack(values) for values in zip(*theta, strict=True)],
            [np.stack(values) for values in zip(*states, strict=True)],
            [chain.noise for chain in self.chains],
        )

    # ---- how much at once ------------------------------------------------------------------

    def _probe(self) -> None:
        """Estimate a call's length from one chain's speed; `_pace` corrects it."""
        chain = Chain(self.kernel, np.random.default_rng(0), tune=0)
        chain.begin(self.points[0])
        theta, others = self.kernel.split(self.points[0])
        n = min(self.kernel.thin, FIRST_CALL)
        for _ in range(2):  # the first may compile
            began = time.perf_counter()
            float(chain.run(theta, others, n)[0].checksum)
            seconds = (time.perf_counter() - began) / n
        self._choose(seconds * self._stacked.slowdown)

    def _choose(self, seconds: float) -> None:
        """Choose the calls' length from the seconds that an update of all chains takes."""
        thin = self.kernel.thin
        most = most_updates(self.chains, BYTES_PER_CALL)
        if seconds * thin > SECONDS_AT_MOST or most < thin:
            self._updates_a_call = _power_of_two(min(SECONDS_AT_MOST / seconds, most))
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
        """Correct the calls' length by what a call took, or (not ``exact``) took at most."""
        thin = self.kernel.thin
        seconds /= call.n * call.n_updates
        is_part = self._updates_a_call < thin
        affordable = (SECONDS_AT_MOST if is_part else SECONDS_PER_CALL) / seconds
        if not exact and affordable < self._updates_a_call * self._draws_a_call:
            return  # whoever reads the draws was slow
        if is_part:
            if not 1 / 2.5 < affordable / self._updates_a_call < 8:
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
        fed = self._helper.submit(self._feeder.feed, self._threads, n, room, n_updates)
        return Call(first, done, n, room, n_updates, h, fed)

    def _after(self, call: Call) -> tuple[int, int]:
        """Where the call after this one begins."""
        done = call.done + call.n_updates
        return (call.first + call.n, 0) if done == self.kernel.thin else (call.first, done)

    # ---- what a call gave ------------------------------------------------------------------

    def _read(
        self, call, pieces, carry, batch_states, dispatched: float, is_new: bool
    ) -> Drawn | None:
        """Wait for a call; None if it did not finish a draw.

        ``is_new`` tells that the call after it was compiled meanwhile, so that it cannot be timed.
        """
        waited = not self._stacked.is_ready(pieces)
        small = self._stacked.fetch(pieces._replace(theta=[]))
        ready = time.perf_counter()
        if self._stacked.asynchronous:
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
        warnings, failures = self._warnings(call, small, shown, nonfinite)
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
        return Drawn(call.first, call.n, pieces.theta, stats, carry, batch_states, failures)

    def _warnings(
        self, call, small, shown, nonfinite
    ) -> tuple[np.ndarray, dict[int, SamplerWarning]]:
        """The chains' own warnings, each at its chain and draw; all those of failures by chain."""
        thin, burnt_in = self.kernel.thin, self.chains[0].burnt_in
        warnings = np.full(nonfinite.shape, None, dtype=object)
        i = burnt_in // thin - 1 - call.first
        if 0 <= i < call.n:
            for c in np.flatnonzero(~nonfinite[:, i]):
                last = {name: float(values[c, i]) for name, values in shown.items()}
                warnings[c, i] = self.chains[c].complaint() or self.chains[c].caution(last)
            _shorten(warnings[:, i])
        complaints = np.array([chain.complaint() for chain in self.chains], dtype=object)
        _shorten(complaints)
        for c in np.flatnonzero(complaints):
            warnings[c, 0] = complaints[c]
        failures = np.full(len(self.chains), None, dtype=object)
        for c in np.flatnonzero(nonfinite.any(axis=1)):
            i = int(np.argmax(nonfinite[c]))
            first, at = (call.first + i) * thin, int(small.update[i, c])
            h = self.kernel.step_sizes(first, thin)[at]
            failures[c] = self.chains[c].failure(int(small.variable[i, c]), first + at, h)
        failed = {int(c): failures[c] for c in np.flatnonzero(failures)}
        _shorten(failures)
        for c in np.flatnonzero(failures):
            warnings[c, int(np.argmax(nonfinite[c]))] = failures[c]
        return warnings, failed


class VectorizedRunner:
    """All chains of a run, for `sample`."""

    def __init__(self, run: Run):
        self.run = run
        self.chains = range(run.n_chains)
        rngs = [random_generator_from_state(state) for state in run.rngs]
        self._vectorized = VectorizedChains(run.step, run.starts, rngs, run.tune, run.draws)
        if run.each_draw:
            self._vectorized.most_draws_a_call = 1
        self._drawn: Drawn | None = None
        self._restored: dict[str, Any] = {}
        self._stopped: dict[int, tuple[int, str]] = {}
        """Draws that a chain has made, tuning included, and why it made no more."""

    def blocks(self) -> Iterator[Block | Stopped]:
        yield from self._stops(self._stopped)
        for drawn in self._vectorized.run():
            self._drawn = drawn
            failed = [c for c in drawn.failures if c not in self._stopped]
            for c in failed:
                self._stopped[c] = self._end(drawn, c)
            yield self._block(drawn)
            yield from self._stops(failed)
            if len(self._stopped) == len(self.chains):
                return

    def _end(self, drawn: Drawn, chain: int) -> tuple[int, str]:
        """After how many draws a chain ends, and what the user is told."""
        n_draws = drawn.first + int(np.argmax(drawn.stats["nonfinite"][chain]))
        if n_draws == 0:
            try:
                self._vectorized.chains[chain].check_start(self.run.starts[chain])
            except BadStart as error:
                return 0, f"Chain {chain} stopped at once. {error}"
        failure = drawn.failures[chain].extra
        return n_draws, reason_to_stop(self.run, chain, n_draws, failure)

    def _stops(self, chains: Iterable[int]) -> Iterator[Stopped]:
        """Events of chains that have stopped; where they are many, the first speaks for all."""
        chains = list(chains)
        for k, c in enumerate(chains):
            message = self._stopped[c][1]
            if len(chains) > MOST_WARNINGS:
                others = f"{len(chains) - 1} other chains"
                message = f"{message} ({others} stopped for such a reason too.)" if k == 0 else ""
            yield Stopped(c, message)

    def state(self) -> dict[str, Any]:
        """Of each chain, what a runner of that chain alone would say."""
        if self._drawn is None:
            return self._restored
        points, states = self._vectorized.saved(self._drawn)
        return {
            "stopped": [[c, n, message] for c, (n, message) in self._stopped.items()],
            "chains": [
                {"point": point, "step": to_plain(state, "step")}
                for point, state in zip(points, states, strict=True)
            ],
        }

    def restore(self, n_draws: int, state: dict[str, Any]) -> None:
        self._restored = state
        self._stopped = {c: (n, message) for c, n, message in state["stopped"]}
        names = list(self.run.starts[0])
        like = self.run.step.sampling_state
        self._vectorized.restore(
            n_draws,
            [{name: one["point"][name] for name in names} for one in state["chains"]],
            [from_plain(one["step"], like) for one in state["chains"]],
        )

    def _block(self, drawn: Drawn) -> Block:
        run = self.run
        values, points = {}, None
        if run.each_draw or run.keep_warmup or drawn.first >= run.tune:
            fetched = self._vectorized.fetch(drawn.theta)
            theta = {
                var.name: np.ascontiguousarray(draws[: drawn.n].swapaxes(0, 1))
                for var, draws in zip(run.step.vars, fetched, strict=True)
            }
            shape = len(self.chains), drawn.n
            flat = {name: t.reshape(-1, *t.shape[2:]) for name, t in theta.items()}
            values = {name: v.reshape(*shape, *v.shape[1:]) for name, v in run.record(flat).items()}
            if run.each_draw:
                names = list(run.starts[0])
                points = [
                    [{name: theta[name][c, i] for name in names} for i in range(drawn.n)]
                    for c in self.chains
                ]
        block = Block(self.chains, drawn.first, drawn.n, values, [drawn.stats], points)
        if self._stopped:
            ends = [self._stopped.get(c, (run.total,))[0] - drawn.first for c in self.chains]
            block.end_early([min(max(end, 0), drawn.n) for end in ends])
        return block


def vectorized(run: Run) -> Generator[Event]:
    """Engine: all chains in one compiled call, in this process."""
    yield from run_and_keep(VectorizedRunner(run), run)


def check_step(step: Any) -> None:
    """Raise an error for a step whose chains cannot be advanced together, with the remedy."""
    remedy = "Use chain_method='parallel' or 'sequential'"
    if not isinstance(step, SGMCMCStep):
        raise ValueError(
            f"chain_method='vectorized' needs one minibatch step for all variables, not {step!r}. "
            f"{remedy}."
        )
    others = [v for v in step.model.value_vars if v not in step.vars]
    if others:
        names = ", ".join(f"'{v.name}'" for v in others)
        raise ValueError(
            f"chain_method='vectorized' needs one step for all variables, but {step!r} leaves out "
            f"{names}. {remedy}."
        )
    if not isinstance(step.kernel.mode.linker, JITLinker):
        raise ValueError(
            "chain_method='vectorized' needs a step compiled for JAX or numba: pass "
            f"compile_kwargs={{'mode': 'JAX'}} to {type(step).__name__}. {remedy}."
        )


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over the last axis: one number after the other, for `sum` chooses by the shape."""
    return np.cumsum(values, axis=-1)[..., -1] / values.shape[-1]


def _power_of_two(number: float) -> int:
    """The largest power of two up to a number, at least 1."""
    return 1 << max(0, int(number).bit_length() - 1)


def _shorten(warnings: np.ndarray) -> None:
    """Keep one warning for all if many chains have the same one."""
    told = np.flatnonzero(warnings)
    if len(told) > MOST_WARNINGS:
        first = warnings[told[0]]
        message = f"{first.message} (The same in {len(told)} of {len(warnings)} chains.)"
        warnings[told] = None
        warnings[told[0]] = replace(first, message=message)
