r"""Groups: several samplers in one step, on one gradient of one batch.

Each group of variables theta_j has its own sampler with a step size h_j. An update finds the point
at which each sampler needs the gradient, evaluates it ONCE at the combination of these points, on
one batch (and one set of latent draws), and gives each sampler its part:

    x      = (x_1, ..., x_m),  x_j: where sampler j needs it, from theta_j and its own state
    g      = g(x)
    theta_j = sampler j's update with g_j and h_j

With the same sampler and step size in every group this is that sampler's update of all variables.
Samplers that need it at different times of their update (SGRLD at its start, MSGNHT_S after half a
step) see each other's variables with a delay of a fraction of a step, which gives a bias of order 1
in the step sizes, whatever the samplers' own orders.
"""

import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.model import Model, modelcontext

from pymc_sgmcmc.algorithm import (
    Algorithm,
    Gradient,
    MappedGradient,
    Noise,
    Tensors,
    check_temperature,
)
from pymc_sgmcmc.backends.compile_time import compile_lock
from pymc_sgmcmc.docstrings import NOT_OF_GROUPS
from pymc_sgmcmc.schedules import Schedule, StepSize, as_schedule, step_sizes
from pymc_sgmcmc.step import Group, SGMCMCStep
from pymc_sgmcmc.variables import continuous


@dataclass(frozen=True)
class Member:
    """The algorithm of one group."""

    name: str
    """Prefix of the names of its statistics and its state."""
    algorithm: Algorithm
    positions: tuple[int, ...]
    """Indices of its variables among all variables of the step."""
    n_elements: int

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of its statistics among those of all members."""
        return tuple(f"{self.name}_{name}" for name in self.algorithm.statistics)

    # The separator is a dot, because one member's name may begin another's: sgnht and sgnht_s.

    def named(self, own: dict[str, Any]) -> dict[str, Any]:
        """Return its state under names that no other member uses."""
        return {f"{self.name}.{name}": value for name, value in own.items()}

    def own(self, named: dict[str, Any]) -> dict[str, Any]:
        """Return its part of the state of all members, under the algorithm's own names."""
        parts = [(name.partition("."), value) for name, value in named.items()]
        return {name: value for (member, _, name), value in parts if member == self.name}


def part_of(whole: Gradient, theta: Tensors, positions: Sequence[int]) -> MappedGradient:
    """Return one group's part of the gradient at theta."""

    def own(tensors: Tensors) -> Tensors:
        return [tensors[i] for i in positions]

    def everywhere(direction: Tensors) -> Tensors:
        extended = [pt.zeros_like(t) for t in theta]
        for i, d in zip(positions, direction, strict=True):
            extended[i] = d
        return extended

    return MappedGradient(whole, own, everywhere)


class PlaceholderGradient:
    """A gradient of zeros, used until the point at which the gradient is needed is known."""

    def __init__(self, theta: Tensors):
        self.prior = self.likelihood = self.total = self.mean_likelihood = [
            pt.zeros_like(t) for t in theta
        ]

    def mean_curvature(self, direction) -> Tensors:
        return self.total


class GroupUpdate:
    """One group's update, rebuilt until the points at which it needs gradients are known.

    A `PlaceholderGradient` stands in for each gradient that is not yet `known`, and every run uses
    the same noise.
    """

    def __init__(
        self, member: Member, theta: Tensors, state, h, noise: Noise, n_elements: Tensors | None
    ):
        self.member = member
        self._options = {}
        if n_elements is not None and member.algorithm.counts_elements:
            self._options["n_elements"] = [n_elements[i] for i in member.positions]
        self.theta = [theta[i] for i in member.positions]
        self.state = member.own(state)
        self.h = h
        self._noise = noise
        self._draws: list[Tensors] = []
        self.points: list[Tensors] = []

    def run(self, known: list[tuple[Gradient, Tensors]]):
        """Return the next theta and state, which are valid once all gradients are known.

        It also collects, in `points`, where the gradients are needed.
        """
        self.points, n_drawn = [], 0

        def gradient(theta):
            self.points.append(theta)
            if len(self.points) > len(known):
                return PlaceholderGradient(theta)
            whole, at = known[len(self.points) - 1]
            return part_of(whole, at, self.member.positions)

        def noise(like=None):
            nonlocal n_drawn
            if n_drawn == len(self._draws):
                self._draws.append(self._noise(self.theta if like is None else like))
            n_drawn += 1
            return self._draws[n_drawn - 1]

        return self.member.algorithm.update(
            self.theta, self.state, gradient, self.h, noise, **self._options
        )


