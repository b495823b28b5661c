"""The number of threads that BLAS may use.

Decompositions of matrices with fewer than some thousand rows, and products of such a matrix with a
vector, wait for their threads longer than they compute: on two busy cores the eigenvectors of 1000
rows took 17 times the CPU seconds in two threads. Products of large matrices do not.
"""

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


def blas_threads(n: int) -> AbstractContextManager:
    """Let BLAS use ``n`` threads in a block of code."""
    return _blas().limit(limits=n, user_api="blas")


@cache
def _blas() -> ThreadpoolController:
    """The controller of BLAS's threads; finding its libraries takes milliseconds."""
    return ThreadpoolController()
