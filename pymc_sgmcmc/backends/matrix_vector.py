"""Products of a matrix and a vector on numba, and sums along an axis, in two short loops.

PyTensor's numba backend treats them as general matrix products, whose code for all layouts takes
numba 10 to 20 seconds to compile, and each function around it seconds more. A minibatch's matrix is
small and contiguous: a loop that LLVM vectorises is as fast. PyTensor's code for sums of a matrix
along an axis first sorts the strides, and takes as long to compile: here they are products with a
vector of ones.
"""

import numpy as np
from numba.extending import overload
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key
from pytensor.tensor.basic import constant, expand_dims
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.extra_ops import squeeze
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.type import tensor

from pymc_sgmcmc.backends.numba_math import FLOAT_TYPES


class MatrixVector(Op):
    """``matrix @ vector``, or ``vector @ matrix``, without a gradient."""

    __props__ = ("from_left",)

    def __init__(self, from_left: bool):
        self.from_left = from_left

    def make_node(self, matrix, vector):
        length = matrix.type.shape[1 if self.from_left else 0]
        out = tensor(dtype=matrix.dtype, shape=(length,))
        return Apply(self, [matrix, vector], [out])

    def infer_shape(self, node, shapes):
        return [(shapes[0][1 if self.from_left else 0],)]

    def perform(self, node, inputs, output_storage):
        matrix, vector = inputs
        output_storage[0][0] = vector @ matrix if self.from_left else matrix @ vector


# "reassoc" allows another order of the terms, without which the loop cannot be vectorised.
@numba_njit(fastmath={"reassoc", "contract"})
def sums_of_rows(matrix, weights):
    """Return the weighted sum of each row, where rows are contiguous."""
    if matrix.shape[1] != weights.size:
        raise ValueError("A matrix's rows differ in length from the vector they are multiplied by")
    out = np.empty(matrix.shape[0], matrix.dtype)
    for i in range(matrix.shape[0]):
        total = matrix.dtype.type(0)
        for j in range(weights.size):
            total += matrix[i, j] * weights[j]
        out[i] = total
    return out


@numba_njit(fastmath=False)
def sum_of_rows(matrix, weights):
    """Return the sum of the rows, each times its weight, where rows are contiguous."""
    if matrix.shape[0] != weights.size:
        raise ValueError("A matrix has more or fewer rows than the vector that multiplies them")
    out = np.zeros(matrix.shape[1], matrix.dtype)
    for i in range(weights.size):
        weight = weights[i]
        for j in range(matrix.shape[1]):
            out[j] += weight * matrix[i, j]
    return out


def by_layout(of_rows, of_columns):
    """Choose the loop whose innermost index is contiguous; copy a matrix that is not contiguous."""

    def product(matrix, vector):
        raise NotImplementedError("for numba only")

    @overload(product)
    def choose(matrix, vector):
        if matrix.layout == "F":
            return lambda matrix, vector: of_columns(matrix.T, vector)
        return lambda matrix, vector: of_rows(np.ascontiguousarray(matrix), vector)

    return product


times_vector = by_layout(sums_of_rows, sum_of_rows)
times_matrix = by_layout(sum_of_rows, sums_of_rows)


@register_funcify_and_cache_key(MatrixVector)
def numba_funcify_matrix_vector(op, node, **kwargs):
    """Choose the product; numba's cache is keyed by this module's name and the version, 4."""
    product = times_matrix if op.from_left else times_vector

    @numba_njit
    def matrix_vector(matrix, vector):
        return product(matrix, vector)

    return matrix_vector, f"{__name__}.MatrixVector_4_{op.from_left}"


@node_rewriter([Dot])
def dot_to_matrix_vector(fgraph, node):
    """Replace the product of a matrix and a single column, or of a single row and a matrix."""
    left, right = node.inputs
    if not left.dtype == right.dtype == node.outputs[0].dtype or left.dtype not in FLOAT_TYPES:
        return None
    if right.type.shape[1] == 1:
        matrix, vector, axis, from_left = left, squeeze(right, axis=1), 1, False
    elif left.type.shape[0] == 1:
        matrix, vector, axis, from_left = right, squeeze(left, axis=0), 0, True
    else:
        return None
    made_by = matrix.owner
    if made_by and isinstance(made_by.op, DimShuffle) and made_by.op.is_matrix_transpose:
        matrix, from_left = made_by.inputs[0], not from_left
    product = MatrixVector(from_left)(matrix, vector)
    return [expand_dims(product, axis)]


optdb["specialize"].register("dot_to_matrix_vector", dot_to_matrix_vector, "matrix_vector")


@node_rewriter([Sum])
def sum_to_matrix_vector(fgraph, node):
    """Replace a matrix's sum along an axis whose length is known."""
    [matrix] = node.inputs
    if matrix.type.ndim != 2 or len(node.op.axis or ()) != 1 or matrix.dtype not in FLOAT_TYPES:
        return None
    [axis] = node.op.axis
    length = matrix.type.shape[axis]
    if length is None or not node.op.acc_dtype == matrix.dtype == node.outputs[0].dtype:
        return None
    from_left = axis == 0
    return [MatrixVector(from_left)(matrix, constant(np.ones(length, matrix.dtype)))]


optdb.register(
    "sum_to_matrix_vector",
    dfs_rewriter(sum_to_matrix_vector),
    "matrix_vector",
    position=110,  # after sums have been fused with their arguments
)
