"""Latent variables local to the rows, integrated out of the gradient by Monte Carlo.

    grad log p(x | theta) = E_{p(z | x, theta)} grad log p(x, z | theta)

(doubly stochastic paper, eq 3), so draws of z for the rows of a batch give the gradient of the log
posterior of theta. A `Latents` makes the draws; it does not know the sampler.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.transforms import Transform
from pymc.vartypes import discrete_types
from pytensor.graph.basic import Variable
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.algorithm import State, Tensors
from pymc_sgmcmc.gradients.arrays import has_named_dims
from pymc_sgmcmc.gradients.rows_in_batches import refuse_missing
from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.noise import NoiseStream
from pymc_sgmcmc.number_checks import whole_number
from pymc_sgmcmc.pymc_internals import model_of


@dataclass(frozen=True)
class LatentVariable:
    """A latent variable with one value per row."""

    name: str
    shape: tuple[int, ...]
    """Shape of one row's value."""
    dtype: str
    value: TensorVariable
    """Placeholder for the values of a batch's rows, shape (rows, *shape)."""
    batch_rv: Variable
    """The random variable for a batch's rows, a function of the parents' values."""
    transform: Transform | None
    """Transform to the unconstrained scale, for continuous variables."""
    support: np.ndarray | None
    """The values it can take, if they are few and known."""

    @property
    def is_discrete(self) -> bool:
        return self.dtype in discrete_types


@dataclass(frozen=True)
class LocalTerm:
    """A term of log p(x, z | theta): the prior of one latent variable, or one observed variable."""

    name: str
    logp: TensorVariable
    """Elementwise log probability, with the rows along the first axis."""
    depends_on: frozenset[str]
    """Names of the latent variables on which the term depends."""

    @property
    def of_rows(self) -> TensorVariable:
        """Log probability of each row."""
        return self.logp.sum(axis=tuple(range(1, self.logp.ndim)))


class LatentDraws(NamedTuple):
    """Draws of the latent variables for a batch."""

    values: Tensors
    """One entry per latent variable, shape (samples, rows, *shape)."""
    weights: TensorVariable | None
    """Weights of shape (samples, rows) with sum 1 over the samples; None: 1 / samples each."""
    state: State
    """The state for the next batch, named by `Latents.state_names`."""
    diagnostics: Tensors
    """Scalars, one for each of `Latents.statistics`."""


@dataclass(frozen=True)
class Joint:
    """log p(x, z | theta) for the rows of a batch, at one theta.

    The expressions in its fields are in terms of placeholders, which ``replace`` maps to their
    values.
    """

    variables: list[LatentVariable]
    terms: list[LocalTerm]
    observed: dict[str, TensorVariable]
    """Values of each observed variable, rows along the first axis."""
    parameters: dict[str, TensorVariable]
    """Values of the model's other free variables, on their own (constrained) scale."""
    rows: TensorVariable
    """Row indices of the batch."""
    n_rows: int
    n_data: int
    """Number of rows of all the data when the step was made."""
    replace: dict[Variable, Variable] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> list[str]:
        return [v.name for v in self.variables]

    @property
    def of_rows(self) -> TensorVariable:
        """log p(x, z | theta) of each row, in terms of placeholders."""
        return pt.add(*(term.of_rows for term in self.terms), 0.0)

    def at(self, replace: dict[Variable, Variable]) -> "Joint":
        """Replace placeholders by a theta and a batch."""
        return dataclasses.replace(self, replace=self.replace | replace)

    def evaluate(
        self,
        expressions: Sequence[Variable],
        values: Sequence[Variable] = (),
        copies: int = 1,
    ) -> list:
        """Replace the placeholders in expressions by theta, the batch and latent values.

        With ``copies`` the batch is repeated: ``values`` have copies * n_rows rows.
        """
        replace = dict(self.replace)
        if copies > 1:
            rows = replace.get(self.rows, self.rows)
            replace[self.rows] = pt.tile(rows, copies)
        if values:
            replace |= dict(zip([v.value for v in self.variables], values, strict=True))
        return substitute(expressions, replace)

    def log_density(self, values: Sequence[TensorVariable], copies: int = 1) -> TensorVariable:
        """Return log p(x, z | theta) of each row, shape (copies * n_rows,).

        ``values`` has one entry per latent variable, of shape ``(copies * n_rows, *shape)``, with
        all rows of the first copy first.
        """
        [density] = self.evaluate([self.of_rows], values, copies)
        return density

    def batch(self) -> Tensors:
        """Return the batch's values of each observed variable, shape (n_rows, ...)."""
        return self.evaluate(list(self.observed.values()))

    def draw_prior(self, stream: NoiseStream) -> Tensors:
        """Draw the latent variables from their prior, each given those it depends on.

        A variable whose distribution cannot be sampled inside a graph (such as `pm.CustomDist`) is
        drawn uniformly from its support, or from N(0, 1) on the unconstrained scale.
        """
        drawn: dict[Variable, Variable] = {}
        waiting = list(self.variables)
        while waiting:
            unknown = {v.value for v in waiting}
            variable = next(v for v in waiting if not unknown & set(ancestors([v.batch_rv])))
            waiting.remove(variable)
            replace = self.replace | drawn
            [rv] = substitute([variable.batch_rv], replace)
            draw = _draw(variable, rv, self.n_rows, stream)
            drawn[variable.value] = draw.astype(variable.dtype)
        return [drawn[v.value] for v in self.variables]


