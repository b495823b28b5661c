"""`diagnose`: measure whether draws can be trusted, and give a verdict."""

import json
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from pymc.model import Model
from xarray import Dataset, DataTree

from pymc_sgmcmc.adaptation.kinds_of_model import kind_of
from pymc_sgmcmc.adaptation.local_gradients import LocalGradients
from pymc_sgmcmc.adaptation.metric_and_batch_size import (
    BATCH_OF_MANY,
    LARGEST_DENSE,
    automatic_batch_size,
)
from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.diagnosis.as_sampled import as_sampled, row_gradients
from pymc_sgmcmc.diagnosis.coordinates import Coordinates, coordinates_of_draws, stored_coordinates
from pymc_sgmcmc.diagnosis.diagnosis_table import Diagnosis
from pymc_sgmcmc.diagnosis.gradients_at_draws import (
    EXACT_DRAWS,
    MOST_DRAWS,
    AtDraws,
    RowsAtDraws,
    WholeAtDraws,
)
from pymc_sgmcmc.diagnosis.measure import (
    measure,
    measure_chains,
    measure_exact,
    measure_local,
    thermostat_drift,
)
from pymc_sgmcmc.diagnosis.measure_run import MEASURES
from pymc_sgmcmc.diagnosis.verdict import BURN_IN, times_as_many_draws
from pymc_sgmcmc.exact.certificate_in_result import can_be_certified, with_certificate
from pymc_sgmcmc.gradients.flat_model import FlatModel
from pymc_sgmcmc.gradients.model_gradient import shapes_of
from pymc_sgmcmc.gradients.rows_in_batches import FEW_ROWS, find_row_axes, n_rows_of
from pymc_sgmcmc.gradients.value_draws import value_draws
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients
from pymc_sgmcmc.integration.integrated_model import IntegratedModel
from pymc_sgmcmc.number_checks import true_or_false
from pymc_sgmcmc.run.adapted_run import describe_adaptation
from pymc_sgmcmc.run.points_to_diagnose import PointsToDiagnose
from pymc_sgmcmc.samplers.msgnht import MSGNHT_S

_log = logging.getLogger("pymc.sgmcmc")


MOST_KEPT = 25_000_000
"""Largest number of elements of the draws that are kept only for the verdict, which bounds their
memory; `EXACT_DRAWS` draws are kept in any case."""
LARGEST_POINT = 1_500_000
"""Largest number of elements of a draw for which draws are kept only for the verdict, because
memory has to hold `EXACT_DRAWS` of them."""


