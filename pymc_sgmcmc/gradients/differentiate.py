"""Gradients of log densities, or an error that names the variable without one."""

import pytensor.tensor as pt
from pytensor.gradient import DisconnectedInputError, NullTypeGradError
from pytensor.tensor.variable import TensorVariable

NO_GRADIENT = (NullTypeGradError, NotImplementedError, DisconnectedInputError)


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
