"""Draws of the effects that were integrated out, given each draw of what is shared.

A draw is one of several independent draws from a Student density with the group's mode and
curvature, chosen by its importance weight (sampling importance resampling). Its tails are long
enough for those of log rates of groups with few counts. Conditional densities are close to normal
where they have a single mode, so that few proposals are enough for most groups.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import batched

import numpy as np
from pymc.blocking import PointType

from pymc_sgmcmc.backends.cores import n_cores
from pymc_sgmcmc.integration.group_density import GroupDensity
from pymc_sgmcmc.integration.laplace import ROWS_PER_CALL, modes_and_factors

PROPOSALS = 8
"""Independent draws of a group's effects, from which one is chosen,"""
MANY_PROPOSALS = 64
"""... where the weights of so many are uneven at the centre."""
EXTRA_DEGREES = 7
"""Degrees of freedom of the Student density, more than effects: for a normal density the effective
share of its weights is then .98 with one effect, and few proposals leave sds .5% too large."""
EVEN = 0.9
"""Effective share of weights that are even: few proposals then leave an error of .03 of a standard
deviation at most, in groups of counts."""
FEWEST_EFFECTIVE = 8
"""Effective number of `MANY_PROPOSALS` below which a group's draws are not trusted."""


class EffectDraws:
    """Draws the effects of all groups at values of what is shared.

    Parameters
    ----------
    density : GroupDensity
    centre : dict of arrays
        Values of what is shared in the middle of their posterior: the Student densities have the
        groups' modes and curvatures there.
    rng : numpy.random.Generator

    Attributes
    ----------
    share_of_bad : float
        Groups whose conditional density is so far from normal that their draws are not trusted.
    """

    def __init__(self, density: GroupDensity, centre: PointType, rng: np.random.Generator):
        self.density, self.rng, self.terms = density, rng, density.terms
        rows = density.rows
        every = np.arange(len(rows.numbers))
        start = np.zeros((len(every), self.terms.k))
        self.modes, self.factors = modes_and_factors(density, centre, every, start, rows)
        effective = np.empty(len(every))
        for block in rows.blocks(every, ROWS_PER_CALL * PROPOSALS // MANY_PROPOSALS):
            _, log_weights = self._proposed(centre, every[block], MANY_PROPOSALS, rng)
            weights = np.exp(log_weights - log_weights.max(axis=0))
            effective[block] = weights.sum(axis=0) ** 2 / np.sum(weights**2, axis=0)
        even = effective >= EVEN * MANY_PROPOSALS
        self.share_of_bad = float(np.mean(effective < FEWEST_EFFECTIVE))
        self._blocks = [
            (groups[block], proposals)
            for groups, proposals in ((every[even], PROPOSALS), (every[~even], MANY_PROPOSALS))
            for block in rows.blocks(groups, ROWS_PER_CALL * PROPOSALS // proposals)
            if len(groups)
        ]

    def of(self, points: Iterable[PointType]) -> Iterator[np.ndarray]:
        """Draw all groups' effects, shape (groups, k), at each of some points."""
        threads = n_cores() if self.density.in_threads else 1
        with ThreadPoolExecutor(threads) as pool:
            for some in batched(points, 2 * threads):
                yield from pool.map(self.at, some, self.rng.spawn(len(some)))

    def at(self, point: PointType, rng: np.random.Generator) -> np.ndarray:
        """Draw all groups' effects, shape (groups, k), at values of the other value variables."""
        drawn = np.empty_like(self.modes)
        for groups, proposals in self._blocks:
            a, log_weights = self._proposed(point, groups, proposals, rng)
            chosen = np.argmax(log_weights + rng.gumbel(size=log_weights.shape), axis=0)
            drawn[groups] = a[chosen, np.arange(len(groups))]
        return drawn

    def _proposed(
        self, point: PointType, groups: np.ndarray, count: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Proposals, shape (count, m, k), and the logs of their weights, shape (count, m)."""
        k = self.terms.k
        degrees = k + EXTRA_DEGREES
        x = rng.standard_normal((count, len(groups), k))
        x /= np.sqrt(rng.chisquare(degrees, size=x.shape[:2]) / degrees)[..., None]
        a = self.modes[groups] + np.einsum("gij,sgj->sgi", self.factors[groups], x)
        h = self.density.at_points(point, groups, a, self.density.rows)
        return a, h + (degrees + k) / 2 * np.log1p(np.sum(x**2, axis=-1) / degrees)

    def into(self, point: PointType, drawn: np.ndarray) -> PointType:
        """Add effects to a point; its order is that of the model's value variables."""
        point, first = dict(point), 0
        for effect in self.terms.effects:
            own = drawn[:, first : first + effect.size].reshape(-1, *effect.shape)
            point[effect.value.name] = np.moveaxis(own, 0, effect.axis)
            first += effect.size
        return {v.name: point[v.name] for v in self.terms.model.value_vars}
