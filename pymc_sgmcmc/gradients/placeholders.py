"""Containers of a model that hold a few rows as placeholders for streamed data."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.gradients.arrays import Array, array_name, array_value, data_name
from pymc_sgmcmc.gradients.batch_terms import SlicedArray


def _containers(model: pm.Model, data: StreamedData) -> dict[str, SharedVariable]:
    known = {var.name: var for var in model.data_vars if isinstance(var, SharedVariable)}
    for name in data.names:
        if name not in known:
            names = ", ".join(f"'{n}'" for n in known) or "none"
            raise ValueError(
                f"data= has rows for '{name}', which is not a pm.Data container of the model (its "
                f"containers are {names}). Add pm.Data('{name}', data.head()['{name}'], dims=...)."
            )
    return {name: known[name] for name in data.names}


def fitted_to(model: pm.Model, data: StreamedData) -> StreamedData:
    """Check data against the model's containers and adapt its types to them."""
    formats = {}
    for name, array in _containers(model, data).items():
        value = array_value(array)
        if value.ndim == 0:
            raise ValueError(
                f"The container '{name}' in data= is a scalar and has no rows: leave it out of "
                "data=."
            )
        formats[name] = (value.dtype, value.shape[1:])
    return data.fitted(formats)


@contextmanager
def filled(model: pm.Model, data: StreamedData | None) -> Iterator[None]:
    """Temporarily put real rows into the placeholders: all-zero rows would pass any check."""
    if data is None:
        yield
        return
    containers = _containers(model, data)
    before = {name: array_value(array) for name, array in containers.items()}
    head = data.head(max(len(value) for value in before.values()))
    try:
        for name, array in containers.items():
            rows = np.resize(head[name], before[name].shape)  # repeats rows if there are too few
            array.set_value(rows.astype(before[name].dtype), borrow=True)
        yield
    finally:
        for name, array in containers.items():
            array.set_value(before[name], borrow=True)


def check_covered(sliced: Mapping[Array, SlicedArray], data: StreamedData) -> None:
    """Raise an error if some rows are not streamed, or are not along the first axis."""
    for array, rows in sliced.items():
        if array.name not in data.names or not isinstance(array, SharedVariable):
            remedy = (
                f"pass its source too: data={{'{array.name}': ...}}."
                if isinstance(array, SharedVariable)
                else "make it a pm.Data container and pass its source too (or, if it does not hold "
                "rows, give dims= or use another number of placeholder rows)."
            )
            raise ValueError(
                f"{data_name(array)} holds rows like the containers in data= "
                f"({', '.join(data.names)}): {remedy}"
            )
        if rows.axis != 0:
            raise ValueError(
                f"The container {array_name(array)} has its rows along axis {rows.axis}, but "
                "streamed data has them along the first. Transpose it in the model."
            )
    covered = {array.name for array in sliced}
    for name in data.names:
        if name not in covered:
            raise ValueError(
                f"The container '{name}' in data= is not used row by row by any observed variable: "
                "give it the row dim first in dims=, or leave it out of data= and keep it whole."
            )


def refuse_whole(inputs_of_prior: Iterable[Variable], data: StreamedData) -> None:
    """Raise an error for a prior or scalar potential that uses all rows of streamed data."""
    for variable in inputs_of_prior:
        if variable.name in data.names:
            raise ValueError(
                f"The container '{variable.name}' is used as a whole by a prior or a scalar "
                "potential, which would see only the rows of the placeholder. Compute what it "
                "needs beforehand, and pass that in a separate container."
            )
