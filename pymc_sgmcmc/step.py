"""PyMC's step: seeds, points, statistics and saved state. It contains no equations of a sampler."""

import logging
from collections.abc import Sequence
from copy import copy
from dataclasses import fields
from threading import Lock, get_ident
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pymc.blocking import PointType, StatsType
from pymc.model import Model, modelcontext
from pymc.stats.convergence import SamplerWarning
from pymc.step_methods.compound import BlockedStep, Competence, flatten_steps
from pymc.util import RandomGenerator, get_random_generator
from rich.progress import TextColumn
from rich.table import Column

from pymc_sgmcmc.adaptation.adapt import adapted, announce
from pymc_sgmcmc.adaptation.adapted_settings import Adapted, earlier_adaptation
from pymc_sgmcmc.adaptation.change_of_form import form_is_settled, take_equally_spaced_points
from pymc_sgmcmc.adaptation.kinds_of_model import Gradients, kind_of
from pymc_sgmcmc.adaptation.metric_and_batch_size import Asked
from pymc_sgmcmc.algorithm import Algorithm
from pymc_sgmcmc.backends import interrupts
from pymc_sgmcmc.backends.backend import check_compile_kwargs
from pymc_sgmcmc.backends.compile_time import compile_lock
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.chain import Advance, Chain, SGMCMCState
from pymc_sgmcmc.docstrings import describe
from pymc_sgmcmc.gradients.local_variables import Local
from pymc_sgmcmc.gradients.model_gradient import shapes_of
from pymc_sgmcmc.gradients.start_check import BadStart, check_start
from pymc_sgmcmc.integration.group_gradients import GroupGradients
from pymc_sgmcmc.latents.joint import Latents
from pymc_sgmcmc.number_checks import is_auto, positive_number, true_or_false, whole_number
from pymc_sgmcmc.pymc_internals import is_worker
from pymc_sgmcmc.schedules import Schedule, StepSize, as_schedule
from pymc_sgmcmc.step_kernel import kernel_of, model_of_step
from pymc_sgmcmc.variables import continuous, counterparts, refuse_reserved_names

_log = logging.getLogger("pymc.sgmcmc")

