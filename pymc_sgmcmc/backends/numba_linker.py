"""The numba linker of this package's functions."""

from pytensor.compile.mode import Mode
from pytensor.link.numba.linker import NumbaLinker

import pymc_sgmcmc.backends.matrix_products
import pymc_sgmcmc.backends.random_operations  # (for their implementations on numba)
import pymc_sgmcmc.backends.software_prefetch
import pymc_sgmcmc.backends.vectorized_math  # noqa: F401 (for the rewrites they register)
from pymc_sgmcmc.internals_used import available

NEEDED = ("low_overhead_linker", "generator_address", "link_time_optimization")
"""Files of this folder without which PyTensor's linker is used."""
PLAIN = "PyTensor's own numba linker is used, with which compilation and calls take longer"


def with_cheap_calls(mode: Mode) -> Mode:
    """Return the mode with `CheapCalls` in place of PyTensor's numba linker, if numba allows it."""
    if type(mode.linker) is not NumbaLinker:
        return mode
    mode = mode.including("software_prefetch", "matrix_products", "vectorized_math")
    if not all([available(f"backends/{name}.py", PLAIN) for name in NEEDED]):
        return mode
    from pymc_sgmcmc.backends.low_overhead_linker import CheapCalls

    return Mode(CheapCalls(), mode.provided_optimizer)