def diagnose(
    idata: DataTree,
    model: Model | None = None,
    full_data: bool = False,
    data: Any = None,
    step: Any = None,
) -> Diagnosis:
    """Judge draws as "ok", "failed" or "unclear", and say what to do.

    It answers three questions that the sampler itself does not: whether the gradients at the draws
    satisfy the identities that hold for draws from the posterior (in coordinates where standard
    deviations are 1, a mean of 0, and a mean product with the draws of -1), whether the chains have
    converged, and whether the noise is what the warm-up measured.

    Parameters
    ----------
    idata : DataTree
        From `sample` or `pm.sample`. Its group ``diagnosis`` is set to the result.
    model : pymc.Model, optional
        The sampled model, with its present data, whose gradients are then computed again; this
        compiles functions. Default: what `sample` has stored is judged again, with the effective
        sample size and R-hat of the present draws; if nothing is stored, the model on the context
        stack.
    full_data : bool, default False
        Compute exact gradients at 100 draws, instead of gradients of random rows at 2000.
    data : StreamedData or what it takes, optional
        The rows, if the model has placeholders for them. They are read once, or once for each exact
        gradient.
    step : step, optional
        The adapted step with which `pm.sample` has made the draws. Nothing is compiled again, and
        ``idata`` gets the attributes that it has from `sample`: ``data_passes``,
        ``data_passes_warmup`` and ``adaptation``.

    Returns
    -------
    Diagnosis
        An `xarray.Dataset` that prints as a short table, has a method ``.plot()``, and has the
        attributes ``verdict`` and ``remedy``.

    Raises
    ------
    ValueError
        If ``idata`` has no posterior, or variables were not recorded; if the model has discrete
        variables, no observed ones, or a different number of rows than the warm-up saw; if
        ``full_data`` or ``data`` is given without a model; if ``step`` is not adapted, or given
        with a model.

    Notes
    -----
    The verdict is "failed" if a deviation is larger than tolerated (0.1 of a standard deviation,
    0.1 of the virial) and larger than chance explains (with probability 0.001 over all directions
    together), if R-hat is above 1.05 and above what chance explains, if a thermostat still drifted
    or settled at half or twice the friction that was predicted, if the kinetic temperature at fixed
    friction is off, if chains move together, if integrals over effects of groups are off, if draws
    are not finite, or if the anchor's gradient is not that of the data. For effects of groups,
    which are averaged over thousands of groups, less is tolerated. It is "unclear" if
    a standard error is above 0.15 (unless draws are exact), if the effective sample size is below
    100, or if R-hat is above 1.05 where chance may make it larger than 1.1. No check can see a mode
    that no chain has visited, and none here sees the shape of tails.

    References
    ----------
    Srinivasan et al. (2024), The polynomial Stein discrepancy for assessing moment convergence,
    arXiv 2412.05135.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm, xarray as xr
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.linspace(-1, 1, 100))
    >>> exact = np.random.default_rng(1).normal(0, 0.1, size=(4, 500))
    >>> draws = xr.Dataset({"mu": (("chain", "draw"), exact)})
    >>> idata = xr.DataTree.from_dict({"/posterior": draws})
    >>> sgm.diagnose(idata, model).verdict
    'ok'
    >>> idata["posterior"] = xr.DataTree(1.5 * draws)
    >>> result = sgm.diagnose(idata, model)
    >>> result.verdict, round(float(result["virial"][0]), 1)
    ('failed', 2.3)
    """
    full_data = true_or_false("full_data", full_data)
    if not isinstance(idata, DataTree) or "posterior" not in idata.children:
        kind = type(idata).__name__
        raise ValueError(
            f"idata is of type {kind}, without a group posterior: pass the DataTree that "
            "sgm.sample or pm.sample has returned."
        )
    posterior = idata["posterior"].to_dataset()
    if step is not None:
        _check_step(step, model, full_data, data)
        tune = idata["posterior"].attrs.get("tuning_steps", 0)
        describe_adaptation(idata, step, tune, with_arrays=False)
        return _stored(idata, _judged(_measured_of_run(idata, step, None), step))
    stored = idata["diagnosis"].to_dataset() if "diagnosis" in idata.children else Dataset()
    if model is None and (full_data or data is not None or "diagnosis" not in idata.children):
        model = Model.get_context(error_if_none=False)
    if model is None:
        if full_data or data is not None:
            given = "data=" if data is not None else "full_data=True"
            raise ValueError(f"{given} needs model=: gradients are computed again.")
        names = stored.attrs.get("variables", list(posterior.data_vars))
        measured = stored.assign(measure_chains(idata, posterior, np.atleast_1d(names).tolist()))
    else:
        model = as_sampled(model, posterior, data)
        if not model.observed_RVs and not model.potentials:
            raise ValueError(
                "The model has no observed variable, so its draws would be judged by the prior. "
                "For a step with latents=, call diagnose(idata) without model=, which shows the "
                "verdict that sample has made."
            )
        if model.discrete_value_vars:
            names = [v.name for v in model.discrete_value_vars]
            raise ValueError(
                f"The model has discrete variables ({', '.join(names)}), along which there is no "
                "gradient: diagnose the draws without model=, outside of its context."
            )
        size = sum(int(np.prod(s)) for s in shapes_of(model, model.continuous_value_vars))
        if data is None:
            _check_rows(posterior, model)
        if size > LARGEST_DENSE:
            local = _local_gradients(model, size, data)
            measured = measure_local(idata, model, local, full_data)
        else:
            gradients, at_draws = evaluator_of(model, data)
            draws = value_draws(model, gradients.source.vars, posterior)
            at = stored_coordinates(idata, gradients.names) or coordinates_of_draws(draws)
            measured = measure(idata, gradients, draws, at, full_data, at_draws)
            if at.anchor is None and "anchor_error" in stored:
                measured["anchor_error"] = stored["anchor_error"]
    if "exact" in posterior.attrs:
        measured = measured.assign_attrs(exact_draws=1)
    return _stored(idata, Diagnosis.of(measured))