_TAKING = Lock()


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
    ``{batches}`` for those of them that `Groups` has, ``{raises}`` for the errors, ``{equations}``
    for the module docstring after its first line.

    `kernel` has what the chains share, `chain` is the current chain.
    """

    algorithm_class: ClassVar[type[Algorithm]]
    takes_local: bool = True
    """Whether its updates may move only some elements of a variable."""
    step_size_names: tuple[str, ...] = ("step_size",)
    """Names of the statistics that record step sizes."""
    _thread: int | None
    """The thread that has begun this chain; None before the first draw."""
    _checksum_at_warm_up: int | None = None
    """Checksum of the data that the step was adapted to; None if the data are streamed, or if
    changed data are refused."""
    data_changed: bool = False
    """Whether the last run found data other than those that the step was adapted to."""
    default_blocked = True
    default_tune_steps = 500
    # What a step overrides here, this and the two progress-bar methods, has no public name in PyMC.
    _state_class = SGMCMCState

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.stats_dtypes_shapes = _statistic_types(
            cls.algorithm_class.statistics, cls.step_size_names
        )
        describe(cls, SGMCMCStep.__init__)

    def __init__(
        self,
        vars=None,
        *,
        step_size: StepSize | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] | None = "auto",
        adaptation: Any = "auto",
        gradient: Literal["auto", "plain", "control_variate"] = "auto",
        target_bias: float = 0.05,
        minibatch_dim: str | None = None,
        latents: Latents | None = None,
        local: Local = "auto",
        batches: Literal["auto", "rows", "groups"] = "auto",
        thin: int | Literal["auto"] = "auto",
        replacement: bool | Literal["auto"] = "auto",
        updates_per_batch: int = 1,
        self_check: bool = True,
        data: Any = None,
        model: Model | None = None,
        rng: RandomGenerator = None,
        initial_point: PointType | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
        **hyperparameters,
    ):
        given_thin = None if is_auto(thin) else _checked_thin(thin)
        given_schedule = None
        if not isinstance(step_size, str) or step_size != "auto":
            given_schedule = self.checked_schedule(step_size)
        positive_number("target_bias", target_bias, "It is a relative error, 0.05 by default.")
        if not is_auto(replacement):
            replacement = true_or_false("replacement", replacement)
        updates_per_batch = whole_number("updates_per_batch", updates_per_batch, 1)
        self_check = true_or_false("self_check", self_check)
        if batches not in ("auto", "rows", "groups"):
            raise ValueError(f"batches={batches!r} must be 'auto', 'rows' or 'groups'.")
        _check_latents(latents)
        check_compile_kwargs(compile_kwargs)
        self.latents = latents
        self.blocked = true_or_false("blocked", blocked)
        self.rng = get_random_generator(rng)
        self.made_for = modelcontext(model)
        refuse_reserved_names(self.made_for)
        name = type(self).__name__
        self.model, batch_size = model_of_step(
            name, self.made_for, latents, step_size, adaptation, batch_size
        )
        self.vars = continuous(self.model, counterparts(self.made_for, self.model, vars))
        self.algorithm = self.bind(self.model, self.vars, hyperparameters)
        of_other_data = earlier_adaptation(adaptation, self.model, self.vars)
        earlier = adaptation if isinstance(adaptation, Adapted) else of_other_data
        if earlier is not None and is_auto(batch_size):
            batch_size = earlier.batch_size
        if earlier is not None and batches == "auto":
            batches = earlier.batches
        with compile_lock:
            start = dict(self.model.initial_point() if initial_point is None else initial_point)
        asked = Asked(
            name=name,
            algorithm=self.algorithm,
            takes_local=self.takes_local,
            made_for=self.made_for,
            model=self.model,
            vars=self.vars,
            shapes=shapes_of(self.model, self.vars),
            start=start,
            step_size=step_size,
            adaptation=adaptation if earlier is None else earlier.metric,
            gradient=gradient,
            batch_size=batch_size,
            minibatch_dim=minibatch_dim,
            latents=latents,
            local=local,
            batches=batches,
            data=None if data is None else StreamedData.of(data),
            replacement=replacement,
            updates_per_batch=updates_per_batch,
            self_check=self_check,
        )
        self.kernel, self._batch_size = kernel_of(
            asked, given_schedule, given_thin, dict(compile_kwargs or {})
        )
        self.source, self.algorithm = self.kernel.source, self.kernel.algorithm
        self.minibatch_dim = minibatch_dim
        self.batches: Literal["rows", "groups"] = (
            "groups" if self.source.has_whole_groups else "rows"
        )
        self.statistics = self.kernel.statistics
        self.stats_dtypes_shapes = _statistic_types(self.statistics, self.step_size_names)
        self.stats_dtypes = [{name: dtype for name, (dtype, _) in self.stats_dtypes_shapes.items()}]
        if self.kernel.metric is not None and earlier is None:
            announce(self.kernel)
        self.setup_chain(self.rng, tune=0, draws=0)
        check_start(self.model, self.source, start)
        # Updates with integrals take long to compile, in vain if the warm-up finds a better form.
        is_tried_out = form_is_settled() or not self.source.is_costly
        if is_tried_out:
            self.chain.try_out(start)
        self.adapted: Adapted | None = None
        self._gradients: Gradients | None = None
        if self.kernel.metric is not None:
            self._gradients = kind_of(self.kernel).gradients(self.kernel, start, minibatch_dim)
            if isinstance(self._gradients, GroupGradients) and not is_tried_out:
                try:
                    self._gradients.refuse_start(start)
                except BadStart:
                    take_equally_spaced_points(self._gradients)
                    raise
            self.adapted = adapted(
                self.kernel,
                self._gradients,
                # The same without a seed, because draws depend only on the run's seed.
                np.random.default_rng(0) if rng is None else self.rng,
                start,
                target_bias,
                given_schedule,
                given_thin,
                earlier,
                anew=of_other_data is not None,
            )
            self.default_tune_steps = self.adapted.burn_in
            self.setup_chain(self.rng, tune=0, draws=0)
            if self.kernel.data_checksum is None and data is None:
                self._checksum_at_warm_up = self.kernel.checksum()
        self._thread = None  # the thread that draws first

    @classmethod
    def on(cls, vars, *, step_size: StepSize, **hyperparameters) -> Group:
        """Assign variables to this sampler in `Groups`, a step of several samplers.

        Parameters
        ----------
        vars : list of variables
            Random or value variables of the model.
        step_size : float, Schedule or callable
            As for the class.
        **hyperparameters
            The sampler's own; arguments about batches and draws go to `Groups`.

        Returns
        -------
        Group
            An entry of the list for `Groups`, which checks it.

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

        A sampler that needs information from the model overrides this (`SGRLD`).

        Parameters
        ----------
        model : pymc.Model
            The sampled model, without latent variables.
        vars : list of value variables
            The variables to sample, all continuous.
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
                f"{cls.__name__} has no argument '{name}'. Its hyperparameters are: "
                f"{', '.join(own) or 'none'}; see help({cls.__name__}) for its other arguments."
            )
        return cls.algorithm_class(**hyperparameters)

    def __repr__(self):
        step_size = getattr(self.schedule, "value", self.schedule)
        settings: dict[str, Any] = {"step_size": step_size}
        settings |= {f.name: getattr(self.algorithm, f.name) for f in fields(self.algorithm)}
        if settings.get("temperature") == 1:
            del settings["temperature"]
        settings |= {"batch_size": self.batch_size, "thin": self.thin}
        settings |= {} if self.latents is None else {"latents": self.latents}
        settings |= {"batches": self.batches} if self.batches == "groups" else {}
        settings |= {"replacement": True} if self.replacement else {}
        per_batch = self.kernel.updates_per_batch
        settings |= {"updates_per_batch": per_batch} if per_batch > 1 else {}
        shown = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        names = ", ".join(v.name for v in self.vars)
        where = "" if self.latents is None else " in its own step.model, without the latents"
        return f"{type(self).__name__}({shown}) of [{names}]{where}"

    @staticmethod
    def competence(var, has_grad):
        """Never assigned automatically: the user has to ask for a minibatch sampler."""
        return Competence.INCOMPATIBLE

    # ---- one chain -------------------------------------------------------------------------

    def setup_chain(self, rng: RandomGenerator, tune: int, draws: int) -> None:
        """Begin a chain: new momentum, batches and noise from ``rng``, and the current data.

        Parameters
        ----------
        rng : int or numpy.random.Generator
            The chain's own generator.
        tune : int
            Draws of burn-in; only warnings use it.
        draws : int
            Draws after burn-in; not used.

        Raises
        ------
        RuntimeError
            For a JAX step in a forked process.
        ValueError
            If the data is no longer valid: too few rows for a batch, or a NaN.
        """
        super().setup_chain(rng, tune, draws)
        interrupts.handle()
        if is_worker():
            interrupts.leave_to_parent()
        self.kernel.load_data()
        self.chain = Chain(self.kernel, self.rng, tune, fetch_ahead=True)
        self._thread = get_ident()

    def go_on_with(self, chain: Chain) -> None:
        """Resume an earlier chain of this step after another one was begun in the meantime."""
        self.chain, self.rng, self._thread = chain, chain.rng, get_ident()

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Run ``thin`` updates from a point, in one compiled call or several of half a second.

        Parameters
        ----------
        point : dict of arrays
            By value variable; those that the step does not sample stay fixed.

        Returns
        -------
        point : dict of arrays
            The new point; the same one if an update was not finite.
        stats : list of dict
            One entry: the statistics of this draw, including a warning.

        Raises
        ------
        ValueError
            If new data has changed a variable's shape, or the schedule gives a step size that is
            not positive.
        RuntimeError
            If another thread has begun this chain.
        """
        if self._thread != get_ident():
            self._take_thread()
        if self.adapted is not None and self.chain.n_updates == 0:
            point = self.adapted.near_start(self.kernel, point, self.chain.init_rng)
        with interrupts.deferred:
            drawn = self.chain.draw(point)
        return {**point, **drawn.moved}, [self.statistics_of(drawn)]

    def statistics_of(self, drawn: Advance) -> dict[str, Any]:
        """Return the statistics of a draw of one of this step's chains."""
        step_sizes = zip(self.step_size_names, drawn.step_size.ravel().tolist(), strict=True)
        return {
            **dict(step_sizes),
            **drawn.diagnostics,
            "potential": drawn.potential,
            "gradient_norm": drawn.gradient_norm,
            "nonfinite": drawn.nonfinite,
            "n_updates": drawn.n_updates,
            "warning": drawn.warning,
        }

    def _take_thread(self) -> None:
        """Draw in this thread from now on; raise an error if another thread began the chain."""
        with _TAKING:
            if self._thread not in (None, get_ident()):
                raise RuntimeError(
                    f"This {type(self).__name__} is used in two threads, and a step holds the "
                    "state of one chain. Give each thread its own step, copy.deepcopy(step), "
                    "or call setup_chain in the thread that draws."
                )
            self._thread = get_ident()

    # ---- attributes of the chain and the kernel --------------------------------------------

    @property
    def batch_size(self) -> int | None:
        """Rows per update, fixed once a step is made; None: all, or those of `pm.Minibatch`."""
        return self._batch_size

    @property
    def thin(self) -> int:
        """Number of updates per draw."""
        return self.kernel.thin

    @thin.setter
    def thin(self, thin: int) -> None:
        self.kernel.thin = _checked_thin(thin)

    @property
    def schedule(self) -> Schedule:
        """Step size by update number; can be set to anything that ``step_size`` accepts."""
        return self.kernel.schedule

    @schedule.setter
    def schedule(self, step_size: StepSize) -> None:
        self.kernel.schedule = self.checked_schedule(step_size)

    def checked_schedule(self, step_size: StepSize) -> Schedule:
        """Return the schedule for a step size as the class takes it, or raise an error."""
        return as_schedule(step_size)

    @property
    def replacement(self) -> bool:
        """Whether rows are drawn independently; a change takes effect with the next chain."""
        return self.kernel.replacement

    @replacement.setter
    def replacement(self, replacement: bool) -> None:
        self.kernel.replacement = true_or_false("replacement", replacement)

    @property
    def gradients(self) -> Gradients:
        """Evaluations made by an adapted step's warm-up, and by a verdict on it."""
        if self._gradients is None:  # the step was unpickled
            start = self.model.initial_point()
            self._gradients = kind_of(self.kernel).gradients(self.kernel, start, self.minibatch_dim)
        return self._gradients

    @property
    def n_updates(self) -> int:
        """Number of updates of the chain so far."""
        return self.chain.n_updates

    @property
    def sampler_state(self) -> dict[str, list[np.ndarray]] | None:
        """Momentum, thermostat, ...: None before the first draw."""
        return self.chain.sampler_state

    @property
    def sampling_state(self) -> SGMCMCState:
        """Everything that the next draws depend on, except the point."""
        return self.chain.sampling_state

    @sampling_state.setter
    def sampling_state(self, state: SGMCMCState) -> None:
        self.chain.sampling_state = state
        self.rng = self.chain.rng

    def __getstate__(self):
        # `setup_chain` (or, in the middle of a chain, __setstate__) recreates the chain in the
        # other process. A copy in this process has its own kernel.
        kept = {k: v for k, v in self.__dict__.items() if k != "chain"}
        own = {"kernel": copy(self.kernel), "_gradients": None}
        return kept | own | {"saved_sampling_state": self.sampling_state}

    def __setstate__(self, state):
        state = dict(state)
        saved = state.pop("saved_sampling_state")
        self.__dict__.update(state)
        self.setup_chain(self.rng, tune=0, draws=0)
        self._thread = None
        self.sampling_state = saved

    def __deepcopy__(self, memo):
        # The same as copy.copy: its own chain, kernel and compiled updates, for the same model and
        # data.
        return copy(self)

    # ---- progress bar ----------------------------------------------------------------------

    def _shown(self) -> dict[str, tuple[str, str]]:
        """Header and format of the statistics in the progress bar."""
        columns = {"step_size": ("Step size", ".3g")}
        if "kinetic_temperature" in self.statistics:
            columns["kinetic_temperature"] = ("Temperature", ".2f")
        return columns | {"gradient_norm": ("Gradient", ".3g")}

    def _progressbar_config(self, n_chains=1):
        # PyMC calls this when a run begins, in the process in which Ctrl-C ends it.
        interrupts.handle()
        self._compare_data()
        columns = [
            TextColumn(f"{{task.fields[{key}]:{spec}}}", table_column=Column(header, ratio=1))
            for key, (header, spec) in self._shown().items()
        ]
        return columns, {key: [0.0] * n_chains for key in self._shown()}

    def _compare_data(self) -> None:
        """Warn if the data are not those that the step was adapted to."""
        then = self._checksum_at_warm_up
        self.data_changed = then is not None and then != self.kernel.checksum()
        if self.data_changed:
            _log.warning(
                f"The data have changed since {type(self).__name__} was adapted to them: its "
                "metric, step size and starting points are those of the old data. Make a new step."
            )

    def _make_progressbar_update_functions(self):
        def update(stats):
            shown = {key: stats[key] for key in self._shown()}
            return shown | {"failing": stats["nonfinite"]}

        return (update,)


