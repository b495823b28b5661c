"""Random permutations of row numbers, produced piece by piece."""

import numpy as np

from pymc_sgmcmc.backends.numba_cache import cached_njit

MAX_SHUFFLED = 2**16
"""Largest number of rows for which a permutation is an array: arrays up to this size fit into the
caches, where shuffling is fast."""
N_ROUNDS = 8
"""Number of rounds of a Feistel network: in the tests of this package 4 are too few, and 6 already
cannot be distinguished from uniform permutations."""
PIECE = 512
"""Number of places that a network computes together, so that it uses vector instructions."""
MIX_1, MIX_2 = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)
"""Two odd multipliers of xxHash32, which spread a number's bits."""


def permutation(rng: np.random.Generator, n: int) -> "Permutation":
    """Draw a random permutation of ``range(n)``.

    Its ``fill`` writes rows into an int64 vector, from a place of the order (0 at first) onwards.
    It returns the number of rows written, which is smaller than the vector only at the end of the
    order, and the place at which to continue.
    """
    return Shuffled(rng, n) if n <= MAX_SHUFFLED else Feistel(rng, n)


class Shuffled:
    """A permutation of few rows: an array, shuffled by the Fisher-Yates method.

    A uniform number of 53 bits picks each partner, so a permutation's probability is wrong by a
    factor of less than 1 + n^2 / 2^53.
    """

    def __init__(self, rng: np.random.Generator, n: int):
        self._rows = np.arange(n)
        _shuffle(self._rows, rng.random(n))

    def fill(self, out: np.ndarray, place: int) -> tuple[int, int]:
        """Write the next rows."""
        rows = self._rows[place : place + len(out)]
        out[: len(rows)] = rows
        return len(rows), place + len(rows)


class Feistel:
    """A permutation of many rows, computed as needed at a cost per row that does not depend on n.

    It is a keyed network on the numbers with just enough bits (Luby and Rackoff 1988), because an
    array of this size would not fit into the caches. A number's halves are mixed in turn,

        left ^= f_k(right),  right ^= f_k+1(left),

    which can be undone, so no number occurs twice; numbers of n and above are left out (as in
    Mitchell et al. 2022). The random keys choose one of 2^256 permutations.
    """

    def __init__(self, rng: np.random.Generator, n: int):
        self._n = n
        bits = (n - 1).bit_length()
        self._bits = bits // 2, bits - bits // 2
        self._keys = rng.integers(2**32, size=N_ROUNDS, dtype=np.uint32)

    def fill(self, out: np.ndarray, place: int) -> tuple[int, int]:
        """Write the next rows."""
        return _network(out, place, self._n, *self._bits, self._keys)


type Permutation = Shuffled | Feistel


@cached_njit(nogil=True)
def _shuffle(rows: np.ndarray, uniform: np.ndarray) -> None:
    for i in range(len(rows) - 1, 0, -1):
        j = int(uniform[i] * (i + 1))
        rows[i], rows[j] = rows[j], rows[i]


@cached_njit(nogil=True, inline="always")
def _mixed(half, key, bits):
    """Mix a number with a key into a number of ``bits`` bits (at most 32)."""
    mixed = np.uint32(np.uint32(half ^ key) * MIX_1)
    mixed = np.uint32(np.uint32(mixed ^ (mixed >> np.uint32(15))) * MIX_2)
    return np.uint32(mixed >> np.uint32(32 - bits))


@cached_njit(nogil=True)
def _network(out, place, n, left_bits, right_bits, keys):
    n_places = 1 << (left_bits + right_bits)
    left, right = np.empty(PIECE, np.uint32), np.empty(PIECE, np.uint32)
    right_mask = (1 << right_bits) - 1
    count = 0
    while count < out.size and place < n_places:
        for i in range(PIECE):
            left[i] = np.uint32((place + i) >> right_bits)
            right[i] = np.uint32((place + i) & right_mask)
        for k in range(0, keys.size, 2):
            for i in range(PIECE):
                left[i] ^= _mixed(right[i], keys[k], left_bits)
                right[i] ^= _mixed(left[i], keys[k + 1], right_bits)
        # No branch depends on a row, because it could not be predicted: a skipped row is
        # overwritten.
        i, end = 0, min(PIECE, n_places - place)
        while i < end and count < out.size:
            for j in range(i, min(end, i + out.size - count)):
                row = (np.int64(left[j]) << right_bits) | np.int64(right[j])
                out[count] = row
                count += row < n
                i = j + 1
        place += i
    return count, place
