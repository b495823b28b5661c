"""`sample`: PyMC's `sample` for minibatch steps, with storage, resuming and other engines."""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytensor
from pymc.exceptions import SamplingError
from pymc.initial_point import PointType, StartDict
from pymc.model import Model, modelcontext
from pymc.progress_bar import ProgressBarOptions
from pymc.sampling.mcmc import (
    _quiet_logging,
    assign_step_methods,
    get_default_tune_steps,
    instantiate_steppers,
)
from pymc.sampling.parallel import Draw
from pymc.stats.convergence import log_warning_stats
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.arraystep import PopulationArrayStepShared
from pymc.step_methods.compound import CompoundStep, flatten_steps
from pymc.util import (
    RandomGeneratorState,
    get_random_generator,
    get_state_from_generator,
    random_generator_from_state,
)
from rich.theme import Theme
from xarray import DataTree

from pymc_sgmcmc.run.chains import Block, Event, Resumed, Run, Stopped
from pymc_sgmcmc.run.engines import engine_of, n_cores
from pymc_sgmcmc.run.plain import from_plain, to_plain
from pymc_sgmcmc.run.progress import Progress
from pymc_sgmcmc.run.recorded import choose_recorded
from pymc_sgmcmc.run.result import (
    MOST_DATA_BYTES,
    Memory,
    check_convergence,
    data_bytes,
    to_datatree,
)
from pymc_sgmcmc.run.starts import starts_of
from pymc_sgmcmc.step import SGMCMCStep
from pymc_sgmcmc.storage.store import ZarrStore

_log = logging.getLogger("pymc.sgmcmc")

CHAINS = 4
"""Chains by default: enough for R-hat, and the same on every machine."""


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
    model = _without_latents(modelcontext(model), step)
    draws, tune, chains = _checked_numbers(draws, tune, chains)
    _check_names(model, var_names, "var_names")
    for one in [initvals] if isinstance(initvals, dict) else initvals or []:
        _check_names(model, one, "initvals")
    if not isinstance(initvals, dict | None) and len(initvals) != chains:
        raise ValueError(
            f"initvals has {len(initvals)} entries, one a chain, and there are {chains} chains."
        )
    if init not in ("jitter", "point"):
        raise ValueError(f"init={init!r} must be 'jitter' or 'point'.")
    if random_seed is not None and np.isscalar(random_seed) and random_seed == -1:
        raise ValueError("random_seed=-1 is not allowed. Pass None for a random one.")
    store = _as_store(trace, resume)
    if store is not None:
        store.check(resume)
        if resume and random_seed is None and store.exists:
            random_seed = store.record["seed"]
    with _quiet_logging(quiet):
        seed, generator = _seeded(random_seed)
        generators = generator.spawn(chains)
        starts = starts_of(model, initvals, init, generators)
        step = _whole_step(model, step, starts[0], compile_kwargs)
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
    store = _as_store(trace, resume)
    cores = min(4, n_cores()) if cores is None else cores
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
        n_bytes = data_bytes(model)
        include_data = n_bytes <= MOST_DATA_BYTES
        if not include_data:
            _log.info(
                f"The data, {n_bytes / 1e6:.0f} MB, is left out of the result: include_data=True "
                "copies it in."
            )
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
    memory = None
    if store is None:
        memory = Memory(run)
    else:
        example = convert(Memory.example(run), seconds=0.0)
        for message in store.begin(run, example):
            _log.warning(message)
        if min(store.n_draws) >= draws:
            engine.close()
    began = time.perf_counter()

    def result() -> DataTree:
        seconds = time.perf_counter() - began
        if memory is not None:
            return convert(memory, seconds=seconds)
        assert store is not None
        with suppress(OSError):  # a full disk can be read
            store.add_seconds(seconds)
        return store.to_datatree()

    stops: list[Stopped] = []
    progress = Progress(step, chains, draws, tune, progressbar, progressbar_theme)
    try:
        with closing(engine):
            # The bar has a thread, and no process should be forked beside one.
            first = [event for event in [next(engine, None)] if event is not None]
            with progress:
                _collect(itertools.chain(first, engine), memory, progress, callback, run, stops)
    except KeyboardInterrupt:
        _log.warning("Interrupted: the draws made so far are returned.")
    except Exception as error:
        _salvage(error, result)
        raise
    try:
        tree = result()
    except SamplingError as error:
        if not stops:
            raise
        raise SamplingError(f"{error} {stops[0].message}") from None
    _log.info(_summary(run, tree))
    if compute_convergence_checks:
        check_convergence(tree, model)
    return tree


def _collect(
    events: Iterable[Event],
    memory: Memory | None,
    progress: Progress,
    callback: Callable | None,
    run: Run,
    stops: list[Stopped],
) -> None:
    """Keep what the engine makes, show it, and hand it to the callback."""
    for event in events:
        if isinstance(event, Stopped):
            stops.append(event)
            _log.error(event.message)
            progress.failed(event.chain)
            continue
        if isinstance(event, Resumed):
            progress.resumed(event)
            continue
        if memory is not None:
            memory.write(event)
        progress.block(event)
        _log_warnings(event)
        if callback is not None:
            for number, draw in _draws(event, run):
                trace = run.store if memory is None else memory.traces[number]
                callback(trace=trace, draw=draw)


