"""The random operations of every update's graph: normals, and a copy of a generator.

`box_muller` describes how normals are drawn; `random_jax` registers the implementations on JAX,
which is an optional dependency.
"""

from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key
from pytensor.link.numba.dispatch.compile_ops import numba_deepcopy
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.utils import custom_rng_deepcopy

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


class GeneratorCopy(Op):
    """Copy a generator, so that drawing from the copy does not change the original.

    On JAX PyTensor's random variables change the dict that holds a key, whether or not it is used
    again.
    """

    __props__ = ()

    def make_node(self, rng):
        return Apply(self, [rng], [rng.type()])

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = custom_rng_deepcopy(inputs[0])


@register_funcify_and_cache_key(GeneratorCopy)
def numba_funcify_generator_copy(op, node, **kwargs):
    """Copy it on numba; the cache is keyed by this module's name and the version, 1."""

    @numba_njit
    def copied(rng):
        return numba_deepcopy(rng)

    return copied, f"{__name__}.GeneratorCopy_1"
