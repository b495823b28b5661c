"""A latent variable's full conditionals, derived from the joint log density of model and data.

The sweep over a variable's units (the elements of one row's value) is a scan; all rows of the batch
are updated at once. A unit's conditional needs only the terms that depend on the variable. Terms
whose elements each depend on a single unit are tabulated before the sweep. For the other terms, the
affine maps of z in them are updated with each unit: see `pymc_sgmcmc.latents.gibbs.affine`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.algorithm import Tensors
from pymc_sgmcmc.gradients.substitute import substitute
from pymc_sgmcmc.latents.gibbs.affine import AffineDependence, affine_dependence
from pymc_sgmcmc.latents.gibbs.logistic import (
    flipped,
    fold,
    log_cosh_half,
    log_products,
    match_bernoulli,
    tanh_half,
)
from pymc_sgmcmc.latents.joint import Joint, LatentVariable
from pymc_sgmcmc.latents.scan import strict_scan
from pymc_sgmcmc.noise import NoiseStream


def boundary(inner: Sequence[Variable], outputs: Sequence[Variable]) -> list[Variable]:
    """Return the inputs of ``outputs`` that do not depend on ``inner``."""
    depends = set(inner)
    taken: dict[Variable, None] = {}
    for node in io_toposort(list(inner), list(outputs)):
        if not depends.isdisjoint(node.inputs):
            depends.update(node.outputs)
            taken |= dict.fromkeys(node.inputs)
    taken |= dict.fromkeys(outputs)
    return [v for v in taken if v not in depends and not isinstance(v, Constant)]


class LogisticTerm(NamedTuple):
    """log Bernoulli(y; sigmoid(a)), a affine in z: see `pymc_sgmcmc.latents.gibbs.logistic`."""

    y: TensorVariable
    a: TensorVariable
    column: TensorVariable
    """Change of a with each unit, shape (units, elements)."""


@dataclass(frozen=True)
class Conditional:
    """The terms of the joint that depend on one latent variable, as expressions of placeholders."""

    variable: LatentVariable
    separable: TensorVariable
    """Sum of the terms whose elements each depend on a single unit, shaped like z."""
    logistic: list[LogisticTerm]
    maps: list[TensorVariable]
    """Affine maps of z in the other terms."""
    columns: list[TensorVariable]
    """Change of each map with each unit, shape (units, ...); the same for all rows."""
    of_rows: TensorVariable
    """Sum of the other terms for each row, as a function of ``maps`` and ``fixed``."""
    fixed: list[Variable]
    """Inputs that stay the same while the units of this variable change."""
    is_affine: bool = True
    """If False, ``maps`` is just the variable's value, without columns."""

    @property
    def n_units(self) -> int:
        """Number of elements of one row's value."""
        return int(np.prod(self.variable.shape, dtype=int))


def conditional(
    joint: Joint,
    variable: LatentVariable,
    *,
    logistic: bool,
    separable: bool = True,
    affine: bool = True,
) -> Conditional:
    """Collect the terms that depend on a latent variable.

    ``logistic`` and ``separable`` say whether to treat such terms separately, ``affine`` whether to
    look for affine maps.
    """
    rows = [joint.rows, *(v.value for v in joint.variables)]
    n_units = int(np.prod(variable.shape, dtype=int))
    basis = pt.constant(np.eye(n_units).reshape(n_units, *variable.shape).astype(variable.dtype))
    separable_terms: list[TensorVariable] = []
    logistic_terms: list[LogisticTerm] = []
    others: list[AffineDependence] = []
    for term in joint.terms:
        if variable.name not in term.depends_on:
            continue
        found = affine_dependence(term.logp, variable.value, rows)
        bernoulli = match_bernoulli(found.expression) if logistic else None
        if separable and found.is_elementwise:
            separable_terms.append(found.expression)
        elif bernoulli and found.frontier == [bernoulli[1]] and _same_matrix(*bernoulli):
            [column] = found.columns(basis)
            logistic_terms.append(LogisticTerm(*bernoulli, column))
        else:
            others.append(found)
    floatX = pytensor.config.floatX
    maps = [a for d in others for a in d.frontier] if affine else [variable.value]
    terms = [d.expression.sum(axis=tuple(range(1, d.expression.ndim))) for d in others]
    of_rows = pt.add(*terms, pt.zeros((1,), dtype=floatX))
    return Conditional(
        variable,
        pt.add(*separable_terms, pt.zeros_like(variable.value, dtype=floatX)),
        logistic_terms,
        maps,
        [column for d in others for column in d.columns(basis)] if affine else [],
        of_rows,
        boundary(maps, [of_rows]),
        affine,
    )