def minibatch_steps(step: Any) -> list[SGMCMCStep]:
    """Return those parts of a step that are steps of this package."""
    return [one for one in flatten_steps(step) if isinstance(one, SGMCMCStep)]


def adaptation_of(step: Any) -> Adapted | None:
    """Return what a step is adapted to; None for several steps and for PyMC's steps."""
    return getattr(step, "adapted", None)


def _statistic_types(
    names: Sequence[str], step_sizes: Sequence[str]
) -> dict[str, tuple[type, list | None]]:
    """Types and shapes of a draw's statistics, including the sampler's own ``names``."""
    return {
        **{name: (np.float64, []) for name in [*step_sizes, *names]},
        "potential": (np.float64, []),
        "gradient_norm": (np.float64, []),
        "nonfinite": (bool, []),
        "n_updates": (np.int64, []),
        "warning": (SamplerWarning, None),
    }


def _checked_thin(thin: Any) -> int:
    remedy = "pass thin=1 to keep every update."
    return whole_number("thin", thin, 1, unit="updates per draw", remedy=remedy)


def _check_latents(latents: Any) -> None:
    if isinstance(latents, Latents | None):
        return
    listed = latents if isinstance(latents, list | tuple) else [latents]
    names = ", ".join(str(getattr(var, "name", None) or var) for var in listed)
    raise TypeError(
        f"latents=[{names}] does not say how to integrate these variables out: pass "
        "latents=sgm.Gibbs([...]) or latents=sgm.NeuralImportance([...]) with these variables."
    )
