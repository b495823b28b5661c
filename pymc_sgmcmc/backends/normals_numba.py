"""Normals on numba: two from each pair of uniforms, in loops that LLVM vectorises."""

import math

import numpy as np
from numba import int32, njit, uint32, uint64
from pytensor.link.numba.dispatch.basic import numba_njit

from pymc_sgmcmc.backends.box_muller import PARITY, ROTATIONS, cosine_series, sine_series
from pymc_sgmcmc.backends.numba_math import FLOAT_MATH, FLOAT_TYPES, inlined, polynomial_of
from pymc_sgmcmc.internals_used import available

if available("backends/normals_numba.py", "a call of compiled updates takes a little longer"):
    from numba.np.random.generator_core import next_uint64

    @njit
    def random_word(rng):
        """Draw 64 random bits: `rng.integers` takes seconds to compile and randomises only 32."""
        return next_uint64(rng.bit_generator)

else:

    @njit
    def random_word(rng):
        """Draw 64 random bits."""
        return uint64(rng.random() * 2.0**32) << uint64(32) | uint64(rng.random() * 2.0**32)


R0, R1, R2, R3, R4, R5, R6, R7 = ROTATIONS


@inlined
def mix(x0, x1, rotation):
    """Apply one round of Threefry."""
    x0 = uint32(x0 + x1)
    turned = uint32(x1 << uint32(rotation)) | uint32(x1 >> uint32(32 - rotation))
    return x0, uint32(turned ^ x0)


@inlined
def add_key(x0, x1, k0, k1, count):
    """Inject the key, as Threefry does after every four rounds."""
    return uint32(x0 + k0), uint32(x1 + k1 + uint32(count))


@inlined
def threefry(k0, k1, x0, x1):
    """Return two random words: Threefry-2x32 with 13 rounds."""
    k2 = uint32(k0 ^ k1 ^ uint32(PARITY))
    x0, x1 = add_key(x0, x1, k0, k1, 0)
    x0, x1 = mix(x0, x1, R0)
    x0, x1 = mix(x0, x1, R1)
    x0, x1 = mix(x0, x1, R2)
    x0, x1 = mix(x0, x1, R3)
    x0, x1 = add_key(x0, x1, k1, k2, 1)
    x0, x1 = mix(x0, x1, R4)
    x0, x1 = mix(x0, x1, R5)
    x0, x1 = mix(x0, x1, R6)
    x0, x1 = mix(x0, x1, R7)
    x0, x1 = add_key(x0, x1, k2, k0, 2)
    x0, x1 = mix(x0, x1, R0)
    x0, x1 = mix(x0, x1, R1)
    x0, x1 = mix(x0, x1, R2)
    x0, x1 = mix(x0, x1, R3)
    x0, x1 = add_key(x0, x1, k0, k1, 3)
    return mix(x0, x1, R4)


def _kernel(dtype):
    """Return a function that fills two vectors of a float type with normals."""
    double = dtype == "float64"
    real, log = FLOAT_MATH[dtype].real, FLOAT_MATH[dtype].log
    sine, cosine = (polynomial_of(c(dtype), real) for c in (sine_series, cosine_series))
    half, one, minus_two, per_word = real(0.5), real(1), real(-2), real(2.0**-32)

    if double:

        @inlined
        def uniforms(k0, k1, position):
            a, b = threefry(k0, k1, uint32(0), position)
            c, d = threefry(k0, k1, uint32(1), position)
            u = real(real(a) + (real(b) + half) * per_word) * per_word
            s = real(real(int32(c)) + real(d) * per_word) * real(2.0**-31)
            return u, s, b ^ d

    else:

        @inlined
        def uniforms(k0, k1, position):
            a, b = threefry(k0, k1, uint32(0), position)
            u = real(real(real(a) + half) * per_word)
            s = real(real(int32(b)) * real(2.0**-31))
            return u, s, a ^ b

    @numba_njit(fastmath={"contract"}, nogil=True, error_model="numpy")
    def fill(first, second, k0, k1):
        for i in range(first.size):
            u, s, other_bits = uniforms(k0, k1, uint32(i))
            radius = real(math.sqrt(real(minus_two * log(u))))
            q = real(s * s)
            first[i] = real(radius * real(s * sine(q)))
            # The cosine is positive here: a separate random bit gives the sign.
            sign = one if other_bits & uint32(1) else real(-1)
            second[i] = real(radius * sign * cosine(q))

    return fill


def _drawer(dtype):
    """Return a function that draws a key from a generator and fills a vector with normals."""
    fill, dtype = _kernel(dtype), np.dtype(dtype)

    @njit(nogil=True)
    def draw(rng, n, out=None):
        if out is None:
            out = np.empty(n, dtype)
        key = random_word(rng)
        pairs = n // 2
        fill(out[:pairs], out[pairs : 2 * pairs], uint32(key), uint32(key >> uint64(32)))
        if n > 2 * pairs:
            out[n - 1] = rng.standard_normal()
        return out

    draw.handles_out = True  # type: ignore[attr-defined]
    return draw


draw_normals = {dtype: _drawer(dtype) for dtype in FLOAT_TYPES}
