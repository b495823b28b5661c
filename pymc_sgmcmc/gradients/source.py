"""The stochastic gradient of a PyMC model, as symbolic expressions of theta and a batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.algorithm import State, Tensors
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.batches.touched import GroupsOfRows
from pymc_sgmcmc.batches.whole_groups import WholeGroups
from pymc_sgmcmc.gradients.arrays import Array, array_name, array_value, data_name, refuse_nan
from pymc_sgmcmc.gradients.full_terms import FullTerm
from pymc_sgmcmc.gradients.local_model import LocalVariable
from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.local_slots import Touched
from pymc_sgmcmc.noise import NoiseStream
from pymc_sgmcmc.number_checks import whole_number

type Sliced = tuple[tuple[Array, int], ...]
"""Arrays whose rows belong together, each with its axis of rows."""


@dataclass(frozen=True)
class Rows:
    """One stream of row indices: batches of ``batch_size`` of an array's rows."""

    index: TensorVariable
    """Row indices of a batch, int64, shape (n,)."""
    scale: TensorVariable
    """N / n, a scalar of the model's float type."""
    batch_size: int
    sliced: tuple[Sliced, ...]
    """The sliced arrays, in more than one set if likelihoods have their own rows, which are then
    numbered from the first set to the last."""
    streamed: StreamedData | None = None
    """Source of the rows, if the model's arrays are placeholders."""
    fixed_size: bool = False
    """Whether the model is valid only for batches of this size."""
    total_size: int | None = None
    """The model's total_size=, if it is a constant and was correct when the step was made."""
    weights: SharedVariable | None = None
    """Factors of the rows' log likelihoods, shape (N,), if rows may be drawn by weight."""

    @property
    def n_rows(self) -> int:
        """Current number of rows N."""
        return sum(self.lengths)

    @property
    def lengths(self) -> list[int]:
        """Current number of rows of each set of arrays."""
        if self.streamed is not None:
            return [self.streamed.n_rows]
        return [_length(*together[0]) for together in self.sliced]

    def check_lengths(self) -> None:
        """Raise an error if the arrays no longer have the same number of rows."""
        if self.streamed is not None:
            return
        for together in self.sliced:
            lengths = {array: _length(array, axis) for array, axis in together}
            if len(set(lengths.values())) > 1:
                shown = ", ".join(f"{array_name(array)} has {n}" for array, n in lengths.items())
                raise ValueError(
                    "The arrays whose rows belong together have different numbers of rows: "
                    f"{shown}. Set all of them in one pm.set_data({{...}}); a plain array keeps "
                    "its rows, so make it pm.Data, or make a new model and step."
                )
        if self.weights is not None and _length(self.weights, 0) != self.n_rows:
            raise ValueError(
                f"There are {self.n_rows} rows now, but weights of {_length(self.weights, 0)}: "
                "make a new step."
            )
        if self.total_size not in (None, self.n_rows):
            raise ValueError(
                f"{data_name(self.sliced[0][0][0])} has {self.n_rows} rows now, but the model has "
                f"total_size={self.total_size}, by which the likelihood is scaled. Write "
                "total_size=data.shape[0] for data that changes, or make a new model and step."
            )


class Evaluation(NamedTuple):
    """A batch's gradient of the log posterior at one theta; lists have one entry per variable."""

    potential: TensorVariable
    """Estimate of -log posterior (up to the evidence), a scalar."""
    prior: Tensors
    likelihood: Tensors
    n_data: TensorVariable
    mean_curvature: Callable[[Sequence[TensorVariable]], Tensors]
    state: State
    """State of the source for the next evaluation."""
    diagnostics: Tensors
    """Scalars named by the source's `statistics`."""

    @property
    def total(self) -> Tensors:
        """prior + likelihood."""
        return [p + lik for p, lik in zip(self.prior, self.likelihood, strict=True)]

    @property
    def mean_likelihood(self) -> Tensors:
        """likelihood / N."""
        return [lik / self.n_data for lik in self.likelihood]


