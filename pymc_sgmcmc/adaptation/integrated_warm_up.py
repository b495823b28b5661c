"""The warm-up of models whose groups are rows, with their effects integrated out."""

import numpy as np

from pymc_sgmcmc.adaptation.rows_warm_up import RowsWarmUp

GROUPS_PER_PARAMETER = 20
"""With fewer the empirical Fisher information is far from the curvature: its eigenvalues are off by
factors from (1 - r)^2 to (1 + r)^2, r^2 the parameters per group (Marchenko and Pastur 1967)."""


class IntegratedWarmUp(RowsWarmUp):
    """Adapts a kernel by gradients of groups, and by second derivatives where these are few."""

    def curvatures(self) -> list[np.ndarray]:
        gradients, found = self.gradients, super().curvatures()
        few = gradients.n_rows < GROUPS_PER_PARAMETER * gradients.size
        if not few or self.past is None or gradients.likelihood_products is None:
            return found
        hessian, passes = gradients.hessian(self.anchor, self.rng)
        self.count(passes)
        return [-hessian]
