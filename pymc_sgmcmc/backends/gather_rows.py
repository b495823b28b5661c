"""Take a batch's rows from a large array on numba, fetching them all at once.

A row of a large table is in memory, not in the caches, and takes about 100 ns to arrive. PyTensor's
numba code copies element by element and so waits for one row after another. Here all rows are
prefetched first, which does not wait, and then copied.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import tensor

CACHE_LINE = 64
"""Bytes that are fetched from memory together."""

CACHED = 2**20
"""Bytes of an array that stays in the caches: there, prefetching costs more than it saves."""


class GatherRows(Op):
    """``array[rows]`` for a vector of row numbers; has no gradient."""

    __props__ = ()

    def make_node(self, array, rows):
        """Make the node: the number of rows replaces the first length."""
        out = tensor(dtype=array.dtype, shape=(rows.type.shape[0], *array.type.shape[1:]))
        return Apply(self, [array, rows], [out])

    def infer_shape(self, node, shapes):
        [array, rows] = shapes
        return [(rows[0], *array[1:])]

    def perform(self, node, inputs, output_storage):
        """Compute it in Python."""
        array, rows = inputs
        output_storage[0][0] = array[rows]


def _prefetch(typing_context, array, index):
    """Prefetch the cache line of an element: numba has no function for it."""

    def generate(context, builder, signature, arguments):
        of_array, at = arguments
        struct = make_array(array)(context, builder, of_array)
        at = cgutils.unpack_tuple(builder, at)
        element = cgutils.get_item_pointer(context, builder, array, struct, at, wraparound=False)
        address = builder.bitcast(element, cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [address.type, *[cgutils.int32_t] * 3])
        of_llvm = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        to_read, often, of_data = cgutils.int32_t(0), cgutils.int32_t(3), cgutils.int32_t(1)
        builder.call(of_llvm, [address, to_read, often, of_data])
        return context.get_dummy_value()

    return types.void(array, index), generate


prefetch: Any = intrinsic(_prefetch)


@njit
def prefetch_elements(vector, rows):
    """Prefetch elements of a vector."""
    for row in rows:
        prefetch(vector, (row,))


@njit
def prefetch_rows(matrix, rows):
    """Prefetch rows of a matrix."""
    last = matrix.shape[1] - 1
    for row in rows:
        for j in range(0, last, CACHE_LINE // matrix.itemsize):
            prefetch(matrix, (row, j))
        prefetch(matrix, (row, last))


def gather(array, rows):
    """``array[rows]``, for numba."""
    raise NotImplementedError("for numba only")


@overload(gather)
def by_dimension(array, rows):
    """Choose by the array's layout and dimensions, which are known when numba compiles."""
    if array.layout != "C":
        return lambda array, rows: array[rows]

    def gather_elements(array, rows):
        if array.nbytes > CACHED:
            prefetch_elements(array, rows)
        out = np.empty(rows.size, array.dtype)
        for i in range(rows.size):
            out[i] = array[rows[i]]
        return out

    def gather_rows(array, rows):
        matrix = array.reshape((array.shape[0], -1))
        if array.nbytes > CACHED:
            prefetch_rows(matrix, rows)
        out = np.empty((rows.size, matrix.shape[1]), array.dtype)
        for i in range(rows.size):
            row = rows[i]
            for j in range(matrix.shape[1]):
                out[i, j] = matrix[row, j]
        return out.reshape((rows.size, *array.shape[1:]))

    return gather_elements if array.ndim == 1 else gather_rows


@register_funcify_and_cache_key(GatherRows)
def numba_funcify_gather_rows(op, node, **kwargs):
    """Compile it; numba's cache is keyed by this module's name and the version, 5."""

    @numba_njit
    def array_of_rows(array, rows):
        return gather(array, rows)

    return array_of_rows, f"{__name__}.GatherRows_5"


@node_rewriter([AdvancedSubtensor])
def subtensor_to_gather_rows(fgraph, node):
    """Replace indexing of the first axis alone by a vector of row numbers."""
    array, *indices = node.inputs
    on_rows = node.op.idx_list[0] == 0 and all(i == slice(None) for i in node.op.idx_list[1:])
    if not on_rows or len(indices) != 1:
        return None
    [rows] = indices
    if rows.type.ndim != 1 or rows.dtype != "int64":
        return None
    return [GatherRows()(array, rows)]


optdb["specialize"].register("subtensor_to_gather_rows", subtensor_to_gather_rows, "gather_rows")
