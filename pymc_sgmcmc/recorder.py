"""A recorder that keeps the finished draws whatever ends the run."""

import pymc as pm
from pymc.backends.base import MultiTrace
from pymc.backends.ndarray import NDArray
from pymc.util import drop_warning_stat
from xarray import DataTree


class KeptDraws(NDArray):
    """Recorder for ``pm.sample(trace=...)`` from which finished draws can be had after an error.

    `pm.sample` loses every chain when anything in the run raises: another step, a callback, a
    worker process. The draws recorded until then stay in this object.

    Parameters
    ----------
    name, model, vars, test_point
        As for PyMC's own in-memory recorder; inside a model context none is needed.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> def unlucky(trace, draw):
    ...     if draw.draw_idx == 30:
    ...         raise OSError("disk full")
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    ...     kept = sgm.KeptDraws()
    ...     try:
    ...         pm.sample(
    ...             50, tune=10, chains=1, cores=1, trace=kept, callback=unlucky,
    ...             step=sgm.SGLD(step_size=1e-3, batch_size=10), progressbar=False,
    ...         )
    ...     except OSError:
    ...         idata = kept.to_inference_data()
    >>> idata.posterior["mu"].shape
    (1, 21)
    """

    def __init__(self, name=None, model=None, vars=None, test_point=None, **kwargs):
        super().__init__(name, model, vars, test_point, **kwargs)
        self.n_warmup = 0
        # pm.sample records each chain in a shallow copy, so all of them share this list.
        self.chains: list[KeptDraws] = []

    def setup(self, draws, chain, sampler_vars=None) -> None:
        """Begin a chain with arrays of its own."""
        self.samples: dict = {}
        self._stats = None
        self.n_warmup = self.draw_idx = 0
        self.chains.append(self)
        super().setup(draws, chain, sampler_vars)

    def record(self, point, sampler_stats=None, *, in_warmup: bool) -> None:
        """Record a draw."""
        super().record(point, sampler_stats, in_warmup=in_warmup)
        self.n_warmup += in_warmup

    def to_inference_data(self, **kwargs) -> DataTree:
        """Finished draws of the last run, tuning left out.

        Chains that did not get beyond tuning are left out; the others are cut to the length of
        the shortest.

        Parameters
        ----------
        **kwargs
            For `pymc.to_inference_data`.

        Returns
        -------
        DataTree
            As `pm.sample` would have returned.

        Raises
        ------
        ValueError
            If no chain has a finished draw after tuning.
        """
        last_run = {trace.chain: trace for trace in self.chains}
        finished = [t for t in last_run.values() if t.draw_idx > t.n_warmup]
        if not finished:
            raise ValueError("No chain got beyond tuning: there are no finished draws to keep.")
        length = min(t.draw_idx - t.n_warmup for t in finished)
        cut = [t._slice(slice(t.n_warmup, t.n_warmup + length)) for t in finished]
        return drop_warning_stat(pm.to_inference_data(MultiTrace(cut), model=self.model, **kwargs))
