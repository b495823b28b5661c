"""Draws of the effects that were integrated out, given each draw of the shared parameters.

Each group has its own Markov chain, whose kernel leaves the conditional density of its effects,
given the draw, invariant: a few steps of Metropolis's algorithm with independent proposals from a
Student density with the group's mode and curvature, given the draw if the points follow it
(see `pymc_sgmcmc.integration.group_centres.Centres`), and otherwise given the
middle of the posterior. Conditional densities with a single mode are close to normal, so nearly all
proposals are accepted, and few steps suffice to move almost every group. For a single effect with
several modes, proposals come from histograms of the densities in the middle of the posterior.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import batched

import numpy as np
from pymc.blocking import PointType

from pymc_sgmcmc.integration.group_centres import Centres
from pymc_sgmcmc.integration.metropolis_proposals import Histograms, Proposals, Student
from pymc_sgmcmc.integration.prior_following import Followed

TRIALS = 32
"""Number of proposals from which the acceptance rate of each group is measured at the centre."""
STEPS = (2, 4, 8, 16, 32)
"""Numbers of Metropolis steps per draw, of which the smallest is used at which a group stays with a
probability of at most `KEPT`."""
KEPT = 0.01
FEWEST_EFFECTIVE = 4
"""Effective number of `TRIALS` below which a group's draws are not trusted."""
DENSITIES_PER_CALL = 50_000
"""Approximate number of densities of single rows per call, whose arrays fit into caches."""
POINTS_AT_ONCE, NUMBERS_AT_ONCE = 32, 2**22
"""Largest number of points, and of effects at all of them, that threads process before they wait
for each other."""


@dataclass
class _Block:
    """A block of groups that move together."""

    groups: np.ndarray
    steps: int
    rng: np.random.Generator


