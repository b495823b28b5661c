"""Parameters that a likelihood compares; refusals of such models are in `test_adaptation.py`."""

import pytensor.tensor as pt

from pymc_sgmcmc.adaptation.jumps import compared


def test_variables_behind_a_comparison():
    a, b = pt.dscalars("ab")
    assert compared(pt.switch(pt.gt(a, 0), 1.0, 2.0) + b, [a, b]) == [True, False]
