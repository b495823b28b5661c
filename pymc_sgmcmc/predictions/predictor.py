"""From a draw to predictions on test data: a model's variable on other data, compiled once."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pymc.blocking import PointType
from pymc.distributions.moments import mean as mean_of
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import clone_replace
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.backend import backend_of
from pymc_sgmcmc.backends.compile_time import quick_graphs, without_code
from pymc_sgmcmc.gradients.arrays import (
    PYTHON,
    array_name,
    array_value,
    has_named_dims,
    leaf_arrays,
    refuse_nan_in,
)
from pymc_sgmcmc.gradients.data_check import lookups_in

PROBABILITIES = (pm.Bernoulli, pm.Categorical)
"""Distributions of observed variables that are predicted by the probabilities of their values."""


def is_discrete_choice(model: pm.Model, name: str) -> bool:
    """Return whether a name is that of an observed variable with one class for each row."""
    rv = model[name]
    kinds = tuple(type(kind.rv_op) for kind in PROBABILITIES)
    return rv in model.observed_RVs and isinstance(rv.owner.op, kinds) and rv.ndim == 1


def predicted(model: pm.Model, name: str) -> TensorVariable:
    """Return what is predicted, in terms of value variables and the model's data.

    For an observed variable, this is the mean or the probabilities of its classes.
    """
    var = model[name]
    if is_discrete_choice(model, name):
        var = var.owner.op.dist_params(var.owner)[0]
    elif var in model.observed_RVs:
        try:
            var = mean_of(_of_any_size(var))
        except NotImplementedError as error:
            raise ValueError(
                f"PyMC does not know the mean of the observed variable '{name}': name a "
                "pm.Deterministic of what should be predicted."
            ) from error
    [value] = model.replace_rvs_by_values([var])
    return value


def _of_any_size(rv: TensorVariable) -> TensorVariable:
    """Return a random variable without the size that PyMC takes from its observed values."""
    op = rv.owner.op
    if not isinstance(op, RandomVariable):
        return rv
    rng, _, *parameters = rv.owner.inputs
    return op.make_node(rng, None, *parameters).outputs[1]


class Predictor:
    """Evaluates a model's variable on test data in batches of rows, or as it is in the model.

    ``compile_kwargs`` may be set before the first call; ``n_rows`` is None without test data.
    """

    def __init__(self, model: pm.Model, name: str, data: Mapping[str, Any] | None, batch_size: int):
        self.model, self.name = model, name
        self.compile_kwargs: dict[str, Any] | None = None
        self._function: Any = None
        self.data: dict[str, np.ndarray] = {}
        self.n_rows: int | None = None
        if data is None:
            return
        self.data = {key: _checked(model, key, value) for key, value in data.items()}
        if not self.data:
            raise ValueError(
                "data={} has no test data: pass the arrays that take the place of the model's "
                "pm.Data, such as data={'X': X_test}, or leave data= out to average "
                f"'{name}' as it is in the model."
            )
        lengths = {key: len(value) for key, value in self.data.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"'{key}' has {n}" for key, n in lengths.items())
            raise ValueError(f"The test data have different numbers of rows: {shown}.")
        self.n_rows = next(iter(lengths.values()))
        self.batch_size = min(batch_size, self.n_rows)

    def __getstate__(self):
        return self.__dict__ | {"_function": None, "_batches": None}

    @quick_graphs()
    def _compile(self) -> None:
        model = self.model
        if has_named_dims(model):
            raise ValueError(
                "Predictions are not available for models with variables of pymc.dims: write this "
                "model with pm.Normal and the like."
            )
        expression = predicted(model, self.name)
        tests = {
            model[key]: TensorType(model[key].dtype, (None, *value.shape[1:]))(key)
            for key, value in self.data.items()
        }
        unused = [v.name for v in tests if v not in leaf_arrays([expression], model.value_vars)]
        if unused:
            raise ValueError(
                f"'{self.name}' does not depend on the data '{unused[0]}': leave it out of data=."
            )
        self._left = [
            a
            for a in leaf_arrays([expression], model.value_vars)
            if a not in tests and array_value(a).ndim > 0
        ]
        [expression] = clone_replace([expression], tests, rebuild_strict=False)
        self._check_indices(expression, list(tests.values()))
        kwargs = dict(self.compile_kwargs or {})
        mode = get_mode(kwargs.pop("mode", None))
        self._function = pytensor.function(
            [*model.value_vars, *tests.values()],
            expression,
            mode=mode,
            on_unused_input="ignore",
            **kwargs,
        )
        self._function.trust_input = True
        self._batches = self._cut(backend_of(mode).array) if self.data else []

    def _check_indices(self, expression: TensorVariable, tests: list[TensorVariable]) -> None:
        """Refuse test data that index beyond an array, where JAX would take its last element."""
        names = {v: f"'{v.name}'" for v in tests}
        lookups = lookups_in([expression], names, set(tests), self.model.value_vars)
        outputs = [v for lookup in lookups for v in (lookup.index, lookup.length)]
        if not outputs:
            return
        with without_code():
            function = pytensor.function(tests, outputs, mode=PYTHON, on_unused_input="ignore")
        found = iter(function(*self.data.values()))
        for lookup in lookups:
            lookup.check(np.asarray(next(found)), int(next(found)))

    def _cut(self, put: Any) -> list[list]:
        """Return batches of equal length, the last one padded: JAX compiles for each shape."""
        assert self.n_rows is not None
        n = self.batch_size
        rows = np.arange(-(-self.n_rows // n) * n)
        rows[self.n_rows :] = 0
        return [[put(value[part]) for value in self.data.values()] for part in rows.reshape(-1, n)]

    def __call__(self, point: PointType) -> np.ndarray:
        """Return the predictions at one point of the value variables, on test data (rows, ...)."""
        if self._function is None:
            self._compile()
        values = [np.asarray(point[v.name], v.dtype) for v in self.model.value_vars]
        if not self.data:
            return np.asarray(self._function(*values))
        parts = []
        for batch in self._batches:
            part = np.asarray(self._function(*values, *batch))
            if part.ndim == 0 or len(part) != self.batch_size:
                self._refuse(part.shape)
            parts.append(part)
        return np.concatenate(parts)[: self.n_rows]

    def _refuse(self, shape: tuple[int, ...]) -> None:
        others = [array_name(a) for a in self._left if shape and shape[0] in array_value(a).shape]
        hint = f" It also depends on {', '.join(others)}, not in data=." if others else ""
        raise ValueError(
            f"'{self.name}' has the shape {shape} on {self.batch_size} rows of test data: its "
            f"first axis must be that of the rows.{hint} Make every array with rows pm.Data, and "
            "pass all of them in data=."
        )


def _checked(model: pm.Model, key: str, value: Any) -> np.ndarray:
    """Return test data in the type of the container that they replace, or raise an error."""
    containers = [v.name for v in model.data_vars]
    if key not in containers:
        raise ValueError(
            f"data['{key}']: the model has no pm.Data of this name. It has: "
            f"{', '.join(containers) or 'none'}."
        )
    container = model[key]
    assert isinstance(container, SharedVariable)
    array = np.asarray(value)
    shape = array_value(container).shape
    if array.ndim != len(shape) or array.shape[1:] != shape[1:] or not len(array):
        expected = ", ".join(["rows", *map(str, shape[1:])])
        raise ValueError(
            f"data['{key}'] has the shape {array.shape}, but the model's '{key}' has {shape}: test "
            f"data must have the shape ({expected}), with at least one row."
        )
    kinds = "biuf" if container.dtype.startswith("float") else "biu"
    if array.dtype.kind not in kinds:
        raise ValueError(
            f"data['{key}'] has the type {array.dtype}, but the model's '{key}' has "
            f"{container.dtype}."
        )
    refuse_nan_in(f"data['{key}']", array)
    fitted = np.ascontiguousarray(array, dtype=container.dtype)
    if not container.dtype.startswith("float") and (fitted != array).any():
        row = int(np.argwhere(fitted != array)[0, 0])
        raise ValueError(
            f"data['{key}'] has the value {array[fitted != array][0]} in row {row}, which does "
            f"not fit into {container.dtype}, the type of the model's '{key}'."
        )
    return fitted
