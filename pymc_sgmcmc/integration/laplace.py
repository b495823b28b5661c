r"""The mode and curvature of each group's effects, and the log of each group's integral.

For each group, with h(a) = log p(y, a | shared) of its k effects::

    a* = argmax h,   L L' = (-h''(a*))^{-1}
    log integral exp h(a) da = log sum_s w_s exp(h(a* + L x_s) - log N(a* + L x_s; a*, L L'))

(adaptive quadrature: Pinheiro and Bates 1995), with points x_s and weights w_s for the standard
normal density. The sum is nearly the same for all a* and L near these. So they are found once, at
values of what is shared in the middle of the posterior, and are constants of the compiled updates.
"""

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.blocking import PointType
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.integration.group_rows import GroupRows, ragged
from pymc_sgmcmc.integration.group_terms import GroupTerms
from pymc_sgmcmc.integration.points import Points

MAX_STEPS = 100
CLOSE = 1e-6
"""Newton's steps end when no h can rise by more than this."""
DAMPING = 1e-3
"""First damping of Newton's steps, relative to the curvature; it changes tenfold,"""
MOST_DAMPING = 1e8
"""... and a group that it does not help stays where it is."""
ROWS_PER_CALL = 200_000
"""About, for memory."""


def log_integrals(h: TensorVariable, modes_scale: TensorVariable, points: Points) -> TensorVariable:
    """Log of each group's integral, shape (groups,).

    Parameters
    ----------
    h : shape (points, groups)
        Log joint densities at a* + L x_s.
    modes_scale : shape (groups,)
        log |L|.
    points : Points
    """
    k = points.x.shape[1]
    half_squares = 0.5 * np.sum(points.x**2, axis=1) + points.log_weights
    terms = h + half_squares[:, None].astype(h.dtype)
    return pt.logsumexp(terms, axis=0) + modes_scale + 0.5 * k * np.log(2 * np.pi)


class GroupFunction:
    """A compiled function of groups' effects, at values of what is shared.

    Parameters
    ----------
    terms : GroupTerms
    rows : GroupRows
    build : callable
        Effects and the replacements of ``terms``' placeholders, to a list of expressions.
    effects : variable
        Stands for the effects.
    """

    def __init__(self, terms: GroupTerms, rows: GroupRows, build, effects: TensorVariable):
        self.rows = rows
        groups, first, sizes = pt.lvectors("groups", "first", "sizes")
        self.shared = [v for v in terms.model.value_vars if v not in terms.values]
        positions, places = ragged(first, sizes)
        if not rows.sorted:
            positions = pytensor.shared(rows.order, borrow=True)[positions]
        placeholders: dict = {
            terms.groups: groups,
            terms.rows: positions,
            terms.places: places,
        }
        placeholders |= {
            whole: pytensor.shared(array_value(array), borrow=True).astype(whole.dtype)
            for array, whole in terms.arrays.items()
        }
        self._function = pytensor.function(
            [*self.shared, groups, first, sizes, effects],
            build(effects, placeholders),
            on_unused_input="ignore",
        )

    def __call__(self, point: PointType, index: np.ndarray, effects: np.ndarray) -> list:
        """Evaluate for the groups at these places in ``rows``."""
        rows = self.rows
        return self._function(
            *(point[v.name] for v in self.shared),
            rows.numbers[index],
            rows.first[index],
            rows.sizes[index],
            effects,
        )


class Laplace:
    """Finds modes and curvatures of groups.

    Parameters
    ----------
    terms : GroupTerms
    rows : GroupRows
    """

    def __init__(self, terms: GroupTerms, rows: GroupRows):
        self.rows, k = rows, terms.k

        def build(a, placeholders):
            h = terms.log_joint(a, placeholders)
            gradient = pt.grad(h.sum(), a)
            hessian = [pt.grad(gradient[:, i].sum(), a) for i in range(k)]
            return [h, gradient, pt.stack(hessian, axis=1)]

        self._derivatives = GroupFunction(terms, rows, build, pt.matrix("effects"))

    def __call__(
        self, point: PointType, index: np.ndarray, start: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return modes, shape (m, k), and factors L, shape (m, k, k), of some groups.

        Newton's method with Levenberg's damping, for each group its own.

        Parameters
        ----------
        point : dict of arrays
            Values of what is shared.
        index : integers, shape (m,)
            Places of the groups in ``rows``.
        start : array, shape (m, k)
        """
        modes, factors = np.empty_like(start), np.empty((*start.shape, start.shape[1]))
        for block in self.rows.blocks(index, ROWS_PER_CALL):
            modes[block], factors[block] = self._of_block(point, index[block], start[block])
        return modes, factors

    def _of_block(self, point: PointType, index: np.ndarray, start: np.ndarray):
        a = np.array(start, dtype="float64")
        with np.errstate(all="ignore"):
            h, gradient, hessian = self._derivatives(point, index, a)
        damping, moving = np.full(len(a), DAMPING), np.arange(len(a))
        for _ in range(MAX_STEPS):
            matrix = _positive(-hessian[moving], damping[moving])
            step = np.linalg.solve(matrix, gradient[moving][..., None])[..., 0]
            rise = np.sum(step * gradient[moving], axis=1)
            left = (rise > CLOSE) & (damping[moving] < MOST_DAMPING)
            moving, step = moving[left], step[left]
            if not len(moving):
                break
            with np.errstate(all="ignore"):
                new = self._derivatives(point, index[moving], a[moving] + step)
            finite = np.isfinite(new[0]) & np.isfinite(new[1]).all(axis=1)
            better = finite & ((new[0] >= h[moving]) | ~np.isfinite(h[moving]))
            which = moving[better]
            a[which] += step[better]
            h[which], gradient[which], hessian[which] = (part[better] for part in new)
            damping[moving] *= np.where(better, 0.1, 10.0)
        return a, np.linalg.inv(np.linalg.cholesky(_positive(-hessian, 0.0))).swapaxes(1, 2)


def _positive(matrices: np.ndarray, damping: np.ndarray | float) -> np.ndarray:
    """Make symmetric matrices positive by their absolute eigenvalues, and damp their diagonals."""
    matrices = np.nan_to_num(matrices, nan=0.0, posinf=1e12, neginf=-1e12)
    values, vectors = np.linalg.eigh((matrices + matrices.swapaxes(1, 2)) / 2)
    values = np.abs(values)
    values = np.maximum(values, 1e-8 * (1e-4 + values[:, -1:]))
    values = values * (1 + np.reshape(damping, (-1, 1)))
    return (vectors * values[:, None, :]) @ vectors.swapaxes(1, 2)
