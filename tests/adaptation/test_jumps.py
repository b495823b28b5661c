"""Parameters that a likelihood compares; refusals of such models are in `test_adaptation.py`."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pymc_sgmcmc.adaptation.jumps import compared, refuse_jumps
from pymc_sgmcmc.adaptation.objective import RowsObjective
from pymc_sgmcmc.integration.group_gradients import GroupGradients
from pymc_sgmcmc.integration.group_terms import group_terms
from pymc_sgmcmc.integration.integrated_model import integrated_model
from pymc_sgmcmc.integration.quadrature_points import points_of


def test_variables_behind_a_comparison():
    a, b = pt.dscalars("ab")
    assert compared(pt.switch(pt.gt(a, 0), 1.0, 2.0) + b, [a, b]) == [True, False]


def test_unused_variable_in_single_precision(python_by_default):
    """The points of integrals move with evaluations, which is no jump."""
    rng = np.random.default_rng(1)
    with pytensor.config.change_flags(floatX="float32"):
        with pm.Model() as model:
            pm.Normal("unused")
            a = pm.Gamma("a", pm.HalfNormal("k", 3), 1, shape=40)
            pm.Poisson("y", a[np.repeat(np.arange(40), 5)], observed=rng.poisson(2, 200))
        integrated = integrated_model(group_terms(model), points_of(1))
        gradients = GroupGradients(integrated, integrated.value_vars)
        theta = gradients.flat(integrated.initial_point())
        for seed in range(3):
            refuse_jumps(RowsObjective(gradients), theta, np.random.default_rng(seed))
