"""Products of two matrices on numba, by a call of BLAS and nothing else.

For each pair of memory layouts PyTensor's numba backend also compiles code for single rows and
columns, reversed axes and copies, which takes 15 seconds; a layer of a network has three pairs.
"""

import numpy as np
from numba.extending import overload
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key
from pytensor.tensor.math import Dot
from pytensor.tensor.type import tensor

from pymc_sgmcmc.backends.numba_math import FLOAT_TYPES


class MatrixProduct(Op):
    """``left @ right`` of matrices of one float type, without a gradient."""

    __props__ = ()

    def make_node(self, left, right):
        shape = (left.type.shape[0], right.type.shape[1])
        return Apply(self, [left, right], [tensor(dtype=left.dtype, shape=shape)])

    def infer_shape(self, node, shapes):
        [left, right] = shapes
        return [(left[0], right[1])]

    def perform(self, node, inputs, output_storage):
        left, right = inputs
        output_storage[0][0] = left @ right


def contiguous(matrix):
    """Return a matrix with contiguous rows or columns, as BLAS needs it; for numba."""
    raise NotImplementedError("for numba only")


@overload(contiguous)
def by_layout(matrix):
    """Copy only a matrix that may have neither."""
    if matrix.layout in "CF":
        return lambda matrix: matrix
    return lambda matrix: np.ascontiguousarray(matrix)


@register_funcify_and_cache_key(MatrixProduct)
def numba_funcify_matrix_product(op, node, **kwargs):
    """Call BLAS; numba's cache is keyed by this module's name and the version, 1."""

    @numba_njit
    def matrix_product(left, right):
        return np.dot(contiguous(left), contiguous(right))

    return matrix_product, f"{__name__}.MatrixProduct_1"


@node_rewriter([Dot])
def dot_to_matrix_product(fgraph, node):
    """Replace a product of matrices."""
    left, right = node.inputs
    if not left.dtype == right.dtype == node.outputs[0].dtype or left.dtype not in FLOAT_TYPES:
        return None
    return [MatrixProduct()(left, right)]


optdb.register(
    "dot_to_matrix_product",
    dfs_rewriter(dot_to_matrix_product),
    "matrix_product",
    position=110,  # after the rewrites that merge and simplify products
)
