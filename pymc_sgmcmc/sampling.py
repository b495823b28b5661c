"""`sample`: PyMC's `sample` for minibatch steps, with storage, resuming and more chain methods."""

import logging
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pymc.initial_point import StartDict
from pymc.model import Model
from pymc.progress_bar import ProgressBarOptions
from pymc.sampling.mcmc import get_default_tune_steps
from pymc.util import get_state_from_generator
from rich.theme import Theme
from xarray import DataTree

from pymc_sgmcmc.adaptation.adapted_settings import form_of
from pymc_sgmcmc.adaptation.warm_up_progress import TimeLimit, warm_ups
from pymc_sgmcmc.exact.exact_draws import ExactPhase, refuse_exact
from pymc_sgmcmc.integration.group_terms import Integrate
from pymc_sgmcmc.integration.whether_to_integrate import terms_to_integrate
from pymc_sgmcmc.predictions.predictions import Predictions
from pymc_sgmcmc.pymc_internals import quiet_logging
from pymc_sgmcmc.run.adapted_run import (
    adapted_starts,
    draws_of_many,
    free_length,
    starts_near_the_posterior,
)
from pymc_sgmcmc.run.draws_of_missing_outcomes import (
    with_missing_outcomes,
    without_missing_outcomes,
)
from pymc_sgmcmc.run.parametrisation import Form
from pymc_sgmcmc.run.pymc_sample import fitting_bambi
from pymc_sgmcmc.run.result_form import check_form, names_in_result
from pymc_sgmcmc.run.sample_arguments import Arguments
from pymc_sgmcmc.run.seeds import seeded
from pymc_sgmcmc.run.starts import starts_of
from pymc_sgmcmc.run.step_of_run import sampled_model, step_for_all
from pymc_sgmcmc.run.unknown_arguments import naming_alternatives
from pymc_sgmcmc.run_chains import run_chains
from pymc_sgmcmc.storage.names_and_labels import refuse_unstorable
from pymc_sgmcmc.storage.store import store_of

_log = logging.getLogger("pymc.sgmcmc")

DRAWS = 1000
"""Default number of draws for steps that are not adapted."""


