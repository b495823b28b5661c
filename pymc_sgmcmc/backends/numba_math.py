"""Logarithm and exponential without calls or branches, so that LLVM vectorises loops over them.

numba's own functions call the C library for each element, and take four to nine times as long
(benchmarks/results/elementary.txt). The error is that of a few roundings of the result and one of
the argument.
"""

import math
from typing import Any

import numpy as np
from numba import int32, int64, njit, types, uint32, uint64
from numba.extending import intrinsic

inlined = njit(inline="always")

FLOAT_TYPES = ("float32", "float64")


def _reinterpret(source, target):
    """Read a number's bits as a number of another type."""

    @intrinsic
    def reinterpret(typing_context, x):
        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return reinterpret


def polynomial_of(series: list[float], real):
    """Evaluate a polynomial in a float type, by Horner's rule."""
    highest_first = tuple(real(c) for c in reversed(series))

    @inlined
    def polynomial(q):
        p = highest_first[0]
        for k in range(1, len(highest_first)):
            p = real(p * q + highest_first[k])
        return p

    return polynomial


class FloatMath:
    """Logarithm and exponential of one float type.

    ``log`` takes positive normal numbers. ``exp`` takes any number; it returns 0 for results below
    the smallest normal number, and infinity for those above half the largest number.
    """

    def __init__(self, dtype: str):
        double = dtype == "float64"
        real: Any = types.float64 if double else types.float32
        word: Any = uint64 if double else uint32
        signed: Any = int64 if double else int32
        bits_of, real_of = _reinterpret(real, word), _reinterpret(word, real)
        information = np.finfo(dtype)
        n_mantissa, bias = information.nmant, 1 - information.minexp
        bits_of_root = word(np.sqrt(0.5, dtype=dtype).view(f"u{information.bits // 8}"))
        one, log_two, per_log_two = real(1), real(math.log(2)), real(1 / math.log(2))

        # log(m) = 2 atanh(s) = 2 s (1 + s^2 / 3 + s^4 / 5 + ...) for s = (m - 1) / (m + 1)
        log_over_s = polynomial_of([2 / (2 * k + 1) for k in range(10 if double else 5)], real)

        @inlined
        def log(u):
            """Return log(2^n m) = n log 2 + log m, with a mantissa m from sqrt(1/2) to sqrt(2)."""
            n = signed(word(bits_of(u) - bits_of_root)) >> signed(n_mantissa)
            m = real_of(word(bits_of(u) - word(word(n) << word(n_mantissa))))
            s = real(real(m - one) / real(m + one))
            return real(real(n) * log_two + s * log_over_s(real(s * s)))

        smallest, largest = real(math.log(information.tiny)), real(math.log(information.max))
        exp_of_rest = polynomial_of(
            [1 / math.factorial(k) for k in range(14 if double else 8)], real
        )

        @inlined
        def exp(x):
            """Return exp(n log 2 + r) = 2^n exp(r), with |r| at most log(2) / 2."""
            within = smallest if x < smallest else (largest if x > largest else x)
            n = real(np.rint(real(within * per_log_two)))
            r = real(within - real(n * log_two))
            two_to_n = real_of(word(word(signed(n) + signed(bias)) << word(n_mantissa)))
            y = real(exp_of_rest(r) * two_to_n)
            return real(0) if x < smallest else (real(np.inf) if x > largest else y)

        self.real, self.log, self.exp = real, log, exp


FLOAT_MATH = {dtype: FloatMath(dtype) for dtype in FLOAT_TYPES}
