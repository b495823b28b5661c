"""Logarithm and exponential without calls or branches, so that LLVM vectorises loops over them.

numba's own call the C library once an element: at half a million elements that is more than the
matrix products of the network they belong to. A result is that of a number
next to the argument, or of one a few units in the last place away.
"""

import math

import numpy as np
from numba import int32, int64, njit, types, uint32, uint64
from numba.extending import intrinsic

from pymc_sgmcmc.polynomials import coefficients

inlined = njit(inline="always")


def _reinterpret(source, target):
    """Read a number's bits as one of another type."""

    @intrinsic
    def reinterpret(typing_context, x):
        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return reinterpret


def polynomial_of(series: list[float], real):
    """Horner's rule in a float type."""
    highest_first = tuple(real(c) for c in reversed(series))

    @inlined
    def polynomial(q):
        p = highest_first[0]
        for k in range(1, len(highest_first)):
            p = real(p * q + highest_first[k])
        return p

    return polynomial


def _log_over_s(q):
    """log(m) / s for s = (m - 1) / (m + 1), as a function of q = s^2."""
    s = np.sqrt(q)
    return np.where(q > 1e-8, 2 * np.arctanh(s) / np.where(q > 0, s, 1), 2 + 2 / 3 * q)


class Float:
    """A float type, its words and what is known of it.

    Attributes
    ----------
    log, exp : jitted functions
        Of a positive normal number; of any number, with 0 and infinity for the results below the
        smallest normal number and above half the largest.
    """

    def __init__(self, dtype: str):
        double = dtype == "float64"
        self.real = real = types.float64 if double else types.float32
        word, signed = (uint64, int64) if double else (uint32, int32)
        bits_of, real_of = _reinterpret(real, word), _reinterpret(word, real)
        information = np.finfo(dtype)
        n_mantissa, bias = information.nmant, 1 - information.minexp
        bits_of_root = word(np.sqrt(0.5, dtype=dtype).view(f"u{information.bits // 8}"))
        one, log_two, per_log_two = real(1), real(math.log(2)), real(1 / math.log(2))

        log_series = coefficients(_log_over_s, 0, (3 - 8**0.5) ** 2, 6 if double else 2)
        log_over_s = polynomial_of(log_series, real)

        @inlined
        def log(u):
            """log(2^n m) = n log 2 + log m for a mantissa from sqrt(1/2) to sqrt(2)."""
            n = signed(word(bits_of(u) - bits_of_root)) >> signed(n_mantissa)
            m = real_of(word(bits_of(u) - word(word(n) << word(n_mantissa))))
            s = real(real(m - one) / real(m + one))
            return real(real(n) * log_two + s * log_over_s(real(s * s)))

        smallest, largest = real(math.log(information.tiny)), real(math.log(information.max))
        exp_series = coefficients(np.exp, -math.log(2) / 2, math.log(2) / 2, 12 if double else 6)
        exp_of_rest = polynomial_of(exp_series, real)

        @inlined
        def exp(x):
            """exp(n log 2 + r) = 2^n exp(r) for |r| at most log(2) / 2."""
            within = smallest if x < smallest else (largest if x > largest else x)
            n = real(np.rint(real(within * per_log_two)))
            r = real(within - real(n * log_two))
            two_to_n = real_of(word(word(signed(n) + signed(bias)) << word(n_mantissa)))
            y = real(exp_of_rest(r) * two_to_n)
            return real(0) if x < smallest else (real(np.inf) if x > largest else y)

        self.log, self.exp = log, exp


FLOATS = {dtype: Float(dtype) for dtype in ("float32", "float64")}
