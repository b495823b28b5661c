"""The stochastic gradient of a PyMC model, as symbolic expressions of theta and a batch."""

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.blocking import PointType
from pymc.data import MinibatchOp
from pymc.model.core import Model
from pymc.pytensorf import rewrite_pregrad
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import DisconnectedInputError, NullTypeGradError
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, explicit_graph_inputs
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorConstant, TensorVariable

from pymc_sgmcmc.algorithm import State, Tensors
from pymc_sgmcmc.argument_checks import whole_number
from pymc_sgmcmc.batches.data_sources import StreamedData
from pymc_sgmcmc.gradients.arrays import (
    Array,
    array_name,
    array_value,
    has_named_dims,
    tensor_model,
)
from pymc_sgmcmc.gradients.batch_check import check_terms
from pymc_sgmcmc.gradients.minibatch import CutArray, batched_terms
from pymc_sgmcmc.gradients.placeholders import check_covered, filled, fitted_to, refuse_whole
from pymc_sgmcmc.gradients.rewrites import tidy
from pymc_sgmcmc.gradients.row_axis import find_row_axis
from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.noise import NoiseStream


@dataclass(frozen=True)
class Rows:
    """One stream of row indices: batches of ``batch_size`` of an array's rows."""

    index: TensorVariable
    """Row indices of a batch, int64, shape (n,)."""
    scale: TensorVariable
    """N / n, a scalar of the model's float type."""
    batch_size: int
    cuts: tuple[tuple[Array, int], ...]
    """The sliced arrays, each with its axis of rows."""
    streamed: StreamedData | None = None
    """Source of the rows, if the model's arrays are placeholders."""
    fixed_size: bool = False
    """Whether the model is valid only for batches of this size."""
    total_size: int | None = None
    """The model's total_size=, if it is a constant and was right when the step was made."""

    @property
    def n_rows(self) -> int:
        """N, the current number of rows."""
        if self.streamed is not None:
            return self.streamed.n_rows
        array, axis = self.cuts[0]
        return array_value(array).shape[axis]

    def check_lengths(self) -> None:
        """Raise an error if the arrays no longer have the same number of rows."""
        if self.streamed is not None:
            return
        lengths = {array: array_value(array).shape[axis] for array, axis in self.cuts}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{array_name(array)} has {n}" for array, n in lengths.items())
            raise ValueError(
                f"The arrays whose rows belong together have different numbers of rows: {shown}. "
                "Set all of them in one pm.set_data({...}); a plain array keeps its rows, so make "
                "it pm.Data, or make a new model and step."
            )
        if self.total_size not in (None, self.n_rows):
            raise ValueError(
                f"{array_name(self.cuts[0][0])} has {self.n_rows} rows now, but the model has "
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
        """Prior plus likelihood."""
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

    is_costly: ClassVar[bool] = False
    """Whether an evaluation for the potential alone would cost as much as a gradient."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state carried from one evaluation to the next; none by default."""
        return ()

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the scalars that an evaluation returns as diagnostics."""
        return ()

    @property
    def determined(self) -> Tensors:
        """The terms of the log posterior that can be evaluated before sampling."""
        parts = [self.log_prior, self.log_likelihood]
        return parts if self.streamed is None else parts[:1]  # the rows are still to come

    def tables(self, rows: Rows) -> list[TensorVariable]:
        """Data from which these row indices only pick rows; none if they are used otherwise.

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

    def init(self, rng: np.random.Generator) -> dict[str, list]:
        """Initial arrays of the carried state, by `state_names`."""
        return {}

    @property
    def streamed(self) -> StreamedData | None:
        """Streamed data, of which each compiled call gets only the rows that it needs."""
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

        ``state`` is from the last evaluation, ``stream`` gives random numbers.
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
        """Hessian of the log likelihood times ``v``."""
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
                    f"The data {array_name(array)} has the shape {shape}, but the step was made "
                    f"for {variable.type.shape} (None: any number of rows). Make a new step."
                )


def refuse_nan(array: Array) -> None:
    """Raise an error that names data with NaN."""
    refuse_nan_in(f"The data {array_name(array)}", array_value(array))


def refuse_nan_in(name: str, value: np.ndarray) -> None:
    """Raise an error for an array with NaN."""
    if np.issubdtype(value.dtype, np.floating):
        # pm.set_data masks NaN values, and a masked sum would skip them
        n_missing = int(np.isnan(np.ma.filled(value, np.nan)).sum())
        if n_missing:
            raise ValueError(f"{name} has {n_missing} NaN values: drop or impute them.")


