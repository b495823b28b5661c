"""`sample(exact=True)`: what it refuses, and exact draws in place of minibatch draws."""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pymc.model import Model
from pymc.step_methods.compound import flatten_steps
from xarray import Dataset, DataTree

from pymc_sgmcmc.adaptation.metric_and_batch_size import LARGEST_DENSE, LARGEST_SHARED
from pymc_sgmcmc.adaptation.warm_up_progress import TimeLimit
from pymc_sgmcmc.backends.compile_time import quick_graphs
from pymc_sgmcmc.exact.hamiltonian import Hamiltonian
from pymc_sgmcmc.exact.log_density import LogDensity
from pymc_sgmcmc.exact.transitions import Finished, NothingExact, finish
from pymc_sgmcmc.gradients.local_variables import n_looked_up
from pymc_sgmcmc.gradients.model_gradient import shapes_of
from pymc_sgmcmc.gradients.row_gradients import RowGradients
from pymc_sgmcmc.gradients.value_draws import value_draws
from pymc_sgmcmc.gradients.whole_gradients import WholeGradients
from pymc_sgmcmc.run.recorder import Recorder
from pymc_sgmcmc.step import SGMCMCStep

_log = logging.getLogger("pymc.sgmcmc")

LEAVE_IT = "Leave exact=True out"


def refuse_exact(model: Model, step: Any, predictions: Sequence[Any]) -> None:
    """Raise an error for what cannot be finished exactly, before anything is compiled."""
    if predictions:
        raise ValueError(
            "exact=True and predictions=: these would be averages over the minibatch draws. Leave "
            "one of them out; pm.sample_posterior_predictive takes exact draws."
        )
    if step is None:
        _refuse_model(model)
        return
    steps = flatten_steps(step) if not isinstance(step, list | tuple) else list(step)
    if len(steps) != 1 or not isinstance(steps[0], SGMCMCStep):
        raise ValueError(
            "exact=True needs a single minibatch step for all variables: leave step= out, or pass "
            "sgm.MSGNHT_S()."
        )
    [step] = steps
    if step.latents is not None:
        raise ValueError(
            "exact=True needs a density, but with latents= there is only an estimate of it. "
            f"{LEAVE_IT}, or sum the latent variables out of the model (pymc_extras.marginalize)."
        )
    if step.adapted is None:
        raise ValueError(
            "exact=True needs an adapted step, whose metric it moves in, but "
            f"{type(step).__name__} has a step_size= set by hand: leave it out."
        )
    if step.source.local_variables:
        raise ValueError(
            "exact=True cannot move single groups' variables (local=). Leave step= out, which "
            "integrates out the effects of groups if it can; or use NUTS."
        )
    if step.kernel.n_elements > LARGEST_DENSE:
        raise ValueError(_too_many(step.kernel.n_elements))


def _refuse_model(model: Model) -> None:
    if model.discrete_value_vars:
        names = ", ".join(f"'{v.name}'" for v in model.discrete_value_vars)
        raise ValueError(
            f"exact=True moves along gradients, and {names} is discrete. {LEAVE_IT}, or sum it out "
            "of the model (pymc_extras.marginalize)."
        )
    with quick_graphs():
        shapes = shapes_of(model, model.continuous_value_vars)
        size = sum(int(np.prod(shape)) for shape in shapes)
        if size > LARGEST_SHARED and n_looked_up(model):
            raise ValueError(
                f"exact=True with {size} parameters, most of which belong to groups of rows that "
                "could not be integrated out (a message says why): pass integrate= their names for "
                "the reason, or use NUTS."
            )
    if size > LARGEST_DENSE:
        raise ValueError(_too_many(size))


def _too_many(size: int) -> str:
    return (
        f"exact=True is for up to {LARGEST_DENSE} parameters, but there are {size}: with more "
        "no matrix makes them alike, and a draw takes hundreds of gradients of all data. "
        f"{LEAVE_IT}."
    )