def _check_step(step: Any, model: Model | None, full_data: bool, data: Any) -> None:
    if getattr(step, "adapted", None) is None:
        raise ValueError(
            f"step={step!r} is not adapted, so there is no warm-up to report: leave step= out and "
            "pass model=."
        )
    if model is not None or full_data or data is not None:
        raise ValueError("step= brings its model and data: leave model=, full_data= and data= out.")


def _judged(measured: Dataset, step: Any) -> Diagnosis:
    """Judge what was measured of a run with an adapted step."""
    return Diagnosis.of(measured.assign_attrs(data_changed=1) if step.data_changed else measured)


def _stored(idata: DataTree, result: Diagnosis) -> Diagnosis:
    """Add a diagnosis to the draws, and return it."""
    idata["diagnosis"] = DataTree(Dataset(result.data_vars, result.coords, result.attrs))
    return result


def points_to_diagnose(
    step: Any, recorded: Sequence[str], n_chains: int
) -> PointsToDiagnose | None:
    """Return an object that keeps draws for the verdict of a run, or None.

    It is None if the recorded draws suffice, if the verdict needs no gradients, or if the draws
    would take too much memory.
    """
    adapted = getattr(step, "adapted", None)
    if adapted is None or adapted.predictions_only:
        return None
    size = step.kernel.n_elements
    if {rv.name for rv in step.model.free_RVs} <= set(recorded) or size > LARGEST_POINT:
        return None
    most = int(np.clip(MOST_KEPT // size, EXACT_DRAWS, MOST_DRAWS))
    return PointsToDiagnose(most, n_chains)


class VerdictSoFar:
    """The verdict that a run with an adapted step would get so far.

    ``points`` has draws of all variables, if some were not recorded.
    """

    def __init__(self, step: Any, points: PointsToDiagnose | None):
        self.step, self.points = step, points
        self._measured: dict[tuple[int, int], Dataset] = {}

    def times_as_many_draws(self, idata: DataTree) -> float:
        """Return the factor by which the verdict needs more draws, 1 if it needs no more."""
        try:
            measured = _measured_of_run(idata, self.step, self.points)
        except Exception:  # the end of the run logs it
            return 1.0
        self._measured = {_sizes(idata): measured}
        return times_as_many_draws(measured)

    def measured(self, idata: DataTree) -> Dataset | None:
        """Return the measurements of this result, unless it has draws newer than these."""
        return self._measured.get(_sizes(idata))


def _sizes(idata: DataTree) -> tuple[int, int]:
    sizes = idata["posterior"].sizes
    return sizes["chain"], sizes["draw"]


def diagnose_run(
    idata: DataTree,
    step: Any,
    points: PointsToDiagnose | None = None,
    measured: Dataset | None = None,
    is_start: bool = False,
) -> None:
    """Add the diagnosis of a run with an adapted step to its result, and log the verdict or error.

    ``is_start`` means that the draws are only starting points of exact chains.
    """
    try:
        if measured is None:
            measured = _measured_of_run(idata, step, points)
        measured = _certified(idata, step, points, measured)
        result = _stored(idata, _judged(measured, step))
    except Exception as error:
        _log.warning(f"The draws could not be diagnosed: {type(error).__name__}: {error}")
        return
    if is_start:
        _log.info(f"Verdict on the minibatch draws: {result.attrs['verdict']}.")
        return
    _log_verdict(result)


def diagnose_exact(idata: DataTree, step: Any, draws: np.ndarray, gradients: np.ndarray) -> None:
    """Add the diagnosis of exact draws to a result, and log the verdict.

    ``draws`` and the ``gradients`` at them, with respect to z, have the shape (chains, draws, d).
    """
    at = Coordinates(step.kernel.metric.matrix, step.adapted.metric)
    measured = measure_exact(idata, step.gradients, draws, gradients, at)
    _log_verdict(_stored(idata, Diagnosis.of(measured)))


def _log_verdict(result: Diagnosis) -> None:
    level = logging.INFO if result.attrs["verdict"] == "ok" else logging.WARNING
    _log.log(level, f"Verdict: {result.attrs['verdict']}. {result.attrs['remedy']}")


def _certified(
    idata: DataTree,
    step: Any,
    points: PointsToDiagnose | None,
    measured: Dataset,
) -> Dataset:
    """Add a certificate, if the posterior's directions were measured."""
    gradients = step.gradients
    if not can_be_certified(gradients):
        return measured
    draws = None if points is None else points.draws(gradients.source.vars)
    if draws is None:
        draws = value_draws(step.model, step.vars, idata["posterior"].to_dataset())
    matrix = step.kernel.metric.matrix
    return with_certificate(idata, gradients, draws, matrix, measured, asked=False)


def warn_of_burn_in(idata: DataTree) -> None:
    """Warn of thermostats that were still drifting, in a run with manually set step sizes.

    R-hat does not show this, because all chains are equally too hot; without a thermostat, chains
    that have not forgotten their starts differ.
    """
    measured = Dataset(thermostat_drift(idata["sample_stats"].to_dataset()))
    for row in BURN_IN(measured):
        if row.passed == "no":
            _log.warning(row.remedy)


def _measured_of_run(idata: DataTree, step: Any, points: PointsToDiagnose | None) -> Dataset:
    kind, gradients = kind_of(step.kernel), step.gradients
    draws = None if points is None else points.draws(step.source.vars)
    return MEASURES[kind.judged_as](idata, step, gradients, draws)


def evaluator_of(model: Model, data: Any) -> tuple[FlatModel, type[AtDraws]]:
    """Return gradients of single rows, or of all data if rows are few or inseparable."""
    try:
        if data is not None or isinstance(model, IntegratedModel) or n_rows_of(model) > FEW_ROWS:
            return row_gradients(model, data), RowsAtDraws
    except ValueError as error:
        _log.info(f"Gradients of all data are used: {error}")
    return WholeGradients(model, model.continuous_value_vars), WholeAtDraws


def _local_gradients(model: Model, size: int, data: Any) -> LocalGradients:
    """Return gradients of a model with more parameters than a matrix can have.

    Raises an error if none of its variables is local.
    """
    if data is None:
        batch_size = automatic_batch_size(model, None, size, many=True, needed=False)
    else:
        data = StreamedData.of(data)
        batch_size = min(BATCH_OF_MANY, data.window)
    step = MSGNHT_S(model=model, step_size=1.0, batch_size=batch_size, data=data)
    if not step.source.local_variables:
        raise ValueError(
            f"The model has {size} parameters, but means and standard deviations can be judged for "
            f"at most {LARGEST_DENSE} that move together: judge predictions on held-out data."
        )
    with quick_graphs():
        return LocalGradients(step.kernel, model.initial_point())


def _check_rows(posterior: Dataset, model: Model) -> None:
    """Raise an error if the model's number of rows differs from what the warm-up saw."""
    then = json.loads(posterior.attrs.get("adaptation", "{}")).get("n_rows")
    if then is None:
        return
    lengths = [axis.length for axis in find_row_axes(model)]
    if then not in (sum(lengths), *lengths):  # with minibatch_dim=, only the rows of one dim
        raise ValueError(
            f"The draws are of {then} rows, but the model has {sum(lengths)} now: restore the data "
            "(pm.set_data), or pass data= if they were streamed."
        )
