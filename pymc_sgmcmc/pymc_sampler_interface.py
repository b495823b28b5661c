"""PyMC's planned interface of samplers: one method that receives a fully prepared run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pymc.initial_point import PointType
from pymc.model import Model
from pymc.progress_bar import ProgressBarOptions
from pymc.util import RandomGeneratorState, random_generator_from_state
from xarray import DataTree

from pymc_sgmcmc.adaptation.warm_up_progress import warm_ups
from pymc_sgmcmc.pymc_internals import quiet_logging
from pymc_sgmcmc.run.sample_arguments import Arguments
from pymc_sgmcmc.run.step_of_run import default_step, sampled_model, step_for_all
from pymc_sgmcmc.run_chains import run_chains
from pymc_sgmcmc.storage.store import store_of


class StepSampler:
    """A sampler as PyMC plans to take them: it samples with a step from given starting points.

    Parameters
    ----------
    step : step or list of steps, optional
        Default: that of `pymc_sgmcmc.sample`, made for the model.
    **others
        Arguments of `pymc_sgmcmc.sample` that the interface does not have: ``trace``, ``resume``,
        ``callback``, ``mp_ctx``, ``blas_cores``, ``chain_method``, ``client``, ``include_data``,
        ``store_adaptation``, ``predictions``, ``progressbar_theme``.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> from pymc.util import get_state_from_generator
    >>> from pymc_sgmcmc.pymc_sampler_interface import StepSampler
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    ...     step = sgm.MSGNHT_S(step_size=1e-2, batch_size=10, thin=10)
    >>> idata = StepSampler(step).sample_from_init(
    ...     model=model, draws=50, tune=50, chains=1, initvals=[{"mu": np.array(0.5)}],
    ...     random_seed=[get_state_from_generator(np.random.default_rng(1))], quiet=True,
    ... )
    >>> idata.posterior["mu"].shape
    (1, 50)
    """

    def __init__(self, step: Any = None, **others: Any):
        self.step, self.others = step, others

    def sample_from_init(
        self,
        *,
        model: Model,
        draws: int,
        tune: int,
        chains: int,
        cores: int | None = None,
        initvals: Sequence[PointType],
        random_seed: Sequence[RandomGeneratorState],
        progressbar: bool | ProgressBarOptions = True,
        quiet: bool = False,
        discard_tuned_samples: bool = True,
        keep_warning_stat: bool = False,
        var_names: Sequence[str] | None = None,
        idata_kwargs: dict[str, Any] | None = None,
        compute_convergence_checks: bool = True,
        compile_kwargs: dict[str, Any] | None = None,
    ) -> DataTree:
        """Sample from one starting point, with one generator, for each chain.

        Parameters
        ----------
        initvals : list of dict
            Starting points of the chains, by value variable, on the unconstrained scale.
        random_seed : list of RandomGeneratorState
            States of the chains' generators, from `pymc.util.get_state_from_generator`.
        model, draws, tune, chains, cores, progressbar, quiet, discard_tuned_samples : optional
            As for `pymc_sgmcmc.sample`.
        keep_warning_stat, var_names, idata_kwargs, compute_convergence_checks : optional
            As for `pymc_sgmcmc.sample`.
        compile_kwargs : dict, optional
            As for `pymc_sgmcmc.sample`.

        Returns
        -------
        DataTree
            As from `pymc_sgmcmc.sample`.

        Raises
        ------
        ValueError
            For invalid arguments, a ``chain_method`` that the step cannot run with, or a ``trace``
            of another run.
        RuntimeError
            For a step of a run that has not ended.
        pymc.exceptions.SamplingError
            If no chain got past tuning.
        """
        arguments = {**locals()}
        for name in ("self", "initvals", "random_seed"):
            del arguments[name]
        given = Arguments(step=self.step, **arguments, **self.others).checked()
        with quiet_logging(quiet):
            step = self.step
            if step is None:
                own = random_generator_from_state(random_seed[0]).spawn(1)[0]
                with warm_ups(bool(given.progressbar)):
                    step = default_step(given.model, compile_kwargs, own)
            model = sampled_model(given.model, step)
            names = {v.name for v in model.value_vars}
            starts = [{n: x for n, x in start.items() if n in names} for start in initvals]
            step = step_for_all(model, step, starts[0], compile_kwargs)
            store = store_of(given.trace, given.resume)
            return run_chains(replace(given, model=model, step=step), starts, random_seed, store)
