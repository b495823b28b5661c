"""The centred parametrisation of effects written as a scale times a standard variable.

Rows that say much about effects a = s z with z ~ N(0, 1) make z = a / s as uncertain as s: a
narrow, curved ridge, which no matrix straightens. The posterior of a and s is closer to normal
(Papaspiliopoulos, Roberts and Skoeld 2007). So a is the free variable here, and z a deterministic.
"""

import logging
from collections.abc import Collection, Iterator
from math import prod

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Mul
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.compile_time import quick_graphs, without_code
from pymc_sgmcmc.gradients.arrays import PYTHON, evaluate, has_named_dims
from pymc_sgmcmc.gradients.rows_in_batches import find_row_axes
from pymc_sgmcmc.integration.reparametrised_models import with_stand_in

_log = logging.getLogger("pymc.sgmcmc")

ROWS_PER_EFFECT = 20
"""Number of rows per effect from which, in most models, they say more than its prior."""
TRIED, NEAR, FAR = 20, 0.3, 5.0
"""Number of random unconstrained values of the variables, and their standard deviations, at which a
scale must be positive, or may be 0: one that changes its sign passes with a probability of 1e-6."""
MOST_EFFECTS = 1000
"""Largest number of effects of a variable; more are not sampled with a dense metric."""


@quick_graphs()
def with_centred_effects(
    model: pm.Model, but: Collection[str] = (), n_rows: int | None = None
) -> pm.Model:
    """Return the model in the centred parametrisation, or itself if there is nothing to rewrite.

    Variables about which rows say little, and those named in ``but``, stay as they are. ``n_rows``
    is found if it is not given.
    """
    if has_named_dims(model):
        return model
    shapes, written = model.eval_rv_shapes(), model
    for rv in model.free_RVs:
        z, size = written[rv.name], prod(shapes[rv.name])
        if rv.name in but or not 1 < size <= MOST_EFFECTS or not _is_standard(written, z):
            continue
        n_rows = _n_rows(model) if n_rows is None else n_rows
        effects, standard = next(_centred(written, z, shapes[rv.name]), (None, None))
        if effects is None:
            continue
        if n_rows >= ROWS_PER_EFFECT * size or _have_own_scales(effects):
            written = with_stand_in(written, z, effects, standard, {})
    if written is not model:
        still_free = {rv.name for rv in written.free_RVs}
        names = ", ".join(repr(rv.name) for rv in model.free_RVs if rv.name not in still_free)
        _log.info(f"Sampled in the centred parametrisation: {names}.")
    return written


def _n_rows(model: pm.Model) -> int:
    try:
        return sum(axis.length for axis in find_row_axes(model, None))
    except ValueError:  # no batches
        return 0


def _have_own_scales(effects: TensorVariable) -> bool:
    """Whether effects differ in their scales, as under Gaussian processes and horseshoe priors.

    The rows may determine some of them and say nothing about the others, so no number of rows
    speaks for one form of all.
    """
    op = effects.owner.op
    return isinstance(op, NormalRV) and not all(op.dist_params(effects.owner)[1].type.broadcastable)


def _is_standard(model: pm.Model, z: TensorVariable) -> bool:
    """Whether the prior of a variable is N(0, 1)."""
    if not isinstance(z.owner.op, NormalRV) or model.rvs_to_transforms[z] is not None:
        return False
    parameters = z.owner.op.dist_params(z.owner)
    if not set(model.free_RVs).isdisjoint(ancestors(parameters)):
        return False
    mean, sd = evaluate(*parameters)
    return bool(np.all(mean == 0) and np.all(sd == 1))


