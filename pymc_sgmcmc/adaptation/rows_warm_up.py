"""The warm-up of models with gradients of single rows: with an anchor, row weights and noise.

All inputs that the compiled updates need are arguments, so nothing is compiled again.
"""

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from pymc_sgmcmc.adaptation.adapted_settings import Adapted
from pymc_sgmcmc.adaptation.change_of_form import (
    OtherForm,
    form_may_change,
    take_equally_spaced_points,
)
from pymc_sgmcmc.adaptation.coloured_differences import colours, hessian_by_colours, spread_of
from pymc_sgmcmc.adaptation.curvature import undetermined, with_second_derivatives
from pymc_sgmcmc.adaptation.curvature_warm_up import SPREAD, CurvatureWarmUp
from pymc_sgmcmc.adaptation.normal_approximation import is_far_too_wide, narrowed
from pymc_sgmcmc.adaptation.objective import Evaluated, Objective, RowsObjective
from pymc_sgmcmc.adaptation.row_weights import RowWeights
from pymc_sgmcmc.adaptation.short_runs import Settings
from pymc_sgmcmc.gradients.anchor_factors import AnchorFactors
from pymc_sgmcmc.gradients.metric import Metric, split_flat
from pymc_sgmcmc.gradients.row_gradients import RowGradients

_log = logging.getLogger("pymc.sgmcmc")

POSITIONS, ROWS_PER_POSITION = 50, 512
"""Numbers of points, and of ordinary rows at each, from which the noise is estimated."""
MOST_SCALES, POINTS_OF_SCALES = 20, 6
"""Largest number of scale parameters whose rows of Hessians are used, and number of points over
which these are averaged."""
POINTS_OF_INTEGRALS = 10
"""Number of points between which the error of groups' integrals may change."""
MOST_FAR, FAR = 10, 3.0
"""Largest number of scale parameters in whose tails this error is also measured, and the distance,
in standard deviations, at which chains will be sooner or later."""
FEW_ROWS_PER_PARAMETER, MOST_COLOURS = 20, 60
"""Rows per parameter below which products of gradients are noisy, and number of differences from
which it is too costly to replace them by a Hessian."""
DIFFERENCE = 0.1
"""Distance, in standard deviations, between gradients whose difference gives a row of a Hessian."""
VARIED, MOST_VARIED = 0.5, 20
"""log ratio of the slope of a transformed element above which its curvature in the tail is found,
and largest number of such elements."""
NOISY = 2.0
"""Noise above which rows are weighted again after the first window."""


