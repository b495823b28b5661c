"""Sparse matrices of rows, as arrays that are sliced into batches like others."""

from collections.abc import Collection, Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.sparse.type import SparseTensorType
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import csr_matrix

from pymc_sgmcmc.gradients.arrays import evaluate


def products_of_rows(
    outputs: Sequence[Variable], n_rows: int, stop: Collection[Variable]
) -> dict[Variable, TensorVariable]:
    """Rewrite products with a sparse matrix of the rows in terms of padded dense arrays.

    The matrix is a constant, or computed from constants.
    Each row becomes its nonzero columns and their values, padded to the longest row. A sparse
    matrix that is not the left factor of a product is an error; expressions from which ``stop`` is
    computed are left unchanged.
    """
    products: dict[Variable, TensorVariable] = {}
    matrices: dict[Variable, csr_matrix] = {}
    padded: dict[Variable, tuple[Variable, Variable]] = {}
    for node in io_toposort(list(stop), list(outputs)):
        if _is_sparse(node.outputs[0]) and not set(stop) & set(ancestors(node.outputs)):
            _refuse_containers(node.outputs)
            [matrices[node.outputs[0]]] = evaluate(node.outputs[0])
            continue
        found = {i: i.data for i in node.inputs if isinstance(i, Constant) and _is_sparse(i)}
        found |= {i: matrices[i] for i in node.inputs if i in matrices}
        of_rows = [i for i, value in found.items() if n_rows in value.shape]
        if not of_rows:
            continue
        matrix, *others = node.inputs
        is_product = type(node.op).__name__ in ("Dot", "StructuredDot", "TrueDot")
        dense = all(type(v.type) is TensorType for v in (*others, node.outputs[0]))
        if not (is_product and dense and of_rows == [matrix] and found[matrix].shape[0] == n_rows):
            raise ValueError(
                f"The sparse matrix of shape {found[of_rows[0]].shape} is an input of {node.op}: "
                "its rows can be sliced into batches only if it is the left factor of a product "
                "(pytensor.sparse.dot(matrix, dense)). Use a dense array."
            )
        if matrix not in padded:
            padded[matrix] = _padded(found[matrix])
        columns, values = padded[matrix]
        products[node.outputs[0]] = (values[:, :, None] * others[0][columns]).sum(axis=1)
    return products


def _refuse_containers(outputs: Sequence[Variable]) -> None:
    """Raise an error for a sparse matrix that `pm.set_data` could change without being noticed."""
    containers = [v.name for v in ancestors(outputs) if isinstance(v, SharedVariable)]
    if containers:
        raise ValueError(
            f"A sparse matrix is made from the containers {containers}: make it a constant "
            "(pytensor.sparse.as_sparse_variable(matrix)), or use a dense array."
        )


def _is_sparse(v: Variable) -> bool:
    return isinstance(v.type, SparseTensorType)


def _padded(matrix) -> tuple[Variable, Variable]:
    """Return columns and values of each row's entries, shape (N, entries of the longest row)."""
    rows = csr_matrix(matrix)
    counts = np.diff(rows.indptr)
    used = np.arange(max(counts.max(initial=0), 1)) < counts[:, None]
    columns, values = np.zeros(used.shape, rows.indices.dtype), np.zeros(used.shape, rows.dtype)
    columns[used], values[used] = rows.indices, rows.data
    return pt.constant(columns), pt.constant(values)
