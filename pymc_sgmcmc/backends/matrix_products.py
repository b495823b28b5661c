"""Products of matrices and vectors on numba, and sums along an axis, in code that compiles soon.

PyTensor's numba backend compiles the product of two matrices for all pairs of memory layouts, also
for single rows and columns, reversed axes and copies, which takes 15 seconds per pair, and each
function around it seconds more; a layer of a network has three pairs. Here a product of two
matrices is a call of BLAS, and that of a matrix and a vector consists of two short loops: a
minibatch's matrix is small and contiguous, and a loop that LLVM vectorises is as fast. PyTensor's
code for sums of a matrix along an axis first sorts the strides, and takes as long to compile: here
they are products with a vector of ones.
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
    """Return the weighted sum of each row, for contiguous rows."""
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
    """Return the sum of the rows, each times its weight, for contiguous rows."""
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


def contiguous(matrix):
    """Return a matrix with contiguous rows or columns, as BLAS needs it; for numba."""
    raise NotImplementedError("for numba only")


@overload(contiguous)
def copied_if_needed(matrix):
    """Copy a matrix only if it may have neither contiguous rows nor contiguous columns."""
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


@register_funcify_and_cache_key(MatrixVector)
def numba_funcify_matrix_vector(op, node, **kwargs):
    """Choose the product; numba's cache is keyed by this module's name and the version, 4."""
    product = times_matrix if op.from_left else times_vector

    @numba_njit
    def matrix_vector(matrix, vector):
        return product(matrix, vector)

    return matrix_vector, f"{__name__}.MatrixVector_4_{op.from_left}"


def _factors(node):
    """Return the factors of a product, if they and the product have one float type."""
    left, right = node.inputs
    alike = left.dtype == right.dtype == node.outputs[0].dtype
    return (left, right) if alike and left.dtype in FLOAT_TYPES else None


@node_rewriter([Dot])
def dot_to_matrix_product(fgraph, node):
    """Replace a product of matrices."""
    factors = _factors(node)
    return None if factors is None else [MatrixProduct()(*factors)]


optdb.register(
    "dot_to_matrix_product",
    dfs_rewriter(dot_to_matrix_product),
    "matrix_products",
    position=110,  # after the rewrites that merge and simplify products
)


@node_rewriter([Dot])
def dot_to_matrix_vector(fgraph, node):
    """Replace the product of a matrix and a single column, or of a single row and a matrix."""
    if (factors := _factors(node)) is None:
        return None
    left, right = factors
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


optdb["specialize"].register("dot_to_matrix_vector", dot_to_matrix_vector, "matrix_products")


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
    "matrix_products",
    position=110,  # after sums have been fused with their arguments
)
