"""Matrices of curvature, made positive."""

import numpy as np

from pymc_sgmcmc.adaptation.curvature import Factor, no_wider_than


def test_of_negative_eigenvalues_the_absolute_values_count():
    factor = Factor(np.diag([4.0, -1.0]))
    np.testing.assert_allclose(factor.solve(np.ones(2)), [0.25, 1.0])
    np.testing.assert_allclose(factor.log_determinant, np.log(4.0))


def test_standard_deviations_that_are_too_large_are_cut():
    found = no_wider_than(np.array([1.0, 1.0]), np.diag([4.0, 0.01]))
    np.testing.assert_allclose(found, np.diag([4.0, 1.0]))
