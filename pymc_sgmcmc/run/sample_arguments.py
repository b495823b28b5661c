"""The arguments of `sample`, checked before anything is compiled."""

import multiprocessing
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pymc.model import Model, modelcontext

from pymc_sgmcmc.adaptation.adapted_settings import check_earlier_result
from pymc_sgmcmc.backends.backend import check_compile_kwargs
from pymc_sgmcmc.backends.cores import n_cores
from pymc_sgmcmc.batches.streamed_data import StreamedData
from pymc_sgmcmc.number_checks import positive_number, shown, true_or_false, whole_number
from pymc_sgmcmc.predictions.predictions import Predictions
from pymc_sgmcmc.run.engines import check_method
from pymc_sgmcmc.run.result_form import check_idata_kwargs
from pymc_sgmcmc.run.seeds import check_seed
from pymc_sgmcmc.run.starts import check_names, check_starts
from pymc_sgmcmc.run.step_of_run import sampled_model

CHAINS = 4
"""Default number of chains, enough for R-hat and the same on every machine."""
MOST_CHAINS = 100_000
"""Largest number of chains, for each of which a generator, recorder and start are made first."""
SWITCHES = (
    "quiet",
    "discard_tuned_samples",
    "compute_convergence_checks",
    "exact",
    "keep_warning_stat",
    "store_adaptation",
    "resume",
)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of `sample`, with their types; `sample` documents them."""

    draws: Any = None
    tune: Any = None
    chains: Any = None
    cores: Any = None
    random_seed: Any = None
    progressbar: Any = True
    progressbar_theme: Any = None
    quiet: Any = False
    step: Any = None
    ess: Any = 400
    exact: Any = False
    max_passes: Any = None
    max_seconds: Any = None
    adaptation: Any = "auto"
    store_adaptation: Any = False
    var_names: Any = None
    initvals: Any = None
    init: Any = "jitter"
    trace: Any = None
    discard_tuned_samples: Any = True
    compute_convergence_checks: Any = True
    keep_warning_stat: Any = False
    idata_kwargs: Any = None
    callback: Any = None
    mp_ctx: Any = None
    blas_cores: Any = "auto"
    model: Any = None
    compile_kwargs: Any = None
    chain_method: Any = None
    client: Any = None
    resume: Any = False
    include_data: Any = None
    predictions: Any = ()
    integrate: Any = "auto"
    data: Any = None

    def checked(self) -> "Arguments":
        """Return them with the sampled model and defaults filled in, or raise an error."""
        _check_kinds(self)
        check_compile_kwargs(self.compile_kwargs)
        check_method(self.chain_method)
        check_seed(self.random_seed)
        model = sampled_model(modelcontext(self.model), self.step)
        checked = replace(
            self,
            model=model,
            draws=None if self.draws is None else whole_number("draws", self.draws, 1),
            tune=None if self.tune is None else whole_number("tune", self.tune, 0),
            chains=CHAINS
            if self.chains is None
            else whole_number("chains", self.chains, 1, MOST_CHAINS),
            ess=positive_number("ess", self.ess, "It is an effective sample size, 400 by default."),
            cores=_checked_cores(self.cores, self.blas_cores),
            idata_kwargs=dict(self.idata_kwargs or {}),
            predictions=_checked_predictions(model, self.predictions),
            data=None if self.data is None else StreamedData.of(self.data),
            progressbar=False if self.quiet is True else self.progressbar,
        )
        for name, of in {"max_passes": "passes over the data", "max_seconds": "seconds"}.items():
            if getattr(self, name) is not None:
                positive_number(name, getattr(self, name), f"It is a number of {of}.")
        for name in SWITCHES:
            true_or_false(name, getattr(self, name))
        if self.include_data is not None:
            true_or_false("include_data", self.include_data)
        check_names(model, self.var_names, "var_names", bool(checked.predictions))
        check_starts(model, self.initvals, self.init, checked.chains)
        check_idata_kwargs(model, self.var_names, checked.idata_kwargs)
        return checked


def _checked_cores(cores: Any, blas_cores: Any) -> int:
    """Return the number of processes, or raise an error."""
    if blas_cores is not None and blas_cores != "auto":
        whole_number("blas_cores", blas_cores, 1, remedy="or 'auto', or None for no limit.")
    return min(4, n_cores()) if cores is None else whole_number("cores", cores, 1)


def _checked_predictions(model: Model, predictions: Any) -> list[Predictions]:
    """Return predictions as a list, of which each is for this model and has its own name."""
    if isinstance(predictions, Predictions):
        predictions = [predictions]
    if not isinstance(predictions, Iterable):
        raise TypeError(
            f"predictions={shown(predictions)} must be made by sgm.Predictions(...), or be a list "
            "of these. To average none, leave predictions= out."
        )
    predictions, names = list(predictions), set()
    for one in predictions:
        if not isinstance(one, Predictions):
            raise TypeError(f"predictions={shown(one)} must be made by sgm.Predictions(...).")
        if {v.name for v in one.predictor.model.value_vars} != {v.name for v in model.value_vars}:
            raise ValueError(f"{one!r} was made for another model: make it for this one.")
        if one.name in names:
            raise ValueError(
                f"Two of predictions have the name '{one.name}': give each of them another name=."
            )
        names.add(one.name)
    return predictions


def _check_kinds(given: Arguments) -> None:
    """Raise an error for arguments that would otherwise fail only once the draws have been made."""
    model, callback, idata_kwargs = given.model, given.callback, given.idata_kwargs
    if not isinstance(model, Model | None):
        fits = " A model that has fit(): with sgm.instead_of_nuts(): model.fit(...)."
        raise ValueError(
            f"model={shown(model)} must be a pymc.Model, or None inside its context."
            f"{fits if hasattr(model, 'fit') else ''}"
        )
    if callback is not None and not callable(callback):
        raise ValueError(
            f"callback={shown(callback)} must be a function, called as "
            "callback(trace=..., draw=...)."
        )
    if not isinstance(idata_kwargs, dict | None):
        raise ValueError(
            f"idata_kwargs={shown(idata_kwargs)} must be a dict of arguments of "
            "pymc.to_inference_data."
        )
    if given.data is not None and given.step is not None:
        raise ValueError("data= is for the default step: pass it to the step that you made.")
    check_earlier_result(given.adaptation, given.step)
    methods, mp_ctx = multiprocessing.get_all_start_methods(), given.mp_ctx
    if not (mp_ctx is None or mp_ctx in methods or hasattr(mp_ctx, "get_start_method")):
        raise ValueError(
            f"mp_ctx={shown(mp_ctx)} must be one of {', '.join(map(repr, methods))}, a context of "
            "multiprocessing, or None."
        )
