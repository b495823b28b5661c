"""Self-check: does the likelihood of batches add up to the likelihood of all rows?"""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.minibatch import Array, RowAxis, Term, array_value

MAX_ROWS = 20_000
"""Rows looked at: with more, a random subset of this size stands for all (bounded cost)."""


def check_terms(
    model: pm.Model,
    terms: Sequence[Term],
    arrays: dict[Array, TensorVariable],
    rows: TensorVariable,
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
    # Nothing is compiled: Python's own linker runs each operation once or twice.
    mode = Mode(linker="py", optimizer="fast_compile")
    data = list(arrays.items())
    values = list(model.value_vars)
    batch_inputs = [*values, rows, *(variable for _, variable in data)]
    data_values = [array_value(array) for array, _ in data]
    all_rows = np.arange(row_axis.length)
    small = row_axis.length <= MAX_ROWS
    if not small:
        all_rows = rng.choice(all_rows, size=MAX_ROWS, replace=False)
    pieces = np.array_split(rng.permutation(all_rows), min(4, len(all_rows)))
    for term in terms:
        try:
            batch = _function(batch_inputs, term.logp.sum(), mode)
            whole = _function(values, term.full.sum(), mode) if small else None
            for _ in range(10):
                point = _random_point(model, rng)
                of_batches = [float(batch(*point, piece, *data_values)) for piece in pieces]
                expected = (
                    float(whole(*point))
                    if whole is not None
                    else float(batch(*point, all_rows, *data_values))
                )
                if np.isfinite(expected):
                    break
            else:
                continue  # no finite point: the start's own check will tell
        except (ValueError, IndexError, AssertionError, TypeError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise ValueError(
                f"The term '{term.name}' cannot be evaluated on a batch of rows along {row_axis} "
                f"({reason}). An array with a row for each datum must carry the dim: give it "
                "dims= in pm.Data, or leave batch_size=None."
            ) from error
        total = sum(of_batches)
        magnitude = sum(abs(x) for x in of_batches) + abs(expected)
        tolerance = 1e-3 if pytensor.config.floatX == "float32" else 1e-7
        if not abs(total - expected) <= tolerance * max(magnitude, 1.0):
            raise ValueError(
                f"The term '{term.name}' is not conditionally independent along {row_axis}: the "
                f"log likelihoods of disjoint batches sum to {total:.6g}, that of all their rows "
                f"is {expected:.6g}. Leave batch_size=None, choose another minibatch_dim, or "
                "write the term row by row (self_check=False turns this check off)."
            )


def _function(inputs, output, mode):
    shared = [v for v in ancestors([output]) if isinstance(v, SharedVariable)]
    stand_ins = {v: v.type(v.name) for v in shared}
    [output] = clone_replace([output], stand_ins, rebuild_strict=False)
    function = pytensor.function(
        [*inputs, *stand_ins.values()], output, mode=mode, on_unused_input="ignore"
    )
    shared_values = [v.get_value(borrow=True) for v in shared]
    return lambda *args: function(*args, *shared_values)


def _random_point(model: pm.Model, rng: np.random.Generator) -> list[np.ndarray]:
    """The initial point, moved at random: rows that were mixed up must not look alike."""
    start = model.initial_point()
    point = []
    for var in model.value_vars:
        value = np.asarray(start[var.name])
        if np.issubdtype(value.dtype, np.floating):
            value = (value + rng.uniform(-0.5, 0.5, size=value.shape)).astype(value.dtype)
        point.append(value)
    return point
