"""One chain: its batches, noise and sampler state, and its updates."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from math import fsum
from typing import Any, NamedTuple

import numpy as np
import pytensor
from pymc.blocking import PointType
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import WithSamplingState, dataclass_state

from pymc_sgmcmc.backends.backend import naming_a_remedy
from pymc_sgmcmc.backends.interrupts import raise_deferred
from pymc_sgmcmc.batches.batch_stream import BatchStream
from pymc_sgmcmc.batches.prefetched import PrefetchedBatches
from pymc_sgmcmc.batches.repeated import RepeatedBatches
from pymc_sgmcmc.batches.shuffled import Batches
from pymc_sgmcmc.batches.streamed_batches import StreamedBatches
from pymc_sgmcmc.batches.touched import TouchedGroups
from pymc_sgmcmc.batches.whole_groups import GroupBatches
from pymc_sgmcmc.compiled_call_length import CallLength
from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.gradients.source import Rows
from pymc_sgmcmc.gradients.start_check import check_start, refuse_start
from pymc_sgmcmc.kernel import Kernel
from pymc_sgmcmc.loop import Outcome, failure_of
from pymc_sgmcmc.schedules import Constant, Schedule

BURNT_IN = 50
"""Number of draws after which a chain counts as burnt in, unless there are more tuning draws."""


@dataclass_state
class SGMCMCState(StepMethodState):
    """Everything that the next draws depend on, except the point: plain arrays and numbers."""

    thin: int = field(metadata={"frozen": True})
    n_updates: int
    sampler_state: dict[str, list[np.ndarray]] | None
    batch_states: list[dict[str, Any]] | None
    noise_state: dict[str, Any] | None
    init_rng_state: dict[str, Any] | None
    warned: bool


class Advance(NamedTuple):
    """The result of the updates of a draw."""

    moved: PointType
    """The sampled variables; their values before the draw if an update was not finite."""
    step_size: np.ndarray
    """Step size of the last update, or of the update that was not finite."""
    diagnostics: dict[str, float]
    potential: float
    gradient_norm: float
    nonfinite: bool
    n_updates: int
    """Number of updates of the chain so far."""
    warning: SamplerWarning | None


class Chain(WithSamplingState):
    """A chain: its streams of batches and noise, all spawned from ``rng``, and the sampler's state.

    ``tune`` is used only by warnings. With ``fetch_ahead`` a thread fetches rows of large tables
    ahead. An exception that ``check`` raises between the compiled calls of a draw abandons that
    draw.
    """

    # PyMC has no public name for this.
    _state_class = SGMCMCState

    def __init__(
        self,
        kernel: Kernel,
        rng: np.random.Generator,
        tune: int,
        fetch_ahead: bool = False,
        check: Callable[[], None] = raise_deferred,
    ):
        self.kernel, self._check = kernel, check
        self.vars = kernel.source.vars
        self.rng = rng
        noise_rng, self.init_rng, *batch_rngs = rng.spawn(2 + len(kernel.source.rows))
        self.noise = kernel.backend.generator(noise_rng)
        self.batches = [
            _batches(kernel, rows, batch_rng, fetch_ahead)
            for rows, batch_rng in zip(kernel.source.rows, batch_rngs, strict=True)
        ]
        whole = kernel.whole_groups
        row_weight = None if whole is None else whole.row_weight
        self.touched = [TouchedGroups(of_rows, row_weight) for of_rows in kernel.groups_of_rows]
        longest = [batches.longest for batches in self.batches]
        self.call_length = CallLength(min([kernel.thin, *longest]))
        self.state: dict[str, list] | None = None
        self.n_updates = 0
        self.burnt_in = max(tune, BURNT_IN) * kernel.thin
        self.warned = False
        self._last_step_sizes: tuple[Schedule | None, np.ndarray, Any] = None, np.empty(0), None

    # ---- updates ---------------------------------------------------------------------------

    def begin(self, point: PointType) -> None:
        """Draw the initial sampler state, and compile unless this process has done so."""
        kernel = self.kernel
        if self.state is not None and kernel.loop is not None:
            return
        theta = kernel.checked_theta(point)
        initial = kernel.initial_state(theta, self.init_rng)
        kernel.compile(initial, by_number=any(batches.by_number for batches in self.batches))
        if self.state is None:
            self.state = _map(kernel.backend.array, initial)

    def try_out(self, point: PointType) -> None:
        """Run the first updates, and raise `BadStart` if the gradient at the start is not finite.

        Operations that the backend does not support are also found here.
        """
        self.begin(point)
        theta, others = self.kernel.split(point)
        # With step sizes of 0 no update moves: all gradients are those at the start.
        h = np.zeros((self.call_length.n_updates, *self.kernel.algorithm.step_size_shape))
        with naming_a_remedy():
            outcome = self._run(theta, others, self._typed(h))
        each_bad = ~np.isfinite(np.asarray(outcome.squared_gradient))
        bad = each_bad[np.argmax(each_bad.any(axis=1))]  # in the first update that has any
        refuse_start(self.vars, bad, point, self._infinite_rows())

    def check_start(self, point: PointType) -> None:
        """Raise `BadStart` unless density and gradient are finite; this chain does not advance."""
        check_start(self.kernel.model, self.kernel.source, point)
        Chain(self.kernel, np.random.default_rng(0), tune=0).try_out(point)

    def draw(self, point: PointType) -> Advance:
        """Run the updates of a draw, in one compiled call or several of half a second.

        Raises `BadStart` if the chain's first call finds no finite density or gradient.
        """
        kernel, thin = self.kernel, self.kernel.thin
        self.begin(point)
        theta, others = kernel.split(point)
        before = theta, self.state
        done, per_update = 0, list[list[np.ndarray]]()
        failure: tuple[int, int] | None = None
        while done < thin and failure is None:
            if done > 0:
                self._check()  # abandons the draw, which may be a long one
            n = min(thin - done, self.call_length.n_updates)
            began = time.perf_counter()
            outcome, h = self.run(theta, others, n)
            failure = failure_of(outcome)
            self.call_length.took(n, time.perf_counter() - began)
            if failure is None:
                theta, self.state = outcome.theta, outcome.state
                per_update.append([np.asarray(values) for values in outcome.per_update])
            elif self.n_updates == 0:
                self.check_start(point)
            self.n_updates += n
            done += n
        n_updates = self.n_updates
        shown = dict.fromkeys([*kernel.averaged, *kernel.statistics, "potential"], np.nan)
        if failure is None:
            for name, *calls in zip(kernel.averaged, *per_update, strict=True):
                shown[name] = _exact_sum(calls) / thin
            final = zip(kernel.algorithm.statistics, outcome.diagnostics, strict=True)
            for name, value in (*final, ("potential", outcome.potential)):
                # Via NumPy: `float` of a JAX scalar takes five times as long.
                shown[name] = float(np.asarray(value))
            warning = self.order_warning()
            if warning is None and n_updates == self.burnt_in:
                warning = self.burn_in_warning({name: shown[name] for name in kernel.statistics})
        else:
            # The whole draw is undone, because which calls succeeded depends on their lengths.
            theta, self.state = before
            variable, at = failure
            n_updates, h = n_updates - len(h) + at, h[: at + 1]
            warning = self.failure(variable, n_updates, h[at])
        # A failed draw also counts for the schedule.
        n_updates = self.n_updates = self.n_updates + thin - done
        norm, potential = shown.pop("gradient_norm"), shown.pop("potential")
        moved = kernel.moved(theta)
        nonfinite = failure is not None
        return Advance(moved, h[-1], shown, potential, norm, nonfinite, n_updates, warning)

    def run(self, theta: list, others: list, n_updates: int) -> tuple[Outcome, np.ndarray]:
        """Run one compiled call; return its outcome and step sizes, and change nothing else."""
        h, typed_h = self._step_sizes_of_call(n_updates)
        return self._run(theta, others, typed_h), h

    def _run(self, theta: list, others: list, typed_h: Any) -> Outcome:
        rows, constants = self.batches_of_call(len(typed_h))
        loop = self.kernel.loop
        assert loop is not None  # made by `begin`
        outcome = loop(typed_h, rows, theta, self.state, self.noise, [*constants, *others])
        self.noise = outcome.rng
        return outcome

    def _typed(self, h: np.ndarray) -> Any:
        """Return the step sizes in the form that the loop takes."""
        return self.kernel.backend.array(h.astype(pytensor.config.floatX))

    def _step_sizes_of_call(self, n_updates: int) -> tuple[np.ndarray, Any]:
        """Return the step sizes of a call, plain and in the form that the loop takes."""
        kernel = self.kernel
        schedule, h, typed_h = self._last_step_sizes
        if isinstance(schedule, Constant) and schedule is kernel.schedule and len(h) == n_updates:
            return h, typed_h
        h = kernel.step_sizes(self.n_updates, n_updates)
        typed_h = self._typed(h)
        self._last_step_sizes = kernel.schedule, h, typed_h
        return h, typed_h

    def batches_of_call(self, n_updates: int) -> tuple[list, list]:
        """Return arrays that describe the batches, and constants including the fetched rows."""
        rows: list[np.ndarray] = []
        streamed: dict[str, np.ndarray] | None = None
        constants = list(self.kernel.constants)
        for batches in self.batches:
            taken = batches.take(n_updates)
            if isinstance(taken, np.ndarray):
                rows.append(taken)
                continue
            for data, block in taken.items():
                constants[self.kernel.places[data]] = block
            rows.append(np.arange(n_updates * batches.batch_size).reshape(n_updates, -1))
            streamed = taken
        if self.touched:
            rows += self.groups_of(rows[0], streamed)
        return rows, constants

    def groups_of(
        self, rows: np.ndarray, streamed: dict[str, np.ndarray] | None
    ) -> list[np.ndarray]:
        """Return groups, slots and weights for each index, and rows' weights for whole groups.

        ``streamed`` has the rows by container if they are not in memory.
        """
        whole, of_streamed = self.kernel.whole_groups, self.kernel.streamed_groups
        each: list = [None] * len(self.touched)
        if of_streamed is not None and streamed is not None:
            each = of_streamed(streamed)
        pairs = zip(self.touched, each, strict=True)
        found = [a for groups, group_of_row in pairs for a in groups.of(rows, group_of_row)]
        return found if whole is None else [*found, whole.weights(rows)]

    # ---- warnings --------------------------------------------------------------------------

    def order_warning(self) -> SamplerWarning | None:
        """Return a warning about the order of streamed rows, at most once per chain."""
        for batches in self.batches:
            if message := batches.order_warning():
                return SamplerWarning(WarningType.BAD_PARAMS, message, "warning")
        return None

    def burn_in_warning(self, diagnostics: dict[str, float]) -> SamplerWarning | None:
        """Return a warning about a chain that has just burnt in, if there is a reason."""
        kernel = self.kernel
        shuffled = bool(self.batches) and not kernel.replacement and kernel.updates_per_epoch > 1
        message = kernel.algorithm.burn_in_warning(diagnostics, kernel.n_elements, shuffled)
        message = message or kernel.source.burn_in_warning(diagnostics)
        if message is None:
            return None
        message = f"{kernel.name}: {message}"
        return SamplerWarning(WarningType.BAD_PARAMS, message, "warning", step=self.burnt_in)

    def _infinite_rows(self) -> str:
        """Return a hint about infinite values in streamed rows, if there are any."""
        infinite = [name for batches in self.batches for name in batches.infinite()]
        names = " and ".join(f"data['{name}']" for name in infinite)
        hint = f" (the rows just read of {names} have infinite values: drop or replace them)"
        return hint if names else ""

    def failure(self, variable: int, update: int, h: np.ndarray) -> SamplerWarning | None:
        """Return the warning about a non-finite update, once per chain.

        ``variable`` is an index, where the number of variables stands for the log posterior, and
        ``h`` is the step size.
        """
        if self.warned:
            return None
        self.warned = True
        kernel = self.kernel
        step_size = float(kernel.algorithm.step_size_of(variable, h))
        culprit = [*(v.name for v in self.vars), None][variable]
        name = f"'{culprit}'" if culprit else "the log posterior"
        name += self._infinite_rows()
        message = (
            f"{kernel.name}: {name} became non-finite at update {update} with step size "
            f"{step_size:.4g}. The draw is undone, and marked in the statistic 'nonfinite'. Try a "
            "smaller step_size or a larger batch_size, standardise the data, or look for data that "
            "are impossible under the model."
        )
        extra = {"variable": culprit, "update": update, "step_size": step_size, "name": name}
        return SamplerWarning(WarningType.BAD_PARAMS, message, "error", step=update, extra=extra)

    # ---- saved state: the fields of SGMCMCState --------------------------------------------

    @property
    def thin(self) -> int:
        """Number of updates per draw."""
        return self.kernel.thin

    @property
    def sampler_state(self) -> dict[str, list[np.ndarray]] | None:
        """Momentum, thermostat, ...: None before the first draw."""
        return None if self.state is None else _map(np.array, self.state)

    @sampler_state.setter
    def sampler_state(self, state) -> None:
        self.state = None if state is None else _map(self.kernel.backend.array, state)

    @property
    def batch_states(self) -> list[dict[str, Any]]:
        """State of each stream of row indices."""
        return [batches.state for batches in self.batches]

    @batch_states.setter
    def batch_states(self, states) -> None:
        for batches, state in zip(self.batches, states, strict=True):
            batches.state = state

    @property
    def noise_state(self) -> dict[str, Any]:
        """State of the generator inside the compiled updates."""
        return self.kernel.backend.generator_state(self.noise)

    @noise_state.setter
    def noise_state(self, state) -> None:
        self.noise = self.kernel.backend.restore_generator(state)

    @property
    def init_rng_state(self) -> dict[str, Any]:
        """State of the generator that draws the first momentum."""
        return dict(self.init_rng.bit_generator.state)

    @init_rng_state.setter
    def init_rng_state(self, state) -> None:
        self.init_rng.bit_generator.state = state


def _batches(
    kernel: Kernel, rows: Rows, rng: np.random.Generator, fetch_ahead: bool
) -> BatchStream:
    batches: BatchStream
    if rows.streamed is not None:
        data = [array_value(array) for array, _ in kernel.source.data]
        check = partial(kernel.index_check.of_streamed, data)
        batches = StreamedBatches(rows.streamed, rows.batch_size, rng, kernel.replacement, check)
    elif kernel.whole_groups is not None:
        batches = GroupBatches(kernel.whole_groups, rng, kernel.replacement)
    else:
        batches = Batches(rows.n_rows, rows.batch_size, rng, kernel.replacement, kernel.urn)
    if kernel.updates_per_batch > 1:
        return RepeatedBatches(batches, kernel.updates_per_batch)
    if not isinstance(batches, Batches):
        return batches
    tables = kernel.tables(rows) if fetch_ahead else {}
    return PrefetchedBatches(batches, tables) if tables else batches


def _exact_sum(arrays: Sequence[np.ndarray]) -> float:
    """Sum all elements, rounding only once."""
    return fsum(itertools.chain.from_iterable(array.tolist() for array in arrays))


def _map(function, state: dict[str, list]) -> dict[str, list]:
    return {name: [function(a) for a in arrays] for name, arrays in state.items()}