def _centred(
    model: pm.Model, z: TensorVariable, shape: tuple[int, ...]
) -> Iterator[tuple[TensorVariable, TensorVariable]]:
    """Yield, for each scale of a standard variable, the effects and z as a function of them.

    The scale of a product of several factors comes before those of its parts, unless a part is also
    used elsewhere, as effects on two outcomes are, one of them with a loading.
    """
    free = set(model.free_RVs)
    clients: dict[Variable, list[Apply]] = {}
    terms = [*model.basic_RVs, *model.potentials]
    for node in {v.owner: None for v in ancestors(terms) if v.owner is not None}:
        for i in dict.fromkeys(node.inputs):
            clients.setdefault(i, []).append(node)

    def uses(v: Variable, by_row: bool, transposed: bool, scale: tuple = ()) -> Iterator:
        if scale and len(clients.get(v, ())) > 1:
            return
        for node in clients.get(v, ()):
            op, out = node.op, node.outputs[0]
            others = [f for i in node.inputs if i is not v for f in _factors(i)]
            scales = [f for f in others if not free.isdisjoint(ancestors([f]))]
            if z in ancestors(others):
                continue
            if isinstance(op, ViewOp):
                yield from uses(out, by_row, transposed, scale)
            elif isinstance(op, AdvancedSubtensor) and node.inputs[0] is v and not scales:
                yield from uses(out, True, transposed, scale)
            elif isinstance(op, DimShuffle) and op.new_order == (1, 0) and not by_row:
                yield from uses(out, by_row, not transposed, scale)
            elif _is_product(node):
                if all(all(s.type.broadcastable) for s in scales):
                    times = [s.reshape(()) for s in scales]
                elif out.ndim == z.ndim and not (by_row or transposed):
                    times = scales
                else:
                    continue
                yield from uses(out, by_row, transposed, (*scale, *times))
                if times:
                    yield from _times(model, prod((*scale, *times)), shape)
            elif len(scales) == 1 and z.ndim == 2 and not (by_row or scale) and _is_dot(op):
                matrix = scales[0].T if node.inputs[0] is v else scales[0]
                yield _columns_times(matrix, shape, (node.inputs[0] is v) != transposed)

    return uses(z, by_row=False, transposed=False)


def _times(
    model: pm.Model, scale: TensorVariable, shape: tuple[int, ...]
) -> Iterator[tuple[TensorVariable, TensorVariable]]:
    """Yield effects of a positive scale.

    A factor that may be negative, such as a loading, is no scale: no transform keeps its sign, so
    among random values of the variables there are some at which it is not positive. Far away it may
    be rounded to 0, as spectral densities of Gaussian processes are.
    """
    start, rng = model.initial_point(), np.random.default_rng(0)
    starts = {v: np.asarray(start[v.name]) for v in model.value_vars}
    [of_values] = model.replace_rvs_by_values([scale])
    with without_code():
        function = pytensor.function(
            model.value_vars, of_values, mode=PYTHON, on_unused_input="ignore"
        )

    def smallest(spread: float) -> np.ndarray:
        tries = [
            [np.asarray(rng.normal(0, spread, v.shape), v.dtype) for v in starts.values()]
            for _ in range(TRIED)
        ]
        with np.errstate(all="ignore"):
            return np.min([function(*tried) for tried in tries])

    positive = min(np.min(function(*starts.values())), smallest(NEAR)) > 0
    if positive and smallest(FAR) >= 0:
        a = pm.Normal.dist(0, scale, shape=shape)
        yield a, a / scale


def _columns_times(
    matrix: TensorVariable, shape: tuple[int, ...], by_rows: bool
) -> tuple[TensorVariable, TensorVariable]:
    """Return effects, one row per group: a matrix times standard variables in columns or rows."""
    n_groups, k = shape if by_rows else shape[::-1]
    a = pm.MvNormal.dist(np.zeros(k), matrix @ matrix.T, shape=(n_groups, k))
    columns = pt.linalg.solve(matrix, a.T)
    return a, columns.T if by_rows else columns


def _factors(v: Variable) -> list[Variable]:
    return [f for i in v.owner.inputs for f in _factors(i)] if _is_product(v.owner) else [v]


def _is_product(node: Apply | None) -> bool:
    op = None if node is None else node.op
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, Mul)


def _is_dot(op: Op) -> bool:
    return isinstance(op.core_op if isinstance(op, Blockwise) else op, Dot)