@dataclass(frozen=True)
class Grouped(Algorithm):
    """The joint update of several algorithms; ``h`` has one step size for each of them."""

    members: tuple[Member, ...] = ()
    temperature: float = 1.0
    """The temperature of all members, repeated here because the step reads it."""

    counts_elements = True

    def __post_init__(self):
        names = tuple(name for m in self.members for name in m.statistics)
        for name, count in Counter(names).items():
            if count > 1:
                members = ", ".join(f"'{m.name}'" for m in self.members if name in m.statistics)
                raise ValueError(
                    f"The samplers {members} of Groups both have a statistic '{name}': give one of "
                    "the classes another name."
                )
        object.__setattr__(self, "statistics", names)
        object.__setattr__(self, "step_size_shape", (len(self.members),))

    def init(self, theta, rng):
        state: dict[str, list] = {}
        for m in self.members:
            state |= m.named(m.algorithm.init([theta[i] for i in m.positions], rng))
        return state

    def update(self, theta, state, gradient, h, noise, n_elements=None):
        groups = [
            GroupUpdate(m, theta, state, h[k], noise, n_elements)
            for k, m in enumerate(self.members)
        ]
        known: list[tuple[Gradient, Tensors]] = []
        while True:
            updates = [group.run(known) for group in groups]
            counts = {g.member.name: len(g.points) for g in groups}
            if len(set(counts.values())) > 1:
                raise ValueError(
                    "All samplers of a step must evaluate the same number of gradients per update, "
                    f"but they evaluate {counts}. Put them into separate steps."
                )
            if len(known) == len(groups[0].points):
                break
            at = list(theta)
            for group in groups:
                for i, t in zip(group.member.positions, group.points[len(known)], strict=True):
                    at[i] = t
            known.append((gradient(at), at))
        new_theta, new_state = list(theta), dict[str, Tensors]()
        for member, (moved, states) in zip(self.members, updates, strict=True):
            for i, t in zip(member.positions, moved, strict=True):
                new_theta[i] = t
            new_state |= member.named(states)
        return new_theta, new_state

    def positions(self, name, n_vars):
        member, _, _ = name.partition(".")
        return next((m.positions for m in self.members if m.name == member), range(n_vars))

    def diagnostics(self, state):
        return [d for m in self.members for d in m.algorithm.diagnostics(m.own(state))]

    @property
    def absorbs_noise(self):
        return any(m.algorithm.absorbs_noise for m in self.members)

    def step_size_of(self, variable, h):
        groups = [k for k, m in enumerate(self.members) if variable in m.positions]
        return h[groups[0] if groups else 0]

    def burn_in_warning(self, diagnostics, n_elements, shuffled):
        for m in self.members:
            own = {
                name: diagnostics[named]
                for name, named in zip(m.algorithm.statistics, m.statistics, strict=True)
            }
            message = m.algorithm.burn_in_warning(own, m.n_elements, shuffled)
            if message:
                return f"{m.name.upper()}: {message}"
        return None


