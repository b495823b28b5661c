"""How many threads BLAS may use.

Decompositions of matrices with less than some thousand rows, and products of such a matrix with a
vector, wait for their threads longer than they compute: on two busy cores the eigenvectors of 1000
rows took 17 times the CPU seconds in two threads. Products of large matrices do not.
"""

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


def blas_threads(n: int) -> AbstractContextManager:
    """Let BLAS use so many threads in a block of code."""
    return _blas().limit(limits=n, user_api="blas")


@cache
def _blas() -> ThreadpoolController:
    """Controls the threads of BLAS; finding its libraries takes milliseconds."""
    return ThreadpoolController()
