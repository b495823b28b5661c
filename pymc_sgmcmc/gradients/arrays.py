"""The arrays of a model: data containers and constants, and what depends on them alone."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.traversal import walk
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.compile_time import without_code

type Array = SharedVariable | Constant


@node_rewriter([Elemwise])
def narrow(fgraph, node):
    """Split an operation on many operands in two: NumPy's universal functions take at most 32."""
    k = len(node.inputs) // 2
    if k < 15 or not getattr(node.op.scalar_op, "associative", False):
        return None
    return [node.op(node.op(*node.inputs[:k]), node.op(*node.inputs[k:]))]


PYTHON = Mode(linker="py", optimizer="fast_compile").register(
    (dfs_rewriter(narrow, ignore_newtrees=False), 100)
)
"""Mode for graphs that run once or twice, without code if `pytensor.config.cxx` is empty."""

AS_WRITTEN = Mode(linker="py", optimizer="minimum_compile").register(
    (dfs_rewriter(narrow, ignore_newtrees=False), 100)
)
"""The same, for log probabilities that are already simplified."""


def python_function(inputs: Iterable[Variable], outputs: Any, mode: Mode = PYTHON) -> Any:
    """Make a function that runs in Python, for few calls; arguments may be unused."""
    with without_code():
        return pytensor.function(list(inputs), outputs, mode=mode, on_unused_input="ignore")


def evaluate(*outputs: Variable) -> list[np.ndarray]:
    """Evaluate expressions of data once, without compiling them."""
    with without_code():
        return python_function([], list(outputs))()


def array_value(array: Array | np.ndarray) -> np.ndarray:
    """Return the current array itself, not a copy."""
    if isinstance(array, SharedVariable):
        return array.get_value(borrow=True)
    return array.data if isinstance(array, Constant) else array


def array_name(array: Array) -> str:
    """Return a name for messages, or the shape if there is none."""
    return f"'{array.name}'" if array.name else f"the array of shape {array_value(array).shape}"


def data_name(array: Array) -> str:
    """Return the same name for the beginning of a sentence."""
    return f"The data '{array.name}'" if array.name else array_name(array).capitalize()


def leaf_arrays(
    outputs: Iterable[Variable],
    stop: Sequence[Variable],
    folds: Mapping[Variable, Variable] | None = None,
) -> list[Array]:
    """Return shared variables and array constants on which outputs depend, except by ``stop``.

    ``folds`` has replacements of some expressions.
    """
    blocked, folds = set(stop), folds or {}

    def parents(var: Variable):
        if var in folds:
            return [folds[var]]
        return None if var in blocked or var.owner is None else reversed(var.owner.inputs)

    return [
        var
        for var in walk(outputs, parents)
        if isinstance(var, SharedVariable | Constant)
        and isinstance(array_value(var), np.ndarray)
        and array_value(var).ndim > 0
    ]


def dims_of(model: pm.Model, var: Variable) -> tuple[str | None, ...]:
    """Dim names of a variable's axes, None for an axis without a name."""
    of_itself = getattr(var.tag, "dims", None)  # a constant of pymc.dims
    return tuple(of_itself or model.named_vars_to_dims.get(var.name) or (None,) * var.ndim)


def has_named_dims(model: pm.Model) -> bool:
    """Whether any of a model's variables is one of `pymc.dims`."""
    variables = [*model.named_vars.values(), *model.rvs_to_values.values()]
    return any(hasattr(var.type, "dims") for var in variables)


def tensor_model(model: pm.Model) -> Any:
    """Return a model of `pymc.dims` with plain tensors for its values and data."""
    # Imported here, because PyTensor's named dims add rewrites to everything that is compiled.
    from pymc_sgmcmc.gradients.named_dims import TensorModel

    return TensorModel(model)


def random_variable(model: pm.Model, value: Variable) -> Variable:
    """Return the free variable of a value, which may belong to a `tensor_model`."""
    return next(rv for rv in model.free_RVs if model.rvs_to_values[rv].name == value.name)


def arrays_of(
    model: pm.Model, rv: Variable, folds: Mapping[Variable, Variable] | None = None
) -> list[Array]:
    """Return the arrays that an observed or latent variable depends on, with its own values."""
    others = [o for o in [*model.free_RVs, *model.observed_RVs] if o is not rv]
    value = model.rvs_to_values.get(rv)
    return leaf_arrays([rv] if value is None else [rv, value], others, folds)


def observed_array(model: pm.Model, rv: Variable) -> Variable:
    """Return what was passed as observed=, without PyMC's cast to the variable's type."""
    value = model.rvs_to_values[rv]
    while value.owner is not None and isinstance(value.owner.op, Elemwise):
        [value] = value.owner.inputs
    return value


def shape_of(var: Variable) -> tuple[int, ...]:
    """Return the shape of an expression of data."""
    if isinstance(var, SharedVariable | Constant):
        return array_value(var).shape
    if None not in var.type.shape:
        return var.type.shape
    lengths = evaluate(*var.shape) if isinstance(var.shape, tuple) else evaluate(var.shape)[0]
    return tuple(int(n) for n in lengths)


def sum_of(terms: Sequence[Variable]) -> TensorVariable:
    """Sum over all elements, in the model's float type."""
    total = pt.add(*(pt.sum(t) for t in terms), 0.0)
    return total.astype(pytensor.config.floatX)  # counts may have made it float64


def weighted(logp: TensorVariable, axis: int, weights: TensorVariable) -> TensorVariable:
    """Multiply the log likelihoods of rows, which run along an axis, by the rows' weights."""
    return logp * pt.expand_dims(weights, [k for k in range(logp.ndim) if k != axis])


def refuse_nan(array: Array) -> None:
    """Raise an error that names data with NaN."""
    refuse_nan_in(data_name(array), array_value(array))


def refuse_nan_in(name: str, value: np.ndarray) -> None:
    """Raise an error for an array with NaN."""
    if np.issubdtype(value.dtype, np.floating):
        # pm.set_data masks NaN values, and a masked sum would skip them.
        n_missing = int(np.isnan(np.ma.filled(value, np.nan)).sum())
        if n_missing:
            raise ValueError(f"{name} has {n_missing} NaN values: drop or impute them.")


def warn_if_integers_overflowed(array: Array) -> None:
    """Warn about integers that may have overflowed in `pm.Data`."""
    value = array_value(array)
    if value.dtype in ("int16", "int32") and value.size:
        largest = np.iinfo(value.dtype).max
        if max(value.max(), -int(value.min())) > 0.9 * largest:
            warnings.warn(
                f"{data_name(array)} has the type {value.dtype} and values from "
                f"{value.min()} to {value.max()}. Under floatX='{pytensor.config.floatX}' pm.Data "
                f"converts integers to that type, and those beyond +-{largest} overflow without an "
                "error. If you have larger ones, use the array itself instead of pm.Data.",
                stacklevel=4,
            )


def element_labels(variables: Sequence[Variable], shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """Return one label per element, such as ``"beta[3, 0]"``, as ArviZ writes them."""
    return [
        f"{v.name}{list(index) if index else ''}"
        for v, shape in zip(variables, shapes, strict=True)
        for index in np.ndindex(*shape)
    ]
