"""One run of chains, from arguments and starting points to the result."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytensor
from pymc.initial_point import PointType
from pymc.model import Model
from pymc.step_methods.compound import flatten_steps
from pymc.util import RandomGeneratorState
from xarray import DataTree

from pymc_sgmcmc.adaptation.warm_up_progress import TimeLimit
from pymc_sgmcmc.diagnosis.diagnose import (
    VerdictSoFar,
    diagnose_exact,
    diagnose_run,
    points_to_diagnose,
    warn_of_burn_in,
)
from pymc_sgmcmc.exact.exact_draws import ExactPhase
from pymc_sgmcmc.predictions.predictions import Predictions
from pymc_sgmcmc.run.adapted_run import FreeLength, describe_adaptation
from pymc_sgmcmc.run.advance import advanced, refuse_step_in_use
from pymc_sgmcmc.run.engines import chain_method_of, engine_of
from pymc_sgmcmc.run.log_densities import with_log_densities, without_log_densities
from pymc_sgmcmc.run.observers import Observers
from pymc_sgmcmc.run.points_to_diagnose import PointsToDiagnose
from pymc_sgmcmc.run.progress import Progress
from pymc_sgmcmc.run.recorder import recorder_of, without_nothing
from pymc_sgmcmc.run.result import affordable_data, check_convergence, salvage, summary, to_datatree
from pymc_sgmcmc.run.result_form import check_form, data_names
from pymc_sgmcmc.run.run_events import Run
from pymc_sgmcmc.run.sample_arguments import Arguments
from pymc_sgmcmc.step import adaptation_of, minibatch_steps
from pymc_sgmcmc.storage.store import ZarrStore

_log = logging.getLogger("pymc.sgmcmc")


def run_chains(
    given: Arguments,
    starts: Sequence[PointType],
    rngs: Sequence[RandomGeneratorState],
    store: ZarrStore | None = None,
    seed: Any = None,
    length: FreeLength | None = None,
    limit: TimeLimit | None = None,
    exact: ExactPhase | None = None,
) -> DataTree:
    """Run all chains from their starting points, with their own generators.

    ``given`` is checked, with one step for all variables. ``length`` is the permitted length of a
    run that may end early, in place of ``draws``, and ``exact`` makes the draws exact.
    """
    model, step, chains, tune = given.model, given.step, given.chains, given.tune
    refuse_step_in_use(step)
    idata_kwargs, predictions = given.idata_kwargs, given.predictions
    transformed = idata_kwargs.get("include_transformed", False)
    recorder = recorder_of(model, step, starts[0], given.var_names, transformed)
    cores = min(given.cores, chains)
    if store is not None or predictions:
        length = None
    for averages in predictions:
        _prepare(averages, step, starts[0])
    method = chain_method_of(given.chain_method, step, starts, cores, even=length is not None)
    if method in ("parallel", "dask"):
        length = None
    points = None
    if given.compute_convergence_checks or exact is not None:
        points = points_to_diagnose(step, recorder.trace.varnames, chains)
    run = Run(
        model=model,
        step=step,
        tune=tune,
        draws=given.draws if length is None else length.most,
        starts=list(starts),
        rngs=list(rngs),
        recorder=recorder,
        keep_warmup=not given.discard_tuned_samples,
        each_draw=given.callback is not None,
        seed=seed,
        store=store,
        together=method == "vectorized",
        fresh=step.sampling_state,
        observers=Observers(predictions, points),
    )
    include_data = given.include_data
    if include_data is None:
        include_data = affordable_data(model)
    check_form(model, recorder.trace.varnames + data_names(model, include_data), idata_kwargs)
    engine = engine_of(run, method, cores, given.mp_ctx, given.blas_cores, given.client)
    settings = {
        "steps": [repr(s) for s in flatten_steps(step)],
        "chain_method": method,
        "floatX": pytensor.config.floatX,
    }
    adapted = adaptation_of(step)
    if adapted is not None:
        settings["adaptation"] = adapted.summary()
    convert = partial(
        to_datatree,
        model=model,
        tune=tune,
        discard_warmup=given.discard_tuned_samples,
        include_data=include_data,
        keep_warning_stat=given.keep_warning_stat and store is None,
        idata_kwargs=without_log_densities(idata_kwargs),
        settings=settings,
    )
    progress = Progress(step, chains, given.draws, tune, given.progressbar, given.progressbar_theme)
    verdict = VerdictSoFar(step, points)
    needs = verdict.times_as_many_draws if given.compute_convergence_checks else None
    try:
        tree = advanced(run, engine, convert, progress, given.callback, length, needs, limit)
    finally:
        if store is not None:
            store.release()
    try:  # whatever happens now, the draws are not lost
        tree = without_nothing(tree)
        for averages in predictions:
            if any(chain.n for chain in averages.chains.values()):
                tree[averages.name] = DataTree(averages.to_dataset())
        if adapted is not None:
            describe_adaptation(tree, step, tune, given.store_adaptation)
        _log.info(summary(run, tree))
        if given.compute_convergence_checks:
            _check(tree, model, step, points, verdict, is_start=exact is not None)
        if exact is not None:
            draws_of_all = None if points is None else points.draws(step.vars)
            found = exact(tree, step, draws_of_all, run.recorder, limit)
            if found is not None:
                tree, *exact_draws = found
                if given.compute_convergence_checks:
                    diagnose_exact(tree, step, *exact_draws)
        tree = with_log_densities(tree, model, idata_kwargs)
    except KeyboardInterrupt:
        _log.warning("Interrupted: the draws are returned without all that is computed from them.")
    except BaseException as error:
        salvage(error, lambda: tree)
        raise
    return tree


def _prepare(predictions: Predictions, step: Any, point: PointType) -> None:
    """Begin a run's predictions: compile them for the step, and check them at a point."""
    ours = minibatch_steps(step)
    if predictions.predictor.compile_kwargs is None and ours:
        predictions.predictor.compile_kwargs = ours[0].kernel.compile_kwargs
    predictions.begin()
    predictions.check(point)


def _check(
    tree: DataTree,
    model: Model,
    step: Any,
    points: PointsToDiagnose | None,
    verdict: VerdictSoFar,
    is_start: bool,
) -> None:
    """Judge the draws; an error in the check is only logged, because the draws are worth more."""
    try:
        if adaptation_of(step) is None:
            check_convergence(tree, model)
            warn_of_burn_in(tree)
        else:  # the verdict includes R-hat and effective sample sizes
            diagnose_run(tree, step, points, verdict.measured(tree), is_start)
    except KeyboardInterrupt:
        _log.warning("Interrupted: convergence is not checked.")
    except Exception as error:
        _log.warning(f"Convergence is not checked: {type(error).__name__}: {error}")
