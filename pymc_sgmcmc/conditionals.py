"""A latent variable's full conditionals, derived from the joint log density of model and data.

The sweep over a variable's units (the elements of one row's value) is a scan; all rows of the batch
move at once. A unit's conditional needs the terms that depend on it alone, and of those whose
elements each depend on one unit a table made before the sweep. The others keep their affine maps of
z up to date: see `pymc_sgmcmc.affine`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.scan.basic import scan
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.affine import AffineDependence, affine_dependence
from pymc_sgmcmc.algorithm import Tensors
from pymc_sgmcmc.latents import Joint, LocalVariable
from pymc_sgmcmc.stream import Stream
from pymc_sgmcmc.substitute import substitute


def boundary(inner: Sequence[Variable], outputs: Sequence[Variable]) -> list[Variable]:
    """Return the variables that outputs take in besides what depends on ``inner``."""
    depends = set(inner)
    taken: dict[Variable, None] = {}
    for node in io_toposort(list(inner), list(outputs)):
        if not depends.isdisjoint(node.inputs):
            depends.update(node.outputs)
            taken |= dict.fromkeys(node.inputs)
    taken |= dict.fromkeys(outputs)
    return [v for v in taken if v not in depends and not isinstance(v, Constant)]


@dataclass(frozen=True)
class Conditional:
    """The terms of the joint that depend on one latent variable, as expressions of placeholders."""

    variable: LocalVariable
    separable: TensorVariable
    """Sum of the terms each of whose elements depends on one unit, shaped like z."""
    maps: list[TensorVariable]
    """Affine maps of z in the other terms."""
    columns: list[TensorVariable]
    """Change of each map with each unit, shape (units, ...); the same for all rows."""
    of_rows: TensorVariable
    """Sum of the other terms for each row, as a function of ``maps`` and ``fixed``."""
    fixed: list[Variable]
    """What does not change while the units of this variable do."""

    @property
    def n_units(self) -> int:
        """Elements of one row's value."""
        return int(np.prod(self.variable.shape, dtype=int))


def conditional(joint: Joint, variable: LocalVariable) -> Conditional:
    """Collect the terms that depend on a latent variable."""
    rows = [joint.rows, *(v.value for v in joint.variables)]
    separable: list[TensorVariable] = []
    others: list[AffineDependence] = []
    for term in joint.terms:
        if variable.name in term.depends_on:
            found = affine_dependence(term.logp, variable.value, rows)
            if found.is_elementwise:
                separable.append(found.expression)
            else:
                others.append(found)
    n_units = int(np.prod(variable.shape, dtype=int))
    basis = pt.constant(np.eye(n_units).reshape(n_units, *variable.shape).astype(variable.dtype))
    maps = [a for d in others for a in d.frontier]
    floatX = pytensor.config.floatX
    zero = pt.zeros((1,), dtype=floatX)
    terms = [d.expression.sum(axis=tuple(range(1, d.expression.ndim))) for d in others]
    of_rows = pt.add(*terms, zero)
    return Conditional(
        variable,
        pt.add(*separable, pt.zeros_like(variable.value, dtype=floatX)),
        maps,
        [column for d in others for column in d.columns(basis)],
        of_rows,
        boundary(maps, [of_rows]),
    )


def _along_rows(per_row: TensorVariable, like: TensorVariable) -> TensorVariable:
    """Append axes, so that a value for each row multiplies an array with more axes."""
    return per_row.reshape((-1, *[1] * (like.ndim - 1))) if like.ndim > 1 else per_row