def warn_of_cut_integers(array: Array) -> None:
    """Warn about integers that may have overflowed in `pm.Data`."""
    value = array_value(array)
    if value.dtype in ("int16", "int32") and value.size:
        largest = np.iinfo(value.dtype).max
        if max(value.max(), -int(value.min())) > 0.9 * largest:
            warnings.warn(
                f"The data {array_name(array)} has the type {value.dtype} and values from "
                f"{value.min()} to {value.max()}. Under floatX='{pytensor.config.floatX}' pm.Data "
                f"converts integers to that type, and those beyond +-{largest} overflow without an "
                "error. If you have larger ones, use the array itself instead of pm.Data.",
                stacklevel=4,
            )


def check_batch_size(batch_size: int, n_rows: int) -> None:
    """Raise an error unless a batch size is a whole number from 1 to the number of rows."""
    whole_number("batch_size", batch_size, 1, n_rows, most_is="the number of rows")


def gradient_source(
    model: Model,
    vars: list[TensorVariable],
    *,
    batch_size: int | None = None,
    minibatch_dim: str | None = None,
    self_check: bool = True,
    data: StreamedData | None = None,
    start: PointType | None = None,
) -> GradientSource:
    """Derive the stochastic gradient of a model with respect to some of its value variables.

    Parameters
    ----------
    model : pymc.Model
    vars : list of value variables
    batch_size : int, optional
        Rows per batch; None for all the data or for a model written with `pm.Minibatch`.
    minibatch_dim : str, optional
        The dim along which to slice; needed only if several dims qualify.
    self_check : bool, default True
        First compare the likelihood of batches with the model's own.
    data : StreamedData, optional
        The rows, if the model's containers are placeholders for them.
    start : dict of arrays, optional
        Point near which batches are compared; default: the model's initial point.

    Returns
    -------
    GradientSource
        The gradient of its likelihood is scaled by N / n, so it is unbiased.

    Raises
    ------
    ValueError
        If the model cannot be sliced into batches, naming the variable and the remedy; for
        ``minibatch_dim`` or ``data`` without ``batch_size``, and `pm.Minibatch` with it.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pymc_sgmcmc.gradients.source import gradient_source
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    >>> source = gradient_source(model, model.value_vars, batch_size=10)
    >>> [(rows.n_rows, rows.batch_size) for rows in source.rows]
    [(100, 10)]
    """
    variables = [*model.free_RVs, *model.observed_RVs, *model.potentials]
    minibatches = [var for var in variables if uses_minibatch(model, var)]
    if batch_size is None and minibatch_dim is not None:
        raise ValueError(f"minibatch_dim='{minibatch_dim}' needs batch_size= too.")
    if batch_size is not None and minibatches:
        raise ValueError(
            f"batch_size={batch_size!r} and pm.Minibatch in '{minibatches[0].name}': use only one "
            "of them (prefer batch_size=, with which predictions use all the data)."
        )
    if data is not None and batch_size is None:
        raise ValueError("data= needs batch_size= too, and a model without pm.Minibatch.")
    if has_named_dims(model):
        model = tensor_model(model)
        vars = [v for v in model.value_vars if v.name in {var.name for var in vars}]
    if minibatches:
        parts = _written_with_minibatch(model)
    elif batch_size is not None:
        data = None if data is None else fitted_to(model, data)
        with filled(model, data):
            parts = _cut_into_batches(model, batch_size, minibatch_dim, self_check, data, start)
    else:
        parts = _whole(model)
    source = _differentiate(model, vars, *parts)
    if data is not None:
        refuse_whole(explicit_graph_inputs([source.log_prior]), data)
    return source


def sum_of(terms: Sequence[Variable]) -> TensorVariable:
    """Sum over all elements, in the model's float type."""
    total = pt.add(*(pt.sum(t) for t in terms), 0.0)
    return total.astype(pytensor.config.floatX)  # counts may have made it float64


def _n_rows(terms: Sequence[Variable]) -> TensorVariable:
    sizes = [t.shape[0] for t in terms if t.ndim > 0] or [pt.constant(1)]
    n = sizes[0]
    for size in sizes[1:]:
        n = pt.maximum(n, size)
    return n.astype(pytensor.config.floatX)


def _whole(model: Model):
    """All the data at each update: exact gradients."""
    likelihood = model.logp(vars=model.observed_RVs, sum=False) if model.observed_RVs else []
    prior = model.logp(vars=[*model.free_RVs, *model.potentials])
    return prior, sum_of(likelihood), _n_rows(likelihood), [], {}


