"""Gradients with groups as rows, evaluated around each group's mode wherever that is."""

from collections.abc import Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
from pymc.blocking import PointType

from pymc_sgmcmc.backends.backend import naming_a_remedy
from pymc_sgmcmc.backends.cores import n_cores
from pymc_sgmcmc.gradients.flat_model import Vector
from pymc_sgmcmc.gradients.row_gradients import Likelihood, RowGradients
from pymc_sgmcmc.gradients.start_check import refuse_start
from pymc_sgmcmc.integration.group_centres import STAYING
from pymc_sgmcmc.integration.group_density import mapped
from pymc_sgmcmc.integration.quadrature_error import changes_from_first, quadrature_error
from pymc_sgmcmc.integration.quadrature_points import points_of, rule_of
from pymc_sgmcmc.pymc_internals import jitted, runs_python

DRAWS = 50
"""Number of draws at which the quadrature's error is measured; the relative error of this
measurement is about a tenth."""
DENSITIES_AT_START = 10_000_000
"""Number of densities of single rows from which this error is first estimated, near the anchor."""
COARSE, COARSE_NEAR_ANCHOR = 0.1, 0.03
"""Errors above which integrals are taken otherwise: at draws, and nearer to the anchor with one
effect, because errors grow at least as the square of the distance. With several effects other
points cost two to ten times as much."""
COARSE_IN_TAILS = 1.0
"""Change of the log density by its error, at three standard deviations of a scale parameter, above
which it is another density: with constant points it may have a second mode there."""
OUT_OF_REACH = 12.0
"""Log density below the anchor's, with and without that change, beyond which it does not matter:
at three standard deviations of a normal density it is 4.5 below."""
BLOCK_DENSITIES = 2**22
"""Largest number of densities of single rows in one compiled call on JAX."""
PARTS = 16
"""Number of parts into which sums over groups are cut for threads, independent of the number of
cores so that the sums are the same on all machines."""


