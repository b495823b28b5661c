"""`sample`: PyMC's `sample` for minibatch steps, with storage, resuming and more chain methods."""

import itertools
import logging
import signal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import pytensor
from pymc.exceptions import SamplingError
from pymc.initial_point import PointType, StartDict
from pymc.model import Model, modelcontext
from pymc.progress_bar import ProgressBarOptions
from pymc.sampling.mcmc import get_default_tune_steps
from pymc.step_methods.compound import flatten_steps
from pymc.util import RandomGeneratorState, get_state_from_generator
from rich.theme import Theme
from xarray import DataTree

from pymc_sgmcmc.adaptation.adapted import Adapted, UnfitAdaptation
from pymc_sgmcmc.adaptation.plan import LARGEST_LOW_RANK, batch_size_for
from pymc_sgmcmc.adaptation.progress import progress_shown
from pymc_sgmcmc.adaptation.time_limit import TimeLimit, warm_up_within
from pymc_sgmcmc.argument_checks import check_compile_kwargs, positive_number, true_or_false
from pymc_sgmcmc.backends import interrupts
from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.diagnosis.diagnose import (
    VerdictSoFar,
    diagnose_exact,
    diagnose_run,
    points_to_diagnose,
    warn_of_burn_in,
)
from pymc_sgmcmc.exact.exact_draws import ExactPhase, refuse_exact
from pymc_sgmcmc.gradients.local_variables import n_looked_up
from pymc_sgmcmc.integration.choice import (
    starts_without,
    terms_to_integrate,
)
from pymc_sgmcmc.integration.group_terms import Integrate
from pymc_sgmcmc.integration.integrated_model import DIM, integrated_model
from pymc_sgmcmc.integration.points import points_of
from pymc_sgmcmc.predictions.predictions import Predictions
from pymc_sgmcmc.pymc_internals import quiet_logging
from pymc_sgmcmc.run.adapted_run import (
    FreeLength,
    adapted_starts,
    describe_adaptation,
    draws_of_many,
    free_length,
    starts_near_the_posterior,
)
from pymc_sgmcmc.run.arguments import (
    check_kinds,
    check_names,
    check_seed,
    check_starts,
    checked_cores,
    checked_numbers,
    sampled_model,
    seeded,
    whole_step,
)
from pymc_sgmcmc.run.collect import collect
from pymc_sgmcmc.run.engines import chain_method_of, check_method, engine_of
from pymc_sgmcmc.run.enough_draws import EnoughDraws
from pymc_sgmcmc.run.integrated_effects import recorded_names, with_effects
from pymc_sgmcmc.run.log_densities import with_log_densities, without_log_densities
from pymc_sgmcmc.run.other_arguments import naming_alternatives
from pymc_sgmcmc.run.predicting import checked_predictions, prepare
from pymc_sgmcmc.run.progress import Progress
from pymc_sgmcmc.run.recorded_variables import recorder_of, without_nothing
from pymc_sgmcmc.run.result import (
    InMemoryDraws,
    affordable_data,
    check_convergence,
    salvage,
    summary,
    to_datatree,
)
from pymc_sgmcmc.run.result_form import (
    check_form,
    check_idata_kwargs,
    data_names,
    example_of,
    names_in_result,
)
from pymc_sgmcmc.run.run import Event, Run, Stopped
from pymc_sgmcmc.run.starts import starts_of
from pymc_sgmcmc.run.step_in_use import in_use, refuse_step_in_use
from pymc_sgmcmc.samplers.msgnht import MSGNHT_S
from pymc_sgmcmc.storage.names_and_labels import refuse_unstorable
from pymc_sgmcmc.storage.store import store_of

_log = logging.getLogger("pymc.sgmcmc")

DRAWS = 1000
"""Default number of draws of steps that are not adapted."""


