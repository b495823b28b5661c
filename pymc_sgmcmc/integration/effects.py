"""Draws of the effects that were integrated out, given each draw of what is shared.

A draw is one of a few independent draws from the normal density around the group's mode, chosen
with its importance weight. The conditional densities are close to normal where they have a single
mode, so few are enough; the mean share of effective proposals says where they are not.
"""

from itertools import pairwise

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.blocking import PointType

from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.integration.group_terms import GroupTerms
from pymc_sgmcmc.integration.integrated_model import GroupRows, ragged
from pymc_sgmcmc.integration.laplace import cholesky, columns, curvature, modes, solve_upper

PROPOSALS = 8
"""Independent draws of a group's effects, from which one is chosen."""
ROWS_PER_CALL = 200_000
"""About, for memory."""


class EffectDraws:
    """Draws the effects of all groups at values of what is shared.

    Parameters
    ----------
    terms : GroupTerms
    rng : numpy.random.Generator
    """

    def __init__(self, terms: GroupTerms, rng: np.random.Generator):
        self.terms, self.rng = terms, rng
        rows = GroupRows(terms.group_of_row, terms.n_groups, empty=True)
        self.modes = np.zeros((terms.n_groups, terms.k))
        self._blocks = _blocks(rows.sizes)
        groups, first, sizes = pt.lvectors("groups", "first", "sizes")
        self.shared = [v for v in terms.model.value_vars if v not in terms.values]
        start = pt.matrix("start", dtype="float64")
        normals, gumbels = pt.tensor3("normals"), pt.matrix("gumbels")
        positions, places = ragged(first, sizes)
        order = pytensor.shared(rows.order, name="order", borrow=True)
        placeholders: dict = {
            terms.groups: groups,
            terms.rows: order[positions],
            terms.places: places,
        }
        placeholders |= {
            whole: pytensor.shared(array_value(array), borrow=True).astype(whole.dtype)
            for array, whole in terms.arrays.items()
        }
        k = terms.k

        def log_joint(a):
            return terms.log_joint(a, placeholders)

        mode = modes(log_joint, start, k)
        _, matrix = curvature(log_joint, mode, k)
        x = columns(normals, k)
        moves = solve_upper(cholesky(matrix, k), x)
        a = pt.stack([m + dx for m, dx in zip(columns(mode, k), moves, strict=True)], axis=-1)
        h = terms.log_joint_at_points(a, placeholders)
        log_weights = h + 0.5 * (normals**2).sum(axis=-1)
        chosen = pt.argmax(log_weights + gumbels, axis=0)
        drawn = a[chosen, pt.arange(a.shape[1])]
        self._function = pytensor.function(
            [*self.shared, groups, first, sizes, start, normals, gumbels],
            [drawn, mode, log_weights],
            on_unused_input="ignore",
        )
        self._rows = rows

    def at(self, point: PointType) -> np.ndarray:
        """Draw all groups' effects, shape (groups, k), at values of the other value variables."""
        shared = [point[v.name] for v in self.shared]
        drawn = np.empty_like(self.modes)
        rows = self._rows
        for block in self._blocks:
            m = len(rows.numbers[block])
            normals = self.rng.standard_normal((PROPOSALS, m, self.terms.k))
            gumbels = self.rng.gumbel(size=(PROPOSALS, m))
            drawn[block], self.modes[block], _ = self._function(
                *shared,
                rows.numbers[block],
                rows.first[block],
                rows.sizes[block],
                self.modes[block],
                normals,
                gumbels,
            )
        return drawn

    def into(self, point: PointType, drawn: np.ndarray) -> PointType:
        """Add effects to a point."""
        point, first = dict(point), 0
        for effect in self.terms.effects:
            own = drawn[:, first : first + effect.size].reshape(-1, *effect.shape)
            point[effect.value.name] = np.moveaxis(own, 0, effect.axis)
            first += effect.size
        return point


def _blocks(sizes: np.ndarray) -> list[slice]:
    """Cut groups into runs of about `ROWS_PER_CALL` rows."""
    cost = np.cumsum(sizes + 1) // ROWS_PER_CALL
    starts = [0, *(np.flatnonzero(np.diff(cost)) + 1), len(sizes)]
    return [slice(a, b) for a, b in pairwise(starts)]
