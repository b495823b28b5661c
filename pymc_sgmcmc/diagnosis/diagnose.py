"""`diagnose`: measure what shows whether draws can be trusted, and give a verdict."""

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from pymc.model import Model
from xarray import Dataset, DataTree

from pymc_sgmcmc.adaptation.local_gradients import LocalGradients
from pymc_sgmcmc.adaptation.plan import (
    BATCH_OF_MANY,
    FEW_ROWS,
    LARGEST_LOW_RANK,
    automatic_batch_size,
)
from pymc_sgmcmc.argument_checks import true_or_false
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.diagnosis.diagnosis import Diagnosis
from pymc_sgmcmc.diagnosis.gradients_at_draws import (
    GradientsAtDraws,
    gradients_at_draws,
    with_latents_at_draws,
)
from pymc_sgmcmc.diagnosis.local_identities import local_identities
from pymc_sgmcmc.diagnosis.points_to_diagnose import PointsToDiagnose
from pymc_sgmcmc.diagnosis.stein import (
    BLOCKS,
    SteinIdentities,
    block_estimate,
    blocks_for,
    chain_correlation,
    stein_identities,
)
from pymc_sgmcmc.diagnosis.value_draws import value_draws
from pymc_sgmcmc.gradients.all_rows import with_all_rows
from pymc_sgmcmc.gradients.control_variate import ControlVariate
from pymc_sgmcmc.gradients.local_source import LocalSource
from pymc_sgmcmc.gradients.pm_minibatch import written_in_minibatches
from pymc_sgmcmc.gradients.row_axis import find_row_axis
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.streamed_rows import StreamedRowGradients
from pymc_sgmcmc.gradients.streamed_whole import StreamedWholeGradients
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients
from pymc_sgmcmc.latents.gradient import LatentGradientSource
from pymc_sgmcmc.latents.latent_gradients import LatentGradients
from pymc_sgmcmc.run.enough_draws import worst
from pymc_sgmcmc.samplers.msgnht import MSGNHT_S

_log = logging.getLogger("pymc.sgmcmc")

MOST_DRAWS = 2000
"""Draws of all chains at which gradients are computed, evenly spaced,"""
EXACT_DRAWS = 100
"""... and if each takes all rows."""
WHOLE_ROWS = 20_000_000
"""Rows of all such draws together, where the rows are few and the draws can be more."""
MOST_NUMBERS = 100_000_000
"""Elements of all draws together, where there are local variables."""
LARGEST_POINT = 2_500_000
"""Elements of a draw up to which `EXACT_DRAWS` are kept for the verdict alone."""
ALL_ROWS = 100_000_000
"""Rows of all such draws together, where all rows are used at each,"""
FEWEST_DRAWS = 200
"""... but at so many draws at least,"""
LARGE = 4 * ALL_ROWS
"""... and random rows where that would be more."""
NOISE = 0.075
"""Standard error of a mean gradient that random rows may make where each has a gradient of its own;
if it is larger, all rows are used,"""
MOST_EXACT = 3_000_000_000
"""... unless these are more, times (parameters + `ROW_COST`), at all draws together: some ten
seconds."""
ROW_COST = 50
"""Of a row, in parameters of its gradient."""
LARGEST_COVARIANCE = 500
"""Elements of theta up to which a covariance of draws serves as a metric, with 10 draws each."""


class Coordinates(NamedTuple):
    """theta = L z, and what the sampler knew of the gradient."""

    matrix: np.ndarray
    """L, shape (d, d)."""
    metric: str
    """Where it is from, for the report."""
    anchor: np.ndarray | None = None
    """Of the control variate, shape (d,),"""
    anchor_gradient: np.ndarray | None = None
    """... and the gradient of the log likelihood that the sampler took for that of all rows."""
    row_copies: np.ndarray | None = None