@naming_alternatives
@fitting_bambi
def sample(
    draws: int | None = None,
    *,
    tune: int | None = None,
    chains: int | None = None,
    cores: int | None = None,
    random_seed: Any = None,
    progressbar: bool | ProgressBarOptions = True,
    progressbar_theme: Theme | str | None = None,
    quiet: bool = False,
    step: Any = None,
    ess: float = 400,
    exact: bool = False,
    max_passes: float | None = None,
    max_seconds: float | None = None,
    adaptation: DataTree | Literal["auto"] = "auto",
    store_adaptation: bool = False,
    var_names: Sequence[str] | None = None,
    initvals: StartDict | Sequence[StartDict | None] | None = None,
    init: Literal["jitter", "point"] = "jitter",
    trace: Any = None,
    discard_tuned_samples: bool = True,
    compute_convergence_checks: bool = True,
    keep_warning_stat: bool = False,
    idata_kwargs: dict[str, Any] | None = None,
    callback: Callable | None = None,
    mp_ctx: Any = None,
    blas_cores: int | Literal["auto"] | None = "auto",
    model: Model | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    chain_method: Literal["sequential", "parallel", "vectorized", "dask"] | None = None,
    client: Any = None,
    resume: bool = False,
    include_data: bool | None = None,
    predictions: Predictions | Sequence[Predictions] = (),
    integrate: Integrate = "auto",
    data: Any = None,
) -> DataTree:
    r"""Sample as `pm.sample` does, with storage, resuming and more ways to run chains.

    Arguments that `pm.sample` also has mean the same here, and the result is the same DataTree. For
    a given seed, a chain's draws do not depend on how many chains there are, nor on where they run;
    they are those of ``pm.sample(step=...)`` from the same starting point.

    Parameters
    ----------
    draws : int, optional
        Draws to keep for each chain. A draw is `thin` updates of the step. Default: for an adapted
        step, the number that ``ess`` needs, from 500 to 10,000, or with a ``trace`` the number that
        the warm-up expects to need; for an adapted step with more than 2000 parameters, where each
        draw is a pass over the data, 100; for other steps 1000.
    tune : int, optional
        Draws of burn-in, discarded; default: the step's own (500 for minibatch steps, 15 to 50 for
        adapted ones, whose chains start within the posterior: five autocorrelation times of the
        slowest parameter).
    chains : int, default 4
        Independent chains.
    cores : int, optional
        Processes of ``chain_method="parallel"``; default: the number of cores, at most 4.
    random_seed : int, array_like of int, numpy.random.Generator or SeedSequence, optional
        Seed of all chains.
    progressbar : bool or str, default True
        As in `pm.sample`: ``"combined"`` or ``"split"``, optionally with ``"+stats"``. More than 16
        chains share one bar.
    progressbar_theme : rich.theme.Theme, optional
        Colours of the bar.
    quiet : bool, default False
        No messages, no bar.
    step : step or list of steps, optional
        Minibatch steps, alone or with PyMC's own. PyMC chooses steps for variables that have none.
        Default: `MSGNHT_S` for all variables, with everything adapted.
    ess : float, default 400
        Effective sample size, of all chains together and for the mean of each variable's worst
        element, at which an adapted run without a given length ends. R-hat must also be at most
        1.01 or explained by chance and, with ``compute_convergence_checks``, standard errors must
        be small enough for a clear verdict.
    exact : bool, default False
        Finish the run on all rows: 32 short Hamiltonian chains with Metropolis' correction start at
        draws of the minibatch chains, in their metric, and continue until they have forgotten these
        starting points and ``ess`` is reached. No error of minibatches or of the step size remains.
        See the page "Can I trust this?". For up to 2000 parameters, after an adapted step.
        ``max_passes`` does not count it.
    max_passes : float, optional
        Largest number of passes over the data, warm-up included, of such a run.
    max_seconds : float, optional
        Seconds from the call after which a run ends, compilation and warm-up included. It returns
        the draws so far, and a message says so; with a ``trace`` it can be resumed. If the warm-up
        of the default step alone takes longer, an error names its stage.
    adaptation : DataTree or "auto", default "auto"
        For the default step: an earlier result, sampled with ``store_adaptation=True``, of the same
        model on other data. The warm-up takes its metric and step size, and finds only the anchor,
        row weights and noise again. Groups whose effects are integrated out may be other ones.
    store_adaptation : bool, default False
        Add the group ``adaptation``: metric, anchor, row weights and noise. The parametrisation is
        then the model's own.
    var_names : list of str, optional
        Variables to record. Default: all free variables and deterministics, except deterministics
        with one number per row of the data, which a message names. For the verdict on an adapted
        step, some draws of excluded free variables are kept until it is made.
    initvals : dict or list of dict, optional
        Initial values by variable, for all chains or one dict per chain; a value may be an array,
        ``"prior"`` or ``"support_point"``. The warm-up of the default step begins at those of the
        first chain. If they are far outside the posterior that the warm-up of an adapted step saw,
        the chain starts inside it, and a warning says so.
    init : {"jitter", "point"}, default "jitter"
        "jitter" adds uniform random numbers in [-1, 1], on the unconstrained scale and different
        for each chain, to variables that have no initial value (in the model or in ``initvals``).
        PyMC does so for NUTS, so that R-hat can detect chains that do not mix. "point" starts all
        chains at the same point, as `pm.sample` does with explicit steps.
    trace : ZarrStore, str or pathlib.Path, optional
        Write draws to disk as they are made, with the state of the sampler: see `ZarrStore`. A path
        creates a store there.
    discard_tuned_samples : bool, default True
        False adds the groups ``warmup_posterior`` and ``warmup_sample_stats``.
    compute_convergence_checks : bool, default True
        For an adapted step, log the verdict of `diagnose`, which includes R-hat and effective
        sample sizes, and add the group ``diagnosis``. For any other step, log PyMC's warnings about
        these, and a warning if its thermostats were still drifting. In large models they are
        computed for evenly spaced elements only, and a message says so.
    keep_warning_stat : bool, default False
        Keep the statistic "warning"; such a result cannot be saved. Stores do not contain it.
    idata_kwargs : dict, optional
        For `pymc.to_inference_data`. ``log_likelihood`` and ``log_prior`` are computed for the
        result; stores do not contain them.
    callback : callable, optional
        Called as ``callback(trace=..., draw=...)`` after each draw, in this process. It may raise
        `KeyboardInterrupt` to end the run with the draws so far.
    mp_ctx : str or multiprocessing context, optional
        How processes start. Default: that of the system, but "forkserver" with JAX.
    blas_cores : int, "auto" or None, default "auto"
        Total number of BLAS threads of all processes; "auto": one per core.
    model : pymc.Model or bambi.Model, optional
        Default: the model on the context stack. A Bambi model is fitted by its own ``fit``.
    compile_kwargs : dict, optional
        For the default step and steps that PyMC chooses; a step that you made has its own. Default:
        PyTensor's mode, numba; for the default step of models with more than 2000 parameters JAX,
        if it is installed.
    chain_method : {"sequential", "parallel", "vectorized", "dask"}, optional
        Run chains in turn in this process, in parallel processes, all in one compiled call
        (requires one step for all variables, compiled for JAX or numba), or as tasks of a Dask
        cluster. The default depends on the backend, device and cores; a message names it.
    client : distributed.Client, optional
        For ``chain_method="dask"``; default: the current client. If a worker is lost and ``trace``
        is in a folder that all workers can reach, another worker resumes its chains from their
        checkpoints.
    resume : bool, default False
        Continue the run in ``trace``, exactly as if it had never stopped. With more ``draws`` than
        before, a finished run is extended.
    include_data : bool, optional
        Copy the model's data into the result. Default: if it takes less than 50 MB.
    predictions : Predictions or list of Predictions, optional
        Averages of predictions on test data, computed where the chains run; with ``var_names=[]``
        no draws are kept. They are saved and resumed with the chains. The length of the run is then
        ``draws``, or what the warm-up expects to need.
    integrate : "auto", list of names or None, default "auto"
        For the default step: effects of groups of rows to integrate out of the likelihood; each
        group is then treated as a row, and the parameters that groups share are sampled. The
        effects are drawn afterwards and are in ``posterior`` like all variables. "auto": the
        effects of the index with the most groups, if updates then cost less and nothing speaks
        against it; a message names the effects. Effects that are sampled are centred or partially
        non-centred, depending on how much their rows say about them.
    data : StreamedData, mapping or iterable, optional
        For the default step: rows that stay on disk, for which the model has placeholders (see
        `StreamedData`). Effects are integrated out if all sources are NumPy arrays or memory maps,
        and fastest if the rows of a group are contiguous.

    Returns
    -------
    DataTree
        Groups ``posterior``, ``sample_stats``, ``observed_data``, ``constant_data``, and one for
        each of ``predictions``. For an adapted step, ``posterior`` has the attributes
        ``data_passes`` (row gradients / N, over all chains and the warm-up),
        ``data_passes_warmup``, and ``adaptation``: everything that was chosen, as JSON.

    Raises
    ------
    ValueError
        For invalid arguments, before anything is compiled.
    pymc.exceptions.SamplingError
        If no chain got past tuning.
    RuntimeError
        For a step of a run that has not ended, as within that run's callback.

    Notes
    -----
    A chain with a non-finite update stops: a message names the variable, the update and the remedy.
    The other chains continue. If the chains end up with different lengths, they are cut to a common
    length or left out, whichever keeps more draws. Ctrl-C ends the run after the current draw and
    returns the draws so far; a second Ctrl-C does not wait for that draw. Any other exception
    carries them in its attribute ``idata``.

    Missing outcomes (masked or NaN) on which nothing else depends are left out by the default step,
    and drawn afterwards: ``posterior`` contains them, as with `pm.sample`. A message names those
    that remain parameters.

    Several threads may sample at once. Build their models one after the other, since PyMC changes
    PyTensor's configuration for a moment while it builds one.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    ...     step = sgm.MSGNHT_S(step_size=1e-2, batch_size=10, thin=10)
    ...     idata = sgm.sample(50, tune=50, chains=2, step=step, random_seed=1, quiet=True)
    >>> idata.posterior["mu"].shape
    (2, 50)
    """
    given = Arguments(**locals()).checked()
    began = time.perf_counter()
    limit = None if max_seconds is None else TimeLimit(max_seconds)
    names = names_in_result(given.model, var_names, include_data)
    labels = check_form(given.model, names, given.idata_kwargs)
    store = store_of(trace, resume)
    if store is not None:
        store.check(resume)
        refuse_unstorable([*names, *labels], labels)
        if resume and random_seed is None and store.exists:
            random_seed = store.record["seed"]
    with quiet_logging(quiet):
        seed, generator = seeded(random_seed)
        generators = generator.spawn(given.chains)
        at_first, form = deepcopy(generators), None
        written, missing = given, None
        if step is None:
            given, missing = without_missing_outcomes(written)
            earlier = store.adapted if store is not None and resume else None
            groups = terms_to_integrate(
                given.model, integrate, compile_kwargs, bool(given.predictions), given.data
            )
            chosen = form_of(given.adaptation) if earlier is None else earlier.form
            form = Form.of(given, groups, **chosen)
            given = form.sampled
        model = given.model
        if exact:
            refuse_exact(model, step, given.predictions)
        starts = starts_of(model, given.initvals, init, generators)
        if form is not None:
            # Not spawned, so that it is the same for any number of chains.
            own = np.random.default_rng(generator.integers(2**32, size=4))
            with warm_ups(bool(given.progressbar), limit):
                form, step = form.warmed_up(own, earlier)
            if form.sampled is not given:
                given = form.sampled
                starts = starts_of(given.model, given.initvals, init, at_first)
            model = sampled_model(given.model, step)
        step = step_for_all(model, step, starts[0], compile_kwargs)
        adapted = getattr(step, "adapted", None)
        if adapted is not None and given.initvals is None and init == "jitter":
            starts = adapted_starts(step, starts, generators)
        elif adapted is not None:
            starts = starts_near_the_posterior(step, starts, given.initvals, generators)
        length = None
        draws, tune = given.draws, given.tune
        default_tune = get_default_tune_steps(step, None)
        if adapted is not None and adapted.predictions_only:
            draws = draws_of_many(draws)
        elif adapted is not None and draws is None:
            length = free_length(adapted, given.chains, given.ess, max_passes, tune, default_tune)
            draws, tune = length.expected, length.tune
        given = replace(
            given,
            model=model,
            step=step,
            draws=DRAWS if draws is None else draws,
            tune=default_tune if tune is None else tune,
        )
        phase = None
        if exact:
            phase = ExactPhase(given.ess, np.random.default_rng(generator.integers(2**32, size=4)))
        rngs = [get_state_from_generator(rng) for rng in generators]
        tree = run_chains(given, starts, rngs, store, seed, length, limit, phase)
        if form is not None:
            own = np.random.default_rng(generator.integers(2**32, size=4))
            tree = form.complete(tree, model, own)
        if missing is not None:
            own = np.random.default_rng(generator.integers(2**32, size=4))
            tree = with_missing_outcomes(tree, missing, written, own)
        seconds = time.perf_counter() - began
        _log.info(f"In all {seconds:.0f} seconds, with compilation and warm-up.")
        return tree
