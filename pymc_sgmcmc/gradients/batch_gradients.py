"""Gradients of batches of a model, as functions of one flat vector."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
from pymc.blocking import PointType
from pymc.model import Model

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.backends.numba_linker import with_cheap_calls
from pymc_sgmcmc.gradients.flat_prior import FlatPrior, Vector
from pymc_sgmcmc.gradients.source import GradientSource


class BatchGradients(FlatPrior):
    """The gradient of a batch's log likelihood, scaled to all data.

    Parameters
    ----------
    model : pymc.Model
    source : GradientSource
        Of this model, with one stream of rows.
    compile_kwargs : dict, optional
        Arguments of `pytensor.function`, for example ``{"mode": "JAX"}``.
    start : dict of arrays, optional
        Values of the variables that are not sampled; default: the model's initial point.

    Attributes
    ----------
    n_rows, batch_size : int
        N and n.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pymc_sgmcmc.gradients.batch_gradients import BatchGradients
    >>> from pymc_sgmcmc.gradients.model_gradient import gradient_source
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.array([-1.0, 0.0, 2.0, 3.0]))
    >>> source = gradient_source(model, model.value_vars, batch_size=2)
    >>> BatchGradients(model, source).likelihood_gradient(np.array([0.5]), np.array([0, 2]))
    array([0.])
    """

    def __init__(
        self,
        model: Model,
        source: GradientSource,
        *,
        compile_kwargs: dict[str, Any] | None = None,
        start: PointType | None = None,
    ):
        super().__init__(model, source, compile_kwargs, start)

    @property
    def n_rows(self) -> int:
        """N, the current number of rows."""
        return self.source.rows[0].n_rows

    @property
    def batch_size(self) -> int:
        """Rows per batch."""
        return self.source.rows[0].batch_size

    def likelihood_gradient(self, theta: Vector, rows: np.ndarray) -> Vector:
        """Gradient of the batch's log likelihood times N / n.

        Parameters
        ----------
        theta : array, shape (d,)
        rows : array of int64, shape (n,)

        Returns
        -------
        array, shape (d,)
        """
        scale = np.asarray(self.n_rows / self.batch_size, self.source.rows[0].scale.dtype)
        return self.joined(self._likelihood(*self.split(theta), rows, scale, *self.constants))

    @cached_property
    @quick_graphs()
    def _likelihood(self) -> Callable:
        """Compile a function of the variables, the rows and the data."""
        source = self.source
        function = pytensor.function(
            source.inputs,
            source.likelihood,
            mode=with_cheap_calls(self.mode),
            **self.compile_kwargs,
        )
        function.trust_input = True
        return function
