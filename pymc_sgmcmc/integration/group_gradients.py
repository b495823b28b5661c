"""Gradients of groups as rows, evaluated around each group's mode wherever it is."""

import numpy as np

from pymc_sgmcmc.gradients.row_gradients import RowGradients


class GroupGradients(RowGradients):
    """Gradients of single groups of an `IntegratedModel`; the warm-up moves its centres along."""

    def likelihood(self, theta, index=None, scatter=True):
        if np.isfinite(theta).all():
            self.model.centres.move(self.point(theta), index)
        return super().likelihood(theta, index, scatter)
