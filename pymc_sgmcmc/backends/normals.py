"""The normals of every update as a PyTensor operation; `box_muller` describes the method.

`normals_jax` registers their implementation on JAX, which is an optional dependency.
"""

from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable

from pymc_sgmcmc.backends.normals_numba import draw_normals


class Normals(RandomVariable):
    """A vector of standard normals; its only parameter is their number, a constant."""

    name = "normals"
    signature = "()->(n)"
    dtype = "floatX"

    def _supp_shape_from_params(self, dist_params, param_shapes=None):
        return (dist_params[0],)

    def rng_fn(self, rng, n, size):
        """Draw the same numbers as on numba, for the C linker and Python."""
        return draw_normals[self.dtype](rng, int(n))


@numba_core_rv_funcify.register(Normals)
def numba_core_normals(op, node):
    """Choose the function by float type; 2 is the version in numba's cache."""
    return draw_normals[op.dtype], 2
