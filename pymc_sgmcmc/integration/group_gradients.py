"""Gradients of groups as rows, evaluated around each group's mode wherever it is."""

from functools import cached_property

import numpy as np

from pymc_sgmcmc.gradients.flat_model import Vector
from pymc_sgmcmc.gradients.matrix_by_products import matrix_by_products
from pymc_sgmcmc.gradients.row_gradients import Likelihood, RowGradients
from pymc_sgmcmc.integration.group_density import mapped
from pymc_sgmcmc.integration.quadrature_error import quadrature_error
from pymc_sgmcmc.pymc_internals import jitted, runs_python

DENSITIES = 3_000_000_000
"""Of single rows, of a Hessian's products with vectors; a product takes about twice a gradient's
time: some ten seconds."""
LEAST_GROUPS = 2
"""... and least number of groups for each parameter."""
DRAWS = 50
"""At which the error of the quadrature is measured; its own relative error is about a tenth."""
PARTS = 16
"""Into which sums over groups are cut for threads, however many cores there are: the sums are the
same on all machines."""


class GroupGradients(RowGradients):
    """Gradients of single groups of an `IntegratedModel`; the warm-up moves its centres along."""

    _blas_threads = 1  # parts of the groups are evaluated in threads of their own

    def likelihood(self, theta, index=None, scatter=True):
        if np.isfinite(theta).all():
            self.model.centres.move(self.point(theta), index)
        _ = self._of_rows  # compiled before there are threads
        of_parts = mapped(
            lambda part: RowGradients.likelihood(self, theta, part, scatter),
            np.array_split(np.arange(self.n_rows) if index is None else index, PARTS),
            self._in_threads,
        )
        value, gradient, products = zip(*of_parts, strict=True)
        return Likelihood(
            sum(value), np.sum(gradient, axis=0), np.sum(products, axis=0) if scatter else None
        )

    def hessian(self, theta: Vector, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """Hessian of the log posterior, shape (d, d), and the passes over the data that it took.

        The likelihood's is made of its products with vectors; of many groups, of a random sample.
        """
        rows = len(self.model.centres.density.rows.order)
        share = DENSITIES / (2 * self.size * rows * len(self.model.points.x))
        n = int(max(share * self.n_rows, LEAST_GROUPS * self.size))
        index = np.arange(self.n_rows)
        if n < len(index):
            index = np.sort(rng.choice(index, n, replace=False))
        inputs = [index, self._scale(self.n_rows / len(index)), *self.constants]
        point, times, n_products = self.split(theta), self._products, 0

        def product(vector: Vector) -> Vector:
            return self.joined(times(*point, *self.split(vector), *inputs))

        def products(vectors: np.ndarray) -> np.ndarray:
            nonlocal n_products
            n_products += len(vectors)
            return np.array(mapped(product, list(vectors), self._products_in_threads))

        hessian = matrix_by_products(products, self.parts, self.source.shapes, self._rtol)
        return self.prior_hessian(theta) + hessian, 2 * n_products * len(index) / self.n_rows

    @cached_property
    def _products(self):
        function = self.likelihood_products
        density = self.model.centres.density
        self._products_in_threads = density.in_threads and not runs_python(function)
        return jitted(function) if self._products_in_threads else function

    @cached_property
    def _of_rows(self):
        function = self._mapped(n_mapped=1)
        density = self.model.centres.density
        self._in_threads = density.in_threads and not runs_python(function)
        return jitted(function) if self._in_threads else function

    def further_measurements(self, draws):
        some = draws[np.linspace(0, len(draws) - 1, min(DRAWS, len(draws))).astype(int)]
        error = quadrature_error(self.model, [self.point(theta) for theta in some])
        return {"quadrature_error": error}
