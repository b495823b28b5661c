"""Gradients of all rows of a stream, at many points in one pass."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
from pymc.model import Model
from pytensor.tensor.variable import TensorVariable

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.batches.windows import consecutive_rows
from pymc_sgmcmc.gradients.arrays import array_value
from pymc_sgmcmc.gradients.flat_prior import FlatPrior, Vector
from pymc_sgmcmc.gradients.model_gradient import gradient_source

BLOCK_ROWS = 2**17
"""Rows whose gradient is evaluated together."""


class StreamedWholeGradients(FlatPrior):
    """The gradient of the log posterior by passes through a stream, as a flat vector.

    Parameters
    ----------
    model : pymc.Model
        With placeholders.
    vars : list of value variables
        Those to differentiate with respect to.
    data : StreamedData
    compile_kwargs : dict, optional
        Arguments of `pytensor.function`, for example ``{"mode": "JAX"}``.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> from pymc_sgmcmc.gradients.streamed_whole import StreamedWholeGradients
    >>> data = sgm.StreamedData({"y": np.array([-1.0, 0.0, 2.0])})
    >>> with pm.Model() as model:
    ...     y = pm.Data("y", data.head()["y"], dims="obs")
    ...     mu = pm.Normal("mu", 0, 1)
    ...     likelihood = pm.Normal("likelihood", mu, 1, observed=y, dims="obs")
    >>> whole = StreamedWholeGradients(model, model.value_vars, data=data)
    >>> sum(piece for _, piece in whole.pieces([np.array([0.5])]))
    array([-1.])
    """

    def __init__(
        self,
        model: Model,
        vars: list[TensorVariable],
        *,
        data: StreamedData,
        compile_kwargs: dict[str, Any] | None = None,
    ):
        source = gradient_source(model, vars, batch_size=1, self_check=False, data=data)
        super().__init__(model, source, compile_kwargs, None)
        assert source.streamed is not None
        self.data = source.streamed
        names = [array.name for array, _ in source.data]
        self._places = {name: names.index(name) for name in self.data.names}

    def pieces(self, thetas: Sequence[Vector]) -> Iterator[tuple[int, Vector]]:
        """Yield the gradients at some points, in pieces that add up to them: number and piece."""
        for i, theta in enumerate(thetas):
            yield i, self.prior_gradient(theta)
        arrays = [array_value(array) for array, _ in self.source.data]
        for rows in consecutive_rows(self.data, BLOCK_ROWS):
            self.index_check.of_streamed(arrays, rows)
            for i, theta in enumerate(thetas):
                yield i, self._of_rows(theta, rows)

    def _of_rows(self, theta: Vector, rows: Mapping[str, np.ndarray]) -> Vector:
        constants = list(self.constants)
        for name, column in rows.items():
            constants[self._places[name]] = self.backend.array(column)
        numbers = np.arange(len(next(iter(rows.values()))))
        not_scaled = np.ones((), self.source.rows[0].scale.dtype)
        return self.joined(self._likelihood(*self.split(theta), numbers, not_scaled, *constants))

    @cached_property
    @quick_graphs()
    def _likelihood(self) -> Callable:
        """Compile a function of the variables, row numbers and the data."""
        function = pytensor.function(
            self.source.inputs,
            self.source.likelihood,
            mode=with_cheap_calls(self.mode),
            **self.compile_kwargs,
        )
        function.trust_input = True
        return function