@naming_alternatives
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
) -> DataTree:
    r"""Sample as `pm.sample` does, with storage, resuming and more ways to run chains.

    Arguments that `pm.sample` also has mean the same here, and the result is the same DataTree. For
    a given seed, a chain's draws do not depend on how many chains there are, nor on where they run;
    they are those of ``pm.sample(step=...)`` from the same starting point.

    Parameters
    ----------
    draws : int, optional
        Draws to keep for each chain. A draw is `thin` updates of the step. Default: for an adapted
        step as many as ``ess`` needs, at least 500 and at most 10,000; with a ``trace`` as many as
        the warm-up expects to need; for an adapted step of more than 2000 parameters, each draw
        of which is a pass over the data, 100; for other steps 1000.
    tune : int, optional
        Draws of burn-in before those, discarded; default: the step's own (500 for minibatch steps,
        15 to 50 for adapted ones, whose chains start within the posterior: five autocorrelation
        times of the slowest parameter).
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
        element, at which an adapted run of a free length ends, if R-hat is at most 1.01 or what
        chance explains and, with ``compute_convergence_checks``, standard errors are small enough
        for a clear verdict.
    exact : bool, default False
        Finish the run on all rows: 32 short Hamiltonian chains with Metropolis' correction start at
        draws of the minibatch chains, in their metric, and go on until they have forgotten these
        and ``ess`` is reached. No error of minibatches or of the step size is left. See the page
        "Can I trust this?". For up to 2000 parameters, after an adapted step.
    max_passes : float, optional
        Most passes over the data, warm-up included, of such a run, without the exact phase.
    max_seconds : float, optional
        Seconds after which a run ends, from the call on, with compilation and warm-up. It returns
        the draws so far, and a message says so; with a ``trace`` it can be resumed. If the warm-up
        of the default step alone takes longer, an error names its stage.
    store_adaptation : bool, default False
        Add the group ``adaptation``: metric, anchor, row weights, noise.
    var_names : list of str, optional
        Variables to record. Default: all free variables and deterministics, except deterministics
        with one number per row of the data, which a message names. For the verdict on an adapted
        step some draws of free variables that are left out are kept until it is made.
    initvals : dict or list of dict, optional
        Initial values by variable, for all chains or one dict per chain; a value may be an array,
        ``"prior"`` or ``"support_point"``. A chain of an adapted step starts inside the posterior
        that the warm-up saw where they are far outside; a warning says so.
    init : {"jitter", "point"}, default "jitter"
        "jitter" adds uniform random numbers in [-1, 1], on the unconstrained scale and different
        for each chain, to variables that have no initial value (in the model or in ``initvals``).
        PyMC does so for NUTS, so that R-hat can detect chains that do not mix. "point" starts all
        chains at the same point, as `pm.sample` does with explicit steps.
    trace : ZarrStore, str or pathlib.Path, optional
        Write draws to disk as they are made, with the state of the sampler: see `ZarrStore`. For a
        path, a store is created there.
    discard_tuned_samples : bool, default True
        False adds the groups ``warmup_posterior`` and ``warmup_sample_stats``.
    compute_convergence_checks : bool, default True
        For an adapted step log the verdict of `diagnose`, which looks at R-hat and effective sample
        sizes too, and add the group ``diagnosis``. For another one log PyMC's warnings about these,
        and a warning if its thermostats still drifted.
        In large models they are computed for evenly spaced elements only, and a message says so.
    keep_warning_stat : bool, default False
        Keep the statistic "warning"; such a result cannot be saved. A store does not have it.
    idata_kwargs : dict, optional
        For `pymc.to_inference_data`. ``log_likelihood`` and ``log_prior`` are computed for the
        result; a store does not have them.
    callback : callable, optional
        Called as ``callback(trace=..., draw=...)`` after each draw, in this process. It may raise
        `KeyboardInterrupt` to end the run with the draws so far.
    mp_ctx : str or multiprocessing context, optional
        How processes start. Default: that of the system, but "forkserver" with JAX.
    blas_cores : int, "auto" or None, default "auto"
        Total number of BLAS threads of all processes; "auto": one per core.
    model : pymc.Model, optional
        Default: the model on the context stack.
    compile_kwargs : dict, optional
        For the default step and steps that PyMC chooses; a step that you made has its own. Default:
        PyTensor's mode, numba; for the default step of models with more than 2000 parameters JAX,
        if it is installed.
    chain_method : {"sequential", "parallel", "vectorized", "dask"}, optional
        Run chains in turns in this process, side by side in processes, all in one compiled call
        (requires one step for all variables, compiled for JAX or numba), or as tasks of a Dask
        cluster. The default depends on the backend, device and cores; a message says which it is.
    client : distributed.Client, optional
        For ``chain_method="dask"``; default: the current client. With a ``trace`` in a folder that
        all workers can reach, another worker resumes the chains of a lost one from their
        checkpoints.
    resume : bool, default False
        Continue the run in ``trace``, exactly as if it had never stopped. With more ``draws`` than
        before, a finished run is extended.
    include_data : bool, optional
        Copy the model's data into the result. Default: if it takes less than 50 MB.
    predictions : Predictions or list of Predictions, optional
        Averages of predictions on test data, made where the chains run; with ``var_names=[]`` no
        draws are kept. They are saved and resumed with the chains. The length of the run is then
        ``draws``, or what the warm-up expects to need.
    integrate : "auto", list of names or None, default "auto"
        For the default step: effects of groups of rows to integrate out of the likelihood; each
        group then is a row, and what groups share is sampled. The effects are drawn afterwards and
        are in ``posterior`` like all variables. "auto": those of the index with the most groups, if
        there are at least 500 and nothing speaks against it; a message says what.

    Returns
    -------
    DataTree
        Groups ``posterior``, ``sample_stats``, ``observed_data``, ``constant_data``, and one for
        each of ``predictions``. For an adapted step the attributes of ``posterior`` have
        ``data_passes`` (row gradients / N, of all chains and with the warm-up),
        ``data_passes_warmup``, and ``adaptation``: all that was chosen, as JSON.

    Raises
    ------
    ValueError
        For invalid arguments, before anything is compiled.
    pymc.exceptions.SamplingError
        If no chain got past tuning.
    RuntimeError
        For a step of a run that has not ended, as in its callback.

    Notes
    -----
    A chain with a non-finite update stops: a message names the variable, the update and the remedy.
    The other chains continue. If the chains end up with different lengths, they are cut to a common
    length or left out, whichever keeps more draws. Ctrl-C ends the run after the current draw and
    returns the draws so far; a second Ctrl-C does not wait for that draw. Any other exception has
    them in its attribute ``idata``.

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
    began = time.perf_counter()
    check_kinds(model, callback, idata_kwargs, mp_ctx)
    check_compile_kwargs(compile_kwargs)
    check_method(chain_method)
    check_seed(random_seed)
    model = sampled_model(modelcontext(model), step)
    draws, tune, chains = checked_numbers(draws, tune, chains)
    ess = positive_number("ess", ess, "It is an effective sample size, 400 by default.")
    if max_passes is not None:
        positive_number("max_passes", max_passes, "It is a number of passes over the data.")
    if max_seconds is not None:
        positive_number("max_seconds", max_seconds, "It is a number of seconds.")
    limit = None if max_seconds is None else TimeLimit(max_seconds)
    checked_cores(cores, blas_cores)
    switches = {
        "quiet": quiet,
        "discard_tuned_samples": discard_tuned_samples,
        "compute_convergence_checks": compute_convergence_checks,
        "exact": exact,
        "keep_warning_stat": keep_warning_stat,
        "store_adaptation": store_adaptation,
        "resume": resume,
    }
    for name, value in switches.items():
        true_or_false(name, value)
    if include_data is not None:
        true_or_false("include_data", include_data)
    averages = checked_predictions(model, predictions)
    check_names(model, var_names, "var_names", bool(averages))
    check_starts(model, initvals, init, chains)
    check_idata_kwargs(model, var_names, idata_kwargs or {})
    names = names_in_result(model, var_names, include_data)
    labels = check_form(model, names, idata_kwargs or {})
    store = store_of(trace, resume)
    if store is not None:
        store.check(resume)
        refuse_unstorable([*names, *labels], labels)
        if resume and random_seed is None and store.exists:
            random_seed = store.record["seed"]
    with quiet_logging(quiet):
        seed, generator = seeded(random_seed)
        generators = generator.spawn(chains)
        whole, terms = model, None
        if step is None:
            terms = terms_to_integrate(model, integrate, compile_kwargs, bool(averages))
        if terms is not None:
            wanted, densities = var_names, dict(idata_kwargs or {})
            model = integrated_model(terms, points_of(terms.k))
            initvals = starts_without(terms, initvals)
            shared, recorded = model.unobserved_RVs, recorded_names(terms, var_names)
            var_names = [v.name for v in shared if v.name in recorded] or None
            idata_kwargs = without_log_densities(densities)
        if exact:
            refuse_exact(model, step, averages)
        starts = starts_of(model, initvals, init, generators)
        if step is None:
            # Not spawned, so that it is the same for any number of chains.
            own = np.random.default_rng(generator.integers(2**32, size=4))
            earlier = store.adapted if store is not None and resume else None
            with progress_shown(bool(progressbar) and not quiet), warm_up_within(limit):
                step = _default_step(model, compile_kwargs, own, earlier, terms is not None)
            model = sampled_model(model, step)
            if terms is not None:  # afresh, so that they are the same for a run that is resumed
                anchor = step.gradients.point(step.adapted.anchor)
                model.centres.move(anchor, afresh=True)
                step.kernel.data_checksum = step.kernel.checksum()
        step = whole_step(model, step, starts[0], compile_kwargs)
        adapted = getattr(step, "adapted", None)
        if adapted is not None and initvals is None and init == "jitter":
            starts = adapted_starts(step, starts, generators)
        elif adapted is not None:
            starts = starts_near_the_posterior(step, starts, initvals, generators)
        length = None
        default_tune = get_default_tune_steps(step, None)
        if adapted is not None and adapted.predictions_only:
            draws = draws_of_many(draws)
        elif adapted is not None and draws is None:
            length = free_length(adapted, chains, ess, max_passes, tune, default_tune)
            draws, tune = length.expected, length.tune
        phase = None
        if exact:
            phase = ExactPhase(ess, np.random.default_rng(generator.integers(2**32, size=4)))
        tree = sample_from_init(
            model=model,
            step=step,
            draws=DRAWS if draws is None else draws,
            tune=default_tune if tune is None else tune,
            chains=chains,
            cores=cores,
            initvals=starts,
            random_seed=[get_state_from_generator(rng) for rng in generators],
            progressbar=False if quiet else progressbar,
            progressbar_theme=progressbar_theme,
            discard_tuned_samples=discard_tuned_samples,
            keep_warning_stat=keep_warning_stat,
            var_names=var_names,
            idata_kwargs=idata_kwargs,
            compute_convergence_checks=compute_convergence_checks,
            trace=store,
            resume=resume,
            callback=callback,
            mp_ctx=mp_ctx,
            blas_cores=blas_cores,
            chain_method=chain_method,
            client=client,
            include_data=include_data if terms is None else False,
            seed=seed,
            length=length,
            limit=limit,
            store_adaptation=store_adaptation,
            predictions=averages,
            exact=phase,
            began=began,
        )
        if terms is None:
            return tree
        if include_data is None:
            include_data = affordable_data(whole)
        own = np.random.default_rng(generator.integers(2**32, size=4))
        others = without_log_densities(densities)
        tree = with_effects(tree, terms, model, wanted, own, others, include_data)
        return with_log_densities(tree, whole, densities)


def _default_step(
    model: Model,
    compile_kwargs: dict[str, Any] | None,
    rng: np.random.Generator,
    earlier: Adapted | None,
    of_groups: bool,
) -> MSGNHT_S:
    """Make the step for all variables, with the warm-up of the run to resume if there is one."""
    compile_kwargs = _compile_kwargs_of(model) if compile_kwargs is None else compile_kwargs
    make = partial(MSGNHT_S, model=model, compile_kwargs=compile_kwargs, rng=rng)
    if of_groups:
        with quick_graphs():
            size = sum(np.size(value) for value in model.initial_point().values())
        n_groups = len(model.coords[DIM])
        make = partial(make, minibatch_dim=DIM, batch_size=min(batch_size_for(size), n_groups))
    if earlier is not None:
        with suppress(UnfitAdaptation):  # the store then says what differs from its run
            return make(adaptation=earlier)
    return make()


@quick_graphs()
def _compile_kwargs_of(model: Model) -> dict[str, Any] | None:
    """Return how the default step is compiled where the user has not said it.

    numba takes far longer than JAX to compile a network, and is not faster then; it is with
    parameters of groups.
    """
    start = model.initial_point()
    size = sum(np.size(start[v.name]) for v in model.continuous_value_vars)
    chosen_by_user = (pytensor.config.mode, pytensor.config.linker) != ("Mode", "auto")
    if size <= LARGEST_LOW_RANK or chosen_by_user or find_spec("jax") is None:
        return None
    if 2 * n_looked_up(model) > size:
        return None
    _log.info(
        f"With {size} parameters the step is compiled with JAX, which is ready sooner. For numba "
        "pass compile_kwargs={'mode': 'NUMBA'}."
    )
    return {"mode": "JAX"}


def sample_from_init(
    *,
    model: Model,
    step: Any,
    draws: int,
    tune: int,
    chains: int,
    cores: int | None = None,
    initvals: Sequence[PointType],
    random_seed: Sequence[RandomGeneratorState],
    progressbar: bool | ProgressBarOptions = True,
    progressbar_theme: Theme | str | None = None,
    discard_tuned_samples: bool = True,
    keep_warning_stat: bool = False,
    var_names: Sequence[str] | None = None,
    idata_kwargs: dict[str, Any] | None = None,
    compute_convergence_checks: bool = True,
    trace: Any = None,
    resume: bool = False,
    callback: Callable | None = None,
    mp_ctx: Any = None,
    blas_cores: int | Literal["auto"] | None = "auto",
    chain_method: str | None = None,
    client: Any = None,
    include_data: bool | None = None,
    seed: Any = None,
    length: FreeLength | None = None,
    limit: TimeLimit | None = None,
    store_adaptation: bool = False,
    predictions: Sequence[Predictions] = (),
    exact: ExactPhase | None = None,
    began: float | None = None,
) -> DataTree:
    """Sample with everything prepared: one starting point and one generator per chain.

    The arguments are those of PyMC's planned interface for external samplers, followed by this
    package's own.

    Parameters
    ----------
    model : pymc.Model
        The sampled model: ``step.model`` if latent variables are integrated out.
    step : step
        One step for all variables: a minibatch step, or a `CompoundStep`.
    draws, tune, chains : int
        Numbers of draws to keep, of burn-in draws before them, and of chains.
    initvals : list of dict
        Starting points of the chains, by value variable, on the unconstrained scale.
    random_seed : list of RandomGeneratorState
        States of the chains' generators, from `pymc.util.get_state_from_generator`.
    trace : ZarrStore, str or pathlib.Path, optional
        As for `sample`.
    seed : optional
        The seed of the run, for a store to record.
    cores, progressbar, progressbar_theme, discard_tuned_samples, keep_warning_stat : optional
        As for `sample`.
    var_names, idata_kwargs, compute_convergence_checks, resume, callback, mp_ctx : optional
        As for `sample`.
    blas_cores, chain_method, client, include_data, store_adaptation, predictions : optional
        As for `sample`.
    length : FreeLength, optional
        How long the run may be instead of ``draws``, if it can be ended early: without a ``trace``
        and with chains that are equally far.
    limit : TimeLimit, optional
        Time after which it ends with the draws so far.
    exact : ExactPhase, optional
        What makes the draws exact.
    began : float, optional
        When the run began, by `time.perf_counter`.

    Returns
    -------
    DataTree
        As from `sample`.

    Raises
    ------
    ValueError
        For a ``chain_method`` that the step cannot run with, or a ``trace`` of another run.
    RuntimeError
        For a step of a run that has not ended.
    pymc.exceptions.SamplingError
        If no chain got past tuning.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> from pymc.util import get_state_from_generator
    >>> from pymc_sgmcmc.sampling import sample_from_init
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    ...     step = sgm.MSGNHT_S(step_size=1e-2, batch_size=10, thin=10)
    >>> idata = sample_from_init(
    ...     model=model, step=step, draws=50, tune=50, chains=1, initvals=[{"mu": np.array(0.5)}],
    ...     random_seed=[get_state_from_generator(np.random.default_rng(1))], progressbar=False,
    ...     compute_convergence_checks=False,
    ... )
    >>> idata.posterior["mu"].shape
    (1, 50)
    """
    began = time.perf_counter() if began is None else began
    refuse_step_in_use(step)
    idata_kwargs = dict(idata_kwargs or {})
    store = store_of(trace, resume)
    cores = checked_cores(cores, blas_cores)
    starts = list(initvals)
    transformed = idata_kwargs.get("include_transformed", False)
    recorder = recorder_of(model, step, starts[0], var_names, transformed)
    cores = min(cores, chains)
    if store is not None or predictions:
        length = None
    for averages in predictions:
        prepare(averages, step, starts[0])
    method = chain_method_of(chain_method, step, starts, cores, even=length is not None)
    if method in ("parallel", "dask"):
        length = None
    run = Run(
        model=model,
        step=step,
        tune=tune,
        draws=draws if length is None else length.most,
        starts=starts,
        rngs=list(random_seed),
        recorder=recorder,
        keep_warmup=not discard_tuned_samples,
        each_draw=callback is not None,
        seed=seed,
        store=store,
        together=method == "vectorized",
        fresh=step.sampling_state,
        predictions=predictions,
        points=(
            points_to_diagnose(step, recorder.trace.varnames, chains)
            if compute_convergence_checks or exact is not None
            else None
        ),
    )
    if include_data is None:
        include_data = affordable_data(model)
    check_form(model, recorder.trace.varnames + data_names(model, include_data), idata_kwargs)
    engine = engine_of(run, method, cores, mp_ctx, blas_cores, client)
    settings = {
        "steps": [repr(s) for s in flatten_steps(step)],
        "chain_method": method,
        "floatX": pytensor.config.floatX,
    }
    adapted = getattr(step, "adapted", None)
    if adapted is not None:
        settings["adaptation"] = adapted.summary()
    convert = partial(
        to_datatree,
        model=model,
        tune=tune,
        discard_warmup=discard_tuned_samples,
        include_data=include_data,
        keep_warning_stat=keep_warning_stat and store is None,
        idata_kwargs=without_log_densities(idata_kwargs),
        settings=settings,
    )
    progress = Progress(step, chains, draws, tune, progressbar, progressbar_theme)
    verdict = VerdictSoFar(step, run.points)
    judged = verdict if compute_convergence_checks else None
    try:
        tree = _advanced(run, engine, convert, progress, callback, length, judged, limit)
    finally:
        if store is not None:
            store.release()
    try:  # whatever happens now, the draws are not lost
        tree = without_nothing(tree)
        for averages in predictions:
            if any(chain.n for chain in averages.chains.values()):
                tree[averages.name] = DataTree(averages.to_dataset())
        if adapted is not None:
            describe_adaptation(tree, step, tune, store_adaptation)
        _log.info(summary(run, tree))
        if compute_convergence_checks:
            _check(tree, model, step, run, verdict, began, is_start=exact is not None)
        if exact is not None:
            draws_of_all = None if run.points is None else run.points.draws(step.vars)
            found = exact(tree, step, draws_of_all, run.recorder, limit)
            if found is not None:
                tree = found.tree
                if compute_convergence_checks:
                    diagnose_exact(tree, step, found.theta, found.gradient)
        tree = with_log_densities(tree, model, idata_kwargs)
    except KeyboardInterrupt:
        _log.warning("Interrupted: the draws are returned without all that is computed from them.")
    except BaseException as error:
        salvage(error, lambda: tree)
        raise
    return tree


def _check(
    tree: DataTree,
    model: Model,
    step: Any,
    run: Run,
    verdict: VerdictSoFar,
    began: float,
    is_start: bool,
) -> None:
    """Judge the draws, which are worth more than their check: an error in it is only logged."""
    try:
        if getattr(step, "adapted", None) is None:
            check_convergence(tree, model)
            warn_of_burn_in(tree)
        else:  # the verdict looks at R-hat and effective sample sizes too
            seconds = time.perf_counter() - began
            measured = verdict.measured(tree)
            diagnose_run(tree, step, run.points, measured, seconds, is_start)
    except KeyboardInterrupt:
        _log.warning("Interrupted: convergence is not checked.")
    except Exception as error:
        _log.warning(f"Convergence is not checked: {type(error).__name__}: {error}")


def _advanced(
    run: Run,
    engine: Callable[[Run], Generator[Event]],
    convert: Callable[..., DataTree],
    progress: Progress,
    callback: Callable | None,
    length: FreeLength | None,
    verdict: VerdictSoFar | None,
    limit: TimeLimit | None,
) -> DataTree:
    """Advance all chains with the engine and return the draws."""
    store, in_memory = run.store, None
    example = example_of(run, convert)
    if store is None:
        in_memory = InMemoryDraws(run)
    else:
        run = store.begin(run, example)
    events = engine(run)
    if store is not None and min(store.n_draws) >= run.draws and not run.observed:
        events.close()
    began = time.perf_counter()

    def result() -> DataTree:
        seconds = time.perf_counter() - began
        if in_memory is not None:
            return convert(in_memory, seconds=seconds)
        with suppress(OSError):  # a full disk can be read
            store.add_seconds(seconds)
        return store.to_datatree()

    def times_as_many_draws() -> float:
        so_far = convert(in_memory, seconds=0.0, include_data=False)
        describe_adaptation(so_far, run.step, run.tune, with_arrays=False)
        assert verdict is not None
        return verdict.times_as_many_draws(so_far)

    enough = None
    if in_memory is not None and length is not None:
        needs = None if verdict is None else times_as_many_draws
        enough = EnoughDraws(run, in_memory, length.ess, needs)
    stops: list[Stopped] = []
    interrupted = False
    interrupts.handle()
    try:
        with (
            in_use(run.step),
            interrupts.handled(signal.SIGTERM),
            interrupts.deferred,
            closing(events),  # the engine ends when no draw is on its way
        ):
            # The progress bar has a thread, and a process should not be forked while threads run.
            first = [event for event in [next(events, None)] if event is not None]
            with progress:
                events_and_first = itertools.chain(first, events)
                collect(events_and_first, in_memory, progress, callback, run, stops, enough, limit)
    except KeyboardInterrupt:
        interrupted = True
    except BaseException as error:  # a handler of SIGTERM, say, that calls sys.exit
        salvage(error, result)
        raise
    tree: DataTree | None = None
    try:
        with interrupts.deferred:
            if store is not None:
                store.restore_rest(run)
            tree = result()
    except KeyboardInterrupt:
        if tree is None:
            raise
    except SamplingError as error:
        reasons = ["Interrupted."] if interrupted else [stop.message for stop in stops[:1]]
        if not reasons and limit is not None and limit.has_passed:
            reasons = [f"max_seconds={limit.seconds:g} was too little."]
        raise SamplingError(" ".join([str(error), *reasons])) from None
    except BaseException as error:
        salvage(error, result)
        raise
    if interrupted:
        _log.warning("Interrupted: the draws made so far are returned.")
    return tree
