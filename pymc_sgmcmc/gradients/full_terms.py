"""Terms that every update evaluates with all their data, in addition to batches of the others."""

from collections.abc import Sequence
from typing import NamedTuple

import pymc as pm
from pytensor.graph.basic import Variable

from pymc_sgmcmc.gradients.arrays import array_value, arrays_of


class FullTerm(NamedTuple):
    """An observed variable or potential that does not run along the rows of the batches."""

    name: str
    is_potential: bool
    n_rows: int
    """Length of the longest axis of the data from which the term is computed."""


def full_terms(model: pm.Model, rest: Sequence[Variable], batch_size: int) -> list[FullTerm]:
    """Return those terms outside the batches that have more data than a batch."""
    found = [
        FullTerm(
            str(var.name),
            var in model.potentials,
            max((n for a in arrays_of(model, var) for n in array_value(a).shape), default=0),
        )
        for var in rest
    ]
    return [term for term in found if term.n_rows > batch_size]


def message_of(terms: Sequence[FullTerm]) -> str:
    """Return a message on what such terms cost, and how they could be sliced into batches."""
    listed = ", ".join(f"'{term.name}' ({term.n_rows} rows of data)" for term in terms)
    potentials = [f"'{term.name}'" for term in terms if term.is_potential]
    remedy = (
        " A potential has batches only if it is a vector, or the sum of one, whose elements are "
        f"computed row by row from data: write {', '.join(potentials)} so, or as a pm.CustomDist "
        "with observed=."
    )
    return (
        f"Outside the batches, every update evaluates all of {listed}. The number of passes "
        f"over the data does not count this.{remedy if potentials else ''}"
    )
