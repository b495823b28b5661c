"""Check that the log prior and the log likelihood are finite at the starting point."""

from collections.abc import Sequence

import numpy as np
from pymc.blocking import PointType
from pymc.exceptions import SamplingError
from pymc.logprob.utils import ParameterValueError
from pymc.model import Model
from pytensor.graph.basic import Variable

from pymc_sgmcmc.backends.compile_time import quick_graphs, without_code
from pymc_sgmcmc.gradients.arrays import AS_WRITTEN, array_value, python_function
from pymc_sgmcmc.gradients.batch_check import rows_looked_at
from pymc_sgmcmc.gradients.source import GradientSource

FEW_NUMBERS = 10
"""Largest number of elements with which an initial point is shown in full."""
FEW_NAMES = 5
"""Largest number of variables without a density that are named."""


class BadStart(SamplingError):
    """A chain's starting point has no posterior density."""


@quick_graphs()
def check_start(model: Model, source: GradientSource, point: PointType) -> None:
    """Raise `BadStart` for a point without a finite density, in Python, before compiling.

    It uses the `rows_looked_at`: all rows, or a random part if there are many (to bound the cost);
    one batch for a model written with `pm.Minibatch`, and no rows of streamed data.
    """
    rows = _rows_of_one_batch(source, model)
    data = [np.asarray(array_value(array), dtype=v.dtype) for array, v in source.data]
    values = [np.asarray(point[v.name], dtype=v.dtype) for v in (*source.vars, *source.others)]
    own, others = values[: len(source.vars)], values[len(source.vars) :]
    scales = [np.ones((), r.scale.dtype) for r in source.rows]
    with without_code(), np.errstate(all="ignore"):
        density = python_function(source.inputs, source.determined, AS_WRITTEN)
        try:
            finite = np.isfinite(density(*own, *rows, *scales, *data, *others)).all()
        except ParameterValueError:
            finite = False
        except (NotImplementedError, ValueError, TypeError, IndexError, AssertionError):
            return  # runs only compiled or for one batch size; the first update checks it
        if not finite:
            culprits = _without_density(model, point)
    if not finite:
        raise BadStart(
            f"At the initial point the log probability of {culprits} is not finite"
            f"{numbers_of_start(source.vars, own)}. Give the variables an initval=, pass another "
            "initial_point=, or look for data that are impossible under the model."
        )


def refuse_start(
    vars: Sequence[Variable], without_gradient: Sequence[bool], point: PointType, hint: str = ""
) -> None:
    """Raise `BadStart` if gradients with respect to some of the variables are not finite."""
    names = ", ".join(f"'{v.name}'" for v, bad in zip(vars, without_gradient, strict=True) if bad)
    if names:
        raise BadStart(
            f"At the initial point the gradient of {names} is not finite{hint}"
            f"{numbers_of_start(vars, [point[v.name] for v in vars])}. Give the variables an "
            "initval=, pass another initial_point=, or look for data that are impossible under the "
            "model."
        )


def numbers_of_start(vars: Sequence[Variable], values: Sequence[np.ndarray]) -> str:
    """Return the initial point, for a message, if it has few numbers."""
    if sum(np.size(value) for value in values) > FEW_NUMBERS:
        return ""
    start = {v.name: np.asarray(x).tolist() for v, x in zip(vars, values, strict=True)}
    return f": {start}"


def _rows_of_one_batch(source: GradientSource, model: Model) -> list[np.ndarray]:
    """Return as many rows as the expressions accept."""
    rng = np.random.default_rng(20241)
    return [
        rng.integers(r.n_rows, size=r.batch_size)
        if r.fixed_size
        else rows_looked_at(r.n_rows, model)
        for r in source.rows
    ]


def _without_density(model: Model, point: PointType) -> str:
    """Name the variables without a finite log probability, and their first rows without one."""
    names = []
    inputs = [np.asarray(point[v.name], dtype=v.dtype) for v in model.value_vars]
    for variable in (*model.free_RVs, *model.potentials, *model.observed_RVs):
        [logp] = model.logp([variable], sum=False)
        try:
            values = python_function(model.value_vars, logp, AS_WRITTEN)(*inputs)
        except ParameterValueError as error:
            names.append(f"'{variable.name}' ({str(error).partition('\n')[0]} does not hold)")
            continue
        bad = np.argwhere(~np.isfinite(values)).tolist()
        if bad:
            first = ", ".join(str(*i) if len(i) == 1 else str(i) for i in bad[:3])
            names.append(f"'{variable.name}'" + (f" (at {first})" if values.ndim else ""))
    if len(names) > FEW_NAMES:
        names[FEW_NAMES:] = [f"{len(names) - FEW_NAMES} more variables"]
    return ", ".join(names) or "the model"