class RowsWarmUp(CurvatureWarmUp):
    """Adapts a kernel by gradients of single rows."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        source = self.kernel.source
        has_anchor = source.has_control_variate
        self.factors = AnchorFactors(self.gradients) if has_anchor else None
        self.weights: RowWeights | None = None
        if self.factors is not None and source.rows[0].weights is not None:
            self.weights = RowWeights(self.gradients, self.factors)

    def make_objective(self) -> Objective:
        return RowsObjective(self.gradients, before_pass=self.report)

    def curvatures(self) -> list[np.ndarray]:
        local = self.at_anchor(with_curvature=True)
        self.anchor_gradient = local.likelihood_gradient
        matrix = self._with_rows_of_scales(self._curvature(local))
        if not np.isfinite(matrix).all():
            take_equally_spaced_points(self.gradients)
        return [matrix]

    def _curvature(self, local: Evaluated) -> np.ndarray:
        """Return the information or, for few rows per parameter, a sparse Hessian at the anchor."""
        information, g = local.curvature(), self.gradients
        if g.n_rows > FEW_ROWS_PER_PARAMETER * g.size or not np.isfinite(information).all():
            return information
        # Differences have errors, which would hide a direction without curvature.
        if undetermined(information, self.objective.no_curvature).size:
            return information
        pattern = g.likelihood(self.anchor).scatter != 0
        self.count(1)
        of_column, full = colours(pattern)
        if of_column.max() >= MOST_COLOURS:
            return information
        steps = DIFFERENCE * spread_of(np.diag(information))

        def gradient(theta: np.ndarray) -> np.ndarray:
            return -self.objective.at(theta).likelihood_gradient

        of_rows = hessian_by_colours(gradient, self.anchor, steps, pattern, of_column, full)
        return of_rows - g.prior_hessian(self.anchor)

    def _with_rows_of_scales(self, matrix: np.ndarray) -> np.ndarray:
        """Use second derivatives of few scale parameters if the rows' information is inaccurate.

        Effects s z are not linear in log s, so the information may be several times the second
        derivatives.
        """
        scales = np.flatnonzero(self.is_scale)
        if self.past is None or not 0 < len(scales) <= MOST_SCALES:
            return matrix
        objective, points = self.objective_of_steep_rows(), self._points(POINTS_OF_SCALES)

        def gradient(theta: np.ndarray) -> np.ndarray:
            return objective.at(theta).gradient

        steps = DIFFERENCE * self.metric.spread()
        return with_second_derivatives(matrix, scales, gradient, points, steps)

    def narrow(self) -> None:
        objective = self.objective_of_steep_rows()
        with np.errstate(over="ignore", invalid="ignore"):
            if not is_far_too_wide(objective, self.anchor, self.matrix, self.rng):
                return
            _log.debug("The normal approximation at the start is far too wide.")
            self.anchor, self.matrix = narrowed(objective, self.anchor, self.matrix, self.rng)
        self.anchor_gradient = self.at_anchor().likelihood_gradient
        self.metric.scale_to(self.matrix)

    def refuse_coarse_integrals(self) -> None:
        # In any case, so that draws are the same whether or not the form may change.
        self.gradients.settle_around(self.anchor)
        points = self._points(POINTS_OF_INTEGRALS)
        others = [rule for rule in self.gradients.other_integrals if form_may_change(rule)]
        near_anchor = self.past is None
        if others and (
            better := self.gradients.better_integrals(
                others, self.anchor, points, self._far_points(), near_anchor
            )
        ):
            raise OtherForm(better, True)

    def _far_points(self) -> np.ndarray:
        """Return points in both tails of each of some scale parameters, shape (n, d)."""
        scales = np.flatnonzero(self.is_scale)[:MOST_FAR]
        z = self.metric.transposed_times(np.eye(self.metric.size)[scales])  # rows of L
        shifts = FAR * self.metric.times(z / np.linalg.norm(z, axis=1, keepdims=True))
        return self.anchor + np.concatenate([-shifts, shifts])

    def weight_rows(self) -> None:
        """Weight rows by how their gradients change near the anchor, if they may be weighted."""
        if self.weights is not None:
            self.weights.see(self.anchor, self.metric, self.rng)
            self.kernel.set_row_copies(self.weights.copies)
            self.kernel.load_data()

    def noise(self, k: int) -> np.ndarray:
        """Set anchor and row weights for the next updates; return the covariance of their noise."""
        self.gradients.settle_around(self.anchor)  # evaluations elsewhere may have unsettled it
        if self.factors is not None:
            self.count(self.factors.choose(self.anchor, self._points(POSITIONS), self.rng))
        if k == 0:
            self.weight_rows()
        if self.factors is not None:
            shapes = self.kernel.source.shapes
            at_anchor = self.anchor, self.anchor_gradient, self.factors.powers
            self.kernel.source.set_anchor(*(split_flat(array, shapes) for array in at_anchor))
        self.kernel.load_data()
        noise = self._covariance()
        if self.weights is not None and k > 0 and np.linalg.eigvalsh(noise)[-1] > NOISY:
            self.weight_rows()
            noise = self._covariance()
        return noise

    def steepest(self) -> float:
        if self.factors is None or self.past is None or not self.factors.is_possible.any():
            return 0.0
        objective, spread = self.objective_of_steep_rows(), self.metric.spread()
        return curvature_in_tails(objective, self.factors, self.past, self.anchor, spread)

    def _covariance(self) -> np.ndarray:
        """Return the covariance of a batch's gradient in z, shape (d, d)."""
        noise, self.noise_in_tails = noise_covariance(
            self.gradients,
            self.metric,
            self._points(POSITIONS),
            self.anchor,
            self.factors,
            self.kernel.urn,
            self.rows_per_update,
            self.rng,
        )
        if self.past is None and self.factors is not None:
            noise /= SPREAD**2  # noise grows about as the square of the distance
        self.count(2 * POSITIONS * rows_per_position(self.gradients) / self.gradients.n_rows)
        return noise

    def _points(self, n: int) -> np.ndarray:
        """Return points of the posterior, from the chains or, before these, from a Gaussian."""
        past = self.past
        if past is None:
            z = self.rng.standard_normal((n, len(self.anchor)))
            return self.anchor + SPREAD * self.metric.times(z)
        return past[np.linspace(0, len(past) - 1, min(n, len(past))).astype(int)]

    @property
    def rows_per_update(self) -> int:
        return self.kernel.source.rows[0].batch_size

    @property
    def passes(self) -> float:
        return super().passes + (0.0 if self.weights is None else self.weights.passes)

    def freeze(self, settings: Settings, starts: np.ndarray, thin: int, **others: Any) -> Adapted:
        own = {"row_copies": self.kernel.row_copies, "data_checksum": self._checksum()}
        if self.factors is not None:
            own["anchor_powers"] = self.factors.powers
        return super().freeze(settings, starts, thin, **own | others)

    def finish(self, *args: Any, **found: Any) -> Adapted:
        chosen = super().finish(*args, **found)
        self.gradients.settle_around(self.anchor)
        # The points at which groups are integrated are data, and may have changed.
        return replace(chosen, data_checksum=self._checksum())

    def _checksum(self) -> int | None:
        return self.kernel.checksum() if self.factors is not None else None