def _draws(block: Block, run: Run) -> Iterator[tuple[int, Draw]]:
    """A block's draws as PyMC's callbacks know them."""
    assert block.points is not None
    for k, chain in enumerate(block.chains):
        for i, point in enumerate(block.points[k]):
            number = block.first + i
            stats = [{name: values[k, i] for name, values in s.items()} for s in block.stats]
            last = number + 1 == run.total
            yield chain, Draw(chain, last, number, number < run.tune, stats, point)


def _log_warnings(block: Block) -> None:
    for stats in block.stats:
        for values in stats.get("warning", np.empty(0, dtype=object)).flat:
            if values:
                log_warning_stats([{"warning": values}])


def _salvage(error: Exception, result: Callable[[], DataTree]) -> None:
    """Attach the draws made so far to an exception."""
    try:
        error.idata = result()  # type: ignore[attr-defined]
    except Exception:  # there are none, or what broke the run breaks this too: the first counts
        return
    error.add_note("The draws made until then are in this exception's attribute `idata`.")


def _summary(run: Run, tree: DataTree) -> str:
    sizes = tree["posterior"].sizes
    left_out = sorted(set(range(run.n_chains)) - {int(c) for c in tree["posterior"].chain})
    text = (
        f"Sampling {sizes['chain']} chains for {run.tune:_d} tune and {sizes['draw']:_d} draw "
        f"iterations took {tree['posterior'].attrs['sampling_time']:.0f} seconds."
    )
    if left_out:
        text += f" Chains left out, for they are too short: {left_out}."
    return text


# ---- before the run ------------------------------------------------------------------------


def _checked_numbers(draws: Any, tune: Any, chains: Any) -> tuple[int, int | None, int]:
    numbers = {"draws": (draws, 1), "tune": (tune, 0), "chains": (chains, 1)}
    for name, (number, least) in numbers.items():
        if number is None and name != "draws":
            continue
        if not isinstance(number, int | np.integer) or number < least:
            raise ValueError(f"{name}={number!r} must be a whole number, at least {least}.")
    return int(draws), tune if tune is None else int(tune), CHAINS if chains is None else chains


def _as_store(trace: Any, resume: bool) -> ZarrStore | None:
    if trace is None:
        if resume:
            raise ValueError("resume=True needs the store of the earlier run: trace=<path>.")
        return None
    if isinstance(trace, str | Path):
        return ZarrStore(trace)
    if not isinstance(trace, ZarrStore):
        raise ValueError(
            f"trace={trace!r} must be a path or a ZarrStore. Draws are kept in memory without one; "
            "they are not lost in an error."
        )
    return trace


def _seeded(random_seed: Any) -> tuple[Any, np.random.Generator]:
    """Return a seed as plain values, and its generator."""
    if random_seed is None:
        random_seed = np.random.SeedSequence().entropy
    if isinstance(random_seed, dict):  # a generator's, from a store
        state = from_plain(random_seed, RandomGeneratorState({}, {}))
        return random_seed, random_generator_from_state(state)
    if isinstance(random_seed, np.random.Generator | np.random.BitGenerator):
        generator = get_random_generator(random_seed)
        return to_plain(get_state_from_generator(generator), "seed"), generator
    plain = random_seed if isinstance(random_seed, int) else np.asarray(random_seed).tolist()
    return plain, get_random_generator(random_seed)


def _check_names(model: Model, names: Any, argument: str) -> None:
    """Refuse names that the model does not have."""
    if names is None:
        return
    if isinstance(names, str):
        raise ValueError(f"{argument}={names!r} must be a list of names: [{names!r}].")
    variables = [*model.unobserved_RVs, *model.value_vars]
    known = {v.name for v in variables}
    for name in names:
        name = getattr(name, "name", name)
        if name not in known:
            raise ValueError(
                f"{argument}: the model has no variable '{name}'. It has: "
                f"{', '.join(sorted(known))}."
            )


def _without_latents(model: Model, step: Any) -> Model:
    """Return the model that is sampled: that of a step that integrates out latent variables."""
    steps = step if isinstance(step, list | tuple) else [step]
    for one in steps:
        if isinstance(one, SGMCMCStep) and one.latents is not None:
            rest = {rv.name for rv in one.model.free_RVs}
            if rest < {rv.name for rv in model.free_RVs}:
                return one.model
    return model


def _whole_step(model: Model, step: Any, start: PointType, compile_kwargs: Any) -> Any:
    """Return one step for all variables; PyMC chooses steps for those that have none."""
    if isinstance(step, type):
        raise ValueError(
            f"step={step.__name__} is a class. Make a step of it: step={step.__name__}(...)"
        )
    provided, selected = assign_step_methods(model, step, methods=STEP_METHODS)
    step = instantiate_steppers(
        model,
        steps=provided,
        selected_steps=selected,
        step_kwargs={},
        initial_point=start,
        compile_kwargs=compile_kwargs,
    )
    if isinstance(step, list):
        step = CompoundStep(step)
    for variables in selected.values():
        names = ", ".join(f"'{v.name}'" for v in variables)
        _log.info(f"PyMC chose the steps of {names}, which see all data at each draw.")
    for one in flatten_steps(step):
        if isinstance(one, PopulationArrayStepShared):
            raise ValueError(
                f"{type(one).__name__} needs all chains at once. Use pm.sample, or another step."
            )
        if isinstance(one, SGMCMCStep) and one.model is not model:
            raise ValueError(f"{one!r} was made for another model.")
    return step