ON_ALL_BACKENDS = BernoulliRV, CategoricalRV
"""Discrete distributions with few values from which all backends can draw."""


def _draw_by_enumeration(
    support: np.ndarray, rv: Variable, shape: tuple[int, ...], stream: NoiseStream
) -> TensorVariable:
    """Draw one of a few values with their probabilities, as the first of exponential times."""
    log_p = pt.stack([pm.logp(rv, pt.full(shape, v, dtype=rv.dtype)) for v in support])
    log_p = rewrite_graph(log_p, include=("canonicalize", "local_remove_check_parameter"))
    times = stream.draw(pt.random.exponential, size=(len(support), *shape), dtype=log_p.dtype)
    return pt.constant(support)[pt.argmax(log_p - pt.log(times), axis=0)]


def _draw(
    variable: LatentVariable, rv: Variable, n_rows: int, stream: NoiseStream
) -> TensorVariable:
    shape = (n_rows, *variable.shape)
    node = rv.owner
    known = isinstance(node.op, RandomVariable) and not isinstance(node.op, CustomDistRV)
    if known and variable.support is not None and not isinstance(node.op, ON_ALL_BACKENDS):
        draw = _draw_by_enumeration(variable.support, rv, shape, stream)
    elif known:
        size = pt.constant(shape[: len(shape) - node.op.ndim_supp], dtype="int64")
        parameters = node.op.dist_params(node)
        stream.rng, draw = node.op.make_node(stream.rng, size, *parameters).outputs
        if isinstance(node.op, BernoulliRV):  # on JAX its draws are bools, whatever its dtype
            draw = pt.switch(draw, np.asarray(1, draw.dtype), np.asarray(0, draw.dtype))
    elif variable.support is not None:
        uniforms = stream.draw(pt.random.uniform, size=shape)
        which = pt.floor(uniforms * len(variable.support)).astype("int64")
        draw = pt.constant(variable.support)[which]
    elif variable.is_discrete:
        raise ValueError(
            f"The latent variable '{variable.name}' has a distribution that cannot be sampled from "
            f"and no known support: pass support={{'{variable.name}': [...]}}."
        )
    else:
        draw = stream.draw(pt.random.normal, size=shape)
        if variable.transform is not None:
            draw = variable.transform.backward(draw, *node.inputs)
    return pt.specify_shape(draw, shape)


