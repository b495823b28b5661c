"""A latent variable's full conditionals, derived from the joint log density of model and data.

The sweep over a variable's units (the elements of one row's value) is a scan; all rows of the batch
move at once. A unit's conditional needs the terms that depend on it alone, and of those whose
elements each depend on one unit a table made before the sweep. The others keep their affine maps of
z up to date: see `pymc_sgmcmc.affine`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.scan.basic import scan
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.affine import AffineDependence, affine_dependence
from pymc_sgmcmc.latents import Joint, LocalVariable
from pymc_sgmcmc.logistic import flip, fold, match_bernoulli
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


class LogisticTerm(NamedTuple):
    """log Bernoulli(y; sigmoid(a)) with a affine in z: see `pymc_sgmcmc.logistic`."""

    y: TensorVariable
    a: TensorVariable
    column: TensorVariable
    """Change of a with each unit, shape (units, elements)."""


@dataclass(frozen=True)
class Conditional:
    """The terms of the joint that depend on one latent variable, as expressions of placeholders."""

    variable: LocalVariable
    separable: TensorVariable
    """Sum of the terms each of whose elements depends on one unit, shaped like z."""
    logistic: list[LogisticTerm]
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


def conditional(joint: Joint, variable: LocalVariable, logistic: bool) -> Conditional:
    """Collect the terms that depend on a latent variable.

    ``logistic`` tells whether Bernoulli terms are to be set apart.
    """
    rows = [joint.rows, *(v.value for v in joint.variables)]
    n_units = int(np.prod(variable.shape, dtype=int))
    basis = pt.constant(np.eye(n_units).reshape(n_units, *variable.shape).astype(variable.dtype))
    separable: list[TensorVariable] = []
    logistic_terms: list[LogisticTerm] = []
    others: list[AffineDependence] = []
    for term in joint.terms:
        if variable.name not in term.depends_on:
            continue
        found = affine_dependence(term.logp, variable.value, rows)
        bernoulli = match_bernoulli(found.expression) if logistic else None
        if found.is_elementwise:
            separable.append(found.expression)
        elif bernoulli and found.frontier == [bernoulli[1]] and bernoulli[1].ndim == 2:
            [column] = found.columns(basis)
            logistic_terms.append(LogisticTerm(*bernoulli, column))
        else:
            others.append(found)
    floatX = pytensor.config.floatX
    maps = [a for d in others for a in d.frontier]
    terms = [d.expression.sum(axis=tuple(range(1, d.expression.ndim))) for d in others]
    of_rows = pt.add(*terms, pt.zeros((1,), dtype=floatX))
    return Conditional(
        variable,
        pt.add(*separable, pt.zeros_like(variable.value, dtype=floatX)),
        logistic_terms,
        maps,
        [column for d in others for column in d.columns(basis)],
        of_rows,
        boundary(maps, [of_rows]),
    )


def _along_rows(per_row: TensorVariable, like: TensorVariable) -> TensorVariable:
    """Append axes, so that a value for each row multiplies an array with more axes."""
    return per_row.reshape((-1, *[1] * (like.ndim - 1))) if like.ndim > 1 else per_row


@dataclass(frozen=True)
class Binary:
    """Draws from the full conditionals of a variable with two values."""

    conditional: Conditional
    support: np.ndarray
    n_rows: int

    copies: ClassVar[int] = 1

    @property
    def once(self) -> list[Variable]:
        """What is the same for all sweeps of a batch."""
        c = self.conditional
        return [*c.columns, *(term.column for term in c.logistic)]

    @property
    def each_sweep(self) -> list[Variable]:
        """What a sweep begins with."""
        c = self.conditional
        logistic = [v for term in c.logistic for v in (term.y, term.a)]
        return [*(_at_value(self, value) for value in self.support), *c.maps, *c.fixed, *logistic]

    def sweep(self, z, once, each_sweep, stream: Stream) -> TensorVariable:
        """Draw each unit given the others, one after the other."""
        c, n_rows, (low, high) = self.conditional, self.n_rows, self.support
        floatX = pytensor.config.floatX
        k, take = len(c.maps), iter(each_sweep).__next__
        if_low, if_high = take(), take()
        maps, fixed = [take() for _ in c.maps], [take() for _ in c.fixed]
        columns = once[:k]
        log_odds = (if_high - if_low).reshape((n_rows, c.n_units)).T
        ups, folded = [], []
        for column in once[k:]:
            y, a = take(), take()
            width = column.type.shape[1]
            change = ((high - low) * column).astype(floatX)
            log_odds = log_odds + pt.dot(change, (y - np.asarray(0.5, floatX)).astype(floatX).T)
            half = np.asarray(0.5, floatX) * change
            ups += [fold(pt.exp(sign * half), width, 1.0).dimshuffle(1, 0, 2) for sign in (1, -1)]
            a = a.astype(floatX)
            folded += [fold(pt.sigmoid(a), width, 0.0), fold(pt.sigmoid(-a), width, 1.0)]
        is_high = pt.eq(z.reshape((n_rows, c.n_units)).T, high)
        uniforms = stream.draw(pt.random.uniform, size=(c.n_units, n_rows), dtype=floatX)
        m = len(folded)

        def density(maps, fixed):
            replace = dict(zip([*c.maps, *c.fixed], [*maps, *fixed], strict=True))
            return substitute([c.of_rows], replace)[0] + pt.zeros((n_rows,), dtype=floatX)

        def unit(is_high, uniform, log_odds, *args):
            take = iter(args).__next__
            columns, ups = [take() for _ in range(k)], [take() for _ in range(m)]
            current = take() if k else None
            maps, folded = [take() for _ in range(k)], [take() for _ in range(m)]
            fixed = [take() for _ in c.fixed]
            gain = pt.switch(is_high, -log_odds, log_odds)
            old, new = [], []
            if k:
                step = pt.switch(is_high, low - high, high - low)
                trial = [
                    a + (_along_rows(step, a) * column).astype(a.dtype)
                    for a, column in zip(maps, columns, strict=True)
                ]
                proposed = density(trial, fixed)
                gain = gain + proposed - current
                old, new = [current, *maps], [proposed, *trial]
            across = is_high[None, :, None]
            for j in range(0, m, 2):
                up, down = ups[j][:, None, :], ups[j + 1][:, None, :]
                log_t, *moved = flip(
                    *folded[j : j + 2], pt.switch(across, down, up), pt.switch(across, up, down)
                )
                gain = gain - log_t
                old, new = [*old, *folded[j : j + 2]], [*new, *moved]
            flips = uniform < pt.sigmoid(gain)
            moving = [
                pt.switch(
                    flips[None, :, None]
                    if a.ndim == 3 and i >= len(old) - m
                    else _along_rows(flips, a),
                    b,
                    a,
                )
                for i, (a, b) in enumerate(zip(old, new, strict=True))
            ]
            return [pt.neq(is_high, flips), *moving]

        start = [density(maps, fixed), *maps] if k else []
        drawn, *_ = scan(
            unit,
            sequences=[is_high, uniforms, log_odds, *columns, *ups],
            outputs_info=[None, *start, *folded],
            non_sequences=fixed,
            n_steps=c.n_units,
            strict=True,
            return_updates=False,
        )
        drawn = drawn if not isinstance(drawn, list) else drawn[0]
        return pt.switch(drawn.T, high, low).astype(z.dtype).reshape(z.shape)


def _at_value(move, value) -> TensorVariable:
    """Sum of the separable terms with all units at one value, a function of the other latents."""
    c, v = move.conditional, move.conditional.variable
    filled = pt.full((move.copies * move.n_rows, *v.shape), np.asarray(value, dtype=v.dtype))
    return substitute([c.separable], {v.value: filled})[0]


@dataclass(frozen=True)
class Enumerated:
    """Draws from the full conditionals of a variable with few values.

    The values are tried side by side, on as many copies of the batch.
    """

    conditional: Conditional
    support: np.ndarray
    n_rows: int

    @property
    def copies(self) -> int:
        return len(self.support)

    @property
    def once(self) -> list[Variable]:
        """What is the same for all sweeps of a batch."""
        return list(self.conditional.columns)

    @property
    def each_sweep(self) -> list[Variable]:
        """What a sweep begins with, for all copies of the batch."""
        c, v = self.conditional, self.conditional.variable
        values = pt.constant(np.repeat(self.support, self.n_rows).astype(v.dtype))
        side_by_side = _along_rows(values, v.value) * pt.ones((1, *v.shape), dtype=v.dtype)
        [table] = substitute([c.separable], {v.value: side_by_side})
        return [table, *c.maps, *c.fixed]

    def sweep(self, z, once, each_sweep, stream: Stream) -> TensorVariable:
        """Draw each unit given the others, one after the other."""
        c, n_rows, n_values = self.conditional, self.n_rows, self.copies
        floatX = pytensor.config.floatX
        k = len(c.maps)
        table, maps, fixed = each_sweep[0], each_sweep[1 : k + 1], each_sweep[k + 1 :]
        uniforms = stream.draw(pt.random.uniform, size=(c.n_units, n_rows), dtype=floatX)
        table = table.reshape((n_values, n_rows, c.n_units)).dimshuffle(2, 0, 1)
        candidates = pt.constant(self.support.astype(z.dtype))

        def unit(z, uniform, table, *args):
            columns, maps, fixed = args[:k], args[k : 2 * k], args[2 * k :]

            def moved_by(steps):
                return [
                    a + (_along_rows(steps, a) * column).astype(a.dtype)
                    for a, column in zip(maps, columns, strict=True)
                ]

            trial = moved_by((candidates[:, None] - z).ravel())
            replace = dict(zip([*c.maps, *c.fixed], [*trial, *fixed], strict=True))
            [of_rows] = substitute([c.of_rows], replace)
            of_rows = of_rows + pt.zeros((n_values * n_rows,), dtype=floatX)
            logits = of_rows.reshape((n_values, n_rows)) + table
            cumulative = pt.cumsum(pt.special.softmax(logits, axis=0), axis=0)
            new = candidates[(uniform > cumulative[:-1]).sum(axis=0)]
            return [new, *moved_by(pt.concatenate([new - z] * n_values))]

        drawn = scan(
            unit,
            sequences=[z.reshape((n_rows, c.n_units)).T, uniforms, table, *once],
            outputs_info=[None, *maps],
            non_sequences=fixed,
            n_steps=c.n_units,
            strict=True,
            return_updates=False,
        )
        drawn = drawn[0] if isinstance(drawn, list) else drawn
        return drawn.T.reshape(z.shape)