def _cut_into_batches(model, batch_size, minibatch_dim, self_check, data, start):
    """Batches of an unchanged model."""
    row_axis = find_row_axis(model, minibatch_dim)
    check_batch_size(batch_size, data.n_rows if data else row_axis.length)
    index = pt.lvector("rows")
    dtypes = {name: f.dtype for name, f in data.formats.items()} if data else {}
    terms, cuts, rest, *_ = batched_terms(model, row_axis, index, dtypes=dtypes)
    if data is not None:
        check_covered(cuts, data)
    arrays = {array: cut.whole for array, cut in cuts.items()}
    for array in arrays:
        refuse_nan(array)
    if self_check:
        start = model.initial_point() if start is None else start
        check_terms(model, terms, arrays, index, row_axis, start)
    prior = model.logp(vars=[*model.free_RVs, *rest])
    scale = pt.scalar("N/n", dtype=pytensor.config.floatX)
    likelihood = scale * sum_of([term.logp for term in terms])
    rows = Rows(index, scale, int(batch_size), axes_of(cuts), data)
    return prior, likelihood, scale * batch_size, [rows], arrays


def axes_of(cuts: Mapping[Array, CutArray]) -> tuple[tuple[Array, int], ...]:
    """Return the sliced arrays, each with its axis of rows."""
    return tuple((array, cut.axis) for array, cut in cuts.items())


def _minibatch_nodes(outputs: Sequence[Variable]) -> list[Apply]:
    nodes = {v.owner: None for v in ancestors(outputs) if v.owner is not None}
    return [node for node in nodes if isinstance(node.op, MinibatchOp)]


def uses_minibatch(model: Model, rv: Variable) -> bool:
    """Whether a variable or its value uses `pm.Minibatch`."""
    return bool(_minibatch_nodes([rv, model.rvs_to_values.get(rv, rv)]))


def _written_with_minibatch(model: Model):
    """Replace the indices of the model's pm.Minibatch; its total_size scales the terms."""
    for rv in model.observed_RVs:
        scaled = isinstance(rv.owner.op, MinibatchRandomVariable)
        if not scaled and uses_minibatch(model, rv):
            raise ValueError(
                f"The observed variable '{rv.name}' uses pm.Minibatch without total_size=, so its "
                "likelihood would not be scaled to all the data. Pass total_size=<number of rows>."
            )
    terms = model.logp(vars=model.observed_RVs, sum=False)
    for rv, term in zip(model.observed_RVs, terms, strict=True):
        if len({node.inputs[-1] for node in _minibatch_nodes([term])}) > 1:
            raise ValueError(
                f"The observed variable '{rv.name}' depends on separate pm.Minibatch calls, each "
                "of which draws different rows, so rows that belong together are separated. Use "
                "one pm.Minibatch(x, y, batch_size=...) for all its arrays."
            )
    likelihood = sum_of(terms)
    prior = model.logp(vars=[*model.free_RVs, *model.potentials])
    nodes = _minibatch_nodes([likelihood, prior])
    drawn: dict[
        Variable, dict[Variable, None]
    ] = {}  # arrays drawn together, by their common generator
    for node in nodes:  # PyMC may have cloned them
        *tensors, rng = node.inputs
        drawn.setdefault(rng, {}).update(dict.fromkeys(tensors))
    total_sizes = _total_sizes(model, drawn)
    streams = {
        rng: _stream(k, list(tensors), nodes, rng, total_sizes.get(rng, ()))
        for k, (rng, tensors) in enumerate(drawn.items())
    }
    arrays: dict[Array, TensorVariable] = {}
    batch: dict[Variable, TensorVariable] = {}
    for node in nodes:
        *tensors, rng = node.inputs
        for tensor, part in zip(tensors, node.outputs[:-1], strict=True):
            if isinstance(tensor, Constant):  # as an input, data is not copied into the graph
                shape = (None, *tensor.type.shape[1:])  # of some rows, where they are fetched
                arrays.setdefault(tensor, TensorType(tensor.dtype, shape)(tensor.name))
            batch[part] = arrays.get(tensor, tensor)[streams[rng].index]
    # without a static number of rows, so that pm.set_data may change it
    prior, likelihood = clone_replace([prior, likelihood], batch, rebuild_strict=False)
    rows = list(streams.values())
    return prior, likelihood, rows[0].scale * rows[0].batch_size, rows, arrays


