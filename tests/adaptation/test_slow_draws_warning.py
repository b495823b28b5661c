"""How long NUTS would take."""

import numpy as np

from pymc_sgmcmc.adaptation.slow_draws_warning import gradients_of_nuts


def test_gradients_of_nuts():
    assert gradients_of_nuts(np.eye(10)) == 7
    assert gradients_of_nuts(np.array([[1.0, 0.999], [0.999, 1.0]])) == 127