def _same_matrix(y: TensorVariable, a: TensorVariable) -> bool:
    return a.ndim == 2 and y.type.broadcastable == a.type.broadcastable


def _along_rows(per_row: TensorVariable, like: TensorVariable) -> TensorVariable:
    """Append axes, so that one value per row can multiply an array with more axes."""
    return per_row.reshape((-1, *[1] * (like.ndim - 1))) if like.ndim > 1 else per_row


def moved(maps: Sequence, columns: Sequence, steps: TensorVariable) -> Tensors:
    """Return the affine maps after a unit has changed, by one step per row."""
    return [
        a + (_along_rows(steps, a) * column).astype(a.dtype)
        for a, column in zip(maps, columns, strict=True)
    ]


class Move(ABC):
    """How a Gibbs sweep draws one latent variable given the others.

    Its expressions are in terms of a joint's placeholders; `sweep` gets their values.
    """

    @property
    def copies(self) -> int:
        """Number of times that the batch is repeated in ``each_sweep``."""
        return 1

    @property
    def once(self) -> list[Variable]:
        """Values that are the same for all sweeps of a batch."""
        return []

    @property
    @abstractmethod
    def each_sweep(self) -> list[Variable]:
        """Values at the start of each sweep."""

    @abstractmethod
    def sweep(
        self,
        z: TensorVariable,
        once: list[Variable],
        each_sweep: list[Variable],
        stream: NoiseStream,
        climbing: TensorVariable,
    ) -> TensorVariable:
        """Draw the variable, starting from ``z``.

        While ``climbing``, a move that cannot draw from the full conditional may ascend instead.
        """


@dataclass(frozen=True)
class Binary(Move):
    """Draws from the full conditionals of a variable with two values."""

    conditional: Conditional
    support: np.ndarray
    n_rows: int

    @property
    def once(self) -> list[Variable]:
        c = self.conditional
        return [*c.columns, *(term.column for term in c.logistic)]

    @property
    def each_sweep(self) -> list[Variable]:
        c = self.conditional
        logistic = [v for term in c.logistic for v in (term.y, term.a)]
        return [*(_at_value(self, value) for value in self.support), *c.maps, *c.fixed, *logistic]

    def sweep(self, z, once, each_sweep, stream: NoiseStream, climbing) -> TensorVariable:
        """Draw each unit given the others, one after the other."""
        c, n_rows, (low, high) = self.conditional, self.n_rows, self.support
        floatX = pytensor.config.floatX
        k, take = len(c.maps), iter(each_sweep).__next__
        if_low, if_high = take(), take()
        maps, fixed = [take() for _ in c.maps], [take() for _ in c.fixed]
        columns = once[:k]
        log_odds = (if_high - if_low).reshape((n_rows, c.n_units)).T
        loss = pt.zeros((c.n_units,), dtype=floatX)
        taus, vs = [], []
        for column in once[k:]:
            y, a = take(), take()
            change = ((high - low) * column).astype(floatX)
            log_odds = log_odds + pt.dot(change, (y - np.asarray(0.5, floatX)).astype(floatX).T)
            loss = loss + log_cosh_half(change).sum(axis=1, acc_dtype=floatX)
            taus.append(fold(tanh_half(change)).dimshuffle(1, 0, 2))
            vs.append(fold(tanh_half(a.astype(floatX))))
        is_high = pt.eq(z.reshape((n_rows, c.n_units)).T, high)
        uniforms = stream.draw(pt.random.uniform, size=(c.n_units, n_rows), dtype=floatX)
        m = len(vs)

        def density(maps, fixed):
            replace = dict(zip([*c.maps, *c.fixed], [*maps, *fixed], strict=True))
            return substitute([c.of_rows], replace)[0] + pt.zeros((n_rows,), dtype=floatX)

        def unit(is_high, uniform, log_odds, loss, *args):
            take = iter(args).__next__
            columns, taus = [take() for _ in range(k)], [take() for _ in range(m)]
            current = take() if k else None
            maps, vs = [take() for _ in range(k)], [take() for _ in range(m)]
            fixed = [take() for _ in c.fixed]
            sign = pt.switch(is_high, -1, 1).astype(floatX)
            gain = sign * log_odds - loss
            if k:
                steps = sign * np.asarray(high - low, dtype=floatX)
                trial = moved(maps, columns, steps)
                proposed = density(trial, fixed)
                gain = gain + proposed - current
            for v, tau in zip(vs, taus, strict=True):
                # v * sign comes first, because scan would compute sign * tau, which has no state,
                # for all units at once.
                gain = gain - log_products(v * sign[None, :, None], tau[:, None, :])
            flips = uniform < pt.sigmoid(gain)
            new = [pt.neq(is_high, flips)]
            if k:
                new.append(pt.switch(flips, proposed, current))
                new += [
                    pt.switch(_along_rows(flips, a), b, a) for a, b in zip(maps, trial, strict=True)
                ]
            taken = (sign * flips)[None, :, None]
            new += [flipped(v, taken * tau[:, None, :]) for v, tau in zip(vs, taus, strict=True)]
            return new

        start = [density(maps, fixed), *maps] if k else []
        drawn, *_ = strict_scan(
            unit,
            sequences=[is_high, uniforms, log_odds, loss, *columns, *taus],
            outputs_info=[None, *start, *vs],
            non_sequences=fixed,
            n_steps=c.n_units,
        )
        return pt.switch(drawn.T, high, low).astype(z.dtype).reshape(z.shape)


