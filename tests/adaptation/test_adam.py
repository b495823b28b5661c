"""Ascent by noisy slopes."""

import numpy as np

from pymc_sgmcmc.adaptation.adam import adam


def test_the_top_of_a_parabola():
    found = adam(lambda theta: 3.0 - theta, np.zeros(1), np.ones(1), 2000)
    np.testing.assert_allclose(found, 3.0, atol=1e-3)
