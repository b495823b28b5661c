"""`GeneratorCopy` on JAX: another dict with the same key."""

from pytensor.link.jax.dispatch.basic import jax_funcify

from pymc_sgmcmc.backends.generator_copy import GeneratorCopy


@jax_funcify.register(GeneratorCopy)
def jax_funcify_generator_copy(op, **kwargs):
    """Copy only the dict, because keys never change."""
    return dict
