"""Simplified gradients of log densities, or an error that names the variable without one."""

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pymc.pytensorf import pregrad_inner_graphs
from pytensor.gradient import DisconnectedInputError, NullTypeGradError
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.utils import MethodNotDefined
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Alloc, get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Dot, Prod
from pytensor.tensor.variable import TensorVariable

NO_GRADIENT = (NullTypeGradError, NotImplementedError, DisconnectedInputError)
"""Exceptions that PyTensor raises for operations without a derivative."""
NO_SECOND = (*NO_GRADIENT, MethodNotDefined, TypeError)
"""The same for operations without a second derivative; `TypeError` if it would be joined with
others."""


def gradients_of(log_p: TensorVariable, vars: list[TensorVariable]) -> list[TensorVariable]:
    """Differentiate, or raise an error that names the variable."""
    try:
        return pt.grad(log_p, vars, disconnected_inputs="ignore")
    except NO_GRADIENT:  # one at a time, to find the variable
        return [_gradient_of(log_p, var) for var in vars]


def _gradient_of(log_p: TensorVariable, var: TensorVariable) -> TensorVariable:
    try:
        return pt.grad(log_p, var, disconnected_inputs="ignore")
    except NO_GRADIENT as error:
        raise ValueError(
            f"The log probability has no gradient with respect to '{var.name}': {error} "
            "Sample it with another step, or write its term with differentiable operations."
        ) from error


def second_derivatives_times(
    gradients: Sequence[TensorVariable], vars: Sequence[TensorVariable]
) -> tuple[list[TensorVariable], list[TensorVariable]] | None:
    """Return arrays like the variables, and the Hessian times the vector that they represent.

    None if some operation has no second derivative.
    """
    along = [var.type() for var in vars]
    slope = pt.add(*(pt.sum(g * v) for g, v in zip(gradients, along, strict=True)), 0.0)
    try:
        return along, pt.grad(slope, vars, disconnected_inputs="ignore")
    except NO_SECOND:
        return None


def _source_of(variable: TensorVariable, property: str) -> TensorVariable | None:
    """Return the input of a DimShuffle for which a property is true, else None."""
    node = variable.owner
    if node is not None and isinstance(node.op, DimShuffle) and getattr(node.op, property):
        return node.inputs[0]
    return None


@node_rewriter([DimShuffle])
def transposed_matrix_times_vector(fgraph, node):
    """Turn A.T v into v A, because XLA compiles the former to a slow separate loop."""
    if not node.op.is_squeeze or node.op.drop != (1,):
        return None
    product = node.inputs[0].owner
    if product is None or not isinstance(product.op, Dot):
        return None
    left, right = product.inputs
    matrix = _source_of(left, "is_matrix_transpose")
    vector = _source_of(right, "is_right_expand_dims")
    if matrix is None or vector is None or vector.ndim != 1:
        return None
    return [pt.dot(vector, matrix)]


@node_rewriter([pt.sqrt])
def sqrt_of_exponential(fgraph, node):
    """Turn sqrt(a exp(x)) into sqrt(a) exp(x / 2).

    Where exp(x) is rounded to 0, the derivative of the former is 0 / 0. That is how `pm.gp.HSGP`
    writes the scales of coefficients with an exponentiated quadratic covariance.
    """
    product = node.inputs[0].owner
    if product is None or product.op != pt.mul:
        return None
    exponents, others = [], []
    for factor in product.inputs:
        is_exp = factor.owner is not None and factor.owner.op == pt.exp
        exponents += [factor.owner.inputs[0]] if is_exp else []
        others += [] if is_exp else [factor]
    if not exponents:
        return None
    root = pt.sqrt(pt.mul(*others)) if others else 1.0
    return [root * pt.exp(sum(exponents) / 2)]


@node_rewriter([Prod])
def product_without_zeros(fgraph, node):
    """Let a product have second derivatives, which PyTensor has only for factors without zeros."""
    op, [x] = node.op, node.inputs
    if op.no_zeros_in_input:
        return None
    return [Prod(op.axis, op.dtype, op.acc_dtype, no_zeros_in_input=True)(x)]


def with_second_derivatives(expressions: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Apply rewrites after which expressions have second derivatives."""
    rewriter = dfs_rewriter(product_without_zeros)
    return rewrite_graph(list(expressions), include=(), custom_rewrite=rewriter, clone=True)


def _log_survival(log_cdf: TensorVariable) -> TensorVariable | None:
    """Return log(1 - F) if log F is written as log(1 - exp(x)), even within bounds and checks."""
    node = log_cdf.owner
    if get_underlying_scalar_constant_value(log_cdf, raise_not_constant=False) == -np.inf:
        return pt.zeros_like(log_cdf)
    if node is None:
        return None
    if node.op == pt.log1mexp:
        return node.inputs[0]
    if isinstance(node.op, Alloc | CheckAndRaise):
        inner = _log_survival(node.inputs[0])
        return None if inner is None else node.op(inner, *node.inputs[1:])
    if node.op == pt.switch:
        within, *branches = node.inputs
        if None not in (survivals := [_log_survival(branch) for branch in branches]):
            return pt.switch(within, *survivals)
    return None


@node_rewriter([pt.log1mexp])
def log_survival(fgraph, node):
    """Turn log(1 - (1 - exp(x))) into x, which does not round to log 0 where x is far below 0.

    PyTensor does so only if no bounds and checks are in between, as in the log probabilities by
    which PyMC writes rows of exponential and Weibull distributions that are censored.
    """
    found = _log_survival(node.inputs[0])
    return None if found is None else [found]


def simplified(expressions: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Simplify like `pymc.pytensorf.rewrite_pregrad`, which would undo `disconnected_grad`."""
    expressions = rewrite_graph(
        list(expressions), include=(), custom_rewrite=dfs_rewriter(log_survival)
    )
    return rewrite_graph(
        expressions,
        include=("canonicalize", "stabilize"),
        exclude=("local_view_op",),
        custom_rewrite=pregrad_inner_graphs,
    )


def before_gradients(log_p: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Apply rewrites after which gradients are simpler, or finite where they were not."""
    rewriter = dfs_rewriter(sqrt_of_exponential)
    return rewrite_graph(simplified(log_p), include=(), custom_rewrite=rewriter)


def tidy(gradients: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Apply rewrites of gradients that PyTensor lacks."""
    rewriter = dfs_rewriter(transposed_matrix_times_vector)
    return rewrite_graph(list(gradients), include=(), custom_rewrite=rewriter)
