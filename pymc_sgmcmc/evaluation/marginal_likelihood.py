"""log p(x | theta) of rows under a model with latent variables local to the rows.

Both estimators average weights w with E[w] = p(x | theta) (doubly stochastic paper, appendix B; see
`log_weights`). The logarithm of an unbiased estimate is too low on average, by half its squared
standard error if that is small. Backward annealing averages weights whose mean is 1 / p(x | theta),
and minus their logarithm is too high on average.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytensor.tensor as pt
import xarray as xr
from pymc.model import Model, modelcontext
from pymc.util import RandomGenerator, get_random_generator
from pytensor.tensor.variable import TensorVariable
from scipy.special import logsumexp

from pymc_sgmcmc.evaluation.latent_model import Compiled, Draws, FromPrior, LatentModel, Thetas
from pymc_sgmcmc.evaluation.log_weights import LogWeights, annealed, importance
from pymc_sgmcmc.latents.gibbs.gibbs import Gibbs
from pymc_sgmcmc.latents.joint import Latents
from pymc_sgmcmc.number_checks import whole_number

PARTICLES_PER_CALL = 2048
"""Largest number of rows times weights per row in one compiled call, which bounds its memory."""
FEWEST_RUNS = 8
"""Smallest number of annealing runs per row whose spread is informative about the error."""


def log_marginal_likelihood(
    draws: Draws,
    latents: Latents | Sequence[TensorVariable | str],
    *,
    data: Mapping[str, np.ndarray] | None = None,
    method: Literal["ais", "importance"] = "ais",
    n_samples: int | None = None,
    n_temperatures: int = 1000,
    path: Literal["likelihood", "parameters"] = "likelihood",
    simulated: Mapping[str, np.ndarray] | None = None,
    minibatch_dim: str | None = None,
    model: Model | None = None,
    random_seed: RandomGenerator = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> xr.Dataset:
    """Estimate log p(x | theta) of each row x for each posterior draw theta.

    Parameters
    ----------
    draws : DataTree, Dataset or dict
        Posterior draws of the model's free variables except the latent ones, with dims chain and
        draw; or one point, a value for each name. The cost is proportional to the number of draws,
        and a few suffice: ``idata.isel(draw=slice(None, None, 100))``.
    latents : list of random variables or names, or Gibbs or NeuralImportance
        The latent variables that are local to the rows. `Gibbs` (the default for a list) makes the
        transitions of "ais". `NeuralImportance` with trained weights (see its `trained`) is the
        proposal of "importance"; for a list the proposal is the prior of the latent variables.
    data : dict, optional
        Any number of new rows: an array for each `pm.Data` that has rows, or observed variable
        without a `pm.Data`. Default: the model's own rows.
    method : {"ais", "importance"}, default "ais"
        Annealed importance sampling, or importance sampling.
    n_samples : int, optional
        Independent weights per row and draw. Default: 16 for "ais", 10 000 for "importance".
    n_temperatures : int, default 1000
        K, steps of the annealing: its variance falls as 1 / K.
    path : {"likelihood", "parameters"}, default "likelihood"
        The intermediate distributions, for k = 0, ..., K: "likelihood" is p(z | theta) p(x | z,
        theta)^(k/K), for any model; "parameters" is the paper's p(x, z | k theta / K), for models
        in which x does not depend on z at theta = 0, such as a sigmoid belief network, for which
        its sweeps are much faster.
    simulated : dict, optional
        For rows that were simulated from the model at the one theta in ``draws``, the values of the
        latent variables from which they were simulated, ``{"z": array of shape (rows, ...)}``.
        Given the row they are an exact draw from the posterior, so "ais" can be run backwards too
        (see ``gap`` below). Use it to check the settings.
    minibatch_dim : str, optional
        The observation dim; needed only if several dims qualify.
    model : pymc.Model, optional
        Default: the model on the context stack.
    random_seed : int or numpy.random.Generator, optional
    compile_kwargs : dict, optional
        For `pytensor.function`, for example ``{"mode": "JAX"}``.

    Returns
    -------
    xarray.Dataset
        In nats. ``log_p`` (chain, draw, row): the estimates; ``mean_log_p`` (chain, draw): their
        mean over the rows; ``log_predictive`` (row): the logarithm of the mean of p(x | theta) over
        the draws; ``mean_log_predictive``: its mean over the rows. Each has a companion
        ``..._mcse``, the standard error due to sampling the latent variables. It does not include
        the error from the choice of rows or draws. ``ess`` (chain, draw, row): the effective sample
        size of the ``n_samples`` weights, (sum w)^2 / sum w^2. With ``simulated`` also
        ``log_p_upper`` (chain, draw, row), which is too high on average as ``log_p`` is too low,
        and ``gap`` (chain, draw): the mean over the rows of their difference, which bounds the
        error of both on average, with ``gap_mcse`` from its spread over the rows.

    Warns
    -----
    UserWarning
        If "ais" makes fewer than 8 runs per row, whose spread says little about the error; and if
        one weight dominates in more than a tenth of the rows (``ess`` below 2).

    Raises
    ------
    ValueError
        If an argument is out of range, or a variable or array is missing or has the wrong shape,
        naming it. For "ais" along the path "likelihood" with a `Gibbs` that has ``conditional``,
        because a user's own function does not know how much of the likelihood counts.

    Notes
    -----
    Doubly stochastic paper, appendix B, eq 16 and 17; backwards: R. B. Grosse, Z. Ghahramani and
    R. P. Adams (2015), Sandwiching the marginal likelihood using bidirectional Monte Carlo,
    arXiv:1511.02543.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_sgmcmc as sgm
    >>> x = np.random.default_rng(0).normal(size=5)
    >>> with pm.Model(coords={"obs": range(5)}) as model:
    ...     w = pm.Normal("w")
    ...     z = pm.Bernoulli("z", 0.3, dims="obs")
    ...     x = pm.Normal("x", w * z, 1, observed=x, dims="obs")
    >>> sgm.log_marginal_likelihood(
    ...     {"w": 2.0}, [z], data={"x": [0.0, 3.0]}, model=model, random_seed=1, method="importance"
    ... ).log_p.values.round(1).tolist()
    [[[-1.2, -2.6]]]
    """
    model = modelcontext(model)
    if method not in ("ais", "importance"):
        raise ValueError(f"method={method!r} must be 'ais' or 'importance'.")
    if path not in ("likelihood", "parameters"):
        raise ValueError(f"path={path!r} must be 'likelihood' or 'parameters'.")
    if n_samples is None:
        n_samples = {"ais": 16, "importance": 10_000}[method]
    n_samples = whole_number("n_samples", n_samples, 1)
    n_temperatures = whole_number("n_temperatures", n_temperatures, 1)
    default = FromPrior if method == "importance" else Gibbs
    latent_model = LatentModel.of(model, latents, minibatch_dim, default)
    thetas = Thetas.of(latent_model, draws)
    data_values, n_rows = latent_model.data(data)
    rng = get_random_generator(random_seed)

    backwards = None
    if method == "importance":
        log_weights = importance(latent_model.latents)
    elif isinstance(latent_model.latents, Gibbs):
        if latent_model.latents.conditional and path == "likelihood":
            names = ", ".join(f"'{name}'" for name in latent_model.latents.conditional)
            raise ValueError(
                f"path='likelihood': the function in conditional= draws {names} given all of the "
                "likelihood, but between prior and posterior only a part of it counts. Leave out "
                "conditional=, or use path='parameters' or method='importance'."
            )
        log_weights = annealed(latent_model.latents, n_temperatures, path)
        backwards = annealed(latent_model.latents, n_temperatures, path, backwards=True)
    else:
        raise ValueError(
            "method='ais' needs latents=Gibbs([...]) or a list of variables, "
            f"got {latents!r}. Pass one of these, or method='importance'."
        )
    if method == "ais" and n_samples < FEWEST_RUNS:
        warnings.warn(
            f"n_samples={n_samples} annealing runs per row are too few to judge the error: runs "
            "that miss the same part of the posterior agree with each other. Pass n_samples=16.",
            stacklevel=2,
        )
    exact = (
        None if simulated is None else _simulated(simulated, method, latent_model, thetas, n_rows)
    )
    weigh = Weights(latent_model, n_rows, n_samples, data_values, rng, compile_kwargs)
    log_p, mcse, ess = weigh(thetas, log_weights)
    _warn_of_dominant_weights(ess, n_samples, method)
    settings: dict[str, Any] = {"method": method, "n_samples": n_samples}
    settings |= {"n_temperatures": n_temperatures, "path": path} if method == "ais" else {}
    result = summary(thetas.coords, log_p, mcse, ess, settings)
    if exact is not None and backwards is not None:
        upper = -weigh(thetas, backwards, exact)[0]
        difference = upper - log_p
        result["log_p_upper"] = ("chain", "draw", "row"), upper
        result["gap"] = ("chain", "draw"), difference.mean(axis=-1)
        spread = difference.std(axis=-1, ddof=1) if n_rows > 1 else np.full(thetas.shape, np.nan)
        result["gap_mcse"] = ("chain", "draw"), spread / np.sqrt(n_rows)
    return result


@dataclass(frozen=True)
class Weights:
    """Draws weights for all rows, a few at a time."""

    latent_model: LatentModel
    n_rows: int
    n_samples: int
    data: list[np.ndarray]
    rng: np.random.Generator
    compile_kwargs: dict[str, Any] | None

    def __call__(
        self,
        thetas: Thetas,
        log_weights: LogWeights,
        exact: Sequence[np.ndarray] = (),
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the log mean weight of each draw and row, its error, and the weights' ESS."""
        n_rows, n_samples = self.n_rows, self.n_samples
        rows_per_call = min(n_rows, max(1, PARTICLES_PER_CALL // n_samples))
        n_calls = math.ceil(rows_per_call * n_samples / PARTICLES_PER_CALL)
        samples_per_call = math.ceil(n_samples / n_calls)
        weigh = Compiled(
            self.latent_model,
            log_weights,
            rows_per_call * samples_per_call,
            self.rng,
            self.compile_kwargs,
            extra=[pt.tensor(dtype=e.dtype, shape=(None, *e.shape[1:])) for e in exact],
        )
        weigh.put([*self.data, *exact])
        log_p, mcse, ess = np.empty((3, *thetas.shape, n_rows))
        for draw in np.ndindex(thetas.shape):
            for first in range(0, n_rows, rows_per_call):
                # The last piece wraps around, because the number of rows per call is fixed at
                # compilation.
                piece = np.arange(first, first + rows_per_call) % n_rows
                index = np.repeat(piece, samples_per_call)
                calls = [weigh(thetas.at(draw), index) for _ in range(n_calls)]
                if not all(valid for _, valid in calls):
                    raise ValueError(
                        "path='parameters': at theta = 0 the data depend on the latent variables, "
                        "or have no density. Use path='likelihood'."
                    )
                log_w = np.concatenate([w.reshape(rows_per_call, -1) for w, _ in calls], axis=1)
                log_w = log_w[: n_rows - first, :n_samples].astype(np.float64)
                here = (*draw, slice(first, first + rows_per_call))
                log_p[here], mcse[here] = log_mean(log_w), log_mean_mcse(log_w)
                ess[here] = effective_sample_size(log_w)
        return log_p, mcse, ess


def _simulated(
    simulated: Mapping[str, np.ndarray],
    method: str,
    latent_model: LatentModel,
    thetas: Thetas,
    n_rows: int,
) -> list[np.ndarray]:
    """Return exact draws of the latent variables, one array for each."""
    if method != "ais" or math.prod(thetas.shape) != 1:
        raise ValueError(
            "simulated= is for method='ais' and one draw of theta, that from which the rows were "
            f"simulated, got method={method!r} and {math.prod(thetas.shape)} draws."
        )
    variables = latent_model.source.joint.variables
    names = [v.name for v in variables]
    if set(simulated) != set(names):
        raise ValueError(f"simulated= must have the latent variables {names}, got {[*simulated]}.")
    values = [np.asarray(simulated[v.name]).astype(v.dtype) for v in variables]
    for variable, value in zip(variables, values, strict=True):
        if value.shape != (n_rows, *variable.shape):
            raise ValueError(
                f"simulated: '{variable.name}' has the shape {value.shape}, but the rows need "
                f"{(n_rows, *variable.shape)}."
            )
    return values


def _warn_of_dominant_weights(ess: np.ndarray, n_samples: int, method: str) -> None:
    share = np.mean(ess < 2)
    if n_samples >= FEWEST_RUNS and share > 0.1:
        more = "n_temperatures" if method == "ais" else "n_samples, or method='ais'"
        warnings.warn(
            f"In {100 * share:.0f}% of the rows one of the {n_samples} weights dominates (an "
            "effective sample size below 2): log p is too low there, by more than its error says. "
            f"Use a larger {more}.",
            stacklevel=3,
        )


# ---- results -------------------------------------------------------------------------------


def log_mean(log_w: np.ndarray) -> np.ndarray:
    """Return the logarithm of the mean of weights over the last axis."""
    return logsumexp(log_w, axis=-1) - np.log(log_w.shape[-1])


def log_mean_mcse(log_w: np.ndarray) -> np.ndarray:
    """Return the standard error of `log_mean`: that of the mean, relative to it (delta method)."""
    n = log_w.shape[-1]
    if n == 1:
        return np.full(log_w.shape[:-1], np.nan)
    share = np.exp(log_w - logsumexp(log_w, axis=-1, keepdims=True))
    return np.sqrt(np.maximum((share**2).sum(axis=-1) - 1 / n, 0) * n / (n - 1))


def effective_sample_size(log_w: np.ndarray) -> np.ndarray:
    """Return (sum w)^2 / sum w^2 over the last axis."""
    return np.exp(2 * logsumexp(log_w, axis=-1) - logsumexp(2 * log_w, axis=-1))


def summary(
    coords: Mapping[str, np.ndarray],
    log_p: np.ndarray,
    mcse: np.ndarray,
    ess: np.ndarray,
    settings: Mapping[str, Any],
) -> xr.Dataset:
    """Return the result for estimates of each draw and row."""
    n_rows = log_p.shape[-1]
    total = logsumexp(log_p, axis=(0, 1))
    log_predictive = total - np.log(math.prod(log_p.shape[:2]))
    predictive_mcse = np.sqrt(((np.exp(log_p - total) * mcse) ** 2).sum(axis=(0, 1)))
    return xr.Dataset(
        {
            "log_p": (("chain", "draw", "row"), log_p),
            "log_p_mcse": (("chain", "draw", "row"), mcse),
            "ess": (("chain", "draw", "row"), ess),
            "mean_log_p": (("chain", "draw"), log_p.mean(axis=-1)),
            "mean_log_p_mcse": (("chain", "draw"), np.sqrt((mcse**2).sum(axis=-1)) / n_rows),
            "log_predictive": ("row", log_predictive),
            "log_predictive_mcse": ("row", predictive_mcse),
            "mean_log_predictive": log_predictive.mean(),
            "mean_log_predictive_mcse": np.sqrt((predictive_mcse**2).sum()) / n_rows,
        },
        coords={**coords, "row": np.arange(n_rows)},
        attrs=dict(settings),
    )
