"""A copy of a random generator within a graph: drawing from it leaves the original as it is.

On JAX PyTensor's random variables change the dict that holds a key, whether or not it is used
again; `generator_copy_jax` registers the implementation there.
"""

from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key
from pytensor.link.numba.dispatch.compile_ops import numba_deepcopy
from pytensor.tensor.random.utils import custom_rng_deepcopy


class GeneratorCopy(Op):
    """Copy a generator."""

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