class EffectDraws:
    """Draws the effects of all groups at values of the shared parameters.

    ``centre`` has values in the middle of their posterior. ``share_of_bad`` is the share of groups
    whose conditional density is so far from normal that their draws are not trusted, and
    ``densities`` is the number of densities of single rows that one draw of all groups takes.
    """

    def __init__(self, centres: Centres, centre: PointType, rng: np.random.Generator):
        self.density, self.rng = centres.density, rng
        rows = self.density.rows
        every = np.arange(len(rows.numbers))
        self._centres = Centres(self.density, rows, centres.rule, centres.follow)
        self._centres.modes[centres.rows.numbers] = centres.modes
        self._centres.move(centre)
        self._proposals = self._made_for(centre, every)
        # Each group's effects, in units of its proposals' density.
        self._x = np.empty_like(self._centres.modes)
        # Compiled before there are threads.
        self.density.at_points(centre, every[:1], self._centres.modes[None, :1], rows)
        blocks = self._blocks(every, TRIALS)
        found = self.density.map(lambda block: self._first(centre, block), blocks)
        effective, acceptance = (np.concatenate(each) for each in zip(*found, strict=True))
        self.share_of_bad = float(np.mean(effective < FEWEST_EFFECTIVE))
        kept = (1 - acceptance)[:, None] ** np.array(STEPS) > KEPT
        steps = np.array(STEPS)[np.minimum(kept.sum(axis=1), len(STEPS) - 1)]
        self._moves = [block for n in STEPS for block in self._blocks(every[steps == n], n)]
        self.densities = int(np.sum((1 + steps) * rows.sizes))

    def _blocks(self, groups: np.ndarray, steps: int) -> list[_Block]:
        if not len(groups):
            return []
        cuts = self.density.rows.blocks(groups, DENSITIES_PER_CALL // (1 + steps))
        rngs = self.rng.spawn(len(cuts))
        return [_Block(groups[cut], steps, own) for cut, own in zip(cuts, rngs, strict=True)]

    def of(self, points: Iterable[PointType]) -> Iterator[np.ndarray]:
        """Draw all groups' effects, shape (groups, k), at each of some points."""
        at_once = max(1, min(POINTS_AT_ONCE, NUMBERS_AT_ONCE // self._x.size))
        for some in batched(points, at_once):
            yield from self._at_points(some)

    def _at_points(self, points: Sequence[PointType]) -> np.ndarray:
        drawn = np.empty((len(points), *self._x.shape))

        def run_through(block: _Block) -> None:
            for n, point in enumerate(points):
                drawn[n, block.groups] = self._moved(point, block)

        self.density.map(run_through, self._moves)
        return drawn

    def _first(self, centre: PointType, block: _Block) -> tuple[np.ndarray, np.ndarray]:
        """Draw by weights of proposals; return their effective number and rate of acceptance."""
        x = self._proposals.draw(block.rng, block.groups, block.steps)
        log_weights = self._log_weights(centre, block, x, self._centres.at(centre, block.groups))
        chosen = np.argmax(log_weights + block.rng.gumbel(size=log_weights.shape), axis=0)
        self._x[block.groups] = x[chosen, np.arange(len(block.groups))]
        weights = np.exp(log_weights - log_weights.max(axis=0))
        effective = weights.sum(axis=0) ** 2 / np.sum(weights**2, axis=0)
        # For pairs of draws, one of them weighted, the mean of min(1, w' / w) is a mean of smaller
        # weights.
        pairs = 2 * np.arange(len(x) - 1, -1, -1) @ np.sort(weights, axis=0)
        return effective, pairs / ((len(x) - 1) * weights.sum(axis=0))

    def _moved(self, point: PointType, block: _Block) -> np.ndarray:
        """Take Metropolis steps, whose densities are evaluated in one call; return the effects."""
        proposed = self._proposals.draw(block.rng, block.groups, block.steps)
        x = np.concatenate([self._x[block.groups][None], proposed])
        centres = self._centres.at(point, block.groups)
        log_weights = self._log_weights(point, block, x, centres)
        uniform = block.rng.standard_exponential(size=(block.steps, len(block.groups)))
        chosen, highest = np.zeros(len(block.groups), dtype=int), log_weights[0]
        for step, log_weight in enumerate(log_weights[1:]):
            accepted = log_weight - highest > -uniform[step]
            chosen[accepted] = step + 1
            highest = np.where(accepted, log_weight, highest)
        now = self._x[block.groups] = x[chosen, np.arange(len(block.groups))]
        return centres.modes + np.einsum("gij,gj->gi", centres.factors, now)

    def _made_for(self, centre: PointType, every: np.ndarray) -> Proposals:
        centres = self._centres
        if not centres.have_ranges:
            return Student(centres.modes.shape[1])
        at = centres.at(centre, every)
        a = at.modes + np.einsum("gij,sj->sgi", at.factors, centres.rule.x)
        h = np.empty(a.shape[:2])

        def evaluate(block: slice) -> None:
            rows = self.density.rows
            h[:, block] = self.density.at_points(centre, every[block], a[:, block], rows)

        evaluate(slice(0, 1))  # compiled before there are threads
        self.density.map(evaluate, self.density.rows.blocks(every, DENSITIES_PER_CALL // len(a)))
        return Histograms(centres.rule, h)

    def _log_weights(
        self, point: PointType, block: _Block, x: np.ndarray, centres: Followed
    ) -> np.ndarray:
        """Return logs of densities relative to the proposals', up to a constant of each group."""
        a = centres.modes + np.einsum("gij,sgj->sgi", centres.factors, x)
        h = self.density.at_points(point, block.groups, a, self.density.rows)
        log_weights = h - self._proposals.log_density(block.groups, x)
        return np.where(np.isfinite(log_weights), log_weights, -1e300)

    def into(self, point: PointType, drawn: np.ndarray) -> PointType:
        """Add effects to a point, in the order of the model's value variables."""
        point, first, terms = dict(point), 0, self.density.terms
        for effect in terms.effects:
            own = drawn[:, first : first + effect.size].reshape(-1, *effect.shape)
            point[effect.value.name] = np.moveaxis(own, 0, effect.axis)
            first += effect.size
        return {v.name: point[v.name] for v in terms.model.value_vars}
