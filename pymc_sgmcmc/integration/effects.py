"""Draws of the effects that were integrated out, given each draw of what is shared.

A draw is one of a few independent draws from a normal density with the group's mode and curvature,
chosen by its importance weight. The conditional densities are close to normal where they have a
single mode, so few are enough.
"""

import numpy as np
import pytensor.tensor as pt
from pymc.blocking import PointType

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.integration.group_rows import GroupRows
from pymc_sgmcmc.integration.group_terms import GroupTerms
from pymc_sgmcmc.integration.laplace import ROWS_PER_CALL, GroupFunction, Laplace

PROPOSALS = 6
"""Independent draws of a group's effects, from which one is chosen."""


class EffectDraws:
    """Draws the effects of all groups at values of what is shared.

    Parameters
    ----------
    terms : GroupTerms
    centre : dict of arrays
        Values of what is shared in the middle of their posterior: the normal densities are those
        of groups' modes there.
    rng : numpy.random.Generator
    """

    @quick_graphs()
    def __init__(self, terms: GroupTerms, centre: PointType, rng: np.random.Generator):
        self.terms, self.rng = terms, rng
        rows = GroupRows(terms.group_of_row, terms.n_groups, empty=True)
        every = np.arange(terms.n_groups)
        start = np.zeros((terms.n_groups, terms.k))
        self.modes, self.factors = Laplace(terms, rows)(centre, every, start)
        self._blocks = [every[block] for block in rows.blocks(every, ROWS_PER_CALL)]

        def build(a, placeholders):
            return [terms.log_joint_at_points(a, placeholders)]

        self._density = GroupFunction(terms, rows, build, pt.tensor3("effects"))

    def at(self, point: PointType) -> np.ndarray:
        """Draw all groups' effects, shape (groups, k), at values of the other value variables."""
        drawn = np.empty_like(self.modes)
        for block in self._blocks:
            x = self.rng.standard_normal((PROPOSALS, len(block), self.terms.k))
            a = self.modes[block] + np.einsum("gij,sgj->sgi", self.factors[block], x)
            [h] = self._density(point, block, a)
            log_weights = h + 0.5 * np.sum(x**2, axis=-1)
            chosen = np.argmax(log_weights + self.rng.gumbel(size=log_weights.shape), axis=0)
            drawn[block] = a[chosen, np.arange(len(block))]
        return drawn

    def into(self, point: PointType, drawn: np.ndarray) -> PointType:
        """Add effects to a point; its order is that of the model's value variables."""
        point, first = dict(point), 0
        for effect in self.terms.effects:
            own = drawn[:, first : first + effect.size].reshape(-1, *effect.shape)
            point[effect.value.name] = np.moveaxis(own, 0, effect.axis)
            first += effect.size
        return {v.name: point[v.name] for v in self.terms.model.value_vars}
