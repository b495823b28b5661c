"""The normals of every update, drawn at the speed of vector registers.

Libraries draw them one by one (numba: 6 ns in float32) or through arrays of bits in memory (JAX:
7 ns), which is more than all else that an update of a large model does. Here the bits are a
function of a key and a position, and the normals one of the bits, both without branches or
tables, so that compilers work on 8 or 16 at once (1 to 2 ns):

    a, b = threefry(key, position)                       two words of 32 bits
    u = (a + 1/2) / 2^32 in (0, 1),  s = b / 2^31 in [-1, 1)
    z = sqrt(-2 log u) sin(pi/2 s)

Threefry-2x32 is the generator of Salmon et al. (2011, "Parallel random numbers: as easy as 1, 2,
3"), with 13 rounds, from which on no statistical flaw is known. The sampler's own generator gives
the key, a new one for each call. The normals are those of Box and Muller (1958): sin(pi/2 S) of a
uniform S is distributed as the cosine of a uniform angle.

References
----------
J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw (2011), SC '11, doi 10.1145/2063384.2063405.
G. E. P. Box, M. E. Muller (1958), Annals of Mathematical Statistics 29, 610-611.
"""

import numpy as np
from pytensor.tensor.random.op import RandomVariable

from pymc_sgmcmc.polynomials import coefficients

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA
ROUNDS = 13


class Normals(RandomVariable):
    """A vector of standard normals; its only parameter is their number, a constant."""

    name = "normals"
    signature = "()->(n)"
    dtype = "floatX"

    def _supp_shape_from_params(self, dist_params, param_shapes=None):
        return (dist_params[0],)

    def rng_fn(self, rng, n, size):
        """Draw as NumPy does: for the C linker and Python."""
        return rng.standard_normal(int(n), dtype=self.dtype)


def _sine(q):
    """sin(pi/2 s) / s for q = s^2."""
    return np.pi / 2 * np.sinc(np.sqrt(q) / 2)


def _cosine(q):
    """cos(pi/2 s) / (1 - s^2) for q = s^2; the sine of the angle left to pi/2."""
    s = np.sqrt(q)
    return np.pi / 2 * np.sinc((1 - s) / 2) / (1 + s)


SINE = {
    "float32": coefficients(_sine, 0, 1, 4),
    "float64": coefficients(_sine, 0, 1, 8),
}
COSINE = {
    "float32": coefficients(_cosine, 0, 1, 4),
    "float64": coefficients(_cosine, 0, 1, 8),
}
