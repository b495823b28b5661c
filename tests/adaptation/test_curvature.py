"""Matrices of curvature, made positive."""

import numpy as np

from pymc_sgmcmc.adaptation.curvature import (
    Factor,
    no_wider_than,
    with_second_derivatives,
)


def test_of_negative_eigenvalues_the_absolute_values_count():
    factor = Factor(np.diag([4.0, -1.0]))
    np.testing.assert_allclose(factor.solve(np.ones(2)), [0.25, 1.0])
    np.testing.assert_allclose(factor.log_determinant, np.log(4.0))


def test_standard_deviations_that_are_too_large_are_cut():
    found = no_wider_than(np.array([1.0, 1.0]), np.diag([4.0, 0.01]))
    np.testing.assert_allclose(found, np.diag([4.0, 1.0]))


def test_rows_of_the_hessian_replace_information_that_is_far_off():
    hessian = np.array([[2.0, 0.5, 0.3], [0.5, 1.0, 0.1], [0.3, 0.1, 4.0]])
    information = np.diag([7.0, 1.2, 4.0])  # of the first element 3.5 times as much
    asked = []

    def gradient(theta):
        asked.append(theta)
        return hessian @ theta

    points, steps = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 1.0]]), np.array([0.1, 0.2, 0.3])
    found = with_second_derivatives(information, [0, 1], gradient, points, steps)
    expected = np.array([[2.0, 0.5, 0.3], [0.5, 1.2, 0.0], [0.3, 0.0, 4.0]])
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert information[0, 0] == 7.0
    np.testing.assert_allclose(asked[0] - asked[1], [0.2, 0.0, 0.0])
    assert len(asked) == 8
