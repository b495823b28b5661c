"""Gradients of groups as rows, evaluated around each group's mode wherever it is."""

import numpy as np

from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.integration.quadrature_error import quadrature_error

DRAWS = 50
"""At which the error of the quadrature is measured; its own relative error is about a tenth."""


class GroupGradients(RowGradients):
    """Gradients of single groups of an `IntegratedModel`; the warm-up moves its centres along."""

    def likelihood(self, theta, index=None, scatter=True):
        if np.isfinite(theta).all():
            self.model.centres.move(self.point(theta), index)
        return super().likelihood(theta, index, scatter)

    def further_measurements(self, draws):
        some = draws[np.linspace(0, len(draws) - 1, min(DRAWS, len(draws))).astype(int)]
        error = quadrature_error(self.model, [self.point(theta) for theta in some])
        return {"quadrature_error": error}