def _total_sizes(
    model: Model, drawn: Mapping[Variable, Iterable[Variable]]
) -> dict[Variable, set[int]]:
    """Find constant total_size= by generator; raise an error for terms that mix generators."""
    found: dict[Variable, set[int]] = {}
    for var in [*model.observed_RVs, *model.potentials]:
        logp = model.logp(vars=[var], sum=False)
        rngs = list(dict.fromkeys(node.inputs[-1] for node in _minibatch_nodes(logp)))
        if len(rngs) > 1:
            calls = [", ".join(map(_shown, drawn[rng])) for rng in rngs]
            kind = "observed variable" if var in model.observed_RVs else "potential"
            raise ValueError(
                f"The {kind} '{var.name}' mixes rows of {len(rngs)} pm.Minibatch calls, of "
                f"{' and of '.join(calls)}. Each call draws different rows, so they do not belong "
                "together. Draw them in one call: X_mb, y_mb = pm.Minibatch(X, y, batch_size=...)."
            )
        if rngs and isinstance(var.owner.op, MinibatchRandomVariable):
            total = var.owner.inputs[1]
            if isinstance(total, TensorConstant):
                found.setdefault(rngs[0], set()).add(int(total.data))
    return found


def _shown(tensor: Variable) -> str:
    return array_name(tensor) if isinstance(tensor, SharedVariable | Constant) else str(tensor)


def _stream(
    number: int,
    tensors: Sequence[Variable],
    nodes: Sequence[Apply],
    rng: Variable,
    total_sizes: Collection[int],
) -> Rows:
    """Row indices of the pm.Minibatch call that draws ``tensors`` together."""
    if not isinstance(tensors[0], SharedVariable | Constant):
        raise ValueError(
            f"pm.Minibatch of the expression {tensors[0]}: pass a plain array or pm.Data to "
            "pm.Minibatch, and compute the expression from the batch."
        )
    n_rows = array_value(tensors[0]).shape[0]
    batch_size = next(n.outputs[0].type.shape[0] for n in nodes if n.inputs[-1] is rng)
    check_batch_size(batch_size, n_rows)
    scale = pt.scalar(f"N/n_{number}", dtype=pytensor.config.floatX)
    index = pt.lvector(f"rows_{number}")
    cuts = tuple((t, 0) for t in tensors if isinstance(t, SharedVariable | Constant))
    total_size = n_rows if n_rows in total_sizes else None
    return Rows(index, scale, batch_size, cuts, fixed_size=True, total_size=total_size)


def explicit_data(
    expressions: Sequence[TensorVariable], arrays: dict[Array, TensorVariable]
) -> tuple[list[TensorVariable], dict[Array, TensorVariable]]:
    """Make the data explicit inputs of expressions; ``arrays`` are explicit already."""
    for var in ancestors(expressions):
        if isinstance(var, SharedVariable) and isinstance(var.type, RandomType):
            raise ValueError(
                "The model's log probability contains a random draw without a value. Only draws of "
                "pm.Minibatch are supported there: make the draw a variable of the model."
            )
    data = dict(arrays)
    for var in ancestors(expressions):
        if isinstance(var, SharedVariable) and var not in data:
            data[var] = TensorType(var.type.dtype, var.type.shape)(var.name)
    return clone_replace(expressions, data, rebuild_strict=False), data


def _differentiate(model, vars, log_prior, log_likelihood, n_data, rows, arrays):
    """Make the data explicit inputs and take the gradients."""
    expressions, data = explicit_data([log_prior, log_likelihood, n_data], arrays)
    used = set(explicit_graph_inputs(expressions))
    log_prior, log_likelihood, n_data = expressions
    log_prior, log_likelihood = rewrite_pregrad(log_prior), rewrite_pregrad(log_likelihood)
    start = model.initial_point()
    source = GradientSource(
        vars=vars,
        shapes=[np.shape(start[v.name]) for v in vars],
        rows=rows,
        data=[(array, v) for array, v in data.items() if v in used],
        others=[v for v in model.value_vars if v not in vars and v in used],
        log_prior=log_prior,
        log_likelihood=log_likelihood,
        n_data=n_data,
        prior=[gradient_of(log_prior, v) for v in vars],
        likelihood=tidy([gradient_of(log_likelihood, v) for v in vars]),
    )
    source.check_data()
    return source


def gradient_of(log_p: TensorVariable, var: TensorVariable) -> TensorVariable:
    """Differentiate, or raise an error that names the variable."""
    try:
        return pt.grad(log_p, var, disconnected_inputs="ignore")
    except (NullTypeGradError, NotImplementedError, DisconnectedInputError) as error:
        raise ValueError(
            f"The log probability has no gradient with respect to '{var.name}': {error} "
            "Sample it with another step, or write its term with differentiable operations."
        ) from error