def sweep_binary(
    c: Conditional,
    support: np.ndarray,
    z: TensorVariable,
    table: TensorVariable,
    maps: Tensors,
    columns: Tensors,
    fixed: list[Variable],
    n_rows: int,
    stream: Stream,
) -> TensorVariable:
    """Draw each unit of a variable with two values given the others, one after the other."""
    low, high = support
    floatX = pytensor.config.floatX
    uniforms = stream.draw(pt.random.uniform, size=(c.n_units, n_rows), dtype=floatX)
    k = len(maps)
    log_odds = (table[1] - table[0]).reshape((n_rows, c.n_units)).T
    is_high = pt.eq(z.reshape((n_rows, c.n_units)).T, high)

    def density(maps, fixed):
        replace = dict(zip([*c.maps, *c.fixed], [*maps, *fixed], strict=True))
        return substitute([c.of_rows], replace)[0] + pt.zeros((n_rows,), dtype=floatX)

    def unit(is_high, uniform, log_odds, *args):
        columns, current, maps, fixed = args[:k], args[k], args[k + 1 : 2 * k + 1], args[2 * k + 1:]
        step = pt.switch(is_high, low - high, high - low)
        trial = [
            m + (_along_rows(step, m) * column).astype(m.dtype)
            for m, column in zip(maps, columns, strict=True)
        ]
        proposed = density(trial, fixed)
        gain = proposed - current + pt.switch(is_high, -log_odds, log_odds)
        flips = uniform < pt.sigmoid(gain)
        return [
            pt.neq(is_high, flips),
            pt.switch(flips, proposed, current),
            *(
                pt.switch(_along_rows(flips, m), new, m)
                for m, new in zip(maps, trial, strict=True)
            ),
        ]

    drawn, *_ = scan(
        unit,
        sequences=[is_high, uniforms, log_odds, *columns],
        outputs_info=[None, density(maps, fixed), *maps],
        non_sequences=fixed,
        n_steps=c.n_units,
        strict=True,
        return_updates=False,
    )
    return pt.switch(drawn.T, high, low).astype(z.dtype).reshape(z.shape)


def sweep_enumerated(
    c: Conditional,
    support: np.ndarray,
    z: TensorVariable,
    table: TensorVariable,
    maps: Tensors,
    columns: Tensors,
    fixed: list[Variable],
    n_rows: int,
    stream: Stream,
) -> TensorVariable:
    """Draw each unit of a variable with few values given the others, one after the other.

    ``maps`` and ``fixed`` are for as many copies of the batch as there are values.
    """
    floatX = pytensor.config.floatX
    k, n_values = len(maps), len(support)
    uniforms = stream.draw(pt.random.uniform, size=(c.n_units, n_rows), dtype=floatX)
    table = table.reshape((n_values, n_rows, c.n_units)).dimshuffle(2, 0, 1)
    candidates = pt.constant(support.astype(z.dtype))

    def unit(z, uniform, table, *args):
        columns, maps, fixed = args[:k], args[k : 2 * k], args[2 * k :]
        steps = (candidates[:, None] - z).ravel()
        trial = [
            m + (_along_rows(steps, m) * column).astype(m.dtype)
            for m, column in zip(maps, columns, strict=True)
        ]
        replace = dict(zip([*c.maps, *c.fixed], [*trial, *fixed], strict=True))
        [of_rows] = substitute([c.of_rows], replace)
        of_rows = of_rows + pt.zeros((n_values * n_rows,), dtype=floatX)
        logits = of_rows.reshape((n_values, n_rows)) + table
        cumulative = pt.cumsum(pt.special.softmax(logits, axis=0), axis=0)
        chosen = (uniform > cumulative[:-1]).sum(axis=0)
        new = candidates[chosen]
        moved = pt.tile(new - z, n_values)
        return [
            new,
            *(
                m + (_along_rows(moved, m) * column).astype(m.dtype)
                for m, column in zip(maps, columns, strict=True)
            ),
        ]

    drawn, *_ = scan(
        unit,
        sequences=[z.reshape((n_rows, c.n_units)).T, uniforms, table, *columns],
        outputs_info=[None, *maps],
        non_sequences=fixed,
        n_steps=c.n_units,
        strict=True,
        return_updates=False,
    )
    return drawn.T.reshape(z.shape)
