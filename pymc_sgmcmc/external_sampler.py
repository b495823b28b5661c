"""An object for the ``sampler=`` that is planned for `pm.sample`."""

from typing import Any

from pymc.model import Model
from xarray import DataTree

from pymc_sgmcmc.samplers.msgnht import MSGNHT_S
from pymc_sgmcmc.sampling import sample_from_init
from pymc_sgmcmc.step import SGMCMCStep


class MinibatchSampler:
    """A sampler and its settings, bound to no model until it samples one.

    PyMC's draft of the interface (pull requests 7880 and 8353) calls `sample_from_init` with the
    model, the starting points and how to run. There is no released version of PyMC that does.

    Parameters
    ----------
    step : type, default MSGNHT_S
        One of this package's steps.
    **arguments
        Of the step.

    Examples
    --------
    >>> import pymc_sgmcmc as sgm
    >>> from pymc_sgmcmc.external_sampler import MinibatchSampler
    >>> MinibatchSampler(sgm.SGLD, step_size=1e-3, batch_size=100).arguments
    {'step_size': 0.001, 'batch_size': 100}
    """

    def __init__(self, step: type[SGMCMCStep] = MSGNHT_S, **arguments: Any):
        self.step, self.arguments = step, arguments

    def sample_from_init(
        self, *, model: Model, compile_kwargs: dict[str, Any] | None = None, **run: Any
    ) -> DataTree:
        """Make the step for a model, and sample it.

        Parameters
        ----------
        model : pymc.Model
        compile_kwargs : dict, optional
            For the step.
        **run
            As for `pymc_sgmcmc.sampling.sample_from_init`: draws, starting points, seeds.

        Returns
        -------
        DataTree
            As from `sample`.
        """
        step = self.step(model=model, compile_kwargs=compile_kwargs, **self.arguments)
        return sample_from_init(model=step.model, step=step, **run)
