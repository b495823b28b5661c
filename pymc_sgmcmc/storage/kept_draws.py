"""Recorders for `pm.sample` that keep the finished draws, however the run ends."""

import time
from types import SimpleNamespace
from typing import Any

import pymc as pm
from pymc.backends.base import MultiTrace
from pymc.backends.ndarray import NDArray
from pymc.util import drop_warning_stat
from xarray import DataTree

from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.pymc_internals import forget_statistics, statistics_of
from pymc_sgmcmc.run.recorder import Recorder
from pymc_sgmcmc.run.result import InMemoryDraws, to_datatree
from pymc_sgmcmc.run.run_events import Block, Run

SECONDS_PER_WRITE = 1.0
"""Seconds between writes of a chain of `pm.sample`, so that not every draw waits."""


class KeptDraws(NDArray):
    """Recorder for ``pm.sample(trace=...)`` that keeps the finished draws after an error.

    `pm.sample` loses every chain when anything in the run raises an exception: another step, a
    callback, a worker process. The draws recorded until then stay in this object.

    Parameters
    ----------
    name, model, vars, test_point
        As for PyMC's own in-memory recorder; not needed inside a model context.

    Raises
    ------
    TypeError
        Outside of a model context, without ``model``.

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

    @quick_graphs()
    def __init__(self, name=None, model=None, vars=None, test_point=None, **kwargs):
        super().__init__(name, model, vars, test_point, **kwargs)
        self.n_warmup = 0
        # pm.sample records each chain in a shallow copy, so all of them share this list.
        self.chains: list[KeptDraws] = []

    def setup(self, draws, chain, sampler_vars=None) -> None:
        """Begin a chain with its own arrays; chain 0 comes first and begins a run."""
        if chain == 0:
            self.chains.clear()
        self.samples: dict = {}
        forget_statistics(self)
        self.n_warmup = self.draw_idx = 0
        self.chains.append(self)
        super().setup(draws, chain, sampler_vars)

    def record(self, point, sampler_stats=None, *, in_warmup: bool) -> None:
        """Record a draw."""
        super().record(point, sampler_stats, in_warmup=in_warmup)
        self.n_warmup += in_warmup

    def to_inference_data(self, **kwargs) -> DataTree:
        """Return the finished draws of the last run, without tuning.

        Chains that did not get past tuning are left out; the others are cut to the length of
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
        finished = [t for t in self.chains if t.draw_idx > t.n_warmup]
        if not finished:
            raise ValueError("No chain got past tuning: there are no finished draws to return.")
        length = min(t.draw_idx - t.n_warmup for t in finished)
        cut = [t[t.n_warmup : t.n_warmup + length] for t in finished]
        return drop_warning_stat(pm.to_inference_data(MultiTrace(cut), model=self.model, **kwargs))


class StoredDraws(KeptDraws):
    """One chain of a `pm.sample` whose draws also go to a `ZarrStore`."""

    @quick_graphs()
    def __init__(self, name=None, model=None, vars=None, test_point=None, *, store=None, **kwargs):
        super().__init__(name, model, vars, test_point, **kwargs)
        self.store: Any = store
        self._writer: Any = None
        self.shared: dict[str, int] = {}

    def setup(self, draws, chain, sampler_vars=None) -> None:
        """Begin a chain; chain 0 comes first, and all chains begin before any draw."""
        if chain == 0:
            self.store.check(resume=False)
            self.shared |= {"laid_out": False, "writing": 0}
        super().setup(draws, chain, sampler_vars)
        self._written = 0

    def record(self, point, sampler_stats=None, *, in_warmup: bool) -> None:
        """Record a draw."""
        super().record(point, sampler_stats, in_warmup=in_warmup)
        if in_warmup:
            return
        if self._writer is None:
            self._begin()
        elif time.perf_counter() - self._since > SECONDS_PER_WRITE:
            self._write()

    def _begin(self) -> None:
        # Only now is the number of tuning draws known.
        run = Run(
            model=self.model,
            step=SimpleNamespace(stats_dtypes=self.sampler_vars),
            tune=self.n_warmup,
            draws=self.draws - self.n_warmup,
            starts=[{}] * len(self.chains),
            rngs=[],
            recorder=Recorder(self.model, self.vars, {}, trace=self),
            keep_warmup=False,
            store=self.store,
        )
        if not self.shared["laid_out"]:
            example = to_datatree(
                InMemoryDraws.example(run),
                model=self.model,
                tune=run.tune,
                discard_warmup=True,
                seconds=0.0,
                include_data=True,
                keep_warning_stat=False,
                idata_kwargs={},
                settings={},
            )
            self.store.create(run, example, {"sampler": "pm.sample"})
            self.shared["laid_out"] = True
        self._writer = self.store.writer(run, range(self.chain, self.chain + 1))
        self._writer.__enter__()
        self.shared["writing"] += 1
        self._since = time.perf_counter()

    def _write(self) -> None:
        """Send the new draws to the store."""
        first, end = self.n_warmup + self._written, self.draw_idx
        where = slice(first, end)
        values = {name: samples[where][None] for name, samples in self.samples.items()}
        stats = [{k: v[where][None] for k, v in s.items()} for s in statistics_of(self)]
        if end > first:
            chains = range(self.chain, self.chain + 1)
            self._writer.write(Block(chains, first, end - first, values, stats))
        self._written = end - self.n_warmup
        if self._writer.due():
            self._writer.commit(None)
        self._since = time.perf_counter()

    def close(self) -> None:
        """Send the last draws."""
        if self._writer is not None:
            try:
                self._write()
                self._writer.commit(None)
            finally:
                self._writer.__exit__(None, None, None)
                self._writer = None
                self.shared["writing"] -= 1
                if self.shared["writing"] == 0:  # the next chain takes its own lock
                    self.store.unlock()
        super().close()