def rows_per_position(gradients: RowGradients) -> int:
    """Return how many rows show the noise at a point: fewer groups of rows than single ones, but
    enough for all points together to have many more than there are parameters.
    """
    return max(ROWS_PER_POSITION // gradients.rows_worth, min(gradients.size, ROWS_PER_POSITION))


def noise_covariance(
    gradients: RowGradients,
    metric: Metric,
    positions: np.ndarray,
    anchor: np.ndarray,
    factors: AnchorFactors | None,
    urn: np.ndarray | None,
    batch_size: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, float]:
    """Estimate the covariance of L' times a batch's gradient over some points, shape (d, d).

    Batches are drawn with replacement from ``urn`` (None: all rows are equally likely). The control
    variate has ``factors`` of the gradients at its anchor; None if there is none. Also return the
    largest variance, in z, along an element with a factor, averaged over the tenth of the points
    where it is largest: it grows with the slope of such an element, too fast for a thermostat.
    """
    n_rows = gradients.n_rows
    if urn is None:
        urn = np.arange(gradients.n_at_hand)
        one_by_q = np.full(urn.size, float(n_rows))
    else:
        one_by_q = len(urn) / np.bincount(urn, minlength=n_rows)
    total = np.zeros((gradients.size, gradients.size))
    n = rows_per_position(gradients)
    if factors is not None:
        at_anchor = gradients.rows_of(anchor, len(positions) * n)
    has_factor = np.zeros(gradients.size, bool) if factors is None else factors.powers != 0
    alone = []
    for theta in positions:
        rows = urn[rng.integers(len(urn), size=n)]
        each = gradients.rows(theta, rows)[1]
        if factors is not None:
            each = each - factors.at(theta, anchor) * at_anchor(rows)
        each = one_by_q[rows, None] * each
        alone.append(np.var(each[:, has_factor], axis=0))
        each = metric.transposed_times(each)
        each -= each.mean(axis=0)
        total += each.T @ each / (n - 1)
    tenth = np.sort(alone, axis=0)[-max(1, len(positions) // 10) :].mean(axis=0)
    in_tails = tenth * metric.spread()[has_factor] ** 2
    return total / (len(positions) * batch_size), in_tails.max(initial=0.0) / batch_size


def curvature_in_tails(
    objective: Objective,
    factors: AnchorFactors,
    points: np.ndarray,
    anchor: np.ndarray,
    spread: np.ndarray,
) -> float:
    """Return the largest curvature along a transformed element where its slope is largest; or 0.

    A positive coefficient x = log b has the curvature b^2 times that of b. It is in units of 1 /
    ``spread``^2, and only for elements whose slope varies much over the points.
    """
    ratios = factors.log_ratios(points, anchor)
    of_element = ratios.max(axis=0)
    varied = [j for j in np.argsort(-of_element)[:MOST_VARIED] if of_element[j] > VARIED]
    largest = 0.0
    for j in varied:
        theta = points[ratios[:, j].argmax()]
        move = 0.1 * DIFFERENCE * spread[j] * (np.arange(len(theta)) == j)
        below, above = (objective.at(theta + sign * move).gradient[j] for sign in (-1, 1))
        curvature = (above - below) / (2 * move[j]) * spread[j] ** 2
        largest = max(largest, float(np.nan_to_num(curvature)))
    return largest