@dataclass(frozen=True)
class GroupSchedules(Schedule):
    """The schedules of all groups, with step sizes of shape (updates, groups)."""

    schedules: tuple[Schedule, ...]

    def step_size(self, update, updates_per_epoch):
        first = int(update.flat[0])
        return np.stack(
            [step_sizes(s, first, update.size, updates_per_epoch) for s in self.schedules], axis=-1
        )


class Groups(SGMCMCStep):
    """Several samplers in one step, which share each batch, its gradient and its latent draws.

    The names of a group's statistics begin with its sampler's name, as in
    ``msgnht_s_kinetic_temperature``, followed by a number if several groups have the same sampler
    (``msgnht_s_2_...``).

    Parameters
    ----------
    groups : list of groups
        Groups made by the samplers' ``on``, as in ``sgm.SGRLD.on([phi], step_size=1e-3)``, with the
        sampler's own hyperparameters. No variable may be in two groups; variables in no group are
        left to other steps of `pm.sample`.
    {temperature}
    {batches}

    Raises
    ------
    {raises}
    TypeError
        For a group that was not made by a sampler's ``on``, and for ``vars`` or ``step_size``,
        which belong to each group.
    ValueError
        For a variable in two groups, an empty list of groups, or samplers that evaluate different
        numbers of gradients per update.

    Notes
    -----
    x_j is the point at which sampler j needs the gradient. The points are combined, the gradient is
    evaluated once, and each sampler gets its part, with its own step size h_j::

        x       = (x_1, ..., x_m)
        g       = g(x)
        theta_j = sampler j's update with g_j and h_j

    Samplers that need it at different times of their update see each other's variables with a delay
    of a fraction of a step, which gives a bias of order 1 in the step sizes.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> with pm.Model():
    ...     weights = pm.Dirichlet("weights", [1.0, 1.0])
    ...     mu = pm.Normal("mu", [-1, 1], 1)
    ...     y = pm.NormalMixture("y", weights, mu, 0.5, observed=np.linspace(-2, 2, 100))
    ...     step = sgm.Groups(
    ...         [
    ...             sgm.SGRLD.on([weights], step_size=0.001),
    ...             sgm.MSGNHT_S.on([mu], step_size=0.01, diffusion=2.0),
    ...         ],
    ...         batch_size=10, thin=20,
    ...     )
    ...     idata = pm.sample(
    ...         200, tune=100, chains=2, cores=1, step=step, random_seed=1, progressbar=False,
    ...         compute_convergence_checks=False,
    ...     )
    >>> [name for name in idata.sample_stats if name.startswith("sgrld")]
    ['sgrld_step_size']
    """

    name = "groups"
    algorithm_class = Grouped
    algorithm: Grouped

    def __init__(self, groups, *, temperature: float = 1.0, model: Model | None = None, **options):
        check_temperature(temperature)
        model = modelcontext(model)
        self.groups = [groups] if isinstance(groups, Group) else list(groups)
        named = f"model['{model.free_RVs[0].name}']" if model.free_RVs else "..."
        example = f"MSGNHT_S.on([{named}], step_size=0.01)"
        for group in self.groups:
            if not isinstance(group, Group):
                raise TypeError(f"Groups takes groups such as {example}, got {group!r}.")
        self.takes_local = all(group.sampler.takes_local for group in self.groups)
        if not self.groups:
            raise ValueError(f"Groups([]) has no group: pass a list such as [{example}].")
        for name in {"vars", "step_size"} & options.keys():
            raise TypeError(f"Give '{name}' to each group: {example}.")
        for name in NOT_OF_GROUPS & options.keys():
            raise TypeError(
                f"Groups has no argument '{name}': it adapts nothing, and each group has its own "
                "step_size. A single sampler for all variables, such as MSGNHT_S(), adapts them."
            )
        vars = [continuous(model, group.vars) for group in self.groups]
        self._check_disjoint(model, vars)
        with compile_lock:
            start = model.initial_point()
        names = _names(self.groups)
        members, first = [], 0
        for group, own, name in zip(self.groups, vars, names, strict=True):
            hyperparameters = group.hyperparameters
            if "temperature" in hyperparameters:
                raise TypeError(
                    "All groups have the same temperature: give it to Groups, not to "
                    f"{group.sampler.__name__}.on."
                )
            if temperature != 1:
                hyperparameters = hyperparameters | {"temperature": temperature}
            algorithm = group.sampler.bind(model, own, hyperparameters)
            size = sum(int(np.size(start[v.name])) for v in own)
            positions = tuple(range(first, first + len(own)))
            members.append(Member(name, algorithm, positions, size))
            first += len(own)
        self.step_size_names = tuple(f"{name}_step_size" for name in names)
        super().__init__(
            [var for own in vars for var in own],
            step_size=GroupSchedules(tuple(as_schedule(group.step_size) for group in self.groups)),
            members=tuple(members),
            temperature=temperature,
            model=model,
            **options,
        )

    def checked_schedule(self, step_size: StepSize | Sequence[StepSize]) -> Schedule:
        """Return the schedules of all groups, from a list with one entry per group."""
        n = len(self.groups)
        given = step_size.schedules if isinstance(step_size, GroupSchedules) else step_size
        if not isinstance(given, list | tuple) or len(given) != n:
            raise ValueError(
                f"schedule={step_size!r} must be a list of {n} step sizes or schedules, one for "
                "each group."
            )
        return GroupSchedules(tuple(as_schedule(one) for one in given))

    @staticmethod
    def _check_disjoint(model: Model, vars: list[list]) -> None:
        for var, count in Counter(var for own in vars for var in own).items():
            if count > 1:
                raise ValueError(
                    f"'{model.values_to_rvs[var].name}' is in {count} groups: name it in one."
                )

    def __repr__(self):
        groups = []
        schedules = self.schedule.schedules  # type: ignore[attr-defined]
        for group, member, schedule in zip(
            self.groups, self.algorithm.members, schedules, strict=True
        ):
            step_size = getattr(schedule, "value", schedule)
            settings = {"step_size": step_size} | group.hyperparameters
            shown = ", ".join(f"{name}={value!r}" for name, value in settings.items())
            names = ", ".join(self.vars[i].name for i in member.positions)
            groups.append(f"{group.sampler.__name__}({shown}) of [{names}]")
        temperature = self.algorithm.temperature
        shown = "" if temperature == 1 else f"temperature={temperature!r}, "
        shown += f"batch_size={self.batch_size}, thin={self.thin}"
        shown += ", batches='groups'" if self.batches == "groups" else ""
        shown += ", replacement=True" if self.replacement else ""
        per_batch = self.kernel.updates_per_batch
        shown += f", updates_per_batch={per_batch}" if per_batch > 1 else ""
        return f"Groups([{', '.join(groups)}], {shown})"

    def _shown(self):
        columns = {
            name: (f"{group.sampler.__name__} step", ".3g")
            for name, group in zip(self.step_size_names, self.groups, strict=True)
        }
        return columns | {"gradient_norm": ("Gradient", ".3g")}


_SHARED = [
    parameter
    for name, parameter in inspect.signature(SGMCMCStep.__init__).parameters.items()
    if name not in {"self", "hyperparameters", *NOT_OF_GROUPS}
]
_GROUPS = inspect.Parameter("groups", inspect.Parameter.POSITIONAL_OR_KEYWORD)
_TEMPERATURE = inspect.signature(Groups.__init__).parameters["temperature"]
Groups.__signature__ = inspect.Signature([_GROUPS, _TEMPERATURE, *_SHARED])  # type: ignore[attr-defined]


def _names(groups: list[Group]) -> list[str]:
    """Return the samplers' names, numbered if several groups have the same sampler."""
    names = [group.sampler.name for group in groups]
    seen: Counter = Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(f"{name}_{seen[name]}" if names.count(name) > 1 else name)
    return numbered