def diagnose(
    idata: DataTree, model: Model | None = None, full_data: bool = False, data: Any = None
) -> Diagnosis:
    """Judge draws: "ok", "failed" or "unclear", and say what to do.

    Three questions, none of which the sampler answers for itself: do the gradients at the draws
    satisfy the identities that hold for the posterior's own draws (in coordinates where standard
    deviations are 1, a mean of 0, and a mean product with the draws of -1); have the chains come
    together; and is the noise what the warm-up measured.

    Parameters
    ----------
    idata : DataTree
        From `sample` or `pm.sample`. Its group ``diagnosis`` is set to the result.
    model : pymc.Model, optional
        The sampled model, with its present data, at which gradients are computed anew: this
        compiles functions. Default: what `sample` has stored is judged again, with the present
        draws' effective sample size and R-hat.
    full_data : bool, default False
        Compute exact gradients at 100 draws, instead of gradients of random rows at 2000.
    data : StreamedData or what it takes, optional
        The rows, if the model has placeholders for them: read once, or once for each exact
        gradient.

    Returns
    -------
    Diagnosis
        An `xarray.Dataset` that prints as a short table, with ``.plot()``, and with the attributes
        ``verdict`` and ``remedy``.

    Raises
    ------
    ValueError
        If ``idata`` has no posterior, variables were not recorded, the model has discrete
        variables, no observed ones or another number of rows than the warm-up saw, or ``full_data``
        or ``data`` is given without a model.

    Notes
    -----
    "failed": a deviation is larger than tolerated (0.1 of a standard deviation, 0.1 of the virial)
    and than chance explains, with probability 0.001 over all directions together; or R-hat is above
    1.05, or draws are not finite, or the anchor's gradient is not that of the data. "unclear": a
    standard error is above 0.15, or the effective sample size below 100. No check can see a mode
    that no chain has visited.

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
    stored = idata["diagnosis"].to_dataset() if "diagnosis" in idata.children else Dataset()
    if model is None:
        if full_data or data is not None:
            given = "data=" if data is not None else "full_data=True"
            raise ValueError(f"{given} needs model=: gradients are computed anew.")
        names = stored.attrs.get("variables", list(posterior.data_vars))
        measured = stored.assign(_of_chains(idata, posterior, np.atleast_1d(names).tolist()))
    else:
        if written_in_minibatches(model):
            model = with_all_rows(model).model
        if not model.observed_RVs and not model.potentials:
            raise ValueError(
                "The model has no observed variable, so its draws would be judged by the prior. Of "
                "a step with latents= call diagnose(idata) without model=: it shows the verdict "
                "that sample has made."
            )
        if model.discrete_value_vars:
            names = [v.name for v in model.discrete_value_vars]
            raise ValueError(
                f"The model has discrete variables ({', '.join(names)}), along which there is no "
                "gradient: diagnose the draws without model=."
            )
        size = sum(np.size(model.initial_point()[v.name]) for v in model.continuous_value_vars)
        if data is None:
            _check_rows(posterior, model)
        if size > LARGEST_LOW_RANK:
            local = _local_gradients(model, size, data)
            measured = _measured_of_local(idata, model, local, full_data)
        else:
            gradients = _gradients(model, data=data)
            draws = value_draws(model, gradients.source.vars, posterior)
            at = _stored_coordinates(idata, gradients.names) or _of_draws(draws)
            measured = _measured(idata, gradients, draws, at, full_data)
            if at.anchor is None and "anchor_error" in stored:
                measured["anchor_error"] = stored["anchor_error"]
    result = Diagnosis.of(measured)
    idata["diagnosis"] = DataTree(Dataset(result.data_vars, result.coords, result.attrs))
    return result


def points_to_diagnose(
    step: Any, recorded: Sequence[str], n_chains: int
) -> PointsToDiagnose | None:
    """Return what keeps draws for the verdict of a run; None if the recorded ones suffice.

    None also if there is no verdict of gradients, or if it would take too much memory.

    Parameters
    ----------
    step : SGMCMCStep
        With ``adapted``, if there will be a verdict.
    recorded : list of str
        Names of the recorded variables.
    n_chains : int
    """
    adapted = getattr(step, "adapted", None)
    if adapted is None or adapted.predictions_only:
        return None
    size = step.kernel.n_elements
    if {rv.name for rv in step.model.free_RVs} <= set(recorded) or size > LARGEST_POINT:
        return None
    return PointsToDiagnose(_most_draws(size), n_chains)


def _most_draws(size: int) -> int:
    """How many draws of so many elements are looked at."""
    return int(np.clip(MOST_NUMBERS // size, EXACT_DRAWS, MOST_DRAWS))


def diagnose_run(idata: DataTree, step: Any, points: PointsToDiagnose | None = None) -> None:
    """Add the diagnosis of a run with an adapted step to its result, and log the verdict.

    An error is logged; the draws are worth more than their diagnosis.

    Parameters
    ----------
    idata : DataTree
    step : SGMCMCStep
        With ``adapted`` and the ``gradients`` of its warm-up.
    points : PointsToDiagnose, optional
        Draws of all variables, if some were not recorded.
    """
    try:
        result = _diagnosis_of_run(idata, step, points)
    except Exception as error:
        _log.warning(f"The draws could not be diagnosed: {type(error).__name__}: {error}")
        return
    idata["diagnosis"] = DataTree(Dataset(result.data_vars, result.coords, result.attrs))
    level = logging.INFO if result.attrs["verdict"] == "ok" else logging.WARNING
    _log.log(level, f"Verdict: {result.attrs['verdict']}. {result.attrs['remedy']}")


def _diagnosis_of_run(idata: DataTree, step: Any, points: PointsToDiagnose | None) -> Diagnosis:
    gradients, kernel = step.gradients, step.kernel
    if step.adapted.predictions_only:
        found = {"parameters": kernel.n_elements}
        if "thermostat" in idata["sample_stats"]:
            found["thermostat"] = float(idata["sample_stats"]["thermostat"].mean())
            found["thermostat_predicted"] = float(step.adapted.friction.mean())
        return Diagnosis.of(Dataset(found, attrs={"predictions_only": 1}))
    if gradients is None and isinstance(kernel.source, LocalSource):
        gradients = LocalGradients(kernel, step.model.initial_point())
    elif gradients is None and isinstance(kernel.source, LatentGradientSource):
        gradients = LatentGradients(step.model, kernel.source, compile_kwargs=kernel.compile_kwargs)
    elif gradients is None:  # the step was unpickled
        streamed = kernel.source.streamed
        gradients = _gradients(step.model, step.vars, kernel.compile_kwargs, streamed)
    gradients.load_data()
    draws = None if points is None else points.draws(gradients.source.vars)
    if isinstance(gradients, LocalGradients):
        measured = _measured_of_local(
            idata, step.model, gradients, full_data=False, times=kernel.metric.times, draws=draws
        )
        batches = "rows" if kernel.whole_groups is None else "groups"
        return Diagnosis.of(measured.assign_attrs(batches=batches))
    if draws is None:
        draws = value_draws(step.model, step.vars, idata["posterior"].to_dataset())
    at = Coordinates(kernel.metric.times(np.eye(gradients.size)).T, step.adapted.metric)
    source = kernel.source
    if isinstance(source, ControlVariate):
        anchor, gradient = (
            gradients.joined([shared.get_value() for shared in arrays])
            for arrays in (source.anchor, source.anchor_gradient)
        )
        at = at._replace(
            anchor=anchor, anchor_gradient=gradient, row_copies=step.adapted.row_copies
        )
    return Diagnosis.of(_measured(idata, gradients, draws, at, full_data=False))


def _gradients(
    model: Model,
    vars: Sequence | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    data: Any = None,
) -> RowGradients | WholeGradients:
    """Gradients of single rows; of all data where these are few or cannot be cut."""
    vars = list(model.continuous_value_vars if vars is None else vars)
    if data is not None:
        streamed = StreamedData.of(data)
        return StreamedRowGradients(model, vars, data=streamed, compile_kwargs=compile_kwargs)
    try:
        if find_row_axis(model, None).length > FEW_ROWS:
            return RowGradients(model, vars, compile_kwargs=compile_kwargs)
    except ValueError as error:
        _log.info(f"Gradients of all data are used: {error}")
    return WholeGradients(model, vars, compile_kwargs=compile_kwargs)


def _whole(gradients: LocalGradients) -> WholeGradients | StreamedWholeGradients:
    kernel, data = gradients.kernel, gradients.source.streamed
    vars, options = list(gradients.source.vars), kernel.compile_kwargs
    if data is not None:
        return StreamedWholeGradients(kernel.model, vars, data=data, compile_kwargs=options)
    return WholeGradients(kernel.model, vars, compile_kwargs=options)


def _local_gradients(model: Model, size: int, data: Any) -> LocalGradients:
    """Gradients of a model with more parameters than a matrix can have.

    Raises
    ------
    ValueError
        If none of its variables is local.
    """
    if data is None:
        batch_size = automatic_batch_size(model, None, size, many=True)
    else:
        data = StreamedData.of(data)
        batch_size = min(BATCH_OF_MANY, data.window)
    step = MSGNHT_S(model=model, step_size=1.0, batch_size=batch_size, data=data)
    if not isinstance(step.source, LocalSource):
        raise ValueError(
            f"The model has {size} parameters, but means and standard deviations can be judged of "
            f"at most {LARGEST_LOW_RANK} that move together: judge predictions, on data that were "
            "held out."
        )
    return LocalGradients(step.kernel, model.initial_point())


def _check_rows(posterior: Dataset, model: Model) -> None:
    """Raise an error if the model has another number of rows than the warm-up saw."""
    then = json.loads(posterior.attrs.get("adaptation", "{}")).get("n_rows")
    if then is None:
        return
    now = find_row_axis(model, None).length
    if now != then:
        raise ValueError(
            f"The draws are of {then} rows, but the model has {now} now: set the data back "
            "(pm.set_data), or pass data= if they were streamed."
        )


def _stored_coordinates(idata: DataTree, names: Sequence[str]) -> Coordinates | None:
    """Return the metric and the anchor of the warm-up, if the result has them for this model."""
    if "adaptation" not in idata.children:
        return None
    group = idata["adaptation"].to_dataset()
    if group.sizes["element"] != len(names) or group["metric"].ndim == 1:
        return None
    matrix, name = group["metric"].values, "that of the warm-up"
    if not group["anchor_gradient"].values.any():  # no control variate
        return Coordinates(matrix, name)
    copies = None
    if "row_probability" in group:
        probability = group["row_probability"].values
        copies = np.rint(probability / probability.min()).astype(int)
    anchor, gradient = group["anchor"].values, group["anchor_gradient"].values
    return Coordinates(matrix, name, anchor, gradient, copies)


def _of_draws(draws: np.ndarray) -> Coordinates:
    """Return a root of the draws' own covariance, or their standard deviations if d is large.

    A column of L is mostly along one element.
    """
    flat = draws.reshape(-1, draws.shape[2])
    n, size = flat.shape
    scale = flat.std(axis=0)
    scale[scale == 0] = 1.0
    if size > LARGEST_COVARIANCE or n < 10 * size:
        return Coordinates(np.diag(scale), "standard deviations of the draws")
    standardised = (flat - flat.mean(axis=0)) / scale
    values, vectors = np.linalg.eigh(standardised.T @ standardised / n)
    root = (vectors * np.sqrt(np.maximum(values, 1e-10))) @ vectors.T
    return Coordinates(scale[:, None] * root, "covariance of the draws")


def _of_chains(idata: DataTree, posterior: Dataset, names: Sequence[str]) -> dict[str, Any]:
    """Measure what draws and statistics show without gradients."""
    ess, rhat = worst(
        posterior[name].values
        for name in names
        if name in posterior and np.issubdtype(posterior[name].dtype, np.number)
    )
    found: dict[str, Any] = {"ess": ess, "rhat": rhat}
    chains = posterior.sizes["chain"]
    blocks = blocks_for(ess, chains)
    if "sample_stats" not in idata.children:
        return found
    stats = idata["sample_stats"].to_dataset()
    if "nonfinite" in stats:
        found["nonfinite"] = float(stats["nonfinite"].mean())
    if "kinetic_temperature" in stats and "thermostat" not in stats:
        held = stats["kinetic_temperature"].values
        if held.ndim == 2:
            mean, error = block_estimate(held, blocks)
            found |= {"held_temperature": float(mean), "held_temperature_error": float(error)}
            found["blocks"] = blocks * chains
    chosen = json.loads(posterior.attrs.get("adaptation", "{}"))
    if "thermostat" in stats and stats["thermostat"].ndim == 2:
        found["thermostat"] = float(stats["thermostat"].mean())
        if "friction_mean" in chosen:
            found["thermostat_predicted"] = chosen["friction_mean"]
    if "friction_mean" in chosen and ("thermostat" in found or "held_temperature" in found):
        half = chosen["step_size"] / 2
        injected = chosen["friction_mean"] - half * chosen["noise_mean"]
        found["noise_to_friction"] = half * chosen["noise_largest"] / injected
    return found


def _together(draws: np.ndarray) -> dict[str, Any]:
    """Measure whether chains move together, if there are draws enough to tell."""
    chains, n, _ = draws.shape
    if chains == 1 or n < BLOCKS:
        return {}
    together, error = chain_correlation(draws)
    return {"chain_correlation": together, "chain_correlation_error": error}


def _drift(
    draws: np.ndarray, posterior: Dataset, times: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Move draws to where the sampler took its gradients, in place: some way along the momentum.

    A symmetric splitting ends its updates half a drift away from there. On a normal posterior its
    draws have h^2 / 4 too little of the variance at the end, and none too little at the gradient.
    The gradient of a scale adds this up over all elements that share it: its mean would tell of an
    error that the scale does not have.

    Parameters
    ----------
    draws : array, shape (chains, draws, d)
    posterior : Dataset
        Says how far.
    times : callable
        Momentum, shape (..., d), times the metric.
    """
    drift = json.loads(posterior.attrs.get("adaptation", "{}")).get("drift_to_gradient", 0.0)
    rng = np.random.default_rng(1)
    for chain in draws if drift else ():
        chain += drift * times(rng.standard_normal(chain.shape))


