"""Where each group's density is evaluated: around its mode or mean, moved with what is shared."""

from collections.abc import Sequence
from copy import copy

import numpy as np
from pymc.blocking import PointType

from pymc_sgmcmc.integration.density_following import (
    derivatives,
    follow_density,
    places_of_gradients,
)
from pymc_sgmcmc.integration.density_ranges import middles_and_factors
from pymc_sgmcmc.integration.group_density import GroupDensity
from pymc_sgmcmc.integration.group_rows import GroupRows
from pymc_sgmcmc.integration.laplace import ROWS_PER_CALL, highest_modes, modes_and_factors
from pymc_sgmcmc.integration.moments import means_and_factors
from pymc_sgmcmc.integration.prior_following import Followed, follow_prior, part_of_rows
from pymc_sgmcmc.integration.quadrature_points import NODES, ROTATIONS, Points, rotations

STAYING = 2, 3
"""Numbers of effects per group with which points stay constant unless asked to follow their prior:
product rules are accurate around constant means too, and an update takes half the time."""
NEGLIGIBLE = 100.0
"""Difference of log densities below the largest of a group beyond which points have no weight."""


class Centres:
    """The points at which groups' densities are evaluated: around each group's mode or mean.

    Without equally spaced points they are the modes of one effect with a normal prior, and
    otherwise means by the rule; these follow normal priors, with 2 or 3 effects only if asked to,
    and with more effects the joint density. With equally spaced points of up to three effects they
    are the middles of the ranges where their density matters.

    Attributes
    ----------
    modes, factors, log_scales : arrays, shapes (groups, k), (groups, k, k), (groups,)
        a* or the mean, L and log |L| of each group; changed in place.
    may_have_several_modes : bool
        Whether the highest one is sought where points are found afresh.
    counted : array of bool, shape (groups, points)
        Which equally spaced points have a density that is not negligible. Changed in place.
    scores, of_rows : arrays, shapes (groups, k), (groups, k, k)
        If the points follow the effects' prior, the gradient of the rows' log likelihood there and
        the rows' part of the precision; if they follow the joint density, what `follow_density`
        compares with. Changed in place.
    """

    def __init__(self, density: GroupDensity, rows: GroupRows, rule: Points, follow: bool):
        self.density, self.rows, self.rule = density, rows, rule
        n, k = len(rows.numbers), density.terms.k
        self.modes = np.zeros((n, k))
        self.factors = np.broadcast_to(np.eye(k), (n, k, k)).copy()
        self.log_scales = np.zeros(n)
        are_normal, self.rotated = density.terms.are_normal, k not in NODES
        self.have_ranges = rule.equally_spaced and not self.rotated
        self.may_have_several_modes = k == 1 and not (self.have_ranges or are_normal)
        self.may_follow = are_normal and not self.have_ranges
        self.follow = self.may_follow and (follow or k not in STAYING)
        self.follow_density = self.follow and self.rotated
        self.scores, self.of_rows = np.zeros((n, k)), np.zeros((n, k, k))
        self.counted = np.ones((n, len(rule.x) if self.have_ranges else 0), dtype=bool)

    def following(self, point: PointType) -> "Centres":
        """Return centres that follow the prior, found afresh at values of the shared parameters."""
        other = copy(self)
        other.follow = True
        other.modes, other.factors = self.modes.copy(), self.factors.copy()
        other.log_scales = self.log_scales.copy()
        other.scores, other.of_rows = self.scores.copy(), self.of_rows.copy()
        other.move(point, afresh=True)
        return other

    def holds(self, array: np.ndarray) -> bool:
        """Whether an array is one of those that are changed in place."""
        own = self.modes, self.factors, self.log_scales, self.scores, self.of_rows, self.counted
        return any(np.may_share_memory(array, one) for one in own)

    def move(self, point: PointType, index: np.ndarray | None = None, afresh: bool = False) -> None:
        """Find some groups' points at values of the shared parameters, from old ones or afresh.

        Groups without density at these values, which overflow, keep their points.
        """
        index = np.arange(len(self.modes)) if index is None else np.unique(index)
        start = np.zeros_like(self.modes[index]) if afresh else self.modes[index]
        modes, factors = modes_and_factors(self.density, point, index, start, self.rows)
        if afresh and self.may_have_several_modes:
            modes, factors = highest_modes(self.density, point, index, modes, factors, self.rows)
        if self.have_ranges:
            modes, factors = middles_and_factors(
                self.density, point, index, modes, factors, self.rows
            )
            self.counted[index] = self._counted(point, index, modes, factors)
        elif not self.follow or modes.shape[1] > 1:
            modes, factors = means_and_factors(
                self.density, point, index, modes, factors, self.rows, self.rule
            )
        diagonals = np.diagonal(factors, axis1=1, axis2=2)
        log_scales = np.log(np.abs(diagonals)).sum(axis=1)
        if self.rotated:
            factors = factors @ rotations(modes.shape[1])[self.rows.numbers[index] % ROTATIONS]
        there = self._derivatives(point, index, modes, factors) if self.follow else ()
        found = np.ones(len(index), dtype=bool)
        for part in (modes, factors, *there):
            found &= np.isfinite(part).reshape(len(index), -1).all(axis=1)
        index, modes, factors = index[found], modes[found], factors[found]
        self.modes[index], self.factors[index] = modes, factors
        self.log_scales[index] = log_scales[found]
        if self.follow:
            gradient, hessian = (part[found] for part in there)
            self.scores[index] = -gradient  # so that the points stay for these values
            if self.follow_density:
                self.of_rows[index] = np.eye(modes.shape[1]) + hessian
            else:
                self.of_rows[index] = part_of_rows(factors, hessian)

    def at(self, point: PointType, index: np.ndarray) -> Followed:
        """Return some groups' modes and factors at values of the shared parameters."""
        held = Followed(self.modes[index], self.factors[index], self.log_scales[index])
        if not self.follow:
            return held
        scores, of_rows = self.scores[index], self.of_rows[index]
        gradient, hessian = self._derivatives(point, index, held.modes, held.factors)
        if self.follow_density:
            return follow_density(held, scores, of_rows, gradient, hessian, np)
        return follow_prior(held.modes, scores, of_rows, gradient, hessian, np)

    def _counted(
        self, point: PointType, index: np.ndarray, modes: np.ndarray, factors: np.ndarray
    ) -> np.ndarray:
        """Return which points have a density that is not negligible, shape (m, points)."""
        counted = np.empty((len(index), len(self.rule.x)), dtype=bool)

        def find(block: slice) -> None:
            a = modes[block] + np.einsum("gij,sj->sgi", factors[block], self.rule.x)
            h = self.density.at_points(point, index[block], a, self.rows)
            h = np.nan_to_num(h, nan=-np.inf)
            counted[block] = (h >= h.max(axis=0) - NEGLIGIBLE).T

        find(slice(0, 1))  # compiled before there are threads
        self.density.map(find, self.rows.blocks(index, ROWS_PER_CALL // len(self.rule.x)))
        return counted

    def _derivatives(
        self, point: PointType, index: np.ndarray, modes: np.ndarray, factors: np.ndarray
    ) -> Sequence[np.ndarray]:
        """Gradient and Hessian of the prior, or of the joint density in standard deviations."""
        if not self.follow_density:
            return self.density.prior_derivatives(point, index, modes, self.rows)
        places = places_of_gradients(modes, factors, np)
        gradients = np.empty_like(places)

        def evaluate(block: slice) -> None:
            gradients[:, block] = self.density.gradients_at_points(
                point, index[block], places[:, block], self.rows
            )

        blocks = self.rows.blocks(index, ROWS_PER_CALL // len(places))
        if len(blocks) == 1:  # as for each draw of effects, in threads of its own
            evaluate(blocks[0])
        else:
            evaluate(slice(0, 1))  # compiled before there are threads
            self.density.map(evaluate, blocks)
        return derivatives(factors, gradients, np)