def _at_value(move, value) -> TensorVariable:
    """Return the sum of the separable terms with all units at one value, given other latents."""
    c, v = move.conditional, move.conditional.variable
    filled = pt.full((move.copies * move.n_rows, *v.shape), np.asarray(value, dtype=v.dtype))
    return substitute([c.separable], {v.value: filled})[0]


@dataclass(frozen=True)
class Enumerated(Move):
    """Draws from the full conditionals of a variable with few values.

    The values are evaluated side by side, each on its own copy of the batch.
    """

    conditional: Conditional
    support: np.ndarray
    n_rows: int

    @property
    def copies(self) -> int:
        return len(self.support)

    @property
    def once(self) -> list[Variable]:
        return list(self.conditional.columns)

    @property
    def each_sweep(self) -> list[Variable]:
        c, v = self.conditional, self.conditional.variable
        values = pt.constant(np.repeat(self.support, self.n_rows).astype(v.dtype))
        side_by_side = _along_rows(values, v.value) * pt.ones((1, *v.shape), dtype=v.dtype)
        [table] = substitute([c.separable], {v.value: side_by_side})
        return [table, *c.maps, *c.fixed]

    def sweep(self, z, once, each_sweep, stream: NoiseStream, climbing) -> TensorVariable:
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

            trial = moved(maps, columns, (candidates[:, None] - z).ravel())
            replace = dict(zip([*c.maps, *c.fixed], [*trial, *fixed], strict=True))
            [of_rows] = substitute([c.of_rows], replace)
            of_rows = of_rows + pt.zeros((n_values * n_rows,), dtype=floatX)
            logits = of_rows.reshape((n_values, n_rows)) + table
            cumulative = pt.cumsum(pt.special.softmax(logits, axis=0), axis=0)
            new = candidates[(uniform > cumulative[:-1]).sum(axis=0)]
            return [new, *moved(maps, columns, pt.concatenate([new - z] * n_values))]

        drawn, *_ = strict_scan(
            unit,
            sequences=[z.reshape((n_rows, c.n_units)).T, uniforms, table, *once],
            outputs_info=[None, *maps],
            non_sequences=fixed,
            n_steps=c.n_units,
        )
        return drawn.T.reshape(z.shape)