def _measured(
    idata: DataTree,
    gradients: RowGradients | WholeGradients | LatentGradients,
    draws: np.ndarray,
    at: Coordinates,
    full_data: bool,
) -> Dataset:
    """Measure everything."""
    free = [rv.name for rv in gradients.model.free_RVs]
    found = _of_chains(idata, idata["posterior"].to_dataset(), free)
    mean = draws.mean(axis=(0, 1))
    anchor = mean if at.anchor is None else at.anchor
    anchor_gradient = np.zeros(gradients.size)
    if isinstance(gradients, RowGradients):
        anchor_gradient = gradients.likelihood(anchor, scatter=False).gradient
        if at.anchor_gradient is not None:
            off = (at.anchor_gradient - anchor_gradient) @ at.matrix
            found["anchor_error"] = float(np.abs(off).max())
    copies = at.row_copies
    if copies is not None and isinstance(gradients, RowGradients):
        copies = copies if len(copies) == gradients.n_rows else None

    def seen_at(chosen: np.ndarray, exact: bool) -> GradientsAtDraws:
        flat, rng = chosen.reshape(-1, gradients.size), np.random.default_rng(0)
        if isinstance(gradients, LatentGradients):
            return with_latents_at_draws(gradients, flat, at.matrix, rng)
        return gradients_at_draws(
            gradients, flat, at.matrix, anchor, anchor_gradient, rng, copies, exact
        )

    chosen = _evenly(draws, _count(gradients, full_data))
    seen = seen_at(chosen, full_data)
    affordable = _exact_draws(gradients)
    if seen.noise.max() > NOISE**2 * chosen[..., 0].size and affordable >= FEWEST_DRAWS:
        chosen = _evenly(draws, affordable)
        seen = seen_at(chosen, exact=True)
    chains, n, size = chosen.shape
    found |= _together(draws)
    blocks = min(blocks_for(min(found["ess"], chains * n), chains), n)
    z = np.linalg.solve(at.matrix, (chosen - mean).reshape(-1, size).T).T
    stein = stein_identities(z.reshape(chosen.shape), seen.gradients.reshape(chosen.shape), blocks)
    share = np.abs(at.matrix) / np.linalg.norm(at.matrix, axis=1, keepdims=True)
    attrs = {"variables": free, "metric": at.metric, "rows": seen.method}
    mostly = np.array(gradients.names)[share.argmax(axis=0)]
    return _identities(found, stein, mostly, seen.noise, chains, n, blocks, attrs)