@dataclass(frozen=True)
class GradientSource:
    """A model's log prior and scaled log likelihood for a batch, with their gradients.

    ``inputs`` are, in order: the value variables to sample, the row indices of each stream, and the
    constants of a run: each stream's N / n, the data, the other value variables.
    """

    vars: list[TensorVariable]
    shapes: list[tuple[int, ...]]
    rows: list[Rows]
    data: list[tuple[Array, TensorVariable]]
    others: list[TensorVariable]
    log_prior: TensorVariable
    log_likelihood: TensorVariable
    n_data: TensorVariable
    prior: Tensors = field(repr=False)
    likelihood: Tensors = field(repr=False)
    full: list[FullTerm] = field(default_factory=list)
    """Terms evaluated outside the batches that have more data than a batch."""
    is_costly: bool = False
    """Whether only the potential would cost as much as a gradient, or take as long to compile."""

    has_control_variate: ClassVar[bool] = False
    has_latents: ClassVar[bool] = False
    """Whether latent variables are drawn again for each batch."""

    @property
    def local_variables(self) -> list[LocalVariable]:
        """The local variables, whose elements move with the rows of their groups."""
        return []

    @property
    def has_whole_groups(self) -> bool:
        """Whether batches have whole groups of local variables."""
        return False

    def set_anchor(
        self,
        anchor: Sequence[np.ndarray],
        likelihood_gradient: Sequence[np.ndarray],
        powers: Sequence[np.ndarray],
    ) -> None:
        """Set the anchor, the gradient of the log likelihood there and the powers of its factors.

        There is one array per variable. Only a source with a control variate uses them.
        """

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state carried from one evaluation to the next; none by default."""
        return ()

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the scalars that an evaluation returns as diagnostics."""
        return ()

    def burn_in_warning(self, diagnostics: Mapping[str, float]) -> str | None:
        """Return what is wrong, if anything, judging by the `statistics` of a burnt-in chain."""
        return None

    @property
    def determined(self) -> Tensors:
        """The terms of the log posterior that can be evaluated before sampling."""
        parts = [self.log_prior, self.log_likelihood]
        return parts if self.streamed is None else parts[:1]  # the rows have not been read yet

    @property
    def model_data(self) -> list[Array]:
        """The model's own data, without weights of rows."""
        weights = [rows.weights for rows in self.rows]
        return [array for array, _ in self.data if not any(array is w for w in weights)]

    def tables(self, rows: Rows) -> list[TensorVariable]:
        """Return the data that these row indices only index; none if they have another use.

        A batch's rows can then replace the data, with row indices from 0 to n - 1.
        """
        data = {variable for _, variable in self.data}
        picked: dict[TensorVariable, None] = {}
        outputs = [self.log_prior, self.log_likelihood, self.n_data, *self.prior, *self.likelihood]
        used_whole = data.intersection(outputs)
        for node in {v.owner: None for v in ancestors(outputs) if v.owner is not None}:
            array, *indices = node.inputs
            picks = isinstance(node.op, AdvancedSubtensor) and node.op.idx_list[0] == 0
            if picks and indices == [rows.index] and array in data:
                picked[array] = None
            elif rows.index in node.inputs and not isinstance(node.op, Shape | Shape_i):
                return []
            else:
                used_whole |= data.intersection(node.inputs)
        return [] if used_whole.intersection(picked) else list(picked)

    @property
    def batch_types(self) -> list[tuple[int, str]]:
        """Length and type of each array that describes a batch, row numbers first."""
        return [(rows.batch_size, "int64") for rows in self.rows]

    def touched(self, batch: Sequence[TensorVariable]) -> list[Touched | None]:
        """Return the groups that a batch moves, by variable; None if it moves all of them."""
        return [None] * len(self.vars)

    def with_prior_draws(
        self, theta: Tensors, constants: Sequence[TensorVariable], stream: NoiseStream
    ) -> Tensors:
        """Draw what has no likelihood and is in no gradient from its prior, given the rest."""
        return theta

    def groups_of_rows(self) -> list[GroupsOfRows]:
        """Return the group of each row of the current data, for each index into local variables."""
        return []

    def whole_groups(self, groups_of_rows: Sequence[GroupsOfRows]) -> WholeGroups | None:
        """Return the groups dealt into batches, if batches have whole groups."""
        return None

    def streamed_groups(self) -> Callable[[Mapping[str, np.ndarray]], list[np.ndarray]] | None:
        """Return a function that finds, for each index, the groups of some streamed rows."""
        return None

    def init(self, rng: np.random.Generator) -> dict[str, list]:
        """Return initial arrays of the carried state, by `state_names`."""
        return {}

    @property
    def streamed(self) -> StreamedData | None:
        """Streamed data, of which each compiled call receives only the rows that it needs."""
        return next((rows.streamed for rows in self.rows), None)

    @property
    def constants(self) -> list[TensorVariable]:
        """Inputs that stay the same during a compiled call."""
        scales = [r.scale for r in self.rows]
        return [*scales, *(variable for _, variable in self.data), *self.others]

    @property
    def inputs(self) -> list[TensorVariable]:
        """All inputs of the expressions."""
        return [*self.vars, *(r.index for r in self.rows), *self.constants]

    def at(
        self,
        theta: Sequence[TensorVariable],
        rows: Sequence[TensorVariable],
        constants: Sequence[TensorVariable],
        state: State,
        stream: NoiseStream,
    ) -> Evaluation:
        """Evaluate the gradient at ``theta`` for a batch of ``rows``.

        ``state`` comes from the previous evaluation, ``stream`` provides random numbers.
        """
        replace = dict(zip(self.inputs, [*theta, *rows, *constants], strict=True))
        return self._evaluate(replace, state={}, diagnostics=[])

    def _evaluate(self, replace: dict, state: State, diagnostics: Tensors) -> Evaluation:
        potential, n_data, *gradients = substitute(
            [-(self.log_prior + self.log_likelihood), self.n_data, *self.prior, *self.likelihood],
            replace,
        )

        def mean_curvature(direction: Sequence[TensorVariable]) -> Tensors:
            v = [var.type() for var in self.vars]
            product = substitute(
                self._curvature(v), {**replace, **dict(zip(v, direction, strict=True))}
            )
            return [h / n_data for h in product]

        k = len(self.vars)
        return Evaluation(
            potential,
            gradients[:k],
            gradients[k:],
            n_data,
            mean_curvature,
            state,
            diagnostics,
        )

    def _curvature(self, v: Tensors) -> Tensors:
        """Return the Hessian of the log likelihood times ``v``."""
        along = pt.add(*(pt.sum(g * vi) for g, vi in zip(self.likelihood, v, strict=True)), 0.0)
        return pt.grad(along, self.vars, disconnected_inputs="ignore")

    def check_data(self) -> None:
        """Raise an error for data with NaN or with a shape that the expressions do not fit."""
        for rows in self.rows:
            rows.check_lengths()
        streamed = self.streamed.names if self.streamed else ()
        for array, variable in self.data:
            if array.name in streamed:
                continue  # a placeholder; rows are checked when they are read
            refuse_nan(array)
            shape = array_value(array).shape
            if any(m not in (None, n) for m, n in zip(variable.type.shape, shape, strict=True)):
                raise ValueError(
                    f"{data_name(array)} has the shape {shape}, but the step was made for "
                    f"{variable.type.shape} (None: any number of rows). Make a new step."
                )


def _length(array: Array, axis: int) -> int:
    return array_value(array).shape[axis]


def check_batch_size(batch_size: int, n_rows: int) -> None:
    """Raise an error unless a batch size is a whole number from 1 to the number of rows."""
    whole_number("batch_size", batch_size, 1, n_rows, most_is="the number of rows")
