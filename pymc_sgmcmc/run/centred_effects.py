"""Runs that sample effects in the centred parametrisation, with results as the model is written."""

from dataclasses import replace

from xarray import DataTree

from pymc_sgmcmc.integration.centring import with_centred_effects
from pymc_sgmcmc.integration.choice import starts_in
from pymc_sgmcmc.integration.group_terms import GroupTerms, group_terms
from pymc_sgmcmc.integration.stand_ins import is_own
from pymc_sgmcmc.run.arguments import Arguments
from pymc_sgmcmc.run.log_densities import with_log_densities, without_log_densities


def in_centred_form(
    given: Arguments, terms: GroupTerms | None
) -> tuple[Arguments, GroupTerms | None]:
    """Return arguments, and terms to integrate, for the model in the centred parametrisation.

    Predictions, a warm-up that is stored for later runs, and placeholders of streamed rows are of
    the model as it is written.
    """
    model = given.model if terms is None else terms.model
    if not (given.predictions or given.store_adaptation or given.data is not None):
        model = with_centred_effects(model, () if terms is None else terms.names)
    if model is given.model:
        return given, terms
    if terms is not None and model is not terms.model:
        terms = group_terms(model, terms.names, given.data)
    initvals = starts_in(model, given.initvals)
    idata_kwargs = without_log_densities(given.idata_kwargs)
    return replace(given, model=model, initvals=initvals, idata_kwargs=idata_kwargs), terms


def as_written(tree: DataTree, given: Arguments) -> DataTree:
    """Return a result with the variables of the model that was given, in its order."""
    for name in ("posterior", "warmup_posterior"):
        if name in tree.children:
            dataset = tree[name].to_dataset()
            tree[name] = DataTree(dataset[[v for v in dataset.data_vars if is_own(str(v))]])
    return with_log_densities(tree, given.model, given.idata_kwargs)
