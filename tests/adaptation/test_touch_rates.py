"""How often batches touch groups, and how well they know a group's gradient."""

import numpy as np

from pymc_sgmcmc.adaptation.touch_rates import mean_of_inverse, of_whole_groups


def test_whole_groups_have_noise_only_where_they_come_in_parts():
    touched, variance = of_whole_groups(np.array([3.0, 8.0]), np.array([1, 2]), n_batches=10)
    np.testing.assert_allclose(touched, [0.1, 0.2])
    np.testing.assert_allclose(variance, [0.0, 0.125])


def test_mean_of_inverse_of_few_and_many_rows():
    found = mean_of_inverse(np.array([1e-6, 100.0]))
    np.testing.assert_allclose(found, [1.0, 0.0101], atol=1e-4)