def _measured_of_local(
    idata: DataTree,
    model: Model,
    gradients: LocalGradients,
    full_data: bool,
    times: Callable[[np.ndarray], np.ndarray] | None = None,
    draws: np.ndarray | None = None,
) -> Dataset:
    """Measure everything of a model with local variables.

    ``times`` multiplies by the metric; ``draws`` are of all variables, if not all were recorded.
    """
    posterior = idata["posterior"].to_dataset()
    free = [rv.name for rv in model.free_RVs]
    found = _of_chains(idata, posterior, free)
    left_out = [name for name in free if name not in posterior]
    if left_out and draws is None:
        return Dataset(found, attrs={"variables": free, "left_out": left_out})
    size = gradients.kernel.n_elements
    most = _most_draws(size)
    all_rows = full_data or gradients.n_rows * FEWEST_DRAWS <= LARGE
    if all_rows:
        most = min(most, max(FEWEST_DRAWS, ALL_ROWS // gradients.n_rows))
    if draws is None:
        some = posterior.isel(draw=_even(posterior.sizes["draw"], most // posterior.sizes["chain"]))
        draws = value_draws(model, gradients.source.vars, some)
    else:
        draws = _evenly(draws, most)
    chains, n, _ = draws.shape
    found |= _together(
        draws[:, :, np.linspace(0, size - 1, min(size, LARGEST_COVARIANCE)).astype(int)]
    )
    order, shared, names = gradients.order()
    if times is None:  # those of groups, given all else, which have most of the elements
        scales = draws.std(axis=(0, 1))
        scales[order[:shared]] = 0.0
        times = partial(np.multiply, scales)
    moves = np.concatenate(
        [
            np.broadcast_to(local is None or gradients.sizes(k) > 0, shape).ravel()
            for k, (local, shape) in enumerate(
                zip(gradients.variables, gradients.source.shapes, strict=True)
            )
        ]
    )  # others are drawn from their prior when a draw is recorded
    _drift(draws, posterior, lambda momentum: times(momentum) * moves)
    at = Coordinates(np.empty((0, 0)), "")
    if shared:
        at = _of_draws(draws[:, :, order[:shared]])
    blocks = min(blocks_for(min(found["ess"], chains * n), chains), n)
    rng = np.random.default_rng(0)
    whole = _whole(gradients) if all_rows else None
    seen = local_identities(gradients, draws, at.matrix, order, names, blocks, rng, whole)
    attrs = {"variables": free, "metric": at.metric, "rows": seen.rows}
    groups = [int(np.count_nonzero(gradients.sizes(k))) for k in gradients.local]
    found["shared_by"] = "direction", np.array([1] * shared + groups)
    return _identities(found, seen.stein, seen.names, seen.noise, chains, n, blocks, attrs)


def _identities(
    found: dict[str, Any],
    stein: SteinIdentities,
    names: Sequence[str],
    noise: np.ndarray,
    chains: int,
    draws: int,
    blocks: int,
    attrs: dict[str, Any],
) -> Dataset:
    """Join what was found of the chains and of the gradients."""
    variables = {
        **found,
        "gradient": ("direction", stein.gradient.mean),
        "gradient_error": ("direction", stein.gradient.error),
        "virial": ("direction", stein.virial.mean),
        "virial_error": ("direction", stein.virial.error),
        "mean_virial": float(stein.mean_virial.mean),
        "mean_virial_error": float(stein.mean_virial.error),
        "cross": ("pair", stein.cross.mean),
        "cross_error": ("pair", stein.cross.error),
        "gradient_noise": ("direction", noise),
        "gradients": chains * draws,
        "blocks": chains * blocks,
    }
    coords = {
        "direction": np.arange(len(names)),
        "element": ("direction", np.array(names)),
        "pair": np.array([f"{i}-{j}" for i, j in stein.pairs], dtype=str),
    }
    return Dataset(variables, coords, attrs)


def _exact_draws(gradients: RowGradients | WholeGradients | LatentGradients) -> int:
    """At how many draws gradients of all rows are affordable, where those of some are too noisy."""
    if not isinstance(gradients, RowGradients) or isinstance(gradients, StreamedRowGradients):
        return 0
    return min(MOST_DRAWS, MOST_EXACT // (gradients.n_rows * (gradients.size + ROW_COST)))


def _count(gradients: RowGradients | WholeGradients | LatentGradients, full_data: bool) -> int:
    """How many draws to look at."""
    if full_data:
        return EXACT_DRAWS
    if isinstance(gradients, RowGradients | LatentGradients):
        return MOST_DRAWS
    model = gradients.model
    rows = sum(int(np.prod(shape)) for shape in model.eval_rv_shapes().values())
    observed = sum(model.rvs_to_values[rv].size.eval() for rv in model.observed_RVs)
    return int(np.clip(WHOLE_ROWS // max(1, rows + observed), EXACT_DRAWS, MOST_DRAWS))


def _evenly(draws: np.ndarray, most: int) -> np.ndarray:
    """Return evenly spaced draws of each chain, about ``most`` of all chains together."""
    return draws[:, _even(draws.shape[1], most // draws.shape[0])]


def _even(n: int, most: int) -> np.ndarray:
    """Return evenly spaced numbers below n, at most so many."""
    return np.linspace(0, n - 1, min(n, max(1, most))).astype(int)
