"""`sample`: PyMC's `sample` for minibatch steps, with storage, resuming and other engines."""

import itertools
import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from functools import partial
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

from pymc_sgmcmc.argument_checks import true_or_false
from pymc_sgmcmc.pymc_internals import quiet_logging
from pymc_sgmcmc.run.arguments import (
    check_names,
    check_starts,
    checked_cores,
    checked_numbers,
    sampled_model,
    seeded,
    whole_step,
)
from pymc_sgmcmc.run.chains import Event, Run, Stopped
from pymc_sgmcmc.run.collect import collect
from pymc_sgmcmc.run.engines import engine_of
from pymc_sgmcmc.run.progress import Progress
from pymc_sgmcmc.run.recorded import choose_recorded
from pymc_sgmcmc.run.result import (
    Memory,
    affordable_data,
    check_convergence,
    salvage,
    summary,
    to_datatree,
)
from pymc_sgmcmc.run.starts import starts_of
from pymc_sgmcmc.storage.store import store_of

_log = logging.getLogger("pymc.sgmcmc")


def sample(
    draws: int = 1000,
    *,
    tune: int | None = None,
    chains: int | None = None,
    cores: int | None = None,
    random_seed: Any = None,
    progressbar: bool | ProgressBarOptions = True,
    progressbar_theme: Theme | str | None = None,
    quiet: bool = False,
    step: Any,
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
) -> DataTree:
    r"""Sample as `pm.sample` does, and more: storage, resuming, other ways to run chains.

    Arguments that `pm.sample` has too mean the same here, and the result is the same DataTree. For
    a seed, a chain's draws do not depend on how many chains there are, nor on where they run; they
    are those of ``pm.sample(step=...)`` from the same start.

    Parameters
    ----------
    draws : int, default 1000
        Draws to keep for each chain. A draw is `thin` updates of the step.
    tune : int, optional
        Draws before those, not kept; default: what the step says (500 for the minibatch steps).
    chains : int, default 4
        Independent chains.
    cores : int, optional
        Processes of ``chain_method="parallel"``; default: as many as there are, at most 4.
    random_seed : int, array_like of int or numpy.random.Generator, optional
        Seed of all chains.
    progressbar : bool or str, default True
        As in `pm.sample`: ``"combined"``, ``"split"``, with ``"+stats"``. More than 16 chains share
        one bar.
    progressbar_theme : rich.theme.Theme, optional
        Colours of the bar.
    quiet : bool, default False
        No messages, no bar.
    step : step or list of steps
        Minibatch steps, alone or beside PyMC's. PyMC chooses steps for variables that have none.
    var_names : list of str, optional
        Variables to record. Default: all free variables and deterministics, but for deterministics
        that have a number for each row of the data, which a message names.
    initvals : dict or list of dict, optional
        Starts by variable, for all chains or one dict for each; a value may be an array,
        ``"prior"`` or ``"support_point"``.
    init : {"jitter", "point"}, default "jitter"
        "jitter" moves variables that have no initial value (in the model or in ``initvals``) by
        uniform numbers in [-1, 1] on the unconstrained scale, other ones for each chain, as
        PyMC's NUTS does, so that R-hat can see chains that do not mix. "point" starts all at the
        same point, as `pm.sample` does with explicit steps.
    trace : ZarrStore, str or pathlib.Path, optional
        Keep draws on disk as they come, with the state of the sampler: see `ZarrStore`. A path
        makes a store there.
    discard_tuned_samples : bool, default True
        False adds the groups ``warmup_posterior`` and ``warmup_sample_stats``.
    compute_convergence_checks : bool, default True
        Log R-hat and effective sample sizes that are bad. In large models they are computed for
        evenly spaced elements only, which a message says.
    keep_warning_stat : bool, default False
        Keep the statistic "warning"; such a result cannot be saved. A store has none.
    idata_kwargs : dict, optional
        For `pymc.to_inference_data`.
    callback : callable, optional
        Called as ``callback(trace=..., draw=...)`` after each draw, in this process. It may raise
        `KeyboardInterrupt` to end the run with the draws so far.
    mp_ctx : str or multiprocessing context, optional
        How processes start. Default: the system's way, but "forkserver" with JAX.
    blas_cores : int, "auto" or None, default "auto"
        Threads of BLAS, over all processes; "auto": one a core.
    model : pymc.Model, optional
        Default: the model on the context stack.
    compile_kwargs : dict, optional
        For steps that PyMC chooses; a step that exists has its own.
    chain_method : {"sequential", "parallel", "vectorized", "dask"}, optional
        One chain after another in this process, side by side in processes, all chains in one
        compiled call (a step for all variables, compiled for JAX or numba), or as tasks of a Dask
        cluster. The default suits backend, device and cores; a message says which it is.
    client : distributed.Client, optional
        For ``chain_method="dask"``; default: the current client. With a ``trace`` in a folder that
        all workers see, the chains of a lost worker go on from their checkpoints on another.
    resume : bool, default False
        Go on with the run that ``trace`` holds, exactly as if it had never stopped. With more
        ``draws`` than before a finished run is made longer.
    include_data : bool, optional
        Copy the model's data into the result. Default: where it is less than 50 MB.

    Returns
    -------
    DataTree
        Groups ``posterior``, ``sample_stats``, ``observed_data``, ``constant_data``.

    Raises
    ------
    ValueError
        For arguments that cannot be, before anything is compiled.
    pymc.exceptions.SamplingError
        If no chain got beyond tuning.

    Notes
    -----
    A chain with a non-finite update stops: its message names the variable, the update and what to
    do. The other chains go on. Where chains have different lengths in the end, they are cut or left
    out so that the most draws are kept. Ctrl-C ends the run and returns the draws so far. After any
    other exception they are in its attribute ``idata``.

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
    model = sampled_model(modelcontext(model), step)
    draws, tune, chains = checked_numbers(draws, tune, chains)
    checked_cores(cores, blas_cores)
    switches = {
        "quiet": quiet,
        "discard_tuned_samples": discard_tuned_samples,
        "compute_convergence_checks": compute_convergence_checks,
        "keep_warning_stat": keep_warning_stat,
        "resume": resume,
    }
    for name, value in switches.items():
        true_or_false(name, value)
    if include_data is not None:
        true_or_false("include_data", include_data)
    check_names(model, var_names, "var_names")
    check_starts(model, initvals, init, chains)
    if isinstance(random_seed, bool) or (np.isscalar(random_seed) and random_seed == -1):
        raise ValueError(f"random_seed={random_seed} is not allowed. Pass None for a random one.")
    store = store_of(trace, resume)
    if store is not None:
        store.check(resume)
        if resume and random_seed is None and store.exists:
            random_seed = store.record["seed"]
    with quiet_logging(quiet):
        seed, generator = seeded(random_seed)
        generators = generator.spawn(chains)
        starts = starts_of(model, initvals, init, generators)
        step = whole_step(model, step, starts[0], compile_kwargs)
        return sample_from_init(
            model=model,
            step=step,
            draws=draws,
            tune=get_default_tune_steps(step, tune),
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
            include_data=include_data,
            seed=seed,
        )


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
) -> DataTree:
    """Sample with everything settled: one start and one generator a chain.

    The arguments are those of PyMC's coming interface for external samplers, then those that are
    this package's own.

    Parameters
    ----------
    model : pymc.Model
        The model that is sampled: ``step.model`` where latent variables are integrated out.
    step : step
        One for all variables: a minibatch step, or a `CompoundStep`.
    draws, tune, chains : int
        Draws to keep, draws before them, and chains.
    initvals : list of dict
        Starts of the chains, by value variable, on the unconstrained scale.
    random_seed : list of RandomGeneratorState
        States of the chains' generators, from `pymc.util.get_state_from_generator`.
    trace : ZarrStore, str or pathlib.Path, optional
        As for `sample`.
    seed : optional
        What a store records as the seed of the run.
    cores, progressbar, progressbar_theme, discard_tuned_samples, keep_warning_stat : optional
        As for `sample`.
    var_names, idata_kwargs, compute_convergence_checks, resume, callback, mp_ctx : optional
        As for `sample`.
    blas_cores, chain_method, client, include_data : optional
        As for `sample`.

    Returns
    -------
    DataTree
        As from `sample`.

    Raises
    ------
    ValueError
        For a ``chain_method`` that the step cannot run with, or a ``trace`` of another run.
    pymc.exceptions.SamplingError
        If no chain got beyond tuning.

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
    idata_kwargs = dict(idata_kwargs or {})
    store = store_of(trace, resume)
    cores = checked_cores(cores, blas_cores)
    run = Run(
        model=model,
        step=step,
        tune=tune,
        draws=draws,
        starts=list(initvals),
        rngs=list(random_seed),
        vars=[],
        keep_warmup=not discard_tuned_samples,
        each_draw=callback is not None,
        seed=seed,
        store=store,
        fresh=step.sampling_state,
    )
    choose_recorded(run, var_names, idata_kwargs.get("include_transformed", False))
    if include_data is None:
        include_data = affordable_data(model)
    engine, method = engine_of(run, chain_method, min(cores, chains), mp_ctx, blas_cores, client)
    settings = {
        "steps": [repr(s) for s in flatten_steps(step)],
        "chain_method": method,
        "floatX": pytensor.config.floatX,
    }
    convert = partial(
        to_datatree,
        model=model,
        tune=tune,
        discard_warmup=discard_tuned_samples,
        include_data=include_data,
        keep_warning_stat=keep_warning_stat and store is None,
        idata_kwargs=idata_kwargs,
        settings=settings,
    )
    progress = Progress(step, chains, draws, tune, progressbar, progressbar_theme)
    try:
        tree = _advanced(run, engine, convert, progress, callback)
    finally:
        if store is not None:
            store.release()
    _log.info(summary(run, tree))
    if compute_convergence_checks:
        check_convergence(tree, model)
    return tree


