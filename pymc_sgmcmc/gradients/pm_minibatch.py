"""Models written with `pm.Minibatch`, whose draws are replaced by batches of this package."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import pytensor
import pytensor.tensor as pt
from pymc.data import MinibatchOp
from pymc.model.core import Model
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorConstant, TensorVariable

from pymc_sgmcmc.gradients.arrays import Array, array_name, array_value, sum_of
from pymc_sgmcmc.gradients.full_terms import full_terms
from pymc_sgmcmc.gradients.source import Rows, check_batch_size


def minibatch_nodes(outputs: Sequence[Variable]) -> list[Apply]:
    """Return the draws of `pm.Minibatch` that outputs depend on."""
    nodes = {v.owner: None for v in ancestors(outputs) if v.owner is not None}
    return [node for node in nodes if isinstance(node.op, MinibatchOp)]


def uses_minibatch(model: Model, rv: Variable) -> bool:
    """Whether a variable or its value uses `pm.Minibatch`."""
    return bool(minibatch_nodes([rv, model.rvs_to_values.get(rv, rv)]))


def written_in_minibatches(model: Model) -> bool:
    """Whether any variable of a model uses `pm.Minibatch`."""
    variables = (*model.free_RVs, *model.observed_RVs, *model.potentials)
    return any(uses_minibatch(model, var) for var in variables)


def refuse_minibatch(model: Model, what: str) -> None:
    """Raise an error that names a variable with `pm.Minibatch`, for which ``what`` is not known."""
    for var in (*model.free_RVs, *model.observed_RVs, *model.potentials):
        if uses_minibatch(model, var):
            raise ValueError(
                f"'{var.name}' uses pm.Minibatch, so the gradients of {what} are not known. Write "
                "the model with all its rows and pass batch_size= instead."
            )


def refuse_unscaled(model: Model) -> None:
    """Raise an error that names an observed variable with `pm.Minibatch` but no total_size."""
    for rv in model.observed_RVs:
        scaled = isinstance(rv.owner.op, MinibatchRandomVariable)
        if not scaled and uses_minibatch(model, rv):
            raise ValueError(
                f"The observed variable '{rv.name}' uses pm.Minibatch without total_size=, so its "
                "likelihood would not be scaled to all the data. Pass total_size=<number of rows>."
            )


def written_with_minibatch(model: Model):
    """Replace the indices of the model's pm.Minibatch; its total_size scales the terms."""
    refuse_unscaled(model)
    terms = model.logp(vars=model.observed_RVs, sum=False)
    likelihood = sum_of(terms)
    prior = model.logp(vars=[*model.free_RVs, *model.potentials])
    nodes = minibatch_nodes([likelihood, prior])
    drawn: dict[Variable, dict[Variable, None]] = {}  # arrays drawn together, by their generator
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
                shape = (None, *tensor.type.shape[1:])  # the rows of a batch, if these are fetched
                arrays.setdefault(tensor, TensorType(tensor.dtype, shape)(tensor.name))
            batch[part] = arrays.get(tensor, tensor)[streams[rng].index]
    # Without a static number of rows, so that pm.set_data may change it.
    prior, likelihood = clone_replace([prior, likelihood], batch, rebuild_strict=False)
    rows = list(streams.values())
    terms = [*model.observed_RVs, *model.potentials]
    rest = [var for var in terms if not uses_minibatch(model, var)]
    full = full_terms(model, rest, min(stream.batch_size for stream in rows))
    return prior, likelihood, rows[0].scale * rows[0].batch_size, rows, arrays, full


def _total_sizes(
    model: Model, drawn: Mapping[Variable, Iterable[Variable]]
) -> dict[Variable, set[int]]:
    """Find constant total_size= by generator; raise an error for terms that mix generators."""
    found: dict[Variable, set[int]] = {}
    for var in [*model.observed_RVs, *model.potentials]:
        logp = model.logp(vars=[var], sum=False)
        rngs = list(dict.fromkeys(node.inputs[-1] for node in minibatch_nodes(logp)))
        if len(rngs) > 1:
            calls = [", ".join(map(_shown, drawn[rng])) for rng in rngs]
            kind = "observed variable" if var in model.observed_RVs else "potential"
            raise ValueError(
                f"The {kind} '{var.name}' mixes rows of {len(rngs)} pm.Minibatch calls, of "
                f"{' and of '.join(calls)}. Each call draws different rows, so they do not belong "
                "together. Pass all these arrays to one call of pm.Minibatch."
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
    """Return the row indices of the pm.Minibatch call that draws ``tensors`` together."""
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
    sliced = tuple((t, 0) for t in tensors if isinstance(t, SharedVariable | Constant))
    total_size = n_rows if n_rows in total_sizes else None
    return Rows(index, scale, batch_size, (sliced,), fixed_size=True, total_size=total_size)
