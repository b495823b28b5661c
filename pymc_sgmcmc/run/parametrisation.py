"""Runs that sample effects centred or non-centred, with results in the model's own form."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from pymc.model import Model
from xarray import DataTree

from pymc_sgmcmc.adaptation.adapted_settings import FORM, Adapted
from pymc_sgmcmc.adaptation.change_of_form import OtherForm, form_changeable
from pymc_sgmcmc.integration.centre_scaled_effects import with_centred_effects
from pymc_sgmcmc.integration.group_terms import GroupTerms, group_terms
from pymc_sgmcmc.integration.partial_non_centring import centred_effects, with_non_centred_effects
from pymc_sgmcmc.integration.reparametrised_models import own_name
from pymc_sgmcmc.integration.whether_to_integrate import starts_in
from pymc_sgmcmc.run.integrated_effects import of_what_groups_share, with_effects
from pymc_sgmcmc.run.log_densities import with_log_densities, without_log_densities
from pymc_sgmcmc.run.sample_arguments import Arguments
from pymc_sgmcmc.run.starts import start_of_warm_up
from pymc_sgmcmc.run.step_of_run import default_step

_log = logging.getLogger("pymc.sgmcmc")


@dataclass(frozen=True)
class Form:
    """The form in which a model is sampled by the default step."""

    written: Arguments
    """Arguments for the model as it is written."""
    groups: GroupTerms | None
    """The written model group by group, if effects are integrated out."""
    parametrised: Arguments
    """Arguments for the model with each effect centred or non-centred, whichever suits it."""
    terms: GroupTerms | None
    """The model of `parametrised` group by group."""
    sampled: Arguments
    """Arguments for that model without the effects that are integrated out."""

    @classmethod
    def of(
        cls,
        written: Arguments,
        groups: GroupTerms | None,
        non_centred: Mapping[str, np.ndarray] = MappingProxyType({}),
        follow_prior: bool = False,
        refined: bool = False,
        equally_spaced: bool = False,
    ) -> "Form":
        """Choose the form from what a warm-up has found, the fields of `Adapted`."""
        parametrised, terms = _parametrised(written, groups, non_centred)
        sampled = parametrised
        if terms is not None:
            sampled = of_what_groups_share(
                parametrised, terms, follow_prior, refined, equally_spaced
            )
        return cls(written, groups, parametrised, terms, sampled)

    def warmed_up(self, rng: np.random.Generator, earlier: Adapted | None) -> tuple["Form", Any]:
        """Return the form, or a better one that the warm-up finds, and the default step.

        Each of the fields of a `FORM` is changed at most once.
        """
        form, passes, found = self, 0.0, dict[str, Any]()
        left = set(FORM) if earlier is None and _is_rewritable(self.written) else set()
        while True:
            try:
                with form_changeable(left):
                    step = form._step(rng, earlier)
                break
            except OtherForm as other:
                left -= set(other.found)
                found |= other.found
                passes += other.passes
            form = Form.of(self.written, self.groups, **found)
        if form is not self:
            passes += step.adapted.data_passes
            step.adapted = replace(step.adapted, data_passes=passes, **found)
        return form, step

    def _step(self, rng: np.random.Generator, earlier: Adapted | None = None) -> Any:
        given, of_groups = self.sampled, self.terms is not None
        start = start_of_warm_up(given.model, given.initvals, rng)
        return default_step(
            given.model,
            given.compile_kwargs,
            rng,
            given.adaptation if earlier is None else earlier,
            of_groups,
            given.data,
            start,
        )

    def complete(self, tree: DataTree, model: Model, rng: np.random.Generator) -> DataTree:
        """Return a result of the sampled model with the written one's variables, in its order."""
        if self.terms is not None:
            tree = with_effects(tree, self.terms, model, self.parametrised, rng)
        if self.parametrised.model is self.written.model:
            return tree
        order = [v.name for v in self.written.model.unobserved_RVs]
        for name in ("posterior", "warmup_posterior"):
            if name in tree.children:
                dataset = tree[name].to_dataset()
                tree[name] = DataTree(dataset[[v for v in order if v in dataset]])
        return with_log_densities(tree, self.written.model, self.written.idata_kwargs)


def _parametrised(
    given: Arguments, terms: GroupTerms | None, weak: Mapping[str, np.ndarray]
) -> tuple[Arguments, GroupTerms | None]:
    """Return arguments, and terms to integrate, for the model in another parametrisation.

    Effects in ``weak``, about which rows say little, become partially non-centred; others with many
    rows become centred.
    """
    model = given.model if terms is None else terms.model
    if _is_rewritable(given):
        known = () if terms is None else (terms.names, len(terms.group_of_row))
        model = with_centred_effects(model, *known)
        effects = {rv.name for rv in centred_effects(model)}
        if weak:
            names = ", ".join(repr(own_name(name)) for name in weak if name in effects)
            _log.info(
                "Rows may say less about these effects than the prior, so they are partially "
                f"non-centred: {names}."
            )
        model = with_non_centred_effects(model, weak)
    if model is given.model:
        return given, terms
    if terms is not None and model is not terms.model:
        of_rows = [model[name] for name in terms.names] if terms.of_rows else ()
        terms = group_terms(model, terms.names, given.data, of_rows)
    initvals = starts_in(model, given.initvals)
    idata_kwargs = without_log_densities(given.idata_kwargs)
    return replace(given, model=model, initvals=initvals, idata_kwargs=idata_kwargs), terms


def _is_rewritable(given: Arguments) -> bool:
    """Whether a model may be sampled in a parametrisation other than the written one.

    Predictions, a warm-up stored for later runs or by an earlier one, and placeholders of streamed
    rows belong to the model as it is written.
    """
    of_other_runs = given.store_adaptation or isinstance(given.adaptation, DataTree)
    return not (given.predictions or of_other_runs or given.data is not None)
