"""Self-check: does the likelihood of batches add up to the likelihood of all rows?"""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor
from pymc.blocking import PointType
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.compile_time import without_code
from pymc_sgmcmc.gradients.arrays import AS_WRITTEN, Array, array_value, python_function
from pymc_sgmcmc.gradients.batch_terms import Term
from pymc_sgmcmc.gradients.refusals import explained
from pymc_sgmcmc.gradients.rows_in_batches import RowAxis

MAX_ROWS = 20_000
"""Largest number of rows to check; if there are more, a random subset bounds the cost."""
DISTANCES = (0.5, 0.5, 0.5, *(0.5 * 10.0**-k for k in range(1, 11)))
"""Largest distances of points from the start, in the order in which they are tried: with much data,
only points near the start have a finite likelihood."""


REMEDY = (
    "Pass batch_size=None or another minibatch_dim, or write the term so that its rows are "
    "independent (self_check=False turns this check off)."
)


def check_terms(
    model: pm.Model,
    terms: Sequence[Term],
    arrays: dict[Array, TensorVariable],
    index: TensorVariable,
    row_axis: RowAxis,
    start: PointType,
) -> None:
    """Raise an error that names a term whose batches do not add up.

    At a random point near the start, the log likelihoods of four disjoint batches must sum to that
    of all rows: the model's own if there are at most `MAX_ROWS`, otherwise that of a random subset
    as one batch.
    """
    rng = np.random.default_rng(20240)
    subset = rows_looked_at(row_axis.length, model)
    n_rows = len(subset)
    pieces = np.array_split(subset, min(4, n_rows))
    data = [np.asarray(array_value(a), dtype=whole.dtype) for a, whole in arrays.items()]
    values = model.value_vars
    # In Python mode, because each graph runs only a few times.
    with without_code(), np.errstate(all="ignore"):
        for term in terms:
            try:
                batch = total_of([*values, index, *arrays.values()], term.logp)
                whole = total_of(values, term.full) if n_rows == row_axis.length else None
                for distance in (*DISTANCES, 0.0):
                    point = near(start, values, rng, distance)
                    try:
                        of_batches = [float(batch(*point, piece, *data)) for piece in pieces]
                        of_all = float(whole(*point) if whole else batch(*point, subset, *data))
                    except ParameterValueError:
                        of_all, of_batches = np.nan, []
                    if np.isfinite([of_all, *of_batches]).all():
                        break
            except (ValueError, IndexError, AssertionError, TypeError) as error:
                reason = explained(model, term.variable, term.full, row_axis, row_axis.length)
                raise reason or batch_error(term.name, row_axis, error) from error
            if distance == 0.0:
                if np.isfinite(of_all):
                    raise cannot_be_checked(term.name)
                continue  # `check_start` reports it, for the same rows
            try:
                compare(term.name, of_batches, of_all, row_axis)
            except ValueError as error:
                reason = explained(model, term.variable, term.full, row_axis, row_axis.length)
                raise reason or error from error


def batch_error(
    name: str, row_axis: RowAxis, error: Exception, otherwise: str = ", or pass batch_size=None"
) -> ValueError:
    """Return the error for a term that cannot be evaluated on a batch."""
    reason = str(error).strip().partition("\n")[0] or repr(error)
    return ValueError(
        f"The term '{name}' cannot be evaluated on a batch of rows along {row_axis} "
        f"({reason}). Every array of rows must have this dim: give it dims= in pm.Data"
        f"{otherwise}."
    )


def cannot_be_checked(name: str) -> ValueError:
    """Return the error for a term that is not finite anywhere near the start."""
    return ValueError(
        f"The term '{name}' has no finite log likelihood at any point near the initial one, so it "
        "cannot be checked that the likelihoods of batches add up. Start elsewhere (initval=, "
        "initial_point=), standardise the data, or pass self_check=False."
    )


def compare(
    name: str,
    of_batches: Sequence[float],
    of_all: float,
    row_axis: RowAxis,
    remedy: str = REMEDY,
) -> None:
    """Raise an error unless the log likelihoods of a term's batches sum to that of all rows."""
    total = sum(of_batches)
    magnitude = sum(abs(x) for x in of_batches) + abs(of_all)
    tolerance = 1e-3 if pytensor.config.floatX == "float32" else 1e-7
    if not abs(total - of_all) <= tolerance * max(magnitude, 1.0):
        raise ValueError(
            f"The term '{name}' is not conditionally independent along {row_axis}: the log "
            f"likelihoods of disjoint batches sum to {total:.6g}, but that of all their rows is "
            f"{of_all:.6g}. {remedy}"
        )


def total_of(inputs: Sequence[TensorVariable], term: TensorVariable):
    """Make a function that sums a term."""
    return python_function(inputs, term.sum(), AS_WRITTEN)


def rows_looked_at(n_rows: int, model: pm.Model) -> np.ndarray:
    """Return the numbers of all rows, or of `MAX_ROWS` random ones, in a fixed random order.

    A model whose rows are more expensive than others' has a smaller number, ``rows_checked``.
    """
    rng = np.random.default_rng(20240)
    most = getattr(model, "rows_checked", MAX_ROWS)
    return rng.choice(n_rows, size=min(n_rows, most), replace=False)


def near(
    start: PointType, values: Sequence[Variable], rng: np.random.Generator, distance: float
) -> list[np.ndarray]:
    """Return a point near the start, where mixed-up rows give different values."""
    point = []
    for value in (np.asarray(start[v.name]) for v in values):
        if np.issubdtype(value.dtype, np.floating):
            shift = rng.uniform(-distance, distance, size=value.shape)
            value = (value + shift).astype(value.dtype)
        point.append(value)
    return point