def _advanced(
    run: Run,
    engine: Generator[Event],
    convert: Callable[..., DataTree],
    progress: Progress,
    callback: Callable | None,
) -> DataTree:
    """Have the engine advance all chains, and return what was drawn."""
    store, memory = run.store, None
    if store is None:
        memory = Memory(run)
    else:
        example = convert(Memory.example(run), seconds=0.0)
        for message in store.begin(run, example):
            _log.warning(message)
        if min(store.n_draws) >= run.draws:
            engine.close()
    began = time.perf_counter()

    def result() -> DataTree:
        seconds = time.perf_counter() - began
        if memory is not None:
            return convert(memory, seconds=seconds)
        with suppress(OSError):  # a full disk can be read
            store.add_seconds(seconds)
        return store.to_datatree()

    stops: list[Stopped] = []
    try:
        with closing(engine):
            # The bar has a thread, and no process should be forked beside one.
            first = [event for event in [next(engine, None)] if event is not None]
            with progress:
                collect(itertools.chain(first, engine), memory, progress, callback, run, stops)
    except KeyboardInterrupt:
        _log.warning("Interrupted: the draws made so far are returned.")
    except Exception as error:
        salvage(error, result)
        raise
    try:
        return result()
    except SamplingError as error:
        if not stops:
            raise
        raise SamplingError(f"{error} {stops[0].message}") from None