@dataclass(frozen=True)
class ExactPhase:
    """The exact phase of a run, up to an effective sample size.

    Its draws follow from only ``rng`` and the minibatch draws, so that a run resumed from its store
    has the same draws.
    """

    ess: float
    rng: np.random.Generator

    def __call__(
        self,
        tree: DataTree,
        step: SGMCMCStep,
        draws: np.ndarray | None,
        recorder: Recorder,
        limit: TimeLimit | None,
    ) -> tuple[DataTree, np.ndarray, np.ndarray] | None:
        """Return a result with exact draws, these draws of theta and their gradients in z.

        The last two have the shape (chains, draws, d). Without exact draws the result is None and a
        message says why; ``draws`` are those of all variables, if not all were recorded.
        """
        began = time.perf_counter()
        if draws is None:
            draws = value_draws(step.model, step.vars, tree["posterior"].to_dataset())
        gradients, metric = step.gradients, step.kernel.metric
        assert isinstance(gradients, RowGradients | WholeGradients)
        assert metric is not None
        gradients.load_data()
        hmc = Hamiltonian(LogDensity(gradients), metric, self.rng)
        has_ended = (lambda: False) if limit is None else (lambda: limit.has_passed)
        try:
            found = finish(hmc, draws, self.ess, has_ended)
        except (KeyboardInterrupt, NothingExact) as reason:
            why = "interrupted" if isinstance(reason, KeyboardInterrupt) else str(reason)
            _log.warning(f"No exact draws ({why}): the minibatch draws are returned.")
            return None
        seconds = time.perf_counter() - began
        theta = found.theta.reshape(len(found.theta), -1, found.theta.shape[-1])
        self._report(found, draws, theta, seconds)
        tree = _with(tree, gradients, recorder, found, theta, seconds)
        return tree, theta, found.gradient.reshape(theta.shape)

    @staticmethod
    def _report(found: Finished, draws: np.ndarray, theta: np.ndarray, seconds: float) -> None:
        superchains, each, kept = found.acceptance.shape
        sd = theta.std(axis=(0, 1))
        off = np.abs(draws.mean(axis=(0, 1)) - theta.mean(axis=(0, 1))) / np.where(sd > 0, sd, 1)
        _log.info(
            f"Exact: {superchains * each} chains of {found.transitions} transitions, the last "
            f"{kept} kept; acceptance {found.acceptance.mean():.2f}, {seconds:.0f} seconds. The "
            f"minibatch draws' means were up to {off.max():.2g} sd off."
        )
        if found.diverging.any():
            _log.warning(
                f"{int(found.diverging.sum())} exact transitions diverged: the posterior's shape "
                "changes from place to place. Reparametrise the model, or use NUTS."
            )
        if found.reason:
            _log.warning(f"The exact draws are not enough: {found.reason}.")


def _with(
    tree: DataTree,
    gradients: RowGradients | WholeGradients,
    recorder: Recorder,
    found: Finished,
    theta: np.ndarray,
    seconds: float,
) -> DataTree:
    """Replace the draws and their statistics in a result."""
    chains, n, _ = theta.shape
    superchains, each, kept = found.acceptance.shape
    old = tree["posterior"].to_dataset().transpose("chain", "draw", ...)
    values = _recorded(recorder, gradients, theta)
    of_draws = {"chain": old["chain"], "draw": np.arange(n)}
    coords = of_draws | {k: v for k, v in old.coords.items() if k not in of_draws}
    posterior = Dataset(
        {name: (var.dims, values[str(name)], var.attrs) for name, var in old.items()}, coords
    )
    exact = {
        "chains": chains * each,
        "transitions": found.transitions,
        "kept": kept,
        "acceptance": float(found.acceptance.mean()),
        "step_size": float(found.step_size[-1]),
        "passes": found.evaluations,
        "seconds": seconds,
        "reason": found.reason,
    }
    posterior.attrs = old.attrs | {"exact": json.dumps(exact)}
    if "data_passes" in posterior.attrs:
        posterior.attrs["data_passes"] += found.evaluations
    shape, whole = (superchains, each, kept), (chains, n)
    numbers = np.arange(superchains * each).reshape(superchains, each, 1)
    columns = {
        "acceptance_rate": found.acceptance,
        "energy": found.energy,
        "lp": found.log_density,
        "diverging": found.diverging,
        "step_size": np.broadcast_to(found.step_size, shape),
        "n_steps": np.broadcast_to(found.n_steps, shape),
        "short_chain": np.broadcast_to(numbers, shape),
    }
    stats = Dataset(
        {name: (("chain", "draw"), a.reshape(whole)) for name, a in columns.items()}, of_draws
    )
    if "sample_stats" in tree.children:
        stats.attrs = tree["sample_stats"].attrs
    tree["posterior"], tree["sample_stats"] = DataTree(posterior), DataTree(stats)
    if "diagnosis" in tree.children:
        tree["minibatch_diagnosis"] = DataTree(tree["diagnosis"].to_dataset())
        del tree["diagnosis"]
    return tree


def _recorded(
    recorder: Recorder, gradients: RowGradients | WholeGradients, theta: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the recorded variables of points of shape (chains, draws, d), by name."""
    chains, n, d = theta.shape
    trace = recorder.new_trace()
    trace.setup(chains * n, 0)
    for point in theta.reshape(-1, d):
        trace.record(gradients.point(point), in_warmup=False)
    return {name: a.reshape(chains, n, *a.shape[1:]) for name, a in trace.samples.items()}
