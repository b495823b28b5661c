"""PyMC's step: seeds, points, statistics and saved state. It knows no equation."""

import os
import time
from collections.abc import Sequence
from dataclasses import field, fields
from itertools import chain
from math import fsum, isfinite
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytensor
from pymc.blocking import PointType, StatsType
from pymc.model import Model, modelcontext
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import RandomGenerator, get_random_generator
from pytensor.compile.mode import get_mode
from rich.progress import TextColumn
from rich.table import Column

from pymc_sgmcmc.algorithm import Algorithm
from pymc_sgmcmc.backends.backend import backend_of
from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.gradients.batches import Batches
from pymc_sgmcmc.gradients.source import check_batch_size, gradient_source, warn_of_cut_integers
from pymc_sgmcmc.gradients.start_check import BadStart, check_start
from pymc_sgmcmc.latents.gradient import latent_gradient_source
from pymc_sgmcmc.latents.joint import Latents, without_latents
from pymc_sgmcmc.loop import Loop, Outcome
from pymc_sgmcmc.schedules import Constant, StepSize, as_schedule, step_sizes
from pymc_sgmcmc.step_signature import describe
from pymc_sgmcmc.streaming.batches import StreamedBatches
from pymc_sgmcmc.streaming.sources import StreamedData
from pymc_sgmcmc.variables import continuous, counterparts

FIRST_CALL = 100
"""Updates in the first compiled call, after which their speed is known."""
SECONDS_PER_CALL = 0.5
"""A call is kept to about this long, so that Ctrl-C is heard soon."""
BURNT_IN = 50
"""Draws, or those of tuning if more, after which a chain's state is judged."""


@dataclass_state
class SGMCMCState(StepMethodState):
    """All that the next draws depend on, besides the point: plain arrays and numbers."""

    thin: int = field(metadata={"frozen": True})
    n_updates: int
    sampler_state: dict[str, list[np.ndarray]] | None
    batch_states: list[dict[str, Any]] | None
    noise_state: dict[str, Any] | None
    init_rng_state: dict[str, Any] | None
    warned: bool


class Group(NamedTuple):
    """Variables that one sampler of a `Groups` step moves, made by the sampler's ``on``."""

    sampler: "type[SGMCMCStep]"
    vars: Any
    step_size: StepSize
    hyperparameters: dict[str, Any]


