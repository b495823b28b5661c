"""Self-check: does the likelihood of batches add up to the likelihood of all rows?"""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor
from pymc.logprob.utils import ParameterValueError
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.gradients.arrays import PYTHON, Array, array_value
from pymc_sgmcmc.gradients.minibatch import Term
from pymc_sgmcmc.gradients.refusals import explained
from pymc_sgmcmc.gradients.row_axis import RowAxis

MAX_ROWS = 20_000
"""Rows looked at: with more, a random subset of this size stands for all (bounded cost)."""


def check_terms(
    model: pm.Model,
    terms: Sequence[Term],
    arrays: dict[Array, TensorVariable],
    index: TensorVariable,
    row_axis: RowAxis,
) -> None:
    """Refuse, by name, a term whose batches do not add up.

    At a random point near the initial one, the rows are dealt into four disjoint batches; their
    log likelihoods must sum to that of all rows: the model's own where there are at most
    `MAX_ROWS`, else that of a random subset taken as one batch.

    Raises
    ------
    ValueError
        Naming the term.
    """
    rng = np.random.default_rng(20240)
    n_rows = min(row_axis.length, MAX_ROWS)
    subset = rng.choice(row_axis.length, size=n_rows, replace=False)
    pieces = np.array_split(subset, min(4, n_rows))
    data = [np.asarray(array_value(a), dtype=whole.dtype) for a, whole in arrays.items()]
    values = model.value_vars
    with pytensor.config.change_flags(cxx=""):  # nothing is compiled: each graph runs a few times
        start = model.initial_point()
        for term in terms:
            try:
                batch = total_of([*values, index, *arrays.values()], term.logp)
                whole = total_of(values, term.full) if n_rows == row_axis.length else None
                for _ in range(10):  # some points may have no finite likelihood
                    point = [moved(start[v.name], rng) for v in values]
                    try:
                        of_batches = [float(batch(*point, piece, *data)) for piece in pieces]
                        of_all = float(whole(*point) if whole else batch(*point, subset, *data))
                    except ParameterValueError:
                        continue
                    if np.isfinite(of_all):
                        break
                else:
                    continue  # `check_start` will tell
            except (ValueError, IndexError, AssertionError, TypeError) as error:
                reason = explained(model, term.variable, term.full, row_axis, row_axis.length)
                raise reason or cannot_be_cut(term.name, row_axis, error) from error
            try:
                compare(term.name, of_batches, of_all, row_axis)
            except ValueError as error:
                reason = explained(model, term.variable, term.full, row_axis, row_axis.length)
                raise reason or error from error


def cannot_be_cut(name: str, row_axis: RowAxis, error: Exception) -> ValueError:
    """Say that a term has no value on a batch."""
    reason = str(error).strip().partition("\n")[0] or repr(error)
    return ValueError(
        f"The term '{name}' cannot be evaluated on a batch of rows along {row_axis} "
        f"({reason}). An array with a row for each datum must carry the dim: give it dims= in "
        "pm.Data, or leave batch_size=None."
    )


def compare(name: str, of_batches: Sequence[float], of_all: float, row_axis: RowAxis) -> None:
    """Refuse a term whose log likelihoods of batches do not sum to that of all their rows."""
    total = sum(of_batches)
    magnitude = sum(abs(x) for x in of_batches) + abs(of_all)
    tolerance = 1e-3 if pytensor.config.floatX == "float32" else 1e-7
    if not abs(total - of_all) <= tolerance * max(magnitude, 1.0):
        raise ValueError(
            f"The term '{name}' is not conditionally independent along {row_axis}: the log "
            f"likelihoods of disjoint batches sum to {total:.6g}, that of all their rows is "
            f"{of_all:.6g}. Leave batch_size=None, choose another minibatch_dim, or write the "
            "term row by row (self_check=False turns this check off)."
        )


def total_of(inputs: Sequence[TensorVariable], term: TensorVariable):
    """A function, in Python, of a term's sum."""
    return pytensor.function(inputs, term.sum(), mode=PYTHON, on_unused_input="ignore")


def moved(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Away from the initial point, so that rows that were mixed up do not look alike."""
    value = np.asarray(value)
    if not np.issubdtype(value.dtype, np.floating):
        return value
    return (value + rng.uniform(-0.5, 0.5, size=value.shape)).astype(value.dtype)