class GroupGradients(RowGradients):
    """Gradients of single groups of an `IntegratedModel`, whose centres the warm-up moves."""

    effects_are_integrated = True
    rows_worth = 5  # a group has several rows
    _blas_threads = 1  # parts of the groups are evaluated in separate threads

    _follows = True
    _settled_at: Vector | None = None

    def __init__(self, model, vars, **kwargs):
        super().__init__(model, vars, **kwargs)
        if self.backend.pads_lengths:
            sizes = model.centres.rows.sizes
            densities = sizes.max() * len(model.points.x)
            self.block = int(np.clip(BLOCK_DENSITIES // densities, 1, min(self.block, len(sizes))))

    def refuse_start(self, point: PointType) -> None:
        """Raise `BadStart` for a point without a finite gradient."""
        theta = self.flat(point)
        with naming_a_remedy(), np.errstate(invalid="ignore"):
            of_rows = RowGradients.likelihood(self, theta, scatter=False).gradient
            gradient = self.prior_gradient(theta) + of_rows
        bad = [not np.isfinite(gradient[part]).all() for part in self.parts]
        refuse_start(self.source.vars, bad, point)

    @contextmanager
    def points_held(self):
        # Points that move change values by errors of the integrals, which gradients do not contain.
        self._follows = False
        try:
            yield
        finally:
            self._follows = True

    def settle_around(self, theta):
        if self._settled_at is None or not np.array_equal(theta, self._settled_at):
            self._move(theta, afresh=True)
            self._settled_at = np.array(theta)

    def _move(self, theta: Vector, index: np.ndarray | None = None, afresh: bool = False) -> None:
        centres, self._settled_at = self.model.centres, None
        centres.move(self.point(theta), index, afresh)
        # numba sees arrays that change in place; JAX may have copies.
        self.constants = [
            self.backend.array(own) if own is not old and centres.holds(own) else old
            for own, old in zip(self._on_host, self.constants, strict=True)
        ]

    def likelihood(self, theta, index=None, scatter=True):
        if self._follows and np.isfinite(theta).all():
            self._move(theta, index)
        _ = self._of_rows  # compiled before there are threads
        of_parts = mapped(
            lambda part: RowGradients.likelihood(self, theta, part, scatter),
            self._parts(np.arange(self.n_rows) if index is None else index, PARTS),
            self._in_threads,
        )
        value, gradient, products = zip(*of_parts, strict=True)
        return Likelihood(
            sum(value), np.sum(gradient, axis=0), np.sum(products, axis=0) if scatter else None
        )

    def rows(self, theta, index):
        _ = self._of_rows
        parts = self._parts(np.asarray(index), n_cores() if self._in_threads else 1)
        of_parts = mapped(
            lambda part: RowGradients.rows(self, theta, part), parts, self._in_threads
        )
        values, gradients = zip(*of_parts, strict=True)
        return np.concatenate(values), np.concatenate(gradients)

    def _parts(self, index: np.ndarray, n: int) -> list[np.ndarray]:
        return [index] if self.backend.maps_functions else np.array_split(index, n)

    @cached_property
    def _of_rows(self):
        function = self._mapped(n_mapped=1)
        if self.backend.maps_functions:
            self._in_threads = False
            return function
        density = self.model.centres.density
        self._in_threads = density.in_threads and not runs_python(function)
        return jitted(function) if self._in_threads else function

    @property
    def other_integrals(self):
        centres, rule = self.model.centres, self.model.points
        k = rule.x.shape[1]
        if rule.equally_spaced:
            is_coarse = k == 1 and len(rule.x) == len(points_of(1, equally_spaced=True).x)
            return ("refined",) if is_coarse else ()
        others = ["follow_prior"] if centres.may_follow and not centres.follow else []
        if k in STAYING and len(rule.x) == len(points_of(k).x):
            others.append("refined")
        return (*others, "equally_spaced")

    def better_integrals(self, others, anchor, points, far_points, near_anchor):
        centres, rule = self.model.centres, self.model.points
        points, k = [self.point(theta) for theta in points], rule.x.shape[1]
        far = [self.point(theta) for theta in (anchor, *far_points)]
        coarse = COARSE_NEAR_ANCHOR if k == 1 and near_anchor else COARSE
        matters = np.ones(len(far_points), dtype=bool)

        def changes(centres, rule):
            return changes_from_first(centres, rule, far, DENSITIES_AT_START)

        def error(centres, rule):
            near = quadrature_error(centres, rule, points, DENSITIES_AT_START) / coarse
            if not matters.any():
                return near
            change = changes(centres, rule)[matters]
            in_tails = np.abs(change[np.isfinite(change)]).max(initial=0.0)
            return max(near, in_tails / COARSE_IN_TAILS)

        if error(centres, rule) <= 1:
            return None
        if len(far_points):
            by_rule = self._log_densities(far_points) - self._log_densities([anchor])
            by_finer = by_rule + changes(centres, rule)
            matters = ~((by_rule < -OUT_OF_REACH) & (by_finer < -OUT_OF_REACH))
        now = error(centres, rule)
        if now <= 1:
            return None
        errors = {}
        if "follow_prior" in others:
            errors["follow_prior"] = error(centres.following(self.point(anchor)), rule)
        if "refined" in others:
            errors["refined"] = error(centres, rule_of(k, True, rule.equally_spaced))
        accurate = [name for name, left in errors.items() if left <= 1]
        halved = [name for name, left in errors.items() if left <= now / 2]
        halved.sort(key=lambda name: errors[name])
        return next((name for name in (*accurate, *halved, *others[-1:])), None)

    def _log_densities(self, points: Sequence[Vector]) -> np.ndarray:
        """Return log posterior densities, around the centres of now."""
        with self.points_held():
            values = [self.likelihood(theta, scatter=False).value for theta in points]
        return np.array(values) + [self.log_prior(theta) for theta in points]

    def further_measurements(self, draws):
        some = draws[np.linspace(0, len(draws) - 1, min(DRAWS, len(draws))).astype(int)]
        at_draws = [self.point(theta) for theta in some]
        error = quadrature_error(self.model.centres, self.model.points, at_draws)
        return {"quadrature_error": error}