class SGMCMCStep(BlockedStep):
    """Base of all samplers: binds an `Algorithm` to a model as a step of `pm.sample`.

    A subclass gives `name` and `algorithm_class`; the fields of the latter become keyword
    arguments. In its docstring ``{common}`` stands for the parameters that all samplers share,
    ``{batches}`` for those that are about batches and draws, ``{raises}`` for the errors.
    """

    algorithm_class: ClassVar[type[Algorithm]]
    step_size_names: tuple[str, ...] = ("step_size",)
    """Names of the statistics that hold an update's step sizes."""
    default_blocked = True
    default_tune_steps = 500
    _state_class = SGMCMCState

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.stats_dtypes_shapes = _statistics(cls.algorithm_class.statistics, cls.step_size_names)
        describe(cls, SGMCMCStep.__init__)

    def __init__(
        self,
        vars=None,
        *,
        step_size: StepSize,
        batch_size: int | None = None,
        minibatch_dim: str | None = None,
        latents: Latents | None = None,
        thin: int = 1,
        replacement: bool = False,
        self_check: bool = True,
        data: Any = None,
        model: Model | None = None,
        rng: RandomGenerator = None,
        initial_point: PointType | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
        **hyperparameters,
    ):
        self.schedule = as_schedule(step_size)
        if not isinstance(thin, int | np.integer) or thin < 1:
            raise ValueError(
                f"thin={thin!r} must be a whole number of updates a draw, at least 1: pass thin=1 "
                "to keep every update."
            )
        self.thin = int(thin)
        self.batch_size = batch_size
        self.replacement = replacement
        self.latents = latents
        self.blocked = blocked
        self.rng = get_random_generator(rng)
        self._compile_kwargs = dict(compile_kwargs or {})
        model = modelcontext(model)
        self.model = model if latents is None else without_latents(model, latents.vars)
        self.vars = continuous(self.model, counterparts(model, self.model, vars))
        self.algorithm = self.bind(self.model, self.vars, hyperparameters)
        options: dict[str, Any] = {
            "batch_size": batch_size,
            "minibatch_dim": minibatch_dim,
            "self_check": self_check,
        }
        if data is not None:
            options["data"] = StreamedData.of(data)
        if latents is None:
            self.source = gradient_source(model, self.vars, **options)
        else:
            self.source = latent_gradient_source(model, self.model, self.vars, latents, **options)
        self._moved, self._held = (
            [(v.name, np.dtype(v.dtype)) for v in vars] for vars in (self.vars, self.source.others)
        )
        for array, _ in self.source.data:
            warn_of_cut_integers(array)
        self.statistics = (*self.algorithm.statistics, *self.source.statistics)
        self.stats_dtypes_shapes = _statistics(self.statistics, self.step_size_names)
        self.stats_dtypes = [{name: dtype for name, (dtype, _) in self.stats_dtypes_shapes.items()}]
        self._process = os.getpid()
        self._loop: Loop | None = None
        start = dict(self.model.initial_point() if initial_point is None else initial_point)
        self.setup_chain(self.rng, tune=0, draws=0)
        check_start(self.model, self.source, start)
        self._try_out(start)

    @classmethod
    def on(cls, vars, *, step_size: StepSize, **hyperparameters) -> Group:
        """Name the variables that this sampler moves in a step of several samplers, `Groups`.

        Parameters
        ----------
        vars : list of variables
            Random or value variables of the model.
        step_size : float, schedule or callable
            As for the class.
        **hyperparameters
            The sampler's own; what is about batches and draws goes to `Groups`.

        Returns
        -------
        Group
            For the list that `Groups` takes, which checks it.

        Examples
        --------
        >>> import pymc as pm, pymc_sgmcmc as sgm
        >>> with pm.Model():
        ...     w = pm.Normal("w")
        >>> sgm.SGHMC_S.on([w], step_size=0.01, friction=5.0).hyperparameters
        {'friction': 5.0}
        """
        return Group(cls, vars, step_size, hyperparameters)

    @classmethod
    def bind(cls, model: Model, vars: list, hyperparameters: dict[str, Any]) -> Algorithm:
        """Make the algorithm for these value variables of a model.

        A sampler that needs something of the model overrides it (`SGRLD`).

        Parameters
        ----------
        model : pymc.Model
            The model that is sampled, without latent variables.
        vars : list of value variables
            Those to move, all continuous.
        hyperparameters : dict
            The sampler's own arguments, by name.

        Returns
        -------
        Algorithm
            An instance of ``algorithm_class``.

        Raises
        ------
        TypeError
            For an argument that ``algorithm_class`` does not have.
        ValueError
            For a hyperparameter out of its range.
        """
        own = [f.name for f in fields(cls.algorithm_class)]
        for name in hyperparameters.keys() - set(own):
            raise TypeError(
                f"{cls.__name__} has no argument '{name}'. Its own are: "
                f"{', '.join(own) or 'none'}; see help({cls.__name__}) for the shared ones."
            )
        return cls.algorithm_class(**hyperparameters)

    def __repr__(self):
        step_size = getattr(self.schedule, "value", self.schedule)
        settings: dict[str, Any] = {"step_size": step_size}
        settings |= {f.name: getattr(self.algorithm, f.name) for f in fields(self.algorithm)}
        settings |= {"batch_size": self.batch_size, "thin": self.thin}
        settings |= {} if self.latents is None else {"latents": self.latents}
        settings |= {"replacement": True} if self.replacement else {}
        shown = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        names = ", ".join(v.name for v in self.vars)
        where = "" if self.latents is None else " in its own step.model, without the latents"
        return f"{type(self).__name__}({shown}) of [{names}]{where}"

    @staticmethod
    def competence(var, has_grad):
        """Never chosen by itself: the step size is the user's to choose."""
        return Competence.INCOMPATIBLE

    # ---- one chain -------------------------------------------------------------------------

    def setup_chain(self, rng: RandomGenerator, tune: int, draws: int) -> None:
        """Begin a chain: fresh momentum, batches and noise from ``rng``, the data as it is now.

        Parameters
        ----------
        rng : int or numpy.random.Generator
            The chain's own.
        tune : int
            Draws of burn-in, which only warnings need to know.
        draws : int
            Draws after those; not used.

        Raises
        ------
        RuntimeError
            For a JAX step in a forked process.
        ValueError
            If the data no longer fits: too few rows for a batch, or a NaN.
        """
        super().setup_chain(rng, tune, draws)
        self._load_data()
        self._begin_streams(tune)

    def beside(self, rng: RandomGenerator, tune: int, draws: int) -> "SGMCMCStep":
        """Return a step at the start of another chain that shares the compiled loop and data."""
        other = object.__new__(type(self))  # `copy` would go by way of the pickled state
        other.__dict__.update(self.__dict__)
        super(SGMCMCStep, other).setup_chain(rng, tune, draws)
        other._begin_streams(tune)
        return other

    def _load_data(self) -> None:
        backend = backend_of(get_mode(self._compile_kwargs.get("mode")))
        if backend.is_jax and os.getpid() != self._process:
            raise RuntimeError(
                "A JAX step cannot go on in a forked process: JAX's threads do not survive a "
                "fork, and it would hang. Pass mp_ctx='forkserver' (or 'spawn'), or cores=1, to "
                "pm.sample."
            )
        self._backend = backend
        self.source.check_data()
        for rows in self.source.rows:
            check_batch_size(rows.batch_size, rows.n_rows)
        floatX = pytensor.config.floatX
        scales = [np.asarray(r.n_rows / r.batch_size, dtype=floatX) for r in self.source.rows]
        data = [array_value(array) for array, _ in self.source.data]
        self._constants = [backend.array(c) for c in [*scales, *data]]
        names = [array.name for array, _ in self.source.data]
        self._places = {name: k for k, name in enumerate(names, start=len(scales))}
        first = self.source.rows[0] if self.source.rows else None
        self._updates_per_epoch = first.n_rows / first.batch_size if first else 1.0

    def _begin_streams(self, tune: int) -> None:
        noise_rng, self._init_rng, *batch_rngs = self.rng.spawn(2 + len(self.source.rows))
        self._noise = self._backend.generator(noise_rng)
        self._batches: list[Batches | StreamedBatches] = [
            Batches(rows.n_rows, rows.batch_size, batch_rng, self.replacement)
            if rows.streamed is None
            else StreamedBatches(rows.streamed, rows.batch_size, batch_rng, self.replacement)
            for rows, batch_rng in zip(self.source.rows, batch_rngs, strict=True)
        ]
        streamed = [b.longest for b in self._batches if isinstance(b, StreamedBatches)]
        self._longest_call = min([self.thin, *streamed])
        self._state: dict[str, list] | None = None
        self.n_updates = 0
        self._last_step_sizes: tuple[np.ndarray, Any] = np.empty(0), None
        self.warned = False
        self._burnt_in = max(tune, BURNT_IN) * self.thin
        self._updates_per_call = min(self._longest_call, FIRST_CALL)
        self._lengths_run: set[int] = set()

    def _run(self, theta: list, others: list, n_updates: int) -> tuple[Outcome, np.ndarray]:
        """One compiled call."""
        h, typed_h = self._step_sizes_of_call(n_updates)
        rows, constants = self._batches_of_call(n_updates)
        assert self._loop is not None  # `_begin` has made it
        outcome = self._loop(
            typed_h,
            rows,
            theta,
            self._state,
            self._noise,
            [*constants, *others],
        )
        self._noise = outcome.rng
        return outcome, h

    def _step_sizes_of_call(self, n_updates: int) -> tuple[np.ndarray, Any]:
        """Step sizes as they are and as the loop takes them."""
        if isinstance(self.schedule, Constant) and len(self._last_step_sizes[0]) == n_updates:
            return self._last_step_sizes
        h = step_sizes(self.schedule, self.n_updates, n_updates, self._updates_per_epoch)
        self._last_step_sizes = h, self._backend.array(h.astype(pytensor.config.floatX))
        return self._last_step_sizes

    def _batches_of_call(self, n_updates: int) -> tuple[list, list]:
        """Row numbers and constants; of streamed data only the rows that the call needs."""
        rows, constants = [], list(self._constants)
        for batches in self._batches:
            if isinstance(batches, StreamedBatches):
                for name, block in batches.take(n_updates).items():
                    constants[self._places[name]] = block
                numbers = np.arange(n_updates * batches.batch_size).reshape(n_updates, -1)
            else:
                numbers = batches.take(n_updates)
            rows.append(numbers)
        return rows, constants

    def _begin(self, point: PointType) -> None:
        """Initial sampler state, and the compiled loop if this process has none yet."""
        if self._state is not None and self._loop is not None:
            return
        theta = [np.asarray(point[v.name], dtype=v.dtype) for v in self.vars]
        for var, value, shape in zip(self.vars, theta, self.source.shapes, strict=True):
            if value.shape != shape:
                raise ValueError(
                    f"'{var.name}' has the shape {value.shape} and had {shape} when the step was "
                    "made: new data changed it. Make a new step."
                )
        initial = self.algorithm.init(theta, self._init_rng) | self.source.init(self._init_rng)
        if self._loop is None:
            self._loop = Loop(self.source, self.algorithm, initial, self._compile_kwargs)
        if self._state is None:
            self._state = _map(self._backend.array, initial)

    def _try_out(self, point: PointType) -> None:
        """Compile, and refuse a start at which the gradient is not finite."""
        self._begin(point)
        theta, others = self._split(point)
        outcome, _ = self._run(theta, others, self._updates_per_call)
        bad = ~np.isfinite(np.asarray(outcome.squared_gradient)[0])
        if bad.any():
            names = ", ".join(f"'{v.name}'" for v, b in zip(self.vars, bad, strict=True) if b)
            values = {v.name: np.asarray(point[v.name]) for v in self.vars}
            raise BadStart(
                f"At the initial point the gradient of {names} is not finite: {values}. Give the "
                "variables an initval=, pass another initial_point=, or look for a zero "
                "probability."
            )

    def _split(self, point: PointType) -> tuple[list, list]:
        # JAX's compiled calls take NumPy arrays over ten times as fast as `jax.numpy` does.
        theta = [np.asarray(point[name], dtype) for name, dtype in self._moved]
        others = [np.asarray(point[name], dtype) for name, dtype in self._held]
        return theta, others

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Run ``thin`` updates from a point; one compiled call, or several of half a second.

        Parameters
        ----------
        point : dict of arrays
            By value variable; those that the step does not move are held.

        Returns
        -------
        point : dict of arrays
            A new one; the last finite one where an update was not finite.
        stats : list of dict
            One entry, the statistics of this draw, the warning among them.

        Raises
        ------
        ValueError
            If new data has changed a variable's shape, or the schedule gives a step size that is
            not positive.
        """
        self._begin(point)
        theta, others = self._split(point)
        potential, done = np.nan, 0
        norms: list[np.ndarray] = []
        diagnostics: list[Any] = [np.nan] * len(self.statistics)
        failure: tuple[int, int] | None = None
        while done < self.thin and failure is None:
            n = min(self.thin - done, self._updates_per_call)
            began = time.perf_counter()
            outcome, h = self._run(theta, others, n)
            finite = isfinite(np.asarray(outcome.checksum))  # waits for JAX
            self._pace(n, time.perf_counter() - began)
            if finite:
                theta, self._state = outcome.theta, outcome.state
                diagnostics = outcome.diagnostics
                potential = float(np.asarray(outcome.potential))
                # Kept apart: their mean must not depend on how updates are split into calls.
                norms.append(np.asarray(outcome.gradient_norms))
            else:
                if self.n_updates == 0:
                    check_start(self.model, self.source, point)
                failure = self._first_nonfinite(outcome)
            self.n_updates += n
            done += n
        # By way of NumPy: `float` of a scalar on JAX takes five times as long.
        values = map(float, map(np.asarray, diagnostics))
        shown = dict(zip(self.statistics, values, strict=True))
        stats = {
            **dict(zip(self.step_size_names, h[-1:].ravel().tolist(), strict=True)),
            **shown,
            "potential": potential if failure is None else np.nan,
            "gradient_norm": _exact_sum(norms) / self.thin if failure is None else np.nan,
            "nonfinite": failure is not None,
            "n_updates": self.n_updates,
            "warning": self._caution(shown) if failure is None else self._warn(*failure, h),
        }
        self.n_updates += self.thin - done  # a failed draw takes its share of the schedule too
        as_numpy = self._backend.as_numpy
        moved = {name: as_numpy(t) for (name, _), t in zip(self._moved, theta, strict=True)}
        return {**point, **moved}, [stats]

    def _pace(self, n_updates: int, seconds: float) -> None:
        """Choose the next call's length from this one's, unless this was the first so long."""
        if n_updates not in self._lengths_run:
            self._lengths_run.add(n_updates)  # it may have compiled: JAX does for each length
        elif seconds > SECONDS_PER_CALL or self._updates_per_call < self._longest_call:
            affordable = int(SECONDS_PER_CALL * n_updates / seconds)
            # A power of two, so that few lengths are ever compiled.
            affordable = 2 ** int(np.log2(max(affordable, 1)))
            self._updates_per_call = min(self._longest_call, affordable)

    def _first_nonfinite(self, outcome: Outcome) -> tuple[int, int]:
        """Position of the variable and of the update in the call, of the first non-finite value."""
        squared = np.asarray(outcome.squared_gradient)
        bad = ~np.isfinite(squared)
        if bad.any():
            at = int(np.argmax(bad.any(axis=1)))
            return int(np.argmax(bad[at])), at
        # the log posterior, which comes after the variables, if all of them are finite
        finite = [*(bool(np.isfinite(np.asarray(t)).all()) for t in outcome.theta), False]
        return int(np.argmin(finite)), len(squared) - 1

    def _complaint(self) -> SamplerWarning | None:
        """What is wrong with the order of streamed rows: told once a chain."""
        for batches in self._batches:
            if isinstance(batches, StreamedBatches) and (message := batches.complaint()):
                return SamplerWarning(WarningType.BAD_PARAMS, message, "warning")
        return None

    def _caution(self, diagnostics: dict[str, float]) -> SamplerWarning | None:
        """Once a chain: a bad order of streamed rows, and the algorithm's word after burn-in."""
        if (warning := self._complaint()) is not None:
            return warning
        if self.n_updates != self._burnt_in:
            return None
        n_elements = sum(int(np.prod(shape)) for shape in self.source.shapes)
        shuffled = bool(self._batches) and not self.replacement and self._updates_per_epoch > 1
        message = self.algorithm.caution(diagnostics, n_elements, shuffled)
        if message is None:
            return None
        message = f"{type(self).__name__}: {message}"
        return SamplerWarning(WarningType.BAD_PARAMS, message, "warning", step=self.n_updates)

    def _warn(self, culprit: int, at: int, h: np.ndarray) -> SamplerWarning | None:
        """Once a chain: PyMC logs it from the main process."""
        if self.warned:
            return None
        self.warned = True
        update = self.n_updates - len(h) + at
        h = self._step_sizes_of(culprit, h)
        variable = [*(v.name for v in self.vars), None][culprit]
        name = f"'{variable}'" if variable else "the log posterior"
        message = (
            f"{type(self).__name__}: {name} became non-finite at update {update} with step size "
            f"{h[at]:.4g}. The chain holds its last finite point and goes on from there; such "
            "draws are marked in the statistic 'nonfinite'. Try a smaller step_size or a larger "
            "batch_size, standardise the data, or look for data that the model holds to be "
            "impossible."
        )
        extra = {"variable": variable, "update": update, "step_size": float(h[at]), "name": name}
        return SamplerWarning(WarningType.BAD_PARAMS, message, "error", step=update, extra=extra)

    def _step_sizes_of(self, variable: int, h: np.ndarray) -> np.ndarray:
        """The step sizes with which a variable moved."""
        return h

    # ---- saved state -----------------------------------------------------------------------

    @property
    def sampler_state(self) -> dict[str, list[np.ndarray]] | None:
        """Momentum, thermostat, ...: None before the first draw."""
        return None if self._state is None else _map(np.array, self._state)

    @sampler_state.setter
    def sampler_state(self, state) -> None:
        self._state = None if state is None else _map(self._backend.array, state)

    @property
    def batch_states(self) -> list[dict[str, Any]]:
        """State of each stream of row numbers."""
        return [batches.state for batches in self._batches]

    @batch_states.setter
    def batch_states(self, states) -> None:
        for batches, state in zip(self._batches, states, strict=True):
            batches.state = state

    @property
    def noise_state(self) -> dict[str, Any]:
        """State of the generator inside the compiled updates."""
        return self._backend.generator_state(self._noise)

    @noise_state.setter
    def noise_state(self, state) -> None:
        self._noise = self._backend.restore_generator(state)

    @property
    def init_rng_state(self) -> dict[str, Any]:
        """State of the generator that draws the first momentum."""
        return self._init_rng.bit_generator.state

    @init_rng_state.setter
    def init_rng_state(self, state) -> None:
        self._init_rng.bit_generator.state = state

    def __getstate__(self):
        # Compiled code, arrays on a device and copies of the data stay behind: `setup_chain`
        # (or, in the middle of a chain, __setstate__) makes them again in the other process.
        left_out = (
            "_loop",
            "_constants",
            "_backend",
            "_noise",
            "_state",
            "_batches",
            "_last_step_sizes",
        )
        kept = {k: v for k, v in self.__dict__.items() if k not in left_out}
        return kept | {"saved_sampling_state": self.sampling_state}

    def __setstate__(self, state):
        state = dict(state)
        saved = state.pop("saved_sampling_state")
        self.__dict__.update(state)
        self._process = os.getpid()
        self._loop = None
        self.setup_chain(self.rng, tune=0, draws=0)
        self.sampling_state = saved

    # ---- progress bar ----------------------------------------------------------------------

    def _shown(self) -> dict[str, tuple[str, str]]:
        """Header and format of the statistics in the progress bar."""
        columns = {"step_size": ("Step size", ".3g")}
        if "kinetic_temperature" in self.statistics:
            columns["kinetic_temperature"] = ("Temperature", ".2f")
        return columns | {"gradient_norm": ("Gradient", ".3g")}

    def _progressbar_config(self, n_chains=1):
        columns = [
            TextColumn(f"{{task.fields[{key}]:{spec}}}", table_column=Column(header, ratio=1))
            for key, (header, spec) in self._shown().items()
        ]
        return columns, {key: [0.0] * n_chains for key in self._shown()}

    def _make_progressbar_update_functions(self):
        def update(stats):
            shown = {key: stats[key] for key in self._shown()}
            return shown | {"failing": stats["nonfinite"]}

        return (update,)


def _statistics(
    names: Sequence[str], step_sizes: Sequence[str]
) -> dict[str, tuple[type, list | None]]:
    """Types and shapes of a draw's statistics, the sampler's own ``names`` among them."""
    return {
        **{name: (np.float64, []) for name in [*step_sizes, *names]},
        "potential": (np.float64, []),
        "gradient_norm": (np.float64, []),
        "nonfinite": (bool, []),
        "n_updates": (np.int64, []),
        "warning": (SamplerWarning, None),
    }


def _exact_sum(arrays: Sequence[np.ndarray]) -> float:
    """Sum of all elements, rounded once."""
    return fsum(chain.from_iterable(array.tolist() for array in arrays))


def _map(function, state: dict[str, list]) -> dict[str, list]:
    return {name: [function(a) for a in arrays] for name, arrays in state.items()}