class Latents(ABC):
    """A way to draw the latent variables of a batch.

    Parameters
    ----------
    vars : list of random variables or names
        The model's free variables that are local to the rows: their first axis is the
        observation dim.
    n_samples : int
        Draws per row and evaluation of the gradient.
    """

    persistent: bool = False
    """Whether the carried state has an entry for each row of all the data."""
    support: Mapping[str, Sequence[int]] = {}
    """Values of discrete variables, by name, if their distributions do not show them."""

    def __init__(self, vars, n_samples: int):
        self.vars = list(vars) if isinstance(vars, list | tuple) else [vars]
        self.n_samples = whole_number("n_samples", n_samples, 1)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the scalars that each evaluation reports; none by default."""
        return ()

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state that is carried from one batch to the next; none by default."""
        return ()

    def burn_in_warning(self, diagnostics: Mapping[str, float]) -> str | None:
        """Return a warning about a chain that has burnt in, by its `statistics`, if any."""
        return None

    @property
    def names(self) -> list[str]:
        return [str(getattr(var, "name", var)) for var in self.vars]

    def __repr__(self):
        names = ", ".join(self.names)
        settings = {
            k: v
            for k, v in self.__dict__.items()
            if k != "vars" and v not in (None, {}) and v is not False
        }
        shown = "".join(f", {name}={value!r}" for name, value in settings.items())
        return f"{type(self).__name__}([{names}]{shown})"

    def check(self, joint: Joint) -> None:  # noqa: B027
        """Raise a `ValueError` with the remedy if a latent variable cannot be drawn.

        It is called once per model; the joint is without a theta or batch.
        """

    def init(self, joint: Joint, rng: np.random.Generator) -> dict[str, list]:
        """Return the initial arrays, by `state_names`, of the state carried from batch to batch.

        The joint is without a theta or batch.
        """
        return {}

    @abstractmethod
    def draw(self, joint: Joint, state: State, stream: NoiseStream) -> LatentDraws:
        """Draw the latent variables of a batch.

        Parameters
        ----------
        joint : Joint
            At the current theta and rows.
        state : dict of lists of variables
            The carried state, named by `state_names`.
        stream : NoiseStream
            The source of all random numbers.

        Returns
        -------
        LatentDraws
            ``n_samples`` draws of every latent variable for every row, with the next state.
        """


def find_latents(model: pm.Model, vars: Sequence) -> list[Variable]:
    """Return the model's random variables for variables or names."""
    if has_named_dims(model):
        raise ValueError(
            "latents= does not work with variables of pymc.dims yet: write this model with the "
            "distributions of pymc itself (pm.Normal(..., dims=) for pmd.Normal)."
        )
    by_name = {rv.name: rv for rv in model.free_RVs}
    values = {model.rvs_to_values[rv]: rv for rv in model.free_RVs}
    found = []
    for var in vars:
        rv = by_name.get(var) if isinstance(var, str) else values.get(var, var)
        if rv is None or rv not in values.values():
            names = ", ".join(f"'{name}'" for name in by_name)
            shown = var if isinstance(var, str) else getattr(var, "name", None) or repr(var)
            raise ValueError(
                f"latents: '{shown}' is not a free variable of the model. Its free variables are: "
                f"{names}."
            )
        if rv in found:
            raise ValueError(f"latents: '{rv.name}' is listed more than once: list it once.")
        found.append(rv)
    if not found:
        raise ValueError("latents: the list of variables is empty: leave latents= out.")
    return found


def without_latents(
    model: pm.Model,
    vars: Sequence,
    terms: Sequence[Variable] = (),
    of_type: type[pm.Model] = pm.Model,
) -> Any:
    """Make the model of only the global parameters, for `pm.sample`.

    It has the same random variables and data, but neither the latent variables nor anything that
    depends on them, nor ``terms`` (observed variables and potentials), and it has its own value
    variables.
    """
    refuse_missing(model)
    latents = set(find_latents(model, vars))
    for rv in model.free_RVs:
        blamed = latents & set(ancestors([rv])) - {rv}
        if rv not in latents and blamed:
            name = sorted(v.name for v in blamed)[0]
            raise ValueError(
                f"The free variable '{rv.name}' depends on the latent variable '{name}', so it is "
                "local to the rows too. Add it to latents=."
            )

    def is_global(var: Variable) -> bool:
        return latents.isdisjoint(ancestors([var])) and var not in terms

    kept = {var: var for var in model.named_vars.values() if is_global(var)}
    values = {
        rv: value.clone() if rv in model.free_RVs else value
        for rv, value in model.rvs_to_values.items()
    }
    return model_of(model, kept, values, of_type)
