"""Random generators passed to numba by their addresses.

At each call of a compiled function numba unpacks a generator by calling Python, and does not check
whether that raised an error: after Ctrl-C at that moment the updates continue with invalid values,
and Python ends with "SystemError: ... returned a result with an exception set". Addresses are
numbers, which numba unpacks without calling Python.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

FUNCTIONS = ("next_uint64", "next_uint32", "next_double")
"""Members of NumPy's public struct ``bitgen_t``, after the state."""

GENERATOR = types.NumPyRandomGeneratorType("NumPyRandomGeneratorType")
BIT_GENERATOR = types.NumPyRandomBitGeneratorType("bit_generator")


def addresses(rng: np.random.Generator) -> tuple[int, int]:
    """Return the addresses of a generator's ``bitgen_t`` and of itself; the caller holds it."""
    return rng.bit_generator.ctypes.bit_generator.value, id(rng)


def _generator_at(typing_context, bits, itself):
    """Make numba's representation of a generator from its addresses."""

    def generate(context, builder, signature, arguments):
        at_bits, at_itself = arguments
        members = builder.inttoptr(at_bits, context.get_value_type(types.uintp).as_pointer())

        def member(k):
            return builder.load(builder.gep(members, [ir.Constant(cgutils.int32_t, k)]))

        bit_generator = cgutils.create_struct_proxy(BIT_GENERATOR)(context, builder)
        bit_generator.state_address = bit_generator.state = member(0)
        for k, name in enumerate(FUNCTIONS, start=1):
            setattr(bit_generator, f"fnptr_{name}", member(k))
        generator = cgutils.create_struct_proxy(GENERATOR)(context, builder)
        generator.bit_generator = bit_generator._getvalue()
        # The object returned to Python. numba does not count references to it: `meminfo` is null.
        generator.parent = builder.inttoptr(at_itself, cgutils.voidptr_t)
        return generator._getvalue()

    return GENERATOR(types.int64, types.int64), generate


generator_at: Any = intrinsic(_generator_at)
